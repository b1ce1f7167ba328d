"""What a segment of a spool begins with: version u8 · magic "QMS" · length u32 · CRC32C of the rest u32 · MessagePack.

To change it: append fields with defaults to `SegmentHead`, or raise SEGMENT_VERSION and keep decoding the old one.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec
from crc32c import crc32c

from quaymaster.protocol.usage.usage_blocks import BlockEnd, BlockOrigin
from quaymaster.protocol.usage.usage_rows import CorruptBlock

SEGMENT_VERSION: Final = 1
SEGMENT_HEAD_BYTES_MAX: Final = 4096
_MAGIC: Final = b"QMS"
_HEAD = struct.Struct("<B3sII")
HEAD_START_BYTES: Final = _HEAD.size
"""So many bytes say how long the head is."""


class SpoolUnusable(Exception):
    """The spool cannot be gone on with: the message says why, and what to do."""


class SegmentHead(msgspec.Struct, frozen=True, array_like=True):
    """What the first block of a segment goes on from."""

    front_end: str
    incarnation: int
    next_sequence: int
    previous: bytes
    audit_hash: bytes
    region: str

    @property
    def origin(self) -> BlockOrigin:
        """Whose blocks follow."""
        return BlockOrigin(self.front_end, self.incarnation, self.region)

    @property
    def after(self) -> BlockEnd:
        """Where the block before the segment ends."""
        return BlockEnd(self.next_sequence, self.previous, self.audit_hash)


_encoder = msgspec.msgpack.Encoder()
_heads = msgspec.msgpack.Decoder(SegmentHead)


def encode_segment_head(origin: BlockOrigin, after: BlockEnd) -> bytes:
    """Return the head of a segment whose first block goes on from `after`."""
    body = _encoder.encode(SegmentHead(origin.front_end, origin.incarnation, *after, origin.region))
    return _HEAD.pack(SEGMENT_VERSION, _MAGIC, _HEAD.size + len(body), crc32c(body)) + body


def segment_head_length(data: bytes) -> int:
    """Return how long the head is that a segment begins with; it was checked when it was opened."""
    return int(_HEAD.unpack_from(data)[2])


def decode_segment_head(data: bytes) -> SegmentHead:
    """Return the head that a segment begins with. Raises CorruptBlock, SpoolUnusable."""
    if len(data) < _HEAD.size:
        raise CorruptBlock("a segment is shorter than its head")
    version, magic, length, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptBlock("a segment begins with something else")
    if version != SEGMENT_VERSION:
        raise SpoolUnusable(
            f"a segment of usage records has version {version}; {SEGMENT_VERSION} can be read"
        )
    body = data[_HEAD.size : length]
    if len(body) != length - _HEAD.size or crc32c(body) != crc:
        raise CorruptBlock("a segment's head is damaged")
    try:
        return _heads.decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptBlock(f"a segment's head cannot be read: {error}") from None
