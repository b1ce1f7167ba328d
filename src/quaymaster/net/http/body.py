"""The body of a request that comes in part: of a length that its head told, or in chunks; no sockets, no clock.

Public: `SizedBody`, `ChunkedBody`. Both are fed unread bytes until `is_complete`, and say what memory they take.

Source: RFC 9112, sections 6 and 7.
"""

from __future__ import annotations

import hashlib
import re

from quaymaster.net.http.message import HTTPLimits
from quaymaster.net.http.unreadable import UnreadableRequest, malformed

CHUNK_LINE_BYTES_MAX = 1024
"""A chunk's size with its extensions; we ignore extensions, so there is no reason to allow long ones."""
CHUNK_STEPS_PER_TURN = 128
"""So much of a chunked body is taken at once, 32 chunks or more; then others have their turn."""
SMALL_CHUNKS_MAX = 256
"""So many chunks of a body may be of any size."""
CHUNK_BYTES_MEAN_MIN = 256
"""Of those that are more, the mean: each costs us as much as hundreds of bytes, however small it is."""
PART_COST_BYTES = 64
"""What a part of a body costs beside its bytes: a client that sends single bytes must not get them for free."""

INCOMPLETE = -1

_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n")


class SizedBody:
    """Collects a body whose length is known."""

    __slots__ = ("_digest", "_length", "_parts", "kept_bytes", "size")

    has_more = False
    """It takes all that is there at once."""

    def __init__(self, length: int, digest: hashlib._Hash | None = None) -> None:
        """`digest` is given the body's bytes as they come in."""
        self._length = length
        self._digest = digest
        self._parts: list[bytes] = []
        self.size = 0
        """Body bytes received so far."""
        self.kept_bytes = 0
        """Memory that the body takes so far, the cost of each part included."""

    @property
    def is_complete(self) -> bool:
        """Whether all of it is there."""
        return self.size == self._length

    def join(self) -> bytes:
        """Return the whole body."""
        return b"".join(self._parts)

    def feed(self, data: bytes, position: int) -> int:
        """Take what can be taken from `position` on and return the position behind it."""
        part = data[position : position + self._length - self.size]
        self._parts.append(part)
        self.size += len(part)
        self.kept_bytes += len(part) + PART_COST_BYTES
        if self._digest is not None:
            self._digest.update(part)
        return position + len(part)


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
            UnreadableRequest: the body is too large, or its chunks are malformed or too small.
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
                raise malformed(f"A chunk's size line is over {CHUNK_LINE_BYTES_MAX} bytes.")
            return INCOMPLETE
        line = _CHUNK_SIZE.fullmatch(data, position, line_end + 1)
        if line is None:
            raise malformed("A chunk's size is malformed.")
        size = int(line[1], 16)
        self._size += size
        self._chunks += 1
        if self._size < (self._chunks - SMALL_CHUNKS_MAX) * CHUNK_BYTES_MEAN_MIN:
            raise malformed(
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
            raise malformed("A chunk is longer than its size.")
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
            raise malformed("A trailer is malformed.")
        return line_end + 1
