"""Built blocks: closed stretches of a log in columns, compressed and encrypted per block, to be read at full speed.

    <data>/blocks/<queue id>/<partition>/<first offset>-<stop>.qmb, 20 digits each

    version u8 (1) · magic "QMV" · head bytes u32 · crc u32 of the head
    head: MessagePack array of the fields of `BlockHead`
    for each column: AES-256-GCM of the zstd of its buffers, one after another

A block has a key of its own, derived from the queue's data key and its salt, so that the nonce can be the column's
number. Each column is bound to queue, partition, offsets and its name, and has a CRC that needs no key.

Nothing here is precious: a block can be deleted at any time and is made again from the journal (`block_building`). A
damaged one is ignored and deleted. Written files are not fsynced: what a power cut leaves of one is found by its CRCs.

To change the format: raise BLOCK_VERSION. Blocks of another version are damaged to this program, and made again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import zstandard
from crc32c import crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from quaymaster.net.routing.metadata_client import when_known
from quaymaster.protocol.logs.log_columns import COLUMNS, Block, Buffers

BLOCK_VERSION: Final = 1
BLOCK_MAGIC: Final = b"QMV"
SUFFIX: Final = ".qmb"
SALT_BYTES: Final = 16
COMPRESSION_LEVEL: Final = 3
NOT_IN_BLOCKS: Final = frozenset({"queue", "partition", "offset"})
"""Columns that follow from where a row is."""
BLOCK_COLUMNS: Final = tuple(name for name in COLUMNS if name not in NOT_IN_BLOCKS)

_PREFIX = struct.Struct("<B3sII")
_BOUND = struct.Struct("<BQIQQ")
_NONCE = struct.Struct("<QI")


class BlockDamaged(Exception):
    """A file is no whole, intact block of this version."""


class BlockPlace(NamedTuple):
    """Which messages a block has: offsets [first, stop) of a partition."""

    first: int
    stop: int


class BlockColumn(msgspec.Struct, array_like=True, frozen=True):
    """Where a column is behind the head, the CRC of its bytes there, and the sizes of its buffers when opened."""

    name: str
    start: int
    size: int
    crc: int
    buffers: list[int]


class BlockHead(msgspec.Struct, array_like=True, frozen=True):
    """What a block says of itself; times are when its first and last message were sent."""

    queue_id: int
    partition: int
    first: int
    stop: int
    first_ms: int
    last_ms: int
    data_key_id: int
    salt: bytes
    columns: list[BlockColumn]


_encode_head = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(BlockHead).decode


def build_block(
    block: Block,
    *,
    queue_id: int,
    partition: int,
    place: BlockPlace,
    times_ms: tuple[int, int],
    data_key_id: int,
    data_key: bytes,
) -> bytes:
    """Return the bytes of a file that holds BLOCK_COLUMNS of a block. Takes a while, without holding up others."""
    assert block.rows == place.stop - place.first, "a block has a row for each of its offsets"
    salt = os.urandom(SALT_BYTES)
    key = _block_key(data_key, salt)
    compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL)
    columns: list[BlockColumn] = []
    encrypted: list[bytes] = []
    at = 0
    for name in BLOCK_COLUMNS:
        buffers = block.columns[name]
        data = key.encrypt(
            _nonce(name), compressor.compress(b"".join(buffers)), _bound_to(queue_id, partition, place, name)
        )
        columns.append(BlockColumn(name, at, len(data), crc32c(data), [len(buffer) for buffer in buffers]))
        encrypted.append(data)
        at += len(data)
    head = _encode_head(BlockHead(queue_id, partition, *place, *times_ms, data_key_id, salt, columns))
    return b"".join((_PREFIX.pack(BLOCK_VERSION, BLOCK_MAGIC, len(head), crc32c(head)), head, *encrypted))


def open_block(
    data: bytes | memoryview, names: Iterable[str], data_key: Callable[[int], bytes]
) -> tuple[BlockHead, Block]:
    """Return a file's head and those of its columns that are asked for; BlockDamaged when it does not hold."""
    view = memoryview(data)
    head, start = read_head(view)
    place = BlockPlace(head.first, head.stop)
    by_name = {column.name: column for column in head.columns}
    try:
        key = _block_key(data_key(head.data_key_id), head.salt)
        block = Block(head.stop - head.first, {})
        for name in names:
            column = by_name[name]
            encrypted = view[start + column.start : start + column.start + column.size]
            if crc32c(encrypted) != column.crc:
                raise BlockDamaged(f"column {name} does not match its CRC")
            packed = key.decrypt(
                _nonce(name), encrypted, _bound_to(head.queue_id, head.partition, place, name)
            )
            size = sum(column.buffers)
            plain = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size) if size else b""
            block.columns[name] = _split(plain, column.buffers)
    except (KeyError, InvalidTag, zstandard.ZstdError) as error:
        raise BlockDamaged(f"a column does not open: {error!r}") from None
    return head, block


def read_head(view: memoryview) -> tuple[BlockHead, int]:
    """Return a file's head and where its columns begin; BlockDamaged."""
    try:
        version, magic, head_bytes, crc = _PREFIX.unpack_from(view)
        head_data = view[_PREFIX.size : _PREFIX.size + head_bytes]
        if (version, magic) != (BLOCK_VERSION, BLOCK_MAGIC) or crc32c(head_data) != crc:
            raise BlockDamaged("the head is damaged, or of another version")
        return _decode_head(head_data), _PREFIX.size + head_bytes
    except (struct.error, msgspec.MsgspecError):
        raise BlockDamaged("the head cannot be read") from None


