"""What leaves a journal is sent in batches of one pair of partitions, one after the other, until each is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from harness.replica_host import Host, arn, far_queue, message, queue
from harness.waiting import PATIENCE_S

from quaymaster.broker.replica.moves import moves_out
from quaymaster.broker.replica.moves.moves_out import MovesAway
from quaymaster.broker.replica.records.record_bodies import Body
from quaymaster.core.partition.partition_counts import counts_of
from quaymaster.core.partition.partition_moves import QueuesElsewhere
from quaymaster.core.values.commands.completions import Complete, CompletionDecided, Output
from quaymaster.core.values.commands.decided import TakenOutcome
from quaymaster.core.values.commands.messages import Receipt, Receive, Send
from quaymaster.core.values.commands.moves import EndMoves, MoveBegun, MoveIn, MoveInOutcome, MoveMessage
from quaymaster.core.values.commands.partitions import ForgetQueue, SetQueue
from quaymaster.core.values.commands.unions import Command, InternalCommand
from quaymaster.core.values.errors import NotLeader, NotNow, TooFewReplicas
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.messages import message_id_of
from quaymaster.core.values.partition_tables import with_children, with_children_open, with_state, without
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.queues.queue_definitions import KEY_MAX, QueueDefinition
from quaymaster.monitoring.supervision import listen_for_failures

JOBS, OTHERS, DEAD = 1, 2, 3
THERE = 7
FAR = far_queue(DEAD, "dead", THERE)
JOBS_KEY, DEAD_KEY = partition_key(JOBS, 0), partition_key(DEAD, 0)


class Files:
    journal_id = 6


class Leader:
    """A `ReplicaHost` over a leader without files: bodies that are in `unreadable` are left out."""

    def __init__(self) -> None:
        self.core = Host()
        self.replica = self.core.replica
        self.files = Files()
        self.unreadable: set[int] = set()
        self.ended: list[EndMoves] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.records = self
        self.refusal: Exception | None = None
        places = QueuesElsewhere(CellFormat(2))
        places.places[arn("dead")] = FAR
        self.core.states.elsewhere = places
        policy = {"RedrivePolicy": f'{{"deadLetterTargetArn":"{arn("dead")}","maxReceiveCount":1}}'}
        for queue_id in (JOBS, OTHERS):
            self.core.ask(SetQueue(queue(queue_id, attributes=policy)))

    def leave(self, queue_id: int, *numbers: int, size: int = 0) -> list[MoveBegun]:
        """Let new messages leave."""
        for number in numbers:
            new = message(number)
            new.payload += bytes(size)
            self.core.ask(Send(queue_id, 0, [new]))
        self.core.ask(Receive(queue_id, 0, 10, 0))
        taken = self.core.ask(Receive(queue_id, 0, 10, 0))
        assert isinstance(taken, TakenOutcome)
        begun: list[MoveBegun] = []
        for letter in taken.dead_letters:
            row, payload = self.core.payload(letter.offset)
            outcome = self.core.ask(
                MoveMessage(
                    queue_id,
                    0,
                    letter.sequence,
                    DEAD,
                    row.type,
                    row.flags,
                    payload,
                    None,
                    target=FAR,
                )
            )
            assert isinstance(outcome, MoveBegun)
            begun.append(outcome)
        return begun

    def complete(self, *numbers: int) -> list[MoveBegun]:
        """Let outputs leave in the place of a message, in one record."""
        self.core.ask(Send(JOBS, 0, [message(1)]))
        self.core.ask(Receive(JOBS, 0, 1, 30_000))
        outputs = [Output(DEAD, 0, THERE, number, arn("dead"), message(number).payload) for number in numbers]
        sequence = self.core.partition(JOBS).next_sequence - 1
        decided = self.core.ask(Complete(JOBS, 0, [Receipt(sequence, 1, 1)], outputs, 7))
        assert isinstance(decided, CompletionDecided)
        return decided.begun

    @property
    def outputs_under_way(self) -> int:
        """How many outputs are not settled."""
        return self.core.states.outputs_under_way

    async def of(self, offsets: list[int]) -> dict[int, Body]:
        found: dict[int, Body] = {}
        for offset in offsets:
            if offset not in self.unreadable:
                row, payload = self.core.payload(offset)
                found[offset] = (row.type, row.flags, row.sequence, payload)
        return found

    async def ask(self, command: Command | InternalCommand) -> object:
        assert isinstance(command, EndMoves)
        await self.may_end.wait()
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        self.ended.append(command)
        return self.core.ask(command)


class Carrier:
    """The way to the target: it answers what `answer` says."""

    def __init__(self, answer: Callable[[MoveIn], Awaitable[MoveInOutcome]] | None = None) -> None:
        self.sent: list[MoveIn] = []
        self.answer = answer

    async def move(self, journal_id: int, command: MoveIn) -> MoveInOutcome:
        assert journal_id == THERE
        self.sent.append(command)
        if self.answer is not None:
            return await self.answer(command)
        return MoveInOutcome([one.number for one in command.messages if one.payload is None])

    def counts(self) -> list[int]:
        return [len(command.messages) for command in self.sent]


class Targets:
    """What is known of the target's queue: that it is gone, once it was `doubted` so often."""

    def __init__(self) -> None:
        self.noted: list[QueueDefinition] = []
        self.gone: list[tuple[int, int, list[str]]] = []
        self.doubted = 0
        self.table: QueueDefinition | None = None
        self.lost: list[tuple[int, list[str], bool]] = []
        self.is_waited_for = True

    def note(self, queue: QueueDefinition) -> None:
        self.noted.append(queue)

    async def is_gone(self, target_key: int, journal_id: int, arns: list[str]) -> bool:
        self.gone.append((target_key, journal_id, arns))
        if len(self.gone) <= self.doubted:
            raise NotNow
        return True

    async def table_without(self, target_key: int, journal_id: int, arn: str) -> QueueDefinition | None:
        await self.is_gone(target_key, journal_id, [arn])
        return self.table

    async def table_of_lost(
        self, target_key: int, arns: list[str], *, are_certain: bool
    ) -> QueueDefinition | None:
        self.lost.append((target_key, arns, are_certain))
        if self.is_waited_for:
            raise NotNow
        return self.table


