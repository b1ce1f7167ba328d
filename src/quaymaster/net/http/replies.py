"""Replies: their bytes, and the order in which those of one connection leave."""

from __future__ import annotations

import time
from collections import deque
from email.utils import formatdate
from http import HTTPStatus

import msgspec

from quaymaster.net.http.message import CONNECTION_CLOSE, HTTPRequest

SMALL_BODY_BYTES = 64 * 1024
"""Reply bodies up to this size are copied behind their head; larger ones are handed over as they are."""
LENGTHS_READY = 1024
"""Bodies shorter than this find their Content-Length line ready made."""

_LENGTH_LINES = tuple(b"Content-Length: %d\r\n\r\n" % length for length in range(LENGTHS_READY))
_NO_CONTENT = frozenset({204, 304})


class ReplyRenderer:
    """Renders the replies of a server, with the time that it was told last."""

    def __init__(self) -> None:
        self._starts: dict[int, bytes] = {}
        """By status, the status line and the headers every reply has."""
        self._now_s = 0

    def set_time(self, now_s: int) -> None:
        """Have replies say that it is this second."""
        if now_s != self._now_s:
            self._now_s = now_s
            self._starts.clear()

    def render(
        self, status: int, headers: bytes, connection_line: bytes, body: bytes, *, is_head: bool
    ) -> tuple[bytes, ...]:
        """Return what is written, in one piece unless the body is large. `is_head`: the body is left out."""
        start = self._starts.get(status) or self._make_start(status)
        length = len(body)
        if length < LENGTHS_READY and not is_head and status not in _NO_CONTENT:
            return (b"".join((start, headers, connection_line, _LENGTH_LINES[length], body)),)
        if status in _NO_CONTENT:
            return (b"%b%b%b\r\n" % (start, headers, connection_line),)
        head = b"%b%b%bContent-Length: %d\r\n\r\n" % (start, headers, connection_line, length)
        if is_head:
            return (head,)
        return (head, body) if length > SMALL_BODY_BYTES else (head + body,)

    def _make_start(self, status: int) -> bytes:
        start = b"HTTP/1.1 %d %b\r\nServer: quaymaster\r\nDate: %b\r\n" % (
            status,
            _phrase(status),
            formatdate(self._now_s or time.time(), usegmt=True).encode(),
        )
        self._starts[status] = start
        return start


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b"Unknown"


class ReplyQueue:
    """Requests of one connection whose replies have not been sent, and the replies whose turn has come."""

    __slots__ = ("closes", "pending", "ready")

    def __init__(self) -> None:
        self.pending: deque[HTTPRequest] = deque()
        """The oldest first."""
        self.ready: list[bytes] = []
        """Replies whose turn has come."""
        self.closes = False
        """Whether the connection is closed after them."""

    def answer(self, request: HTTPRequest, rendered: tuple[bytes, ...]) -> bool:
        """Keep a reply until all before it are there. Tell whether its turn has come, and that of those behind it."""
        pending = self.pending
        if pending[0] is not request:
            request._reply = rendered
            return False
        request._reply = ()  # whoever keeps the request keeps no reply
        while True:
            pending.popleft()
            self.ready += rendered
            if request._connection_line is CONNECTION_CLOSE:
                self.closes = True
            if not pending:
                return True
            request = pending[0]
            if request._reply is None:
                return True
            rendered, request._reply = request._reply, ()

    def waiting(self) -> list[HTTPRequest]:
        """Return the requests that are with the handler."""
        return [request for request in self.pending if request.is_waiting]

    def take_polls(self) -> list[tuple[HTTPRequest, HTTPRequest]]:
        """Put another request in the place of each that may wait long, so that its handler is heard no more.

        Return both of each: the one that is with the handler, and the one to be answered.
        """
        taken = []
        for at, poll in enumerate(self.pending):
            if poll.on_disconnect is not None and poll.is_waiting:
                stand_in = msgspec.structs.replace(poll, on_disconnect=None, on_hurry=None)
                self.pending[at] = stand_in
                poll._connection = None
                taken.append((poll, stand_in))
        return taken
