"""Builds batches that follow one another, as the replica loop does, and checks what comes back."""

from __future__ import annotations

from collections.abc import Sequence

from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.core.values.records import Batch, Record, RecordType, encode_batch, iterate_rows


class BatchSource:
    """Encodes payloads into batches with dense offsets and one chain."""

    def __init__(self, *, end_offset: int = 0, chain: int = 0, epoch: int = 1) -> None:
        self.end_offset = end_offset
        self.chain = chain
        self.epoch = epoch
        self.payloads: dict[int, bytes] = {}

    @classmethod
    def behind(cls, journal: JournalFiles) -> BatchSource:
        """Return a source that continues a journal."""
        return cls(end_offset=journal.end_offset, chain=journal.end_chain, epoch=max(1, journal.last_epoch))

    def batch(self, payloads: Sequence[bytes], *, floor: int = 0, time_ms: int | None = None) -> Batch:
        """Encode the next batch; its time is its base offset plus a second unless given."""
        stamp = 1000 + self.end_offset if time_ms is None else time_ms
        records = [
            Record(RecordType.SEND, 0, 1, 0, self.end_offset + number, stamp, 0, payload)
            for number, payload in enumerate(payloads)
        ]
        batch = encode_batch(
            records,
            epoch=self.epoch,
            base_offset=self.end_offset,
            time_ms=stamp,
            floor=floor,
            previous_chain=self.chain,
        )
        self.payloads.update((self.end_offset + number, payload) for number, payload in enumerate(payloads))
        self.end_offset, self.chain = batch.next_offset, batch.chain
        return batch


def payloads_of(journal: JournalFiles, from_offset: int = 0) -> dict[int, bytes]:
    """Return every payload a replay gives, by offset."""
    found: dict[int, bytes] = {}
    for header, data in journal.read_batches(from_offset):
        for row in iterate_rows(data, header):
            found[row.offset] = bytes(data[row.position : row.position + row.length])
    return found
