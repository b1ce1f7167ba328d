"""What a front end does with requests over a limit, and what each request is charged to."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from frontend.support import ACCOUNT, Answer, Client, Service, read_answer, serving, until
from quaymaster.core.limits.limits import Limit, LimitName
from quaymaster.frontend.callers import authentication as authentication_module

THEIRS = "222222222222"
LARGE = "x" * 20_000


class Clock:
    """The time of the limits, which stands still until the test moves it."""

    def __init__(self, service: Service) -> None:
        self.ms = time.monotonic() * 1000
        service.front_end._limits._now_ms = lambda: self.ms


def limited(test: Callable[[Service, Clock], Awaitable[None]], **flags: object) -> None:
    """Run a test with a front end that has the queue `jobs`, on a clock that stands still."""

    async def run() -> None:
        async with serving(**flags) as service:
            await service.add_queue("jobs")
            await test(service, Clock(service))

    asyncio.run(run())


async def set_limit(service: Service, name: LimitName, **rates: int) -> None:
    await service.metadata.limits.set(name, Limit(**rates))


async def send(service: Service, count: int, body: str = "hello", client: Client | None = None) -> list[int]:
    """Send so many messages one after the other; return the status of each."""
    client = client or service.client
    given = {"QueueUrl": client.url("jobs"), "MessageBody": body}
    return [(await client.json("SendMessage", given)).status for _ in range(count)]


async def other_account(service: Service) -> Client:
    accounts = service.metadata.accounts
    await accounts.create_account("theirs", THEIRS)
    key = await accounts.create_access_key(THEIRS)
    return Client(service.client.port, key.access_key_id, key.secret)


def assert_throttled(answer: Answer, limit: str) -> None:
    assert answer.status == 403
    assert b"RequestThrottled" in answer.body
    assert answer.headers["x-quaymaster-limit"] == limit
    assert int(answer.headers["x-amz-retry-after"]) >= 1
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("authentication", ["signed", "open"])
def test_requests_over_the_limit_of_an_account_are_throttled_until_tokens_come_back(
    authentication: str,
) -> None:
    async def test(service: Service, clock: Clock) -> None:
        await set_limit(service, LimitName(ACCOUNT), requests=3)

        assert await send(service, 5) == [200, 200, 200, 403, 403]
        clock.ms += 700
        assert await send(service, 3) == [200, 200, 403]

    limited(test, authentication=authentication)


def test_a_throttled_request_is_told_the_limit_and_when_to_come_back_in_each_wire_form() -> None:
    async def test(service: Service, clock: Clock) -> None:
        await set_limit(service, LimitName(ACCOUNT, "jobs", "SendMessage"), requests=1)
        await send(service, 1)
        limit = f"account={ACCOUNT}; queue=jobs; action=SendMessage; requests=1"
        given = {"QueueUrl": service.client.url("jobs"), "MessageBody": "hello"}

        answer = await service.client.json("SendMessage", given)
        assert_throttled(answer, limit)
        assert answer.json["__type"] == "com.amazonaws.sqs#RequestThrottled"
        assert answer.headers["x-amzn-query-error"] == "RequestThrottled;Sender"
        answer = await service.client.query("SendMessage", given)
        assert_throttled(answer, limit)
        assert answer.value("Error/Code") == "RequestThrottled"

    limited(test)


def test_a_batch_is_one_request_of_its_single_action_and_other_actions_have_their_own_limits() -> None:
    async def test(service: Service, clock: Clock) -> None:
        await set_limit(service, LimitName(ACCOUNT, "", "SendMessage"), requests=2)
        url = service.client.url("jobs")
        entries = [{"Id": str(number), "MessageBody": "hello"} for number in range(10)]
        batch = {"QueueUrl": url, "Entries": entries}

        assert (await service.client.json("SendMessageBatch", batch)).status == 200
        assert await send(service, 2) == [200, 403]
        assert_throttled(
            await service.client.json("SendMessageBatch", batch),
            f"account={ACCOUNT}; action=SendMessage; requests=2",
        )
        assert (await service.client.json("ReceiveMessage", {"QueueUrl": url})).status == 200

    limited(test)


def test_a_completion_is_charged_to_each_queue_that_it_sends_to_or_deletes_from() -> None:
    async def test(service: Service, clock: Clock) -> None:
        await service.add_queue("results")
        jobs, results = (service.client.url(name) for name in ("jobs", "results"))
        await set_limit(service, LimitName(ACCOUNT, "results", "SendMessage"), requests=1)
        await set_limit(service, LimitName(ACCOUNT, "jobs", "DeleteMessage"), requests=3)

        def completed(handle: str) -> dict[str, Any]:
            message = {"Id": "a", "QueueUrl": results, "MessageBody": "done"}
            return {"QueueUrl": jobs, "ReceiptHandles": [handle], "Messages": [message]}

        assert await send(service, 4) == [200] * 4
        asked = {"QueueUrl": jobs, "MaxNumberOfMessages": 10}
        received = (await service.client.json("ReceiveMessage", asked)).json["Messages"]
        handles = [message["ReceiptHandle"] for message in received]

        first = await service.client.json("CompleteMessages", completed(handles[0]))
        second = await service.client.json("CompleteMessages", completed(handles[1]))

        assert first.status == 200, first.body
        assert_throttled(second, f"account={ACCOUNT}; queue=results; action=SendMessage; requests=1")
        attribute = {"Quaymaster.Completes": {"DataType": "String", "StringValue": handles[1]}}
        sent = {"QueueUrl": jobs, "MessageBody": "next", "MessageAttributes": attribute}
        assert (await service.client.json("SendMessage", sent)).status == 200
        assert_throttled(
            await service.client.json("SendMessage", sent),
            f"account={ACCOUNT}; queue=jobs; action=DeleteMessage; requests=3",
        )

    limited(test)


def test_all_limits_hold_together_and_one_that_is_removed_holds_no_longer() -> None:
    async def test(service: Service, clock: Clock) -> None:
        await set_limit(service, LimitName(ACCOUNT), requests=4)
        await set_limit(service, LimitName(ACCOUNT, "jobs"), requests=2)

        assert await send(service, 3) == [200, 200, 403]
        await service.metadata.limits.remove(LimitName(ACCOUNT, "jobs"))
        assert await send(service, 2) == [200, 403]
        await service.metadata.limits.remove(LimitName(ACCOUNT))
        assert await send(service, 2) == [200, 200]
        assert not service.front_end._limits.scopes

    limited(test)


def test_a_queues_limit_is_spent_by_those_who_may_use_it_alone_and_the_account_pays_for_what_is_refused() -> (
    None
):
    async def test(service: Service, clock: Clock) -> None:
        client = await other_account(service)
        await set_limit(service, LimitName(ACCOUNT, "jobs"), requests=2)
        await set_limit(service, LimitName(THEIRS), requests=3)
        given = {"QueueUrl": service.client.url("jobs"), "MessageBody": "hello"}

        answers = [await client.json("SendMessage", given) for _ in range(4)]

        assert [b"AccessDenied" in answer.body for answer in answers] == [True, True, True, False]
        assert_throttled(answers[3], f"account={THEIRS}; requests=3")
        assert await send(service, 3) == [200, 200, 403]

    limited(test)


@pytest.mark.parametrize(
    ("action", "given", "code"),
    [
        ("SendMessage", {"QueueUrl": "none", "MessageBody": "hello"}, b"QueueDoesNotExist"),
        ("SendMessage", {"QueueUrl": 5}, b"SerializationException"),
        ("NoAction", {}, b"UnknownOperation"),
    ],
)
def test_the_account_pays_for_signed_requests_that_cannot_be_carried_out(
    action: str, given: dict[str, Any], code: bytes
) -> None:
    async def test(service: Service, clock: Clock) -> None:
        await set_limit(service, LimitName(ACCOUNT), requests=2)

        answers = [await service.client.json(action, given) for _ in range(3)]

        assert [code in answer.body for answer in answers] == [True, True, False]
        assert_throttled(answers[2], f"account={ACCOUNT}; requests=2")

    limited(test)


def test_a_request_that_waited_for_metadata_is_charged_once() -> None:
    async def test(service: Service, clock: Clock) -> None:
        await set_limit(service, LimitName(ACCOUNT), requests=2)

        answers = [await service.client.json("GetQueueUrl", {"QueueName": "jobs"}) for _ in range(3)]

        assert [answer.status for answer in answers] == [200, 200, 403]

    limited(test)


def test_bytes_of_bodies_are_charged_and_those_of_replies_afterwards() -> None:
    async def test(service: Service, clock: Clock) -> None:
        await send(service, 1, LARGE)
        await set_limit(service, LimitName(ACCOUNT), bytes=10_000)
        receive = {"QueueUrl": service.client.url("jobs"), "VisibilityTimeout": 0}

        assert (await service.client.json("ReceiveMessage", receive)).status == 200
        assert_throttled(
            await service.client.json("ReceiveMessage", receive), f"account={ACCOUNT}; bytes=10000"
        )
        clock.ms += 2_000
        assert await send(service, 2, LARGE) == [200, 403]
        clock.ms += 900
        assert await send(service, 1) == [403]

    limited(test)


def test_claims_of_a_key_whose_account_is_over_its_limit_are_refused_before_body_and_signature() -> None:
    async def test(service: Service, clock: Clock) -> None:
        await set_limit(service, LimitName(ACCOUNT, "", "SendMessage"), requests=1)
        forger = Client(service.client.port, service.client.key_id, "no secret")
        assert await send(service, 1, client=forger) == [403]
        assert await send(service, 1) == [200]
        assert b"InvalidSignatureException" in (await forger.json("SendMessage", {})).body

        assert await send(service, 1) == [403]
        limit = f"account={ACCOUNT}; action=SendMessage; requests=1"
        assert_throttled(await forger.json("SendMessage", {}), limit)
        given = {"x-amz-target": "AmazonSQS.SendMessage"}
        head = forger.render("POST", "/", given, LARGE.encode())[: -len(LARGE)]
        reader, writer = await asyncio.open_connection("127.0.0.1", forger.port)
        writer.write(head)
        assert_throttled(await read_answer(reader), limit)
        writer.close()
        assert b"InvalidSignatureException" in (await forger.json("ReceiveMessage", {})).body
        bucket = next(iter(service.front_end._limits.meters())).bucket
        assert (bucket.used, bucket.wanted) == (1, 2)
        clock.ms += 1_001
        assert await send(service, 1) == [200]

    limited(test)


def test_requests_of_unknown_and_unnamed_keys_are_answered_as_ever_while_an_account_is_over_its_limit() -> (
    None
):
    async def test(service: Service, clock: Clock) -> None:
        await set_limit(service, LimitName(ACCOUNT), requests=1)
        assert await send(service, 2) == [200, 403]

        unknown = Client(service.client.port, "AKIAUNKNOWNUNKNOWN12", "secret")
        unsigned = Client(service.client.port, None, "")
        theirs = await other_account(service)

        assert b"UnrecognizedClient" in (await unknown.json("ListQueues", {})).body
        assert b"MissingAuthenticationToken" in (await unsigned.json("ListQueues", {})).body
        assert (await theirs.json("ListQueues", {})).status == 200

    limited(test)


def test_a_client_that_comes_back_before_it_was_told_to_is_held_and_one_that_waited_is_not() -> None:
    async def test(service: Service, clock: Clock) -> None:
        await set_limit(service, LimitName(ACCOUNT), requests=1)
        body = json.dumps({"QueueUrl": service.client.url("jobs"), "MessageBody": "hello"}).encode()
        target = {"x-amz-target": "AmazonSQS.SendMessage", "content-type": "application/x-amz-json-1.0"}
        rendered = service.client.render("POST", "/", target, body)
        reader, writer = await asyncio.open_connection("127.0.0.1", service.client.port)

        async def ask() -> Answer:
            writer.write(rendered)
            return await read_answer(reader)

        assert (await ask()).status == 200
        assert (await ask()).status == 403
        assert service.server.connections_held == 0
        answer = await ask()
        assert answer.status == 403
        assert service.server.connections_held == 1
        # It is read again when the time is over that it was told.
        asked_s = time.monotonic()
        await ask()
        assert (time.monotonic() - asked_s) * 1000 >= int(answer.headers["x-amz-retry-after"]) - 20
        writer.close()

    limited(test)


def test_customers_see_the_limits_in_force_by_the_name_of_their_attribute_alone() -> None:
    async def test(service: Service, clock: Clock) -> None:
        await set_limit(service, LimitName(ACCOUNT, "", "SendMessage"), requests=50)
        await set_limit(service, LimitName(ACCOUNT, "jobs"), bytes=2_000_000)

        async def attributes(*names: str) -> dict[str, str]:
            given = {"QueueUrl": service.client.url("jobs"), "AttributeNames": list(names)}
            answer = await service.client.json("GetQueueAttributes", given)
            found: dict[str, str] = answer.json["Attributes"]
            return found

        assert json.loads((await attributes("EffectiveLimits"))["EffectiveLimits"]) == {
            "Account": {"SendMessage": {"Requests": 50}},
            "Queue": {"*": {"Bytes": 2_000_000}},
        }
        assert "EffectiveLimits" not in await attributes("All")

    limited(test)


def test_a_group_of_a_log_has_the_limit_of_its_queue() -> None:
    async def test(service: Service, clock: Clock) -> None:
        await service.add_queue("log", RetentionMode="Log")
        await set_limit(service, LimitName(ACCOUNT, "log", "ReceiveMessage"), requests=1)
        urls = [service.client.url(name) for name in ("log@readers", "log")]

        answers = [await service.client.json("ReceiveMessage", {"QueueUrl": url}) for url in urls]

        assert [answer.status for answer in answers] == [200, 403]

    limited(test)


def test_a_long_poll_that_is_judged_again_is_charged_once() -> None:
    async def test(service: Service, clock: Clock) -> None:
        await set_limit(service, LimitName(ACCOUNT, "", "ReceiveMessage"), requests=1)
        given = {"QueueUrl": service.client.url("jobs"), "WaitTimeSeconds": 20}
        poll = asyncio.ensure_future(service.client.json("ReceiveMessage", given))
        await until(lambda: service.calls.long_polls)
        (call,) = service.calls.waiting

        service.front_end._judge_again(call)

        assert await send(service, 1) == [200]
        assert len((await poll).json["Messages"]) == 1

    limited(test)


def test_claims_are_looked_at_in_time_for_a_second_after_a_bucket_was_empty_and_no_longer() -> None:
    async def test(service: Service, clock: Clock) -> None:
        limits = service.front_end._limits
        await set_limit(service, LimitName(ACCOUNT), requests=1)
        assert not limits.is_refusing()

        assert await send(service, 2) == [200, 403]
        assert limits.is_refusing()
        clock.ms += 1_001
        assert not limits.is_refusing()

    limited(test)


def test_temporary_credentials_spend_the_limit_of_their_account() -> None:
    async def test(service: Service, clock: Clock) -> None:
        assert service.client.key_id is not None
        session = service.metadata.sessions.create(service.client.key_id, 900_000)
        client = Client(service.client.port, session.content.access_key_id, session.content.secret)
        await set_limit(service, LimitName(ACCOUNT), requests=2)
        token = {"x-amz-security-token": session.token}

        answers = [await client.json("ListQueues", {}, token) for _ in range(3)]

        assert [answer.status for answer in answers] == [200, 200, 403]
        assert await send(service, 1) == [403]

    limited(test)


def test_a_throttled_session_that_signed_before_is_refused_before_its_token_is_opened() -> None:
    async def test(service: Service, clock: Clock) -> None:
        assert service.client.key_id is not None
        session = service.metadata.sessions.create(service.client.key_id, 900_000)
        key_id = session.content.access_key_id
        client = Client(service.client.port, key_id, session.content.secret)
        forger = Client(service.client.port, key_id, "no secret")
        await set_limit(service, LimitName(ACCOUNT), requests=2)
        given = {"x-amz-security-token": session.token}
        assert b"InvalidSignature" in (await forger.json("ListQueues", {}, given)).body
        authentication: Any = service.front_end._authentication
        assert not authentication._session_accounts
        answers = [(await client.json("ListQueues", {}, given)).status for _ in range(3)]
        assert answers == [200, 200, 403]
        opened: list[str] = []
        find = authentication._find_session

        def opening(key: str, token: str) -> Any:
            opened.append(key)
            return find(key, token)

        authentication._find_session = opening

        limit = f"account={ACCOUNT}; requests=2"
        assert_throttled(await client.json("ListQueues", {}, given), limit)
        assert_throttled(await forger.json("ListQueues", {}, given), limit)
        assert not opened
        clock.ms += 1_001
        assert (await client.json("ListQueues", {}, given)).status == 200
        assert opened

    limited(test)


def test_sessions_that_signed_lately_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication_module, "SESSION_ACCOUNTS_MAX", 2)

    async def test(service: Service, clock: Clock) -> None:
        assert service.client.key_id is not None
        sessions = [service.metadata.sessions.create(service.client.key_id, 900_000) for _ in range(3)]

        async def ask(number: int) -> None:
            content = sessions[number].content
            client = Client(service.client.port, content.access_key_id, content.secret)
            token = {"x-amz-security-token": sessions[number].token}
            assert (await client.json("ListQueues", {}, token)).status == 200

        for number in (0, 1, 0, 2):
            await ask(number)

        remembered: Any = service.front_end._authentication
        expected = [sessions[number].content.access_key_id for number in (0, 2)]
        assert list(remembered._session_accounts) == expected

    limited(test)
