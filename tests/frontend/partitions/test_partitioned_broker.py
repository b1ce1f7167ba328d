"""What is spread over partitions, and what goes to brokers as it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core.spread.support import HIGH, LOW, delivered, entry, message, queue, result
from msgspec.structs import replace
from pyroaring import BitMap

from quaymaster.core.spread.entries import HandledEntries
from quaymaster.core.spread.parts import SEVERAL
from quaymaster.core.spread.sends import PATIENCE_MS
from quaymaster.core.structures.ids.recent_ids import top_of
from quaymaster.core.values.commands.logs import LogBounds, ResetGroup
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    Done,
    Elsewhere,
    EntriesOutcome,
    Peek,
    Purge,
    QueueCounts,
    Receipt,
    Receive,
    ReceiveOutcome,
    Send,
    SendOutcome,
    Watch,
)
from quaymaster.core.values.commands.partitions import AskIds, AskMarks, IdsOutcome, SetQueue
from quaymaster.core.values.commands.transactions import StagedOutcome, StageMessages
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.errors import InternalFailure, NotLeader, QueueDoesNotExist, Timeout, Unreachable
from quaymaster.core.values.queues.queue_definitions import replace_definition
from quaymaster.frontend.partitions.partitioned_broker import IDS_AGAIN_S, IDS_LOOK_S

from .support import HALVES, PLAIN, SPLIT, Answer, Bench, run, settle, submitted

QUEUE = PLAIN.queue_id
RECEIPT = Receipt(1, 3, 1)
SENT = Send(QUEUE, 0, [message(0)])
OTHERS = queue(entry(0), version=1)
OF_ONE: list[Command] = [
    SENT,
    Receive(QUEUE, 0, 10, wait_ms=5_000),
    Delete(QUEUE, 0, [RECEIPT]),
    ChangeVisibility(QUEUE, 0, [RECEIPT], [0]),
    Purge(QUEUE),
    CountMessages(QUEUE),
    ResetGroup(QUEUE, "latest"),
    LogBounds(QUEUE, 0),
    SetQueue(PLAIN),
    AskMarks(0),
]


def go_on(bench: Bench, command: Any, outcome: Any) -> Answer:
    answer = Answer()
    bench.front.go_on(command, outcome, answer)
    answer.is_submitting = False
    return answer


@pytest.mark.parametrize("has_met", [False, True])
@pytest.mark.parametrize("command", OF_ONE, ids=lambda command: type(command).__name__)
def test_commands_to_plain_queues_go_to_brokers_as_they_are(command: Command, has_met: bool) -> None:
    async def scenario() -> None:
        bench = Bench(PLAIN)
        if has_met:
            bench.tables.met[99] = SPLIT  # of another queue: all commands are looked at
        answer = Answer()

        on_its_way = bench.front.submit(command, answer)

        (asked,) = bench.broker.take()
        assert (asked, asked.command) == (on_its_way, command)
        assert asked._reply is answer

    run(scenario())


@pytest.mark.parametrize(
    "command", [Peek(QUEUE, 1, 0, 10), Delete(QUEUE, 1, [RECEIPT]), ResetGroup(QUEUE, "x", 1)]
)
def test_what_names_its_partition_goes_there(command: Command) -> None:
    async def scenario() -> None:
        bench = Bench(PLAIN)
        bench.tables.meet(SPLIT)

        submitted(bench, command)

        assert [asked.command for asked in bench.broker.take()] == [command]

    run(scenario())


def test_a_command_by_an_old_row_is_spread_when_a_newer_table_was_met() -> None:
    async def scenario() -> None:
        bench = Bench(PLAIN)
        bench.tables.meet(HALVES)

        answer, _ = submitted(bench, SENT)
        bench.broker.one(Send, 1).answer(SendOutcome([result(1)]))

        assert answer.outcome == SendOutcome([result(1)])

    run(scenario())


@pytest.mark.parametrize(
    "command", [Send(QUEUE, SEVERAL, [message(0)]), HandledEntries(QUEUE, [1], [RECEIPT])]
)
def test_commands_to_several_partitions_of_a_queue_that_is_gone_say_so_later(command: Any) -> None:
    async def scenario() -> None:
        bench = Bench(None)

        answer, _ = submitted(bench, command)
        _, taken_back = submitted(bench, command)
        taken_back.cancel()
        await settle()

        assert isinstance(answer.outcome, QueueDoesNotExist)
        assert bench.broker.log == []

    run(scenario())


def test_commands_to_one_partition_of_a_queue_that_is_not_known_go_to_the_broker() -> None:
    async def scenario() -> None:
        bench = Bench(None)
        bench.tables.met[99] = SPLIT

        submitted(bench, SENT)

        assert [asked.command for asked in bench.broker.take()] == [SENT]

    run(scenario())


def test_a_command_to_several_partitions_is_spread_even_if_the_row_went_back_to_one() -> None:
    async def scenario() -> None:
        bench = Bench(PLAIN)

        answer, _ = submitted(bench, Send(QUEUE, SEVERAL, [message(0)]))
        bench.broker.one(Send, 0).answer(Elsewhere(SPLIT, [None]))
        bench.broker.one(Send, 1).answer(SendOutcome([result(5)]))

        assert answer.outcome == SendOutcome([result(5)])

    run(scenario())


def test_handles_of_other_partitions_of_a_plain_queue_are_sought() -> None:
    async def scenario() -> None:
        bench = Bench(PLAIN)
        answer, _ = submitted(bench, HandledEntries(QUEUE, [0, 1], [RECEIPT, RECEIPT]))
        bench.rows.stored = SPLIT

        bench.broker.one(Delete, 0).answer(EntriesOutcome([None]))
        bench.broker.one(Delete, 1).answer(QueueDoesNotExist())
        await settle()
        bench.broker.one(Delete, 1).answer(EntriesOutcome([None], 1))

        assert answer.outcome == EntriesOutcome([None, None], 1)

    run(scenario())


def test_receives_begin_with_another_partition_each_time() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)

        for _ in range(4):
            submitted(bench, Receive(QUEUE, SEVERAL, 10))

        assert sorted(asked.partition for asked in bench.broker.take(Receive)) == [1, 1, 2, 2]

    run(scenario())


# Elsewhere


def test_a_send_to_a_queue_that_was_split_goes_on_and_its_row_is_looked_at() -> None:
    async def scenario() -> None:
        bench = Bench(PLAIN)

        answer = go_on(bench, SENT, Elsewhere(SPLIT, [None]))
        bench.broker.one(Send, 1).answer(SendOutcome([result(5)]))
        await settle()

        assert answer.outcome == SendOutcome([result(5)])
        assert bench.rows.refreshes == 1

    run(scenario())


NEW_ID = b"\xff" * 16
FIFO_SPLIT = queue(entry(0, "closing"), entry(1, keys=LOW), entry(2, keys=HIGH), is_fifo=True)


def fifo_send(dedup: bytes = NEW_ID) -> Send:
    return Send(QUEUE, SEVERAL, [replace(message(0), dedup=dedup)])


async def passed_on(bench: Bench) -> None:
    """Send a message that the closing partition does not know, and let it take its way."""
    submitted(bench, fifo_send())
    bench.broker.one(Send, 0).answer(Elsewhere(FIFO_SPLIT, [None]))
    bench.broker.one(Send, 1).answer(SendOutcome([result(5)]))
    await settle()


def test_a_closing_partition_is_asked_once_which_ids_it_knows_and_other_messages_pass_it() -> None:
    async def scenario() -> None:
        bench = Bench(FIFO_SPLIT)
        await passed_on(bench)
        tops = BitMap([top_of(bytes(16))]).serialize()
        bench.broker.one(AskIds, 0).answer(IdsOutcome(tops))
        await settle()

        submitted(bench, fifo_send())
        submitted(bench, fifo_send(bytes(16)))
        await settle()

        assert [asked.partition for asked in bench.broker.take(Send)] == [1, 0]
        assert not bench.broker.take(AskIds)

        bench.rows.show(queue(entry(0, "closed"), entry(1), version=3, is_fifo=True))
        await asyncio.sleep(2 * IDS_LOOK_S)
        assert bench.tables.may_know(QUEUE, 0, NEW_ID)

    run(scenario())


@pytest.mark.parametrize(
    ("attributes", "is_asked"), [({"DeliveryGuarantee": "ExactlyOnce"}, True), ({}, False)]
)
def test_a_closing_partition_of_a_standard_queue_is_asked_if_that_has_ids(
    attributes: dict[str, str], is_asked: bool
) -> None:
    async def scenario() -> None:
        table = queue(entry(0, "closing"), entry(1, keys=LOW), entry(2, keys=HIGH))
        table = replace_definition(table, attributes=attributes)
        bench = Bench(table)
        submitted(bench, fifo_send())
        bench.broker.one(Send, 0).answer(Elsewhere(table, [None]))
        await settle()

        assert len(bench.broker.take(AskIds)) == is_asked

    run(scenario())


def test_ids_are_known_as_long_as_their_partition_is_closing() -> None:
    async def scenario() -> None:
        bench = Bench(FIFO_SPLIT)
        await passed_on(bench)
        bench.broker.one(AskIds).answer(IdsOutcome(BitMap().serialize()))

        await asyncio.sleep(5 * IDS_LOOK_S)
        assert not bench.tables.may_know(QUEUE, 0, NEW_ID)

        bench.rows.show(None)
        await asyncio.sleep(2 * IDS_LOOK_S)
        assert bench.tables.may_know(QUEUE, 0, NEW_ID)

    run(scenario())


@pytest.mark.parametrize(
    "answer", [NotLeader(), InternalFailure("an older version"), IdsOutcome(b"", is_known=False)], ids=repr
)
def test_a_closing_partition_that_cannot_tell_its_ids_is_asked_about_each_message_and_later_again(
    answer: IdsOutcome | Exception,
) -> None:
    async def scenario() -> None:
        bench = Bench(FIFO_SPLIT)
        await passed_on(bench)
        bench.broker.one(AskIds).answer(answer)
        await settle()

        await passed_on(bench)
        assert not bench.broker.take(AskIds)

        await asyncio.sleep(IDS_AGAIN_S)
        await passed_on(bench)
        bench.broker.one(AskIds)

    run(scenario())


def test_no_ids_are_asked_for_where_there_are_none_or_no_queue() -> None:
    async def scenario() -> None:
        bench = Bench(SPLIT)

        for queue_id in (QUEUE, QUEUE + 1):
            bench.tables.note_sealed(queue_id, 0)
            await settle()

        assert not bench.broker.take(AskIds)

    run(scenario())


@pytest.mark.parametrize("refusal", [NotLeader(), QueueDoesNotExist()])
def test_a_row_that_cannot_be_looked_at_changes_nothing(refusal: Exception) -> None:
    async def scenario() -> None:
        bench = Bench(PLAIN)
        bench.rows.refusal = refusal

        bench.tables.meet(SPLIT)
        await settle()

        assert bench.tables.find(QUEUE) is SPLIT

    run(scenario())


def test_a_row_is_looked_at_once_at_a_time() -> None:
    async def scenario() -> None:
        bench = Bench(PLAIN)
        bench.rows.gate = asyncio.Event()

        for version in (2, 3, 4):
            bench.tables.meet(queue(entry(0, "closing"), entry(1), version=version))
            await settle()
        assert bench.rows.refreshes == 1
        bench.rows.gate.set()
        await settle()
        bench.tables.meet(queue(entry(0, "closed"), entry(1), version=5))
        await settle()

        assert bench.rows.refreshes == 2

    run(scenario())


def test_a_poll_goes_on_over_all_partitions() -> None:
    async def scenario() -> None:
        bench = Bench(PLAIN)

        answer = go_on(bench, Receive(QUEUE, 0, 1, wait_ms=5_000), Elsewhere(SPLIT))
        for _ in range(3):
            bench.broker.one(Receive).answer(ReceiveOutcome(3, []))

        assert sorted(asked.partition for asked in bench.broker.take(Watch)) == [0, 1, 2]
        assert not answer.is_there

    run(scenario())


def test_a_transaction_goes_on() -> None:
    async def scenario() -> None:
        bench = Bench(PLAIN)
        moved = queue(entry(0, "closing"), entry(1))

        answer = go_on(bench, StageMessages(QUEUE, 0, "sink", 1, "a", 0, []), Elsewhere(moved))
        bench.broker.one(StageMessages, 0).answer(Elsewhere(moved))
        bench.broker.one(StageMessages, 1).answer(StagedOutcome(0))

        assert answer.outcome == StagedOutcome(0)

    run(scenario())


# Partitions that are not known


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        (SENT, SendOutcome([result(5)])),
        (Receive(QUEUE, 0, 10), delivered(5)),
        (Delete(QUEUE, 0, [RECEIPT]), EntriesOutcome([None], 1)),
        (CountMessages(QUEUE), QueueCounts(1, 0, 0)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_command_to_a_partition_that_is_gone_goes_on_by_the_row_in_the_store(
    command: Any, outcome: Any
) -> None:
    """The front end's row is old; the partition was drained and dropped long ago."""

    async def scenario() -> None:
        bench = Bench(PLAIN)
        bench.rows.stored = queue(entry(1), version=9)

        answer = go_on(bench, command, QueueDoesNotExist())
        await settle()
        bench.broker.one(object, 0).answer(QueueDoesNotExist())
        await settle()
        for asked in bench.broker.take():
            asked.answer(outcome)
        await settle()

        assert type(answer.outcome) is type(outcome)

    run(scenario())