def away_of(leader: Leader, carrier: Carrier) -> tuple[MovesAway, Targets, list[int]]:
    targets = Targets()
    settled: list[int] = []
    host: Any = leader
    moves = MovesAway(host, "local", carrier, targets=targets, on_settled=settled.append)
    return moves, targets, settled


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 -- the product has no event for it
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves_out, "RETRY_MIN_S", 0.0)
    monkeypatch.setattr(moves_out, "RETRY_MAX_S", 0.0)


def test_a_batch_goes_when_the_settlement_of_the_one_before_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moves_out, "BATCH_MAX", 2)

    async def scenario() -> None:
        leader, carrier = Leader(), Carrier()
        moves, _, settled = away_of(leader, carrier)
        leader.may_end.clear()
        for begun in leader.leave(JOBS, 1, 2, 3):
            moves.begun(JOBS_KEY, begun)
        await until(lambda: bool(carrier.sent))
        for _ in range(50):
            await asyncio.sleep(0)
        before = carrier.counts()
        leader.may_end.set()
        await until(lambda: len(leader.ended) == 2)
        await moves.close()

        assert before == [2]
        assert carrier.counts() == [2, 1]
        assert [len(ended.taken) for ended in leader.ended] == [2, 1]
        assert settled == [JOBS_KEY, JOBS_KEY]
        assert leader.core.partition(JOBS).alive == 0

    asyncio.run(scenario())


