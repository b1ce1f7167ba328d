"""Notifications on their way to webhooks, mail addresses and queues, again and again under the same id."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from core.alerts.support import an_alert
from harness.mail_server import MailPost, mail_server
from harness.waiting import PATIENCE_S
from harness.web_servers import WebServer, self_signed, web_server
from standardwebhooks import Webhook

from console.alerts.support import ACCOUNT, KEY, REGION, AlertWorld, hook_arn, run_alerts, until
from quaymaster.console.alerts.alert_book import AlertBook
from quaymaster.console.alerts.delivery import AlertDelivery
from quaymaster.console.alerts.mail import AlertMails
from quaymaster.console.alerts.queue_hand import QueueHand
from quaymaster.core.alerts.alerts import Notification
from quaymaster.core.alerts.mail_servers import MailServer, parse_smtp_url
from quaymaster.core.values.errors import NotNow
from quaymaster.net.outbound.address_rules import AddressRules
from quaymaster.net.outbound.client import OutboundClient
from quaymaster.protocol.rpc.alert_calls import QueueNotification, SettledNotification
from quaymaster.protocol.webhooks.confirmations import confirmed_destination

TOLD = f"arn:aws:sqs:{REGION}:{ACCOUNT}:told"
LOOPBACK = AddressRules([ip_network("127.0.0.0/8")])
NOWHERE = AddressRules([])


class Delivering:
    """A delivery that runs, and what it delivers by."""

    def __init__(self, world: AlertWorld, book: AlertBook, rules: AddressRules, mails: AlertMails) -> None:
        self.world = world
        self.book = book
        self.leads = True
        self.webhooks = OutboundClient(rules=rules)
        self.queues = QueueHand()
        self.delivery = AlertDelivery(
            book,
            region=REGION,
            webhooks=self.webhooks,
            mails=mails,
            queues=self.queues,
            is_leading=lambda: self.leads,
            look_s=0.01,
        )

    def results(self) -> dict[tuple[str, ...], float]:
        """Return how many attempts there were, by kind and result."""
        return {sample.labels: sample.value for sample in self.delivery.samples()}

    async def fire(self, action: str, **changes: Any) -> str:
        """Make an alert that is in alarm, and return the id of that transition."""
        await self.book.put(an_alert(alarm_actions=(action,), ok_actions=(action,), **changes))
        await self.book.set_state(ACCOUNT, "orders-old", "ALARM", "by hand")
        return self.book.rows.state(self.book.alert(ACCOUNT, "orders-old")).outbox[0].id

    async def until_told(self, *results: str) -> None:
        """Return when there is nothing to deliver any more; the history has these results, the newest first."""
        await until(lambda: not self.book.rows.waiting)
        past = (await self.book.history(ACCOUNT, "orders-old")).changes
        actions = [json.loads(change.data)["result"] for change in past if change.kind == "Action"]
        assert actions == list(results)


@asynccontextmanager
async def delivering(
    world: AlertWorld, *, rules: AddressRules = LOOPBACK, server: MailServer | None = None
) -> AsyncIterator[Delivering]:
    """Deliver until the block ends."""
    url = "https://console.example.com"
    mails = AlertMails(server, console_url=url, key=KEY, now_ms=lambda: world.now_ms)
    async with world.book(mails=mails) as book:
        at_work = Delivering(world, book, rules, mails)
        task = asyncio.create_task(at_work.delivery.run())
        try:
            yield at_work
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await at_work.delivery.close()
            await at_work.webhooks.close()


@asynccontextmanager
async def receiver(*statuses: int) -> AsyncIterator[tuple[WebServer, list[tuple[dict[str, str], bytes]]]]:
    """Serve a webhook that answers so, the last status again and again."""
    came: list[tuple[dict[str, str], bytes]] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        came.append((dict(request.headers), await request.read()))
        return web.Response(status=statuses[min(len(came), len(statuses)) - 1])

    async with web_server(handler) as server:
        yield server, came


def test_a_webhook_gets_the_alarm_signed() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with receiver(204) as (server, came), delivering(world) as at_work:
            await at_work.book.add_destination(ACCOUNT, "hook", "webhook", f"{server.url}/alerts?a=1")
            world.now_ms = int(time.time() * 1_000)  # the receiver's clock judges
            told = await at_work.fire(hook_arn())
            await at_work.until_told("delivered")

            [(headers, body)] = came
            lower = {name.lower(): value for name, value in headers.items()}
            message = Webhook(at_work.book.secret(ACCOUNT, "hook")).verify(body, lower)
            assert (message["AlarmName"], message["NewStateValue"]) == ("orders-old", "ALARM")
            assert message["TransitionId"] == lower["webhook-id"] == told
            assert server.requests[0].path_qs == "/alerts?a=1"
            assert at_work.results() == {("webhook", "delivered"): 1}

    run_alerts(scenario)


def test_a_webhook_that_fails_is_tried_again_under_the_same_id_and_in_order() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with receiver(500, 503, 200) as (server, came), delivering(world) as at_work:
            await at_work.book.add_destination(ACCOUNT, "hook", "webhook", server.url)
            told = await at_work.fire(hook_arn())
            await until(lambda: at_work.results().get(("webhook", "retry")) == 1)
            await at_work.book.set_state(ACCOUNT, "orders-old", "OK", "by hand")
            world.now_ms += 5_000
            await until(lambda: at_work.results().get(("webhook", "retry")) == 2)
            world.now_ms += 29_000
            assert len(came) == 2
            world.now_ms += 1_000
            await at_work.until_told("delivered", "delivered")

            ids = [json.loads(body)["TransitionId"] for _, body in came]
            assert ids[:3] == [told] * 3
            assert [json.loads(body)["NewStateValue"] for _, body in came] == ["ALARM"] * 3 + ["OK"]

    run_alerts(scenario)


def test_a_webhook_that_fails_for_a_day_is_given_up() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with receiver(500) as (server, _), delivering(world) as at_work:
            await at_work.book.add_destination(ACCOUNT, "hook", "webhook", server.url)
            await at_work.fire(hook_arn())
            await until(lambda: at_work.results().get(("webhook", "retry")) == 1)
            world.now_ms += 86_400_000
            await at_work.until_told("expired")

            assert at_work.results()["webhook", "expired"] == 1

    run_alerts(scenario)


def test_a_webhook_that_is_gone_is_not_tried_again() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with receiver(410) as (server, came), delivering(world) as at_work:
            await at_work.book.add_destination(ACCOUNT, "hook", "webhook", server.url)
            await at_work.fire(hook_arn())
            await at_work.until_told("failed")
            assert len(came) == 1

    run_alerts(scenario)


def test_a_webhook_at_a_private_address_is_never_called() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with receiver(200) as (server, came), delivering(world, rules=NOWHERE) as at_work:
            await at_work.book.add_destination(ACCOUNT, "hook", "webhook", server.url)
            await at_work.fire(hook_arn())
            await at_work.until_told("failed")
            assert came == []

    run_alerts(scenario)


def test_a_console_that_stands_by_delivers_nothing() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with (
            receiver(200) as (server, came),
            delivering(world) as at_work,
            delivering(world) as standing_by,
        ):
            standing_by.leads = at_work.leads = False
            await at_work.book.add_destination(ACCOUNT, "hook", "webhook", server.url)
            await at_work.fire(hook_arn())
            at_work.leads = True
            await at_work.until_told("delivered")
            assert len(came) == 1
            assert standing_by.results() == {}

    run_alerts(scenario)


def test_a_console_that_dies_before_it_noted_a_delivery_has_it_delivered_again_under_its_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: AlertWorld) -> None:
        async with receiver(200) as (server, came):
            async with delivering(world) as first:

                async def dies(*_: object) -> None:
                    first.leads = False
                    raise NotNow

                monkeypatch.setattr(first.book, "note_action", dies)
                await first.book.add_destination(ACCOUNT, "hook", "webhook", server.url)
                await first.fire(hook_arn())
                await until(lambda: came and not first.leads)
            async with delivering(world) as second:
                await second.until_told("delivered")

            assert len({headers["webhook-id"] for headers, _ in came}) == 1
            assert len(came) == 2

    run_alerts(scenario)


def test_a_destination_that_is_gone_fails() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with delivering(world) as at_work:
            at_work.leads = False
            await at_work.book.add_destination(ACCOUNT, "hook", "webhook", "https://example.com/")
            await at_work.fire(hook_arn())
            key = at_work.book.rows.destinations.key(ACCOUNT, "hook")
            await at_work.book.rows.transact([], deletes=[key])
            at_work.leads = True
            await at_work.until_told("failed")
            assert at_work.results() == {("none", "failed"): 1}

    run_alerts(scenario)


async def confirmed(at_work: Delivering, post: MailPost, address: str = "on-call@example.com") -> None:
    """Have an address, by the link that came to it."""
    await at_work.book.add_destination(ACCOUNT, "hook", "email", address)
    text = post.mails[-1].text
    link = next(
        line for line in text.splitlines() if line.startswith("https://console.example.com/alerts/confirm?")
    )
    token = link.partition("token=")[2]
    destination_id = confirmed_destination(KEY, token, at_work.world.now_ms // 1_000)
    assert destination_id is not None
    await at_work.book.confirm(destination_id)


def smtp(post: MailPost, **changes: Any) -> MailServer:
    """Return the server as settings name it."""
    return parse_smtp_url(f"smtp://127.0.0.1:{post.port}?from=alerts@example.org")._replace(**changes)


def test_a_mail_says_what_is_wrong_to_an_address_that_was_confirmed() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with mail_server() as post, delivering(world, server=smtp(post)) as at_work:
            await confirmed(at_work, post)
            told = await at_work.fire(hook_arn(), name="orders-old", description="Größer als 300 s")
            await at_work.until_told("delivered")

            _, mail = post.mails
            assert mail.recipients == ["on-call@example.com"]
            assert mail.message["Subject"] == "ALARM: orders-old"
            assert mail.message["Message-ID"] == f"<{told}@example.org>"
            assert mail.message["From"] == "Quaymaster <alerts@example.org>"
            assert "Größer als 300 s" in mail.text

    run_alerts(scenario)


def test_an_address_that_was_not_confirmed_gets_no_alert() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with mail_server() as post, delivering(world, server=smtp(post)) as at_work:
            await at_work.book.add_destination(ACCOUNT, "hook", "email", "other@example.com")
            await at_work.fire(hook_arn())
            await at_work.until_told("failed")
            assert [mail.message["Subject"] for mail in post.mails] == ["Confirm your address for alerts"]

    run_alerts(scenario)


@pytest.mark.parametrize(("reply", "result"), [("550", "failed"), ("450", "retry")])
def test_a_refused_recipient_fails_for_good_or_for_now(reply: str, result: str) -> None:
    async def scenario(world: AlertWorld) -> None:
        async with mail_server() as post, delivering(world, server=smtp(post)) as at_work:
            await confirmed(at_work, post)
            post.refuses = reply
            await at_work.fire(hook_arn())
            await until(lambda: at_work.results() == {("email", result): 1})

    run_alerts(scenario)


def test_without_a_mail_server_mails_are_tried_again_and_confirmations_refused() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with mail_server() as post:
            server = smtp(post)
        mails = AlertMails(server, console_url="", key=KEY, now_ms=lambda: 0)
        assert await mails.send("a@example.com", "subject", "text", "id") == "retry"
        async with delivering(world, server=server) as at_work:
            with pytest.raises(NotNow, match="later"):
                await at_work.book.add_destination(ACCOUNT, "hook", "email", "a@example.com")
        none = AlertMails(None, console_url="", key=KEY, now_ms=lambda: 0)
        assert "smtp_url" in none.why_not
        assert await none.send("a@example.com", "subject", "text", "id") == "failed"

    run_alerts(scenario)


def test_a_password_is_sent_over_tls_or_to_this_host_only(tmp_path: Path) -> None:
    async def scenario(world: AlertWorld) -> None:
        context, trusted = self_signed(tmp_path, "127.0.0.1")
        tls = ssl.create_default_context(cafile=trusted)
        for starttls, from_start in ((context, None), (None, context), (None, None)):
            async with mail_server(starttls=starttls, tls=from_start) as post:
                server = smtp(post, user="u", password="p@ss", is_tls=from_start is not None)
                mails = AlertMails(server, console_url="", key=KEY, now_ms=lambda: 0, tls=tls)
                assert await mails.send("a@example.com", "subject", "text", "id") == "delivered"
                assert post.logins == [("u", "p@ss")]

    run_alerts(scenario)


def test_a_password_is_not_sent_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: AlertWorld) -> None:
        monkeypatch.setattr(MailServer, "is_loopback", False)
        async with mail_server() as post:
            mails = AlertMails(smtp(post, user="u", password="p"), console_url="", key=KEY, now_ms=lambda: 0)
            assert await mails.send("a@example.com", "subject", "text", "id") == "retry"
            assert (post.logins, post.mails) == ([], [])

    run_alerts(scenario)


async def taken(at_work: Delivering) -> QueueNotification:
    """Return the one notification that a front end takes."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := await at_work.queues.take(1.0)):
            pass
    [one] = found
    return one


