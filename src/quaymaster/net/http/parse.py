"""From the bytes of a connection to request heads and bodies; no sockets, no clock.

Public: `HeadParser`, `ChunkedBody`, `UnreadableRequest`.

```
    POST /target HTTP/1.1 CRLF      ≤ target_bytes_max, its path ≤ PATH_BYTES_MAX (414)
    Name: value CRLF  …             ≤ header_bytes_max, header_count_max (431)
    CRLF
    body                            Content-Length bytes, or chunks        ≤ body_bytes_max (413)
```

httptools checks the head's syntax; where the head ends and how long the body is, is decided here and only
here, so two readers of the same bytes cannot disagree about it. A head is parsed once it is complete, never
in pieces: the same bytes give the same requests however the network cut them.

Source: RFC 9112, sections 2 to 7 (and 11.2, request smuggling).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import httptools

from quaymaster.net.http.message import (
    CONNECTION_CLOSE,
    CONNECTION_KEEP_ALIVE,
    CONNECTION_PERSISTS,
    HTTPLimits,
    HTTPRequest,
    ReplySink,
)

REQUEST_LINE_OVERHEAD_BYTES = 32
"""Longest known method, two blanks, `HTTP/1.1` and CRLF."""
PATH_BYTES_MAX = 2048
"""A queue's path, or one of the admin API, has a tenth of it. To decode it, and to encode it as it was signed, takes a
tenth of a microsecond for each byte, before anything is proven."""
CHUNK_LINE_BYTES_MAX = 1024
"""A chunk's size with its extensions; we ignore extensions, so there is no reason to allow long ones."""

CHUNK_STEPS_PER_TURN = 128
"""So much of a chunked body is taken at once, 32 chunks or more; then others have their turn."""
SMALL_CHUNKS_MAX = 256
"""So many chunks of a body may be of any size."""
CHUNK_BYTES_MEAN_MIN = 256
"""Of those that are more, the mean: each costs us as much as hundreds of bytes, however small it is."""
BODY_METHOD = b"POST"
"""No request of another method has a body here."""
BODILESS_METHODS = frozenset({b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"TRACE"})
"""Nor does one of these mean anything anywhere with a body."""

INCOMPLETE = -1
CHUNKED = -1

_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n")


