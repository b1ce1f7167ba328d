"""The values of alerts, out of the console's history."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from console.alerts.support import ACCOUNT, SHOP
from quaymaster.console.alerts.history_series import HistorySeries
from quaymaster.console.alerts.series import PointsAsked
from quaymaster.core.monitoring.minutes import VALUES
from quaymaster.core.monitoring.periods import Span
from quaymaster.core.monitoring.queue_statistics import Kept, summary_of

END_S = 1_700_000_040


class Queue(NamedTuple):
    queue_id: int
    account: str
    name: str


class Queues:
    """Two queues of an account and one of another."""

    def all(self, account: str | None = None) -> Iterable[Queue]:
        """Return the queues of an account, or all."""
        queues = [Queue(1, ACCOUNT, "orders"), Queue(2, ACCOUNT, "orders-dlq"), Queue(3, SHOP, "orders")]
        return [queue for queue in queues if account in (None, queue.account)]

    def find(self, account: str, name: str) -> Queue | None:
        """Return a queue."""
        return next((queue for queue in self.all(account) if queue.name == name), None)


class Past:
    """Minutes of one queue with these numbers of visible messages; None: the console did not run."""

    def __init__(self, *visible: int | None) -> None:
        self.visible = visible
        self.reads: list[list[str]] = []

    async def read_each(
        self, queue_ids: Iterable[int], span: Span, *, values: Sequence[str]
    ) -> dict[int, list[Kept]]:
        """Return what is kept."""
        assert list(queue_ids) == [1]
        self.reads.append(list(values))
        kept = []
        for number, value in enumerate(self.visible):
            if value is not None:
                summaries = tuple(summary_of(value if name == "visible" else None) for name in VALUES)
                kept.append(Kept(END_S - 60 * (len(self.visible) - number), summaries))
        return {1: kept}


def series_of(*visible: int | None, now_ms: int = END_S * 1_000) -> HistorySeries:
    """Return series over such a past."""
    return HistorySeries(
        *(Queues(), Past(*visible)),
        is_dead_letter_queue=lambda _, name: name == "orders-dlq",
        now_ms=lambda: now_ms,
    )


def points(series: HistorySeries, queue: str, *, period_s: int, count: int) -> list[float | None]:
    """Return the greatest values of the last periods."""
    asked = PointsAsked(
        ACCOUNT, queue, "ApproximateNumberOfMessagesVisible", "Maximum", period_s, count, END_S
    )
    return list(asyncio.run(series.points([asked]))[0])


def test_a_minute_that_was_not_kept_is_a_gap_and_never_zero() -> None:
    assert points(series_of(7, None, 0), "orders", period_s=60, count=5) == [None, None, 7.0, None, 0.0]


def test_periods_end_with_the_minute_that_is_asked_for() -> None:
    assert points(series_of(1, 2, 3, 9, 5, None), "orders", period_s=180, count=3) == [None, 3.0, 9.0]


def test_a_queue_that_there_is_not_has_no_values() -> None:
    assert points(series_of(7), "none", period_s=60, count=2) == [None, None]


def test_the_past_of_a_queue_is_read_once_for_all_its_alerts() -> None:
    past = Past(7, 8)
    series = HistorySeries(Queues(), past, is_dead_letter_queue=lambda *_: False, now_ms=lambda: 0)
    asked = [
        PointsAsked(ACCOUNT, "orders", "ApproximateNumberOfMessagesVisible", statistic, 60, 2, END_S)
        for statistic in ("Maximum", "Sum", "Average")
    ]

    assert asyncio.run(series.points(asked)) == [[7.0, 8.0]] * 3
    assert past.reads == [["visible"]]


def test_only_values_that_alerts_ask_for_are_read_and_queues_are_read_together() -> None:
    asked_for: list[tuple[list[int], list[str]]] = []

    class Many(Queues):
        def find(self, account: str, name: str) -> Queue | None:
            return Queue(int(name), account, name)

    class Noted(Past):
        async def read_each(
            self, queue_ids: Iterable[int], span: Span, *, values: Sequence[str]
        ) -> dict[int, list[Kept]]:
            asked_for.append((list(queue_ids), list(values)))
            return {}

    series = HistorySeries(Many(), Noted(), is_dead_letter_queue=lambda *_: False, now_ms=lambda: 0)
    asked = [
        PointsAsked(ACCOUNT, str(number), metric, "Average", 60, 2, END_S)
        for number in range(1_500)
        for metric in ("ApproximateNumberOfMessagesVisible", "SentMessageSize")
    ]

    assert asyncio.run(series.points(asked)) == [[None, None]] * 3_000
    assert [len(queue_ids) for queue_ids, _ in asked_for] == [1_000, 500]
    assert {tuple(values) for _, values in asked_for} == {("sent", "sent_bytes", "visible")}


def test_a_minute_can_be_read_a_quarter_of_a_minute_after_its_end() -> None:
    assert series_of(now_ms=END_S * 1_000 + 14_999).readable_end_s() == END_S - 60
    assert series_of(now_ms=END_S * 1_000 + 15_000).readable_end_s() == END_S


def test_queues_are_those_of_the_account() -> None:
    series = series_of()

    assert series.accounts() == [ACCOUNT, SHOP]
    assert series.queues(ACCOUNT) == ["orders", "orders-dlq"]
    assert series.dead_letter_queues(ACCOUNT) == ["orders-dlq"]
    assert series.dead_letter_queues(SHOP) == []
