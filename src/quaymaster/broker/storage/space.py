"""Disk space ahead of need: the next segment, the reserve for a full disk, and how much room there is.

    plenty ──free < low limit──▶ low (sends are refused) ──no next segment──▶ reserve ──used up──▶ none
       ▲                          │  ▲                                          │                   │
       └────── free again ────────┘  └──────── free again: the reserve is rebuilt ──────────────────┘

Each of these is judged again every second, from what is so then. A write that found no room is tried again all the
time, and is a reason to refuse sends until it went through, no longer.

The next segment file is made, zero-filled and fsynced before it is needed, so a commit waits for no
allocation and its fdatasync changes no metadata.

The reserve is made of pieces as large as a segment, or smaller where a broker has many journals. On a full disk a piece
becomes the next segment without being given back to the file system in between, where others wait for room, too. When
there is hardly any room, all pieces but one are given back, for whatever else has to be written. Spares, of one block
each, become the small files that a promise or a cut must replace.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from dataclasses import dataclass

from quaymaster.broker.storage.disk import Disk, FileHandle, is_full, write_file_durably
from quaymaster.core.replication.messages import DiskPressure

PREPARED_NAME = "next-segment-{}.tmp"
"""Numbered: one that was taken keeps its name until it is a segment, and the one after it may be prepared by then."""

RESERVE_NAME = "reserve"
"""The first piece; the others have their number behind it."""
SPARE_NAME = "spare-{}"
SPARES = 4
SPARE_BYTES = 4096
"""A block of the file system: shorter files take as much of it."""
SCARCE_BYTES = 4 << 20
"""With less than this free pieces of the reserve are given up at once: metadata and snapshots need room as well."""
ZERO_SLICE_BYTES = 4 << 20
"""Zeros are synced in slices of this size, so that preparing a segment does not hold up commits."""


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """Sizes of one journal's files, in bytes unless the name says otherwise."""

    segment_bytes_min: int = 1 << 20
    """The first segment's size; each following one is twice as large, up to `segment_bytes_max`."""
    segment_bytes_max: int = 64 << 20
    index_every_bytes: int = 16 << 10
    reserve_segments: int = 2
    """The reserve has so many pieces of the active segment's size at most; 0 keeps none, and no spares."""
    reserve_piece_bytes_max: int = 1 << 40
    """Pieces are no larger than this: several journals of a process together hold back what one alone does."""
    disk_low_bytes: int = 256 << 20
    """With less than this free, `disk_low` is true and the owner should refuse sends."""
    group_bytes_max: int = 1 << 20
    """A group commit takes no further batch once it has this much."""
    open_segments_max: int = 128
    """How many segment files stay open between reads."""


