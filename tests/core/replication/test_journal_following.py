"""Three replicas of a journal with their queues: who follows, who leads after, and what those are told who wait."""

from __future__ import annotations

from collections import deque

import msgspec
import pytest
from harness.replica_host import RETRY_WINDOW_MS, message, queue, replay

from quaymaster.core.partition.work import slices
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.replication import journal
from quaymaster.core.replication.effects import PersistPromise, Truncate, Write
from quaymaster.core.replication.followers import HEARTBEAT_MS, LEASE_MS
from quaymaster.core.replication.journal import JournalReplica
from quaymaster.core.replication.log_tail import LOG_START
from quaymaster.core.replication.messages import Append, Appended, Envelope
from quaymaster.core.replication.replication import LogReplica
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.decided import SentOutcome, TakenOutcome
from quaymaster.core.values.commands.messages import CountMessages, QueueCounts, Receive, Send
from quaymaster.core.values.commands.partitions import AskMarks, MarksOutcome, SetQueue
from quaymaster.core.values.commands.transactions import (
    CommittedOutcome,
    CommitTransaction,
    StageCount,
    StageMessages,
)
from quaymaster.core.values.commands.unions import Command, Decided
from quaymaster.core.values.errors import JournalStopped, NotLeader, StaleEpoch, TooFewReplicas
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.records import Batch

JOBS, LAZY = 1, 2