class UnreadableRequest(Exception):
    """This request cannot be read on. `event` is the name under which it is counted."""

    def __init__(self, status: int, event: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.event = event
        self.message = message


def _malformed(message: str) -> UnreadableRequest:
    return UnreadableRequest(400, "rejected_malformed", message)


class HeadParser:
    """Reads one request head after the other of one connection.

    After `read` returned a request, `end` is where its head ends, `body_length` the length of its body
    (`CHUNKED` when only its chunks tell), and `expects_continue` whether the client waits for a word before
    it sends the body.
    """

    __slots__ = (
        "_feed",
        "_header_bytes_max",
        "_header_count_max",
        "_headers",
        "_is_spent",
        "_line_bytes_max",
        "_parser",
        "_target",
        "_target_bytes_max",
        "body_length",
        "end",
        "expects_continue",
    )

    def __init__(self, limits: HTTPLimits) -> None:
        self._header_bytes_max = limits.header_bytes_max
        self._header_count_max = limits.header_count_max
        self._target_bytes_max = limits.target_bytes_max
        self._line_bytes_max = limits.target_bytes_max + REQUEST_LINE_OVERHEAD_BYTES
        self.end = 0
        self.body_length = 0
        self.expects_continue = False
        self._headers: list[tuple[bytes, bytes]] = []
        self._target = b""
        self.reset()

    # Called by httptools while it is fed a head.

    def on_url(self, target: bytes) -> None:
        self._target = target

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value.rstrip()))

    # Called by the connection.

    def reset(self) -> None:
        """Forget the last request; needed unless its whole body was given to `skip_body`."""
        self._parser = httptools.HttpRequestParser(self)
        self._feed: Callable[[bytes], None] = self._parser.feed_data
        self._is_spent = False

    def skip_body(self, body: bytes) -> None:
        """Let httptools see the end of the message (it copies nothing), so it is ready for the next head."""
        if self._is_spent:
            return
        try:
            self._feed(body)
        except httptools.HttpParserError:
            self._is_spent = True

    def read(
        self, data: bytes, start: int, peer: str, received_ms: float, sink: ReplySink
    ) -> HTTPRequest | None:
        """Return the request whose head starts at `start`, or None when the head is not complete yet.

        Raises:
            RequestRefused: malformed, too large, or not to be framed without doubt.
        """
        if not 65 <= data[start] <= 90:  # no method; a TLS client would wait for us, and we for it
            raise _malformed("This is not an HTTP request.")
        line_end = data.find(b"\n", start)
        if (line_end if line_end != -1 else len(data)) - start > self._line_bytes_max:
            raise self._target_too_large()
        if line_end == -1:
            return None
        version = data[line_end - 9 : line_end] if line_end >= 9 else b""
        is_current = version == b"HTTP/1.1\r"
        if not is_current and version != b"HTTP/1.0\r":
            raise _malformed("The request line must end in HTTP/1.1 or HTTP/1.0 and CRLF.")
        # From the request line's own CR: a request without headers ends in the CRLF right behind it.
        end = data.find(b"\r\n\r\n", line_end - 1)
        if (end + 2 if end != -1 else len(data)) - line_end > self._header_bytes_max + 1:
            raise UnreadableRequest(
                431, "rejected_header_too_large", f"The headers are over {self._header_bytes_max} bytes."
            )
        if end == -1:
            return None
        # Counted before they are parsed: 8,000 empty headers of 32 KiB take milliseconds.
        if data.count(b"\n", line_end + 1, end + 2) > self._header_count_max:
            raise UnreadableRequest(
                431, "rejected_header_too_large", f"There are over {self._header_count_max} headers."
            )
        self.end = end = end + 4
        if self._is_spent:
            self.reset()
        headers: list[tuple[bytes, bytes]] = []
        self._headers = headers
        try:
            self._feed(data[start:end])
            method: bytes = self._parser.get_method()
        except httptools.HttpParserUpgrade:
            # No upgrades here: the request is answered as it stands. But httptools takes its body for another
            # protocol and must not see it, or it would be read as the beginning of the next head.
            method = self._parser.get_method()
            self._is_spent = True
        except httptools.HttpParserError as error:
            raise _reason_of_failure(headers, error) from None
        target = self._target
        if len(target) > self._target_bytes_max:
            raise self._target_too_large()
        first = dict(headers)
        if len(first) != len(headers):
            _refuse_repeated(headers)
            first = dict(reversed(headers))
        if is_current and b"host" not in first:
            raise _malformed("The Host header is missing.")
        if method == b"CONNECT":
            raise UnreadableRequest(405, "rejected_malformed", "This is no proxy.")
        length = first.get(b"content-length")
        if b"transfer-encoding" in first:
            self._check_encoding(first, is_current=is_current)
            self.body_length = CHUNKED
        elif length is None:
            self.body_length = 0
        elif length.isdigit() and len(length) <= 15:
            self.body_length = int(length)
        else:
            raise _malformed("Content-Length is not a number.")
        self.expects_continue = False
        if b"expect" in first:
            if first[b"expect"].lower() != b"100-continue":
                raise UnreadableRequest(417, "rejected_malformed", "Only 100-continue can be expected.")
            self.expects_continue = is_current and self.body_length != 0
        if self.body_length and method != BODY_METHOD:
            raise _bodiless(method)
        line = CONNECTION_PERSISTS if is_current else CONNECTION_CLOSE
        connection = first.get(b"connection")
        if connection is not None:
            tokens = [token.strip() for token in connection.lower().split(b",")]
            if b"close" in tokens:
                line = CONNECTION_CLOSE
            elif b"keep-alive" in tokens and not is_current:
                line = CONNECTION_KEEP_ALIVE
        path, _, query = (target if target[0] == 47 else _origin_form(target)).partition(b"?")
        if len(path) > PATH_BYTES_MAX:
            raise UnreadableRequest(
                414, "rejected_target_too_large", f"The path is over {PATH_BYTES_MAX} bytes."
            )
        return HTTPRequest(method, target, path, query, headers, peer, received_ms, first, line, sink)

    def _check_encoding(self, first: dict[bytes, bytes], *, is_current: bool) -> None:
        if b"content-length" in first:
            raise _malformed("Content-Length and Transfer-Encoding exclude each other.")
        if not is_current:
            raise _malformed("HTTP/1.0 has no Transfer-Encoding.")
        if first[b"transfer-encoding"].lower() != b"chunked":
            raise _unknown_encoding()

    def _target_too_large(self) -> UnreadableRequest:
        return UnreadableRequest(
            414, "rejected_target_too_large", f"The target is over {self._target_bytes_max} bytes."
        )


def _bodiless(method: bytes) -> UnreadableRequest:
    if method in BODILESS_METHODS:
        return _malformed(f"A {method.decode()} request has no body.")
    return UnreadableRequest(405, "rejected_malformed", "Only POST requests have a body here.")


def _unknown_encoding() -> UnreadableRequest:
    return UnreadableRequest(501, "rejected_malformed", "The only Transfer-Encoding understood is chunked.")


def _reason_of_failure(headers: list[tuple[bytes, bytes]], error: Exception) -> UnreadableRequest:
    first = dict(headers)
    encoding = first.get(b"transfer-encoding", b"chunked").lower()
    if encoding != b"chunked" and b"content-length" not in first:
        return _unknown_encoding()
    return _malformed(f"{error}.")


def _refuse_repeated(headers: list[tuple[bytes, bytes]]) -> None:
    names = [name for name, _ in headers]
    for name in (b"host", b"content-length", b"transfer-encoding"):
        if names.count(name) > 1:
            raise _malformed(f"The header {name.decode()} was sent more than once.")


