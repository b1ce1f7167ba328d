"""What decisions are made into: the batch that is being formed, and what each reply waits for."""

from __future__ import annotations

from enum import IntEnum

from quaymaster.core.partition.partition import Partition
from quaymaster.core.values.queues.attributes import Durability
from quaymaster.core.values.records import Record, RecordType


class Wait(IntEnum):
    """What a reply waits for: nothing, `write()` on a majority, or commit (fsync on a majority)."""

    NOTHING = 0
    RECEIVED = 1
    COMMIT = 2


WAIT_OF_DURABILITY: dict[int, Wait] = {
    Durability.MEMORY: Wait.NOTHING,
    Durability.ASYNC: Wait.RECEIVED,
    Durability.SYNC: Wait.COMMIT,
}


class Proposal:
    """The batch being formed: its records, and which partitions they give messages to."""

    __slots__ = ("awake", "base_offset", "epoch", "records", "sent_to")

    def __init__(self, base_offset: int, epoch: int) -> None:
        self.base_offset = base_offset
        self.epoch = epoch
        self.records: list[Record] = []
        self.sent_to: dict[Partition, int] = {}
        self.awake: set[Partition] = set()

    @property
    def next_offset(self) -> int:
        """The offset the next record gets."""
        return self.base_offset + len(self.records)

    def note_sent(self, partition: Partition, first: int, stop: int) -> None:
        """A partition gets messages, [first, stop), that are handed out only once they are committed."""
        partition.uncommitted_from = partition.uncommitted_from or first
        partition.sent_until = self.sent_to[partition] = stop

    def add(
        self,
        record_type: RecordType,
        partition: Partition,
        now_ms: int,
        *,
        sequence: int = 0,
        due_after_ms: int = 0,
        flags: int = 0,
        payload: bytes = b"",
    ) -> None:
        """Append a record of a partition."""
        queue_id, number = partition.definition.queue_id, partition.number
        self.records.append(
            Record(record_type, flags, queue_id, number, sequence, now_ms, due_after_ms, payload)
        )
