"""One HTTP/1.1 request and its answer, on a connection of its own: to a URL's host, or by a Unix socket.

A server believes whoever connects to its Unix sockets, mode 0660, about the client: the connection begins with a PROXY
protocol header that names the browser. Elsewhere X-Forwarded-For does, which front ends believe of `trusted_proxies`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import httptools

from quaymaster.protocol.proxy_header import render_proxy_header

TIMEOUT_S: Final = 30.0
REPLY_BYTES_MAX: Final = 64 * 1024 * 1024
READ_BYTES: Final = 64 * 1024
EXCHANGES_MAX: Final = 100
"""At once; others wait for their turn."""


class APIPlace(NamedTuple):
    """Where an API is. `url` has scheme, host and port; `socket`: the Unix socket by which it is reached, if it is."""

    url: str
    socket: Path | None = None


class NoAnswer(Exception):
    """The service was not reached, or broke off; the message says why."""


class _Answer:
    """Takes an answer apart, as httptools calls it."""

    def __init__(self) -> None:
        self.body: list[bytes] = []
        self.is_complete = False

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True


class Exchanges:
    """Makes requests, a bounded number at once."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(EXCHANGES_MAX)

    async def ask(
        self,
        place: APIPlace,
        method: str,
        target: str,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        address: str,
    ) -> tuple[int, bytes]:
        """Return status and body of the answer. `address`: of the browser, "": none. Raises NoAnswer."""
        lines = [f"{method} {target} HTTP/1.1".encode()]
        lines += [name + b": " + value for name, value in headers]
        if address and place.socket is None:
            lines.append(b"x-forwarded-for: " + address.encode())
        lines += [b"content-length: %d" % len(body), b"connection: close", b"", b""]
        sent = b"\r\n".join(lines) + body
        if place.socket is not None:
            sent = render_proxy_header(address) + sent
        try:
            async with self._turns, asyncio.timeout(TIMEOUT_S):
                return await _exchange(place, sent)
        except TimeoutError:
            raise NoAnswer(f"no answer within {TIMEOUT_S:g} s") from None
        except (OSError, httptools.HttpParserError) as error:
            raise NoAnswer(str(error)) from None


async def _exchange(place: APIPlace, sent: bytes) -> tuple[int, bytes]:
    parts = urlsplit(place.url)
    if place.socket is not None:
        reader, writer = await asyncio.open_unix_connection(str(place.socket))
    else:
        is_tls = parts.scheme == "https"
        tls = ssl.create_default_context() if is_tls else None
        reader, writer = await asyncio.open_connection(
            parts.hostname, parts.port or (443 if is_tls else 80), ssl=tls
        )
    try:
        writer.write(sent)
        await writer.drain()
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        size = 0
        while not answer.is_complete:
            piece = await reader.read(READ_BYTES)
            size += len(piece)
            if not piece or size > REPLY_BYTES_MAX:
                raise NoAnswer("it broke off" if not piece else "the answer is too long")
            parser.feed_data(piece)
        return parser.get_status_code(), b"".join(answer.body)
    finally:
        writer.close()
