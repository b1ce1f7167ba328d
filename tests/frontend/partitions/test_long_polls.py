"""Long polls share a watch of each partition: nothing is handed out for clients that have gone, or said to be empty."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core.spread.support import HIGH, LOW, delivered, entry, queue
from msgspec.structs import replace

from quaymaster.core.values.commands.messages import Elsewhere, Receive, ReceiveOutcome, Watch, WatchOutcome
from quaymaster.core.values.errors import (
    InvalidSecurity,
    NotLeader,
    OverLimit,
    QueueDoesNotExist,
    Timeout,
)
from quaymaster.frontend.partitions.long_polls import DOUBTFUL_WATCH_MS, PAUSE_MAX_S, PAUSE_S

from .support import HALVES, PLAIN, Answer, Asked, Bench, now_s, run, settle, submitted

QUEUE = PLAIN.queue_id
NOTHING = ReceiveOutcome(3, [])
FOUND, QUIET = WatchOutcome(has_messages=True), WatchOutcome(has_messages=False)
CHILDREN = queue(entry(1, "closing", keys=LOW), entry(2, keys=HIGH), entry(3, keys=LOW), version=4)


def poll(bench: Bench, wait_ms: int = 20_000, attempt: bytes | None = None) -> tuple[Answer, Any]:
    return submitted(bench, Receive(QUEUE, -2, 1, wait_ms=wait_ms, attempt=attempt))


def waiting(bench: Bench, wait_ms: int = 20_000) -> tuple[Answer, Any]:
    """Have a poll wait: all partitions have nothing."""
    answer, on_its_way = poll(bench, wait_ms)
    while received := bench.broker.take(Receive):
        for asked in received:
            asked.answer(NOTHING)
    assert not answer.is_there
    return answer, on_its_way


def watches(bench: Bench) -> dict[int, Asked]:
    return {asked.partition: asked for asked in bench.broker.take(Watch)}


def messages(answer: Answer) -> tuple[int, list[int]]:
    outcome = answer.outcome
    assert isinstance(outcome, ReceiveOutcome)
    return outcome.partition, [delivery.sequence for delivery in outcome.deliveries]


# The first round


def test_messages_that_are_there_are_had_at_once() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = poll(bench)

        first = bench.broker.one(Receive)
        first.answer(NOTHING)
        second = bench.broker.one(Receive)
        second.answer(delivered(4))

        assert messages(answer) == (second.partition, [4])
        assert {first.partition, second.partition} == {1, 2}
        assert bench.broker.asked == []

    run(scenario())


def test_a_poll_that_found_nothing_watches_each_partition_for_the_rest_of_its_wait() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        poll(bench, 5_000)

        await asyncio.sleep(1)
        bench.broker.one(Receive).answer(NOTHING)
        bench.broker.one(Receive).answer(NOTHING)

        watched = [asked.command for asked in bench.broker.take(Watch)]
        assert watched == [Watch(QUEUE, 1, 4_000, 2), Watch(QUEUE, 2, 4_000, 2)]

    run(scenario())


def test_an_error_of_the_caller_ends_a_poll_at_once() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = poll(bench)
        error = InvalidSecurity("no")

        bench.broker.one(Receive).answer(error)

        assert answer.outcome is error
        assert bench.broker.asked == []

    run(scenario())


def test_a_first_round_that_takes_longer_than_the_wait_ends_it() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = poll(bench, 1_000)

        await asyncio.sleep(2)
        assert not answer.is_there
        bench.broker.one(Receive).answer(NOTHING)
        bench.broker.one(Receive).answer(NOTHING)

        assert answer.outcome == NOTHING.__class__(0, [])
        assert bench.broker.asked == []

    run(scenario())


def test_a_poll_at_the_limit_in_flight_waits_and_ends_empty() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = poll(bench, 1_000)
        for _ in range(2):
            bench.broker.one(Receive).answer(OverLimit.in_flight(120_000))
        assert not answer.is_there

        await asyncio.sleep(1.1)

        assert answer.outcome == ReceiveOutcome(0, [])

    run(scenario())


def test_an_attempt_is_not_given_messages_while_a_partition_that_may_know_it_cannot_be_asked() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = poll(bench, attempt=bytes(16))
        one, other = bench.broker.take(Receive)

        error = NotLeader()
        one.answer(error)
        other.answer(NOTHING)

        assert answer.outcome is error
        assert bench.broker.asked == []

    run(scenario())


# Messages


def test_what_a_watch_finds_goes_to_the_poll_that_waits_longest_and_then_to_the_next() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        first, _ = waiting(bench)
        second, _ = waiting(bench)

        watches(bench)[2].answer(FOUND)
        bench.broker.one(Receive, 2).answer(delivered(1))
        assert messages(first) == (2, [1])
        assert not second.is_there
        bench.broker.one(Receive, 2).answer(delivered(2))

        assert messages(second) == (2, [2])
        assert bench.broker.asked == []

    run(scenario())


@pytest.mark.parametrize("polls", [1, 3, 30])
def test_a_burst_of_messages_reaches_as_many_polls_without_a_pause(polls: int) -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answers = [waiting(bench)[0] for _ in range(polls)]
        late, _ = waiting(bench)
        left = list(range(polls))

        watches(bench)[1].answer(FOUND)
        while left:
            bench.broker.one(Receive, 1).answer(delivered(left.pop(0)))
        bench.broker.one(Receive, 1).answer(NOTHING)

        assert [messages(answer) for answer in answers] == [(1, [number]) for number in range(polls)]
        assert not late.is_there
        assert list(watches(bench)) == [1]
        assert now_s() == 0

    run(scenario())


def test_polls_of_two_partitions_are_served_side_by_side() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        first, _ = waiting(bench)
        second, _ = waiting(bench)
        watched = watches(bench)

        watched[1].answer(FOUND)
        watched[2].answer(FOUND)
        bench.broker.one(Receive, 2).answer(delivered(8))
        bench.broker.one(Receive, 1).answer(delivered(7))

        assert (messages(first), messages(second)) == ((1, [7]), (2, [8]))

    run(scenario())


def test_a_partition_is_not_asked_again_and_again_while_the_only_poll_is_being_served_by_another() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = waiting(bench)
        watched = watches(bench)
        watched[1].answer(FOUND)
        served = bench.broker.one(Receive, 1)

        watched[2].answer(FOUND)
        await asyncio.sleep(5)
        assert bench.broker.asked == []
        served.answer(NOTHING)

        watches(bench)[2].answer(FOUND)
        bench.broker.one(Receive, 2).answer(delivered(8))
        assert messages(answer) == (2, [8])

    run(scenario())


def test_what_a_watch_found_and_a_receive_did_not_get_is_watched_again_after_longer_and_longer_pauses() -> (
    None
):
    async def scenario() -> None:
        bench = Bench(HALVES)
        waiting(bench)
        watch = watches(bench)[1]

        for number in range(7):
            watch.answer(FOUND)
            bench.broker.one(Receive, 1).answer(NOTHING)
            await asyncio.sleep(min(PAUSE_MAX_S, PAUSE_S * 2**number) - 0.001)
            assert bench.broker.asked == []
            await asyncio.sleep(0.002)
            watch = bench.broker.one(Watch, 1)

    run(scenario())


def test_a_receive_that_fails_leaves_its_poll_waiting() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = waiting(bench)
        watches(bench)[1].answer(FOUND)

        bench.broker.one(Receive, 1).answer(Timeout())
        assert not answer.is_there
        await asyncio.sleep(PAUSE_S + 0.01)
        bench.broker.one(Watch, 1).answer(FOUND)
        bench.broker.one(Receive, 1).answer(delivered(1))

        assert messages(answer) == (1, [1])

    run(scenario())


def test_a_receive_that_the_caller_may_not_ends_its_poll_alone() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = waiting(bench)
        other, _ = waiting(bench)
        watches(bench)[1].answer(FOUND)
        error = InvalidSecurity("no")

        bench.broker.one(Receive, 1).answer(error)

        assert (answer.outcome, other.outcome) == (error, None)

    run(scenario())


# Ends


def test_a_wait_ends_empty_at_its_time_and_without_polls_nothing_is_watched() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = waiting(bench, 3_000)
        watched = watches(bench)

        await asyncio.sleep(2.9)
        assert not answer.is_there
        await asyncio.sleep(0.2)

        assert answer.outcome == ReceiveOutcome(0, [])
        assert answer.at_s == 3
        assert all(watch.is_cancelled for watch in watched.values())
        assert bench.broker.asked == []

    run(scenario())


def test_watches_go_on_for_polls_that_came_later() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        first, _ = waiting(bench, 3_000)
        await asyncio.sleep(2)
        second, _ = waiting(bench, 5_000)
        watched = watches(bench)

        await asyncio.sleep(1.1)
        for watch in watched.values():
            watch.answer(QUIET)

        assert first.outcome == ReceiveOutcome(0, [])
        assert not second.is_there
        assert [watch.command for watch in watches(bench).values()] == [
            Watch(QUEUE, 1, 3_900, 2, empty_before=1),
            Watch(QUEUE, 2, 3_900, 2),
        ]

    run(scenario())


def test_a_poll_whose_wait_ends_while_it_is_being_served_gets_the_messages() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = waiting(bench, 3_000)
        watches(bench)[1].answer(FOUND)

        await asyncio.sleep(4)
        assert not answer.is_there
        bench.broker.one(Receive, 1).answer(delivered(1))

        assert messages(answer) == (1, [1])

    run(scenario())


@pytest.mark.parametrize("outcome", [NOTHING, NotLeader(), Elsewhere(HALVES), OverLimit.in_flight(1)])
def test_a_poll_whose_wait_ends_while_it_is_being_served_in_vain_ends_then(outcome: Any) -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = waiting(bench, 3_000)
        watches(bench)[1].answer(FOUND)

        await asyncio.sleep(4)
        bench.broker.one(Receive, 1).answer(outcome)

        assert answer.outcome == ReceiveOutcome(0, [])
        await asyncio.sleep(5)
        assert [asked.command for asked in bench.broker.asked] == [Watch(QUEUE, 1, 0, 2, empty_before=1)]

    run(scenario())


def test_a_partition_that_could_not_be_asked_keeps_a_poll_from_ending_empty() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = poll(bench, 3_000)
        error = NotLeader()
        bench.broker.one(Receive).answer(error)
        bench.broker.one(Receive).answer(NOTHING)

        await asyncio.sleep(3.1)

        assert answer.outcome is error

    run(scenario())


@pytest.mark.parametrize("outcome", [QUIET, Elsewhere(CHILDREN)])
def test_a_partition_that_could_not_be_asked_is_soon_known_to_have_nothing(outcome: Any) -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = poll(bench, 3_000)
        unknown = bench.broker.one(Receive)
        unknown.answer(NotLeader())
        bench.broker.one(Receive).answer(NOTHING)
        watch = watches(bench)[unknown.partition]
        assert isinstance(watch.command, Watch)
        assert watch.command.wait_ms == DOUBTFUL_WATCH_MS

        watch.answer(outcome)
        await asyncio.sleep(3.1)

        assert answer.outcome == ReceiveOutcome(0, [])

    run(scenario())


@pytest.mark.parametrize("is_first", [True, False])
def test_a_poll_that_takes_for_good_hears_of_an_answer_that_was_lost(is_first: bool) -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = submitted(bench, Receive(QUEUE, -2, 1, wait_ms=20_000, takes_for_good=True))
        if not is_first:
            bench.broker.one(Receive).answer(NOTHING)
            bench.broker.one(Receive).answer(NOTHING)
            watches(bench)[1].answer(FOUND)
        error = Timeout()

        bench.broker.one(Receive).answer(error)

        assert answer.outcome is error

    run(scenario())


def test_a_partition_that_has_messages_which_a_poll_could_not_get_is_still_unknown_to_it() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = poll(bench, 3_000)
        error = NotLeader()
        unknown = bench.broker.one(Receive)
        unknown.answer(error)
        bench.broker.one(Receive).answer(NOTHING)

        watches(bench)[unknown.partition].answer(FOUND)
        bench.broker.one(Receive, unknown.partition).answer(Timeout())
        await asyncio.sleep(3.1)

        assert answer.outcome is error

    run(scenario())


def test_a_partition_that_had_nothing_since_the_request_and_is_lost_then_does_not_make_an_error() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = waiting(bench, 3_000)

        watches(bench)[1].answer(NotLeader())
        await asyncio.sleep(3.1)

        assert answer.outcome == ReceiveOutcome(0, [])

    run(scenario())


# Taken back


def test_a_poll_that_waits_is_taken_back() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, on_its_way = waiting(bench, 3_000)
        watched = watches(bench)

        on_its_way.cancel()

        assert all(watch.is_cancelled for watch in watched.values())
        watched[1].answer(FOUND)
        await asyncio.sleep(4)
        assert not answer.is_there
        assert bench.broker.asked == []

    run(scenario())


def test_a_poll_is_taken_back_in_its_first_round() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, on_its_way = poll(bench, 3_000)
        first = bench.broker.one(Receive)

        on_its_way.cancel()
        assert first.is_cancelled
        first.answer(NOTHING)

        await asyncio.sleep(4)
        assert not answer.is_there
        assert bench.broker.asked == []

    run(scenario())


def test_a_poll_that_is_taken_back_while_it_is_served_leaves_the_messages_to_the_next() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        gone, on_its_way = waiting(bench)
        other, _ = waiting(bench)
        watches(bench)[1].answer(FOUND)
        served = bench.broker.one(Receive, 1)

        on_its_way.cancel()

        assert served.is_cancelled  # and is never answered, like what a router takes back
        watches(bench)[1].answer(FOUND)
        bench.broker.one(Receive, 1).answer(delivered(1))
        assert (gone.outcome, messages(other)) == (None, (1, [1]))

    run(scenario())


def test_messages_that_come_for_a_poll_that_was_taken_back_while_it_was_served_are_its_answer() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        hurried, on_its_way = waiting(bench)
        other, _ = waiting(bench)
        watches(bench)[1].answer(FOUND)
        served = bench.broker.one(Receive, 1)

        on_its_way.cancel()
        served.answer(delivered(1))

        assert messages(hurried) == (1, [1])
        assert not other.is_there

    run(scenario())


def test_a_late_answer_does_not_end_that_another_poll_is_served() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        _, on_its_way = waiting(bench)
        other, _ = waiting(bench)
        watches(bench)[1].answer(FOUND)
        served = bench.broker.one(Receive, 1)
        on_its_way.cancel()
        watches(bench)[1].answer(FOUND)

        served.answer(NOTHING)
        await asyncio.sleep(1)

        assert bench.broker.take(Watch) == []
        bench.broker.one(Receive, 1).answer(delivered(1))
        assert messages(other) == (1, [1])

    run(scenario())


def test_the_last_poll_leaves_no_board_behind() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        for number in range(3):
            _, on_its_way = waiting(bench)
            on_its_way.cancel()
            answer, _ = poll(bench)
            bench.broker.one(Receive).answer(delivered(number))
            assert answer.outcome is not None

        assert bench.front._polls._boards == {}

    run(scenario())


# Tables


def test_partitions_that_a_watch_tells_of_are_watched_too() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = waiting(bench)

        watches(bench)[1].answer(Elsewhere(CHILDREN))
        watched = watches(bench)
        assert [watch.command.table_version for watch in watched.values()] == [4, 4]  # type: ignore[union-attr]
        watched[3].answer(FOUND)
        bench.broker.one(Receive, 3).answer(delivered(9))

        assert sorted(watched) == [1, 3]
        assert messages(answer) == (3, [9])

    run(scenario())


def test_a_receive_that_meets_a_newer_table_has_its_partitions_watched() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        waiting(bench)
        watches(bench)[1].answer(FOUND)

        bench.broker.one(Receive, 1).answer(Elsewhere(CHILDREN))

        assert list(watches(bench)) == [3]

    run(scenario())


def test_a_watch_that_is_told_of_a_table_which_is_no_news_pauses() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        waiting(bench)
        watch = watches(bench)[1]
        bench.rows.show(None)  # the queue is deleted: nothing is met any more

        for _ in range(3):
            watch.answer(Elsewhere(CHILDREN))
            assert bench.broker.asked == []
            await asyncio.sleep(PAUSE_S + 0.01)
            watch = bench.broker.one(Watch, 1)

    run(scenario())


def test_a_drained_partition_is_not_watched_any_more() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        waiting(bench)
        bench.rows.show(queue(entry(1, "drained", keys=LOW), entry(2), version=5))

        for watch in watches(bench).values():
            watch.answer(QUIET)

        assert list(watches(bench)) == [2]

    run(scenario())


# Failures


def test_a_watch_that_fails_pauses_and_comes_again() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = waiting(bench)
        watch = watches(bench)[1]

        for pause_s in (PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S):
            watch.answer(NotLeader())
            await asyncio.sleep(pause_s - 0.001)
            assert bench.broker.asked == []
            await asyncio.sleep(0.002)
            watch = bench.broker.one(Watch, 1)
        watch.answer(FOUND)
        bench.broker.one(Receive, 1).answer(delivered(1))

        assert messages(answer) == (1, [1])

    run(scenario())


def test_a_watch_that_the_caller_may_not_ends_the_polls_but_not_one_that_is_being_served() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        served, _ = waiting(bench)
        other, _ = waiting(bench)
        watched = watches(bench)
        watched[2].answer(FOUND)
        error = InvalidSecurity("no")

        watched[1].answer(error)
        assert (served.outcome, other.outcome) == (None, error)
        bench.broker.one(Receive, 2).answer(delivered(1))

        assert messages(served) == (2, [1])

    run(scenario())


def test_polls_of_a_queue_that_is_gone_are_told() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answers = [waiting(bench)[0] for _ in range(2)]
        bench.rows.stored = None

        for watch in watches(bench).values():
            watch.answer(QueueDoesNotExist())
        await settle()

        assert all(isinstance(answer.outcome, QueueDoesNotExist) for answer in answers)
        assert bench.rows.refreshes == 1

    run(scenario())


@pytest.mark.parametrize("refusal", [None, NotLeader()])
def test_a_partition_that_is_not_known_is_sought_again_after_a_pause(refusal: Exception | None) -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = waiting(bench, 3_000)
        bench.rows.refusal = refusal
        watches(bench)[1].answer(QueueDoesNotExist())
        await settle()
        assert not answer.is_there

        await asyncio.sleep(PAUSE_S + 0.01)

        assert list(watches(bench)) == [1]
        await asyncio.sleep(3)
        assert answer.outcome == ReceiveOutcome(0, [])

    run(scenario())


def test_by_a_newer_row_other_partitions_are_watched_at_once() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        waiting(bench)
        bench.rows.stored = CHILDREN

        watches(bench)[1].answer(QueueDoesNotExist())
        await settle()

        assert list(watches(bench)) == [3]

    run(scenario())


def test_looking_for_the_row_ends_with_the_last_poll() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        bench.rows.gate = asyncio.Event()
        _, on_its_way = waiting(bench)
        watches(bench)[1].answer(QueueDoesNotExist())
        await settle()

        on_its_way.cancel()
        await settle()

        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(scenario())


def test_a_poll_waits_by_the_newest_table_that_is_known() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        bench.tables.meet(CHILDREN)
        waiting(bench)

        assert sorted(watches(bench)) == [1, 2, 3]
        assert bench.tables.find(QUEUE) == replace(CHILDREN)

    run(scenario())


# What brokers count


def before_of(asked: Asked) -> int:
    """Return how many receives without messages a broker is told of; that it finds none itself is not counted."""
    command = asked.command
    assert isinstance(command, Watch) or (isinstance(command, Receive) and command.is_part)
    return command.empty_before


def test_receives_that_ended_without_messages_are_told_though_no_other_command_comes() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        for _ in range(2):
            submitted(bench, Receive(QUEUE, -2, 1))
        while received := bench.broker.take(Receive):
            for asked in received:
                asked.answer(NOTHING)
        assert bench.broker.asked == []

        await asyncio.sleep(2)
        (told,) = bench.broker.take()
        told.answer(QUIET)
        await asyncio.sleep(60)

        assert told.command == Watch(QUEUE, 1, 0, 2, empty_before=2)
        assert bench.broker.asked == []

    run(scenario())


def test_receives_that_ended_without_messages_are_told_with_the_next_command_once() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = submitted(bench, Receive(QUEUE, -2, 1))
        while received := bench.broker.take(Receive):
            assert [before_of(asked) for asked in received] == [0]
            received[0].answer(NOTHING)
        assert answer.outcome == ReceiveOutcome(0, [])
        waiting(bench, 1_000)
        bench.broker.take(Watch)
        await asyncio.sleep(1.1)

        submitted(bench, Receive(QUEUE, -2, 1))
        first = bench.broker.one(Receive)
        first.answer(NOTHING)
        second = bench.broker.one(Receive)

        assert (before_of(first), before_of(second)) == (1, 0)

    run(scenario())


def test_poll_that_ended_without_messages_is_told_with_the_next_watch() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        waiting(bench, 20_000)
        waiting(bench, 1_000)
        watched = watches(bench)
        await asyncio.sleep(1.1)

        watched[1].answer(QUIET)
        (again,) = watches(bench).values()

        assert before_of(again) == 1

    run(scenario())
