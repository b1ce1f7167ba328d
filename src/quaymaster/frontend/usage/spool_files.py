"""The files of a spool, `<data>/usage/`: the segments, of which the last is written, and how far they were shipped.

<number>.usage    segment: head (`spool_head`), then blocks (protocol/usage/usage_blocks) one after another
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

from quaymaster.frontend.usage.spool_head import (
    HEAD_START_BYTES,
    SEGMENT_HEAD_BYTES_MAX,
    SegmentHead,
    decode_segment_head,
    encode_segment_head,
    segment_head_length,
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

SEGMENT_BYTES: Final = 4 << 20
SEGMENT_SUFFIX: Final = ".usage"
DAMAGED_SUFFIX: Final = ".damaged"
SHIPPED_FILE: Final = "shipped"

log = logging.getLogger(__name__)


class LittleRoom(OSError):
    """Too little is free, `free_bytes`, for what is left to the journals. Nothing was tried."""

    def __init__(self, free_bytes: int) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.free_bytes = free_bytes


class DamagedBlock(Exception):
    """The block at `offset` of the segment in place `at` cannot be read."""

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


class SpoolSegment(msgspec.Struct):
    """One file."""

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
    """The segments of one directory, the oldest first."""

    def __init__(self, directory: Path, segment_bytes: int) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._fd = -1
        self._shipped = (0, 0)
        """Segment number and offset up to which all is shipped."""
        self.segments: list[SpoolSegment] = []

    @property
    def size_bytes(self) -> int:
        """How much is in them."""
        return sum(segment.end for segment in self.segments)

    @property
    def is_open(self) -> bool:
        """Whether the last segment is being written."""
        return self._fd >= 0

    def path(self, number: int) -> Path:
        """Return the path of a segment."""
        return self._directory / f"{number:016}{SEGMENT_SUFFIX}"

    # Starting

    def find_heads(self) -> list[tuple[int, SegmentHead]]:
        """Return the numbers and heads of all segments that can be read. Raises SpoolUnusable, OSError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        numbers = sorted(
            int(path.stem)
            for path in self._directory.glob(f"*{SEGMENT_SUFFIX}")
            if path.stem.isascii() and path.stem.isdecimal()
        )
        return [(number, head) for number in numbers if (head := self.read_head(number)) is not None]

    def read_head(self, number: int) -> SegmentHead | None:
        """Return the head of a segment; None, and the segment is put aside, when it cannot be read."""
        path = self.path(number)
        with path.open("rb") as file:
            data = file.read(SEGMENT_HEAD_BYTES_MAX)
        try:
            return decode_segment_head(data)
        except CorruptBlock as error:
            # Made by a crash, with nothing in it; or damaged, and nobody knows what it was.
            log_event(log, logging.WARNING, "usage segment not readable", path=str(path), reason=str(error))
            path.replace(path.with_suffix(DAMAGED_SUFFIX))
            return None

    def mend(self, segment: SpoolSegment, extra: bytes) -> None:
        """Cut a segment at its end, put `extra` there, and have it as the last one."""
        fd = os.open(self.path(segment.number), os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, segment.end)
            if extra:
                try:
                    _write_all(fd, extra, segment.end)
                except OSError as error:  # a full disk keeps nobody from starting
                    log_event(log, logging.WARNING, "usage spool not mended", reason=str(error))
                    os.ftruncate(fd, segment.end)
                    # Shipped all the same: the segment may be gone before the next start.
                    segment.unwritten = extra
                else:
                    segment.end += len(extra)
            # What was read may have come from memory: nothing is shipped that a loss of power could take back.
            os.fdatasync(fd)
        finally:
            os.close(fd)
        self.segments.append(segment)

    def take_up_shipping(self) -> None:
        """Read how far the segments were shipped, and delete those that were."""
        path = self._directory / SHIPPED_FILE
        try:
            number, offset = map(int, path.read_text().split())
        except (OSError, ValueError):
            number, offset = 0, 0
        else:
            ends = (segment.end for segment in self.segments if segment.number == number)
            offset = min(offset, next(ends, 0))
        self._shipped = (number, offset)
        self._drop_shipped()

    # Writing

    def append(self, data: bytes, origin: BlockOrigin, after: BlockEnd, *, free_bytes_min: int) -> None:
        """Make blocks durable at the end of the last segment, or of a new one that goes on from `after`.

        Raises:
            LittleRoom: not so much would stay free.
            OSError: the disk did not take them.
        """
        status = os.statvfs(self._directory)
        free_bytes = status.f_bavail * status.f_frsize
        if free_bytes < len(data) + free_bytes_min:
            raise LittleRoom(free_bytes)
        if not self.is_open or self.segments[-1].end + len(data) > self._segment_bytes:
            self.begin(origin, after)
        segment = self.segments[-1]
        try:
            _write_all(self._fd, data, segment.end)
            os.fdatasync(self._fd)
        except OSError:
            # What the disk has of it is unknown. The next segment goes on from before it, which is how a start tells.
            with suppress(OSError):
                os.ftruncate(self._fd, segment.end)
            self.close()
            raise
        segment.end += len(data)

    def begin(self, origin: BlockOrigin, after: BlockEnd) -> None:
        """Begin a new segment."""
        number = self.segments[-1].number + 1 if self.segments else max(1, self._shipped[0] + 1)
        head = encode_segment_head(origin, after)
        path = self.path(number)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, head, 0)
            os.fdatasync(fd)
            self._sync_directory()
        except OSError:
            os.close(fd)
            with suppress(OSError):
                path.unlink()
            raise
        self.close()
        self._fd = fd
        self.segments.append(SpoolSegment(number, origin.incarnation, len(head)))

    def close(self) -> None:
        """Let go of the last segment: the next block is written into another."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # Shipping

    def next_block(self) -> SpooledBlock | None:
        """Return the first block that is not shipped, None when all are. Raises DamagedBlock."""
        number, offset = self._shipped
        for at, segment in enumerate(self.segments):
            if segment.number < number:
                continue
            if segment.number > number:
                number, offset = segment.number, 0
            with self.path(number).open("rb") as file:
                if offset == 0:
                    offset = segment_head_length(file.read(HEAD_START_BYTES))
                if offset >= segment.shipped_end:
                    continue
                if offset >= segment.end:
                    data = segment.unwritten
                    return SpooledBlock(data, decode_header(data), number, segment.shipped_end)
                file.seek(offset)
                try:
                    head = file.read(HEAD_BYTES)
                    data = head + file.read(block_length(head) - len(head))
                    return SpooledBlock(data, decode_header(data), number, offset + len(data))
                except CorruptBlock as error:
                    raise DamagedBlock(at, offset, str(error)) from None
        return None

    def mark_shipped(self, block: SpooledBlock) -> None:
        """Note that a block is stored elsewhere; segments before it, and its own if it was the last, are deleted."""
        self._shipped = (block.number, block.end)
        self._drop_shipped()
        temporary = self._directory / f"{SHIPPED_FILE}.tmp"
        # Without it, or with an old one, blocks are shipped again and known by their names.
        with suppress(OSError):
            temporary.touch(mode=0o600)
            temporary.write_text(f"{block.number} {block.end}\n")
            temporary.replace(self._directory / SHIPPED_FILE)

    def _drop_shipped(self) -> None:
        """Delete the segments that are shipped; the last one stays, the next start goes on from it."""
        number, offset = self._shipped
        while len(self.segments) > 1:
            segment = self.segments[0]
            if segment.number > number or (segment.number == number and offset < segment.shipped_end):
                return
            self.path(segment.number).unlink(missing_ok=True)
            del self.segments[0]

    def _sync_directory(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _write_all(fd: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        view = view[written:]
        position += written
