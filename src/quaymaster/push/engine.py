"""Pushes the queues that are this process's: those of the rows `pushed/` that it owns.

rows, owners ──change──▶ look: which are to be pushed? ──▶ QueuePusher of each, begun and ended
a state changes ──▶ noted ──▶ rows `push_states/`, for whoever asks how a queue's calls go
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.push_rows import PUSHED, PushedRow, decode_pushed, queue_id_of
from quaymaster.coordination.watched_prefix import WatchedPrefix
from quaymaster.core.push.plans import plan_of
from quaymaster.core.push.states import FIRST_STATE, PUSH_STATES, PushState
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import QueueArn
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.metrics import Sample
from quaymaster.monitoring.supervision import supervise
from quaymaster.push.owners import Owners
from quaymaster.push.parts import PushParts
from quaymaster.push.queue_pusher import QueuePusher

RELIST_S: Final = 60.0
RESULTS: Final = ("delivered", "partial", "rejected", "gone", "refused", "failed", "late")
BEGUN_AT_ONCE_MAX: Final = 64
AGAIN_S: Final = 0.5
AGAIN_MAX_S: Final = 10.0
"""So soon a queue that could not be found is looked for again; doubled each time."""
STATES_AGAIN_S: Final = 1.0
TOLD_AT_ONCE_MAX: Final = 64
LOOKED_AT_ONCE_MAX: Final = 500
"""Rows; then others have their turn on the loop: a cell may push 100,000 queues."""

log = logging.getLogger(__name__)


class PushEngine:
    """All pushers of a process, from `start` to `stop`.

    `is_closed` tells whether an account is disabled or deleted: its queues are not pushed. `look` when that changed.
    """

    def __init__(
        self,
        store: Coordination,
        owners: Owners,
        parts: PushParts,
        *,
        region: str,
        is_closed: Callable[[str], bool] = lambda account_id: False,
    ) -> None:
        self._is_closed = is_closed
        self._owners = owners
        self._parts = parts
        self._region = region
        self._rows: dict[int, PushedRow] = {}
        self._pushing: dict[int, _Pushing] = {}
        self._slots = asyncio.Semaphore(BEGUN_AT_ONCE_MAX)
        self._changed = asyncio.Event()
        self._changed_ids: set[int] = set()
        """Queues to look at; those of all rows after `look`."""
        self._states: dict[int, tuple[QueueDefinition, PushState, int | None]] = {}
        """Those that are not written yet."""
        self._told = asyncio.Event()
        self._ending: dict[asyncio.Task[None], _Pushing] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._watch = WatchedPrefix(store, PUSHED, self._on_row, relist_s=RELIST_S)
        owners.on_change = self.look

    def start(self) -> None:
        """Begin to follow the rows."""
        self._watch.start()
        for name, work in (("push engine", self._look_for_ever()), ("push states", self._tell_for_ever())):
            self._tasks.append(supervise(asyncio.create_task(work, name=name)))

    async def stop(self, grace_s: float) -> None:
        """Receive nothing new, and let others do so; let calls under way end within their grace period."""
        await self._watch.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        pushing = [*self._pushing.values(), *self._ending.values()]
        self._pushing.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(*(one.stop() for one in pushing), self._owners.leave())
        await asyncio.gather(*(one.abort() for one in pushing))
        await asyncio.gather(*self._ending, return_exceptions=True)

    def look(self) -> None:
        """Look again which queues are to be pushed here."""
        self._changed_ids.update(self._rows)
        self._changed.set()

    def samples(self) -> Iterator[Sample]:
        """A source for `Metrics`."""
        for result in RESULTS:
            yield Sample("quaymaster_push_requests_total", self._parts.results[result], (result,))
        counts = Counter(one.state for one in self._pushing.values())
        for state in PUSH_STATES:
            yield Sample("quaymaster_push_queues", counts[state], (state,))

    def _on_row(self, key: str, value: bytes | None) -> None:
        queue_id = queue_id_of(key)
        if value is None:
            self._rows.pop(queue_id, None)
        else:
            self._rows[queue_id] = decode_pushed(value)
        self._changed_ids.add(queue_id)
        self._changed.set()

    # Which are pushed

    async def _look_for_ever(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._rows:
                self._owners.need()
            while self._changed_ids:
                for _ in range(min(len(self._changed_ids), LOOKED_AT_ONCE_MAX)):
                    self._look_at(self._changed_ids.pop())
                await asyncio.sleep(0)

    def _look_at(self, queue_id: int) -> None:
        """Begin or end the pusher of a queue, so that it runs if there is a row and this process owns it."""
        row = self._rows.get(queue_id)
        if row is not None and (not self._owners.owns(queue_id) or self._is_closed(row.account_id)):
            row = None
        pushing = self._pushing.get(queue_id)
        if pushing is not None and pushing.row != row:
            del self._pushing[queue_id]
            self._states.pop(queue_id, None)
            ending = supervise(asyncio.create_task(pushing.stop(), name="push ends"))
            self._ending[ending] = pushing
            ending.add_done_callback(self._ending.pop)
            pushing = None
        if row is not None and pushing is None:
            self._pushing[queue_id] = _Pushing(self, queue_id, row)

    # States

    def note_state(
        self, queue: QueueDefinition, state: PushState, reason: str, calls_per_minute: int | None
    ) -> None:
        """A queue's calls go another way now."""
        log_event(
            log,
            logging.INFO,
            "push state",
            queue=queue.name,
            queue_id=queue.queue_id,
            state=state,
            reason=reason,
            calls_per_minute=calls_per_minute,
        )
        self._states[queue.queue_id] = queue, state, calls_per_minute
        self._told.set()

    async def _tell_for_ever(self) -> None:
        while True:
            await self._told.wait()
            self._told.clear()
            while self._states:
                some = [self._states.popitem()[1] for _ in range(min(len(self._states), TOLD_AT_ONCE_MAX))]
                if not all(await asyncio.gather(*(self._tell(*each) for each in some))):
                    await asyncio.sleep(STATES_AGAIN_S)

    async def _tell(self, queue: QueueDefinition, state: PushState, calls_per_minute: int | None) -> bool:
        """Store a state, together with others; false if it is to be told again."""
        try:
            await self._parts.note_state(queue, state, calls_per_minute)
        except NotNow:
            if queue.queue_id in self._pushing:
                self._states.setdefault(queue.queue_id, (queue, state, calls_per_minute))
            return False
        return True

    # What a queue's pusher is made of

    async def make_pusher(self, queue_id: int, row: PushedRow) -> QueuePusher | None:
        """Return the pusher of a row's queue; None: that is not as the row says, now. Raises CallerError, NotNow."""
        async with self._slots:
            queue = await self._find(queue_id, row)
            if queue is None:
                return None
            plan = plan_of(queue, str(QueueArn(self._region, queue.account_id, queue.name)))
            if plan is None:
                return None
            consumed = await self._parts.consumer.consumed(queue)

        parts = replace(self._parts, room=self._parts.room.of(queue.account_id))
        return QueuePusher(consumed, plan, parts, owner=queue, on_state=partial(self.note_state, queue))

    async def _find(self, queue_id: int, row: PushedRow) -> QueueDefinition | None:
        """Return a row's queue, as new as the row."""
        queue = await self._parts.consumer.find(row.account_id, row.name)
        if queue is not None and queue.queue_id == queue_id and _is_older(queue, row):
            await self._parts.consumer.refresh(queue)
            queue = await self._parts.consumer.find(row.account_id, row.name)
        if queue is None or queue.queue_id != queue_id or _is_older(queue, row):
            return None
        return queue


