"""Frames between roles: how calls, replies and notices lie in a stream of bytes, and which version two peers speak.

    length u32 (of all that follows) · version u8 · kind u8 · header length u16 · id u64 · header · body

Little-endian; the header is MessagePack, the body whatever the method says.

    HELLO     who is there, and the versions it speaks         header: Hello
    GOODBYE   why this side ends, or takes no more calls       header: Goodbye
    REQUEST   a call; its id is the caller's, never reused     header: CallHeader
    REPLY     what came of it                                  body
    ERROR     it failed                                        body: `protocol/rpc/error_codec`
    NOTICE    said once, not answered (id 0)                   header: CallHeader
    CANCEL    the caller no longer waits for this call
    PING, PONG   is there anybody?

Both sides begin with HELLO. The highest version that both speak is that of all later frames; when there is none, a
GOODBYE says so. HELLO and GOODBYE themselves keep version 0, this layout and these kind numbers for ever, so that
any two versions can tell each other that much.

To change frames or headers: append fields with defaults to the structs (older and newer peers then still read them),
or raise RPC_VERSION_MAX, speak both forms by the version agreed on, and raise RPC_VERSION_MIN a release later, so
that nodes can be upgraded one by one.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from quaymaster.core.values.unreadable import UNREADABLE

RPC_VERSION_MIN: Final = 1
RPC_VERSION_MAX: Final = 1
HELLO_VERSION: Final = 0

HELLO: Final = 1
GOODBYE: Final = 2
REQUEST: Final = 3
REPLY: Final = 4
ERROR: Final = 5
NOTICE: Final = 6
CANCEL: Final = 7
PING: Final = 8
PONG: Final = 9
_KIND_MAX: Final = PONG

PREFIX_BYTES: Final = 16
HEADER_BYTES_MAX: Final = 4096
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""A frame's length as its first field says it; of a peer that has not said who it is, HELLO_BYTES_MAX."""
HELLO_BYTES_MAX: Final = 8 * 1024
BODY_COPIED_BYTES_MAX: Final = 16 * 1024
"""Bodies up to this size are copied behind their head; larger ones are handed over as they are."""
_PIECE_BYTES_MIN: Final = 4096
"""Smaller pieces of a body are put together as they come, or a peer that sends byte by byte costs much memory."""

_PREFIX = struct.Struct("<IBBHQ")
assert _PREFIX.size == PREFIX_BYTES
_REST_BYTES = PREFIX_BYTES - 4
"""Of the prefix, what the length counts."""
_pack = _PREFIX.pack
_unpack_from = _PREFIX.unpack_from

Frame = tuple[int, int, bytes, bytes]
"""Kind, id, header, body."""


class Hello(msgspec.Struct, frozen=True):
    """Who is at one end of a connection: its cell, its role in it and its name, and the versions it speaks."""

    cell: str
    role: str
    node: str
    version_min: int = RPC_VERSION_MIN
    version_max: int = RPC_VERSION_MAX

    def __str__(self) -> str:
        return f"{self.cell}/{self.role}/{self.node}"


class Goodbye(msgspec.Struct, frozen=True):
    """Why a side ends: it refuses the other (`refused`), or takes no more calls and answers the rest (`draining`)."""

    code: str
    reason: str = ""


class CallHeader(msgspec.Struct, array_like=True, gc=False):
    """What is called, how many ms are left for it (0: said once, not waited for), and whose request it belongs to."""

    method: str
    deadline_ms: int = 0
    trace: str = ""


class FrameRefused(Exception):
    """What came is no frame of this connection; the reason is for the log and the peer."""


_encode = msgspec.msgpack.Encoder().encode
_hello_decoder = msgspec.msgpack.Decoder(Hello)
_goodbye_decoder = msgspec.msgpack.Decoder(Goodbye)
_call_decoder = msgspec.msgpack.Decoder(CallHeader)


def agree_on_version(ours: Hello, theirs: Hello) -> int | None:
    """Return the highest version that both speak, None when there is none."""
    highest = min(ours.version_max, theirs.version_max)
    return highest if highest >= max(ours.version_min, theirs.version_min) else None


def render_frame(
    version: int, kind: int, frame_id: int, header: bytes = b"", body: bytes = b""
) -> list[bytes]:
    """Return the frame in one piece, or in two when the body is large."""
    header_bytes = len(header)
    assert header_bytes <= HEADER_BYTES_MAX, "a header is a name and a few numbers"
    length = _REST_BYTES + header_bytes + len(body)
    head = _pack(length, version, kind, header_bytes, frame_id) + header
    if len(body) > BODY_COPIED_BYTES_MAX:
        return [head, body]
    return [head + body if body else head]


def render_hello(hello: Hello) -> bytes:
    """Return the frame a connection begins with."""
    return render_frame(HELLO_VERSION, HELLO, 0, _encode(hello))[0]


