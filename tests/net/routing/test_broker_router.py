"""Commands find the leader of their journal: with brokers that are deposed, die, hang and lie."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from harness.routed_cell import Cell, message, poll, run, send, until

from quaymaster.core.queues.repeats import as_repeat
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    Done,
    EntriesOutcome,
    Purge,
    QueueCounts,
    Receipt,
    Receive,
    ReceiveOutcome,
    Send,
    SendOutcome,
    Watch,
    WatchOutcome,
)
from quaymaster.core.values.commands.partitions import AskMarks, ForgetQueue, SetQueue
from quaymaster.core.values.errors import (
    DiskFull,
    InternalFailure,
    NotLeader,
    NotNow,
    Overloaded,
    PurgeQueueInProgress,
    QueueDoesNotExist,
    StaleEpoch,
    Timeout,
    TooFewReplicas,
    Unreachable,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition
from quaymaster.monitoring.metrics import Metrics, Sample
from quaymaster.monitoring.request_ids import REQUEST_ID
from quaymaster.net.routing import broker_routes
from quaymaster.net.routing.broker_pool import PoolLimits
from quaymaster.net.routing.broker_router import RouterLimits
from quaymaster.net.routing.rooms import Occupancy

RECEIPT = Receipt(1, 1, 1)


# The way to the leader


def test_command_goes_to_the_leader_of_its_queues_journal() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        cell.lead(2, second)

        await cell.ask(send(1, queue=100))
        await cell.ask(send(2, queue=200))

        assert [journal for journal, _ in first.received] == [1]
        assert [journal for journal, _ in second.received] == [2]

    run(scenario)


def test_commands_that_make_and_delete_a_queue_go_to_its_journal() -> None:
    async def scenario(cell: Cell) -> None:
        cell.lead(2, cell.brokers[1])
        definition = QueueDefinition(7, "0", "q", "active", 1, 0, 0, {}, {}, 0, one_partition(2))

        assert await cell.ask(SetQueue(definition)) == Done()
        assert await cell.ask(ForgetQueue(200)) == Done()

    run(scenario)


def test_commands_that_make_and_delete_a_queue_go_to_the_journal_that_they_name() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        cell.lead(2, second)
        definition = QueueDefinition(7, "0", "q", "active", 1, 0, 0, {}, {}, 0, one_partition(1))

        await cell.ask(SetQueue(definition, journal_id=2))
        await cell.ask(ForgetQueue(100, journal_id=2))

        assert [journal for journal, _ in second.received] == [2, 2]
        assert not first.received

    run(scenario)


def test_commands_about_a_partition_go_to_its_journal_and_others_to_that_of_the_oldest() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        cell.lead(2, second)
        cell.journals_by_partition[4] = 2

        await cell.ask(CountMessages(100, partition=4))
        await cell.ask(Purge(100, partition=4))
        await cell.ask(CountMessages(100))
        await cell.ask(AskMarks(1))

        assert [journal for journal, _ in second.received] == [2, 2]
        assert [journal for journal, _ in first.received] == [1, 1]

    run(scenario)


def test_queue_that_nobody_knows_does_not_exist() -> None:
    async def scenario(cell: Cell) -> None:
        with pytest.raises(QueueDoesNotExist):
            await cell.ask(send(1, queue=0))

    run(scenario)


def test_errors_of_the_broker_arrive_as_they_are() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        for error in (PurgeQueueInProgress("q"), DiskFull(), Overloaded()):
            broker.failure = error

            with pytest.raises(type(error)):
                await cell.ask(send(1))

    run(scenario, brokers=1)


def test_the_request_that_submits_a_command_is_named_to_every_broker_that_gets_it() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        first.leads.clear()
        first.hint = second.address
        second.leads.add(1)

        REQUEST_ID.set("r-1")
        await cell.ask(send(1))

        assert (first.traces, second.traces) == (["r-1"], ["r-1"])

    run(scenario)


def test_hint_of_a_deposed_leader_is_followed_before_the_table_knows() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        cell.lead(1, second, tell=False)
        first.hint = second.address

        await cell.ask(send(1))
        await cell.ask(send(2))

        assert len(first.asked) == 1
        assert len(second.asked) == 2
        assert cell.doubts
        assert cell.router.events["redirected"] == 1

    run(scenario)


@pytest.mark.parametrize("hint", ["b2", "b2@storage"])
def test_hint_may_be_a_name_too(hint: str) -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        cell.lead(1, second, tell=False)
        first.hint = hint

        await cell.ask(send(1))

        assert len(second.asked) == 1

    run(scenario)


def test_brokers_that_name_each_other_are_not_asked_in_a_circle() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, third = cell.brokers
        cell.lead(1, first)
        cell.lead(1, third, tell=False)
        first.hint, second.hint = second.address, first.address
        third.leads.clear()

        waiting = [cell.start(send(number)) for number in range(100)]
        await asyncio.sleep(1)
        asked = len(first.received) + len(second.received)
        cell.lead(1, third)
        await until(lambda: all(answers for _, answers in waiting))

        assert all(isinstance(answers[0], SendOutcome) for _, answers in waiting)
        # Each command once by each of them, and a few questions.
        assert 200 <= asked < 220

    run(scenario)


@pytest.mark.parametrize("hint", ["nonsense", "b9:port", "b9:9"])
def test_hint_that_leads_nowhere_is_no_harm(hint: str) -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        cell.lead(1, second, tell=False)
        first.hint = hint

        _, answers = cell.start(send(1))
        await until(lambda: cell.doubts)
        cell.lead(1, second)
        await until(lambda: answers)

        assert isinstance(answers[0], SendOutcome)

    run(scenario)


def test_front_end_cut_off_from_coordination_finds_the_new_leader_by_asking_the_members() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, third = cell.brokers
        cell.lead(1, first)
        await cell.ask(send(1))
        await cell.kill(first)
        cell.lead(1, third, tell=False)
        second.hint = third.address

        await cell.ask(send(2))

        assert len(third.asked) == 1
        assert [type(command) for _, command in second.received] == [CountMessages]

    run(scenario)


def test_leaders_are_followed_while_coordination_says_nothing() -> None:
    async def scenario(cell: Cell) -> None:
        cell.lead(1, cell.brokers[0])
        for number in range(50):
            await cell.ask(send(number))
        for broker in cell.brokers:
            cell.table.set_address(broker.name, None)  # registrations that ended with their leases

        await cell.ask(send(50))

        assert len(cell.log.bodies(1)) == 51

    run(scenario)


# Waiting for a leader


def test_command_that_cannot_be_sent_does_not_strand_those_behind_it() -> None:
    async def scenario(cell: Cell) -> None:
        broken = send(1)
        broken.messages[0].message_id = object()  # type: ignore[assignment]
        _, failed = cell.start(broken)
        _, answers = cell.start(send(2))
        await asyncio.sleep(0.05)

        cell.lead(1, cell.brokers[0])
        await until(lambda: failed and answers)

        assert isinstance(failed[0], InternalFailure)
        assert isinstance(answers[0], SendOutcome)

    run(scenario)


def test_command_waits_for_the_first_leader() -> None:
    async def scenario(cell: Cell) -> None:
        _, answers = cell.start(send(1))
        await asyncio.sleep(0.05)
        assert not answers

        cell.lead(1, cell.brokers[0])
        await until(lambda: answers)

        assert isinstance(answers[0], SendOutcome)

    run(scenario)


def test_commands_wait_while_a_leader_is_appointed_and_not_activated() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        await cell.ask(send(1))
        cell.appoint(1, second)

        _, answers = cell.start(send(2))
        await asyncio.sleep(0.1)
        assert not answers
        assert len(first.received) == 1

        cell.lead(1, second)
        await until(lambda: answers)
        assert len(second.asked) == 1

    run(scenario)


def test_deposed_leader_is_not_asked_while_the_next_is_awaited() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        first.leads.clear()
        _, answers = cell.start(send(1))
        await asyncio.sleep(0.1)  # it asks now and then whether somebody leads
        cell.appoint(1, second)
        first.leads.add(1)  # so it thinks
        asked = len(first.received)
        await asyncio.sleep(1)
        assert len(first.received) == asked

        cell.lead(1, second)
        await until(lambda: answers)

        assert len(second.asked) == 1

    run(scenario)


def test_last_leader_is_asked_again_when_nobody_is_activated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_routes, "HOLD_S", 0.05)

    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        await cell.ask(send(1))
        cell.appoint(1, second)

        await cell.ask(send(2))

        assert len(first.asked) == 2

    run(scenario)


def test_clients_see_a_slow_answer_when_the_leader_is_killed() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        await cell.ask(send(0))
        first.is_silent = True
        waiting = [cell.start(send(number)) for number in range(1, 101)]
        await until(lambda: len(first.unanswered) == 100)

        await cell.kill(first)
        later = [cell.start(send(number)) for number in range(101, 201)]
        await asyncio.sleep(0.2)
        cell.lead(1, second)
        await until(lambda: all(answers for _, answers in waiting + later))

        assert all(isinstance(answers[0], SendOutcome) for _, answers in waiting + later)
        assert len(cell.log.bodies(1)) == 201
        assert cell.router.events["repeated"] == 100

    run(scenario)


def test_leader_that_the_network_swallows_is_given_up_for_the_next() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        _, polled = cell.start(poll())
        await until(lambda: first.parked)
        cell.network.cut(first.endpoint)
        _, safe = cell.start(send(1))
        _, unsafe = cell.start(send(2, retry=False))
        await until(lambda: unsafe)
        assert isinstance(unsafe[0], Timeout)
        _, later = cell.start(send(3, retry=False))
        await asyncio.sleep(1)
        assert not safe
        assert not later

        cell.lead(1, second)
        await until(lambda: safe and later)
        await until(lambda: second.parked)

        assert isinstance(safe[0], SendOutcome)
        assert isinstance(later[0], SendOutcome)
        assert not polled

    run(scenario)


def test_killed_broker_that_comes_back_as_leader_is_found_again() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        await cell.ask(send(1))
        await cell.kill(broker)
        waiting = [cell.start(send(number)) for number in range(2, 12)]
        await asyncio.sleep(0.1)

        cell.restart(broker)
        broker.leads.add(1)
        await until(lambda: all(answers for _, answers in waiting))

        assert all(isinstance(answers[0], SendOutcome) for _, answers in waiting)

    run(scenario, brokers=1)


def test_thousands_that_wait_cost_a_broker_without_leader_few_questions() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        broker.leads.clear()
        waiting = [cell.start(send(number)) for number in range(2_000)]

        await until(
            lambda: sum(sample.value for sample in cell.router.samples() if _is_waiting(sample)) == 2_000
        )
        told = len(broker.asked)
        await asyncio.sleep(0.5)
        asked = len(broker.received) - told
        broker.leads.add(1)
        await until(lambda: all(answers for _, answers in waiting))

        assert asked <= 30
        assert told == len(waiting)
        assert len(cell.log.bodies(1)) == 2_000

    run(scenario, brokers=1)


def _is_waiting(sample: Sample) -> bool:
    return sample.name == "quaymaster_broker_calls_waiting"


def test_receive_waits_for_a_leader_that_hears_its_followers() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        broker.failure = TooFewReplicas()
        _, answers = cell.start(poll(wait_ms=100))
        await until(lambda: broker.asked)

        broker.failure = None
        await until(lambda: answers)

        assert isinstance(answers[0], ReceiveOutcome)

    run(scenario, brokers=1)


def test_many_receives_do_not_beset_a_leader_that_refuses_them() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        carry_out = broker._carry_out
        refused = 0

        def refuse(journal: int, command: Any) -> Any:
            nonlocal refused
            if isinstance(command, Receive):
                refused += 1
                raise TooFewReplicas
            return carry_out(journal, command)

        broker._carry_out = refuse  # type: ignore[method-assign]
        polls = [cell.start(poll()) for _ in range(2_000)]
        await asyncio.sleep(3)
        assert refused < 2_000 + 15 * 100

        broker._carry_out = carry_out  # type: ignore[method-assign]
        await until(lambda: len(broker.parked) == len(polls))

    run(scenario, brokers=1)


def test_deadline_passes_while_there_is_no_leader() -> None:
    async def scenario(cell: Cell) -> None:
        first = cell.brokers[0]
        cell.lead(1, first)
        first.leads.clear()

        with pytest.raises(NotLeader):
            await cell.ask(send(1))
        for command in (Receive(100, 0, 1), CountMessages(100)):
            with pytest.raises(Unreachable):
                await cell.ask(command)
        with pytest.raises(Unreachable):
            await cell.ask(send(1, queue=900))

        assert cell.router.events["no_leader"] == 4

    run(scenario, limits=RouterLimits(timeout_ms=150))


def test_room_for_those_who_wait_is_bounded() -> None:
    async def scenario(cell: Cell) -> None:
        waiting = [cell.start(send(number)) for number in range(4)]
        polls = [cell.start(poll()) for _ in range(3)]
        cell.start(Send(300, 0, [message(1)]))
        large = message(2)
        large.payload = b"x" * 1_000

        for command in (send(9), poll(), Send(300, 0, [large])):
            with pytest.raises(Overloaded):
                await cell.ask(command)

        cell.lead(1, cell.brokers[0])
        cell.brokers[0].leads.add(1)
        await until(lambda: all(answers for _, answers in waiting))
        await until(lambda: len(cell.brokers[0].parked) == len(polls))

    run(scenario, limits=RouterLimits(waiting_max=4, waiting_polls_max=3, waiting_bytes_max=1_000))


def test_an_account_fills_half_of_the_room_for_a_leader_and_others_wait_next_to_it() -> None:
    async def scenario(cell: Cell) -> None:
        def of_bytes(size: int, queue: int) -> Send:
            large = message(1)
            large.payload = b"x" * size
            return Send(queue, 0, [large])

        waiting = [cell.start(send(number, queue=101)) for number in range(4)]
        waiting += [cell.start(of_bytes(600, 103))]
        polls = [cell.start(poll(101)) for _ in range(3)]

        for command in (send(9, queue=101), poll(101), of_bytes(600, 103)):
            with pytest.raises(Overloaded):
                await cell.ask(command)
        waiting += [cell.start(send(number, queue=102)) for number in range(2)]
        polls += [cell.start(poll(102)) for _ in range(3)]
        assert not any(answers for _, answers in waiting + polls)

        polls.pop()[0].cancel()
        polls.append(cell.start(poll(102)))
        cell.lead(1, cell.brokers[0])
        await until(lambda: all(answers for _, answers in waiting))
        await until(lambda: len(cell.brokers[0].parked) == len(polls))
        room = cell.router._routes[1].room
        assert (room.all, room._accounts) == (Occupancy(), {})

    limits = RouterLimits(
        waiting_max=8, waiting_polls_max=6, waiting_bytes_max=2_000, pool=PoolLimits(is_shared=True)
    )
    run(scenario, limits=limits)


def test_late_word_of_a_deposed_leader_does_not_close_the_way_to_the_next() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        first.is_silent = True
        _, answers = cell.start(send(1))
        await until(lambda: first.unanswered)
        cell.lead(1, second)

        first.unanswered[0].fail(NotLeader())
        await until(lambda: answers)

        assert second.received == [(1, as_repeat(send(1)))]

    run(scenario)


def test_leader_appointed_before_the_first_command_is_waited_for() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        cell.appoint(1, second)
        _, answers = cell.start(send(1))
        await asyncio.sleep(1)
        assert not answers

        cell.lead(1, second)
        await until(lambda: answers)

        assert not first.received

    run(scenario)


def test_journal_that_is_deleted_has_nobody_to_ask_until_it_is_there_again() -> None:
    async def scenario(cell: Cell) -> None:
        first = cell.brokers[0]
        cell.lead(1, first)
        await cell.ask(send(1))
        cell.table.set_configuration(1, None)
        _, answers = cell.start(send(2))
        await asyncio.sleep(1)
        assert not answers

        cell.lead(1, first)
        await until(lambda: answers)

        assert isinstance(answers[0], SendOutcome)

    run(scenario)


# Outcomes that are unknown


def test_send_that_is_recognised_when_stored_is_repeated_once_and_stored_once() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        broker.loses_answers = 1
        outcome = await cell.ask(send(1))

        assert isinstance(outcome, SendOutcome)
        assert not outcome.results[0].duplicate
        assert cell.log.bodies(1) == [b"body 1"]
        assert len(broker.asked) == 2

        broker.loses_answers = 1
        assert isinstance(await cell.ask(send(2, retry=False, dedup=True)), SendOutcome)
        assert cell.log.bodies(1) == [b"body 1", b"body 2"]

    run(scenario, brokers=1)


def test_send_that_had_to_wait_is_looked_for_like_a_second_attempt() -> None:
    """Its client may have left, and have sent it again by another front end."""

    async def scenario(cell: Cell) -> None:
        first, second = send(1), send(1)
        assert not first.messages[0].may_be_retry
        _, answers = cell.start(first)
        await asyncio.sleep(0.05)
        cell.lead(1, cell.brokers[0])
        await until(lambda: answers)
        assert isinstance(await cell.ask(second), SendOutcome)

        asked = [command for command in cell.brokers[0].asked if isinstance(command, Send)]
        assert [command.messages[0].may_be_retry for command in asked] == [True, False]

    run(scenario)


def test_outcome_that_is_unknown_twice_is_told_as_unknown() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        broker.loses_answers = 2

        with pytest.raises(Timeout):
            await cell.ask(send(1))

        assert len(broker.asked) == 2
        assert cell.log.bodies(1) == [b"body 1"]

    run(scenario, brokers=1)


@pytest.mark.parametrize(
    "command", [send(1, retry=False), Receive(100, 0, 1), Purge(100)], ids=["send", "receive", "purge"]
)
def test_command_that_must_not_be_done_twice_is_not_repeated(command: Any) -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        broker.loses_answers = 1

        with pytest.raises(Timeout):
            await cell.ask(command)

        assert len(broker.asked) == 1
        assert cell.router.events == {"leader_changed": 1, "unknown": 1}

    run(scenario, brokers=1)


@pytest.mark.parametrize(
    "command",
    [
        Delete(100, 0, [RECEIPT]),
        ChangeVisibility(100, 0, [RECEIPT], [0]),
        Receive(100, 0, 1, attempt=bytes(16)),
        CountMessages(100),
        ForgetQueue(100),
    ],
    ids=lambda command: type(command).__name__,
)
def test_command_that_may_be_done_twice_is_repeated(command: Any) -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        await cell.ask(send(1))
        broker.is_silent = True
        _, answers = cell.start(command)
        await until(lambda: broker.unanswered)
        broker.is_silent = False
        broker.lose_connections()
        await until(lambda: answers)

        assert isinstance(answers[0], EntriesOutcome | ReceiveOutcome | QueueCounts | Done)
        assert cell.router.events["repeated"] == 1

    run(scenario, brokers=1)


def test_error_of_a_repeated_command_is_told_as_unknown() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        first.loses_answers = 1
        second.failure = DiskFull()
        _, answers = cell.start(send(1))
        cell.lead(1, second)
        await until(lambda: answers)
        assert isinstance(answers[0], Timeout | DiskFull)

        cell.lead(1, first)
        first.is_silent = True
        _, answers = cell.start(send(2))
        await until(lambda: first.unanswered)
        cell.lead(1, second)
        first.unanswered[0].fail(StaleEpoch())
        await until(lambda: answers)
        assert isinstance(answers[0], Timeout)

    run(scenario)


def test_changed_visibility_that_a_repeat_cannot_find_is_unknown_not_refused() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        broker.loses_answers = 1
        refused = EntriesOutcome([QueueDoesNotExist(), None])
        carry_out = broker._carry_out

        def refuse(journal: int, command: Any) -> Any:
            return refused if isinstance(command, ChangeVisibility) else carry_out(journal, command)

        broker._carry_out = refuse  # type: ignore[method-assign]
        outcome = await cell.ask(ChangeVisibility(100, 0, [RECEIPT, RECEIPT], [0, 0]))

        assert isinstance(outcome, EntriesOutcome)
        assert isinstance(outcome.errors[0], Timeout)
        assert outcome.errors[1] is None

    run(scenario, brokers=1)


def test_deposed_leaders_unfinished_commands_are_repeated_at_the_next() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        first.is_silent = True
        _, safe = cell.start(send(1))
        _, unsafe = cell.start(send(2, retry=False))
        await until(lambda: len(first.unanswered) == 2)

        for call in first.unanswered:
            call.fail(StaleEpoch())
        await until(lambda: unsafe)
        cell.lead(1, second)
        await until(lambda: safe)

        assert isinstance(unsafe[0], Timeout)
        assert isinstance(safe[0], SendOutcome)
        assert cell.log.bodies(1) == [b"body 1"]

    run(scenario)


def test_leader_that_hangs_after_it_was_deposed_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_routes, "STRAGGLE_S", 0.05)

    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        first.is_silent = True
        _, safe = cell.start(send(1))
        _, unsafe = cell.start(send(2, retry=False))
        polling, polled = cell.start(poll())
        await until(lambda: len(first.unanswered) == 3)

        cell.lead(1, second)
        await until(lambda: safe)
        await until(lambda: second.parked)
        assert isinstance(safe[0], SendOutcome)
        assert not unsafe
        assert not polled

        for call in first.unanswered:
            if call.is_waiting:
                call.fail(StaleEpoch())
        await until(lambda: unsafe)
        assert isinstance(unsafe[0], Timeout)
        polling.cancel()

    run(scenario)


def test_commands_that_wait_for_a_connection_to_a_lost_leader_go_to_the_next_at_once() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        await cell.ask(send(0))
        cell.network.cut(first.endpoint)
        await until(lambda: not first.server.open)  # for its silence
        polling, polled = cell.start(poll())
        started = [cell.start(send(number, retry=False))[1] for number in range(1, 4)]
        await asyncio.sleep(0.01)
        assert not any(started)

        began_s = asyncio.get_running_loop().time()
        cell.lead(1, second)
        await until(lambda: all(started) and second.parked)
        took_s = asyncio.get_running_loop().time() - began_s

        # The clock is simulated. An attempt to connect, and a leader that hangs, are given a second.
        assert took_s < 0.1
        assert all(isinstance(answers[0], SendOutcome) for answers in started)
        assert cell.log.bodies(1) == [b"body %d" % number for number in range(4)]
        assert not polled
        polling.cancel()

    run(scenario)


# Long polls


def test_thousand_long_polls_move_with_their_leader_and_none_is_answered_twice_or_forgotten() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, third = cell.brokers
        cell.lead(1, first)
        polls = [cell.start(poll()) for _ in range(1_000)]
        await until(lambda: len(first.parked) == 1_000)

        # A planned transfer: the leader says so, then the table.
        cell.lead(1, second, tell=False)
        first.depose(1, second.address)
        await until(lambda: len(second.parked) == 1_000)
        cell.table.set_configuration(1, cell.configuration(second))
        # A crash: connections end, and for a while nobody leads.
        await cell.kill(second)
        await asyncio.sleep(0.1)
        assert not any(answers for _, answers in polls)
        cell.lead(1, third)
        await until(lambda: len(third.parked) == 1_000)
        assert third.deliver(1, 1_000) == 1_000
        await until(lambda: all(answers for _, answers in polls))

        assert all(len(answers) == 1 for _, answers in polls)
        assert all(answers[0].deliveries for _, answers in polls)
        assert {sample.value for sample in cell.router.samples() if "in_flight" in sample.name} == {0}

    run(scenario)


def test_moved_long_poll_waits_only_for_the_rest_of_its_time() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        _, answers = cell.start(poll(wait_ms=10_000))
        await until(lambda: first.parked)
        await asyncio.sleep(0.05)

        cell.lead(1, second)
        first.depose(1)
        await until(lambda: second.parked)

        ((_, again),) = second.parked.values()
        assert 0 < again.wait_ms < 10_000
        second.deliver(1, 1)
        await until(lambda: answers)

    run(scenario)


def test_long_poll_whose_wait_is_over_meanwhile_is_answered_at_once_by_the_next_leader() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        _, answers = cell.start(poll(wait_ms=200))
        await until(lambda: first.parked)
        first.depose(1)
        await asyncio.sleep(0.3)
        assert not answers

        cell.lead(1, second)
        await until(lambda: answers)

        assert answers == [ReceiveOutcome(3, [])]

    run(scenario)


def test_long_poll_that_loses_its_connection_again_and_again_is_given_up() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        broker.loses_commands = 1_000

        with pytest.raises(Timeout):
            await cell.ask(poll())

        assert broker.loses_commands > 900

    run(scenario, brokers=1)


def test_long_poll_that_takes_for_good_is_not_asked_again_when_its_outcome_is_unknown() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        broker.loses_commands = 1

        with pytest.raises(Timeout):
            await cell.ask(msgspec.structs.replace(poll(), takes_for_good=True))

        assert not broker.loses_commands
        assert not broker.parked

    run(scenario, brokers=1)


def test_watch_moves_with_its_leader_for_the_rest_of_its_time_and_is_taken_back() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        _, answers = cell.start(Watch(100, 0, 10_000))
        taken_back, untold = cell.start(Watch(100, 0, 10_000))
        await until(lambda: len(first.parked) == 2)
        taken_back.cancel()
        await until(lambda: first.cancelled == 1)

        cell.lead(1, second)
        first.depose(1)
        await until(lambda: second.parked)

        ((_, again),) = second.parked.values()
        assert 0 < again.wait_ms <= 10_000
        await until(lambda: answers)
        assert answers == [WatchOutcome(False)]
        assert not untold

    run(scenario)


def test_cancelled_long_poll_is_taken_back_from_the_broker_and_never_answered() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        parked = [cell.start(poll()) for _ in range(3)]
        await until(lambda: len(first.parked) == 3)

        for submission, _ in parked[:2]:
            submission.cancel()
            submission.cancel()
        await until(lambda: first.cancelled == 2)
        assert first.deliver(1, 3) == 1
        await until(lambda: parked[2][1])

        # While it waits for a leader, and before it was sent at all.
        first.depose(1)
        waiting, waited = cell.start(poll())
        await until(lambda: _waiting(cell) == 1)
        waiting.cancel()
        cell.lead(1, second)
        unsent, untold = cell.start(poll())
        unsent.cancel()
        await cell.ask(send(1))

        assert not second.parked
        assert not any([waited, untold, parked[0][1], parked[1][1]])
        assert _waiting(cell) == 0

    run(scenario)


def _waiting(cell: Cell) -> float:
    return sum(sample.value for sample in cell.router.samples() if _is_waiting(sample))


def test_what_was_judged_under_an_older_floor_and_waited_for_a_leader_is_not_sent() -> None:
    async def scenario(cell: Cell) -> None:
        _, before = cell.start(send(1))
        polling, polled = cell.start(poll())
        cell.floor = 7
        _, after = cell.start(send(2))

        cell.lead(1, cell.brokers[0])
        await until(lambda: before and after and cell.brokers[0].parked)

        assert "Permissions have changed" in str(before[0])
        assert isinstance(after[0], SendOutcome)
        assert cell.log.bodies(1) == [b"body 2"]
        assert not polled  # it is judged again before its answer
        polling.cancel()

    run(scenario)


def test_what_was_judged_under_an_older_floor_and_waits_for_a_connection_is_not_sent() -> None:
    async def scenario(cell: Cell) -> None:
        (first, *_) = cell.brokers
        cell.lead(1, first)
        await cell.ask(send(0))
        cell.network.cut(first.endpoint)
        await until(lambda: not first.server.open)
        _, answers = cell.start(send(1))
        cell.router.refuse_unsent()
        await asyncio.sleep(0.01)
        assert not answers

        cell.floor = 7
        cell.router.refuse_unsent()
        await until(lambda: answers)
        cell.network.heal(first.endpoint)
        await cell.ask(send(2))

        assert "Permissions have changed" in str(answers[0])
        assert cell.log.bodies(1) == [b"body 0", b"body 2"]

    run(scenario)


def test_what_may_have_been_carried_out_is_not_sent_again_under_another_floor() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        first.is_silent = True
        _, answers = cell.start(send(1))
        await until(lambda: first.unanswered)
        await cell.kill(first)
        cell.floor = 7

        cell.lead(1, second)
        await until(lambda: answers)

        assert isinstance(answers[0], Timeout)
        assert cell.log.bodies(1) == []

    run(scenario)


def test_what_no_broker_got_is_withdrawn_and_never_sent() -> None:
    async def scenario(cell: Cell) -> None:
        waiting, waited = cell.start(send(1))
        unknown, unanswered = cell.start(send(1))
        unknown.is_unknown = True  # as after a leader that got it and did not answer
        assert waiting.withdraw()
        assert not waiting.withdraw()
        assert not unknown.withdraw()
        assert _waiting(cell) == 1

        cell.lead(1, cell.brokers[0])
        await until(lambda: unanswered)
        sent, answers = cell.start(send(1))
        await until(lambda: answers)
        assert not sent.withdraw()

        assert not waited

    run(scenario)


def test_a_command_that_a_broker_has_is_not_withdrawn() -> None:
    async def scenario(cell: Cell) -> None:
        cell.lead(1, cell.brokers[0])
        await cell.ask(send(1))
        polling, _ = cell.start(poll())
        await until(lambda: cell.brokers[0].parked)

        assert not polling.withdraw()
        assert cell.brokers[0].parked

    run(scenario)


def test_cancel_of_another_command_changes_nothing() -> None:
    async def scenario(cell: Cell) -> None:
        cell.lead(1, cell.brokers[0])
        submission, answers = cell.start(send(1))
        submission.cancel()
        await until(lambda: answers)
        submission.cancel()

    run(scenario)


def test_more_long_polls_than_one_connection_takes_use_others() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        polls = [cell.start(poll()) for _ in range(5_000)]

        await until(lambda: len(broker.parked) == 5_000)
        assert isinstance(await cell.ask(send(1)), SendOutcome)

        assert len(broker.server.open) == 4
        for submission, _ in polls:
            submission.cancel()
        await until(lambda: not broker.parked)

    run(scenario, brokers=1)


# Brokers that misbehave


def test_overload_of_one_broker_does_not_touch_queues_of_another() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        cell.lead(2, second)
        first.is_silent = True
        stuck = [cell.start(send(number)) for number in range(10)]
        polls = [cell.start(poll()) for _ in range(5)]

        for command in (send(99), poll()):
            with pytest.raises(Overloaded):
                await cell.ask(command)
        for number in range(100):
            assert isinstance(await cell.ask(send(number, queue=200)), SendOutcome)

        assert not any(answers for _, answers in stuck + polls)
        for call in first.unanswered:
            call.fail(DiskFull())
        await until(lambda: all(answers for _, answers in stuck))

    run(scenario, limits=RouterLimits(pool=PoolLimits(calls_max=10, polls_max=5)))


def test_an_account_has_half_of_what_may_be_on_its_way_to_a_broker() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        broker.is_silent = True
        stuck = [cell.start(send(number, queue=101)) for number in range(5)]
        polls = [cell.start(poll(101)) for _ in range(2)]

        for command in (send(99, queue=101), poll(101)):
            with pytest.raises(Overloaded):
                await cell.ask(command)
        stuck += [cell.start(send(number, queue=102)) for number in range(5)]
        polls += [cell.start(poll(102)) for _ in range(2)]
        await until(lambda: len(broker.unanswered) == len(stuck) + len(polls))

        pool = cell.router._pools[broker.address]
        for call in broker.unanswered:
            call.fail(DiskFull())
        await until(lambda: all(answers for _, answers in stuck + polls))
        assert (pool.room.all, pool.room._accounts) == (Occupancy(), {})

    run(scenario, brokers=1, limits=RouterLimits(pool=PoolLimits(calls_max=10, polls_max=4, is_shared=True)))


def test_half_of_the_bytes_on_their_way_to_a_broker_is_one_accounts() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        broker.is_silent = True
        large = message(1)
        large.payload = b"x" * 600
        cell.start(Send(101, 0, [large]))

        with pytest.raises(Overloaded):
            await cell.ask(Send(101, 0, [large]))
        cell.start(Send(102, 0, [large]))
        await until(lambda: len(broker.unanswered) == 2)

    limits = RouterLimits(pool=PoolLimits(bytes_max=2_000, is_shared=True))
    run(scenario, brokers=1, limits=limits)


def test_bytes_on_their_way_to_a_broker_are_bounded() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        broker.is_silent = True
        large = message(1)
        large.payload = b"x" * 900
        cell.start(Send(100, 0, [large]))
        await until(lambda: broker.unanswered)

        with pytest.raises(Overloaded):
            await cell.ask(Send(100, 0, [large]))

        broker.is_silent = False
        assert await cell.ask(CountMessages(100)) == QueueCounts(0, 0, 0)

    run(scenario, brokers=1, limits=RouterLimits(pool=PoolLimits(bytes_max=1_000)))


def test_broker_that_takes_everything_and_answers_nothing_is_left_alone_until_it_answers() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        broker.is_silent = True
        stuck = [cell.start(send(number)) for number in range(5)]
        await until(lambda: all(answers for _, answers in stuck))
        assert all(isinstance(answers[0], Timeout) for _, answers in stuck)

        for command in (send(9), poll()):
            with pytest.raises(Unreachable):
                await cell.ask(command)
        assert len(broker.asked) == 5
        assert [
            sample.value for sample in cell.router.samples() if sample.name == "quaymaster_brokers_silent"
        ] == [1]

        broker.is_silent = False
        outcome = None
        while outcome is None:
            try:
                outcome = await cell.ask(send(9))
            except Unreachable:
                await asyncio.sleep(0.05)
        assert isinstance(await cell.ask(send(10)), SendOutcome)

    run(scenario, brokers=1, limits=RouterLimits(timeout_ms=100))


def test_silent_brokers_queues_go_on_as_soon_as_another_leads() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        first.is_silent = True
        stuck = [cell.start(send(number)) for number in range(5)]
        await until(lambda: all(answers for _, answers in stuck))

        cell.lead(1, second)

        assert isinstance(await cell.ask(send(9)), SendOutcome)

    run(scenario, limits=RouterLimits(timeout_ms=100))


def test_broker_that_loses_connections_now_and_then_costs_no_errors() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)

        for number in range(60):
            if number % 6 == 0:
                broker.lose_connections()
            if number % 10 == 0:
                broker.loses_answers = 1
            assert isinstance(await cell.ask(send(number)), SendOutcome)

        assert len(cell.log.bodies(1)) == 60

    run(scenario, brokers=1)


def test_reply_that_cannot_be_read_is_an_internal_failure() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        broker.is_silent = True
        _, answers = cell.start(send(1))
        await until(lambda: broker.unanswered)
        broker.unanswered[0].reply(b"\xffnonsense")
        await until(lambda: answers)

        assert isinstance(answers[0], NotNow)

    run(scenario, brokers=1)


def test_reply_that_raises_costs_the_others_nothing() -> None:
    async def scenario(cell: Cell) -> None:
        def fail(outcome: object) -> None:
            raise RuntimeError("a bug")

        cell.lead(1, cell.brokers[0])
        cell.router.submit(send(1), fail)
        await cell.ask(send(2))

        assert len(cell.log.bodies(1)) == 2

    run(scenario)


# The end, and what is seen of it all


def test_close_answers_everybody() -> None:
    async def scenario(cell: Cell) -> None:
        first = cell.brokers[0]
        cell.lead(1, first)
        first.is_silent = True
        all_of = [cell.start(command) for command in (send(1), poll(), send(2, queue=900), poll(queue=900))]
        await until(lambda: len(first.unanswered) == 2)

        await cell.router.close()
        late, answers = cell.start(send(3))
        await until(lambda: answers)
        cell.lead(1, cell.brokers[1])

        assert all(len(answers) == 1 for _, answers in all_of)
        assert [type(answers[0]) for _, answers in all_of] == [Timeout, Timeout, Unreachable, Unreachable]
        assert isinstance(answers[0], Unreachable)
        assert late.is_done

    run(scenario)


def test_connections_to_brokers_that_are_gone_are_closed() -> None:
    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        await cell.ask(send(1))
        assert first.server.open

        cell.table.set_address(first.name, "b1:99")
        cell.lead(1, second)

        await until(lambda: not first.server.open)

    run(scenario)


def test_changes_of_leader_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "quaymaster.net.routing.broker_routes")

    async def scenario(cell: Cell) -> None:
        first, second, _ = cell.brokers
        cell.lead(1, first)
        await cell.ask(send(1))
        await asyncio.sleep(2)
        first.leads.clear()
        waiting = [cell.start(send(number)) for number in range(2, 50)]
        await asyncio.sleep(2)
        first.leads.add(1)
        await until(lambda: all(answers for _, answers in waiting))
        await asyncio.sleep(2)
        cell.appoint(1, second)
        cell.lead(1, second)

    run(scenario)

    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told == [
        ("INFO", "leader followed"),
        ("WARNING", "leader lost"),
        ("INFO", "leader found"),
        ("INFO", "leader lost"),
        ("INFO", "leader followed"),
    ]


def test_what_the_router_counts_is_declared() -> None:
    async def scenario(cell: Cell) -> None:
        cell.lead(1, cell.brokers[0])
        await cell.ask(send(1))
        metrics = Metrics("0")
        metrics.add_source(cell.router.samples)

        text = metrics.render().decode()

        assert 'quaymaster_broker_call_events_total{event="leader_changed"} 1.0' in text
        assert 'quaymaster_broker_calls_in_flight{kind="long_poll"} 0.0' in text
        assert "quaymaster_broker_routes_closed 0.0" in text

    run(scenario)
