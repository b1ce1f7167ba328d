"""The checksum that every row in etcd carries: etcd has none of its rows, and serves a bit that flipped as it is.

    value in etcd     version u8 · CRC-32C u32 · value
    checksum of       length of the key u32 · lease u64 · key, with its root · value

A row that was moved to another key, given another lease or brought back without its value does not fit. Callers see
values alone: `coordination/stores/etcd` puts the checksum on and takes it off.

The version byte is one with which no MessagePack, JSON or UTF-8 text begins, so a value without a checksum is told from
one with it. To change the form: take another such byte, and let `why_damaged` and `value_of` read both.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

ROW_VERSION: Final = 0xC1
HEAD: Final = struct.Struct("<BI")
_SUMMED: Final = struct.Struct("<IQ")


def with_checksum(key: bytes, value: bytes, lease: int) -> bytes:
    """Return what is stored for a value."""
    return HEAD.pack(ROW_VERSION, _checksum(key, value, lease)) + value


def value_of(stored: bytes) -> bytes:
    """Return the value of a row that `why_damaged` found whole."""
    return stored[HEAD.size :]


def why_damaged(key: bytes, stored: bytes, lease: int) -> str | None:
    """Return why a row must not be believed, without its content; None when it is as it was written."""
    if len(stored) < HEAD.size or stored[0] != ROW_VERSION:
        return "it has no checksum: it is damaged, or an older Quaymaster or another program wrote it"
    value = value_of(stored)
    if HEAD.pack(ROW_VERSION, _checksum(key, value, lease)) != stored[: HEAD.size]:
        return "its row is not the one that was written, though etcd reads it"
    return None


def roots_nearby(root: bytes) -> list[bytes]:
    """Return what a root becomes when one of its bits flips: under one of these a row of ours may have strayed."""
    return [
        root[:place] + bytes([root[place] ^ 1 << bit]) + root[place + 1 :]
        for place in range(len(root))
        for bit in range(8)
    ]


def _checksum(key: bytes, value: bytes, lease: int) -> int:
    return int(crc32c(value, crc32c(_SUMMED.pack(len(key), lease) + key)))
