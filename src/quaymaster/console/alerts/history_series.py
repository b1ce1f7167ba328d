"""The values of alerts, out of the console's history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from quaymaster.console.alerts.series import PointsAsked
from quaymaster.core.monitoring.periods import Span, by_period
from quaymaster.core.monitoring.queue_statistics import METRICS, Kept, evaluate

READABLE_AFTER_S: Final = 15
"""So long after its end a minute has what all leaders told of it."""


class QueueOfAlerts(Protocol):
    """A queue as the console knows it."""

    @property
    def queue_id(self) -> int: ...

    @property
    def account(self) -> str: ...

    @property
    def name(self) -> str: ...


class QueuesOfAlerts(Protocol):
    """The queues that there are."""

    def find(self, account: str, name: str) -> QueueOfAlerts | None: ...

    def all(self, account: str | None = None) -> Iterable[QueueOfAlerts]: ...


class ReadsHistory(Protocol):
    """The past of queues."""

    async def read(self, queue_ids: Iterable[int], span: Span) -> list[Kept]: ...


class HistorySeries:
    """See `AlertSeries`."""

    def __init__(
        self,
        queues: QueuesOfAlerts,
        history: ReadsHistory,
        *,
        is_dead_letter_queue: Callable[[str, str], bool],
        now_ms: Callable[[], int],
    ) -> None:
        """`is_dead_letter_queue`: of an account and a name. `now_ms` is the wall clock."""
        self._queues = queues
        self._history = history
        self._now_ms = now_ms
        self._is_dead_letter_queue = is_dead_letter_queue

    def readable_end_s(self) -> int:
        """See `AlertSeries`. A minute that could not be written is a gap, once the next one is due."""
        return (self._now_ms() // 1_000 - READABLE_AFTER_S) // 60 * 60

    def accounts(self) -> Sequence[str]:
        """See `AlertSeries`."""
        return sorted({queue.account for queue in self._queues.all()})

    def queues(self, account_id: str) -> Sequence[str]:
        """See `AlertSeries`."""
        return [queue.name for queue in self._queues.all(account_id)]

    def dead_letter_queues(self, account_id: str) -> Sequence[str]:
        """See `AlertSeries`."""
        return [name for name in self.queues(account_id) if self._is_dead_letter_queue(account_id, name)]

    async def points(self, asked: Sequence[PointsAsked]) -> Sequence[Sequence[float | None]]:
        """See `AlertSeries`."""
        read: dict[tuple[int, Span], list[Kept]] = {}  # several alerts may watch one queue
        return [await self._points(one, read) for one in asked]

    async def _points(self, one: PointsAsked, read: dict[tuple[int, Span], list[Kept]]) -> list[float | None]:
        start_s = one.end_s - one.count * one.period_s
        span = Span(start_s, one.end_s, one.period_s)
        points: list[float | None] = [None] * one.count
        queue = self._queues.find(one.account_id, one.queue)
        if queue is not None:
            metric = METRICS[one.metric]
            place = queue.queue_id, span
            if place not in read:
                read[place] = await self._history.read([queue.queue_id], span)
            for at_s, kept in by_period(span, read[place]):
                points[(at_s - start_s) // one.period_s] = evaluate(metric, one.statistic, kept)
        return points
