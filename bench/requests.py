"""Signed SQS requests as bytes, made in microseconds: what a client of any SQS endpoint sends.

All servers are sent the same requests, in AWS JSON 1.0 and with the headers that botocore signs, whether a server
checks the signature or not. Each has an invocation id of its own, as a request that is no retry has; that is why
they are signed one by one, when they are sent, and not once beforehand.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import time
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from quaymaster.protocol.sqs.canonical_requests import derive_key, render_time

CALL_TIMEOUT_S = 60.0
_SIGNED_HEADERS = b"amz-sdk-invocation-id;amz-sdk-request;content-type;host;x-amz-date;x-amz-target"
_CONTENT_TYPE = b"application/x-amz-json-1.0"
_USER_AGENT = b"Boto3/1.43 md/Botocore#1.43 ua/2.1 os/linux md/arch#x86_64 lang/python#3.11"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is and the key that signs for it."""

    host: str
    port: int
    access_key_id: str = "bench"
    secret_access_key: str = "bench"
    region: str = "us-east-1"


class Refused(Exception):
    """A single call was not answered with 200; the text is the answer's."""


class Signer:
    """Makes the requests of one process to one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._host = f"{endpoint.host}:{endpoint.port}".encode()
        self._endpoint = endpoint
        self._second = 0
        self._count = 0
        self._run = int.from_bytes(os.urandom(4))
        self._key = b""
        self._canonical = self._to_sign = self._wire = b""

    def request(self, action: bytes, body: bytes, digest: bytes | None = None) -> bytes:
        """Return the signed request; `digest` is the body's SHA-256 in hex, for who knows it already."""
        second = int(time.time())
        if second != self._second:
            self._prepare(second)
        self._count = count = self._count + 1
        invocation = b"%08x-0000-4000-8000-%012x" % (self._run, count)
        if digest is None:
            digest = sha256(body).hexdigest().encode()
        canonical = self._canonical % (invocation, action, digest)
        to_sign = self._to_sign + sha256(canonical).hexdigest().encode()
        signature = hmac.digest(self._key, to_sign, "sha256").hex().encode()
        return self._wire % (action, invocation, signature, len(body)) + body

    def _prepare(self, second: int) -> None:
        """Fill in all that stays the same for a second."""
        endpoint = self._endpoint
        moment = render_time(second * 1000)
        scope = f"{moment[:8]}/{endpoint.region}/sqs/aws4_request".encode()
        if int(self._second / 86_400) != int(second / 86_400):
            self._key = derive_key(endpoint.secret_access_key, moment[:8], endpoint.region)
        self._second = second
        date = moment.encode()
        self._canonical = (
            b"POST\n/\n\namz-sdk-invocation-id:%%b\namz-sdk-request:attempt=1\ncontent-type:%b\nhost:%b\n"
            b"x-amz-date:%b\nx-amz-target:AmazonSQS.%%b\n\n%b\n%%b"
        ) % (_CONTENT_TYPE, self._host, date, _SIGNED_HEADERS)
        self._to_sign = b"AWS4-HMAC-SHA256\n%b\n%b\n" % (date, scope)
        self._wire = (
            b"POST / HTTP/1.1\r\nHost: %b\r\nAccept-Encoding: identity\r\nX-Amz-Target: AmazonSQS.%%b\r\n"
            b"Content-Type: %b\r\nUser-Agent: %b\r\nX-Amz-Date: %b\r\namz-sdk-invocation-id: %%b\r\n"
            b"amz-sdk-request: attempt=1\r\nAuthorization: AWS4-HMAC-SHA256 Credential=%b/%b, "
            b"SignedHeaders=%b, Signature=%%b\r\nContent-Length: %%d\r\n\r\n"
        ) % (
            *(self._host, _CONTENT_TYPE, _USER_AGENT, date),
            *(endpoint.access_key_id.encode(), scope, _SIGNED_HEADERS),
        )


class Replies:
    """Cuts one connection's bytes into replies; a reply may be chunked, as Go's and Java's sometimes are."""

    __slots__ = ("_buffer", "_need")

    def __init__(self) -> None:
        self._buffer = b""
        self._need = 0

    def feed(self, data: bytes) -> bytes | None:
        """Return the reply (head and body) when it is whole."""
        buffer = self._buffer + data if self._buffer else data
        if not self._need:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                self._buffer = buffer
                return None
            head = buffer[:end].lower()
            at = head.find(b"content-length:")
            if at < 0:
                return self._chunked(buffer, end)
            line_end = head.find(b"\r\n", at)
            self._need = end + 4 + int(head[at + 15 : line_end if line_end > 0 else end])
        if len(buffer) < self._need:
            self._buffer = buffer
            return None
        self._buffer, self._need = b"", 0
        return buffer

    def _chunked(self, buffer: bytes, end: int) -> bytes | None:
        if not buffer.endswith(b"\r\n0\r\n\r\n"):
            self._buffer = buffer
            return None
        self._buffer = b""
        pieces, at = [buffer[: end + 4]], end + 4
        while True:
            line_end = buffer.index(b"\r\n", at)
            length = int(buffer[at:line_end].split(b";")[0], 16)
            if not length:
                return b"".join(pieces)
            pieces.append(buffer[line_end + 2 : line_end + 2 + length])
            at = line_end + 2 + length + 2


def call(endpoint: Endpoint, action: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Send one request on a connection of its own and return the decoded reply.

    Raises:
        Refused: the answer is an error.
        OSError: there is no server, or it broke off.
    """
    request = Signer(endpoint).request(action.encode(), json.dumps(fields).encode())
    replies = Replies()
    with socket.create_connection((endpoint.host, endpoint.port), CALL_TIMEOUT_S) as connection:
        connection.sendall(request)
        reply = None
        while reply is None:
            data = connection.recv(262_144)
            if not data:
                raise ConnectionResetError(f"{action}: the server broke off")
            reply = replies.feed(data)
    head, _, body = reply.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0] + b" ":
        raise Refused(f"{action}: {body.decode(errors='replace')[:500]}")
    return dict(json.loads(body or b"{}"))
