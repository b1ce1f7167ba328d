"""The least a Python HTTP server can do: the limit that figures are held against."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import cast

import httptools
import uvloop

REPLY_BODY = (
    b'{"MD5OfMessageBody":"900150983cd24fb0d6963f7d28e17f72","MessageId":"5fea7756-0ea4-451a-a703-a558b933"}'
)
REPLY_HEADERS = b"Content-Type: application/x-amz-json-1.0\r\nx-amzn-RequestId: 5fea7756-0ea4-451a\r\n"


class BareResponder(asyncio.Protocol):
    """Collects a request with the parser that the server uses, and sends a fixed reply."""

    reply = b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (
        REPLY_HEADERS,
        len(REPLY_BODY),
        REPLY_BODY,
    )

    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self.target = b""
        self.body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, target: bytes) -> None:
        self.target = target

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body = body

    def on_message_complete(self) -> None:
        self.headers = []
        self.transport.write(self.reply)


def serve(listener: socket.socket) -> None:
    """Answer whoever connects, until the process is ended."""

    async def forever() -> None:
        server = await asyncio.get_running_loop().create_server(BareResponder, sock=listener)
        await server.serve_forever()

    uvloop.run(forever())


if __name__ == "__main__":
    serve(socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=1024))