def test_only_what_is_committed_is_sent() -> None:
    async def scenario() -> None:
        leader, carrier = Leader(), Carrier()
        moves, _, _ = away_of(leader, carrier)
        first, _ = leader.leave(JOBS, 1, 2)
        moves.begun(JOBS_KEY, first)
        await until(lambda: bool(leader.ended))
        await moves.close()

        assert carrier.counts() == [1]
        assert leader.core.partition(JOBS).alive == 1

    asyncio.run(scenario())


def test_a_leader_begins_with_all_that_is_not_settled() -> None:
    async def scenario() -> None:
        leader, carrier = Leader(), Carrier()
        leader.leave(JOBS, 1, 2)
        leader.leave(OTHERS, 3)
        moves, _, _ = away_of(leader, carrier)
        moves.resume()
        await until(lambda: len(leader.ended) == 2)
        await moves.close()

        assert sorted(carrier.counts()) == [1, 2]

    asyncio.run(scenario())


def test_what_is_not_answered_is_sent_again_and_what_goes_wrong_strands_nobody() -> None:
    failures: list[Exception] = [NotLeader() for _ in range(7)] + [OSError("broken"), NotLeader()]

    async def answer(command: MoveIn) -> MoveInOutcome:
        if failures:
            raise failures.pop(0)
        return MoveInOutcome([])

    async def scenario() -> None:
        leader, carrier = Leader(), Carrier(answer)
        leader.refusal = TooFewReplicas()
        moves, _, _ = away_of(leader, carrier)
        (begun,) = leader.leave(JOBS, 1)
        moves.begun(JOBS_KEY, begun)
        await until(lambda: bool(leader.ended))
        await moves.close()

        assert carrier.counts() == [1] * 11
        assert len({command.messages[0].number for command in carrier.sent}) == 1

    asyncio.run(scenario())


def test_a_bug_in_what_carries_moves_ends_the_process() -> None:
    async def broken(command: MoveIn) -> MoveInOutcome:
        raise AssertionError("a bug")

    async def scenario() -> list[Exception]:
        ended: list[Exception] = []
        listen_for_failures(asyncio.get_running_loop(), ended.append)
        leader = Leader()
        moves, _, _ = away_of(leader, Carrier(broken))
        (begun,) = leader.leave(JOBS, 1)
        moves.begun(JOBS_KEY, begun)
        await until(lambda: bool(ended))
        await moves.close()
        return ended

    assert [str(error) for error in asyncio.run(scenario())] == ["a bug"]


def test_what_cannot_be_read_is_withdrawn() -> None:
    async def scenario() -> None:
        leader, carrier = Leader(), Carrier()
        moves, _, _ = away_of(leader, carrier)
        begun = leader.leave(JOBS, 1, 2)
        leader.unreadable.add(leader.core.partition(JOBS).index.entry(1).offset)
        for one in begun:
            moves.begun(JOBS_KEY, one)
        await until(lambda: bool(leader.ended))
        await moves.close()

        assert [one.payload is None for one in carrier.sent[0].messages] == [True, False]
        assert (leader.ended[0].withdrawn, leader.ended[0].taken) == ([begun[0].number], [begun[1].number])

    asyncio.run(scenario())


def test_large_messages_go_alone() -> None:
    async def scenario() -> None:
        leader, carrier = Leader(), Carrier()
        moves, _, _ = away_of(leader, carrier)
        for begun in leader.leave(JOBS, 1, 2, size=moves_out.BATCH_BYTES_MAX):
            moves.begun(JOBS_KEY, begun)
        await until(lambda: len(leader.ended) == 2)
        await moves.close()

        assert carrier.counts() == [1, 1]

    asyncio.run(scenario())


