"""The evaluation of all alerts, once for each minute that history has.

    minute is readable ──▶ points of all alerts, some at a time ──▶ core/alerts decides ──▶ transitions are stored

Of two consoles the one that leads evaluates and stores. When another one takes over it evaluates at once, by its own
history, and a transition that both store is one: its row is compared.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from quaymaster.console.alerts.alert_book import AlertBook
from quaymaster.console.alerts.series import AlertSeries, PointsAsked
from quaymaster.coordination.interface import RevisionMismatch
from quaymaster.core.alerts.alerts import Alert, State
from quaymaster.core.alerts.evaluation import Verdict, judge, judge_all, range_periods
from quaymaster.core.alerts.transitions import evaluate
from quaymaster.core.values.errors import NotNow
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.metrics import Sample

LOOK_S: Final = 1.0
"""How often it looks whether another minute can be read."""
STATES: Final[tuple[State, ...]] = ("OK", "ALARM", "INSUFFICIENT_DATA")
ALERTS_AT_ONCE: Final = 100
QUEUES_PER_ALERT_MAX: Final = 10_000
"""An alert over more queues looks at the first of them, by name."""

log = logging.getLogger(__name__)


class AlertEvaluator:
    """Evaluates. `run` is a task of the console."""

    def __init__(
        self,
        book: AlertBook,
        series: AlertSeries,
        *,
        is_leading: Callable[[], bool],
        look_s: float = LOOK_S,
    ) -> None:
        self._book = book
        self._series = series
        self._is_leading = is_leading
        self._look_s = look_s
        self._has_led = False
        self.evaluated_end_s = 0
        """The end of the minute that was evaluated last, in seconds since 1970."""

    async def run(self) -> None:
        """Evaluate for ever."""
        while True:
            await self.evaluate_if_due()
            await asyncio.sleep(self._look_s)

    async def evaluate_if_due(self) -> None:
        """Evaluate all alerts if this console leads, and there is a minute that it has not looked at yet."""
        if not self._is_leading():
            self._has_led = False
            return
        end_s = self._series.readable_end_s()
        if self._has_led and end_s <= self.evaluated_end_s:
            return
        alerts = iter(list(self._book.rows.alerts))
        while some := list(islice(alerts, ALERTS_AT_ONCE)):
            try:
                await self._evaluate(some, end_s)
            except NotNow as error:
                log_event(log, logging.WARNING, "alerts not evaluated", error=error)
                return  # the same minute is evaluated again
        self._has_led = True
        self.evaluated_end_s = end_s

    async def _evaluate(self, alerts: Sequence[Alert], end_s: int) -> None:
        queues = [self._queues_of(alert) for alert in alerts]
        asked = [
            one for alert, names in zip(alerts, queues, strict=True) for one in _asked(alert, names, end_s)
        ]
        points = iter(await self._series.points(asked))
        for alert, names in zip(alerts, queues, strict=True):
            of_queues = {name: next(points) for name in names}
            if self._book.rows.alerts.get(alert.account_id, alert.name) is not alert:
                continue  # it was changed or deleted meanwhile; its next minute counts
            try:
                await self._judge(alert, of_queues)
            except RevisionMismatch:
                continue  # somebody else was quicker

    async def _judge(self, alert: Alert, points: dict[str, Sequence[float | None]]) -> None:
        before = self._book.rows.state(alert)
        verdict: Verdict
        if alert.subject == "queue":
            verdict = judge(alert, points[alert.pattern], before.state)
        else:
            verdict = judge_all(alert, points, before.state, before.alarming)
        done = evaluate(alert, before, verdict, self._book.now_ms())
        if done is not None:
            await self._book.store_transition(alert, done.state, done.change)

    def _queues_of(self, alert: Alert) -> list[str]:
        if alert.subject == "queue":
            return [alert.pattern]
        if alert.subject == "dead_letter_queues":
            names = sorted(self._series.dead_letter_queues(alert.account_id))
        else:
            names = sorted(
                name for name in self._series.queues(alert.account_id) if name.startswith(alert.pattern)
            )
        return names[:QUEUES_PER_ALERT_MAX]

    def samples(self) -> list[Sample]:
        """Give the metrics: a source for `Metrics`."""
        states = Counter(self._book.rows.state(alert).state for alert in self._book.rows.alerts)
        return [
            *(Sample("quaymaster_alerts", float(states[state]), (state,)) for state in STATES),
            Sample("quaymaster_alerts_evaluated_timestamp_seconds", float(self.evaluated_end_s)),
        ]


def _asked(alert: Alert, queues: Sequence[str], end_s: int) -> Iterator[PointsAsked]:
    count = range_periods(alert)
    for queue in queues:
        yield PointsAsked(
            alert.account_id, queue, alert.metric, alert.statistic, alert.period_s, count, end_s
        )
