"""Where queues of other journals are: read from what metadata keeps of them, and remembered by the leader of a journal.

A queue never changes its journal, so what was found stays true until the queue is deleted. When its journal says that
it is gone, there is none for a while; then whoever asks finds the queue that has its name now, or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from quaymaster.core.partition.partition_moves import UNKNOWN, JournalPlace, QueuesElsewhere
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.queue_definitions import QueueDefinition
from quaymaster.core.values.queue_names import parse_queue_arn

ABSENT_S: Final = 5.0
"""So long a queue that was not found, or has gone, is not looked for again."""

PLACES_MAX: Final = 10_000

FindQueue = Callable[[str, str], Awaitable[QueueDefinition | None]]
"""Returns the queue of an account by its name, as metadata has it now, or None; raises NotNow when it cannot say."""


class QueuePlaces:
    """The places of queues for one journal's leader; its decisions look at `elsewhere`."""

    def __init__(self, journal_id: int, find_queue: FindQueue, cell_format: CellFormat) -> None:
        self.elsewhere = QueuesElsewhere(cell_format)
        self._journal_id = journal_id
        self._find_queue = find_queue

    async def locate(self, arn: str) -> JournalPlace | None:
        """Return where a queue is, None when there is none in another journal that messages may go to.

        Raises NotNow when nobody can say.
        """
        place = self.elsewhere.find(arn)
        if place is not UNKNOWN:
            return place
        parsed = parse_queue_arn(arn)
        definition = await self._find_queue(parsed.account_id, parsed.name) if parsed is not None else None
        place = None
        if definition is not None and definition.state == "active" and not definition.keeps_all:
            journal_id = definition.partitions[0].journal_id
            place = JournalPlace(definition.queue_id, journal_id) if journal_id != self._journal_id else None
        self._remember(arn, place)
        return place

    def forget(self, queue_id: int) -> None:
        """A queue is gone."""
        places = self.elsewhere.places
        for arn in [arn for arn, place in places.items() if place is not None and place.queue_id == queue_id]:
            self._remember(arn, None)

    def _remember(self, arn: str, place: JournalPlace | None) -> None:
        places = self.elsewhere.places
        if len(places) >= PLACES_MAX:
            places.clear()
        places[arn] = place
        if place is None:
            asyncio.get_running_loop().call_later(ABSENT_S, self._look_again, arn)

    def _look_again(self, arn: str) -> None:
        if self.elsewhere.places.get(arn, UNKNOWN) is None:
            del self.elsewhere.places[arn]
