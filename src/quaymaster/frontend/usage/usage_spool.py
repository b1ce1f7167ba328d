"""Blocks of usage records on this front end's disk, until they are shipped: `<data>/usage/`.

    <number>.usage    segment: head, then blocks (protocol/usage/usage_records) one after another
    shipped           how far they have been shipped: a number and an offset; a hint, may be old
    front_end         this front end's name, as it was at its first start here

    head: version u8 · magic "QMS" · length u32 · CRC32C of the rest u32 · MessagePack of SegmentHead

A block counts once it is fsynced; only then is it shipped. What a crash loses is what was recorded since the last
fsync. At the next start the epoch that ended is *sealed* with the sequence number its next record would have had, so
that whoever adds up knows that nothing is to come; damage found then is written down as dropped. So the blocks of each
epoch lie end to end, whatever happens, and end with a seal.

When there is no room (`bytes_max`, a full disk), records are counted by account and action, and the counts are
written in front of the next block that finds room. Records that are owed, of changes, are kept in memory until there is
room; they have a little room of their own, above `bytes_max` and on the disk.

All of it belongs to one thread, which is not the event loop's: nothing here has a lock.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from crc32c import crc32c

from quaymaster.coordination.noted_acts import ACT_ID
from quaymaster.frontend.usage.audit_gate import Trouble
from quaymaster.frontend.usage.recorder import CELLS, TakenRows
from quaymaster.monitoring.logs import log_event
from quaymaster.protocol.usage.usage_records import (
    BLOCK_BYTES_MAX,
    HEAD_BYTES,
    NO_HASH,
    NO_ROWS,
    ROWS_PER_BLOCK_MAX,
    BlockHeader,
    CorruptBlock,
    Dropped,
    DroppedCount,
    DropReason,
    EncodedBlock,
    Seal,
    UnknownBlockVersion,
    block_length,
    decode_block,
    decode_header,
    encode_block,
    merge_dropped,
)

SEGMENT_BYTES: Final = 4 << 20
SEGMENT_VERSION: Final = 1
SEGMENT_SUFFIX: Final = ".usage"
DAMAGED_SUFFIX: Final = ".damaged"
_SHIPPED: Final = "shipped"
FRONT_END_FILE: Final = "front_end"
_MAGIC: Final = b"QMS"
_HEAD = struct.Struct("<B3sII")
_SEGMENT_HEAD_BYTES_MAX: Final = 4096
_NAME_CHARS_MAX: Final = 255
_FREE_BYTES_MIN: Final = 1 << 20
"""Below it the disk counts as full for us: journals come first."""
OWED_BYTES: Final = 4 << 20
"""Records that are owed may go so far above `bytes_max`."""
_EVENT_BYTES: Final = 64 << 10
"""Room that one audit event needs at most, with what a block and a segment have around it."""

log = logging.getLogger(__name__)


class SpoolUnusable(Exception):
    """The spool cannot be gone on with: the message says why, and what to do."""


class _LittleRoom(OSError):
    """Too little is free, `free_bytes`, for what is left to the journals. Nothing was tried."""

    def __init__(self, free_bytes: int) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.free_bytes = free_bytes


class SegmentHead(msgspec.Struct, frozen=True, array_like=True):
    """What the first block of a segment goes on from."""

    front_end: str
    epoch: int
    next_sequence: int
    previous: bytes
    audit_hash: bytes
    region: str


class SpooledBlock(msgspec.Struct, frozen=True):
    """A durable block that is to be shipped, and where it ends."""

    data: bytes
    header: BlockHeader
    number: int
    end: int


class SpoolAppend(msgspec.Struct):
    """What came of an append: records that are durable, and those that were dropped."""

    rows: int
    dropped: int
    reason: DropReason | None
    owed: int = 0
    """Records that are kept, to be written later."""
    trouble: Trouble | None = None
    """Why the next event could not be written."""


class _Segment(msgspec.Struct):
    number: int
    epoch: int
    end: int
    """Bytes that are durable."""
    unwritten: bytes = b""
    """What a start had to add for which there was no room. The next start makes the same of it."""

    @property
    def shipped_end(self) -> int:
        """Where it ends for the shipper."""
        return self.end + len(self.unwritten)


class _Chain(msgspec.Struct, frozen=True):
    """What the next block goes on from."""

    next_sequence: int
    previous: bytes
    audit_hash: bytes
    watermark_us: int = 0
    is_sealed: bool = False


_encoder = msgspec.msgpack.Encoder()
_heads = msgspec.msgpack.Decoder(SegmentHead)


class UsageSpool:
    """The segments of one data directory. `open`, then `begin` an epoch, then append, ship, and `close` with a seal.

    `node` is the front end's name at its first start here; later ones keep that, so that a host that is called
    otherwise after its next start goes on where it was. `is_named`: the operator gave the name, and it counts.
    """

    def __init__(
        self,
        directory: Path,
        *,
        node: str,
        is_named: bool,
        bytes_max: int,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._segment_bytes = segment_bytes
        self._segments: list[_Segment] = []
        self._fd = -1
        self._region = ""
        self._chain = _Chain(0, NO_HASH, NO_HASH)
        self._dropped: Dropped | None = None
        self._owed: TakenRows | None = None
        """Records of changes that could not be written yet."""
        self._is_failing = False
        """Whether the disk did not take the last write that was tried."""
        self._is_told = False
        """Whether the log says that records are not written."""
        self._lost: tuple[int, int] | None = None
        """An epoch that is still to be sealed as lost, and when that was found (us)."""
        self._shipped = (0, 0)
        """Segment number and offset up to which all is shipped."""
        self._is_named = is_named
        self.front_end = node
        self.noted_acts: set[str] = set()
        """Ids of acts (`coordination/noted_acts`) in the segments, until `forget_act`."""
        self.epoch = 0
        """That of the last segment, until `begin`."""

    # Starting

    def open(self) -> None:
        """Read what is there, mend it, and seal the epoch that was not.

        Raises:
            SpoolUnusable: a newer program wrote it, or nothing in it tells the front end's name any more.
            OSError: it cannot be read or written.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        numbers = sorted(
            int(path.stem)
            for path in self._directory.glob(f"*{SEGMENT_SUFFIX}")
            if path.stem.isascii() and path.stem.isdecimal()
        )
        heads: list[tuple[int, SegmentHead]] = []
        for number in numbers:
            head = self._read_segment_head(number)
            if head is not None:
                heads.append((number, head))
        self._take_name(heads[-1][1].front_end if heads else None)
        for at, (number, head) in enumerate(heads):
            following = heads[at + 1][1] if at + 1 < len(heads) else None
            self._mend(number, head, following if following and following.epoch == head.epoch else None)
        self._shipped = self._read_shipped()
        for name in (FRONT_END_FILE, _SHIPPED):  # made readable for others, once
            with suppress(OSError):
                (self._directory / name).chmod(0o600)
        self._drop_shipped_segments()

    def begin(self, epoch: int, region: str, *, now_us: int, lost_epoch: int | None = None) -> None:
        """Start an epoch with a segment of its own.

        `lost_epoch` is one that coordination knows, and of which nothing is here: it is sealed as lost.
        """
        assert epoch > self.epoch, f"epoch {epoch} comes after {self.epoch}, which is in the spool"
        self._region = region
        chain = self._chain
        self._chain = _Chain(0, chain.previous, chain.audit_hash)
        self._dropped = None
        self.epoch = epoch
        self._lost = None if lost_epoch is None else (lost_epoch, now_us)
        try:
            self._roll()
            self._write_lost()
        except OSError as error:  # a full disk: written later, or counted as dropped
            log_event(log, logging.WARNING, "usage records cannot be written", reason=str(error))

    # Writing

    def append(self, taken: TakenRows, *, is_heartbeat: bool = False) -> SpoolAppend:
        """Make records durable, or count them as dropped; keep those that are owed until they can be written.

        With `is_heartbeat` there is a block even without records. Never fails: what cannot be written is counted.
        """
        with suppress(OSError):  # told of below
            self._write_lost()
        if self._owed is not None:
            taken, self._owed = taken.after(self._owed), None
        before, dropped_before = self._chain, self._dropped
        data: list[bytes] = []
        reason: DropReason | None = None
        lost = 0
        kept: list[TakenRows] = []
        written_acts: list[str] = []
        room = self._bytes_max - self.size_bytes
        for start in range(0, taken.count, ROWS_PER_BLOCK_MAX):
            end = min(start + ROWS_PER_BLOCK_MAX, taken.count)
            blocks = self._encode(taken, start, end)
            acts = _acts_in(taken.request_ids(start, end))
            if not _has_room(room, data, blocks):
                owed, rest = taken.split(start, end)
                self._drop(rest, "spool_full")
                lost += rest.count
                reason = "spool_full" if rest.count else reason
                if not owed.count:
                    continue
                blocks, acts = self._encode(owed, 0, owed.count), []
                if not _has_room(room + OWED_BYTES, data, blocks):
                    kept.append(owed)
                    # What comes later is not all there is before this time.
                    taken = msgspec.structs.replace(taken, watermark_us=0)
                    continue
            data.extend(block.data for block in blocks)
            written_acts += acts
            self._dropped = None
            self._chain = _Chain(
                blocks[-1].seq_hi, blocks[-1].digest, blocks[-1].audit_hash, taken.watermark_us
            )
        if taken.overflow:
            self._drop_overflow(taken)
            lost += taken.overflow
            reason = reason or "too_many"
        if is_heartbeat and not data:
            block = self._encode_empty(taken.watermark_us)
            data.append(block.data)
            self._dropped = None
            self._chain = _Chain(block.seq_hi, block.digest, block.audit_hash, taken.watermark_us)
        try:
            if data:
                self._write(b"".join(data), before)
                self._is_told = False
        except OSError as error:
            self._chain, self._dropped = before, dropped_before
            return self._append_owed_alone(taken, error)
        self.noted_acts.update(written_acts)
        self._keep(kept)
        left = self._owed_count
        rows = taken.count + taken.overflow - lost - left
        return SpoolAppend(rows, lost, reason, left, self._trouble())

    def _append_owed_alone(self, taken: TakenRows, error: OSError) -> SpoolAppend:
        """Count what the disk did not take; records that are owed may use what is left to the journals otherwise."""
        if not self._is_told:
            log_event(log, logging.WARNING, "usage records not written", reason=str(error))
            self._is_told = True
        self._is_failing = not isinstance(error, _LittleRoom) or error.free_bytes < _EVENT_BYTES
        owed, rest = taken.split(0, taken.count)
        self._drop(rest, "disk_failed")
        self._drop_overflow(taken)
        self._keep([owed])
        with suppress(OSError):
            self._write_owed()
        left = self._owed_count
        return SpoolAppend(
            owed.count - left, rest.count + taken.overflow, "disk_failed", left, self._trouble()
        )

    def _keep(self, parts: list[TakenRows]) -> None:
        """Keep records that are owed until the next append."""
        for part in parts:
            if part.count:
                self._owed = part if self._owed is None else part.after(self._owed)

    def _write_owed(self) -> None:
        """Write the records that are owed, in as little room as there is; an OSError leaves them to be tried again."""
        owed = self._owed
        if owed is None:
            return
        before, dropped_before = self._chain, self._dropped
        data = []
        for start in range(0, owed.count, ROWS_PER_BLOCK_MAX):
            blocks = self._encode(owed, start, min(start + ROWS_PER_BLOCK_MAX, owed.count))
            data += [block.data for block in blocks]
            self._dropped = None
            self._chain = _Chain(blocks[-1].seq_hi, blocks[-1].digest, blocks[-1].audit_hash)
        try:
            self._write(b"".join(data), before, free_bytes_min=_EVENT_BYTES)
        except OSError:
            self._chain, self._dropped = before, dropped_before
            self._is_failing = True
            raise
        self._owed = None

    @property
    def _owed_count(self) -> int:
        return 0 if self._owed is None else self._owed.count

    def _trouble(self) -> Trouble | None:
        if self._is_failing:
            return "disk_failed"
        full = self.size_bytes + _EVENT_BYTES > self._bytes_max + OWED_BYTES
        return "spool_full" if full or self._owed is not None else None

    def owed_events(self) -> list[dict[str, str]]:
        """Return what the log says of records that are owed and will never be written."""
        owed = self._owed
        if owed is None:
            return []
        found = []
        for row, request_id in enumerate(owed.request_ids(0, owed.count)):
            context = owed.contexts[owed.cells[row * CELLS]]
            found.append(
                {
                    "action": context.action,
                    "account_id": context.account_id,
                    "access_key_id": context.access_key_id,
                    "queue": context.queue_name,
                    "request_id": request_id,
                }
            )
        return found

    def close(self, *, now_us: int) -> None:
        """Seal the epoch and let go of the files. An OSError leaves the sealing to the next start.

        Records that are owed are written before, however full the spool is; else they stay in memory.
        """
        try:
            self._write_lost()
            self._write_owed()
            if self._fd >= 0:
                block = self._encode_empty(now_us, Seal(self.epoch, self._end_sequence, "stopped"))
                self._write(block.data, self._chain)
                self._chain = _Chain(block.seq_hi, block.digest, block.audit_hash, now_us, is_sealed=True)
        finally:
            self._close_file()

    # Shipping

    def next_block(self) -> SpooledBlock | None:
        """Return the first block that is not shipped, None when all are.

        In place of one that cannot be read any more there is one that says so.
        """
        number, offset = self._shipped
        for at, segment in enumerate(self._segments):
            if segment.number < number:
                continue
            if segment.number > number:
                number, offset = segment.number, 0
            with self._path(number).open("rb") as file:
                if offset == 0:
                    offset = segment_head_length(file.read(_HEAD.size))
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
                    reason = str(error)
            log_event(
                *(log, logging.ERROR, "spooled usage block damaged"),
                segment=number,
                offset=offset,
                reason=reason,
            )
            return self._stand_in(at)
        return None

    def mark_shipped(self, block: SpooledBlock) -> None:
        """Note that a block is stored elsewhere; segments before it, and its own if it was the last, are deleted."""
        self._shipped = (block.number, block.end)
        self._drop_shipped_segments()
        temporary = self._directory / f"{_SHIPPED}.tmp"
        with suppress(
            OSError
        ):  # without it, or with an old one, blocks are shipped again and known by their names
            temporary.touch(mode=0o600)
            temporary.write_text(f"{block.number} {block.end}\n")
            temporary.replace(self._directory / _SHIPPED)

    @property
    def size_bytes(self) -> int:
        """How much is in the spool."""
        return sum(segment.end for segment in self._segments)

    def _stand_in(self, at: int) -> SpooledBlock | None:
        """Return what a start would write in place of a segment's damaged rest; None until there is a next segment."""
        segment = self._segments[at]
        if at + 1 == len(self._segments):
            self._close_file()  # the next block is written into another
            return None
        head = self._read_segment_head(segment.number)
        following = self._read_segment_head(self._segments[at + 1].number)
        if head is None or following is None:
            return None
        same_epoch = following if following.epoch == head.epoch else None
        chain, _ = self._scan(segment.number, head, same_epoch)
        if same_epoch is None:
            block = self._repair(head, chain, seal=Seal(head.epoch, chain.next_sequence, "crashed"))
        else:
            dropped = Dropped(chain.next_sequence, same_epoch.next_sequence, "damaged", [])
            block = self._repair(head, chain, dropped=dropped)
        return SpooledBlock(block.data, decode_header(block.data), segment.number, segment.shipped_end)

    # Parts of starting

    def _take_name(self, recorded: str | None) -> None:
        """Take the name that records are under. `recorded`: that of the newest segment, which has a checksum."""
        path = self._directory / FRONT_END_FILE
        kept = _read_name(path)
        if not self._is_named:
            if recorded is None and kept is None:
                raise SpoolUnusable(
                    f"{path} is damaged, and nothing else here tells this front end's name. `quaymaster frontend "
                    f"list` lists the names there are: write the right one into the file, or set `node` to it. "
                    "Under another name its audit chain and its usage begin again."
                )
            self.front_end = recorded or kept or self.front_end
        if kept == self.front_end:
            return
        if kept is None:
            log_event(
                log, logging.WARNING, "front end's name was damaged", path=str(path), name=self.front_end
            )
        temporary = path.with_suffix(".tmp")
        try:
            temporary.touch(mode=0o600)
            temporary.write_text(f"{self.front_end}\n")
            temporary.replace(path)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # A full disk keeps nobody from starting; the next start tries again.
            log_event(log, logging.WARNING, "front end's name not kept", path=str(path), reason=str(error))
            with suppress(OSError):
                temporary.unlink()

    def _read_segment_head(self, number: int) -> SegmentHead | None:
        path = self._path(number)
        with path.open("rb") as file:
            data = file.read(_SEGMENT_HEAD_BYTES_MAX)
        try:
            return decode_segment_head(data)
        except CorruptBlock as error:
            # Made by a crash, with nothing in it; or damaged, and nobody knows what it was.
            log_event(log, logging.WARNING, "usage segment not readable", path=str(path), reason=str(error))
            path.replace(path.with_suffix(DAMAGED_SUFFIX))
            return None

    def _mend(self, number: int, head: SegmentHead, following: SegmentHead | None) -> None:
        """Cut what is torn, and say in the file what is missing: up to the next segment, or the end of the epoch."""
        chain, end = self._scan(number, head, following)
        extra: EncodedBlock | None = None
        if following is not None and chain.next_sequence < following.next_sequence:
            missing = Dropped(chain.next_sequence, following.next_sequence, "damaged", [])
            log_event(
                log,
                logging.ERROR,
                "usage records damaged",
                segment=number,
                from_sequence=missing.from_sequence,
                to_sequence=missing.to_sequence,
            )
            extra = self._repair(head, chain, dropped=missing)
        elif following is None and not chain.is_sealed:
            log_event(
                log,
                logging.INFO,
                "usage epoch sealed",
                front_end=head.front_end,
                epoch=head.epoch,
                end_sequence=chain.next_sequence,
            )
            extra = self._repair(head, chain, seal=Seal(head.epoch, chain.next_sequence, "crashed"))
        segment = _Segment(number, head.epoch, end)
        fd = os.open(self._path(number), os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, end)
            if extra is not None:
                chain = _Chain(extra.seq_hi, extra.digest, extra.audit_hash)
                try:
                    _write_all(fd, extra.data, end)
                except OSError as error:  # a full disk keeps nobody from starting
                    log_event(log, logging.WARNING, "usage spool not mended", reason=str(error))
                    os.ftruncate(fd, end)
                    # Shipped all the same: the segment may be gone before the next start.
                    segment.unwritten = extra.data
                else:
                    segment.end += len(extra.data)
            # What was read may have come from memory: nothing is shipped that a loss of power could take back.
            os.fdatasync(fd)
        finally:
            os.close(fd)
        self._segments.append(segment)
        self._chain = chain
        self.epoch = max(self.epoch, head.epoch)

    def _repair(
        self, head: SegmentHead, chain: _Chain, *, dropped: Dropped | None = None, seal: Seal | None = None
    ) -> EncodedBlock:
        return encode_block(
            head.front_end,
            head.epoch,
            chain.next_sequence,
            NO_ROWS,
            region=head.region,
            low_watermark_us=chain.watermark_us,
            previous=chain.previous,
            audit_hash=chain.audit_hash,
            dropped=dropped,
            seal=seal,
        )

    def _scan(self, number: int, head: SegmentHead, following: SegmentHead | None) -> tuple[_Chain, int]:
        """Return where a segment's whole blocks end, and what comes after them.

        Blocks behind the one from which the next segment goes on do not count: their fsync failed.
        """
        data = self._path(number).read_bytes()
        at = segment_head_length(data)
        chain = _Chain(head.next_sequence, head.previous, head.audit_hash)
        while at < len(data):
            if following is not None and chain.previous == following.previous:
                break
            try:
                block = decode_block(memoryview(data)[at:])
            except CorruptBlock:
                break
            except UnknownBlockVersion as error:
                raise SpoolUnusable(f"{self._path(number)}: {error}") from None
            header = block.header
            if header.epoch == head.epoch:
                if header.seq_lo != chain.next_sequence:
                    break
                self.noted_acts.update(_acts_in(block.rows.request_id))
                hashes = [change.record_hash for change in block.rows.changes]
                chain = _Chain(
                    header.seq_hi,
                    block.digest,
                    hashes[-1] if hashes else chain.audit_hash,
                    header.low_watermark_us,
                    header.seal is not None,
                )
            else:  # the seal of an epoch whose spool was lost
                chain = msgspec.structs.replace(chain, previous=block.digest)
            at += block_length(memoryview(data)[at:])
        return chain, at

    def _read_shipped(self) -> tuple[int, int]:
        try:
            number, offset = map(int, (self._directory / _SHIPPED).read_text().split())
        except (OSError, ValueError):
            return 0, 0
        for segment in self._segments:
            if segment.number == number:
                return number, min(offset, segment.end)
        return number, 0

    # Parts of writing

    @property
    def _end_sequence(self) -> int:
        return self._chain.next_sequence if self._dropped is None else self._dropped.to_sequence

    def _encode(self, taken: TakenRows, start: int, end: int) -> list[EncodedBlock]:
        """Return blocks of some rows, as few as are not too long."""
        chain = self._chain
        return self._encode_part(taken, start, end, chain.previous, chain.audit_hash, self._dropped)

    def _encode_part(
        self,
        taken: TakenRows,
        start: int,
        end: int,
        previous: bytes,
        audit_hash: bytes,
        dropped: Dropped | None,
        seq_lo: int | None = None,
    ) -> list[EncodedBlock]:
        if seq_lo is None:
            seq_lo = self._chain.next_sequence
        block = encode_block(
            self.front_end,
            self.epoch,
            seq_lo,
            taken.columns(start, end),
            region=self._region,
            low_watermark_us=taken.watermark_us if end == taken.count else 0,
            previous=previous,
            audit_hash=audit_hash,
            dropped=dropped,
        )
        if len(block.data) <= BLOCK_BYTES_MAX or end - start == 1:
            return [block]
        middle = (start + end) // 2
        first = self._encode_part(taken, start, middle, previous, audit_hash, dropped, seq_lo)
        last = first[-1]
        second = self._encode_part(taken, middle, end, last.digest, last.audit_hash, None, last.seq_hi)
        return first + second

    def _encode_empty(self, watermark_us: int, seal: Seal | None = None) -> EncodedBlock:
        chain = self._chain
        return encode_block(
            self.front_end,
            self.epoch,
            chain.next_sequence,
            NO_ROWS,
            region=self._region,
            low_watermark_us=watermark_us,
            previous=chain.previous,
            audit_hash=chain.audit_hash,
            dropped=self._dropped,
            seal=seal,
        )

    def _drop(self, rows: TakenRows, reason: DropReason) -> None:
        self._count_dropped(rows.count, rows.counts(0, rows.count), reason)

    def _drop_overflow(self, taken: TakenRows) -> None:
        self._count_dropped(taken.overflow, taken.overflow_counts, "too_many")

    def _count_dropped(self, records: int, counts: list[DroppedCount], reason: DropReason) -> None:
        if not records:
            return
        start = self._end_sequence
        dropped = Dropped(start, start + records, reason, counts)
        self._dropped = dropped if self._dropped is None else merge_dropped(self._dropped, dropped)

    def _write_lost(self) -> None:
        if self._lost is None:
            return
        (epoch, now_us), chain = self._lost, self._chain
        block = encode_block(
            self.front_end,
            epoch,
            0,
            NO_ROWS,
            region=self._region,
            low_watermark_us=now_us,
            previous=chain.previous,
            audit_hash=chain.audit_hash,
            seal=Seal(epoch, None, "lost"),
        )
        self._write(block.data, chain)
        self._chain = msgspec.structs.replace(chain, previous=block.digest)
        self._lost = None

    def _write(self, data: bytes, before: _Chain, *, free_bytes_min: int | None = None) -> None:
        """Make blocks durable at the end of the last segment, or of a new one that goes on from `before`."""
        status = os.statvfs(self._directory)
        free_bytes = status.f_bavail * status.f_frsize
        if free_bytes < len(data) + (_FREE_BYTES_MIN if free_bytes_min is None else free_bytes_min):
            raise _LittleRoom(free_bytes)
        if self._fd < 0 or self._segments[-1].end + len(data) > self._segment_bytes:
            self._roll(before)
        segment = self._segments[-1]
        try:
            _write_all(self._fd, data, segment.end)
            os.fdatasync(self._fd)
        except OSError:
            # What the disk has of it is unknown. The next segment goes on from before it, which is how a start tells.
            with suppress(OSError):
                os.ftruncate(self._fd, segment.end)
            self._close_file()
            raise
        segment.end += len(data)
        self._is_failing = False

    def _roll(self, chain: _Chain | None = None) -> None:
        """Begin a new segment."""
        chain = chain or self._chain
        number = self._segments[-1].number + 1 if self._segments else max(1, self._shipped[0] + 1)
        head = _encode_segment_head(
            SegmentHead(
                self.front_end,
                self.epoch,
                chain.next_sequence,
                chain.previous,
                chain.audit_hash,
                self._region,
            )
        )
        path = self._path(number)
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
        self._close_file()
        self._fd = fd
        self._segments.append(_Segment(number, self.epoch, len(head)))

    def _drop_shipped_segments(self) -> None:
        """Delete the segments that are shipped; the last one stays, the next start goes on from it."""
        number, offset = self._shipped
        while len(self._segments) > 1:
            segment = self._segments[0]
            if segment.number > number or (segment.number == number and offset < segment.shipped_end):
                return
            self._path(segment.number).unlink(missing_ok=True)
            del self._segments[0]

    def _sync_directory(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:016}{SEGMENT_SUFFIX}"