def test_a_target_that_is_gone_is_told_of_and_its_messages_come_back() -> None:
    async def answer(command: MoveIn) -> MoveInOutcome:
        return MoveInOutcome([], is_gone=True)

    async def scenario() -> None:
        leader, carrier = Leader(), Carrier(answer)
        moves, targets, _ = away_of(leader, carrier)
        targets.doubted = 1
        for begun in leader.leave(JOBS, 1, 2):
            moves.begun(JOBS_KEY, begun)
        await until(lambda: bool(leader.ended))
        await moves.close()

        assert targets.gone == [(DEAD_KEY, THERE, [arn("dead")])] * 2
        assert len(leader.ended[0].withdrawn) == 2
        assert counts_of(leader.core.partition(JOBS), leader.core.now_ms).visible == 2

    asyncio.run(scenario())


def test_nothing_is_sent_once_another_leads() -> None:
    async def answer(command: MoveIn) -> MoveInOutcome:
        await asyncio.Event().wait()
        raise AssertionError("nobody answers")

    async def scenario() -> None:
        leader, carrier = Leader(), Carrier(answer)
        moves, _, _ = away_of(leader, carrier)
        (begun,) = leader.leave(JOBS, 1)
        moves.begun(JOBS_KEY, begun)
        await until(lambda: bool(carrier.sent))
        moves.stop()
        for _ in range(20):
            await asyncio.sleep(0)

        assert carrier.counts() == [1]
        assert leader.ended == []

    asyncio.run(scenario())


def begin_all(moves: MovesAway, begun: list[MoveBegun]) -> None:
    for each in begun:
        moves.begun(JOBS_KEY, each)


def test_outputs_are_read_from_their_record_and_sent_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves_out, "BATCH_MAX", 2)

    async def scenario() -> None:
        leader, carrier = Leader(), Carrier()
        moves, _, _ = away_of(leader, carrier)
        begin_all(moves, leader.complete(10, 11, 12))
        await until(lambda: not leader.outputs_under_way)
        await moves.close()

        assert carrier.counts() == [2, 1]
        sent = [one for command in carrier.sent for one in command.messages]
        assert all(one.is_output for one in sent)
        ids = [int.from_bytes(message_id_of(one.payload or b""), "big") for one in sent]
        assert ids == [10, 11, 12]

    asyncio.run(scenario())


def test_output_that_cannot_be_read_is_not_withdrawn() -> None:
    async def scenario() -> None:
        leader, carrier = Leader(), Carrier()
        moves, _, _ = away_of(leader, carrier)
        first = leader.leave(JOBS, 1)
        begun = leader.complete(10)
        offset = leader.core.replica.end_offset - 1
        leader.unreadable.add(offset)
        begin_all(moves, first + begun)
        await until(lambda: len(leader.ended) == 1)
        for _ in range(50):
            await asyncio.sleep(0)
        before = carrier.counts()
        leader.unreadable.clear()
        await until(lambda: not leader.outputs_under_way)
        await moves.close()

        assert before == [1]
        assert carrier.counts() == [1, 1]

    asyncio.run(scenario())


@pytest.mark.parametrize("is_listed_elsewhere", [False, True])
def test_outputs_are_dropped_with_their_queue_only(*, is_listed_elsewhere: bool) -> None:
    async def scenario() -> None:
        leader = Leader()

        async def gone(command: MoveIn) -> MoveInOutcome:
            return MoveInOutcome([], is_gone=command.partition == 0)

        carrier = Carrier(gone)
        moves, targets, _ = away_of(leader, carrier)
        targets.doubted = 1
        if is_listed_elsewhere:
            split = with_children_open(with_children(FAR, FAR.partitions, [(0, KEY_MAX)], [THERE]))
            targets.table = without(split, [0])
        begin_all(moves, leader.complete(10, 11))
        await until(lambda: not leader.outputs_under_way)
        await moves.close()

        assert targets.gone == [(DEAD_KEY, THERE, [arn("dead")])] * 2
        assert [command.partition for command in carrier.sent] == (
            [0, 0, 1] if is_listed_elsewhere else [0, 0]
        )

    asyncio.run(scenario())


