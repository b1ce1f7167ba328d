"""Just enough of HTTP/2 to send requests that no library would: headers are sent as they are given.

Source: RFC 9113 (frames), RFC 7541 (a literal header field without indexing, a static table's :status).
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0x0, 0x1, 0x3, 0x4, 0x7
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
_STATUS = {0x88: 200, 0x89: 204, 0x8A: 206, 0x8B: 304, 0x8C: 400, 0x8D: 404, 0x8E: 500}
_STATUS_NAME = 0x08
"""Index of `:status` where the value is written out."""


class Answer(NamedTuple):
    """What became of a request: a status, or None where the stream or the connection was reset."""

    status: int | None
    body: bytes


def exchange(
    connection: socket.socket, headers: Iterable[tuple[bytes, bytes]], body: bytes | None = None
) -> Answer:
    """Send one request on a new connection and return what comes of it."""
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers)
    flags = END_HEADERS | (END_STREAM if body is None else 0)
    sent = PREFACE + _frame(SETTINGS, 0, 0, b"") + _frame(HEADERS, flags, 1, block)
    if body is not None:
        sent += _frame(DATA, END_STREAM, 1, body)
    connection.sendall(sent)
    status, received = None, b""
    try:
        while True:
            kind, flags, stream, payload = _read_frame(connection)
            if kind == SETTINGS and not flags & ACK:
                connection.sendall(_frame(SETTINGS, ACK, 0, b""))
            elif kind == GOAWAY or (kind == RST_STREAM and stream == 1):
                return Answer(status, received)
            elif kind == HEADERS:
                status = _status_of(payload)
            elif kind == DATA:
                received += payload
            if kind in (HEADERS, DATA) and flags & END_STREAM:
                return Answer(status, received)
    except (ConnectionError, EOFError):
        return Answer(None, received)


def _text(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest = len(text) - 127
    length = b"\x7f"
    while rest >= 128:
        length += bytes([rest % 128 + 128])
        rest //= 128
    return length + bytes([rest]) + text


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _read_frame(connection: socket.socket) -> tuple[int, int, int, bytes]:
    head = _read(connection, 9)
    payload = _read(connection, int.from_bytes(head[:3]))
    return head[3], head[4], int.from_bytes(head[5:]), payload


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _status_of(block: bytes) -> int:
    """Return the status, which is the first header: of the static table, or its value written out."""
    if block[0] in _STATUS:
        return _STATUS[block[0]]
    assert block[0] & 0x0F == _STATUS_NAME, block
    assert block[1] == 3, "not Huffman-coded"
    return int(block[2:5])
