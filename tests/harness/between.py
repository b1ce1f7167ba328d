"""A proxy between a program and an SQS endpoint: a test sees each call, before it goes on and when it is answered."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from harness.waiting import PATIENCE_S


class PassingCall(NamedTuple):
    """A call on its way: `answer` is None before it goes on."""

    action: str
    fields: dict[str, Any]
    answer: dict[str, Any] | None = None


class Between:
    """Passes calls on to an endpoint.

    `on_call` is called by the threads that serve. It may change the fields of a call to a server that verifies no
    signatures, and ends a call, or loses its answer, with a ConnectionError.
    """

    def __init__(self, endpoint_url: str, on_call: Callable[[PassingCall], None]) -> None:
        self.calls: list[PassingCall] = []
        self._target = urlsplit(endpoint_url)
        self._on_call = on_call
        between = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                action = self.headers.get("x-amz-target", "").partition(".")[2]
                is_json = bool(action)
                fields = json.loads(body or b"{}") if is_json else {}
                given = json.dumps(fields)
                between._tell(PassingCall(action, fields))
                if json.dumps(fields) != given:
                    body = json.dumps(fields).encode()
                status, headers, content = between._pass_on(self, body)
                answer = json.loads(content or b"{}") if is_json else {}
                between._tell(PassingCall(action, fields, answer))
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in ("content-length", "connection", "date", "server"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        # Programs that are killed in the middle of a call are what this is for.
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where programs call."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)

    def _tell(self, call: PassingCall) -> None:
        self.calls.append(call)
        self._on_call(call)

    def _pass_on(
        self, request: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(
            self._target.hostname or "", self._target.port, timeout=PATIENCE_S
        )
        try:
            connection.putrequest("POST", request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() not in ("content-length", "connection"):
                    connection.putheader(name, value)
            connection.putheader("content-length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()