class Cell:
    """Replicas a, b and c in one thread. Disks are quick but for those in `slow`, messages that are `cut` get lost."""

    def __init__(self) -> None:
        self.now_ms = 10_000
        self.net: deque[Envelope] = deque()
        self.cut: set[str] = set()
        self.slow: set[str] = set()
        self.disks: dict[str, list[Batch]] = {name: [] for name in "abc"}
        self.truncations = dict.fromkeys("abc", 0)
        self.rebuilds: list[str] = []
        self.replies: dict[object, Decided | Exception] = {}
        self.tokens = 0
        self.replicas = {name: self._replica(name) for name in "abc"}
        self.configuration = JournalConfiguration(0, "", tuple("abc"), tuple("abc"), True)
        self.appoint("a")
        self.settle()
        self.ask(SetQueue(queue(JOBS, "jobs")))
        self.ask(SetQueue(queue(LAZY, "lazy", attributes={"Durability": "Async"})))

    def _replica(self, name: str) -> JournalReplica:
        log = LogReplica(name, promised_epoch=0, start=LOG_START, positions=(), now_ms=0)
        queues = QueueStates(MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS)
        return JournalReplica(log, queues, last_time_ms=0)

    def appoint(self, name: str) -> None:
        """Appoint for the next epoch; everybody who is not cut off hears of it."""
        known = self.configuration
        previous = known.members if known.activated else known.previous_members
        self.configuration = JournalConfiguration(known.epoch + 1, name, known.members, previous, False)
        for replica in self.replicas.values():
            if replica.node not in self.cut:
                replica.on_configuration(self.configuration, self.now_ms)

    def lose_leader(self) -> None:
        """The connections to the leader close, so nobody waits for it."""
        for replica in self.replicas.values():
            if replica.log.leader is not None and replica.log.leader != replica.node:
                replica.on_connection_closed(replica.log.leader)

    def propose(self, command: Command, name: str = "a") -> int:
        """Propose a command; return the token of its reply."""
        self.tokens += 1
        self.replicas[name].propose(command, self.tokens, 1_000_000 + self.now_ms)
        self.carry_out(name)
        return self.tokens

    def ask(self, command: Command, name: str = "a") -> Decided:
        """Return the outcome of a command, or raise what it is answered with."""
        token = self.propose(command, name)
        self.settle()
        answer = self.replies[token]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def count(self, name: str) -> int:
        """How many messages the queue of jobs has in a replica's eyes."""
        return self.replicas[name].queues.partition(JOBS, 0).alive

    def carry_out(self, name: str) -> bool:
        """Do what a replica asks for; false when it asks for nothing."""
        replica, disk = self.replicas[name], self.disks[name]
        todo = replica.take(1_000_000 + self.now_ms)
        for operation in todo.operations:
            if isinstance(operation, Write):
                disk += operation.batches
                if name in self.slow:
                    replica.on_written(disk[-1].next_offset, truncations=self.truncations[name])
                else:
                    self.fsync(name)
            elif isinstance(operation, Truncate):
                disk[:] = [batch for batch in disk if batch.next_offset <= operation.end]
                self.truncations[name] += 1
            else:
                assert isinstance(operation, PersistPromise)
                self.fsync(name)
                replica.on_promise_durable(operation.epoch)
        for read in todo.reads:
            chains = {0: 0} | {batch.next_offset: batch.chain for batch in disk}
            batches = [batch for batch in disk if batch.base_offset >= read.start]
            replica.log.on_read(
                read.member,
                read.start,
                chains.get(read.start),
                batches,
                is_gone=False,
                truncations=self.truncations[name],
            )
        if todo.activate is not None and todo.activate == self.configuration.epoch:
            self.configuration = msgspec.structs.replace(
                self.configuration, activated=True, previous_members=self.configuration.members
            )
            replica.on_activated(todo.activate)
        self.net.extend(todo.messages)
        for token, answer in todo.replies:
            assert token not in self.replies, "a command is answered once"
            self.replies[token] = answer
        if todo.rebuild:
            self.rebuilds.append(name)
        for command, token in todo.again:
            replica.propose(command, token, 1_000_000 + self.now_ms)
        return bool(todo.operations or todo.messages or todo.replies or todo.reads or todo.again)

    def fsync(self, name: str) -> None:
        """Make what a replica wrote durable."""
        end = self.disks[name][-1].next_offset if self.disks[name] else 0
        self.replicas[name].on_durable(end, truncations=self.truncations[name])

    def settle(self) -> None:
        """Carry out and deliver until nothing happens."""
        for _ in range(10_000):
            busy = [self.carry_out(name) for name in self.replicas]
            if self.net:
                envelope = self.net.popleft()
                if not self.cut & {envelope.sender, envelope.receiver}:
                    self.replicas[envelope.receiver].on_message(
                        envelope.sender, envelope.message, self.now_ms
                    )
            elif not any(busy):
                return
        raise AssertionError("the replicas never come to rest")

    def pass_time(self, ms: int) -> None:
        """Let time pass."""
        for _ in range(0, ms, 50):
            self.now_ms += 50
            for replica in self.replicas.values():
                replica.on_tick(self.now_ms)
            self.settle()

    def rebuild(self, name: str) -> None:
        """Make a replica's queues anew from its disk."""
        disk = list(self.disks[name])
        end = disk[-1].next_offset if disk else 0
        self.replicas[name].on_rebuilt(replay(disk), end, 1_000_000, self.truncations[name])

    def same(self) -> bool:
        """Tell whether all have the same log and the same queues."""
        states = [(r.log.end, r.queues.state_hash(1_000_000 + self.now_ms)) for r in self.replicas.values()]
        return (
            all(replica.is_ready for replica in self.replicas.values())
            and states[0] == states[1] == states[2]
        )


@pytest.fixture
def cell() -> Cell:
    return Cell()


def send(*numbers: int, queue_id: int = JOBS) -> Send:
    return Send(queue_id, 0, [message(number) for number in numbers])


def cut_off_with(cell: Cell, *numbers: int) -> list[int]:
    """Cut the leader a off and let it write alone; return the tokens of those who wait for that."""
    cell.cut = {"a"}
    return [cell.propose(send(number)) for number in numbers]


def deposed(cell: Cell) -> None:
    """Let b lead, without a."""
    for name in "bc":
        cell.replicas[name].on_connection_closed("a")
    cell.appoint("b")
    cell.settle()
    assert cell.replicas["b"].is_leading