def _acts_in(request_ids: Sequence[str]) -> list[str]:
    return [request_id for request_id in request_ids if request_id.startswith(ACT_ID)]


def _encode_segment_head(head: SegmentHead) -> bytes:
    body = _encoder.encode(head)
    return _HEAD.pack(SEGMENT_VERSION, _MAGIC, _HEAD.size + len(body), crc32c(body)) + body


def segment_head_length(data: bytes) -> int:
    """Return how long the head is that a segment begins with; it was checked when it was opened."""
    return int(_HEAD.unpack_from(data)[2])


def _read_name(path: Path) -> str | None:
    """Return a front end's name as it was kept, "" where none is; None when what is there is no name."""
    try:
        name = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        return None
    return name if len(name) <= _NAME_CHARS_MAX and name.isprintable() else None


def decode_segment_head(data: bytes) -> SegmentHead:
    """Return the head that a segment begins with. Raises CorruptBlock, SpoolUnusable."""
    if len(data) < _HEAD.size:
        raise CorruptBlock("a segment is shorter than its head")
    version, magic, length, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptBlock("a segment begins with something else")
    if version != SEGMENT_VERSION:
        raise SpoolUnusable(
            f"a segment of usage records has version {version}; {SEGMENT_VERSION} can be read"
        )
    body = data[_HEAD.size : length]
    if len(body) != length - _HEAD.size or crc32c(body) != crc:
        raise CorruptBlock("a segment's head is damaged")
    try:
        return _heads.decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptBlock(f"a segment's head cannot be read: {error}") from None


def _write_all(fd: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        view = view[written:]
        position += written


def _has_room(room: int, data: list[bytes], blocks: list[EncodedBlock]) -> bool:
    return sum(map(len, data)) + sum(len(block.data) for block in blocks) <= room
