"""Index chunks on disk: variable pieces in one file, each named by its slot, none overwritten while it may be needed.

    slot = first page x 65536 + pages        the file is a row of pages of 4096 bytes; page 0 is the file's header

    chunk:  version u8 · magic "QMC" · tag bytes u32 · data bytes u32 · crc u32 of tag and data · tag · data

    write ──▶ live ──free──▶ freed ──snapshot begun──▶ passed over ──snapshot published──▶ may be written again

A snapshot names slots, so a slot that was freed stays as it is until a snapshot that began after that is durable.
The file is derived: a chunk that is damaged or lost (ChunkLost) comes back from the journal, and a missing file
means that all are lost.

To change the format: raise CHUNK_VERSION; a file of another version is emptied and comes back from the journal.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from bisect import bisect_left, insort
from collections.abc import Iterable
from contextlib import suppress

from crc32c import crc32c

from quaymaster.broker.storage.disk import Disk, FileHandle

CHUNK_VERSION = 1
CHUNK_MAGIC = b"QMC"
PAGE_BYTES = 4096
PAGES_PER_CHUNK_MAX = 0xFFFF

_FILE_HEADER = struct.Struct("<B3s")
_FILE_MAGIC = b"QMX"
_HEADER = struct.Struct("<B3sIII")


class ChunkLost(Exception):
    """The chunk in this slot is not what was written there under this tag; rebuild it from the journal."""

    def __init__(self, slot: int, why: str) -> None:
        super().__init__(f"the chunk in slot {slot} is lost: {why}")
        self.slot = slot


class ChunkStore:
    """The chunks of one journal's partitions. Any thread may call it; calls that touch the file block."""

    def __init__(self, disk: Disk, handle: FileHandle) -> None:
        """Use `open`."""
        self._disk = disk
        self._handle = handle
        self._lock = threading.Lock()
        self._end_page = 1
        self._free_by_start: dict[int, int] = {}  # first page -> pages
        self._free_by_end: dict[int, int] = {}  # page behind -> first page
        self._free_sizes: list[tuple[int, int]] = []  # (pages, first page), ascending
        self._freed: list[int] = []
        self._passed_over: list[int] = []
        self._is_dirty = False
        self._sync_failure: OSError | None = None

    @classmethod
    def open(cls, disk: Disk, path: str | os.PathLike[str], *, live_slots: Iterable[int] = ()) -> ChunkStore:
        """Open or make the file; every page that no live slot owns is free, and a free end is cut off.

        `live_slots` are those the loaded snapshot names. Whether a chunk is whole shows when it is read.
        Raises ValueError when two live slots overlap: the snapshot contradicts itself.
        """
        name = os.fspath(path)
        exists = disk.exists(name)
        handle = FileHandle(disk, disk.open(name, create=not exists))
        header = _FILE_HEADER.pack(CHUNK_VERSION, _FILE_MAGIC)
        if disk.read(handle.fd, _FILE_HEADER.size, 0) != header:
            disk.truncate(handle.fd, 0)
            disk.write(handle.fd, header, 0)
            disk.sync(handle.fd)
            disk.sync_directory(os.path.dirname(name) or ".")
        store = cls(disk, handle)
        page = 1
        for slot in sorted(live_slots):
            start, pages = slot >> 16, slot & 0xFFFF
            if start < page or not pages:
                raise ValueError(f"slot {slot} overlaps another one or is none")
            if start > page:
                store._add_free(page, start - page)
            page = start + pages
        store._end_page = page
        if disk.size(handle.fd) > page * PAGE_BYTES:
            disk.truncate(handle.fd, page * PAGE_BYTES)
        return store

    @property
    def free_bytes(self) -> int:
        """How much of the file may be written again now."""
        return sum(self._free_by_start.values()) * PAGE_BYTES

    def write(self, key_tag: bytes, data: bytes) -> int:
        """Write a chunk and return its slot; durable after `sync`.

        `key_tag` says whose chunk it is and is asked for again by `read`. Raises OSError (also when the disk is
        full); nothing is taken then.
        """
        whole = b"".join(
            (
                _HEADER.pack(
                    CHUNK_VERSION, CHUNK_MAGIC, len(key_tag), len(data), crc32c(data, crc32c(key_tag))
                ),
                key_tag,
                data,
            )
        )
        pages = -(-len(whole) // PAGE_BYTES)
        assert pages <= PAGES_PER_CHUNK_MAX, f"a chunk of {len(data)} bytes is too large"
        with self._lock:
            start = self._take(pages)
            self._is_dirty = True
        try:
            self._disk.write(self._handle.fd, whole, start * PAGE_BYTES)
        except OSError:
            with self._lock:
                self._add_free(start, pages)
            raise
        return start << 16 | pages

    def read(self, slot: int, key_tag: bytes) -> bytes:
        """Return the data written to this slot under this tag; ChunkLost when it is not there whole."""
        try:
            whole = self._disk.read(self._handle.fd, (slot & 0xFFFF) * PAGE_BYTES, (slot >> 16) * PAGE_BYTES)
        except OSError as error:
            raise ChunkLost(slot, str(error)) from error
        if len(whole) < _HEADER.size:
            raise ChunkLost(slot, "the file ends before it")
        version, magic, tag_bytes, data_bytes, crc = _HEADER.unpack_from(whole)
        data_at = _HEADER.size + tag_bytes
        if version != CHUNK_VERSION or magic != CHUNK_MAGIC or data_at + data_bytes > len(whole):
            raise ChunkLost(slot, "no chunk starts there")
        if whole[_HEADER.size : data_at] != key_tag:
            raise ChunkLost(slot, "it belongs to another key")
        data = whole[data_at : data_at + data_bytes]
        if crc32c(data, crc32c(key_tag)) != crc:
            raise ChunkLost(slot, "it does not match its CRC")
        return data

    def free(self, slot: int) -> None:
        """Give a slot up. Its bytes stay until a snapshot begun after this is published."""
        with self._lock:
            self._freed.append(slot)

    def snapshot_begun(self) -> None:
        """Say that a snapshot collects its slots now: what was freed before is in no later snapshot."""
        with self._lock:
            self._passed_over.extend(self._freed)
            self._freed.clear()

    def snapshot_published(self) -> None:
        """Say that the snapshot last begun is durable: what was freed before it began may be written again."""
        with self._lock:
            for slot in self._passed_over:
                self._add_free(slot >> 16, slot & 0xFFFF)
            self._passed_over.clear()
            start = self._free_by_end.get(self._end_page)
            if start is not None:
                self._drop_free(start)
                self._end_page = start
                with suppress(OSError):  # a longer file is no harm
                    self._disk.truncate(self._handle.fd, start * PAGE_BYTES)

    def sync(self) -> None:
        """Make every chunk written so far durable; needed before a manifest names their slots.

        The first failure is for good: the system may have forgotten what never reached the disk.
        """
        with self._lock:
            dirty, self._is_dirty = self._is_dirty, False
        if self._sync_failure is not None:
            raise self._sync_failure
        if dirty:
            try:
                self._disk.sync(self._handle.fd)
            except OSError as error:  # a full disk too: it may have been told of writes that were let go
                self._sync_failure = OSError(errno.EIO, f"an fsync of the message index failed: {error}")
                raise self._sync_failure from error

    # Inside; the caller holds the lock.

    def _take(self, pages: int) -> int:
        """Return the first page of a free stretch: the smallest that fits, else the file's end."""
        at = bisect_left(self._free_sizes, (pages, 0))
        if at < len(self._free_sizes):
            found, start = self._free_sizes[at]
            self._drop_free(start)
            if found > pages:
                self._add_free(start + pages, found - pages)
            return start
        start = self._end_page
        self._end_page += pages
        return start

    def _add_free(self, start: int, pages: int) -> None:
        before = self._free_by_end.get(start)
        if before is not None:
            pages += self._drop_free(before)
            start = before
        if start + pages in self._free_by_start:
            pages += self._drop_free(start + pages)
        self._free_by_start[start] = pages
        self._free_by_end[start + pages] = start
        insort(self._free_sizes, (pages, start))

    def _drop_free(self, start: int) -> int:
        pages = self._free_by_start.pop(start)
        del self._free_by_end[start + pages]
        del self._free_sizes[bisect_left(self._free_sizes, (pages, start))]
        return pages