def test_follower_applies_what_it_takes_before_it_is_committed(cell: Cell) -> None:
    cell.cut = {"c"}
    cell.slow = {"a", "b"}

    token = cell.propose(send(1, 2))
    cell.settle()

    assert token not in cell.replies
    assert cell.count("b") == 2
    assert cell.count("c") == 0
    cell.cut, cell.slow = set(), set()
    for name in "ab":
        cell.fsync(name)
    cell.pass_time(2 * HEARTBEAT_MS)
    assert token in cell.replies
    assert cell.same()


def test_follower_decides_nothing(cell: Cell) -> None:
    with pytest.raises(NotLeader):
        cell.ask(send(1), "b")


def test_follower_that_takes_over_gives_what_was_sent_before(cell: Cell) -> None:
    cell.ask(send(1, 2, 3))
    cell.cut = {"a"}

    deposed(cell)

    taken = cell.ask(Receive(JOBS, 0, 10), "b")
    assert isinstance(taken, TakenOutcome)
    assert [one.sequence for one in taken.taken] == [1, 2, 3]


def test_whoever_waits_for_a_deposed_leader_hears_that_the_outcome_is_unknown(cell: Cell) -> None:
    waiting = cut_off_with(cell, 1, 2)
    deposed(cell)
    assert not set(waiting) & cell.replies.keys()

    cell.cut = set()
    cell.pass_time(2 * HEARTBEAT_MS)

    assert {type(cell.replies[token]) for token in waiting} == {StaleEpoch}
    assert cell.replicas["a"].role == "follower"


def test_leader_of_before_makes_its_queues_anew_and_has_nothing_of_what_was_cut(cell: Cell) -> None:
    cell.ask(send(1))
    cut_off_with(cell, 90, 91, 92)
    deposed(cell)
    cell.ask(send(2), "b")

    cell.cut = set()
    cell.pass_time(2 * HEARTBEAT_MS)
    assert cell.rebuilds == ["a"]
    assert not cell.replicas["a"].is_ready
    cell.rebuild("a")

    assert cell.same()
    assert cell.count("a") == 2


def test_what_comes_while_the_queues_are_made_anew_is_applied_afterwards(cell: Cell) -> None:
    cut_off_with(cell, 90)
    deposed(cell)
    cell.cut = set()
    cell.pass_time(2 * HEARTBEAT_MS)
    replica, disk = cell.replicas["a"], list(cell.disks["a"])

    for number in range(1, 6):
        cell.ask(send(number), "b")
    replica.on_rebuilt(replay(disk), disk[-1].next_offset, 0, cell.truncations["a"])

    assert cell.same()
    assert cell.count("a") == 5


def test_what_comes_beyond_a_limit_while_the_queues_are_made_anew_is_read_from_the_disk(cell: Cell) -> None:
    cut_off_with(cell, 90)
    deposed(cell)
    cell.cut = set()
    cell.pass_time(2 * HEARTBEAT_MS)
    replica, disk = cell.replicas["a"], list(cell.disks["a"])
    there = disk[-1].next_offset
    assert replica.has_kept_from(there)
    replica._unapplied_bytes_max = 400

    for number in range(1, 11):
        cell.ask(send(number), "b")

    assert not replica.has_kept_from(there)
    assert sum(len(batch.data) for batch in replica._unapplied) <= 400
    with pytest.raises(AssertionError, match="lack what is forgotten"):
        replica.on_rebuilt(replay(disk), there, 0, cell.truncations["a"])
    disk = cell.disks["a"][:-1]
    assert replica.has_kept_from(disk[-1].next_offset)
    replica.on_rebuilt(replay(disk), disk[-1].next_offset, 0, cell.truncations["a"])
    assert cell.same()
    assert cell.count("a") == 10
    assert replica.has_kept_from(0)


def test_what_was_both_read_and_kept_is_applied_once(cell: Cell) -> None:
    cut_off_with(cell, 90)
    deposed(cell)
    cell.cut = set()
    cell.pass_time(2 * HEARTBEAT_MS)

    cell.ask(send(1), "b")
    cell.rebuild("a")  # the files have all of it by now

    assert cell.same()