def render_goodbye(goodbye: Goodbye) -> bytes:
    """Return the frame that says why; a long reason is cut."""
    header = _encode(Goodbye(goodbye.code, goodbye.reason[: HEADER_BYTES_MAX // 8]))
    return render_frame(HELLO_VERSION, GOODBYE, 0, header)[0]


def render_call_header(method: str, deadline_ms: int, trace: str) -> bytes:
    """Return the header of a REQUEST or NOTICE."""
    return _encode(CallHeader(method, deadline_ms, trace))


def parse_hello(header: bytes) -> Hello:
    """Read a HELLO's header, or raise FrameRefused."""
    try:
        return _hello_decoder.decode(header)
    except UNREADABLE as error:
        raise FrameRefused(f"not a hello: {error}") from None


def parse_goodbye(header: bytes) -> Goodbye:
    """Read a GOODBYE's header, or raise FrameRefused."""
    try:
        return _goodbye_decoder.decode(header)
    except UNREADABLE as error:
        raise FrameRefused(f"not a goodbye: {error}") from None


def parse_call_header(header: bytes) -> CallHeader:
    """Read the header of a REQUEST or NOTICE, or raise FrameRefused."""
    try:
        return _call_decoder.decode(header)
    except UNREADABLE as error:
        raise FrameRefused(f"not the header of a call: {error}") from None


class FrameReader:
    """Cuts a stream into frames, however its bytes arrive.

    Set `version` and `frame_bytes_max` once the peer's HELLO is read: `feed` stops behind one, and the next call
    (`feed(b"")` will do) goes on. After something that is no frame `refusal` says why, and nothing more is read.
    A body is copied once, and never kept together with what came with it.
    """

    __slots__ = (
        "_head",
        "_missing",
        "_pieces",
        "_unread",
        "frame_bytes_max",
        "kept_bytes",
        "refusal",
        "version",
    )

    def __init__(self) -> None:
        self.version = HELLO_VERSION
        self.frame_bytes_max = HELLO_BYTES_MAX
        self.refusal: str | None = None
        self._unread = b""
        """Less than a prefix and its header; or what came behind a HELLO."""
        self._head: tuple[int, int, bytes] = (0, 0, b"")
        self._pieces: list[memoryview | bytearray] = []
        self._missing = 0
        """Of the body that has come in part."""
        self.kept_bytes = 0
        """Of that body, what has come."""

    @property
    def is_torn(self) -> bool:
        """Whether the stream would end in the middle of a frame here."""
        return bool(self._unread or self._missing)

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete with `data`."""
        frames: list[Frame] = []
        if self.refusal is not None:
            return frames
        position = 0
        size = len(data)
        if self._missing:
            if size < self._missing:
                self._keep(memoryview(data))
                return frames
            position = self._missing
            self._pieces.append(memoryview(data)[:position])
            self._missing = self.kept_bytes = 0
            frames.append((*self._head, b"".join(self._pieces)))
            self._pieces = []
        elif self._unread:
            data = self._unread + data
            size = len(data)
            self._unread = b""
        version = self.version
        while size - position >= PREFIX_BYTES:
            length, frame_version, kind, header_bytes, frame_id = _unpack_from(data, position)
            if (
                frame_version != version
                or length > self.frame_bytes_max
                or header_bytes > HEADER_BYTES_MAX
                or header_bytes + _REST_BYTES > length
                or not 0 < kind <= _KIND_MAX
                or (kind == HELLO and length != header_bytes + _REST_BYTES)
            ):
                self.refusal = self._why(length, frame_version, kind, header_bytes)
                if self.refusal is not None:
                    return frames
            header_start = position + PREFIX_BYTES
            header_end = header_start + header_bytes
            end = position + 4 + length
            if end <= size:
                frames.append((kind, frame_id, data[header_start:header_end], data[header_end:end]))
                position = end
                if kind == HELLO:
                    break
            elif header_end <= size:
                self._head = (kind, frame_id, data[header_start:header_end])
                self._missing = end - header_end
                self._keep(memoryview(data)[header_end:])
                return frames
            else:
                break
        if position < size:
            self._unread = data[position:] if position else data
        return frames

    def _keep(self, piece: memoryview) -> None:
        self._missing -= len(piece)
        self.kept_bytes += len(piece)
        pieces = self._pieces
        if len(piece) >= _PIECE_BYTES_MIN:
            pieces.append(piece)
        elif pieces and isinstance(pieces[-1], bytearray):
            pieces[-1] += piece
        else:
            pieces.append(bytearray(piece))

    def _why(self, length: int, version: int, kind: int, header_bytes: int) -> str | None:
        """Return what is wrong with a frame's prefix, or None for a HELLO or GOODBYE among later frames."""
        if not 0 < kind <= _KIND_MAX:
            return f"there is no frame of kind {kind}"
        if length > self.frame_bytes_max:
            return f"a frame of {length} bytes is over the {self.frame_bytes_max} that it may have"
        if header_bytes > HEADER_BYTES_MAX or header_bytes + _REST_BYTES > length:
            return f"a header of {header_bytes} bytes does not fit a frame of {length}"
        if kind == HELLO and length != header_bytes + _REST_BYTES:
            return "a hello with a body"
        if version == HELLO_VERSION and kind in (HELLO, GOODBYE):
            return None
        return f"a frame of version {version} came where version {self.version} is spoken"
