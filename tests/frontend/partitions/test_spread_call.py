"""Spread requests on their way to brokers: answered once, taken back in every state, sought again by newer tables."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core.spread.support import HIGH, LOW, delivered, entry, message, queue, result

from quaymaster.core.spread.entries import HandledEntries
from quaymaster.core.spread.parts import SEVERAL
from quaymaster.core.values.commands.messages import (
    Delete,
    Elsewhere,
    EntriesOutcome,
    Receipt,
    Receive,
    ReceiveOutcome,
    Send,
    SendOutcome,
)
from quaymaster.core.values.commands.transactions import AbortedOutcome, AbortTransaction
from quaymaster.core.values.errors import InvalidSecurity, NotLeader, QueueDoesNotExist, Unreachable
from quaymaster.core.values.queues.queue_definitions import KEY_MAX

from .support import HALVES, PLAIN, SPLIT, Bench, run, settle, submitted

QUEUE = PLAIN.queue_id
NOTHING = ReceiveOutcome(3, [])
RECEIPT = Receipt(1, 3, 1)
BOTH = Send(QUEUE, SEVERAL, [message(0)])
GROUPS = [message(0), message(KEY_MAX, name=1)]
FIFO_HALVES = queue(entry(1, keys=LOW), entry(2, keys=HIGH), is_fifo=True)
NEWER = queue(entry(1, "closing", keys=LOW), entry(2, keys=HIGH), entry(3, keys=LOW), version=4)


def receive(attempt: bytes | None = None) -> Receive:
    return Receive(QUEUE, SEVERAL, 10, attempt=attempt)


def test_a_request_that_needs_no_broker_is_answered_but_not_at_once() -> None:
    async def scenario() -> None:
        bench = Bench(queue(entry(0, "drained"), entry(1)))

        answer, _ = submitted(bench, HandledEntries(QUEUE, [0], [RECEIPT]))

        await settle()
        assert answer.outcome == EntriesOutcome([None], 1)
        assert bench.broker.log == []

    run(scenario())


def test_a_table_that_the_row_does_not_know_is_reported_to_metadata() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        bench.rows.in_journals = NEWER
        answer, _ = submitted(bench, receive())

        bench.broker.one(Receive).answer(Elsewhere(NEWER))

        await settle()
        assert (bench.rows.refreshes, bench.rows.checks) == (1, 1)
        assert bench.rows.shown == NEWER
        assert not answer.is_there

    run(scenario())


def test_a_row_that_has_the_table_by_now_is_enough() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        bench.rows.stored = NEWER
        submitted(bench, receive())

        bench.broker.one(Receive).answer(Elsewhere(NEWER))

        await settle()
        assert (bench.rows.refreshes, bench.rows.checks) == (1, 0)

    run(scenario())


def test_a_request_that_needs_no_broker_can_be_taken_back() -> None:
    async def scenario() -> None:
        bench = Bench(queue(entry(0, "drained"), entry(1)))
        answer, on_its_way = submitted(bench, HandledEntries(QUEUE, [0], [RECEIPT]))

        on_its_way.cancel()

        await settle()
        assert not answer.is_there

    run(scenario())


def test_a_batch_is_answered_once_when_all_its_parts_are() -> None:
    async def scenario() -> None:
        bench = Bench(FIFO_HALVES)
        answer, _ = submitted(bench, Send(QUEUE, SEVERAL, GROUPS))

        bench.broker.one(Send, 2).answer(NotLeader())
        assert not answer.is_there
        bench.broker.one(Send, 1).answer(SendOutcome([result(7)]))

        outcome = answer.outcome
        assert isinstance(outcome, SendOutcome)
        assert outcome.results[0] == result(7)
        assert isinstance(outcome.errors[1], NotLeader)

    run(scenario())


def test_a_request_that_was_taken_back_is_never_answered_and_asks_nothing_more() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, on_its_way = submitted(bench, receive())
        first = bench.broker.one(Receive)

        on_its_way.cancel()
        assert first.is_cancelled
        first.answer(NOTHING)

        await settle()
        assert not answer.is_there
        assert bench.broker.asked == []

    run(scenario())


def test_taking_back_what_was_answered_does_nothing() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, on_its_way = submitted(bench, receive())
        bench.broker.one(Receive).answer(delivered(1))

        on_its_way.cancel()

        assert isinstance(answer.outcome, ReceiveOutcome)
        assert answer.outcome.partition in (1, 2)

    run(scenario())


def test_a_part_that_is_not_needed_any_more_is_taken_back_and_its_late_answer_ignored() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = submitted(bench, receive(attempt=bytes(16)))
        one, other = bench.broker.take(Receive)

        one.answer(delivered(1))
        assert other.is_cancelled
        other.answer(NOTHING)

        assert isinstance(answer.outcome, ReceiveOutcome)
        assert bench.broker.asked == []

    run(scenario())


def test_a_send_goes_on_from_a_sealed_partition_and_later_ones_that_are_no_repeats_pass_it_by() -> None:
    async def scenario() -> None:
        bench = Bench(SPLIT)
        answer, _ = submitted(bench, BOTH)
        bench.broker.one(Send, 0).answer(Elsewhere(SPLIT, [None]))
        bench.broker.one(Send, 1).answer(SendOutcome([result(5)]))
        assert answer.outcome == SendOutcome([result(5)])

        submitted(bench, Send(QUEUE, SEVERAL, [message(0, may_be_retry=False)]))

        assert bench.broker.one(Send).partition == 1

    run(scenario())


def test_a_receive_that_is_sent_elsewhere_says_nothing_of_a_seal() -> None:
    async def scenario() -> None:
        bench = Bench(SPLIT)
        submitted(bench, receive())

        asked = bench.broker.one(Receive)
        asked.answer(Elsewhere(SPLIT))

        assert not bench.tables.is_known_sealed(QUEUE, asked.partition)

    run(scenario())


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        (BOTH, SendOutcome([result(5)])),
        (HandledEntries(QUEUE, [1], [RECEIPT]), EntriesOutcome([None])),
        (AbortTransaction(QUEUE, SEVERAL, "sink", 1), AbortedOutcome(is_aborted=True)),
        (receive(), ReceiveOutcome(3, [], partition=1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_partition_that_is_not_known_is_sought_again_by_a_newer_table(command: Any, outcome: Any) -> None:
    async def scenario() -> None:
        bench = Bench(queue(entry(1), version=2))
        bench.rows.stored = queue(entry(1), version=3)
        answer, _ = submitted(bench, command)

        bench.broker.one(object).answer(QueueDoesNotExist())
        await settle()
        for asked in bench.broker.take():
            asked.answer(outcome)

        assert bench.rows.refreshes == 1
        assert type(answer.outcome) is type(outcome)

    run(scenario())


def test_a_partition_that_is_not_known_by_the_newest_table_does_not_mean_that_the_queue_is_gone() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, _ = submitted(bench, BOTH)

        bench.broker.one(Send).answer(QueueDoesNotExist())
        await settle()

        assert isinstance(answer.outcome, Unreachable)

    run(scenario())


def test_a_queue_whose_row_is_gone_is_told_as_such() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        bench.rows.stored = None
        answer, _ = submitted(bench, BOTH)

        bench.broker.one(Send).answer(QueueDoesNotExist())
        await settle()

        assert isinstance(answer.outcome, QueueDoesNotExist)

    run(scenario())


@pytest.mark.parametrize("refusal", [NotLeader(), InvalidSecurity("no")])
def test_a_refresh_that_is_refused_is_told(refusal: Exception) -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        bench.rows.refusal = refusal
        answer, _ = submitted(bench, BOTH)

        bench.broker.one(Send).answer(QueueDoesNotExist())
        await settle()

        assert answer.outcome is refusal

    run(scenario())


def test_a_request_is_taken_back_while_its_row_is_looked_at() -> None:
    async def scenario() -> None:
        bench = Bench(FIFO_HALVES)
        bench.rows.gate = asyncio.Event()
        answer, on_its_way = submitted(bench, Send(QUEUE, SEVERAL, GROUPS))
        for asked in bench.broker.take(Send):
            asked.answer(QueueDoesNotExist())
        await settle()
        assert bench.rows.refreshes == 2

        on_its_way.cancel()
        await settle()

        assert not answer.is_there
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(scenario())


def test_two_parts_that_are_not_known_are_both_sought_again() -> None:
    async def scenario() -> None:
        bench = Bench(FIFO_HALVES)
        answer, _ = submitted(bench, Send(QUEUE, SEVERAL, GROUPS))
        bench.rows.stored = queue(entry(1, keys=LOW), entry(2, keys=HIGH), version=3, is_fifo=True)
        for asked in bench.broker.take(Send):
            asked.answer(QueueDoesNotExist())
        await settle()

        for asked in bench.broker.take(Send):
            asked.answer(SendOutcome([result(asked.partition)]))

        assert answer.outcome == SendOutcome([result(1), result(2)])

    run(scenario())


def test_a_part_that_went_by_an_older_table_than_is_known_by_now_is_sought_by_that() -> None:
    async def scenario() -> None:
        bench = Bench(FIFO_HALVES)
        newer = queue(
            entry(1, "closing", keys=LOW), entry(2, keys=HIGH), entry(3, keys=LOW), version=4, is_fifo=True
        )
        answer, _ = submitted(bench, Send(QUEUE, SEVERAL, GROUPS))
        high = bench.broker.one(Send, 2)
        bench.broker.one(Send, 1).answer(Elsewhere(newer, [None]))
        bench.broker.one(Send, 3).answer(SendOutcome([result(3)]))

        high.answer(QueueDoesNotExist())
        await settle()
        bench.broker.one(Send, 2).answer(SendOutcome([result(2)]))

        assert answer.outcome == SendOutcome([result(3), result(2)])

    run(scenario())


def test_a_handle_of_a_partition_that_only_newer_tables_have_has_the_row_looked_at() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        bench.rows.stored = NEWER
        answer, _ = submitted(bench, HandledEntries(QUEUE, [3], [RECEIPT]))

        bench.broker.one(Delete, 3).answer(QueueDoesNotExist())
        await settle()
        bench.broker.one(Delete, 3).answer(EntriesOutcome([None]))

        assert answer.outcome == EntriesOutcome([None])

    run(scenario())


def test_how_much_longer_a_send_took_that_met_a_change_is_counted_once() -> None:
    async def scenario() -> None:
        fifo = queue(entry(0, "closing"), entry(1), is_fifo=True)
        bench = Bench(fifo)

        async def sent(pause_s: float) -> None:
            submitted(bench, BOTH)
            await asyncio.sleep(1)
            bench.broker.one(Send, 0).answer(Elsewhere(fifo, [None]))
            await asyncio.sleep(pause_s)
            bench.broker.one(Send, 1).answer(SendOutcome([result(5)]))
            await settle()

        await sent(0.5)
        await sent(5)  # the seal is known by now

        (sample,) = bench.front.histograms()
        assert sample.name == "quaymaster_partition_pause_seconds"
        assert sum(sample.histogram.counts) == 1
        assert sample.histogram.sum_s == pytest.approx(0.5)

    run(scenario())


def test_a_send_by_an_old_row_counts_from_when_it_was_sent_elsewhere() -> None:
    async def scenario() -> None:
        bench = Bench(PLAIN)
        answers: list[Any] = []
        bench.front.go_on(Send(QUEUE, 0, [message(0)]), Elsewhere(SPLIT, [None]), answers.append)
        await asyncio.sleep(0.25)
        bench.broker.one(Send, 1).answer(SendOutcome([result(5)]))
        await settle()

        # One that fails in the end took as long as it was given; and a receive is no send.
        bench.front.go_on(Send(QUEUE, 0, [message(0)]), Elsewhere(SPLIT, [None]), answers.append)
        bench.broker.one(Send, 1).answer(NotLeader())
        bench.front.go_on(receive(), Elsewhere(SPLIT), answers.append)
        for asked in bench.broker.take(Receive):
            asked.answer(ReceiveOutcome(3, delivered(1).deliveries))
        await settle()

        assert len(answers) == 3
        (sample,) = bench.front.histograms()
        assert sum(sample.histogram.counts) == 1
        assert sample.histogram.sum_s == pytest.approx(0.25)

    run(scenario())


def test_a_send_whose_partition_is_not_known_any_more_met_a_change() -> None:
    async def scenario() -> None:
        bench = Bench(FIFO_HALVES)
        bench.rows.stored = queue(entry(2, keys=HIGH), entry(3, keys=LOW), version=4, is_fifo=True)
        submitted(bench, BOTH)

        bench.broker.one(Send, 1).answer(QueueDoesNotExist())
        await settle()
        bench.broker.one(Send, 3).answer(SendOutcome([result(5)]))
        await settle()

        assert sum(bench.tables.pauses.counts) == 1

    run(scenario())