def _split(plain: bytes, sizes: list[int]) -> Buffers:
    view = memoryview(plain)
    if len(view) != sum(sizes):
        raise BlockDamaged("a column has another size than it says")
    buffers: Buffers = []
    at = 0
    for size in sizes:
        buffers.append(view[at : at + size])
        at += size
    return buffers


def _block_key(data_key: bytes, salt: bytes) -> AESGCM:
    return AESGCM(HKDF(SHA256(), length=32, salt=salt, info=b"quaymaster built block 1").derive(data_key))


def _nonce(name: str) -> bytes:
    return _NONCE.pack(COLUMNS[name].column_id, 0)


def _bound_to(queue_id: int, partition: int, place: BlockPlace, name: str) -> bytes:
    return _BOUND.pack(BLOCK_VERSION, queue_id, partition, *place) + name.encode()


class BuiltBlocks:
    """The blocks of a directory. Which there are is known in memory; on the loop's thread, but for what "blocks"."""

    def __init__(self, directory: Path, data_key: Callable[[int], bytes]) -> None:
        self._directory = directory
        self._data_key = data_key
        self._places: dict[tuple[int, int], list[BlockPlace]] = {}

    def load(self) -> None:
        """Look which blocks there are; what was begun and not finished goes. Blocks."""
        for path in sorted(self._directory.glob("*/*/*")):
            place = _place_of(path.name)
            queue, partition = path.parent.parent.name, path.parent.name
            if place is None or not queue.isdecimal() or not partition.isdecimal():
                path.unlink(missing_ok=True)
                continue
            insort(self._places.setdefault((int(queue), int(partition)), []), place)

    def queues(self) -> set[int]:
        """Return the ids of the queues that have blocks."""
        return {queue_id for queue_id, _ in self._places}

    def find(self, queue_id: int, partition: int, offset: int) -> BlockPlace | None:
        """Return the block that has a message, None when there is none."""
        places = self._places.get((queue_id, partition), [])
        at = bisect_right(places, offset, key=lambda place: place.first) - 1
        return places[at] if at >= 0 and places[at].stop > offset else None

    def end_of(self, queue_id: int, partition: int, start: int) -> int:
        """Return the first offset from `start` on that is in no block."""
        while (place := self.find(queue_id, partition, start)) is not None:
            start = place.stop
        return start

    def read(self, queue_id: int, partition: int, place: BlockPlace) -> tuple[bytes, int]:
        """Return a block's file, and the id of its data key. Blocks. BlockDamaged when it is another block, or gone."""
        try:
            data = self._path(queue_id, partition, place).read_bytes()
        except OSError as error:
            raise BlockDamaged(f"{error}") from error
        head, _ = read_head(memoryview(data))
        if (head.queue_id, head.partition, head.first, head.stop) != (queue_id, partition, *place):
            raise BlockDamaged("it is another block than its name says")
        return data, head.data_key_id

    async def data_key(self, data_key_id: int) -> bytes:
        """Return a data key, asked for where it is not known; BlockDamaged when there is none, NotNow."""
        try:
            return await when_known(lambda: self._data_key(data_key_id))
        except KeyError:
            raise BlockDamaged(f"there is no data key {data_key_id}") from None

    def write(self, queue_id: int, partition: int, place: BlockPlace, data: bytes) -> None:
        """Put a block there; `add` makes it known. Blocks; OSError."""
        path = self._path(queue_id, partition, place)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(data)
        temporary.replace(path)

    def add(self, queue_id: int, partition: int, place: BlockPlace) -> None:
        """Let a block be found that was written."""
        insort(self._places.setdefault((queue_id, partition), []), place)

    def drop(self, queue_id: int, partition: int, place: BlockPlace) -> None:
        """Forget a block and delete it."""
        places = self._places.get((queue_id, partition), [])
        if place in places:
            places.remove(place)
        self._path(queue_id, partition, place).unlink(missing_ok=True)

    def drop_below(self, queue_id: int, partition: int, earliest: int) -> list[Path]:
        """Forget the blocks whose messages are all gone; return their files, for `delete`."""
        key = (queue_id, partition)
        known = self._places.get(key, [])
        gone = [place for place in known if place.stop <= earliest]
        if gone:
            self._places[key] = [place for place in known if place.stop > earliest]
        return [self._path(queue_id, partition, place) for place in gone]

    def drop_queue(self, queue_id: int) -> list[Path]:
        """Forget all blocks of a queue; return where they are, for `delete`."""
        for key in [key for key in self._places if key[0] == queue_id]:
            del self._places[key]
        return [self._directory / str(queue_id)]

    @staticmethod
    def delete(paths: Iterable[Path]) -> None:
        """Delete files and directories with all that is in them, as far as that goes. Blocks."""
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _path(self, queue_id: int, partition: int, place: BlockPlace) -> Path:
        name = f"{place.first:020d}-{place.stop:020d}{SUFFIX}"
        return self._directory / str(queue_id) / str(partition) / name


def _place_of(name: str) -> BlockPlace | None:
    first, _, stop = name.removesuffix(SUFFIX).partition("-")
    if not name.endswith(SUFFIX) or not first.isdecimal() or not stop.isdecimal():
        return None
    return BlockPlace(int(first), int(stop))


def block_bytes(block: Block) -> int:
    """Return how many bytes a block's buffers have."""
    return sum(_size(buffers) for buffers in block.columns.values())


def _size(buffers: list[Any]) -> int:
    return sum([len(buffer) for buffer in buffers])
