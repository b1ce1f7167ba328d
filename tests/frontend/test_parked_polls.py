"""Long polls end when whoever waits may wait no longer, and give no message to those who may not have it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from metadata.support import eventually

from quaymaster.core.values.commands.messages import Receive
from quaymaster.frontend import call
from quaymaster.frontend.callers.standing import FRESH_MS
from quaymaster.frontend.limits import parked_polls
from quaymaster.protocol.rpc.metadata_messages import SetAttributes

from .support import ACCOUNT, Answer, Client, Service, serving

MAY_ALL = json.dumps({"Statement": {"Effect": "Allow", "Action": "sqs:*", "Resource": "*"}})
Revoke = Callable[[Service, str], Awaitable[Any]]


async def deny_all(service: Service, key_id: str) -> None:
    policy = json.dumps({"Statement": {"Effect": "Deny", "Principal": "*", "Action": "sqs:ReceiveMessage"}})
    await service.metadata.queues.change(SetAttributes(ACCOUNT, "jobs", {"Policy": policy}))


async def disable_for_a_moment(service: Service, key_id: str) -> None:
    for enabled in (False, True):
        await service.metadata.accounts.set_enabled(key_id, enabled=enabled)


REVOCATIONS: dict[str, tuple[Revoke, str]] = {
    "the key is disabled": (
        lambda service, key_id: service.metadata.accounts.set_enabled(key_id, enabled=False),
        "UnrecognizedClient",
    ),
    "the key has a new secret": (
        lambda service, key_id: service.metadata.accounts.rotate_secret(key_id),
        "UnrecognizedClient",
    ),
    "the key was disabled for a moment": (disable_for_a_moment, "UnrecognizedClient"),
    "the key is deleted": (
        lambda service, key_id: service.metadata.accounts.delete_access_key(key_id),
        "UnrecognizedClient",
    ),
    "the user is deleted": (
        lambda service, key_id: service.metadata.identities.delete("user", ACCOUNT, "ada"),
        "UnrecognizedClient",
    ),
    "the policy is taken away": (
        lambda service, key_id: service.metadata.identities.delete_policy("user", ACCOUNT, "ada", "all"),
        "AccessDenied",
    ),
    "the queue's policy denies it": (deny_all, "AccessDenied"),
}
OTHERS: dict[str, Revoke] = {
    "another user is deleted": lambda service, key_id: service.metadata.identities.delete(
        "user", ACCOUNT, "bob"
    ),
    "another policy is added": lambda service, key_id: service.metadata.identities.put_policy(
        "user", ACCOUNT, "ada", "more", MAY_ALL
    ),
}


def with_poll(test: Callable[[Service, str, asyncio.Task[Answer]], Awaitable[None]], **flags: Any) -> None:
    async def scenario() -> None:
        async with serving(**flags) as service:
            await service.add_queue("jobs")
            identities = service.metadata.identities
            for name in ("ada", "bob"):
                await identities.create_user(ACCOUNT, name)
            await identities.put_policy("user", ACCOUNT, "ada", "all", MAY_ALL)
            key = await service.metadata.accounts.create_access_key(ACCOUNT, user="ada")
            client = Client(service.client.port, key.access_key_id, key.secret)
            given = {"QueueUrl": client.url("jobs"), "WaitTimeSeconds": 20}
            poll = asyncio.create_task(client.json("ReceiveMessage", given))
            await eventually(lambda: any(isinstance(one, Receive) for one in service.broker.commands))
            await test(service, key.access_key_id, poll)

    asyncio.run(scenario())


async def send(service: Service) -> None:
    url = service.client.url("jobs")
    await service.client.json("SendMessage", {"QueueUrl": url, "MessageBody": "secret"})


@pytest.mark.parametrize("revocation", REVOCATIONS)
def test_a_poll_ends_soon_after_it_was_forbidden(revocation: str) -> None:
    async def test(service: Service, key_id: str, poll: asyncio.Task[Answer]) -> None:
        revoke, code = REVOCATIONS[revocation]
        await revoke(service, key_id)
        async with asyncio.timeout(10):
            answer = await poll
        assert answer.status == 403
        assert code in answer.json["__type"]
        assert all(submitted.is_cancelled for submitted, _ in service.broker.parked)

    with_poll(test)


@pytest.mark.parametrize("revocation", REVOCATIONS)
def test_messages_that_come_before_it_ends_are_not_given_to_it(
    revocation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parked_polls, "RECHECK_DELAY_S", 3_600)

    async def test(service: Service, key_id: str, poll: asyncio.Task[Answer]) -> None:
        revoke, code = REVOCATIONS[revocation]
        await revoke(service, key_id)
        await send(service)
        async with asyncio.timeout(10):
            answer = await poll
        assert code in answer.json["__type"]
        assert b"secret" not in answer.body

    with_poll(test)


def before(hour: int) -> str:
    return f"2040-01-01T{hour:02}:00:00Z"


NOON_MS = 2_209_032_000_000
"""Of the same day."""


@pytest.mark.parametrize(("ends", "is_given"), [("before it", False), ("after it", True), ("never", True)])
def test_a_poll_gets_no_messages_that_come_when_its_permission_has_ended(
    ends: str, is_given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "WAITED_MS", 0)

    async def test(service: Service, key_id: str, poll: asyncio.Task[Answer]) -> None:
        await end(service, poll)
        if ends != "never":
            until = before(11 if ends == "before it" else 13)
            condition = {"DateLessThan": {"aws:CurrentTime": until}}
            allowed = {"Effect": "Allow", "Action": "sqs:*", "Resource": "*", "Condition": condition}
            policy = json.dumps({"Statement": allowed})
            await service.metadata.identities.put_policy("user", ACCOUNT, "ada", "all", policy)
        key = await service.metadata.accounts.create_access_key(ACCOUNT, user="ada")
        again = await parked(service, Client(service.client.port, key.access_key_id, key.secret))

        authorization = service.front_end._judge.__self__._authorization  # type: ignore[attr-defined]
        monkeypatch.setattr(authorization, "_now_ms", lambda: NOON_MS)
        await send(service)

        answer = await again
        assert (b"secret" in answer.body) == is_given
        if not is_given:
            assert "AccessDenied" in answer.json["__type"]
            await gives_back(service)

    with_poll(test)


def test_a_poll_gets_no_messages_that_come_when_its_session_has_expired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call, "WAITED_MS", 0)

    async def test(service: Service, key_id: str, poll: asyncio.Task[Answer]) -> None:
        await end(service, poll)
        sessions = service.metadata.sessions
        session = sessions.create(key_id, 900_000)
        content = session.content
        client = Client(service.client.port, content.access_key_id, content.secret)
        again = await parked(service, client, {"x-amz-security-token": session.token})

        monkeypatch.setattr(sessions, "_now_ms", lambda: content.expires_ms)
        await send(service)

        answer = await again
        assert "ExpiredToken" in answer.json["__type"]
        assert b"secret" not in answer.body
        monkeypatch.undo()
        await gives_back(service)

    with_poll(test)


async def parked(
    service: Service, client: Client, headers: dict[str, str] | None = None
) -> asyncio.Task[Answer]:
    """Return a poll of a client that waits at the broker; its messages are visible again at once."""
    given = {"QueueUrl": client.url("jobs"), "WaitTimeSeconds": 20, "VisibilityTimeout": 0}
    poll = asyncio.create_task(client.json("ReceiveMessage", given, headers))
    await eventually(lambda: len(service.broker.parked) == 1)
    return poll


async def end(service: Service, poll: asyncio.Task[Answer]) -> None:
    """Have the client of a poll hang up."""
    await eventually(lambda: len(service.broker.parked) == 1)
    poll.cancel()
    await eventually(lambda: service.broker.parked[0][0].is_cancelled)
    service.broker.parked.clear()


async def gives_back(service: Service) -> None:
    """Assert that the message that was not given is received by others, when its timeout is over."""
    answer = await service.client.json("ReceiveMessage", {"QueueUrl": service.client.url("jobs")})
    assert [message["Body"] for message in answer.json["Messages"]] == ["secret"]


def test_polls_that_get_messages_at_once_or_none_are_not_judged_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call, "WAITED_MS", 3_600_000)

    async def test(service: Service, key_id: str, poll: asyncio.Task[Answer]) -> None:
        judged: list[object] = []
        monkeypatch.setattr(service.front_end.calls, "judge", judged.append)
        await send(service)
        assert b"secret" in (await poll).body

        monkeypatch.setattr(call, "WAITED_MS", 0)
        given = {"QueueUrl": service.client.url("jobs"), "WaitTimeSeconds": 1}
        assert b"secret" not in (await service.client.json("ReceiveMessage", given)).body
        assert judged == []

    with_poll(test)


@pytest.mark.parametrize("change", OTHERS)
def test_polls_that_are_still_allowed_go_on_and_get_their_message(change: str) -> None:
    async def test(service: Service, key_id: str, poll: asyncio.Task[Answer]) -> None:
        await OTHERS[change](service, key_id)
        await asyncio.sleep(2 * parked_polls.RECHECK_DELAY_S)
        assert not poll.done()
        await send(service)
        async with asyncio.timeout(10):
            answer = await poll
        assert [message["Body"] for message in answer.json["Messages"]] == ["secret"]

    with_poll(test)


@pytest.mark.parametrize("revocation", ["the key is disabled", "the policy is taken away"])
@pytest.mark.parametrize("is_unsent", [True, False])
def test_a_send_that_waits_for_a_leader_is_taken_back_unless_a_broker_may_have_it(
    revocation: str, is_unsent: bool
) -> None:
    revoke, code = REVOCATIONS[revocation]

    async def test(service: Service, key_id: str, poll: asyncio.Task[Answer]) -> None:
        key = service.metadata.access_key(key_id)
        assert key is not None
        client = Client(service.client.port, key_id, key.secret)
        service.broker.is_sought = True
        given = {"QueueUrl": client.url("jobs"), "MessageBody": "late"}
        sending = asyncio.create_task(client.json("SendMessage", given))
        await eventually(lambda: bool(service.broker.held))
        (held,) = service.broker.held
        held.is_unsent = is_unsent

        await revoke(service, key_id)
        await poll  # it is judged in the same look

        if is_unsent:
            answer = await sending
            assert (answer.status, code.encode() in answer.body) == (403, True)
            assert held.is_cancelled
        else:
            await eventually(lambda: service.front_end.polls._task is None)
            assert not sending.done()
            service.broker._answer(held)
            assert (await sending).status == 200

    with_poll(test)


def test_looks_at_many_polls_leave_most_of_the_time_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_polls, "RECHECK_DELAY_S", 0.001)
    monkeypatch.setattr(parked_polls, "RECHECK_DELAY_MAX_S", 0.2)

    class Poll:
        wait_ms = 20_000
        is_done = False

    async def scenario() -> None:
        looked_s: list[float] = []

        def judge(call: object) -> None:
            looked_s.append(time.monotonic())
            time.sleep(0.01)  # many polls
            polls.look_again()

        polls = parked_polls.ParkedPolls(lambda: [Poll()], judge)  # type: ignore[list-item]
        polls.look_again()
        await eventually(lambda: len(looked_s) >= 4)
        await polls.close()
        gaps_s = [later - earlier for earlier, later in pairwise(looked_s)]
        assert min(gaps_s) >= 0.1

    asyncio.run(scenario())


@pytest.mark.parametrize(("then_ms", "is_given"), [(29_000.0, True), (31_000.0, False)])
def test_a_front_end_that_has_heard_nothing_for_too_long_gives_no_messages_to_polls(
    monkeypatch: pytest.MonkeyPatch, then_ms: float, is_given: bool
) -> None:
    async def test(service: Service, key_id: str, poll: asyncio.Task[Answer]) -> None:
        serve = service.broker._serve_parked

        def serve_then() -> None:
            monkeypatch.setattr(service.metadata.floor, "_age_ms", lambda: then_ms)
            serve()

        monkeypatch.setattr(service.broker, "_serve_parked", serve_then)
        await send(service)
        async with asyncio.timeout(10):
            answer = await poll
        assert answer.status == (200 if is_given else 503)
        assert (b"secret" in answer.body) == is_given

    with_poll(test, authorization_max_age_s=30)


def test_a_front_end_that_was_stopped_gives_no_messages_to_polls_before_it_has_heard_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(service: Service, key_id: str, poll: asyncio.Task[Answer]) -> None:
        serve = service.broker._serve_parked

        def serve_while_stopped() -> None:
            monkeypatch.setattr(service.metadata.floor, "_age_ms", lambda: FRESH_MS + 1.0)
            enforced.silent_ms = FRESH_MS + 1.0
            serve()

        monkeypatch.setattr(service.broker, "_serve_parked", serve_while_stopped)
        await send(service)
        async with asyncio.timeout(10):
            answer = await poll
        assert (answer.status, b"secret" in answer.body) == (503, False)

    enforced = SimpleNamespace(revision=0, silent_ms=0.0)
    with_poll(test, enforced=enforced)