def test_a_partition_that_is_not_known_where_the_row_has_it_makes_no_queue_gone() -> None:
    async def scenario() -> None:
        bench = Bench(PLAIN)

        answer = go_on(bench, SENT, QueueDoesNotExist())
        bench.broker.one(Send, 0).answer(QueueDoesNotExist())
        await settle()

        assert isinstance(answer.outcome, Unreachable)

    run(scenario())


def test_a_queue_without_a_row_is_gone() -> None:
    async def scenario() -> None:
        bench = Bench(None)

        answer = go_on(bench, SENT, QueueDoesNotExist())
        await settle()

        assert isinstance(answer.outcome, QueueDoesNotExist)
        assert bench.broker.log == []

    run(scenario())


# Peers


def test_a_peer_that_does_not_answer_is_left_and_its_late_answer_ignored() -> None:
    async def scenario() -> None:
        peers = queue(entry(0, keys=LOW), entry(1, keys=HIGH))
        peers.attributes["ReplicationMode"] = "Peers"
        assert peers.has_peers
        bench = Bench(peers)
        answer, _ = submitted(bench, Send(QUEUE, SEVERAL, [message(0)]))
        silent = bench.broker.one(Send, 0)

        await asyncio.sleep(PATIENCE_MS / 1000 + 0.001)
        bench.broker.one(Send, 1).answer(SendOutcome([result(5)]))
        assert answer.outcome == SendOutcome([result(5)])
        silent.answer(Timeout())

        assert bench.broker.asked == []

    run(scenario())