def test_what_is_cut_while_the_queues_are_made_anew_is_never_applied(cell: Cell) -> None:
    """Two leaders in a row, each with batches of its own at the same offsets."""
    follower = cell.replicas["a"]
    cell.ask(send(1))
    cut_off_with(cell, 90)
    deposed(cell)
    cell.cut = {"c"}
    cell.pass_time(2 * HEARTBEAT_MS)  # a makes its queues anew from here on
    assert cell.rebuilds == ["a"]
    cell.slow = {"a"}  # nothing of what b sends now is committed
    lone = cell.propose(send(80, 81), "b")
    cell.settle()
    first = follower._unapplied[-1]
    assert first.next_offset - first.base_offset == 2

    # The next leader has other batches where those of b are.
    other = replayed_leader(cell, upto=first.base_offset, epoch=9)
    follower.on_connection_closed("b")
    follower.on_message(
        "c", Append(9, other[0].base_offset, chain_at(cell, first.base_offset), other, 0, 0), 0
    )
    cell.carry_out("a")
    there = [
        batch for batch in cell.disks["a"] if batch.next_offset <= first.base_offset
    ]  # just after the cut
    follower.on_rebuilt(replay(there), first.base_offset, 0, cell.truncations["a"])

    expected = replay(cell.disks["a"])
    assert follower.queues.state_hash(2_000_000) == expected.state_hash(2_000_000)
    assert lone not in cell.replies


def chain_at(cell: Cell, offset: int) -> int:
    return {0: 0, **{batch.next_offset: batch.chain for batch in cell.disks["c"]}}.get(offset) or {
        batch.next_offset: batch.chain for batch in cell.disks["a"]
    }[offset]


def replayed_leader(cell: Cell, *, upto: int, epoch: int) -> list[Batch]:
    """Return what a leader of an epoch writes behind what there is up to an offset: messages that differ."""
    log = [batch for batch in cell.disks["a"] if batch.next_offset <= upto]
    leader = JournalReplica(
        LogReplica("c", promised_epoch=0, start=LOG_START, positions=(), now_ms=0),
        replay(log),
        last_time_ms=0,
    )
    for batch in log:
        leader.log.tail.append(batch)
    leader.log.durable_end = leader.log.written_end = upto
    leader.on_configuration(JournalConfiguration(epoch, "c", ("c",), ("c",), False), 0)
    leader.on_promise_durable(epoch)
    batches = leader.take(1_500_000).batches
    leader.on_durable(batches[-1].next_offset)
    leader.on_activated(epoch)
    leader.propose(send(70), 1, 1_500_000)
    return [*batches, *leader.take().batches]


def test_rebuild_that_a_further_cut_has_overtaken_does_not_count(cell: Cell) -> None:
    cut_off_with(cell, 90)
    deposed(cell)
    cell.cut = set()
    cell.pass_time(2 * HEARTBEAT_MS)
    replica = cell.replicas["a"]
    stale = replay(cell.disks["a"])

    replica.on_rebuilt(stale, replica.end_offset, 0, cell.truncations["a"] - 1)

    assert not replica.is_ready
    assert not replica.take().rebuild, "each cut asks for a rebuild of its own"
    cell.rebuild("a")
    assert cell.same()


def test_leader_whose_queues_are_not_made_yet_decides_nothing_until_they_are(cell: Cell) -> None:
    cell.ask(send(1))
    cut_off_with(cell, 90)
    deposed(cell)
    cell.cut = set()
    cell.pass_time(2 * HEARTBEAT_MS)
    cell.lose_leader()
    cell.appoint("a")
    cell.settle()
    assert cell.replicas["a"].role == "leading"

    with pytest.raises(NotLeader):
        cell.ask(send(2))
    cell.rebuild("a")

    taken = cell.ask(Receive(JOBS, 0, 10))
    assert isinstance(taken, TakenOutcome)
    assert [one.sequence for one in taken.taken] == [1]


