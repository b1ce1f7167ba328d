"""What the load generator's connections ask a queue for: sends, receives, deletes, alone and in turn."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256

from bench.requests import Endpoint, Signer

BATCH = 10
_HANDLE = re.compile(rb'"ReceiptHandle": ?"([^"]+)"')

Fields = Callable[[int], bytes]
"""What is said about the n-th message beside its body, as JSON members: `,"MessageGroupId":"a"`."""


def no_fields(number: int) -> bytes:
    """Nothing: a standard queue's plain message."""
    return b""


class Send:
    """Sends messages, one or several with a request.

    `start` and `stride` number the messages for `fields`: those of this process among several.
    """

    kinds: tuple[str, ...] = ("send",)

    def __init__(
        self,
        endpoint: Endpoint,
        queue_url: str,
        *,
        body_bytes: int,
        batch: int = 1,
        fields: Fields = no_fields,
        start: int = 0,
        stride: int = 1,
    ) -> None:
        self._signer = Signer(endpoint)
        self._number = start
        self._stride = stride
        self._batch = batch
        self._fields = fields
        self._url = b'{"QueueUrl":"%b",' % queue_url.encode()
        self._body = b'"MessageBody":"%b"' % (b"x" * body_bytes)
        self._action = b"SendMessage" if batch == 1 else b"SendMessageBatch"
        self._same = self._render() if fields is no_fields else None
        self._digest = None if self._same is None else sha256(self._same).hexdigest().encode()

    def next(self, connection: int) -> tuple[int, bytes] | None:
        return 0, self._signer.request(self._action, self._same or self._render(), self._digest)

    def done(self, connection: int, kind: int, reply: bytes) -> int:
        return 1 if self._batch == 1 else reply.count(b'"MessageId"')

    def _render(self) -> bytes:
        if self._batch == 1:
            self._number += self._stride
            return b"%b%b%b}" % (self._url, self._body, self._fields(self._number - self._stride))
        entries = []
        for index in range(self._batch):
            entries.append(b'{"Id":"%d",%b%b}' % (index, self._body, self._fields(self._number)))
            self._number += self._stride
        return b'%b"Entries":[%b]}' % (self._url, b",".join(entries))


class Receive:
    """Receives messages and, unless they are to stay in flight, deletes each lot before the next receive.

    A connection is done when it got an empty answer `empty_max` times in a row, or when this process received
    `messages_max`.
    """

    kinds: tuple[str, ...] = ("receive", "delete")

    def __init__(
        self,
        endpoint: Endpoint,
        queue_url: str,
        *,
        batch: int = 1,
        delete: bool = True,
        empty_max: int = 3,
        messages_max: int | None = None,
        extra: bytes = b"",
    ) -> None:
        self._signer = Signer(endpoint)
        self._url = b'{"QueueUrl":"%b",' % queue_url.encode()
        self._receive = b'%b"MaxNumberOfMessages":%d%b}' % (self._url, batch, extra)
        self._digest = sha256(self._receive).hexdigest().encode()
        self._batch = batch
        self._delete = delete
        self._empty_max = empty_max
        self._left = messages_max
        self._handles: dict[int, list[bytes]] = {}
        self._empty: dict[int, int] = {}

    def next(self, connection: int) -> tuple[int, bytes] | None:
        handles = self._handles.pop(connection, None)
        if handles:
            return 1, delete_request(self._signer, self._url, handles)
        if self._empty.get(connection, 0) >= self._empty_max or (self._left is not None and self._left <= 0):
            return None
        return 0, self._signer.request(b"ReceiveMessage", self._receive, self._digest)

    def done(self, connection: int, kind: int, reply: bytes) -> int:
        if kind == 1:
            return deleted_in(reply)
        handles = _HANDLE.findall(reply)
        self._empty[connection] = 0 if handles else self._empty.get(connection, 0) + 1
        if self._left is not None:
            self._left -= len(handles)
        if self._delete and handles:
            self._handles[connection] = handles
        return len(handles)

    def has_handles(self, connection: int) -> bool:
        """Return whether this connection's next request is a delete."""
        return connection in self._handles


class Cycle:
    """Sends a message, receives one, deletes it, and so on: a queue that stays as deep as it was.

    Without `delete`, receiving has to be the end of a message.
    """

    kinds: tuple[str, ...] = ("send", "receive", "delete")

    def __init__(self, endpoint: Endpoint, queue_url: str, *, body_bytes: int, delete: bool = True) -> None:
        self._send = Send(endpoint, queue_url, body_bytes=body_bytes)
        self._receive = Receive(endpoint, queue_url, delete=delete, empty_max=1 << 62)
        self._sent: dict[int, bool] = {}

    def next(self, connection: int) -> tuple[int, bytes] | None:
        if not self._receive.has_handles(connection) and not self._sent.pop(connection, False):
            self._sent[connection] = True
            return self._send.next(connection)
        asked = self._receive.next(connection)
        return None if asked is None else (asked[0] + 1, asked[1])

    def done(self, connection: int, kind: int, reply: bytes) -> int:
        if kind == 0:
            return self._send.done(connection, 0, reply)
        return self._receive.done(connection, kind - 1, reply)


def delete_request(signer: Signer, url: bytes, handles: list[bytes]) -> bytes:
    """Return the request that deletes these deliveries."""
    if len(handles) == 1:
        return signer.request(b"DeleteMessage", b'%b"ReceiptHandle":"%b"}' % (url, handles[0]))
    entries = b",".join(
        b'{"Id":"%d","ReceiptHandle":"%b"}' % (index, handle) for index, handle in enumerate(handles)
    )
    return signer.request(b"DeleteMessageBatch", b'%b"Entries":[%b]}' % (url, entries))


def deleted_in(reply: bytes) -> int:
    """Return how many messages a delete's reply says are gone: a single one has no entries."""
    entries = reply.count(b'"Id"')
    return entries - reply.count(b'"SenderFault"') if entries else 1
