"""Blocks of usage records on this front end's disk, until they are shipped.

    records ──spool_blocks──▶ blocks ──spool_files──▶ spool files ──▶ usage_shipper
                                 │
                                 └── no room: dropped and counted, or, if they are owed, kept in memory

A block counts once it is fsynced; only then is it shipped. What a crash loses is what was recorded since the last
fsync. At the next start the incarnation that ended is *sealed* with the sequence number its next record would have had,
so that the pipeline knows that nothing is to come; damage found then is written down as dropped. So the blocks of
each incarnation lie end to end, whatever happens, and end with a seal.

When there is no room (`bytes_max`, a full disk), records are counted by account and action, and the counts are
written in front of the next block that finds room. Records that are owed, of changes, are kept in memory until there is
room; they have a little room of their own, above `bytes_max` and on the disk.

All of it belongs to one thread, which is not the event loop's: nothing here has a lock.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from quaymaster.frontend.usage.audit_gate import Trouble
from quaymaster.frontend.usage.front_end_name import FRONT_END_FILE, take_name
from quaymaster.frontend.usage.spool_blocks import (
    OWED_BYTES,
    BlockChain,
    ScannedSpoolFile,
    fit_rows,
    repair_spool_file,
    scan_spool_file,
)
from quaymaster.frontend.usage.spool_files import (
    SHIPPED_FILE,
    SPOOL_FILE_BYTES,
    DamagedBlock,
    LittleRoom,
    SpooledBlock,
    SpoolFile,
    SpoolFiles,
)
from quaymaster.frontend.usage.spool_head import SpoolFileHead, SpoolUnusable
from quaymaster.frontend.usage.taken_rows import CELLS, TakenRows
from quaymaster.monitoring.logs import log_event
from quaymaster.protocol.usage.dropped_records import DropReason
from quaymaster.protocol.usage.usage_blocks import (
    ROWS_PER_BLOCK_MAX,
    BlockEnd,
    BlockOrigin,
    EncodedBlock,
    Seal,
    UnknownBlockVersion,
    decode_header,
    encode_block,
)
from quaymaster.protocol.usage.usage_rows import NO_ROWS

_FREE_BYTES_MIN: Final = 1 << 20
"""Below it the disk counts as full for us: journals come first."""
_EVENT_BYTES: Final = 64 << 10
"""Room that one audit event needs at most, with what a block and a file have around it."""

log = logging.getLogger(__name__)


class SpoolAppend(msgspec.Struct):
    """What came of an append: records that are durable, and those that were dropped."""

    rows: int
    dropped: int
    reason: DropReason | None
    owed: int = 0
    """Records that are kept, to be written later."""
    trouble: Trouble | None = None
    """Why the next event could not be written."""


class UsageSpool:
    """The spool of one data directory. `open`, `begin` an incarnation, then append, ship, and `close` with a seal.

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
        file_bytes: int = SPOOL_FILE_BYTES,
    ) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._files = SpoolFiles(directory, file_bytes)
        self._chain = BlockChain(BlockOrigin(node, 0, ""), BlockEnd())
        self._owed: TakenRows | None = None
        """Records of changes that could not be written yet."""
        self._is_failing = False
        """Whether the disk did not take the last write that was tried."""
        self._is_told = False
        """Whether the log says that records are not written."""
        self._watermark_us = 0
        """The newest that was said in this incarnation: a wall clock that is behind it takes nothing back."""
        self._lost: tuple[int, int] | None = None
        """An incarnation that is still to be sealed as lost, and when that was found (us)."""
        self._is_named = is_named
        self.front_end = node
        self.noted_acts: set[str] = set()
        """Ids of acts (`coordination/noted_acts`) in the spool files, until `forget_act`."""
        self.incarnation = 0
        """That of the last file, until `begin`."""

    @property
    def size_bytes(self) -> int:
        """How much is in the spool."""
        return self._files.size_bytes

    # Starting

    def open(self) -> None:
        """Read what is there, mend it, and seal the incarnation that was not.

        Raises:
            SpoolUnusable: a newer program wrote it, or nothing in it tells the front end's name any more.
            OSError: it cannot be read or written.
        """
        heads = self._files.find_heads()
        recorded = heads[-1][1].front_end if heads else None
        self.front_end = take_name(self._directory, self.front_end, recorded, is_named=self._is_named)
        for at, (number, head) in enumerate(heads):
            following = heads[at + 1][1] if at + 1 < len(heads) else None
            is_same = following is not None and following.incarnation == head.incarnation
            self._mend(number, head, following if is_same else None)
        self._files.take_up_shipping()
        for name in (FRONT_END_FILE, SHIPPED_FILE):  # made readable for others, once
            with suppress(OSError):
                (self._directory / name).chmod(0o600)

    def _mend(self, number: int, head: SpoolFileHead, following: SpoolFileHead | None) -> None:
        """Cut what is torn, and say in the file what is missing: up to the next file, or the incarnation's end."""
        scanned = self._scan(number, head, following)
        next_sequence = scanned.end.next_sequence
        extra: EncodedBlock | None = None
        if following is not None and next_sequence < following.next_sequence:
            log_event(
                log,
                logging.ERROR,
                "usage records damaged",
                spool_file=number,
                from_sequence=next_sequence,
                to_sequence=following.next_sequence,
            )
            extra = repair_spool_file(head, scanned, following)
        elif following is None and not scanned.is_sealed:
            log_event(
                log,
                logging.INFO,
                "usage incarnation sealed",
                front_end=head.front_end,
                incarnation=head.incarnation,
                end_sequence=next_sequence,
            )
            extra = repair_spool_file(head, scanned, following)
        spool_file = SpoolFile(number, head.incarnation, scanned.length)
        self._files.mend(spool_file, b"" if extra is None else extra.data)
        self._chain = BlockChain(head.origin, scanned.end if extra is None else extra.end)
        self.incarnation = max(self.incarnation, head.incarnation)

    def _scan(self, number: int, head: SpoolFileHead, following: SpoolFileHead | None) -> ScannedSpoolFile:
        path = self._files.path(number)
        try:
            scanned = scan_spool_file(path.read_bytes(), head, following)
        except UnknownBlockVersion as error:
            raise SpoolUnusable(f"{path}: {error}") from None
        self.noted_acts.update(scanned.acts)
        return scanned

    def begin(
        self, incarnation: int, region: str, *, now_us: int, lost_incarnation: int | None = None
    ) -> None:
        """Start an incarnation with a spool file of its own.

        `lost_incarnation` is one that coordination knows, and of which nothing is here: it is sealed as lost.
        """
        assert incarnation > self.incarnation, (
            f"{incarnation} comes after {self.incarnation}, which is in the spool"
        )
        origin = BlockOrigin(self.front_end, incarnation, region)
        self._chain = BlockChain(origin, self._chain.end._replace(next_sequence=0))
        self.incarnation = incarnation
        self._watermark_us = 0
        self._lost = None if lost_incarnation is None else (lost_incarnation, now_us)
        try:
            self._files.begin(origin, self._chain.end)
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
        self._watermark_us = max(self._watermark_us, taken.watermark_us)
        if self._owed is not None:
            taken, self._owed = taken.after(self._owed), None
        fitted = fit_rows(self._chain, taken, self._bytes_max - self.size_bytes, is_heartbeat=is_heartbeat)
        try:
            if fitted.blocks:
                self._write(fitted.blocks)
                self._is_told = False
        except OSError as error:
            return self._append_owed_alone(taken, error)
        self._chain = fitted.chain
        self.noted_acts.update(fitted.acts)
        self._keep(fitted.kept)
        left = self._owed_count
        rows = taken.count + taken.overflow - fitted.dropped - left
        return SpoolAppend(rows, fitted.dropped, fitted.reason, left, self._trouble())

    def _append_owed_alone(self, taken: TakenRows, error: OSError) -> SpoolAppend:
        """Count what the disk did not take; records that are owed may use what is left to the journals otherwise."""
        if not self._is_told:
            log_event(log, logging.WARNING, "usage records not written", reason=str(error))
            self._is_told = True
        self._is_failing = not isinstance(error, LittleRoom) or error.free_bytes < _EVENT_BYTES
        owed, rest = taken.split(0, taken.count)
        if rest.count:
            self._chain = self._chain.without(rest.count, rest.counts(0, rest.count), "disk_failed")
        if taken.overflow:
            self._chain = self._chain.without(taken.overflow, taken.overflow_counts, "too_many")
        self._keep([owed])
        with suppress(OSError):
            self._write_owed()
        left = self._owed_count
        return SpoolAppend(
            owed.count - left, rest.count + taken.overflow, "disk_failed", left, self._trouble()
        )

    def _keep(self, parts: Sequence[TakenRows]) -> None:
        """Keep records that are owed until the next append."""
        for part in parts:
            if part.count:
                self._owed = part if self._owed is None else part.after(self._owed)

    def _write_owed(self) -> None:
        """Write the records that are owed, in as little room as there is; an OSError leaves them to be tried again."""
        owed = self._owed
        if owed is None:
            return
        chain = self._chain
        data: list[bytes] = []
        for start in range(0, owed.count, ROWS_PER_BLOCK_MAX):
            blocks = chain.encode(owed, start, min(start + ROWS_PER_BLOCK_MAX, owed.count))
            data += [block.data for block in blocks]
            chain = chain.after(blocks[-1])
        try:
            self._write(data, free_bytes_min=_EVENT_BYTES)
        except OSError:
            self._is_failing = True
            raise
        self._chain = chain
        self._owed = None

    def _write_lost(self) -> None:
        if self._lost is None:
            return
        (incarnation, now_us), chain = self._lost, self._chain
        block = encode_block(
            chain.origin._replace(incarnation=incarnation),
            chain.end._replace(next_sequence=0),
            NO_ROWS,
            low_watermark_us=now_us,
            seal=Seal(incarnation, None, "lost"),
        )
        self._write([block.data])
        self._chain = chain._replace(end=chain.end._replace(digest=block.end.digest))
        self._lost = None

    def _write(self, blocks: Sequence[bytes], *, free_bytes_min: int | None = None) -> None:
        """Make blocks durable that go on from the chain as it is."""
        if free_bytes_min is None:
            free_bytes_min = _FREE_BYTES_MIN
        data = b"".join(blocks)
        self._files.append(data, self._chain.origin, self._chain.end, free_bytes_min=free_bytes_min)
        self._is_failing = False

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
        """Seal the incarnation and let go of the files. An OSError leaves the sealing to the next start.

        Records that are owed are written before, however full the spool is; else they stay in memory.
        """
        try:
            self._write_lost()
            self._write_owed()
            if self._files.is_open:
                chain = self._chain
                watermark_us = max(now_us, self._watermark_us)
                block = chain.encode_empty(
                    watermark_us, Seal(self.incarnation, chain.end_sequence, "stopped")
                )
                self._write([block.data])
                self._chain = chain.after(block)
        finally:
            self._files.close()

    # Shipping

    def next_block(self) -> SpooledBlock | None:
        """Return the first block that is not shipped, None when all are.

        In place of one that cannot be read any more there is one that says so.
        """
        try:
            return self._files.next_block()
        except DamagedBlock as error:
            log_event(
                log,
                logging.ERROR,
                "spooled usage block damaged",
                spool_file=self._files.files[error.at].number,
                offset=error.offset,
                reason=str(error),
            )
            return self._stand_in(error.at)

    def mark_shipped(self, block: SpooledBlock) -> None:
        """Note that a block is stored elsewhere; files before it, and its own if it was the last, are deleted."""
        self._files.mark_shipped(block)

    def _stand_in(self, at: int) -> SpooledBlock | None:
        """Return what a start would write in place of a file's damaged rest; None until there is a next file."""
        files = self._files.files
        damaged = files[at]
        if at + 1 == len(files):
            self._files.close()  # the next block is written into another
            return None
        head = self._files.read_head(damaged.number)
        following = self._files.read_head(files[at + 1].number)
        if head is None or following is None:
            return None
        same_incarnation = following if following.incarnation == head.incarnation else None
        block = repair_spool_file(head, self._scan(damaged.number, head, same_incarnation), same_incarnation)
        return SpooledBlock(block.data, decode_header(block.data), damaged.number, damaged.shipped_end)
