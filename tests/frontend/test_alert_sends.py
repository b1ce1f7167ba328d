"""Notifications of alerts on their way to queues: as the root of the alert's account, and no further than it may go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import pytest
from harness.waiting import PATIENCE_S

from frontend.support import ACCOUNT, REGION, Service, serving
from quaymaster.core.values.errors import NotNow, Unreachable
from quaymaster.frontend.alert_sends import AlertSends, AsksConsolePeer
from quaymaster.protocol.actions.table import ACTIONS
from quaymaster.protocol.rpc.alert_calls import (
    SETTLE,
    TAKE,
    QueueNotification,
    SettledNotification,
    TakenNotifications,
    decode_settle,
    decode_take,
    encode_alert_call,
)

SHOP = "111122223333"
TRANSITION = "ab" * 16


class PlayedConsole:
    """A console that has notifications, and notes what came of them."""

    def __init__(self, *notifications: QueueNotification) -> None:
        self.left = list(notifications)
        self.settled: list[SettledNotification] = []
        self.fails = 0
        self.done = asyncio.Event()

    async def ask(self, method: str, body: bytes, deadline_ms: int) -> bytes:
        """Answer a front end."""
        if self.fails:
            self.fails -= 1
            raise Unreachable("away")
        if method == SETTLE:
            self.settled += decode_settle(body).settled
            self.done.set()
            return b""
        assert method == TAKE
        assert decode_take(body).wait_ms < deadline_ms
        if not self.left:
            await asyncio.sleep(PATIENCE_S)
        taken, self.left = self.left, []
        return encode_alert_call(TakenNotifications(taken))


def to_queue(
    name: str, *, owner: str = ACCOUNT, account: str = ACCOUNT, region: str = REGION
) -> QueueNotification:
    """Return a notification of an account's alert to a queue."""
    arn = f"arn:aws:sqs:{region}:{owner}:{name}"
    return QueueNotification(
        7, account, arn, '{"AlarmName": "a"}', TRANSITION, f"arn:aws:cloudwatch:{region}:{account}:alarm:a"
    )


def sends_of(service: Service, **consoles: AsksConsolePeer) -> AlertSends:
    """Return what sends for these consoles."""

    async def find() -> Mapping[str, AsksConsolePeer]:
        return consoles

    front_end = service.front_end
    return AlertSends(
        find,
        lambda request, principal, given: front_end.carry_out_for(
            request, principal, ACTIONS["SendMessage"], given
        ),
        region=REGION,
        look_s=0.01,
    )


def run(scenario: Callable[[Service], Awaitable[None]], **flags: Any) -> None:
    """Run a scenario with a front end."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), serving(**flags) as service:
            await scenario(service)

    asyncio.run(main())


async def bodies(service: Service, name: str, account: str = ACCOUNT) -> list[str]:
    """Return what is received from a queue."""
    url = service.client.url(name, account)
    answer = await service.client.json("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10})
    return [message["Body"] for message in answer.json.get("Messages", [])]


@pytest.mark.parametrize("name", ["told", "told.fifo"])
def test_an_alert_comes_to_a_queue_of_its_account(name: str) -> None:
    async def scenario(service: Service) -> None:
        await service.add_queue(name)
        console = PlayedConsole(to_queue(name))
        task = asyncio.create_task(sends_of(service, a=console).run())
        await console.done.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

        assert console.settled == [SettledNotification(7, "delivered")]
        assert await bodies(service, name) == ['{"AlarmName": "a"}']

    run(scenario)


def test_an_alert_comes_to_no_queue_that_its_account_cannot_send_to() -> None:
    async def scenario(service: Service) -> None:
        await service.metadata.accounts.create_account("shop", SHOP)
        await service.add_queue("told")
        sends = sends_of(service)

        assert await sends.send(to_queue("told", account=SHOP)) == ("failed", "AccessDeniedException")
        assert await bodies(service, "told") == []

        statement = {
            "Effect": "Allow",
            "Principal": {"AWS": SHOP},
            "Action": "sqs:SendMessage",
            "Resource": f"arn:aws:sqs:{REGION}:{ACCOUNT}:told",
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        url = service.client.url("told")
        await service.client.json("SetQueueAttributes", {"QueueUrl": url, "Attributes": {"Policy": policy}})
        assert await sends.send(to_queue("told", account=SHOP)) == ("delivered", "")

    run(scenario)


@pytest.mark.parametrize(
    ("notification", "reason"),
    [
        (to_queue("missing"), "QueueDoesNotExist"),
        (to_queue("told", region="eu-west-1"), "no queue of this region"),
        (to_queue("quaymaster-usage"), ""),
    ],
)
def test_an_alert_to_a_queue_that_there_is_not_fails(notification: QueueNotification, reason: str) -> None:
    async def scenario(service: Service) -> None:
        outcome, why = await sends_of(service).send(notification)

        assert outcome == "failed"
        assert reason in why

    run(scenario)


def test_a_broker_that_cannot_store_it_now_has_it_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(service: Service) -> None:
        await service.add_queue("told")

        def away(command: object) -> None:
            raise NotNow("away")

        monkeypatch.setattr(service.broker, "_carry_out", away)
        assert (await sends_of(service).send(to_queue("told")))[0] == "retry"

    run(scenario)


def test_a_console_that_goes_is_asked_again_when_it_is_back() -> None:
    async def scenario(service: Service) -> None:
        await service.add_queue("told")
        console = PlayedConsole(to_queue("told"))
        console.fails = 3
        task = asyncio.create_task(sends_of(service, a=console).run())
        await console.done.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

        assert console.settled[0].outcome == "delivered"

    run(scenario)


def test_a_console_that_is_no_longer_there_is_not_asked() -> None:
    async def scenario(service: Service) -> None:
        console = PlayedConsole()
        there: dict[str, AsksConsolePeer] = {"a": console}
        looks = [0]

        async def find() -> Mapping[str, AsksConsolePeer]:
            looks[0] += 1
            if looks[0] == 3:
                there.clear()
            if looks[0] == 2:
                raise NotNow("the store is away")
            return there

        sends = AlertSends(find, partial(print), region=REGION, look_s=0.01)
        task = asyncio.create_task(sends.run())
        while looks[0] < 5:  # noqa: ASYNC110 -- there is no event for it
            await asyncio.sleep(0.01)
        assert not sends._tasks
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(scenario)
