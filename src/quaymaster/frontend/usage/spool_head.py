"""What a file of a spool begins with: version u8 · magic "QMS" · length u32 · CRC32C of the rest u32 · MessagePack.

To change it: append fields with defaults to `SpoolFileHead`, or raise SPOOL_FILE_VERSION and keep decoding the old one.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import msgspec
from crc32c import crc32c

from quaymaster.protocol.usage.usage_blocks import BlockEnd, BlockOrigin
from quaymaster.protocol.usage.usage_rows import CorruptBlock

SPOOL_FILE_VERSION: Final = 1
SPOOL_FILE_HEAD_BYTES_MAX: Final = 4096
_MAGIC: Final = b"QMS"
_HEAD = struct.Struct("<B3sII")
HEAD_START_BYTES: Final = _HEAD.size
"""So many bytes say how long the head is."""


class SpoolUnusable(Exception):
    """The spool cannot be gone on with: the message says why, and what to do."""


class SpoolFileHead(msgspec.Struct, frozen=True, array_like=True):
    """What the first block of a file goes on from."""

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
        """Where the block before the file ends."""
        return BlockEnd(self.next_sequence, self.previous, self.audit_hash)


_encoder = msgspec.msgpack.Encoder()
_heads = msgspec.msgpack.Decoder(SpoolFileHead)


def encode_file_head(origin: BlockOrigin, after: BlockEnd) -> bytes:
    """Return the head of a file whose first block goes on from `after`."""
    body = _encoder.encode(SpoolFileHead(origin.front_end, origin.incarnation, *after, origin.region))
    return _HEAD.pack(SPOOL_FILE_VERSION, _MAGIC, _HEAD.size + len(body), crc32c(body)) + body


def file_head_length(data: bytes) -> int:
    """Return how long the head is that a file begins with; it was checked when the spool was opened."""
    return int(_HEAD.unpack_from(data)[2])


def decode_file_head(data: bytes) -> SpoolFileHead:
    """Return the head that a file begins with. Raises CorruptBlock, SpoolUnusable."""
    if len(data) < _HEAD.size:
        raise CorruptBlock("a spool file is shorter than its head")
    version, magic, length, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptBlock("a spool file begins with something else")
    if version != SPOOL_FILE_VERSION:
        raise SpoolUnusable(
            f"a spool file of usage records has version {version}; {SPOOL_FILE_VERSION} can be read"
        )
    body = data[_HEAD.size : length]
    if len(body) != length - _HEAD.size or crc32c(body) != crc:
        raise CorruptBlock("a spool file's head is damaged")
    try:
        return _heads.decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptBlock(f"a spool file's head cannot be read: {error}") from None


def spool_directory(data: Path) -> Path:
    """Return where a data directory's spool is."""
    return data / "usage"
