"""Where the partitions of a log, or of one of its consumer groups, begin and end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quaymaster.core.values.commands.logs import LogBounds, LogBoundsOutcome
from quaymaster.core.values.partition_tables import end_of_drained
from quaymaster.core.values.queues.queue_definitions import PartitionPlacement, QueueDefinition
from quaymaster.net.routing.broker_client import BrokerClient, ask


class LogEnds:
    """Asks the journals; of drained partitions the table knows."""

    def __init__(self, broker: BrokerClient) -> None:
        self._broker = broker

    async def of(
        self, queue: QueueDefinition, entries: Sequence[PartitionPlacement]
    ) -> list[LogBoundsOutcome]:
        """Return the bounds of partitions, in their order. Raises what `ask` does."""
        return await asyncio.gather(*(self._of_entry(queue, entry) for entry in entries))

    async def of_one(self, queue: QueueDefinition, number: int) -> LogBoundsOutcome:
        """Return the bounds of a partition that is not drained. Raises what `ask` does."""
        outcome = await ask(self._broker, LogBounds(queue.queue_id, number))
        assert isinstance(outcome, LogBoundsOutcome), "a LogBounds is answered by a LogBoundsOutcome"
        return outcome

    async def _of_entry(self, queue: QueueDefinition, entry: PartitionPlacement) -> LogBoundsOutcome:
        if entry.state == "drained":
            end = end_of_drained(entry)
            return LogBoundsOutcome(end, end)
        return await self.of_one(queue, entry.number)
