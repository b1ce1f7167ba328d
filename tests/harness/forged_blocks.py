"""Blocks that came whole, by their CRC, and have rows that no front end writes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import msgspec
from crc32c import crc32c

from quaymaster.protocol.usage.usage_blocks import HEAD_BYTES
from quaymaster.protocol.usage.usage_rows import PackedRows


def forged(data: bytes, change: Callable[[PackedRows], None]) -> bytes:
    """Return a block with its rows changed, and an intact CRC."""
    version, magic, _, header_length, _ = struct.unpack_from("<B3sIII", data)
    header = data[HEAD_BYTES : HEAD_BYTES + header_length]
    rows = msgspec.msgpack.decode(zlib.decompress(data[HEAD_BYTES + header_length :]), type=PackedRows)
    change(rows)
    packed = zlib.compress(msgspec.msgpack.encode(rows))
    head = struct.pack("<B3sII", version, magic, HEAD_BYTES + len(header) + len(packed), header_length)
    crc = crc32c(packed, crc32c(header, crc32c(head)))
    return b"".join((head, crc.to_bytes(4, "little"), header, packed))
