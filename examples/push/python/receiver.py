"""Receives messages that Quaymaster pushes: verifies each call, and prints its event.

    pip install standardwebhooks cloudevents
    PUSH_SECRET=whsec_... python receiver.py 8080

The secret is what `quaymaster queue push show QUEUE --secret` prints.
"""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from standardwebhooks import Webhook, WebhookVerificationError

webhook = Webhook(os.environ["PUSH_SECRET"])
# In memory this is good for an example only. Keep ids in your database, and insert one in the transaction that has the
# effects of its message: the id that is there already is that of a message that was worked on before.
seen: set[str] = set()


class Receiver(BaseHTTPRequestHandler):
    """Answers calls."""

    protocol_version = "HTTP/1.1"

    def do_OPTIONS(self) -> None:
        """Say that calls are wanted: Quaymaster asks before it calls an endpoint, and again each day."""
        self.answer(200, {"WebHook-Allowed-Origin": self.headers.get("WebHook-Request-Origin", "*")})

    def do_POST(self) -> None:
        """Work on a message, once."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = dict(self.headers)
        try:
            # Before anything parses the body: the signature is of its bytes.
            webhook.verify(body, headers, json_parse=False)
        except (WebhookVerificationError, ValueError):  # ValueError: a signature that is no base64
            self.answer(401)
            return
        event = from_http(HTTPMessage(headers, body), JSONFormat())
        if event.get_id() not in seen:
            print(json.dumps({"id": event.get_id(), "data": event.get_data()}), flush=True)
            seen.add(event.get_id())
        self.answer(200)  # only now: what was answered is deleted

    def answer(self, status: int, headers: dict[str, str] | None = None) -> None:
        """Answer a request with no more than that."""
        self.send_response(status)
        for name, value in {"Content-Length": "0", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print events only."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