def _origin_form(target: bytes) -> bytes:
    """Return path and query of a target in absolute form; others (`*`) as they are. RFC 9112, 3.2.2."""
    _, separator, rest = target.partition(b"://")
    if not separator:
        return target
    cut = re.search(rb"[/?]", rest)
    if cut is None:
        return b"/"
    return rest[cut.start() :] if cut.group() == b"/" else b"/" + rest[cut.start() :]


PART_COST_BYTES = 64
"""What a part of a body costs beside its bytes: a client that sends single bytes must not get them for free."""


class ChunkedBody:
    """Takes a chunked body apart. Feed it all unread bytes again and again until `is_complete`.

    Where `has_more` is set, it stopped although it could go on: others have their turn first.
    """

    __slots__ = (
        "_body_bytes_max",
        "_chunks",
        "_digest",
        "_in_trailers",
        "_left",
        "_parts",
        "_size",
        "_trailer_bytes",
        "_trailer_bytes_max",
        "has_more",
        "is_complete",
    )

    def __init__(self, limits: HTTPLimits, digest: hashlib._Hash | None = None) -> None:
        """`digest` is given the body's bytes as they come in."""
        self._digest = digest
        self._body_bytes_max = limits.body_bytes_max
        self._trailer_bytes_max = limits.header_bytes_max
        self._trailer_bytes = 0
        self._parts: list[bytes] = []
        self._size = 0
        self._left = 0
        """Bytes missing of the current chunk and the CRLF behind it; 0 between chunks."""
        self._in_trailers = False
        self._chunks = 0
        self.has_more = False
        self.is_complete = False

    @property
    def size(self) -> int:
        """Body bytes announced so far."""
        return self._size

    @property
    def kept_bytes(self) -> int:
        """Memory that the body takes so far, the cost of each part included."""
        return self._size - max(0, self._left - 2) + len(self._parts) * PART_COST_BYTES

    def join(self) -> bytes:
        """Return the whole body."""
        return b"".join(self._parts)

    def feed(self, data: bytes, position: int) -> int:
        """Take what can be taken from `position` on and return the position behind it.

        Raises:
            RequestRefused: the body is too large, or its chunks are malformed or too small.
        """
        self.has_more = False
        steps = 0
        while not self.is_complete and position < len(data):
            steps += 1
            if steps > CHUNK_STEPS_PER_TURN:
                self.has_more = True
                break
            if self._in_trailers:
                taken = self._take_trailer(data, position)
            elif self._left:
                taken = self._take_chunk(data, position)
            else:
                taken = self._take_size(data, position)
            if taken == INCOMPLETE:
                break
            position = taken
        return position

    def _take_size(self, data: bytes, position: int) -> int:
        line_end = data.find(b"\n", position, position + CHUNK_LINE_BYTES_MAX)
        if line_end == -1:
            if len(data) - position >= CHUNK_LINE_BYTES_MAX:
                raise _malformed(f"A chunk's size line is over {CHUNK_LINE_BYTES_MAX} bytes.")
            return INCOMPLETE
        line = _CHUNK_SIZE.fullmatch(data, position, line_end + 1)
        if line is None:
            raise _malformed("A chunk's size is malformed.")
        size = int(line[1], 16)
        self._size += size
        self._chunks += 1
        if self._size < (self._chunks - SMALL_CHUNKS_MAX) * CHUNK_BYTES_MEAN_MIN:
            raise _malformed(
                f"The chunks are too small: where there are over {SMALL_CHUNKS_MAX}, they must have "
                f"{CHUNK_BYTES_MEAN_MIN} bytes on average."
            )
        if self._size > self._body_bytes_max:
            raise UnreadableRequest(
                413, "rejected_body_too_large", f"The body is over {self._body_bytes_max} bytes."
            )
        if size:
            self._left = size + 2
        else:
            self._in_trailers = True
        return line_end + 1

    def _take_chunk(self, data: bytes, position: int) -> int:
        content = self._left - 2
        if content > 0:
            part = data[position : position + content]
            self._parts.append(part)
            if self._digest is not None:
                self._digest.update(part)
            self._left -= len(part)
            return position + len(part)
        if data[position] != b"\n\r"[self._left - 1]:
            raise _malformed("A chunk is longer than its size.")
        self._left -= 1
        return position + 1

    def _take_trailer(self, data: bytes, position: int) -> int:
        line_end = data.find(b"\n", position)
        taken = (line_end + 1 if line_end != -1 else len(data)) - position
        if self._trailer_bytes + taken > self._trailer_bytes_max:
            raise UnreadableRequest(
                431, "rejected_header_too_large", f"The trailers are over {self._trailer_bytes_max} bytes."
            )
        if line_end == -1:
            return INCOMPLETE
        self._trailer_bytes += taken
        if data[position : line_end + 1] == b"\r\n":
            self.is_complete = True
        elif _TRAILER.fullmatch(data, position, line_end + 1) is None:
            raise _malformed("A trailer is malformed.")
        return line_end + 1
