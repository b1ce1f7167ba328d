"""Disk space ahead of need: the next segment, the reserve for a full disk, and whether the disk is low.

    plenty ──free < low limit──▶ low (sends are refused) ──ENOSPC──▶ reserve released (deletes go on)
       ▲                          │   ▲                                        │
       └────── free again ────────┘   └──── free again: the reserve is rebuilt ┘

The next segment file is made, zero-filled and fsynced before it is needed, so a commit waits for no
allocation and its fdatasync changes no metadata.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from dataclasses import dataclass

from quaymaster.broker.disk import Disk, FileHandle, is_full

PREPARED_NAME = "next-segment-{}.tmp"
"""Numbered: one that was taken keeps its name until it is a segment, and the one after it may be prepared by then."""

RESERVE_NAME = "reserve"
SCARCE_BYTES = 4 << 20
"""With less than this free the reserve is given up at once: metadata, promises and snapshots need room as well."""
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
    """The reserve is this many times the active segment's size; 0 keeps none."""
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
        self._reserve_bytes = 0
        self._is_cramped = False  # the next segment found no room
        self.disk_low = False
        reserve = f"{directory}/{RESERVE_NAME}"
        if disk.exists(reserve):
            handle = FileHandle(disk, disk.open(reserve))
            self._reserve_bytes = disk.size(handle.fd)

    @property
    def reserve_bytes(self) -> int:
        """How much of the disk the reserve holds now."""
        return self._reserve_bytes

    def next_segment_bytes(self) -> int:
        """How large the next segment will be."""
        return min(
            max(self._segment_bytes * 2, self._limits.segment_bytes_min), self._limits.segment_bytes_max
        )

    def take(self, needed_bytes: int, *, first: bool = False) -> tuple[str, FileHandle, int]:
        """Return (path, file, length) of a zero-filled, durable file to become the next segment.

        Normally one that is ready. On a full disk the reserve is given up for it; OSError (is_full) when even
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
                    self._release_reserve()
                    self._prepare(max(self._limits.segment_bytes_min, needed_bytes))
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
            target = self._limits.reserve_segments * self._segment_bytes
            if free >= self._limits.disk_low_bytes + max(0, target - self._reserve_bytes):
                is_low = self._reserve_bytes < target and not self._build_reserve(target)
            else:
                # A smaller reserve than we want is no reason to refuse sends; an emptied one is.
                is_low = free < self._limits.disk_low_bytes or self._reserve_bytes == 0 < target
            self.disk_low = is_low or self._is_cramped

    def note_full(self) -> None:
        """Say that there was no room to write; `disk_low` holds until a segment can be prepared again."""
        with self._lock:
            self.disk_low = self._is_cramped = True

    def release_reserve(self) -> None:
        """Give the reserve back to the file system: something that must be written found no room."""
        with self._lock:
            self._release_reserve()

    def release_if_scarce(self) -> None:
        """Give the reserve up when there is hardly any room: a start writes metadata before anybody may delete."""
        with self._lock:
            self._free_or_release()

    def close(self) -> None:
        """Remove what was only prepared. The reserve stays."""
        with self._lock:
            self._discard_prepared()

    def _free_or_release(self) -> int:
        """Return the free space, after giving up the reserve if there is hardly any."""
        free = self._disk.free_bytes(self._directory)
        # A limit below SCARCE_BYTES says that the owner wants the last bytes used: it would be rebuilt at once.
        if self._reserve_bytes and free < min(SCARCE_BYTES, self._limits.disk_low_bytes):
            self._release_reserve()
            free = self._disk.free_bytes(self._directory)
        return free

    def _prepare(self, length: int) -> None:
        if self._disk.free_bytes(self._directory) < length:  # rather than finding out by writing most of it
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._directory)
        self._prepared_count += 1
        path = f"{self._directory}/{PREPARED_NAME.format(self._prepared_count)}"
        handle = FileHandle(self._disk, self._disk.open(path, create=True))
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

    def _build_reserve(self, target: int) -> bool:
        path = f"{self._directory}/{RESERVE_NAME}"
        handle: FileHandle | None = None
        try:
            handle = FileHandle(self._disk, self._disk.open(path, create=not self._disk.exists(path)))
            self._disk.reserve(handle.fd, target)
            self._disk.sync(handle.fd)
        except OSError as error:
            if not is_full(error):
                raise
            if handle is not None:
                self._disk.truncate(handle.fd, self._reserve_bytes)
            return False
        self._reserve_bytes = target
        return True

    def _release_reserve(self) -> None:
        self.disk_low = True
        if self._reserve_bytes:
            with suppress(OSError):
                self._disk.unlink(f"{self._directory}/{RESERVE_NAME}")
            self._reserve_bytes = 0
