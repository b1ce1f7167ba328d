"""Clients of pages that keep cookies as a browser does: of an application in the test's own process, or of a server."""

from __future__ import annotations

import asyncio
import gzip
from abc import ABC, abstractmethod
from http.client import HTTPConnection
from http.cookies import SimpleCookie
from typing import NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from starlette.types import ASGIApp, Message

HeaderLines = list[tuple[str, str]]


class PageReply(NamedTuple):
    """What was answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body, decompressed."""
        is_compressed = self.headers.get("content-encoding") == "gzip"
        return (gzip.decompress(self.body) if is_compressed else self.body).decode()


class PageClient(ABC):
    """Asks as one browser; redirects are told, not followed. `host` is what it calls the other side."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.cookies: dict[str, str] = {}
        self.set_cookies: list[str] = []

    def get(self, target: str, **headers: str) -> PageReply:
        """Get a page; header names are written with underscores."""
        return self._ask("GET", target, b"", headers)

    def post(self, target: str, fields: dict[str, str], **headers: str) -> PageReply:
        """Send a form, with the Origin that a browser would give."""
        given = {
            "origin": f"http://{self.host}",
            "content_type": "application/x-www-form-urlencoded",
            **headers,
        }
        return self._ask("POST", target, urlencode(fields).encode(), given)

    def _ask(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> PageReply:
        named = {"host": self.host, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if method == "POST":
            named.setdefault("content-length", str(len(body)))
        if self.cookies:
            named["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        status, lines, answered = self._exchange(method, target, named, body)
        self._keep_cookies([value for name, value in lines if name == "set-cookie"])
        return PageReply(status, dict(lines), answered)

    @abstractmethod
    def _exchange(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, HeaderLines, bytes]:
        """Return status, headers with their names in lower case, and body of the answer."""

    def _keep_cookies(self, lines: list[str]) -> None:
        self.set_cookies = lines
        for line in lines:
            for name, morsel in SimpleCookie(line).items():
                if morsel["max-age"] == "0":
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = morsel.value


class ASGIClient(PageClient):
    """Asks an application, without sockets."""

    def __init__(self, app: ASGIApp, host: str = "localhost:9326", address: str = "127.0.0.1") -> None:
        super().__init__(host)
        self._app = app
        self.address = address

    def _exchange(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, HeaderLines, bytes]:
        parts = urlsplit(target)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(parts.path),
            "raw_path": quote(parts.path, safe="/%").encode(),
            "query_string": parts.query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items() if value],
            "client": (self.address, 1),
            "server": ("127.0.0.1", 9326),
        }
        status = 0
        lines: HeaderLines = []
        chunks: list[bytes] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                lines.extend((name.decode(), value.decode()) for name, value in message["headers"])
            else:
                chunks.append(message.get("body", b""))

        async def ask() -> None:
            await self._app(scope, receive, send)

        asyncio.run(ask())
        return status, lines, b"".join(chunks)


class ServerClient(PageClient):
    """Asks a server at an http URL, each time over a connection of its own."""

    def __init__(self, url: str) -> None:
        super().__init__(urlsplit(url).netloc)

    def _exchange(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, HeaderLines, bytes]:
        connection = HTTPConnection(self.host, timeout=60)
        try:
            connection.request(method, target, body or None, headers)
            answer = connection.getresponse()
            lines = [(name.lower(), value) for name, value in answer.getheaders()]
            return answer.status, lines, answer.read()
        finally:
            connection.close()
