"""What pages read, from the memory of this console: `Site`."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from quaymaster.console.api_client import APIClient
from quaymaster.console.known_queues import KnownQueue
from quaymaster.console.metric_operations import MetricOperations, times_of
from quaymaster.console.queue_monitor import QueueMonitor
from quaymaster.console.site import (
    AlertNow,
    CellNow,
    Chart,
    Credentials,
    Overview,
    Problem,
    QueueNow,
    Series,
)
from quaymaster.core.monitoring.minutes import VALUES
from quaymaster.core.monitoring.queue_book import STALE_MS
from quaymaster.core.monitoring.queue_statistics import METRICS, is_statistic

CHART_MINUTES: Final = 180
"""The overview's charts."""
ACCOUNTS_MAX: Final = 1_000
"""Accounts that have charts of their own in memory."""
_VISIBLE, _IN_FLIGHT = VALUES.index("visible"), VALUES.index("in_flight")
_AGE = VALUES.index("oldest_age_s")
_SENT, _RECEIVED, _DELETED = (VALUES.index(name) for name in ("sent", "received", "deleted"))


class Total(NamedTuple):
    """All queues of an account in a minute."""

    at_s: int
    visible: int
    in_flight: int
    oldest_age_s: int
    sent: int
    received: int
    deleted: int


async def _no_address(token: str) -> str | None:
    """Confirm none: this site has no alerts."""
    return None


