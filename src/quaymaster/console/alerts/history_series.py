"""The values of alerts, out of the console's history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, Protocol

from quaymaster.console.alerts.series import PointsAsked
from quaymaster.core.monitoring.periods import Span, by_period
from quaymaster.core.monitoring.queue_statistics import METRICS, Kept, evaluate

QUEUES_AT_ONCE: Final = 1_000
"""Pages and programs read the history between."""
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

    async def read_each(
        self, queue_ids: Iterable[int], span: Span, *, values: Sequence[str]
    ) -> dict[int, list[Kept]]: ...


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
        found = [
            (one, Span(one.end_s - one.count * one.period_s, one.end_s, one.period_s), self._id_of(one))
            for one in asked
        ]
        wanted: dict[Span, _Wanted] = {}  # several alerts may watch one queue
        for one, span, queue_id in found:
            if queue_id is not None:
                wanted.setdefault(span, _Wanted()).add(one, queue_id)
        read = {span: await self._read(span, of_span) for span, of_span in wanted.items()}
        return [
            _points(one, span, () if queue_id is None else read[span].get(queue_id, ()))
            for one, span, queue_id in found
        ]

    def _id_of(self, one: PointsAsked) -> int | None:
        queue = self._queues.find(one.account_id, one.queue)
        return None if queue is None else queue.queue_id

    async def _read(self, span: Span, wanted: _Wanted) -> dict[int, list[Kept]]:
        found: dict[int, list[Kept]] = {}
        ids = iter(sorted(wanted.queue_ids))
        while some := list(islice(ids, QUEUES_AT_ONCE)):
            found |= await self._history.read_each(some, span, values=sorted(wanted.values))
        return found


class _Wanted:
    """What is read of some periods."""

    def __init__(self) -> None:
        self.queue_ids: set[int] = set()
        self.values: set[str] = set()

    def add(self, one: PointsAsked, queue_id: int) -> None:
        metric = METRICS[one.metric]
        self.queue_ids.add(queue_id)
        self.values.add(metric.value)
        if metric.samples is not None:
            self.values.add(metric.samples)


def _points(one: PointsAsked, span: Span, kept: Sequence[Kept]) -> list[float | None]:
    metric = METRICS[one.metric]
    points: list[float | None] = [None] * one.count
    for at_s, of_period in by_period(span, kept):
        points[(at_s - span.start_s) // one.period_s] = evaluate(metric, one.statistic, of_period)
    return points
