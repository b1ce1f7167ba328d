"""A client of an ASGI application in the test's own process: no sockets, and cookies as a browser keeps them."""

from __future__ import annotations

import asyncio
import gzip
from http.cookies import SimpleCookie
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from starlette.types import ASGIApp, Message


class ASGIReply(NamedTuple):
    """What an application answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body, decompressed."""
        is_compressed = self.headers.get("content-encoding") == "gzip"
        return (gzip.decompress(self.body) if is_compressed else self.body).decode()


class ASGIClient:
    """Asks an application as one browser. `host` is what it calls the application."""

    def __init__(self, app: ASGIApp, host: str = "localhost:9326", address: str = "127.0.0.1") -> None:
        self._app = app
        self.host = host
        self.address = address
        self.cookies: dict[str, str] = {}
        self.set_cookies: list[str] = []

    def get(self, target: str, **headers: str) -> ASGIReply:
        """Get a page; header names are written with underscores."""
        return self._ask("GET", target, b"", headers)

    def post(self, target: str, fields: dict[str, str], **headers: str) -> ASGIReply:
        """Send a form, with the Origin that a browser would give."""
        given = {
            "origin": f"http://{self.host}",
            "content_type": "application/x-www-form-urlencoded",
            **headers,
        }
        return self._ask("POST", target, urlencode(fields).encode(), given)

    def _ask(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> ASGIReply:
        parts = urlsplit(target)
        named = {"host": self.host, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if method == "POST":
            named.setdefault("content-length", str(len(body)))
        if self.cookies:
            named["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(parts.path),
            "raw_path": quote(parts.path, safe="/%").encode(),
            "query_string": parts.query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in named.items() if value],
            "client": (self.address, 1),
            "server": ("127.0.0.1", 9326),
        }
        reply = asyncio.run(self._run(scope, body))
        self._keep_cookies(reply.headers)
        return reply

    async def _run(self, scope: dict[str, Any], body: bytes) -> ASGIReply:
        status = 0
        headers: dict[str, str] = {}
        chunks: list[bytes] = []
        self.set_cookies = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                for name, value in message["headers"]:
                    headers[name.decode()] = value.decode()
                    if name == b"set-cookie":
                        self.set_cookies.append(value.decode())
            else:
                chunks.append(message.get("body", b""))

        await self._app(scope, receive, send)
        return ASGIReply(status, headers, b"".join(chunks))

    def _keep_cookies(self, _: dict[str, str]) -> None:
        for line in self.set_cookies:
            for name, morsel in SimpleCookie(line).items():
                if morsel["max-age"] == "0":
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = morsel.value
