"""A receiver of webhooks on loopback, on threads of this process: it notes what is posted, and answers as told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

CONNECTION_S = 60.0


class Post(NamedTuple):
    """A request: names of headers are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """Its idempotency key."""
        return self.headers["webhook-id"]


class Answered(NamedTuple):
    """What a receiver answers; None as status closes the connection without an answer."""

    status: int | None = 200
    body: bytes = b""


class WebhookReceiver:
    """Runs until `close`; after `stop` it can be started again, on the same port."""

    def __init__(self) -> None:
        self.posts: list[Post] = []
        self.answer: Callable[[Post], Answered] = lambda post: Answered()
        """Runs on the request's thread, and may wait there."""
        self.port = 0
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        """The URL that it is at, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def ids(self) -> list[str]:
        """Return the idempotency keys of all requests so far, in order."""
        return [post.id for post in self.posts]

    def start(self) -> None:
        """Listen."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = CONNECTION_S

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                post = Post(self.path, headers, body)
                receiver.posts.append(post)
                answered = receiver.answer(post)
                if answered.status is None:
                    self.close_connection = True
                    return
                self.send_response(answered.status)
                self.send_header("Content-Length", str(len(answered.body)))
                self.end_headers()
                self.wfile.write(answered.body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, request: object, client_address: object) -> None:
                """Callers are killed in these tests."""

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Listen no more; connections that are there stay."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def close(self) -> None:
        """End."""
        self.stop()
