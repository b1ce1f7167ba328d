"""Which blocks are made of the records that are taken; what the blocks of a spool file say. Nothing is written here.

An incarnation's blocks lie end to end. So each says what was dropped before it, and a file whose end is missing
is repaired by a block that says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from quaymaster.coordination.noted_acts import ACT_ID
from quaymaster.frontend.usage.spool_head import SpoolFileHead, file_head_length
from quaymaster.frontend.usage.taken_rows import TakenRows
from quaymaster.protocol.usage.dropped_records import Dropped, DroppedCount, DropReason, merge_dropped
from quaymaster.protocol.usage.usage_blocks import (
    BLOCK_BYTES_MAX,
    ROWS_PER_BLOCK_MAX,
    BlockEnd,
    BlockOrigin,
    EncodedBlock,
    Seal,
    block_length,
    decode_block,
    encode_block,
)
from quaymaster.protocol.usage.usage_rows import NO_ROWS, CorruptBlock

OWED_BYTES: Final = 4 << 20
"""Records that are owed may take so much room above that of the others."""


class BlockChain(NamedTuple):
    """Where an incarnation goes on: after a block, and after what was dropped since."""

    origin: BlockOrigin
    end: BlockEnd
    dropped: Dropped | None = None

    @property
    def end_sequence(self) -> int:
        """The number of the next record."""
        return self.end.next_sequence if self.dropped is None else self.dropped.to_sequence

    def after(self, block: EncodedBlock) -> BlockChain:
        """Return the chain with a block that went on from it."""
        return BlockChain(self.origin, block.end)

    def without(self, records: int, counts: list[DroppedCount], reason: DropReason) -> BlockChain:
        """Return the chain with so many more records dropped."""
        start = self.end_sequence
        dropped = Dropped(start, start + records, reason, counts)
        return self._replace(
            dropped=dropped if self.dropped is None else merge_dropped(self.dropped, dropped)
        )

    def encode(self, taken: TakenRows, start: int, end: int) -> list[EncodedBlock]:
        """Return blocks of some rows, as few as are not too long."""
        block = encode_block(
            self.origin,
            self.end,
            taken.columns(start, end),
            low_watermark_us=taken.watermark_us if end == taken.count else 0,
            dropped=self.dropped,
        )
        if len(block.data) <= BLOCK_BYTES_MAX or end - start == 1:
            return [block]
        middle = (start + end) // 2
        first = self.encode(taken, start, middle)
        return first + self.after(first[-1]).encode(taken, middle, end)

    def encode_empty(self, watermark_us: int, seal: Seal | None = None) -> EncodedBlock:
        """Return a block without rows."""
        return encode_block(
            self.origin, self.end, NO_ROWS, low_watermark_us=watermark_us, dropped=self.dropped, seal=seal
        )


class FittedRows(msgspec.Struct):
    """What becomes of rows that were taken, given the room there is."""

    chain: BlockChain
    """As it is once `blocks` are written."""
    blocks: list[bytes] = []
    acts: list[str] = []
    """Ids of the noted acts in them."""
    kept: list[TakenRows] = []
    """Records that are owed, and for which there is no room."""
    dropped: int = 0
    reason: DropReason | None = None

    def drop(self, records: int, counts: list[DroppedCount], reason: DropReason) -> None:
        if records:
            self.chain = self.chain.without(records, counts, reason)
            self.dropped += records
            self.reason = self.reason or reason

    def add(self, blocks: list[EncodedBlock]) -> None:
        self.blocks += [block.data for block in blocks]
        self.chain = self.chain.after(blocks[-1])

    def has_room(self, room_bytes: int, blocks: list[EncodedBlock]) -> bool:
        return sum(map(len, self.blocks)) + sum(len(block.data) for block in blocks) <= room_bytes


def fit_rows(chain: BlockChain, taken: TakenRows, room_bytes: int, *, is_heartbeat: bool) -> FittedRows:
    """Decide which rows become blocks, which are dropped, and which are kept because they are owed.

    With `is_heartbeat` there is a block even without rows.
    """
    fitted = FittedRows(chain)
    for start in range(0, taken.count, ROWS_PER_BLOCK_MAX):
        end = min(start + ROWS_PER_BLOCK_MAX, taken.count)
        blocks = fitted.chain.encode(taken, start, end)
        if fitted.has_room(room_bytes, blocks):
            fitted.add(blocks)
            fitted.acts += _acts_in(taken.request_ids(start, end))
            continue
        owed, rest = taken.split(start, end)
        fitted.drop(rest.count, rest.counts(0, rest.count), "spool_full")
        if not owed.count:
            continue
        blocks = fitted.chain.encode(owed, 0, owed.count)
        if fitted.has_room(room_bytes + OWED_BYTES, blocks):
            fitted.add(blocks)
        else:
            fitted.kept.append(owed)
            # What comes later is not all there is before this time.
            taken = msgspec.structs.replace(taken, watermark_us=0)
    fitted.drop(taken.overflow, taken.overflow_counts, "too_many")
    if is_heartbeat and not fitted.blocks:
        fitted.add([fitted.chain.encode_empty(taken.watermark_us)])
    return fitted


class ScannedSpoolFile(NamedTuple):
    """What the whole blocks of a spool file say."""

    length: int
    """Where they end in the file."""
    end: BlockEnd
    watermark_us: int
    is_sealed: bool
    acts: list[str]
    """Ids of the noted acts in them."""


def scan_spool_file(data: bytes, head: SpoolFileHead, following: SpoolFileHead | None) -> ScannedSpoolFile:
    """Read the whole blocks of a file; `following`: the head of the next one, if it is of the same incarnation.

    Blocks behind the one from which the next file goes on do not count: their fsync failed. Raises
    UnknownBlockVersion.
    """
    at = file_head_length(data)
    end, watermark_us, is_sealed = head.after, 0, False
    acts: list[str] = []
    while at < len(data):
        if following is not None and end.digest == following.previous:
            break
        try:
            block = decode_block(memoryview(data)[at:])
        except CorruptBlock:
            break
        header = block.header
        if header.incarnation == head.incarnation:
            if header.seq_lo != end.next_sequence:
                break
            acts += _acts_in(block.rows.request_id)
            hashes = [change.record_hash for change in block.rows.changes]
            end = BlockEnd(header.seq_hi, block.digest, hashes[-1] if hashes else end.audit_hash)
            watermark_us, is_sealed = header.low_watermark_us, header.seal is not None
        else:  # the seal of an incarnation whose spool was lost
            end = end._replace(digest=block.digest)
        at += block_length(memoryview(data)[at:])
    return ScannedSpoolFile(at, end, watermark_us, is_sealed, acts)


def repair_spool_file(
    head: SpoolFileHead, scanned: ScannedSpoolFile, following: SpoolFileHead | None
) -> EncodedBlock:
    """Return a block that says what is missing behind the whole ones: to the next file, or the incarnation's end."""
    next_sequence = scanned.end.next_sequence
    dropped, seal = None, None
    if following is None:
        seal = Seal(head.incarnation, next_sequence, "crashed")
    else:
        dropped = Dropped(next_sequence, following.next_sequence, "damaged", [])
    return encode_block(
        head.origin,
        scanned.end,
        NO_ROWS,
        low_watermark_us=scanned.watermark_us,
        dropped=dropped,
        seal=seal,
    )


def _acts_in(request_ids: Sequence[str]) -> list[str]:
    return [request_id for request_id in request_ids if request_id.startswith(ACT_ID)]
