"""No id is given below any that a journal has seen, whatever the store says that gives them.

    store away, restored, or this process new ──▶ distrusted ──all journals asked──▶ trusted, until it is away again

While it is trusted nothing is asked. A store that is behind the journals has gone back: it was restored from an older
copy, and cannot be told what it lost. Then changes are refused until an operator decides to go on with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final

from quaymaster.coordination.interface import Compare, Put, RevisionMismatch
from quaymaster.coordination.number_rows import encode_number, number_of
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.formats import Versions
from quaymaster.core.values.queues.queue_marks import TOLD_MAX, QueueMarks
from quaymaster.metadata.store.ids import IdAllocator
from quaymaster.metadata.store.mirror import RowStore
from quaymaster.metadata.store.rows import ACCEPTED, DATA_KEY_FLOOR

MARKS_ASKED: Final[Versions] = {1: 0, 4: 1}
"""Since which cell format journals say what they have seen: 0 stands for not at all."""

LOST_MAX: Final = 1_000
"""So many queues with lost attributes are counted."""

log = logging.getLogger(__name__)


class StoreWentBack(NotNow):
    """The metadata is older than the journals. The message says what was found, and which command decides."""


class LostAttributes:
    """The queues of which a journal had later attributes than the store, since this process started."""

    def __init__(self) -> None:
        self._queues: dict[str, None] = {}

    def note(self, queue: str) -> None:
        """The store had lost attributes of a queue when they were set again."""
        if len(self._queues) < LOST_MAX:
            self._queues[queue] = None

    def notices(self) -> list[str]:
        """Return what an operator should look at: notices of `Health`."""
        if not self._queues:
            return []
        some = ", ".join(islice(self._queues, TOLD_MAX))
        return [
            f"The metadata store had lost attributes of {len(self._queues)} queues that their journals had ({some}): "
            "it is an older copy. Look at the attributes of all queues that were changed since it was made."
        ]


class IdGuard:
    """Gives the ids of queues. Queues' and data keys' counters are raised together."""

    def __init__(
        self,
        store: RowStore,
        queue_ids: IdAllocator,
        ask_marks: Callable[[], Awaitable[Sequence[QueueMarks]]],
    ) -> None:
        self._store = store
        self._queue_ids = queue_ids
        self._data_key_ids = IdAllocator(store, "data_key")
        self._ask_marks = ask_marks
        self._lock = asyncio.Lock()
        self._is_trusted = False
        self.data_key_floor = 0
        """Data keys up to this one were given before the store went back: front ends may hold some of them yet."""
        self.problem: str | None = None
        """Why no queue is created before an operator has decided; None when nothing of that kind was found."""

    def distrust(self) -> None:
        """The store may be as it was before: ask the journals before the next id is given, and give none set aside."""
        self._is_trusted = False
        self._queue_ids.drop_block()

    async def next_id(self) -> tuple[int, Compare]:
        """Return an id for a new queue, and the condition that the store still knows that it was given.

        Raises as `check`.
        """
        await self.check()
        queue_id = await self._queue_ids.next_id()
        return queue_id, self._queue_ids.block_compare()

    def note_mismatch(self, mismatch: RevisionMismatch) -> None:
        """Distrust the store if what did not hold is that it knows of an id."""
        if mismatch.key == self._queue_ids.block_key:
            log.warning(
                "ids set aside are unknown to the store key=%s revision=%d", mismatch.key, mismatch.found
            )
            self.distrust()

    async def check(self) -> None:
        """Return when ids may be given; StoreWentBack when an operator must decide first, NotNow as journals answer."""
        while not self._is_trusted:
            async with self._lock:
                if not self._is_trusted:
                    # First: any distrust from here on is heard.
                    self._is_trusted = True
                    try:
                        await self._compare()
                    except BaseException:
                        self._is_trusted = False
                        raise

    async def _compare(self) -> None:
        marks = QueueMarks()
        for each in await self._ask_marks():
            marks.raise_to(each.queue_id, each.data_key_id)
        queue_id, data_key_id = await self._queue_ids.last(), await self._data_key_ids.last()
        if marks.queue_id > queue_id or marks.data_key_id > data_key_id:
            if not await self._is_accepted():
                self.problem = (
                    f"The metadata store went back: it has given queue ids up to {queue_id} and data keys up to "
                    f"{data_key_id}, and the journals have seen {marks.queue_id} and {marks.data_key_id}. Restore a "
                    "newer copy of it. To continue with this one, decide so with `quaymaster force-store`."
                )
                log.error("store refused reason=%s", self.problem)
                raise StoreWentBack(self.problem)
            await self.raise_to(marks)
            await self._store.transaction([], [], [ACCEPTED])
            log.warning("store accepted queue_id=%d data_key_id=%d", marks.queue_id, marks.data_key_id)
        self.data_key_floor = number_of(await self._store.get(DATA_KEY_FLOOR))
        self.problem = None

    async def raise_to(self, marks: QueueMarks) -> None:
        """Give no ids that a journal has seen: it was decided to go on with a store that is behind it."""
        await self._queue_ids.raise_to(marks.queue_id)
        await self._data_key_ids.raise_to(marks.data_key_id)
        await self._store.transaction([], [Put(DATA_KEY_FLOOR, encode_number(marks.data_key_id))])

    async def _is_accepted(self) -> bool:
        return await self._store.get(ACCEPTED) is not None