def _is_older(queue: QueueDefinition, row: PushedRow) -> bool:
    return (queue.revision, queue.table_version) < (row.revision, row.table_version)


class _Pushing:
    """A row's queue, from the moment it is to be pushed here until it is not."""

    def __init__(self, engine: PushEngine, queue_id: int, row: PushedRow) -> None:
        self.row = row
        self._engine = engine
        self._queue_id = queue_id
        self._pusher: QueuePusher | None = None
        self._beginning = supervise(asyncio.create_task(self._begin(), name="push begins"))

    @property
    def state(self) -> PushState:
        """How its calls go."""
        return FIRST_STATE if self._pusher is None else self._pusher.state

    async def stop(self) -> None:
        """Receive nothing new; return when calls under way have ended."""
        await self._stop_beginning()
        if self._pusher is not None:
            await self._pusher.stop()

    async def abort(self) -> None:
        """End at once."""
        await self._stop_beginning()
        if self._pusher is not None:
            await self._pusher.abort()

    async def _stop_beginning(self) -> None:
        self._beginning.cancel()
        await asyncio.gather(self._beginning, return_exceptions=True)

    async def _begin(self) -> None:
        again_s = AGAIN_S
        while self._pusher is None:
            try:
                pusher = await self._engine.make_pusher(self._queue_id, self.row)
            except (NotNow, CallerError) as error:
                log_event(log, logging.INFO, "push not begun", queue_id=self._queue_id, reason=str(error))
                pusher = None
            if pusher is not None:
                pusher.start()
                self._pusher = pusher
                return
            await asyncio.sleep(again_s)
            again_s = min(AGAIN_MAX_S, again_s * 2)
