"""Parked receives: first come, first served, woken at once, and forgotten when their client has gone."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from harness.broker_support import BrokerTester, define, message, numbers, redrive_to, running
from harness.waiting import PATIENCE_S

from quaymaster.broker.replica import waiters
from quaymaster.broker.storage.disk import RealDisk
from quaymaster.core.values.commands.messages import ChangeVisibility, Delete, Receive, ReceiveOutcome, Send
from quaymaster.core.values.commands.partitions import ForgetQueue
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.errors import NotLeader, QueueDoesNotExist

LONG_MS = 20_000


class SlowSync(RealDisk):
    """Every fsync of a segment takes a fifth of a second."""

    def sync_data(self, fd: int) -> None:
        time.sleep(0.2)
        super().sync_data(fd)


class Poll:
    """A long poll under way."""

    def __init__(
        self, tester: BrokerTester, queue_id: int = 1, wait_ms: int = LONG_MS, count_max: int = 1
    ) -> None:
        self.answers: list[Any] = []
        self.answered = asyncio.Event()
        self.submitted = tester.broker.submit(Receive(queue_id, 0, count_max, -1, wait_ms), self._reply)

    def _reply(self, outcome: Any) -> None:
        self.answers.append(outcome)
        self.answered.set()

    async def numbers(self) -> list[int]:
        """Wait for the answer and return which messages came."""
        await asyncio.wait_for(self.answered.wait(), PATIENCE_S)
        assert len(self.answers) == 1, "a receive is answered once"
        assert isinstance(self.answers[0], ReceiveOutcome)
        return numbers(self.answers[0].deliveries)


async def parked(tester: BrokerTester, count: int) -> None:
    """Wait until so many receives are in line."""
    while tester.broker.host.receives.waiters.parked != count:  # noqa: ASYNC110  # there is no event for it
        await asyncio.sleep(0)


def submit(tester: BrokerTester, command: Command) -> list[Any]:
    """Submit a command; return the list its outcome will be in."""
    answers: list[Any] = []
    tester.broker.submit(command, answers.append)
    return answers


def test_a_long_poll_is_answered_by_the_commit_of_a_message(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            poll = Poll(tester)
            await parked(tester, 1)

            await tester.send(1, message(7))

            return await poll.numbers()

    assert asyncio.run(run()) == [7]


def test_a_long_poll_is_answered_when_a_visibility_timeout_passes(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(7))
            await tester.receive(1, timeout_ms=100)
            poll = Poll(tester)

            return await poll.numbers()

    assert asyncio.run(run()) == [7]


def test_a_long_poll_is_answered_when_a_delay_passes(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            poll = Poll(tester)
            await parked(tester, 1)

            await tester.send(1, message(7, delay_ms=100))

            return await poll.numbers()

    assert asyncio.run(run()) == [7]


def test_a_long_poll_is_answered_when_a_consumer_gives_its_message_back(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(7))
            receipts = tester.receipts(await tester.receive(1))
            poll = Poll(tester)
            await parked(tester, 1)

            await tester.ask(ChangeVisibility(1, 0, receipts, [0]))

            return await poll.numbers()

    assert asyncio.run(run()) == [7]


def test_a_long_poll_is_answered_when_a_visibility_timeout_is_shortened(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(7))
            receipts = tester.receipts(await tester.receive(1))
            poll = Poll(tester)
            await parked(tester, 1)

            await tester.ask(ChangeVisibility(1, 0, receipts, [100]))

            return await poll.numbers()

    assert asyncio.run(run()) == [7]


def test_a_long_poll_gets_the_rest_of_a_group_when_the_message_in_front_is_deleted(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1, "queue.fifo"))
            await tester.send(1, message(7, group=5), message(8, group=5))
            receipts = tester.receipts(await tester.receive(1, 1))
            poll = Poll(tester)
            await parked(tester, 1)

            await tester.ask(Delete(1, 0, receipts))

            return await poll.numbers()

    assert asyncio.run(run()) == [8]


def test_waiters_are_served_in_the_order_they_came(tmp_path: Path) -> None:
    async def run() -> list[list[int]]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            polls = []
            for number in range(5):
                polls.append(Poll(tester))
                await parked(tester, number + 1)

            await tester.send(1, *[message(number) for number in range(1, 6)])

            return [await poll.numbers() for poll in polls]

    assert asyncio.run(run()) == [[1], [2], [3], [4], [5]]


def test_a_waiter_that_was_woken_in_vain_keeps_its_place(tmp_path: Path) -> None:
    async def run() -> tuple[list[int], list[int]]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            first, second = Poll(tester), Poll(tester)
            await parked(tester, 2)
            host = tester.broker.host

            host.receives.waiters.wake(host.replica.queues.partition(1, 0))
            await parked(tester, 1)
            await parked(tester, 2)
            await tester.send(1, message(1))
            served = await first.numbers()
            await tester.send(1, message(2))

            return served, await second.numbers()

    assert asyncio.run(run()) == ([1], [2])


def test_a_long_poll_is_answered_empty_at_its_deadline(tmp_path: Path) -> None:
    async def run() -> tuple[list[int], int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            poll = Poll(tester, wait_ms=50)
            await parked(tester, 1)

            return await poll.numbers(), tester.broker.host.receives.waiters.parked

    assert asyncio.run(run()) == ([], 0)


def test_a_poll_without_a_wait_is_answered_at_once(tmp_path: Path) -> None:
    async def run() -> tuple[list[int], int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))

            return numbers(await tester.receive(1)), tester.broker.host.receives.waiters.parked

    assert asyncio.run(run()) == ([], 0)


def test_a_client_that_hangs_up_gets_no_message(tmp_path: Path) -> None:
    async def run() -> tuple[list[Any], list[int]]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            gone, here = Poll(tester), Poll(tester)
            await parked(tester, 2)

            gone.submitted.cancel()
            await tester.send(1, message(7))

            return gone.answers, await here.numbers()

    assert asyncio.run(run()) == ([], [7])


def test_a_client_that_hangs_up_before_its_receive_is_decided_takes_nothing(tmp_path: Path) -> None:
    async def run() -> tuple[list[Any], list[int]]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(7))

            gone = Poll(tester)
            gone.submitted.cancel()

            return gone.answers, numbers(await tester.receive(1))

    assert asyncio.run(run()) == ([], [7])


def test_the_next_in_line_is_served_when_the_one_just_woken_hangs_up(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            gone, here = Poll(tester), Poll(tester)
            await parked(tester, 2)
            host = tester.broker.host
            await tester.send(1, message(7, delay_ms=60_000))
            partition = host.replica.queues.partition(1, 0)
            assert partition.timed.discard(1)
            partition.order.became_due(1)

            host.receives.waiters.wake(partition)
            gone.submitted.cancel()

            return await here.numbers()

    assert asyncio.run(run()) == [7]


def test_clients_that_hang_up_leave_nothing_in_line(tmp_path: Path) -> None:
    async def run() -> tuple[int, bool]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            polls = [Poll(tester) for _ in range(50)]
            await parked(tester, 50)

            for poll in polls:
                poll.submitted.cancel()

            host = tester.broker.host
            return host.receives.waiters.parked, host.replica.queues.partition(1, 0).watched

    assert asyncio.run(run()) == (0, False)


def test_everybody_in_line_hears_that_the_queue_is_deleted(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            polls = [Poll(tester) for _ in range(3)]
            await parked(tester, 3)

            await tester.ask(ForgetQueue(1))
            await asyncio.gather(*[asyncio.wait_for(poll.answered.wait(), PATIENCE_S) for poll in polls])

            return [poll.answers[0] for poll in polls]

    assert all(isinstance(answer, QueueDoesNotExist) for answer in asyncio.run(run()))


def test_parked_receives_are_answered_empty_when_the_broker_closes(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            poll = Poll(tester)
            await parked(tester, 1)
        return await poll.numbers()

    assert asyncio.run(run()) == []


def test_one_message_wakes_one_waiter_and_the_others_go_on_waiting(tmp_path: Path) -> None:
    async def run() -> tuple[list[int], int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            polls = [Poll(tester) for _ in range(4)]
            await parked(tester, 4)

            await tester.send(1, message(7))
            served = await polls[0].numbers()
            await parked(tester, 3)

            return served, sum(len(poll.answers) for poll in polls[1:])

    assert asyncio.run(run()) == ([7], 0)


def test_a_send_in_the_same_turn_as_a_poll_is_not_missed(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))

            poll = Poll(tester)
            submit(tester, Send(1, 0, [message(7)]))

            return await poll.numbers()

    assert asyncio.run(run()) == [7]


def test_a_poll_that_meets_only_dead_letters_waits_for_what_comes_after_them(tmp_path: Path) -> None:
    async def run() -> tuple[list[int], list[int]]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(2, "dead"))
            await tester.set_queue(define(1, "source", RedrivePolicy=redrive_to("dead", 1)))
            await tester.send(1, message(7))
            await tester.receive(1, timeout_ms=0)

            poll = Poll(tester)
            await parked(tester, 1)
            await tester.send(1, message(8))

            return await poll.numbers(), numbers(await tester.receive(2))

    assert asyncio.run(run()) == ([8], [7])


def test_a_message_given_back_in_the_same_turn_as_a_poll_is_not_missed(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(7))
            receipts = tester.receipts(await tester.receive(1))

            poll = Poll(tester)
            submit(tester, ChangeVisibility(1, 0, receipts, [0]))

            return await poll.numbers()

    assert asyncio.run(run()) == [7]


def test_a_group_freed_in_the_same_turn_as_a_poll_is_not_missed(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1, "queue.fifo"))
            await tester.send(1, message(7, group=3, dedup=7), message(8, group=3, dedup=8))
            receipts = tester.receipts(await tester.receive(1, count_max=1))

            poll = Poll(tester)
            submit(tester, Delete(1, 0, receipts))

            return await poll.numbers()

    assert asyncio.run(run()) == [8]


def test_a_delete_that_makes_room_in_flight_wakes_a_poll(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path, in_flight_max=1) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(7), message(8))
            receipts = tester.receipts(await tester.receive(1, count_max=1))
            poll = Poll(tester)
            await parked(tester, 1)

            submit(tester, Delete(1, 0, receipts))

            return await poll.numbers()

    assert asyncio.run(run()) == [8]


def test_a_deadline_does_not_end_a_poll_that_is_being_given_messages(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path, disk=SlowSync()) as tester:
            await tester.set_queue(define(1, "queue.fifo"))
            poll = Poll(tester, wait_ms=300)
            await parked(tester, 1)

            # The message is committed before the deadline, the receive of it after.
            submit(tester, Send(1, 0, [message(7, group=3, dedup=7)]))

            return await poll.numbers()

    assert asyncio.run(run()) == [7]


def test_polls_that_end_together_are_answered_some_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "ANSWERED_PER_TURN_MAX", 3)

    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            turn = 0
            answered: list[int] = []
            host = tester.broker.host
            for _ in range(10):
                tester.broker.submit(Receive(1, 0, 1, -1, LONG_MS), lambda outcome: answered.append(turn))
            await parked(tester, 10)
            for waiter in list(host.receives.waiters._lines[host.replica.queues.partition(1, 0)].waiters):
                host.receives.waiters._expire(waiter)
            while len(answered) < 10:
                await asyncio.sleep(0)
                turn += 1
            return answered

    answered = asyncio.run(run())

    assert [answered.count(turn) for turn in sorted(set(answered))] == [3, 3, 3, 1]


def test_polls_whose_leader_leads_no_longer_are_sent_away_some_a_turn_and_get_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "ANSWERED_PER_TURN_MAX", 3)

    async def run() -> tuple[list[int], set[type], list[int]]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            turn = 0
            answered: list[int] = []
            kinds: set[type] = set()

            def reply(outcome: object) -> None:
                answered.append(turn)
                kinds.add(type(outcome))

            for _ in range(10):
                tester.broker.submit(Receive(1, 0, 1, -1, LONG_MS), reply)
            await parked(tester, 10)
            host = tester.broker.host
            host.receives.waiters.cancel(
                host.receives.waiters._lines[host.replica.queues.partition(1, 0)].waiters[4]
            )

            host.receives.waiters.send_away(NotLeader())

            assert host.receives.waiters.parked == 0
            sent = asyncio.create_task(tester.send(1, message(7)))
            while len(answered) < 9:
                turn += 1
                await asyncio.sleep(0)
            await sent
            return answered, kinds, numbers(await tester.receive(1))

    answered, kinds, found = asyncio.run(run())

    assert [answered.count(turn) for turn in sorted(set(answered))] == [3, 2, 3, 1]  # one had gone
    assert (kinds, found) == ({NotLeader}, [7])


def test_polls_that_are_being_sent_away_are_all_answered_when_the_broker_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "ANSWERED_PER_TURN_MAX", 3)

    async def run() -> list[type]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            kinds: list[type] = []
            for _ in range(10):
                tester.broker.submit(
                    Receive(1, 0, 1, -1, LONG_MS), lambda outcome: kinds.append(type(outcome))
                )
            await parked(tester, 10)

            tester.broker.host.receives.waiters.send_away(NotLeader())
            tester.broker.host.receives.waiters.answer_all()

            return kinds

    assert asyncio.run(run()) == [NotLeader] * 3 + [ReceiveOutcome] * 7


def test_a_poll_that_ends_and_is_woken_in_one_turn_gets_the_message(tmp_path: Path) -> None:
    async def run() -> tuple[list[int], int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            poll = Poll(tester)
            await parked(tester, 1)
            host = tester.broker.host
            partition = host.replica.queues.partition(1, 0)
            (waiter,) = host.receives.waiters._lines[partition].waiters
            sending = asyncio.create_task(tester.send(1, message(7)))
            while partition.committed == 1:  # noqa: ASYNC110  # there is no event for it
                await asyncio.sleep(0)
            host.receives.waiters._expire(waiter)
            host.receives.waiters.wake(partition)
            await sending
            return await poll.numbers(), host.receives.waiters.parked

    assert asyncio.run(run()) == ([7], 0)


def test_a_reply_to_a_poll_that_fails_does_not_cost_the_others_theirs(tmp_path: Path) -> None:
    def failing(outcome: object) -> None:
        raise RuntimeError("cannot be rendered")

    async def run() -> tuple[list[int], int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            tester.broker.submit(Receive(1, 0, 1, -1, 1), failing)
            poll = Poll(tester, wait_ms=1)
            return await poll.numbers(), tester.broker.host.receives.waiters.parked

    assert asyncio.run(run()) == ([], 0)
