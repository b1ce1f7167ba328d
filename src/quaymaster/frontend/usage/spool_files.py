"""The files of a spool, `<data>/usage/`: those with blocks, the last of which is written; how far they were shipped.

<number>.usage    a spool file: head (`spool_head`), then blocks (protocol/usage/usage_blocks) one after another
shipped           how far they have been shipped: a number and an offset; a hint, may be old
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from quaymaster.coordination.directories import fsync_directory
from quaymaster.frontend.usage.spool_head import (
    HEAD_START_BYTES,
    SPOOL_FILE_HEAD_BYTES_MAX,
    SpoolFileHead,
    decode_file_head,
    encode_file_head,
    file_head_length,
)
from quaymaster.monitoring.logs import log_event
from quaymaster.protocol.usage.usage_blocks import (
    HEAD_BYTES,
    BlockEnd,
    BlockHeader,
    BlockOrigin,
    block_length,
    decode_header,
)
from quaymaster.protocol.usage.usage_rows import CorruptBlock

SPOOL_FILE_BYTES: Final = 4 << 20
SPOOL_FILE_SUFFIX: Final = ".usage"
DAMAGED_SUFFIX: Final = ".damaged"
SHIPPED_FILE: Final = "shipped"

log = logging.getLogger(__name__)


class LittleRoom(OSError):
    """Too little is free, `free_bytes`, for what is left to the journals. Nothing was tried."""

    def __init__(self, free_bytes: int) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.free_bytes = free_bytes


class DamagedBlock(Exception):
    """The block at `offset` of the spool file in place `at` cannot be read."""

    def __init__(self, at: int, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at
        self.offset = offset


class SpooledBlock(msgspec.Struct, frozen=True):
    """A durable block that is to be shipped, and where it ends."""

    data: bytes
    header: BlockHeader
    number: int
    end: int


class SpoolFile(msgspec.Struct):
    """One file with blocks."""

    number: int
    incarnation: int
    end: int
    """Bytes that are durable."""
    unwritten: bytes = b""
    """What a start had to add for which there was no room. The next start makes the same of it."""

    @property
    def shipped_end(self) -> int:
        """Where it ends for the shipper."""
        return self.end + len(self.unwritten)


class SpoolFiles:
    """The spool files of one directory, the oldest first."""

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._fd = -1
        self._shipped = (0, 0)
        """Number of a file and offset up to which all is shipped."""
        self.files: list[SpoolFile] = []

    @property
    def size_bytes(self) -> int:
        """How much is in them."""
        return sum(one.end for one in self.files)

    @property
    def is_open(self) -> bool:
        """Whether the last file is being written."""
        return self._fd >= 0

    def path(self, number: int) -> Path:
        """Return the path of a spool file."""
        return self._directory / f"{number:016}{SPOOL_FILE_SUFFIX}"

    # Starting

    def find_heads(self) -> list[tuple[int, SpoolFileHead]]:
        """Return the numbers and heads of all files that can be read. Raises SpoolUnusable, OSError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        numbers = sorted(
            int(path.stem)
            for path in self._directory.glob(f"*{SPOOL_FILE_SUFFIX}")
            if path.stem.isascii() and path.stem.isdecimal()
        )
        return [(number, head) for number in numbers if (head := self.read_head(number)) is not None]

    def read_head(self, number: int) -> SpoolFileHead | None:
        """Return the head of a file; None, and the file is put aside, when it cannot be read."""
        path = self.path(number)
        with path.open("rb") as file:
            data = file.read(SPOOL_FILE_HEAD_BYTES_MAX)
        try:
            return decode_file_head(data)
        except CorruptBlock as error:
            # Made by a crash, with nothing in it; or damaged, and what it was is not known.
            log_event(
                log, logging.WARNING, "usage spool file not readable", path=str(path), reason=str(error)
            )
            path.replace(path.with_suffix(DAMAGED_SUFFIX))
            return None

    def mend(self, spool_file: SpoolFile, extra: bytes) -> None:
        """Cut a file at its end, put `extra` there, and have it as the last one."""
        fd = os.open(self.path(spool_file.number), os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, spool_file.end)
            if extra:
                try:
                    _write_all(fd, extra, spool_file.end)
                except OSError as error:  # a full disk does not keep it from starting
                    log_event(log, logging.WARNING, "usage spool not mended", reason=str(error))
                    os.ftruncate(fd, spool_file.end)
                    # Shipped all the same: the file may be gone before the next start.
                    spool_file.unwritten = extra
                else:
                    spool_file.end += len(extra)
            # What was read may have come from memory: nothing is shipped that a loss of power could take back.
            os.fdatasync(fd)
        finally:
            os.close(fd)
        self.files.append(spool_file)

    def take_up_shipping(self) -> None:
        """Read how far the files were shipped, and delete those that were."""
        path = self._directory / SHIPPED_FILE
        try:
            number, offset = map(int, path.read_text().split())
        except (OSError, ValueError):
            number, offset = 0, 0
        else:
            ends = (one.end for one in self.files if one.number == number)
            offset = min(offset, next(ends, 0))
        self._shipped = (number, offset)
        self._drop_shipped()

    # Writing

    def append(self, data: bytes, origin: BlockOrigin, after: BlockEnd, *, free_bytes_min: int) -> None:
        """Make blocks durable at the end of the last file, or of a new one that goes on from `after`.

        Raises:
            LittleRoom: not so much would stay free.
            OSError: the disk did not take them.
        """
        status = os.statvfs(self._directory)
        free_bytes = status.f_bavail * status.f_frsize
        if free_bytes < len(data) + free_bytes_min:
            raise LittleRoom(free_bytes)
        if not self.is_open or self.files[-1].end + len(data) > self._file_bytes:
            self.begin(origin, after)
        last = self.files[-1]
        try:
            _write_all(self._fd, data, last.end)
            os.fdatasync(self._fd)
        except OSError:
            # What the disk has of it is unknown. The next file goes on from before it, which is how a start tells.
            with suppress(OSError):
                os.ftruncate(self._fd, last.end)
            self.close()
            raise
        last.end += len(data)

    def begin(self, origin: BlockOrigin, after: BlockEnd) -> None:
        """Begin a new file."""
        number = self.files[-1].number + 1 if self.files else max(1, self._shipped[0] + 1)
        head = encode_file_head(origin, after)
        path = self.path(number)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, head, 0)
            os.fdatasync(fd)
            fsync_directory(self._directory)
        except OSError:
            os.close(fd)
            with suppress(OSError):
                path.unlink()
            raise
        self.close()
        self._fd = fd
        self.files.append(SpoolFile(number, origin.incarnation, len(head)))

    def close(self) -> None:
        """Let go of the last file: the next block is written into another."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # Shipping

    def next_block(self) -> SpooledBlock | None:
        """Return the first block that is not shipped, None when all are. Raises DamagedBlock."""
        number, offset = self._shipped
        for at, spool_file in enumerate(self.files):
            if spool_file.number < number:
                continue
            if spool_file.number > number:
                number, offset = spool_file.number, 0
            with self.path(number).open("rb") as file:
                if offset == 0:
                    offset = file_head_length(file.read(HEAD_START_BYTES))
                if offset >= spool_file.shipped_end:
                    continue
                if offset >= spool_file.end:
                    data = spool_file.unwritten
                    return SpooledBlock(data, decode_header(data), number, spool_file.shipped_end)
                file.seek(offset)
                try:
                    head = file.read(HEAD_BYTES)
                    data = head + file.read(block_length(head) - len(head))
                    return SpooledBlock(data, decode_header(data), number, offset + len(data))
                except CorruptBlock as error:
                    raise DamagedBlock(at, offset, str(error)) from None
        return None

    def mark_shipped(self, block: SpooledBlock) -> None:
        """Note that a block is stored elsewhere; files before it, and its own if it was the last, are deleted."""
        self._shipped = (block.number, block.end)
        self._drop_shipped()
        temporary = self._directory / f"{SHIPPED_FILE}.tmp"
        # Without it, or with an old one, blocks are shipped again and known by their names.
        with suppress(OSError):
            temporary.touch(mode=0o600)
            temporary.write_text(f"{block.number} {block.end}\n")
            temporary.replace(self._directory / SHIPPED_FILE)

    def _drop_shipped(self) -> None:
        """Delete the files that are shipped; the last one stays, the next start goes on from it."""
        number, offset = self._shipped
        while len(self.files) > 1:
            oldest = self.files[0]
            if oldest.number > number or (oldest.number == number and offset < oldest.shipped_end):
                return
            self.path(oldest.number).unlink(missing_ok=True)
            del self.files[0]


def _write_all(fd: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        view = view[written:]
        position += written
