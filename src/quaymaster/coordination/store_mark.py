"""How far a store had come, written down outside of it: so that one that went back is noticed.

    <data>/journals/store.mark     two slots of 4,096 bytes, written in turn; the newest one that is whole counts
    <data>/journals/0/store.mark   the same, in the directory of the journal that every server has
    slot                           version u8 · magic "QMM" · store id 16 · revision u64 · sum of the rows u64 · crc u32

A change is answered once both name its revision. A store with a lower one has lost changes that somebody was told of: a
file of it was removed, damaged or replaced by an older copy. An older copy may come with the mark of its time; the
journal's stays, for who puts back metadata does not put back the messages.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from quaymaster.coordination.directories import fsync_directory
from quaymaster.coordination.interface import StoreUnusable

MARK_FILE: Final = "store.mark"
MARK_VERSION: Final = 1
MARK_MAGIC: Final = b"QMM"
SLOT_BYTES: Final = 4_096
SLOTS: Final = 2
DECIDE: Final = (
    "Put back what was there, or restore the data directory from a backup. To continue with what is there, decide so "
    "with `quaymaster force-start`"
)

_SLOT = struct.Struct("<B3s16sQQ")
_CRC = struct.Struct("<I")


class Mark(NamedTuple):
    """A moment of a store: its id, its revision, and the sum over all its rows."""

    store_id: bytes
    revision: int
    row_sum: int


class NoRoomForMark(OSError):
    """The mark was not written, as the disk is full; the one before is still there. It can be tried again."""


class StoreMark:
    """The file, open for as long as the store is. One thread; calls block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._turn = 0

    def open(self) -> Mark | None:
        """Return what was written last; None when there is no file yet, or none that can be read."""
        is_new = not self._path.exists()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if is_new:
            fsync_directory(self._path.parent)
        found = [self._read(slot) for slot in range(SLOTS)]
        newest = max(
            (mark for mark in found if mark is not None), key=lambda mark: mark.revision, default=None
        )
        if newest is not None:
            self._turn = (found.index(newest) + 1) % SLOTS
        return newest

    def write(self, mark: Mark) -> None:
        """Return once the mark is durable; the one before stays until then.

        Raises NoRoomForMark, where a disk needs room for what is written over, too; any other OSError is for good.
        """
        bare = _SLOT.pack(MARK_VERSION, MARK_MAGIC, *mark)
        slot = (bare + _CRC.pack(crc32c(bare))).ljust(SLOT_BYTES, b"\0")
        try:
            written = os.pwrite(self._fd, slot, self._turn * SLOT_BYTES)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoRoomForMark(*error.args) from error
            raise
        if written != SLOT_BYTES:
            raise NoRoomForMark(errno.ENOSPC, f"{written} of {SLOT_BYTES} bytes were written")
        os.fdatasync(self._fd)  # not tried again, also on a full disk: it may forget what it was told to keep
        self._turn = (self._turn + 1) % SLOTS

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self, slot: int) -> Mark | None:
        data = os.pread(self._fd, _SLOT.size + _CRC.size, slot * SLOT_BYTES)
        if (
            len(data) != _SLOT.size + _CRC.size
            or crc32c(data[: _SLOT.size]) != _CRC.unpack_from(data, _SLOT.size)[0]
        ):
            return None
        version, magic, store_id, revision, row_sum = _SLOT.unpack_from(data)
        if magic != MARK_MAGIC:
            return None
        if version != MARK_VERSION:
            raise StoreUnusable(
                f"{self._path} has version {version}; this program reads version {MARK_VERSION}. "
                "Start the version of Quaymaster that wrote it."
            )
        return Mark(store_id, revision, row_sum)


class StoreMarks:
    """The mark of one store, the same in several files. One thread; calls block."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._marks = {path: StoreMark(path) for path in paths}
        self._unopened = dict(self._marks)

    def open(self) -> dict[Path, Mark]:
        """Return what each file says that can be read; nothing is made in a directory that is not there yet."""
        found = {path: mark.open() for path, mark in self._marks.items() if path.parent.is_dir()}
        self._unopened = {path: mark for path, mark in self._marks.items() if path not in found}
        return {path: moment for path, moment in found.items() if moment is not None}

    def write(self, moment: Mark) -> None:
        """Return once all files name a moment durably; raises as `StoreMark.write`."""
        for path, mark in self._unopened.items():
            with contextlib.suppress(FileExistsError):
                path.parent.mkdir(0o700)
                fsync_directory(path.parent.parent)
            mark.open()
        self._unopened = {}
        for mark in self._marks.values():
            mark.write(moment)

    def close(self) -> None:
        """Let go of the files."""
        for mark in self._marks.values():
            mark.close()


def why_went_back(path: Path, marks: Mapping[Path, Mark], found: Mark) -> str | None:
    """Return why a store is not what one of the marks says it was, None when it is, or has come further."""
    for place, mark in marks.items():
        if found.store_id != mark.store_id and found.revision:
            return f"{path} is not the store that this data directory was served with: {place} has another id than it"
        if found.revision < mark.revision:
            return (
                f"{path} went back: it is at revision {found.revision}, and changes up to revision {mark.revision} "
                f"were answered, as {place} says. It was replaced by an older copy, or its log (-wal) was removed or "
                "damaged"
            )
        if found.revision == mark.revision and found.row_sum != mark.row_sum:
            return (
                f"{path} has other rows at revision {found.revision} than it had when that was answered, as {place} "
                "says"
            )
    return None
