"""What is in many queues, and went through them: asked of all leaders at once, and of single queues where that fails.

    queues of a page ─▶ queue_metrics, one call for each leader ─▶ rows of their partitions ─▶ counts
                                              └─ a row is missing, or of a partition that is not listed ─▶ CountMessages

One by one, a thousand queues would be a thousand commands, each in a turn of its journal.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from quaymaster.core.values.commands.messages import CountMessages, QueueCounts
from quaymaster.core.values.errors import CallerError, NotNow, QueueDoesNotExist
from quaymaster.core.values.partition_tables import final_counts, read_partitions
from quaymaster.core.values.queue_counts import sum_counts
from quaymaster.core.values.queue_metrics import WATCHED_QUEUES_MAX, QueueMetricsRequest, QueueMetricsRow
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.net.routing.broker_client import BrokerClient, ask
from quaymaster.net.routing.queue_metrics_client import QueueMetricsClient

RowsByNumber = dict[int, QueueMetricsRow]


class QueueFigures:
    """Without `client` each queue is asked for by itself."""

    def __init__(self, broker: BrokerClient, client: QueueMetricsClient | None) -> None:
        self._broker = broker
        self._client = client

    async def counts(self, definitions: Sequence[QueueDefinition]) -> list[QueueCounts | None]:
        """Return the counts of each queue; None where it is gone. Raises NotNow where a leader does not answer."""
        rows = await self._rows([definition.queue_id for definition in definitions])
        return [
            counts_of(definition, rows.get(definition.queue_id, {})) or await self._count(definition)
            for definition in definitions
        ]

    async def _count(self, definition: QueueDefinition) -> QueueCounts | None:
        try:
            counts = await ask(self._broker, CountMessages(definition.queue_id))
        except QueueDoesNotExist:
            return None  # deleted since it was listed
        assert isinstance(counts, QueueCounts), "a CountMessages is answered by QueueCounts"
        return counts

    async def _rows(self, queue_ids: list[int]) -> dict[int, RowsByNumber]:
        """Return what leaders tell of queues, by id and partition: of two that tell of one, the newer leader's row."""
        client = self._client
        found: dict[int, RowsByNumber] = defaultdict(dict)
        if client is None:
            return found
        for first in range(0, len(queue_ids), WATCHED_QUEUES_MAX):
            request = QueueMetricsRequest(queue_ids=tuple(queue_ids[first : first + WATCHED_QUEUES_MAX]))
            pages = await asyncio.gather(
                *(client.ask(leader, request) for leader in client.leaders()), return_exceptions=True
            )
            for page in pages:
                if isinstance(page, NotNow | CallerError):
                    continue  # away, or of an older program: queues are asked for one by one, which waits for leaders
                if isinstance(page, BaseException):
                    raise page
                for row in page.rows:
                    known = found[row.queue_id].get(row.partition)
                    if known is None or known.epoch < row.epoch:
                        found[row.queue_id][row.partition] = row
        return found


def counts_of(definition: QueueDefinition, rows: RowsByNumber) -> QueueCounts | None:
    """Return the counts of a queue from the rows of its partitions; None where they are not exactly those."""
    numbers = {entry.number for entry in read_partitions(definition)}
    listed = {entry.number for entry in definition.partitions}
    if not numbers <= rows.keys() or not rows.keys() <= listed:
        return None
    sends, deletions = final_counts(definition)
    return sum_counts(
        [
            QueueCounts(
                row.visible,
                row.in_flight,
                row.delayed,
                row.oldest_sent_ms,
                row.noisy_groups,
                row.sent,
                row.deleted,
                row.counted_from,
            )
            for number, row in rows.items()
            if number in numbers
        ],
        sends=sends,
        deletions=deletions,
    )