class SpaceKeeper:
    """Keeps the next segment and the reserve of one journal directory; any thread may call it."""

    def __init__(self, disk: Disk, directory: str, limits: JournalLimits) -> None:
        self._disk = disk
        self._directory = directory
        self._limits = limits
        self._lock = threading.Lock()
        self._prepared: tuple[str, FileHandle, int] | None = None
        self._prepared_count = 0
        self._segment_bytes = limits.segment_bytes_min
        self._is_cramped = False  # the next segment found no room; until one is prepared
        self._is_held = False  # a write found no room; until that write went through
        self.disk_low = False
        self._pieces = self._found([self._piece_name(number) for number in range(limits.reserve_segments)])
        self._spares_lock = (
            threading.Lock()
        )  # of its own: a promise does not wait while a segment is prepared
        found = self._found([SPARE_NAME.format(number) for number in range(SPARES)])
        self._spares = [path for path, size in found.items() if size == SPARE_BYTES]

    @property
    def reserve_bytes(self) -> int:
        """How much of the disk the reserve holds now."""
        return sum(self._pieces.values())

    @property
    def _piece_bytes(self) -> int:
        return min(self._segment_bytes, self._limits.reserve_piece_bytes_max)

    @property
    def room(self) -> DiskPressure:
        """How much room there is, as of the last look."""
        if not self.disk_low:
            return DiskPressure.PLENTY
        if self._prepared is not None or not (self._is_cramped or self._is_held):
            return DiskPressure.LOW
        return DiskPressure.RESERVE if self._pieces else DiskPressure.NONE

    def next_segment_bytes(self) -> int:
        """How large the next segment will be."""
        return min(
            max(self._segment_bytes * 2, self._limits.segment_bytes_min), self._limits.segment_bytes_max
        )

    def take(self, needed_bytes: int, *, first: bool = False) -> tuple[str, FileHandle, int]:
        """Return (path, file, length) of a zero-filled, durable file to become the next segment.

        Normally one that is ready. On a full disk it is a piece of the reserve; OSError (is_full) when even
        that is not enough, and the caller may ask again later.
        """
        with self._lock:
            wanted = max(self._limits.segment_bytes_min if first else self.next_segment_bytes(), needed_bytes)
            if self._prepared is not None and self._prepared[2] < needed_bytes:
                self._discard_prepared()
            if self._prepared is None:
                try:
                    self._prepare(wanted)
                except OSError as error:
                    if not is_full(error):
                        raise
                    self._prepare_from_reserve(needed_bytes)
            assert self._prepared is not None, "a prepared segment is there or an error was raised"
            path, handle, length = self._prepared
            self._prepared = None
            self._segment_bytes = max(self._segment_bytes, min(length, self._limits.segment_bytes_max))
            return path, handle, length

    def note_segment(self, segment_bytes: int) -> None:
        """Say how large the active segment is, so that the next one and the reserve grow from there."""
        self._segment_bytes = segment_bytes

    def prepare_next(self) -> bool:
        """Make the next segment file ready; False when the disk is too full for it now."""
        with self._lock:
            if self._prepared is not None:
                return True
            # On a disk that is getting full small segments do, as long as there is room for one.
            for length in (self.next_segment_bytes(), self._limits.segment_bytes_min):
                try:
                    self._prepare(length)
                except OSError as error:
                    if not is_full(error):
                        raise
                else:
                    self._is_cramped = False
                    return True
            self.disk_low = self._is_cramped = True
            return False

    def check(self) -> None:
        """Compare the free space with the limits; rebuild the reserve when there is room again."""
        with self._lock:
            free = self._free_or_release()
            target = self._limits.reserve_segments * self._piece_bytes
            if free >= self._limits.disk_low_bytes + max(0, target - self.reserve_bytes):
                is_low = self.reserve_bytes < target and not self._build_reserve()
            else:
                # A smaller reserve than we want is no reason to refuse sends; an emptied one is.
                is_low = free < self._limits.disk_low_bytes or self.reserve_bytes == 0 < target
            self.disk_low = is_low or self._is_cramped or self._is_held
        self._make_spares()

    def note_full(self) -> None:
        """Say that a write found no room; `disk_low` holds until `note_written`, and the next `check`."""
        with self._lock:
            self.disk_low = self._is_held = True

    def note_written(self) -> None:
        """Say that the write which found no room went through."""
        with self._lock:
            self._is_held = False

    def release_reserve(self) -> None:
        """Give the reserve back to the file system: something that must be written found no room."""
        with self._lock:
            self._release_reserve()

    def put(self, name: str, data: bytes) -> None:
        """Put a small file in place of an older one, whole and durable; on a full disk by means of a spare.

        OSError (is_full) when there is none left either, and no reserve to give up for it.
        """
        assert len(data) <= SPARE_BYTES, f"{name} is larger than a spare"
        try:
            write_file_durably(self._disk, self._directory, name, data)
        except OSError as error:
            if not is_full(error):
                raise
        else:
            return
        with self._spares_lock:
            if self._spares:
                self._put_in_spare(self._spares.pop(), name, data)
                return
        self.release_reserve()
        write_file_durably(self._disk, self._directory, name, data)

    def release_if_scarce(self) -> None:
        """Give the reserve up when there is hardly any room: a start writes metadata before anybody may delete."""
        with self._lock:
            self._free_or_release()

    def close(self) -> None:
        """Remove what was only prepared. The reserve stays."""
        with self._lock:
            self._discard_prepared()

    def _piece_name(self, number: int) -> str:
        return RESERVE_NAME if number == 0 else f"{RESERVE_NAME}-{number + 1}"

    def _found(self, names: list[str]) -> dict[str, int]:
        """Return path and length of the files that are there."""
        found: dict[str, int] = {}
        for name in names:
            path = f"{self._directory}/{name}"
            if self._disk.exists(path):
                handle = FileHandle(self._disk, self._disk.open(path))
                found[path] = self._disk.size(handle.fd)
        return found

    def _free_or_release(self) -> int:
        """Return the free space, after giving up pieces of the reserve if there is hardly any."""
        free = self._disk.free_bytes(self._directory)
        kept = int(self._limits.reserve_segments > 1)  # for the journal itself
        # A limit below SCARCE_BYTES says that the owner wants the last bytes used: it would be rebuilt at once.
        while len(self._pieces) > kept and free < min(SCARCE_BYTES, self._limits.disk_low_bytes):
            self._release_piece()
            free = self._disk.free_bytes(self._directory)
        return free

    def _put_in_spare(self, spare: str, name: str, data: bytes) -> None:
        handle = FileHandle(self._disk, self._disk.open(spare))
        self._disk.write(handle.fd, data, 0)
        self._disk.truncate(handle.fd, len(data))
        self._disk.sync(handle.fd)
        self._disk.rename(spare, f"{self._directory}/{name}")
        self._disk.sync_directory(self._directory)

    def _make_spares(self) -> None:
        """Make the spares that are missing, as far as there is room."""
        with self._spares_lock:
            for number in range(SPARES if self._limits.reserve_segments else 0):
                path = f"{self._directory}/{SPARE_NAME.format(number)}"
                if path in self._spares:
                    continue
                try:
                    handle = FileHandle(self._disk, self._disk.open(path, create=True))
                    self._disk.write(handle.fd, bytes(SPARE_BYTES), 0)
                    self._disk.sync(handle.fd)
                except OSError as error:
                    if not is_full(error):
                        raise
                    return
                self._spares.append(path)

    def _prepare_from_reserve(self, needed_bytes: int) -> None:
        self.disk_low = True
        fitting = [path for path, size in self._pieces.items() if size >= needed_bytes]
        if not fitting:
            self._release_reserve()
            self._prepare(max(self._limits.segment_bytes_min, needed_bytes))
            return
        length = self._pieces.pop(fitting[-1])
        path = self._next_prepared_path()
        self._disk.rename(fitting[-1], path)
        self._fill(path, length)

    def _prepare(self, length: int) -> None:
        if self._disk.free_bytes(self._directory) < length:  # rather than finding out by writing most of it
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._directory)
        self._fill(self._next_prepared_path(), length, create=True)

    def _next_prepared_path(self) -> str:
        self._prepared_count += 1
        return f"{self._directory}/{PREPARED_NAME.format(self._prepared_count)}"

    def _fill(self, path: str, length: int, *, create: bool = False) -> None:
        """Make a file of durable zeros the prepared one; it is gone when there is no room for them."""
        handle = FileHandle(self._disk, self._disk.open(path, create=create))
        try:
            for start in range(0, length, ZERO_SLICE_BYTES):
                self._disk.fill_zeros(handle.fd, start, min(start + ZERO_SLICE_BYTES, length))
                self._disk.sync(handle.fd)
        except OSError:
            del handle
            with suppress(OSError):
                self._disk.unlink(path)
            raise
        self._prepared = (path, handle, length)

    def _discard_prepared(self) -> None:
        if self._prepared is not None:
            path = self._prepared[0]
            self._prepared = None
            with suppress(OSError):
                self._disk.unlink(path)

    def _build_reserve(self) -> bool:
        for number in range(self._limits.reserve_segments):
            path = f"{self._directory}/{self._piece_name(number)}"
            size = self._pieces.get(path, 0)
            if size < self._piece_bytes and not self._build_piece(path, size):
                return False
        return True

    def _build_piece(self, path: str, size: int) -> bool:
        handle: FileHandle | None = None
        try:
            handle = FileHandle(self._disk, self._disk.open(path, create=not self._disk.exists(path)))
            self._disk.reserve(handle.fd, self._piece_bytes)
            self._disk.sync(handle.fd)
        except OSError as error:
            if not is_full(error):
                raise
            if handle is not None:
                self._disk.truncate(handle.fd, size)
            return False
        self._pieces[path] = self._piece_bytes
        return True

    def _release_piece(self) -> None:
        self.disk_low = True
        path, _ = self._pieces.popitem()
        with suppress(OSError):
            self._disk.unlink(path)

    def _release_reserve(self) -> None:
        self.disk_low = True
        while self._pieces:
            self._release_piece()
