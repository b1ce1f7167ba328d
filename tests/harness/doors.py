"""The two ways to a server that clients have, and requests as bytes: directly, and through an edge.

way = Way(server, edge)  # or None: directly
answer = way.ask(way.signed(body=b"{}"))
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from harness.edge import EdgeProcess
from harness.process import QuaymasterProcess
from harness.waiting import PATIENCE_S
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, sign

TARGET = (b"x-amz-target", b"AmazonSQS.ListQueues")
TYPE = (b"content-type", b"application/x-amz-json-1.0")
FORM = (b"content-type", b"application/x-www-form-urlencoded")
Headers = Sequence[tuple[bytes, bytes]]


class Way:
    """How requests come to a server: directly, or through an edge."""

    def __init__(self, server: QuaymasterProcess, edge: EdgeProcess | None) -> None:
        self.server = server
        self.edge = edge
        self.port = server.listen_port if edge is None else edge.port
        self.base = server.endpoint_url if edge is None else edge.endpoint_url
        found = server.env()
        self.signer = Signer(found.access_key_id, found.secret_access_key, found.region)
        self.account = found.account_id

    @property
    def host(self) -> tuple[bytes, bytes]:
        return b"host", f"127.0.0.1:{self.port}".encode()

    def connect(self) -> socket.socket:
        if self.edge is not None:
            return self.edge.connect()
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)

    def send(self, data: bytes) -> list[Answer]:
        """Send bytes on a new connection and end it; return all answers."""
        with self.connect() as connection:
            connection.settimeout(PATIENCE_S)
            connection.sendall(data)
            return read_answers(connection)

    def signed(
        self,
        headers: Headers = (TARGET, TYPE),
        *,
        method: bytes = b"POST",
        path: bytes = b"/",
        query: bytes = b"",
        body: bytes = b"{}",
        more: Headers = (),
        signer: Signer | None = None,
        age_s: int = 0,
    ) -> bytes:
        """Return the bytes of a request that was signed so long ago; `more` is added after it was signed."""
        every = sign(
            UnsignedRequest(method, path, query, [self.host, *headers], body),
            signer or self.signer,
            now_ms=time.time_ns() // 1_000_000 - age_s * 1000,
        )
        return render(method, path + (b"?" + query if query else b""), [*every, *more], body)

    def ask(self, request: bytes) -> Answer:
        """Send one request; return its answer."""
        (answer,) = self.send(request)
        return answer

    def asks(self, action: str, fields: dict[str, Any], signer: Signer | None = None) -> Any:
        """Make a call that must succeed."""
        headers = ((b"x-amz-target", f"AmazonSQS.{action}".encode()), TYPE)
        answer = self.ask(self.signed(headers, body=json.dumps(fields).encode(), signer=signer))
        assert answer.status == 200, answer
        return json.loads(answer.body or b"{}")


class Answer(NamedTuple):
    status: int
    body: bytes


def render(method: bytes, target: bytes, headers: Headers, body: bytes, *, close: bool = True) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (method, target), *(b"%b: %b" % header for header in headers)]
    if body or method == b"POST":
        lines.append(b"Content-Length: %d" % len(body))
    if close:
        lines.append(b"Connection: close")
    return b"\r\n".join([*lines, b"", b""]) + body


def read_answers(connection: socket.socket) -> list[Answer]:
    """Return the answers that come until the connection ends."""
    data = b""
    try:
        while part := connection.recv(65_536):
            data += part
    except ConnectionError:
        pass
    answers = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), len(data)
        )
        answers.append(Answer(int(lines[0].split()[1]), data[:length]))
        data = data[length:]
    return answers