@pytest.mark.parametrize("action", [TOLD, hook_arn()])
def test_a_queue_gets_the_alarm_from_a_front_end(action: str) -> None:
    async def scenario(world: AlertWorld) -> None:
        async with delivering(world) as at_work:
            await at_work.book.add_destination(ACCOUNT, "hook", "queue", TOLD)
            told = await at_work.fire(action)

            one = await taken(at_work)
            at_work.queues.settle(
                [SettledNotification(one.ticket, "delivered"), SettledNotification(99, "failed")]
            )
            await at_work.until_told("delivered")

            assert (one.account_id, one.queue_arn, one.transition_id) == (ACCOUNT, TOLD, told)
            assert json.loads(one.body)["TransitionId"] == told
            assert one.alert_arn.endswith(":alarm:orders-old")

    run_alerts(scenario)


def test_an_alert_to_a_queue_that_its_account_may_not_send_to_fails() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with delivering(world) as at_work:
            await at_work.fire(TOLD)
            one = await taken(at_work)
            at_work.queues.settle([SettledNotification(one.ticket, "failed", "AccessDenied")])
            await at_work.until_told("failed")

    run_alerts(scenario)


def test_what_a_front_end_took_and_did_not_settle_is_offered_again() -> None:
    async def scenario(world: AlertWorld) -> None:
        hand = QueueHand(lease_s=0.01)
        sent = asyncio.create_task(hand.send(ACCOUNT, TOLD, "body", "id", "arn"))
        [one] = await hand.take(PATIENCE_S)
        assert await sent == "retry"
        hand.settle([SettledNotification(one.ticket, "delivered")])
        assert await hand.take(0.01) == []

    run_alerts(scenario)


def test_a_test_delivers_once_whatever_the_alert_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: AlertWorld) -> None:
        async with receiver(200) as (server, came), delivering(world) as at_work:
            destination = await at_work.book.add_destination(ACCOUNT, "hook", "webhook", server.url)
            told = Notification("ab" * 16, hook_arn(), "OK", "ALARM", "a test", world.now_ms)
            assert await at_work.delivery.test(destination, an_alert(), told) == "delivered"
            assert len(came) == 1

    run_alerts(scenario)
