"""Queues with partitions in other journals: read from what metadata keeps of them, remembered by a journal's leader.

What was found stays in use until it proves wrong. A partition that is sealed tells the table that sealed it. When a
journal says that a partition is gone, the queue is looked for again: only if metadata does not have it there is it
believed. Then there is none for a while; a later question finds the queue that has its name now, or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from quaymaster.core.partition.partition_moves import UNKNOWN, QueuesElsewhere
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.partition_tables import entry_of
from quaymaster.core.values.queues.partition_keys import parts_of_key
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import QueueArn, parse_queue_arn

ABSENT_S: Final = 5.0
"""So long a queue that was not found, or has gone, is not looked for again."""

DOUBTED_S: Final = 30.0
"""So long a journal is not believed that a queue is gone which metadata has: one of them has not heard yet."""

PLACES_MAX: Final = 10_000

FindQueue = Callable[[str, str], Awaitable[QueueDefinition | None]]
"""Returns the queue of an account by its name, as metadata has it now, or None; raises NotNow when it cannot say."""


class QueuePlaces:
    """The queues of other journals for one journal's leader; its decisions look at `elsewhere`."""

    def __init__(self, region: str, find_queue: FindQueue, cell_format: CellFormat) -> None:
        self.elsewhere = QueuesElsewhere(cell_format)
        self._region = region
        self._find_queue = find_queue
        self._doubted: dict[int, float] = {}
        """Since when it is doubted that a partition is gone, by its key."""

    async def locate(self, arn: str) -> QueueDefinition | None:
        """Return a queue, None when there is none that messages may go to; raises NotNow when that cannot be told."""
        place = self.elsewhere.find(arn)
        return await self._look(arn) if place is UNKNOWN else place

    def note(self, queue: QueueDefinition) -> None:
        """A journal has told a newer table of a queue."""
        arn = str(QueueArn(self._region, queue.account_id, queue.name))
        known = self.elsewhere.find(arn)
        if known is None or known.queue_id != queue.queue_id or known.table_version < queue.table_version:
            self._remember(arn, queue)

    async def is_gone(self, target_key: int, journal_id: int, arns: list[str]) -> bool:
        """Return whether to believe a journal that a partition is gone; `arns`: names its queue may have.

        Raises NotNow while metadata cannot say, or has the partition there.
        """
        queue_id, number = parts_of_key(target_key)
        known = [arn for arn, place in self.elsewhere.places.items() if place and place.queue_id == queue_id]
        for arn in dict.fromkeys([*known, *arns]):
            queue = await self._look(arn)
            entry = entry_of(queue, number) if queue is not None and queue.queue_id == queue_id else None
            if entry is not None and entry.journal_id == journal_id:
                now_s = asyncio.get_running_loop().time()
                if now_s - self._doubted.setdefault(target_key, now_s) < DOUBTED_S:
                    raise NotNow("The journal does not know the partition yet.")
                self._remember(arn, None)
        self._doubted.pop(target_key, None)
        return True

    async def table_without(self, target_key: int, journal_id: int, arn: str) -> QueueDefinition | None:
        """Return the table of a queue that does not list a partition any more, None if there is no such queue now.

        Raises NotNow while metadata cannot say, or has the partition in the journal that does not know it.
        """
        queue_id, number = parts_of_key(target_key)
        queue = await self._find(arn)
        if queue is None or queue.queue_id != queue_id or queue.state != "active":
            return None
        entry = entry_of(queue, number)
        if entry is not None and entry.journal_id == journal_id:
            raise NotNow("The journal does not know the partition yet.")
        return queue

    async def table_of_lost(
        self, target_key: int, arns: list[str], *, are_certain: bool
    ) -> QueueDefinition | None:
        """Return the table of a queue that lists a partition as given up, or no more; None if there is no such queue.

        `arns`: names of its queue, or names that it may have. Those tell nothing of a queue that none of them leads to.
        Raises NotNow while metadata cannot say, or the partition's journal is still waited for.
        """
        queue_id, number = parts_of_key(target_key)
        known = [arn for arn, place in self.elsewhere.places.items() if place and place.queue_id == queue_id]
        for arn in dict.fromkeys([*known, *arns]):
            queue = await self._find(arn)
            if queue is not None and queue.queue_id == queue_id:
                entry = entry_of(queue, number)
                if queue.state == "active" and (entry is None or entry.is_given_up):
                    return queue
                break
        else:
            if are_certain:
                return None
        raise NotNow("The partition's journal does not answer, and the partition was not given up.")

    async def _find(self, arn: str) -> QueueDefinition | None:
        parsed = parse_queue_arn(arn)
        return await self._find_queue(parsed.account_id, parsed.name) if parsed is not None else None

    async def _look(self, arn: str) -> QueueDefinition | None:
        queue = await self._find(arn)
        if queue is not None and (queue.state != "active" or queue.keeps_all):
            queue = None
        self._remember(arn, queue)
        return queue

    def _remember(self, arn: str, queue: QueueDefinition | None) -> None:
        places = self.elsewhere.places
        if len(places) >= PLACES_MAX:
            places.clear()
        places[arn] = queue
        if queue is None:
            asyncio.get_running_loop().call_later(ABSENT_S, self._look_again, arn)

    def _look_again(self, arn: str) -> None:
        if self.elsewhere.places.get(arn, UNKNOWN) is None:
            del self.elsewhere.places[arn]