def test_leader_that_is_appointed_again_keeps_those_who_wait(cell: Cell) -> None:
    cell.slow = {"a", "b", "c"}
    waiting = cell.propose(send(1))
    cell.settle()

    cell.slow = set()
    cell.appoint("a")
    refused = cell.propose(send(2))
    assert isinstance(cell.replies[refused], NotLeader)
    assert waiting not in cell.replies
    cell.lose_leader()
    cell.pass_time(LEASE_MS + HEARTBEAT_MS)

    assert cell.replicas["a"].epoch == 2
    assert isinstance(cell.replies[waiting], SentOutcome)
    assert cell.same()


def test_async_send_is_answered_when_a_majority_has_written_it(cell: Cell) -> None:
    cell.slow = {"a", "b", "c"}
    cell.cut = {"b", "c"}
    alone = cell.propose(send(1, queue_id=LAZY))
    cell.settle()
    assert alone not in cell.replies, "one that has it is no majority"

    cell.cut = {"c"}
    cell.pass_time(2 * HEARTBEAT_MS)
    second = cell.propose(send(2, queue_id=LAZY))
    sync = cell.propose(send(3))
    cell.settle()

    assert isinstance(cell.replies[alone], SentOutcome)
    assert isinstance(cell.replies[second], SentOutcome)
    assert sync not in cell.replies
    assert cell.replicas["a"].commit < cell.replicas["a"].end_offset


def test_async_send_of_a_deposed_leader_ends_as_unknown(cell: Cell) -> None:
    cell.slow = {"a"}
    cell.cut = {"a"}
    token = cell.propose(send(1, queue_id=LAZY))
    deposed(cell)

    cell.cut = set()
    cell.pass_time(2 * HEARTBEAT_MS)

    assert isinstance(cell.replies[token], StaleEpoch)


def test_leader_without_a_lease_gives_no_messages(cell: Cell) -> None:
    cell.ask(send(1))
    cell.cut = {"a"}
    cell.pass_time(LEASE_MS + 100)

    with pytest.raises(TooFewReplicas):
        cell.ask(Receive(JOBS, 0, 1))
    assert isinstance(cell.ask(CountMessages(JOBS)), QueueCounts)
    cell.cut = set()
    cell.pass_time(2 * HEARTBEAT_MS)

    assert isinstance(cell.ask(Receive(JOBS, 0, 1)), TakenOutcome)


def test_a_deposed_leader_that_does_not_know_it_says_nothing_of_ids(cell: Cell) -> None:
    cell.ask(send(1))
    cell.cut = {"a"}
    deposed(cell)
    cell.ask(SetQueue(queue(99, "made-since")), "b")
    assert cell.replicas["a"].is_leading
    assert cell.replicas["a"].log.has_lease

    asked = cell.propose(AskMarks(0), "a")
    cell.settle()

    assert asked not in cell.replies
    cell.cut = set()
    cell.pass_time(2 * HEARTBEAT_MS)
    assert isinstance(cell.replies[asked], StaleEpoch)
    found = cell.ask(AskMarks(0), "b")
    assert isinstance(found, MarksOutcome)
    assert found.marks.queue_id == 99


def test_whoever_waits_for_a_leader_that_resigns_hears_that_it_is_done(cell: Cell) -> None:
    """The batch that completes the transfer is committed in the step in which the leader resigns."""
    leader = cell.replicas["a"]
    token = cell.propose(send(1))
    assert leader.log.transfer("b")

    cell.settle()

    assert leader.role == "follower"
    assert isinstance(cell.replies[token], SentOutcome)
    assert cell.configuration.epoch == 1


def test_stop_ends_the_waiting_of_a_leader_with_others(cell: Cell) -> None:
    cell.cut = {"a"}
    waiting = [cell.propose(send(1)), cell.propose(send(2, queue_id=LAZY))]

    cell.replicas["a"].stop(JournalStopped("The disk failed."))
    cell.settle()

    assert {type(cell.replies[token]) for token in waiting} == {JournalStopped}
    cell.replicas["a"].on_message("b", Appended(1, 9, 9, 0), cell.now_ms)
    assert cell.replicas["a"].role == "stopped"