class ServerSite:
    """See `Site`. `cell`, `process`, `alerts`: what others know; `problems` are told on the overview of operators."""

    def __init__(
        self,
        monitor: QueueMonitor,
        operations: MetricOperations,
        api: APIClient,
        *,
        cell: Callable[[], CellNow],
        are_policies_enforced: bool = True,
        alerts: Callable[[str | None], Sequence[AlertNow]] = lambda account: (),
        confirm_address: Callable[[str], Awaitable[str | None]] = _no_address,
        problems: Callable[[], Sequence[Problem]] = lambda: (),
        process: Callable[[str, str], Sequence[Chart] | None] = lambda role, name: None,
        accounts_with_alerts: Callable[[], Iterable[str]] = lambda: (),
    ) -> None:
        self._monitor = monitor
        self._operations = operations
        self._api = api
        self._cell = cell
        self.are_policies_enforced = are_policies_enforced
        self._alerts = alerts
        self._confirm_address = confirm_address
        self._problems = problems
        self._process = process
        self._accounts_with_alerts = accounts_with_alerts
        self._lists: dict[str | None, tuple[tuple[int, int], Sequence[QueueNow]]] = {}
        self._totals: dict[str | None, deque[Total]] = {}
        monitor.on_minute(self._note_minute)

    @property
    def api(self) -> APIClient:
        """See `Site`."""
        return self._api

    def now_ms(self) -> int:
        """See `Site`."""
        return self._monitor.now_ms()

    def accounts(self) -> Collection[str]:
        """See `Site`."""
        return {*self._monitor.queues.accounts(), *self._accounts_with_alerts()}

    def queues(self, account: str | None) -> Sequence[QueueNow]:
        """See `Site`."""
        state = (self._monitor.round, self._monitor.queues.version)
        known = self._lists.get(account)
        if known is None or known[0] != state:
            if len(self._lists) > ACCOUNTS_MAX:
                self._lists.clear()
            known = self._lists[account] = (state, [*map(self._now, self._monitor.queues.all(account))])
        return known[1]

    def queue(self, account: str, name: str) -> QueueNow | None:
        """See `Site`."""
        queue = self._monitor.queues.find(account, name)
        return None if queue is None else self._now(queue)

    def watch(self, account: str, name: str) -> None:
        """See `Site`."""
        queue = self._monitor.queues.find(account, name)
        if queue is not None:
            self._monitor.watch(queue.queue_id)

    async def history(
        self,
        account: str,
        name: str,
        metrics: Sequence[tuple[str, str]],
        start_ms: int,
        end_ms: int,
        period_s: int,
    ) -> Sequence[Series]:
        """See `Site`."""
        asked = [
            (metric, statistic)
            for metric, statistic in metrics
            if metric in METRICS and is_statistic(statistic)
        ]
        span, series = await self._operations.history(account, name, asked, start_ms, end_ms, period_s)
        times_ms = [at_s * 1000 for at_s in times_of(span)]
        return [
            Series(f"{metric} {statistic}", METRICS[metric].unit, times_ms, values)
            for (metric, statistic), values in zip(asked, series, strict=True)
        ]

    def overview(self, account: str | None) -> Overview:
        """See `Site`."""
        totals = self._totals.get(account, ())
        at_ms = max(self._monitor.book.seen_ms.values(), default=None)
        problems = [*(self._problems() if account is None else ()), *self._firing(account)]
        times = [total.at_s * 1000 for total in totals]

        def series(label: str, unit: str, value: Callable[[Total], float]) -> Series:
            return Series(label, unit, times, [value(total) for total in totals])

        return Overview(
            at_ms,
            problems,
            [
                Chart(
                    "Messages a second",
                    [
                        series("sent", "Count/Second", lambda total: total.sent / 60),
                        series("received", "Count/Second", lambda total: total.received / 60),
                        series("deleted", "Count/Second", lambda total: total.deleted / 60),
                    ],
                ),
                Chart(
                    "Messages",
                    [
                        series("visible", "Count", lambda total: total.visible),
                        series("in flight", "Count", lambda total: total.in_flight),
                    ],
                ),
                Chart(
                    "Oldest message",
                    [series("oldest message", "Seconds", lambda total: total.oldest_age_s)],
                ),
            ],
        )

    def cell(self) -> CellNow:
        """See `Site`."""
        return self._cell()

    async def confirm_address(self, token: str) -> str | None:
        """See `Site`."""
        return await self._confirm_address(token)

    def process(self, role: str, name: str) -> Sequence[Chart] | None:
        """See `Site`."""
        return self._process(role, name)

    def alerts(self, account: str | None) -> Sequence[AlertNow]:
        """See `Site`."""
        return self._alerts(account)

    async def ended_sessions(self, sessions: Sequence[Credentials]) -> Sequence[bool]:
        """See `Site`."""
        return await self._api.ended(sessions) if sessions else []

    def _firing(self, account: str | None) -> list[Problem]:
        return [
            Problem("warning", alert.name, alert.reason, alert.changed_ms, "/alerts", is_alert=True)
            for alert in self._alerts(account)
            if alert.state == "ALARM"
        ]

    def _now(self, queue: KnownQueue) -> QueueNow:
        monitor = self._monitor
        booked = monitor.booked(queue.queue_id)
        value_ms = None if booked is None else monitor.value_ms(booked)
        facts = (queue.account, queue.name, str(queue.queue_id), queue.is_fifo, queue.is_log)
        sources = monitor.queues.dead_letters_of(queue)
        if booked is None or value_ms is None:
            return QueueNow(*facts, sources)
        rows, rates = booked.rows, monitor.rates(queue.queue_id)
        return QueueNow(
            *facts,
            sources,
            value_ms,
            sum(row.visible for row in rows),
            sum(row.in_flight for row in rows),
            sum(row.delayed for row in rows),
            sum(row.groups_in_flight for row in rows),
            booked.oldest_sent_ms,
            *rates,
        )

    def _note_minute(self, at_s: int) -> None:
        """Add up what all queues had and did in a minute, for the charts of the overview."""
        monitor, end_ms = self._monitor, (at_s + 60) * 1000
        sums: dict[str | None, list[int]] = {None: [0] * len(VALUES)}
        for minute in monitor.closed:
            queue = monitor.queues.by_id(minute.queue_id)
            if queue is None or minute.at_s != at_s:
                continue
            for account in (None, queue.account):
                total = sums.setdefault(account, [0] * len(VALUES))
                for place, value in enumerate(minute.values):
                    if place == _AGE:
                        total[place] = max(total[place], value or 0)
                    else:
                        total[place] += value or 0
        is_known = any(seen_ms >= end_ms - STALE_MS for seen_ms in monitor.book.seen_ms.values())
        for account, total in sums.items():
            if is_known and (account in self._totals or len(self._totals) < ACCOUNTS_MAX):
                kept = self._totals.setdefault(account, deque(maxlen=CHART_MINUTES))
                kept.append(
                    Total(
                        at_s,
                        *(total[place] for place in (_VISIBLE, _IN_FLIGHT, _AGE, _SENT, _RECEIVED, _DELETED)),
                    )
                )
