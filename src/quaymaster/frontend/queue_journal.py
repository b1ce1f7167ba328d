"""The journal's side of a queue's life, for the metadata service: QUEUE_SET and QUEUE_DELETE."""

from __future__ import annotations

from quaymaster.core.values.commands.messages import Elsewhere
from quaymaster.core.values.commands.partitions import (
    AskMarks,
    AskPartition,
    DataKeysOutcome,
    ForgetQueue,
    ListDataKeys,
    MarksOutcome,
    PartitionOutcome,
    SetQueue,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_marks import QueueIdentity, QueueMarks
from quaymaster.net.routing.broker_client import BrokerClient, ask


class BrokerQueueJournal:
    """Tells the broker of queues. Each call returns when its record is committed and durable."""

    def __init__(self, broker: BrokerClient) -> None:
        self._broker = broker

    async def set_queue(self, definition: QueueDefinition, journal_id: int) -> QueueDefinition | None:
        """Make a journal know the queue at least at this revision; idempotent.

        Return None, or what it has: a later partition table, or another one of this version. It then did nothing.
        """
        outcome = await ask(self._broker, SetQueue(definition, journal_id))
        return outcome.definition if isinstance(outcome, Elsewhere) else None

    async def delete_queue(
        self, queue_id: int, identity: QueueIdentity | None = None, journal_id: int | None = None
    ) -> None:
        """Make a journal forget the queue and its messages; idempotent. `identity`: who it must be."""
        await ask(self._broker, ForgetQueue(queue_id, identity, journal_id))

    async def partition(self, queue_id: int, number: int) -> PartitionOutcome:
        """Return how far a partition is on its way to be drained."""
        outcome = await ask(self._broker, AskPartition(queue_id, number))
        assert isinstance(outcome, PartitionOutcome), "an AskPartition is answered by a PartitionOutcome"
        return outcome

    async def marks(self, journal_id: int) -> QueueMarks:
        """Return the highest ids that a journal ever saw."""
        outcome = await ask(self._broker, AskMarks(journal_id))
        assert isinstance(outcome, MarksOutcome), "an AskMarks is answered by a MarksOutcome"
        return outcome.marks

    async def data_keys(self, journal_id: int) -> set[int]:
        """Return the data keys that a journal's messages name, however many answers that takes."""
        found: set[int] = set()
        after = 0
        while True:
            outcome = await ask(self._broker, ListDataKeys(journal_id, after))
            assert isinstance(outcome, DataKeysOutcome), "it is answered with data keys"
            found.update(outcome.key_ids)
            if outcome.is_whole and not outcome.next_after:
                return found
            after = outcome.next_after