# Commits that take turns


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "AT_ONCE_MESSAGES", 0)
    monkeypatch.setattr(slices, "SLICE_MESSAGES", 2)


def do_slice(cell: Cell, name: str) -> bool:
    """Let a replica do a slice; return whether there is more."""
    has_more = cell.replicas[name].do_slice(1_000_000 + cell.now_ms)
    cell.settle()
    return has_more


def commit_of_nine(cell: Cell) -> None:
    """Have a leader commit nine messages, of which the followers have the record only."""
    cell.ask(StageMessages(JOBS, 0, "sink", 1, "0", 0, [message(number) for number in range(1, 10)]))
    token = cell.propose(CommitTransaction(JOBS, 0, "sink", 1, [StageCount("0", 9)]))
    while do_slice(cell, "a"):
        pass
    cell.settle()
    assert cell.replies[token] == CommittedOutcome(9)
    assert cell.count("a") == 9
    assert [cell.count(name) for name in "bc"] == [0, 0]


def test_a_follower_applies_nothing_behind_a_commit_that_is_unfinished(
    cell: Cell, small_slices: None
) -> None:
    commit_of_nine(cell)
    follower = cell.replicas["b"]
    of_commit = follower.applied_end

    cell.ask(send(50, queue_id=LAZY))
    cell.pass_time(2 * HEARTBEAT_MS)

    assert follower.has_more
    assert not follower.is_caught_up
    assert follower.applied_base <= follower.applied_end == of_commit < follower.end_offset
    assert follower.queues.is_unfinished(follower.queues.partition(JOBS, 0))
    assert not follower.queues.is_unfinished(follower.queues.partition(LAZY, 0))
    for name in "bc":
        while do_slice(cell, name):
            pass
    assert cell.replicas["b"].is_caught_up
    assert follower.applied_base == follower.applied_end == follower.end_offset
    assert cell.same()


def test_a_follower_that_is_far_behind_applies_it_at_once(
    cell: Cell, small_slices: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "BEHIND_BYTES_MAX", 0)
    commit_of_nine(cell)

    cell.ask(send(50, queue_id=LAZY))
    cell.pass_time(2 * HEARTBEAT_MS)

    assert cell.count("b") == 9
    assert cell.same()


def test_an_elected_replica_serves_once_it_has_applied_what_it_took(cell: Cell, small_slices: None) -> None:
    commit_of_nine(cell)
    cell.ask(send(50, queue_id=LAZY))
    cell.pass_time(2 * HEARTBEAT_MS)
    cell.cut = {"a"}

    for name in "bc":
        cell.replicas[name].on_connection_closed("a")
    cell.appoint("b")
    cell.settle()

    elected = cell.replicas["b"]
    assert elected.role == "leading"
    assert not elected.is_leading
    with pytest.raises(NotLeader):
        cell.ask(CountMessages(JOBS), "b")
    while do_slice(cell, "b"):
        pass
    assert cell.replicas["b"].is_leading
    counts = cell.ask(CountMessages(JOBS), "b")
    assert isinstance(counts, QueueCounts)
    assert counts.visible == 9


def test_queues_that_are_made_anew_leave_the_slices_of_the_old_ones(cell: Cell, small_slices: None) -> None:
    cell.ask(StageMessages(JOBS, 0, "sink", 1, "0", 0, [message(number) for number in range(1, 10)]))
    cell.cut = {"a"}
    cell.propose(CommitTransaction(JOBS, 0, "sink", 1, [StageCount("0", 9)]))
    assert do_slice(cell, "a")
    assert do_slice(cell, "a")

    deposed(cell)
    cell.cut = set()
    cell.pass_time(2 * HEARTBEAT_MS)

    assert not cell.replicas["a"].has_more
    cell.rebuild("a")
    cell.pass_time(2 * HEARTBEAT_MS)
    assert cell.count("a") == 0
    assert cell.same()
