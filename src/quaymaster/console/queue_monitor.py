"""Asks all leaders for their queues, and lets what they tell become the newest values, and minutes of the history.

each 5 s: all leaders, what changed since ─┬▶ QueueBook ──end of a minute──▶ History
each second: watched queues ───────────────┘      └──▶ newest values, rates

Nobody waits for a leader: what one did not tell becomes stale, and is then not known.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from quaymaster.console.known_queues import KnownQueues
from quaymaster.core.monitoring.minutes import (
    COUNTERS,
    GAUGES,
    MINUTE_MS,
    Counts,
    Minute,
    add_counts,
    minute_of,
    spread,
)
from quaymaster.core.monitoring.queue_book import BookedQueue, QueueBook
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.core.values.queue_metrics import (
    WATCHED_QUEUES_MAX,
    QueueMetricsRequest,
    QueueMetricsRow,
    decode_cursor,
)
from quaymaster.history.files import Closing, NoRoom, QueueName
from quaymaster.history.history import History
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.supervision import supervise
from quaymaster.net.routing.queue_metrics_client import QueueMetricsClient

ROUND_MS: Final = 5_000
WATCH_MS: Final = 1_000
WATCHED_FOR_MS: Final = 10_000
"""A queue is watched for so long after somebody asked for it."""
CLOSED_AT_ONCE_MAX: Final = 10
"""More minutes that nobody looked at are gaps: they have no values of their own."""
NAMED_AGAIN_MS: Final = 3_600_000
_SENT, _RECEIVED, _DELETED = (COUNTERS.index(name) for name in ("sent", "received", "deleted"))

log = logging.getLogger(__name__)


class Rates(NamedTuple):
    """Means of the last seconds."""

    sent_per_s: float
    received_per_s: float
    deleted_per_s: float


NO_RATES: Final = Rates(0.0, 0.0, 0.0)


class QueueMonitor:
    """`start` it, let it `ask`, then `close` it. `now_ms` is the wall clock."""

    def __init__(
        self,
        client: QueueMetricsClient,
        queues: KnownQueues,
        history: History,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self.queues = queues
        self.history = history
        self.now_ms = now_ms
        self._client = client
        self.book = QueueBook(queues.created_ms)
        self._cursors: dict[str, bytes] = {}
        self._open_s = 0
        """The minute that is not closed yet."""
        self._watched: dict[int, int] = {}
        """Until when queues are watched."""
        self._rates: dict[int, Rates] = {}
        self._told_ms: dict[int, int] = {}
        """When watched queues were asked for last."""
        self._before_ms = 0
        """When the last round began."""
        self.round = 0
        """Grows with each answer."""
        self._held: dict[int, Counts] = {}
        """Counts of minutes that could not be written."""
        self._held_since_ms = 0
        self._named: set[int] = set()
        self._named_ms = 0
        self.written_s = 0
        """The end of the last minute that was written."""
        self._why_not_written: str | None = None
        self.closed: list[Minute] = []
        """The minutes that were closed last; for those that `on_minute` calls."""
        self._on_minute: list[Callable[[int], None]] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Go on where the history ended. Raises OSError, sqlite3.Error when there can be none."""
        restored = await self.history.open()
        self.book.restore(restored.rows, restored.seen_ms)
        self._open_s = self.now_ms() // MINUTE_MS * 60
        self.written_s = self._open_s

    def ask(self) -> None:
        """Ask leaders from now on."""
        self._task = supervise(asyncio.create_task(self.run(), name="queue-monitor"))

    async def close(self) -> None:
        """Ask no more; the minute that is open is told by the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.history.close()

    def on_minute(self, act: Callable[[int], None]) -> None:
        """Have something called after each minute that was closed, with the time at which it began, in seconds."""
        self._on_minute.append(act)

    # What is known

    def watch(self, queue_id: int) -> None:
        """Ask for a queue each second for a while."""
        if queue_id in self._watched or len(self._watched) < WATCHED_QUEUES_MAX:
            self._watched[queue_id] = self.now_ms() + WATCHED_FOR_MS

    def booked(self, queue_id: int) -> BookedQueue | None:
        """Return what leaders told of a queue last."""
        return self.book.queues.get(queue_id)

    def value_ms(self, queue: BookedQueue) -> int | None:
        """Return how old the values of a queue are; None: not known."""
        value_ms = self.book.value_ms(queue)
        told_ms = self._told_ms.get(queue.queue_id)
        return value_ms if value_ms is None or told_ms is None else max(value_ms, told_ms)

    def rates(self, queue_id: int) -> Rates:
        """Return the rates of a queue."""
        return self._rates.get(queue_id, NO_RATES)

    @property
    def lag_s(self) -> float:
        """How far the history is behind: 0 to 60 s where all is well."""
        return max(0.0, self.now_ms() / 1000 - self.written_s)

    def epochs(self) -> dict[int, int]:
        """Return the epoch of each journal, as its leader told it last."""
        cursors = (decode_cursor(cursor) for cursor in self._cursors.values())
        return {journal: reached.epoch for cursor in cursors for journal, reached in cursor.items()}

    def notices(self) -> list[str]:
        """Return what an operator should know."""
        why = self._why_not_written
        return [*self.history.notices(), *([] if why is None else [f"The history is not written: {why}."])]

    # Asking

    async def run(self) -> None:
        """Ask for ever, at whole seconds of the wall clock."""
        while True:
            now_ms = self.now_ms()
            due_ms = (now_ms // WATCH_MS + 1) * WATCH_MS
            if not self._watched:
                due_ms = (now_ms // ROUND_MS + 1) * ROUND_MS
            await asyncio.sleep((due_ms - now_ms) / 1000)
            if due_ms % ROUND_MS == 0:
                await self.look(due_ms)
            else:
                await self.look_at_watched(due_ms)

    async def look(self, at_ms: int) -> None:
        """Ask all leaders what changed, and close the minutes that have ended."""
        await self._close_before(at_ms)
        await asyncio.gather(*(self._ask(leader, at_ms) for leader in self._client.leaders()))
        self._rate(self.book.recent, at_ms, self._before_ms)
        self._before_ms = at_ms
        self.round += 1
        if at_ms % MINUTE_MS == 0:
            await self._close_before(at_ms + 1)

    async def _ask(self, leader: str, at_ms: int) -> None:
        has_more = True
        while has_more:
            request = QueueMetricsRequest(self._cursors.get(leader, b""))
            try:
                page = await self._client.ask(leader, request)
            except (NotNow, CallerError):
                return  # what it does not tell becomes stale
            self.book.take(page, at_ms)
            self._cursors[leader] = page.cursor
            has_more = page.has_more

    async def look_at_watched(self, at_ms: int) -> None:
        """Ask for the queues that somebody looks at."""
        self._watched = {queue: until_ms for queue, until_ms in self._watched.items() if until_ms > at_ms}
        if not self._watched:
            return
        await self._close_before(at_ms)
        request = QueueMetricsRequest(queue_ids=tuple(self._watched))
        answered: list[set[int]] = []

        async def ask(leader: str) -> None:
            try:
                page = await self._client.ask(leader, request)
            except (NotNow, CallerError):
                return
            answered.append({row.queue_id for row in page.rows})
            self.book.take(page, at_ms)

        leaders = self._client.leaders()
        await asyncio.gather(*map(ask, leaders))
        self._rate(self.book.recent, at_ms, self._before_ms)
        if len(answered) == len(leaders):  # else a part of it may be old
            self._told_ms = dict.fromkeys(set().union(*answered), at_ms)
        self.round += 1

    def _rate(self, counts: dict[int, Counts], at_ms: int, before_ms: int) -> None:
        """Make rates of what was counted since the round before, or the last second of a watched queue."""
        self.book.recent = {}
        is_round = at_ms % ROUND_MS == 0
        rates = {} if is_round else self._rates
        for queue_id, grown in counts.items():
            since_ms = max(before_ms, self._told_ms.get(queue_id, 0))
            seconds = max(WATCH_MS, at_ms - since_ms) / 1000
            rates[queue_id] = Rates(
                grown[_SENT] / seconds, grown[_RECEIVED] / seconds, grown[_DELETED] / seconds
            )
        if not is_round:
            for queue_id in self._watched.keys() - counts.keys():
                rates.pop(queue_id, None)
        self._rates = rates

    # Minutes

    async def _close_before(self, at_ms: int) -> None:
        """Close the minutes that ended before a moment."""
        open_s = minute_of(at_ms)
        behind = (open_s - self._open_s) // 60
        for _ in range(min(behind, CLOSED_AT_ONCE_MAX)):
            await self._close(self._open_s)
            self._open_s += 60
        self._open_s = max(self._open_s, open_s)

    async def _close(self, at_s: int) -> None:
        minutes = list(self.book.close(at_s))
        changed, self.book.changed = self.book.changed, set()
        rows = {key: self._row(*key) for key in changed}
        closing = Closing(
            at_s,
            [*minutes, *self._spread_held(at_s)],
            rows,
            dict(self.book.seen_ms),
            self._names(minutes, at_s * 1000),
        )
        try:
            await self.history.write(closing, at_s)
        except (NoRoom, OSError, sqlite3.Error) as error:
            self._hold(minutes, at_s)
            self.book.changed |= changed
            self._named.difference_update(closing.names)
            if self._why_not_written is None:
                log_event(log, logging.WARNING, "history not written", reason=str(error))
            self._why_not_written = str(error)
        else:
            self._held = {}
            self._why_not_written = None
            self.written_s = at_s + 60
        self.closed = minutes
        for act in self._on_minute:
            act(at_s)
        self.closed = []

    def _row(self, queue_id: int, partition: int) -> QueueMetricsRow | None:
        queue = self.book.queues.get(queue_id)
        return None if queue is None else queue.row(partition)

    def _hold(self, minutes: Iterable[Minute], at_s: int) -> None:
        """Keep the counts of a minute that could not be written."""
        if not self._held:
            self._held_since_ms = at_s * 1000
        for minute in minutes:
            counts = tuple(value or 0 for value in minute.values[len(GAUGES) :])
            if any(counts):
                before = self._held.get(minute.queue_id)
                self._held[minute.queue_id] = counts if before is None else add_counts(before, counts)

    def _spread_held(self, at_s: int) -> list[Minute]:
        """Return the counts that were held, spread over the minutes that were not written."""
        unknown = (None,) * len(GAUGES)
        return [
            Minute(queue_id, minute_s, (*unknown, *part))
            for queue_id, counts in self._held.items()
            for minute_s, part in spread(counts, self._held_since_ms, (at_s + 60) * 1000)
        ]

    def _names(self, minutes: Iterable[Minute], now_ms: int) -> dict[int, QueueName]:
        """Return the names of queues whose names were not written lately."""
        if now_ms >= self._named_ms + NAMED_AGAIN_MS:
            self._named, self._named_ms = set(), now_ms
        names = {}
        for minute in minutes:
            queue = self.queues.by_id(minute.queue_id)
            if queue is not None and minute.queue_id not in self._named:
                names[minute.queue_id] = QueueName(queue.account, queue.name)
        self._named.update(names)
        return names
