"""No account has more than half of a front end, and addresses with many wrong signatures are refused unread."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from frontend.support import ACCOUNT, Answer, Client, read_answer, serving, until
from quaymaster.frontend import account_loads, bad_signatures
from quaymaster.frontend.account_loads import AccountLoads
from quaymaster.frontend.bad_signatures import BAD_PER_S_MAX, BadSignatures

THEIRS = "222222222222"


async def other_account(service: Any) -> Client:
    await service.metadata.accounts.create_account("theirs", THEIRS)
    key = await service.metadata.accounts.create_access_key(THEIRS)
    return Client(service.client.port, key.access_key_id, key.secret)


def test_an_account_has_half_of_the_requests_that_wait_for_brokers_and_others_go_on() -> None:
    async def scenario() -> None:
        async with serving(requests_max=4) as service:
            theirs = await other_account(service)
            for account_id in (ACCOUNT, THEIRS):
                await service.add_queue("jobs", account_id)
            service.broker.is_silent = True

            def send(client: Client, account_id: str) -> asyncio.Task[Answer]:
                given = {"QueueUrl": client.url("jobs", account_id), "MessageBody": "hello"}
                return asyncio.ensure_future(client.json("SendMessage", given))

            waiting = [send(service.client, ACCOUNT) for _ in range(2)]
            await until(lambda: len(service.calls.waiting) == 2)
            third = await send(service.client, ACCOUNT)
            waiting.append(send(theirs, THEIRS))
            await until(lambda: len(service.calls.waiting) == 3)

            assert (third.status, b"RequestThrottled" in third.body) == (403, True)
            assert service.calls.loads.of(ACCOUNT).requests == 2
            service.calls.expire(float("inf"))
            assert [answer.status for answer in await asyncio.gather(*waiting)] == [503] * 3
            assert service.calls.loads.of(ACCOUNT).requests == 0

    asyncio.run(scenario())


def test_an_account_has_half_of_the_long_polls_and_its_further_receives_do_not_wait() -> None:
    async def scenario() -> None:
        async with serving(long_polls_max=2) as service:
            await service.add_queue("jobs")
            given = {"QueueUrl": service.client.url("jobs"), "WaitTimeSeconds": 20}
            poll = asyncio.ensure_future(service.client.json("ReceiveMessage", given))
            await until(lambda: service.calls.long_polls == 1)
            load = service.calls.loads.of(ACCOUNT)
            assert (load.requests, load.long_polls) == (0, 1)

            assert (await service.client.json("ReceiveMessage", given)).status == 200
            assert not poll.done()

            theirs = await other_account(service)
            await service.add_queue("jobs", THEIRS)
            other = {"QueueUrl": theirs.url("jobs", THEIRS), "WaitTimeSeconds": 20}
            their_poll = asyncio.ensure_future(theirs.json("ReceiveMessage", other))
            await until(lambda: service.calls.long_polls == 2)
            for account_id in (ACCOUNT, THEIRS):
                client = service.client if account_id == ACCOUNT else theirs
                message = {"QueueUrl": client.url("jobs", account_id), "MessageBody": "hello"}
                assert (await client.json("SendMessage", message)).status == 200
            assert [answer.status for answer in await asyncio.gather(poll, their_poll)] == [200, 200]
            assert (load.requests, load.long_polls) == (0, 0)

    asyncio.run(scenario())


def test_long_polls_leave_a_tenth_of_the_connections_and_an_account_has_half_of_them() -> None:
    async def scenario() -> None:
        async with serving(
            http_connections_max=40, http_key_connections_percent=100, long_polls_max=400
        ) as service:
            await service.add_queue("jobs")
            given = {"QueueUrl": service.client.url("jobs"), "WaitTimeSeconds": 20}
            polls = [asyncio.ensure_future(service.client.json("ReceiveMessage", given)) for _ in range(18)]
            await until(lambda: service.calls.long_polls == 18)

            assert (await service.client.json("ReceiveMessage", given)).status == 200
            assert not any(poll.done() for poll in polls)
            theirs = await other_account(service)
            assert (await theirs.json("ListQueues", {})).status == 200
            for poll in polls:
                poll.cancel()
            await asyncio.gather(*polls, return_exceptions=True)

    asyncio.run(scenario())


def test_an_account_has_half_of_the_actions_on_queues() -> None:
    async def scenario() -> None:
        async with serving(control_actions_max=2) as service:
            await service.add_queue("jobs")
            service.broker.is_silent = True
            given = {"QueueUrl": service.client.url("jobs"), "AttributeNames": ["All"]}
            load = service.calls.loads.of(ACCOUNT)
            waiting = asyncio.ensure_future(service.client.json("GetQueueAttributes", given))
            await until(lambda: load.actions == {"control": 1})

            assert (await service.client.json("GetQueueAttributes", given)).status == 503
            theirs = await other_account(service)
            assert (await theirs.json("ListQueues", {})).status == 200

            waiting.cancel()
        assert load.actions == {}

    asyncio.run(scenario())


def test_with_open_authentication_the_one_account_has_all() -> None:
    loads = AccountLoads(requests_max=5, long_polls_max=3, is_shared=False)
    assert (loads.requests_max, loads.long_polls_max, loads.part_of(7)) == (5, 3, 7)
    loads = AccountLoads(requests_max=5, long_polls_max=1, is_shared=True)
    assert (loads.requests_max, loads.long_polls_max, loads.part_of(7)) == (3, 1, 4)


def test_accounts_with_nothing_in_progress_are_forgotten_when_there_are_many(monkeypatch: Any) -> None:
    monkeypatch.setattr(account_loads, "LOADS_KEPT_MAX", 3)
    loads = AccountLoads(requests_max=5, long_polls_max=3, is_shared=True)
    loads.of("a").requests = 1
    for name in "bcdefgh":
        loads.of(name)

    assert len(loads._loads) <= 4
    assert loads.of("a").requests == 1


def test_an_address_with_twenty_wrong_signatures_in_a_second_is_refused_before_it_is_read_on() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            ms = 5_000.0
            bad = service.front_end._refusals.bad
            note, wait_ms = bad.note, bad.wait_ms
            bad.note = lambda request, now_ms: note(request, ms)  # type: ignore[method-assign]
            bad.wait_ms = lambda request, now_ms: wait_ms(request, ms)  # type: ignore[method-assign]
            forger = Client(service.client.port, service.client.key_id, "no secret")
            reader, writer = await asyncio.open_connection("127.0.0.1", service.client.port)
            target = {"x-amz-target": "AmazonSQS.ListQueues"}
            writer.write(service.client.render("POST", "/", target, b"{}"))
            assert (await read_answer(reader)).status == 200

            answers = [await forger.json("ListQueues", {}) for _ in range(BAD_PER_S_MAX + 1)]

            assert all(b"InvalidSignature" in answer.body for answer in answers[:-1])
            assert b"RequestThrottled" in answers[-1].body
            head = forger.render("POST", "/", target, b"x" * 50_000)[:-50_000]
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", forger.port)
            other_writer.write(head)
            assert b"RequestThrottled" in (await read_answer(other_reader)).body
            # A client behind the same address that has signed is served.
            writer.write(service.client.render("POST", "/", target, b"{}"))
            assert (await read_answer(reader)).status == 200
            ms += 1_000
            assert (await service.client.json("ListQueues", {})).status == 200
            writer.close()
            other_writer.close()

    asyncio.run(scenario())


def test_addresses_are_counted_by_network_for_a_second_and_not_without_bound(monkeypatch: Any) -> None:
    monkeypatch.setattr(bad_signatures, "ADDRESSES_MAX", 2)
    bad = BadSignatures()

    def request(peer: str) -> Any:
        return SimpleNamespace(peer=peer, is_strangers=True)

    for number in range(BAD_PER_S_MAX):
        bad.note(request(f"2001:db8::{number:x}"), 500)
    assert bad.wait_ms(request("2001:db8::ffff"), 600) == 400
    assert bad.wait_ms(request("2001:db8:1::1"), 600) == 0
    assert bad.is_refusing
    for number in range(5):
        bad.note(request(f"10.0.0.{number}"), 700)
    assert len(bad._counts) == 2
    assert bad.wait_ms(request("2001:db8::ffff"), 1_000) == 0
    assert not bad.is_refusing
