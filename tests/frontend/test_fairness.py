"""No account has more than half of a front end, and addresses with many wrong signatures are refused unread."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.support import ACCOUNT, Answer, Client, read_answer, serving, until
from quaymaster.frontend import account_loads
from quaymaster.frontend.account_loads import AccountLoads
from quaymaster.frontend.callers import bad_signatures
from quaymaster.frontend.callers.bad_signatures import BAD_PER_S_MAX, BadSignatures
from quaymaster.frontend.front_end_metrics import WRONG_SIGNATURES

THEIRS = "222222222222"
THIRD = "333333333333"


async def other_account(service: Any, account_id: str = THEIRS) -> Client:
    await service.metadata.accounts.create_account(f"of-{account_id}", account_id)
    key = await service.metadata.accounts.create_access_key(account_id)
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


class Poll:
    """A long poll of an account, from when it may wait until it is told to end."""

    def __init__(self, loads: AccountLoads, account_id: str) -> None:
        self.load = loads.of(account_id)
        self.is_ending = False
        self.waits = loads.has_place_for_poll(self.load)
        if self.waits:
            loads.begin_poll(self.load, self)

    def on_hurry(self) -> None:
        assert not self.is_ending, "it is told once"
        self.is_ending = True


def test_with_open_authentication_the_one_account_has_all() -> None:
    loads = AccountLoads(requests_max=5, long_polls_max=3, is_shared=False)
    assert (loads.requests_max, loads.part_of(7)) == (5, 7)
    assert [Poll(loads, "a").waits for _ in range(4)] == [True, True, True, False]
    loads = AccountLoads(requests_max=5, long_polls_max=1, is_shared=True)
    assert (loads.requests_max, loads.part_of(7)) == (3, 4)
    assert [Poll(loads, "a").waits for _ in range(2)] == [True, False]


def test_the_account_with_most_long_polls_ends_its_oldest_for_accounts_that_have_fewer() -> None:
    loads = AccountLoads(requests_max=5, long_polls_max=8, is_shared=True)
    first, second = ([Poll(loads, name) for _ in range(4)] for name in ("a", "b"))
    assert all(poll.waits for poll in (*first, *second))

    newcomers = [Poll(loads, "c") for _ in range(8)]

    assert [poll.waits for poll in newcomers] == [True, True] + 6 * [False]
    assert [poll.is_ending for poll in first] == [True, False, False, False]
    assert [poll.is_ending for poll in second] == [True, False, False, False]
    for name in "abc":  # each has what would have to be given up for it
        assert not Poll(loads, name).waits


def test_the_place_of_a_long_poll_that_gives_way_is_not_given_twice() -> None:
    loads = AccountLoads(requests_max=5, long_polls_max=4, is_shared=True)
    mine, theirs = ([Poll(loads, name) for _ in range(2)] for name in ("a", "b"))
    assert Poll(loads, "c").waits
    (ending,) = [poll for poll in (*mine, *theirs) if poll.is_ending]

    loads.end_poll(ending.load, ending)

    assert not Poll(loads, "c").waits
    assert Poll(loads, "d").waits


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcde")), max_size=80))
def test_no_account_gets_more_places_of_others_than_makes_them_even(steps: list[tuple[bool, str]]) -> None:
    loads = AccountLoads(requests_max=5, long_polls_max=6, is_shared=True)
    polls: list[Poll] = []
    for begins, name in steps:
        waiting = [poll for poll in polls if not poll.is_ending]
        before = Counter(poll.load for poll in waiting)
        own = [poll for poll in waiting if poll.load is loads.of(name)]
        if begins:
            poll = Poll(loads, name)
            assert poll.waits == (len(own) < 3 and (len(waiting) < 6 or max(before.values()) >= len(own) + 2))
            polls += [poll] if poll.waits else []
        elif own:
            loads.end_poll(own[-1].load, own[-1])
            polls.remove(own[-1])
        for poll in polls:
            if poll.is_ending:
                assert poll not in poll.load.polls
        assert sum(not poll.is_ending for poll in polls) <= 6


def test_a_long_poll_of_a_third_account_waits_though_two_have_all_places() -> None:
    async def scenario() -> None:
        async with serving(long_polls_max=4) as service:
            theirs = await other_account(service)
            third = await other_account(service, THIRD)
            for account_id in (ACCOUNT, THEIRS, THIRD):
                await service.add_queue("jobs", account_id)

            def poll(client: Client, account_id: str) -> asyncio.Task[Answer]:
                given = {"QueueUrl": client.url("jobs", account_id), "WaitTimeSeconds": 20}
                return asyncio.ensure_future(client.json("ReceiveMessage", given))

            holders = []
            for client, account_id in 2 * [(service.client, ACCOUNT), (theirs, THEIRS)]:
                holders.append(poll(client, account_id))
                await until(lambda: service.calls.long_polls == len(holders))
            waits = poll(third, THIRD)
            await until(lambda: service.calls.loads.of(THIRD).long_polls == 1)

            (ended,) = (await asyncio.wait(holders, return_when=asyncio.FIRST_COMPLETED))[0]
            assert (ended.result().status, ended.result().json) == (200, {})
            assert not waits.done()
            given = {"QueueUrl": third.url("jobs", THIRD), "MessageBody": "hello"}
            assert (await third.json("SendMessage", given)).status == 200
            assert (await waits).json["Messages"][0]["Body"] == "hello"
            for holder in holders:
                holder.cancel()
            await asyncio.gather(*holders, return_exceptions=True)

    asyncio.run(scenario())


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


def test_a_connection_that_asks_on_although_its_wrong_signatures_are_refused_is_not_read_for_a_while() -> (
    None
):
    async def scenario() -> None:
        async with serving() as service:
            bad = service.front_end._refusals.bad
            note, wait_ms = bad.note, bad.wait_ms
            bad.note = lambda request, now_ms: note(request, 5_000)  # type: ignore[method-assign]
            # The second does not end before the test does.
            bad.wait_ms = lambda request, now_ms: 1_000 * wait_ms(request, 5_000)  # type: ignore[method-assign]
            forger = Client(service.client.port, service.client.key_id, "no secret")
            for _ in range(BAD_PER_S_MAX):
                await forger.json("ListQueues", {})
            forged = forger.render("POST", "/", {"x-amz-target": "AmazonSQS.ListQueues"}, b"{}")
            reader, writer = await asyncio.open_connection("127.0.0.1", service.client.port)

            async def ask() -> Answer:
                writer.write(forged)
                return await read_answer(reader)

            assert b"RequestThrottled" in (await ask()).body
            assert service.server.connections_held == 0
            assert b"RequestThrottled" in (await ask()).body
            assert service.server.connections_held == 1
            throttled = service.calls.counts.throttled[WRONG_SIGNATURES]
            writer.write(forged * 100)
            for _ in range(3):  # others are read meanwhile
                other = Client(service.client.port, service.client.key_id, "no secret")
                await other.json("ListQueues", {})
            assert service.calls.counts.throttled[WRONG_SIGNATURES] <= throttled + 3
            writer.close()

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
