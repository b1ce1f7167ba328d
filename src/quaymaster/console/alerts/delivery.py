"""The delivery of notifications: each from the outbox of its alert to a webhook, a mail address or a queue.

    outbox ──due, this console leads──▶ attempt ──delivered, failed──▶ out of the outbox, noted in the history
                ▲                          │
                └── later and later ◀──────┘ retry; after a day: expired

At least once: a console that dies between the two has it delivered again, under the same id. One action of an alert is
told its transitions in order. How often something was tried is in memory only: another console begins with short waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, Protocol

from quaymaster.console.alerts.alert_book import AlertBook
from quaymaster.console.alerts.mail import AlertMails
from quaymaster.console.alerts.queue_hand import QueueHand
from quaymaster.core.alerts.alerts import Alert, Destination, Notification
from quaymaster.core.alerts.messages import alert_arn, message_json, message_subject, message_text
from quaymaster.core.alerts.rules import parse_action
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.queues.queue_names import QueueArn
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.metrics import Sample
from quaymaster.monitoring.supervision import supervise
from quaymaster.net.outbound.client import OutboundAnswer
from quaymaster.net.outbound.failures import OutboundError, OutboundRefused
from quaymaster.protocol.webhooks.attempts import Outcome, next_attempt_ms, outcome_of
from quaymaster.protocol.webhooks.signing import signed_headers

LOOK_S: Final = 1.0
AT_ONCE_MAX: Final = 64
ANSWER_BYTES_MAX: Final = 64 * 1024

Kind = Literal["webhook", "email", "queue", "none"]

log = logging.getLogger(__name__)


class CallsWebhooks(Protocol):
    """`net/outbound/client`, with the rules for customers' URLs."""

    async def call(
        self,
        method: str,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        answer_bytes_max: int,
    ) -> OutboundAnswer: ...


class _Place(NamedTuple):
    """A notification of an alert to an action."""

    account_id: str
    name: str
    told: str
    action: str


class _Attempts(NamedTuple):
    number: int
    due_ms: int


class AlertDelivery:
    """Delivers. `run` is a task of the console."""

    def __init__(
        self,
        book: AlertBook,
        *,
        region: str,
        webhooks: CallsWebhooks,
        mails: AlertMails,
        queues: QueueHand,
        is_leading: Callable[[], bool],
        look_s: float = LOOK_S,
    ) -> None:
        self._book = book
        self._region = region
        self._webhooks = webhooks
        self._mails = mails
        self._queues = queues
        self._is_leading = is_leading
        self._look_s = look_s
        self._attempts: dict[_Place, _Attempts] = {}
        self._in_progress: dict[_Place, asyncio.Task[None]] = {}
        self._more = asyncio.Event()
        self._results: Counter[tuple[str, str]] = Counter()

    def wake(self) -> None:
        """Say that there may be something to deliver."""
        self._more.set()

    async def run(self) -> None:
        """Deliver for ever."""
        while True:
            self._more.clear()
            if self._is_leading():
                self._begin_due()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await self._more.wait()

    async def close(self) -> None:
        """Give up what is in progress: it is delivered again."""
        tasks = list(self._in_progress.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def test(self, destination: Destination, alert: Alert, notification: Notification) -> Outcome:
        """Deliver once to a destination, and return what came of it."""
        return await self._to_destination(destination, alert, notification)

    def samples(self) -> list[Sample]:
        """Give the metrics: a source for `Metrics`."""
        return [
            Sample("quaymaster_notifications_total", float(number), (kind, result))
            for (kind, result), number in self._results.items()
        ]

    def _begin_due(self) -> None:
        now_ms = self._book.now_ms()
        present = set()
        for account_id, name in list(self._book.rows.waiting):
            status = self._book.rows.states.get(account_id, name)
            alert = self._book.rows.alerts.get(account_id, name)
            if status is None or alert is None:
                continue
            first: dict[str, Notification] = {}
            for notification in status.outbox:
                first.setdefault(notification.action, notification)
            for action, notification in first.items():
                place = _Place(account_id, name, notification.id, action)
                present.add(place)
                tried = self._attempts.get(place)
                if place in self._in_progress or len(self._in_progress) >= AT_ONCE_MAX:
                    continue
                if tried is None or tried.due_ms <= now_ms:
                    task = asyncio.create_task(self._deliver(place, alert, notification), name="notification")
                    self._in_progress[place] = supervise(task)
        for place in self._attempts.keys() - present:
            del self._attempts[place]

    async def _deliver(self, place: _Place, alert: Alert, notification: Notification) -> None:
        try:
            kind, outcome = await self._attempt(alert, notification)
            now_ms = self._book.now_ms()
            count = self._attempts[place].number + 1 if place in self._attempts else 1
            result: str = outcome
            if outcome == "retry":
                due_ms = next_attempt_ms(count, now_ms, notification.at_ms)
                if due_ms is not None:
                    self._attempts[place] = _Attempts(count, due_ms)
                    self._results[kind, "retry"] += 1
                    return
                result = "expired"
            try:
                await self._book.note_action(alert, place.told, place.action, result)
            except NotNow:
                return  # it is delivered again
            self._results[kind, result] += 1
            if result != "delivered":
                log_event(
                    log,
                    logging.WARNING,
                    "notification given up",
                    account=place.account_id,
                    alert=place.name,
                    action=place.action,
                    result=result,
                )
        finally:
            del self._in_progress[place]
            self.wake()

    async def _attempt(self, alert: Alert, notification: Notification) -> tuple[Kind, Outcome]:
        action = parse_action(notification.action)
        if isinstance(action, QueueArn):
            return "queue", await self._to_queue(notification.action, alert, notification)
        destination = self._book.rows.destinations.get(alert.account_id, action.name)
        if destination is None or action.account_id != alert.account_id:
            return "none", "failed"
        return destination.kind, await self._to_destination(destination, alert, notification)

    async def _to_destination(
        self, destination: Destination, alert: Alert, notification: Notification
    ) -> Outcome:
        if destination.confirmed_ms is None:
            return "failed"
        if destination.kind == "webhook":
            return await self._to_webhook(destination, alert, notification)
        if destination.kind == "queue":
            return await self._to_queue(destination.target, alert, notification)
        return await self._mails.send(
            destination.target,
            message_subject(alert, notification),
            message_text(alert, notification, self._region),
            notification.id,
        )

    async def _to_webhook(
        self, destination: Destination, alert: Alert, notification: Notification
    ) -> Outcome:
        body = message_json(alert, notification, self._region).encode()
        secret = self._book.secret_of(destination)
        headers = signed_headers([secret], notification.id, self._book.now_ms() // 1_000, body)
        headers["content-type"] = "application/json"
        try:
            answer = await self._webhooks.call(
                "POST", destination.target, headers=headers, body=body, answer_bytes_max=ANSWER_BYTES_MAX
            )
        except OutboundRefused:
            return "failed"
        except OutboundError:
            return "retry"
        return outcome_of(answer.status)

    async def _to_queue(self, queue_arn: str, alert: Alert, notification: Notification) -> Outcome:
        return await self._queues.send(
            alert.account_id,
            queue_arn,
            message_json(alert, notification, self._region),
            notification.id,
            alert_arn(self._region, alert.account_id, alert.name),
        )
