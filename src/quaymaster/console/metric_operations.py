"""The operations of CloudWatch that read metrics, answered from queues and history."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from quaymaster.console.dispatch import Handler
from quaymaster.console.metric_text import render_queues, told_queues
from quaymaster.console.queue_monitor import QueueMonitor
from quaymaster.core.monitoring.metric_requests import (
    Known,
    Need,
    answer_metric_data,
    answer_statistics,
    list_metrics,
    plan_metric_data,
    plan_statistics,
)
from quaymaster.core.monitoring.periods import Span, align, by_period
from quaymaster.core.monitoring.queue_statistics import (
    METRICS,
    Kept,
    evaluate,
    has_statistic,
    is_statistic,
    percentile_of,
)
from quaymaster.core.values.errors import InvalidParameterValue
from quaymaster.protocol.cloudwatch.errors import CloudWatchError
from quaymaster.protocol.rpc.monitoring_calls import SCRAPE_METRICS, MonitoringCall

SCRAPED_QUEUES_MAX: Final = 10_000
PERIODS_MAX: Final = 10_000
"""Of one series, for pages and the admin API."""


def times_of(span: Span) -> range:
    """Return when the periods began, in seconds."""
    return range(span.start_s, span.periods_end_s, span.period_s)


class MetricOperations:
    """Answers for the queues of a monitor."""

    def __init__(self, monitor: QueueMonitor) -> None:
        self._monitor = monitor

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The operations, by name."""
        return {
            "ListMetrics": self._list_metrics,
            "GetMetricData": self._get_metric_data,
            "GetMetricStatistics": self._get_metric_statistics,
            SCRAPE_METRICS: self._scrape,
        }

    async def read(self, account: str, needs: Iterable[Need], *, has_samples: bool = False) -> Known:
        """Return what is kept of queues of an account; those that are gone are found by the names that they had."""
        known: dict[Need, list[Kept]] = {}
        for need in needs:
            ids = set(await self._monitor.history.ids_of(account, need.queue))
            queue = self._monitor.queues.find(account, need.queue)
            if queue is not None:
                ids.add(queue.queue_id)
            known[need] = await self._monitor.history.read(sorted(ids), need.span, has_samples=has_samples)
        return known

    @property
    def admin_handlers(self) -> Mapping[str, Handler]:
        """The operations of the admin API, by name."""
        return {"GetQueueHistory": self._get_queue_history}

    async def history(
        self,
        account: str,
        queue: str,
        asked: Sequence[tuple[str, str]],
        start_ms: int,
        end_ms: int,
        period_s: int,
    ) -> tuple[Span, list[list[float | None]]]:
        """Return periods, and for each metric and statistic a value for each of them; at most the last PERIODS_MAX."""
        span = align(start_ms / 1000, end_ms / 1000, period_s, self._monitor.now_ms() / 1000)
        if span.periods > PERIODS_MAX:
            span = span._replace(start_s=span.start_s + (span.periods - PERIODS_MAX) * period_s)
        need = Need(queue, span)
        has_samples = any(percentile_of(statistic) is not None for _, statistic in asked)
        known = await self.read(account, [need], has_samples=has_samples)
        parts = dict(by_period(span, known[need]))
        return span, [
            [evaluate(METRICS[metric], statistic, parts.get(at_s, ())) for at_s in times_of(span)]
            for metric, statistic in asked
        ]

    async def _get_queue_history(self, call: MonitoringCall) -> Mapping[str, Any]:
        given = call.given
        metric, statistic = given["metric"], given["statistic"]
        if metric not in METRICS:
            raise InvalidParameterValue(f"There is no metric {metric}; there are {', '.join(METRICS)}.")
        if not is_statistic(statistic) or not has_statistic(METRICS[metric], statistic):
            raise InvalidParameterValue(f"{metric} has no statistic {statistic}.")
        span, [values] = await self.history(
            *(call.account, given["name"], [(metric, statistic)]),
            *(given["start_ms"], given["end_ms"], given["period_s"]),
        )
        return {
            "account_id": call.account,
            "name": given["name"],
            "metric": metric,
            "statistic": statistic,
            "unit": METRICS[metric].unit,
            "period_s": given["period_s"],
            "times_ms": [at_s * 1000 for at_s in times_of(span)],
            "values": values,
        }

    async def _list_metrics(self, call: MonitoringCall) -> Mapping[str, Any]:
        queues = sorted((queue.name, queue.is_fifo) for queue in self._monitor.queues.all(call.account))
        return list_metrics(call.given, queues)

    async def _get_metric_data(self, call: MonitoringCall) -> Mapping[str, Any]:
        plan = plan_metric_data(call.given, call.account, self._monitor.now_ms() / 1000)
        asked = [query.asked.statistic for query in plan.queries if query.asked is not None]
        has_samples = any(percentile_of(statistic) is not None for statistic in asked)
        return answer_metric_data(plan, await self.read(call.account, plan.needs, has_samples=has_samples))

    async def _get_metric_statistics(self, call: MonitoringCall) -> Mapping[str, Any]:
        plan = plan_statistics(call.given, self._monitor.now_ms() / 1000)
        has_samples = any(percentile_of(statistic) is not None for statistic in plan.statistics)
        return answer_statistics(plan, await self.read(call.account, plan.needs, has_samples=has_samples))

    async def _scrape(self, call: MonitoringCall) -> Mapping[str, Any]:
        queues = list(self._monitor.queues.all(call.account))
        if len(queues) > SCRAPED_QUEUES_MAX:
            raise CloudWatchError(
                "LimitExceededFault",
                f"The account has {len(queues)} queues, and at most {SCRAPED_QUEUES_MAX} are scraped.",
            )
        told = told_queues(self._monitor, queues)
        return {"Body": await asyncio.to_thread(render_queues, told, self._monitor.now_ms())}
