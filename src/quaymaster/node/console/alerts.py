"""The alerts of a console, put together.

store ─▶ book ◀── CloudWatch's operations, the admin API
           │
history ─▶ evaluator ─▶ outbox ─▶ delivery ─▶ webhooks, mail server, front ends
                              └─▶ Alertmanager
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from quaymaster.broker.cell.broker_tasks import BrokerTasks
from quaymaster.broker.replica.clock import wall_ms
from quaymaster.console.alerts.alert_book import AlertBook
from quaymaster.console.alerts.alert_rows import AlertRows
from quaymaster.console.alerts.alertmanager import AlertmanagerFeed
from quaymaster.console.alerts.cloudwatch_alarms import CloudWatchAlarms
from quaymaster.console.alerts.delivery import AlertDelivery
from quaymaster.console.alerts.evaluator import AlertEvaluator
from quaymaster.console.alerts.mail import AlertMails
from quaymaster.console.alerts.queue_hand import QueueHand
from quaymaster.console.alerts.series import AlertSeries
from quaymaster.console.site import AlertNow
from quaymaster.coordination.interface import Compare, Coordination
from quaymaster.coordination.leadership import Leadership
from quaymaster.core.alerts.alerts import Alert, AlertStatus
from quaymaster.core.alerts.mail_servers import parse_smtp_url
from quaymaster.core.values.errors import NotNow, ResourceNotFound
from quaymaster.metadata.store.rows import ACCOUNTS, AccountRow, row_decoder
from quaymaster.net.console_key import derive_key
from quaymaster.net.outbound.client import OutboundClient
from quaymaster.net.outbound.own_endpoints import customer_rules
from quaymaster.net.rpc import CallHandler, IncomingCall
from quaymaster.node.cell.live_processes import live_processes
from quaymaster.node.node import Node
from quaymaster.protocol.rpc.alert_calls import (
    SETTLE,
    TAKE,
    TakenNotifications,
    decode_settle,
    decode_take,
    encode_alert_call,
)
from quaymaster.protocol.webhooks.confirmations import confirmed_destination
from quaymaster.settings import Settings

LEADER_KEY: Final = "consoles/alerts"
KEY_PURPOSE: Final = "alerts"
UPKEEP_S: Final = 3_600.0
MILLISECONDS: Final = 1_000

_decode_account = row_decoder(AccountRow)


@dataclass(frozen=True, slots=True)
class ConsoleAlerts:
    """The parts that others ask. `handlers`: the calls of front ends."""

    book: AlertBook
    alarms: CloudWatchAlarms
    delivery: AlertDelivery
    feed: AlertmanagerFeed | None
    handlers: dict[str, CallHandler]
    key: bytes

    async def confirm_address(self, token: str) -> str | None:
        """See `Site`."""
        destination_id = confirmed_destination(self.key, token, wall_ms() // MILLISECONDS)
        if destination_id is None:
            return None
        try:
            return (await self.book.confirm(destination_id)).name
        except ResourceNotFound:
            return None

    def now(self, account: str | None) -> Sequence[AlertNow]:
        """Return alerts as pages show them: of an account, or of all with the built-in ones that fire."""
        rows = self.book.rows
        found = list(rows.alerts) if account is None else rows.alerts.of_account(account)
        shown = [_shown(alert, rows.state(alert)) for alert in found]
        if account is None and self.feed is not None:
            shown += [
                _shown(alert, status, is_built_in=True) for alert, status in self.feed.firing_built_in()
            ]
        return shown


def _shown(alert: Alert, status: AlertStatus, *, is_built_in: bool = False) -> AlertNow:
    return AlertNow(
        alert.account_id,
        alert.name,
        status.state,
        status.changed_ms,
        alert.subject_text,
        alert.condition_text,
        status.reason,
        is_built_in,
    )


async def start_alerts(
    node: Node, store: Coordination, key: bytes, series: AlertSeries, *, console_url: str, is_alone: bool
) -> ConsoleAlerts:
    """Start the alerts of a console. `is_alone`: there is no other console, so this one leads."""
    settings, stack = node.settings, node.stack
    key = derive_key(key, KEY_PURPOSE)
    rows = AlertRows(store)
    stack.push_async_callback(rows.close)
    await rows.start()
    mails = _mails(settings, key, console_url)
    book = AlertBook(
        rows,
        account_condition=lambda account_id: _account_condition(store, account_id),
        mails=mails,
        key=key,
        now_ms=wall_ms,
        alerts_per_account_max=settings.alerts_per_account_max,
    )
    is_leading = _always if is_alone else await _lead(node, store)
    live = tuple if is_alone else live_processes(node, store)
    webhooks = OutboundClient(rules=customer_rules(settings, live_processes=live))
    stack.push_async_callback(webhooks.close)
    hand = QueueHand()
    delivery = AlertDelivery(
        book, region=settings.region, webhooks=webhooks, mails=mails, queues=hand, is_leading=is_leading
    )
    book.on_change = delivery.wake
    stack.push_async_callback(delivery.close)
    evaluator = AlertEvaluator(book, series, is_leading=is_leading)
    node.run("alert evaluator", evaluator.run())
    node.run("alert delivery", delivery.run())
    node.run("alert upkeep", _keep_up(book, is_leading))
    node.metrics.add_source(evaluator.samples)
    node.metrics.add_source(delivery.samples)
    feed = _feed(node, book, series, is_leading)
    return ConsoleAlerts(book, CloudWatchAlarms(book), delivery, feed, _handlers(node, hand), key)


def _mails(settings: Settings, key: bytes, console_url: str) -> AlertMails:
    url = settings.smtp_url
    server = None if url is None else parse_smtp_url(url.get_secret_value())
    return AlertMails(server, console_url=console_url, key=key, now_ms=wall_ms)


def _feed(
    node: Node, book: AlertBook, series: AlertSeries, is_leading: Callable[[], bool]
) -> AlertmanagerFeed | None:
    settings = node.settings
    if settings.alertmanager_url is None:
        return None
    client = OutboundClient(rules=None)
    node.stack.push_async_callback(client.close)
    feed = AlertmanagerFeed(
        book,
        series,
        client,
        url=settings.alertmanager_url,
        cell=settings.cell,
        region=settings.region,
        operators_account=settings.account_id,
        is_leading=is_leading,
    )
    node.run("alertmanager", feed.run())
    node.metrics.add_source(feed.samples)
    return feed


async def _lead(node: Node, store: Coordination) -> Callable[[], bool]:
    """Begin to stand for the one console that acts; return what tells whether this is it."""
    loop = asyncio.get_running_loop()
    leadership = Leadership(
        store, LEADER_KEY, node.settings.node_name, now_ms=lambda: int(loop.time() * MILLISECONDS)
    )
    node.run("console leadership", leadership.run())
    node.stack.push_async_callback(leadership.close)
    return lambda: leadership.is_held


def _always() -> bool:
    return True


async def _keep_up(book: AlertBook, is_leading: Callable[[], bool]) -> None:
    while True:
        await asyncio.sleep(UPKEEP_S)
        if is_leading():
            try:
                await book.drop_those_of_deleted_accounts()
            except NotNow:
                continue  # an hour later


async def _account_condition(store: Coordination, account_id: str) -> Compare:
    row = await store.get(ACCOUNTS + account_id)
    if row is None or _decode_account(row.value).state == "deleted":
        raise ResourceNotFound(f"The account {account_id} does not exist.")
    return Compare(row.key, row.revision)


def _handlers(node: Node, hand: QueueHand) -> dict[str, CallHandler]:
    tasks = BrokerTasks(node.fail)
    node.stack.push_async_callback(tasks.close)

    def on_take(call: IncomingCall) -> None:
        async def take() -> None:
            wait_s = min(decode_take(call.body).wait_ms, call.deadline_ms) / MILLISECONDS
            call.reply(encode_alert_call(TakenNotifications(await hand.take(wait_s))))

        tasks.answer(call, take())

    def on_settle(call: IncomingCall) -> None:
        hand.settle(decode_settle(call.body).settled)
        call.reply(b"")

    return {TAKE: on_take, SETTLE: on_settle}
