"""Operators' alerts on their way to Alertmanager, again each minute while they fire.

    built-in alerts, of each account, evaluated here ──┐
    alerts of the operators' account in alarm ─────────┼──POST /api/v2/alerts──▶ Alertmanager: groups, silences, tells
    Watchdog, always ──────────────────────────────────┘

What is not said again ends by itself after KEPT_S. Alerts of customers are never told here.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from quaymaster.console.alerts.alert_book import AlertBook
from quaymaster.console.alerts.series import AlertSeries, PointsAsked
from quaymaster.core.alerts.alerts import Alert, AlertStatus
from quaymaster.core.alerts.built_in import built_in_alerts, rule_of
from quaymaster.core.alerts.evaluation import judge_all, range_periods
from quaymaster.core.alerts.messages import alert_arn
from quaymaster.core.alerts.operator_rules import OPERATOR_RULES
from quaymaster.core.alerts.prometheus_rules import alert_name, runbook_url
from quaymaster.core.alerts.transitions import evaluate
from quaymaster.core.values.errors import NotNow
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.metrics import Sample
from quaymaster.net.outbound.client import OutboundAnswer
from quaymaster.net.outbound.failures import OutboundError

INTERVAL_S: Final = 60.0
KEPT_S: Final = 300
PATH: Final = "/api/v2/alerts"
_WATCHDOG: Final = next(rule for rule in OPERATOR_RULES if rule.name == "Watchdog")

log = logging.getLogger(__name__)


class CallsAlertmanager(Protocol):
    """`net/outbound/client`, for operators' URLs."""

    async def call(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> OutboundAnswer: ...


class AlertmanagerFeed:
    """Tells Alertmanager at `url`. `run` is a task of the console."""

    def __init__(
        self,
        book: AlertBook,
        series: AlertSeries,
        client: CallsAlertmanager,
        *,
        url: str,
        cell: str,
        region: str,
        operators_account: str,
        is_leading: Callable[[], bool],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._book = book
        self._series = series
        self._client = client
        self._url = url.rstrip("/") + PATH
        self._cell = cell
        self._region = region
        self._operators_account = operators_account
        self._is_leading = is_leading
        self._interval_s = interval_s
        self._statuses: dict[tuple[str, str], AlertStatus] = {}
        """How built-in alerts stand, by account and name."""
        self._results: Counter[str] = Counter()

    async def run(self) -> None:
        """Tell for ever."""
        while True:
            if self._is_leading():
                await self.tell()
            await asyncio.sleep(self._interval_s)

    async def tell(self) -> None:
        """Evaluate the built-in alerts, and tell what fires."""
        try:
            await self._evaluate()
        except NotNow as error:
            log_event(log, logging.WARNING, "built-in alerts not evaluated", error=error)
        body = json.dumps(self._firing()).encode()
        try:
            answer = await self._client.call(
                "POST", self._url, headers={"content-type": "application/json"}, body=body
            )
        except OutboundError as error:
            log_event(log, logging.WARNING, "Alertmanager not reached", error=error)
            self._results["retry"] += 1
            return
        is_taken = answer.status == 200
        self._results["delivered" if is_taken else "failed"] += 1
        if not is_taken:
            log_event(log, logging.WARNING, "Alertmanager refused alerts", status=answer.status)

    def firing_built_in(self) -> list[tuple[Alert, AlertStatus]]:
        """Return the built-in alerts that are in alarm, with how they stand."""
        return [
            (alert, status)
            for account_id in self._series.accounts()
            for alert in built_in_alerts(account_id)
            if (status := self._statuses.get((account_id, alert.name))) is not None
            and status.state == "ALARM"
        ]

    def samples(self) -> list[Sample]:
        """Give the metrics: a source for `Metrics`."""
        return [
            Sample("quaymaster_notifications_total", float(number), ("alertmanager", result))
            for result, number in self._results.items()
        ]

    async def _evaluate(self) -> None:
        end_s, now_ms = self._series.readable_end_s(), self._book.now_ms()
        for account_id in self._series.accounts():
            for alert in built_in_alerts(account_id):
                names = sorted(
                    name for name in self._series.queues(account_id) if name.startswith(alert.pattern)
                )
                asked = [
                    PointsAsked(
                        account_id,
                        name,
                        alert.metric,
                        alert.statistic,
                        alert.period_s,
                        range_periods(alert),
                        end_s,
                    )
                    for name in names
                ]
                points = dict(zip(names, await self._series.points(asked), strict=True))
                before = self._statuses.get((account_id, alert.name), AlertStatus())
                done = evaluate(
                    alert, before, judge_all(alert, points, before.state, before.alarming), now_ms
                )
                if done is not None:
                    self._statuses[account_id, alert.name] = done.state

    def _firing(self) -> list[dict[str, Any]]:
        now_ms = self._book.now_ms()
        told = [
            self._told(
                alert_name(_WATCHDOG),
                _WATCHDOG.severity,
                _WATCHDOG.summary,
                runbook_url(_WATCHDOG),
                now_ms,
                now_ms,
                {},
            )
        ]
        for alert, status in self.firing_built_in():
            rule = rule_of(alert)
            more = {"account": alert.account_id}
            told.append(
                self._told(
                    alert_name(rule),
                    rule.severity,
                    status.reason,
                    runbook_url(rule),
                    status.changed_ms,
                    now_ms,
                    more,
                )
            )
        for alert in self._book.rows.alerts.of_account(self._operators_account):
            status = self._book.rows.state(alert)
            if status.state == "ALARM" and alert.is_enabled:
                arn = alert_arn(self._region, alert.account_id, alert.name)
                more = {"account": alert.account_id, "arn": arn}
                told.append(
                    self._told(alert.name, "ticket", status.reason, "", status.changed_ms, now_ms, more)
                )
        return told

    def _told(
        self,
        name: str,
        severity: str,
        summary: str,
        runbook: str,
        since_ms: int,
        now_ms: int,
        labels: dict[str, str],
    ) -> dict[str, Any]:
        annotations = {"summary": summary, **({"runbook_url": runbook} if runbook else {})}
        return {
            "labels": {"alertname": name, "severity": severity, "cell": self._cell, **labels},
            "annotations": annotations,
            "startsAt": _time(since_ms),
            "endsAt": _time(now_ms + KEPT_S * 1_000),
        }


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds")