# Asked by tasks


def test_what_is_asked_goes_on_from_old_tables() -> None:
    async def scenario() -> None:
        bench = Bench(PLAIN)
        answers: list[Any] = [Elsewhere(SPLIT, [None]), SendOutcome([result(5)])]
        bench.broker.answers = lambda command: answers.pop(0)

        assert await bench.front.ask(SENT) == SendOutcome([result(5)])

        bench.rows.show(PLAIN)
        known = {1, 2}
        bench.broker.answers = lambda command: (
            QueueCounts(1, 0, 0) if command.partition in known else QueueDoesNotExist()
        )
        bench.rows.stored = queue(entry(1, keys=LOW), entry(2, keys=HIGH), version=3)
        assert await bench.front.ask(CountMessages(QUEUE)) == QueueCounts(2, 0, 0)

    run(scenario())


def test_what_is_asked_and_does_not_go_on_says_that_the_queue_is_not_known() -> None:
    async def scenario() -> None:
        bench = Bench(PLAIN)
        bench.broker.answers = lambda command: QueueDoesNotExist()

        with pytest.raises(QueueDoesNotExist):
            await bench.front.ask(LogBounds(QUEUE, 0))
        assert bench.rows.refreshes == 0

    run(scenario())


def test_a_question_about_a_whole_queue_can_be_taken_back() -> None:
    async def scenario() -> None:
        bench = Bench(HALVES)
        answer, on_its_way = submitted(bench, Purge(QUEUE))
        await settle()
        purge = bench.broker.one(Purge, 1)

        on_its_way.cancel()
        await settle()
        purge.answer(Done())
        await settle()

        assert not answer.is_there
        assert bench.broker.asked == []
        assert bench.front._tasks == set()

    run(scenario())