def test_nobody_is_told_that_an_output_is_gone_whose_record_cannot_be_read() -> None:
    async def scenario() -> None:
        leader = Leader()

        async def gone(command: MoveIn) -> MoveInOutcome:
            leader.unreadable.add(leader.core.replica.end_offset - 1)
            return MoveInOutcome([], is_gone=True)

        moves, targets, _ = away_of(leader, Carrier(gone))
        begin_all(moves, leader.complete(10))
        await until(lambda: bool(leader.unreadable))
        for _ in range(50):
            await asyncio.sleep(0)
        await moves.close()

        assert leader.outputs_under_way == 1
        assert targets.gone == []

    asyncio.run(scenario())


async def silent(command: MoveIn) -> MoveInOutcome:
    """Answer for partition 1 alone."""
    if command.partition == 0:
        raise NotLeader
    return MoveInOutcome([])


def without_first_partition() -> QueueDefinition:
    split = with_children_open(with_children(FAR, FAR.partitions, [(0, KEY_MAX)], [THERE]))
    return with_state(split, 0, "drained", is_given_up=True)


def test_what_was_sent_to_a_partition_that_is_given_up_goes_on_and_keeps_no_queue_from_being_deleted() -> (
    None
):
    async def scenario() -> None:
        leader = Leader()
        carrier = Carrier(silent)
        moves, targets, _ = away_of(leader, carrier)
        begin_all(moves, leader.complete(10, 11))
        await until(lambda: len(targets.lost) == 2)
        with pytest.raises(NotNow):
            leader.core.ask(ForgetQueue(JOBS))
        assert leader.outputs_under_way == 2, "its journal may answer later"

        targets.table = without_first_partition()
        targets.is_waited_for = False
        begin_all(moves, leader.complete(12))
        await until(lambda: not leader.outputs_under_way)
        await moves.close()

        assert targets.lost[0] == (DEAD_KEY, [arn("dead")], True)
        went_on = [command for command in carrier.sent if command.partition == 1]
        assert sum(len(command.messages) for command in went_on) == 3
        assert targets.noted == [targets.table]
        leader.core.ask(ForgetQueue(JOBS))

    asyncio.run(scenario())


def test_dead_letters_for_a_partition_that_is_given_up_go_on() -> None:
    async def scenario() -> None:
        leader = Leader()
        carrier = Carrier(silent)
        moves, targets, _ = away_of(leader, carrier)
        targets.table, targets.is_waited_for = without_first_partition(), False
        begin_all(moves, leader.leave(JOBS, 1, 2))
        await until(lambda: not leader.core.partition(JOBS).alive)
        await moves.close()

        assert targets.lost == [(DEAD_KEY, [arn("dead")], False)]

    asyncio.run(scenario())


def test_outputs_for_a_lost_partition_of_a_queue_that_is_gone_are_dropped() -> None:
    async def scenario() -> None:
        leader = Leader()
        moves, targets, _ = away_of(leader, Carrier(silent))
        targets.is_waited_for = False
        begin_all(moves, leader.complete(10, 11))
        await until(lambda: not leader.outputs_under_way)
        await moves.close()

        assert targets.noted == []
        leader.core.ask(ForgetQueue(JOBS))

    asyncio.run(scenario())


def test_outputs_whose_record_cannot_be_read_wait_though_their_partition_is_lost() -> None:
    async def scenario() -> None:
        leader = Leader()
        moves, targets, _ = away_of(leader, Carrier(silent))
        begun = leader.complete(10)
        leader.unreadable.add(leader.core.replica.end_offset - 1)
        begin_all(moves, begun)
        for _ in range(200):
            await asyncio.sleep(0)
        assert targets.lost == []
        assert leader.outputs_under_way == 1

        leader.unreadable.clear()
        await until(lambda: bool(targets.lost))
        await moves.close()

    asyncio.run(scenario())
