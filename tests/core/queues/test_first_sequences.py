"""A partition whose sequence numbers begin at 2^44 does what one does that begins at 1."""

from __future__ import annotations

from typing import Any

import msgspec
from harness.replica_host import (
    RETRY_WINDOW_MS,
    Host,
    identity,
    message,
    queue,
    receipts_of,
    replay,
    snapshot_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.core.partition.partition_snapshots import load_partition
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures.orders.index import TAIL_ENTRIES_MAX, MemoryChunks
from quaymaster.core.values.commands.decided import ExpireMessages
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    Peek,
    Purge,
    QueueCounts,
    Receipt,
    Receive,
    Send,
)
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.commands.transactions import CommitTransaction, StageCount, StageMessages
from quaymaster.core.values.commands.unions import Command, Decided, InternalCommand
from quaymaster.core.values.partition_tables import SEQUENCE_SPAN
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, replace_definition

JOBS = 1
SHIFT = SEQUENCE_SPAN - 1
NAMES = st.sampled_from(["jobs", "jobs.fifo"])


def beginning_at(first_sequence: int, name: str = "jobs", **attributes: object) -> QueueDefinition:
    definition = queue(JOBS, name, attributes={"MessageRetentionPeriod": 60, **attributes})
    entry = msgspec.structs.replace(definition.partitions[0], first_sequence=first_sequence)
    return replace_definition(definition, partitions=(entry,))


class Pair:
    """Two partitions that are told the same, one from 1 on and one from 2^44 on."""

    def __init__(self, name: str, **attributes: object) -> None:
        self.keepers = [MemoryChunks(), MemoryChunks()]
        self.hosts = [
            Host(states=QueueStates(keeper, retry_window_ms=RETRY_WINDOW_MS)) for keeper in self.keepers
        ]
        for host, first_sequence in zip(self.hosts, (1, SEQUENCE_SPAN), strict=True):
            host.ask(SetQueue(beginning_at(first_sequence, name, **attributes)))

    def ask(self, *commands: Command | InternalCommand, after_ms: int = 0) -> Decided:
        """Ask both, the second another command if there are two. The answers are the same but for the numbers."""
        answers = [
            host.ask(command, after_ms=after_ms)
            for host, command in zip(self.hosts, (commands[0], commands[-1]), strict=True)
        ]
        assert unshifted(answers[1]) == unshifted(answers[0])
        return answers[0]

    def check_copies(self) -> None:
        """A replay, and a snapshot with the replay of what follows, give what there is."""
        for host, keeper in zip(self.hosts, self.keepers, strict=True):
            partition = host.partition(JOBS)
            partition.applied = host.replica.end_offset
            states = QueueStates(keeper, retry_window_ms=RETRY_WINDOW_MS)
            loaded = load_partition(
                snapshot_of(partition), partition.definition, 0, keeper, retry_window_ms=RETRY_WINDOW_MS
            )
            states.load(partition.definition, [loaded])
            states.attach_groups()
            expected = host.states.state_hash(host.now_ms)
            assert states.state_hash(host.now_ms) == expected
            assert loaded.sends == partition.sends
            assert loaded.first_sequence == partition.first_sequence
            if len(host.batches) < 500:
                replayed = replay(host.batches, keeper=MemoryChunks())
                assert replayed.state_hash(host.now_ms) == expected


def unshifted(value: Any) -> Any:
    """Return what an answer says, with sequence numbers as if they began at 1."""
    if isinstance(value, msgspec.Struct):
        return type(value), [unshifted(getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, list | tuple):
        return [unshifted(each) for each in value]
    if isinstance(value, int) and value >= SEQUENCE_SPAN:
        return value - SHIFT
    return str(value) if isinstance(value, Exception) else value


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "send", "receive", "delete", "hide", "purge", "peek", "stage"]),
        st.integers(0, 7),
        st.sampled_from([0, 0, 1_000, 30_000, 61_000]),
    ),
    max_size=40,
)


def acted(pair: Pair, name: str, acts: list[tuple[str, int, int]]) -> None:
    is_fifo = name.endswith(".fifo")
    taken: list[Receipt] = []
    for at, (act, number, after_ms) in enumerate(acts):
        some = [
            message(
                10 * at + each,
                group=number % 3 + 1 if is_fifo or number > 4 else 0,
                dedup=identity(number) if is_fifo or number == 3 else None,
                delay_ms=number * 1_000 if not is_fifo and number < 3 else -1,
            )
            for each in range(1 + number % 3)
        ]
        of_both = [[moved(each, shift) for each in taken[number : number + 2]] for shift in (0, SHIFT)]
        match act:
            case "send":
                pair.ask(Send(JOBS, 0, some), after_ms=after_ms)
            case "stage":
                pair.ask(StageMessages(JOBS, 0, "sink", at, "0", 0, some))
                pair.ask(CommitTransaction(JOBS, 0, "sink", at, [StageCount("0", len(some))]))
            case "receive":
                taken += receipts_of(
                    pair.ask(Receive(JOBS, 0, 1 + number, 5_000 * number), after_ms=after_ms)
                )
            case "delete":
                pair.ask(*(Delete(JOBS, 0, receipts) for receipts in of_both), after_ms=after_ms)
            case "hide":
                timeouts_ms = [number * 1_000] * len(of_both[0])
                pair.ask(
                    *(ChangeVisibility(JOBS, 0, receipts, timeouts_ms) for receipts in of_both),
                    after_ms=after_ms,
                )
            case "purge":
                pair.ask(Purge(JOBS) if number == 7 else ExpireMessages(JOBS, 0), after_ms=after_ms)
            case _:
                pair.ask(*(Peek(JOBS, 0, 1 + shift, 10) for shift in (0, SHIFT)))
        pair.ask(CountMessages(JOBS))


def moved(receipt: Receipt, shift: int) -> Receipt:
    return Receipt(receipt.sequence + shift, receipt.epoch, receipt.delivery_count)


@settings(max_examples=60, deadline=None)
@given(NAMES, st.sampled_from([0, 0, 2]), ACTS)
def test_the_same_happens_whatever_the_first_sequence_is(
    name: str, delay_s: int, acts: list[tuple[str, int, int]]
) -> None:
    pair = Pair(name, DelaySeconds=delay_s)

    acted(pair, name, acts)

    pair.check_copies()


def test_index_chunks_are_written_and_found_whatever_the_first_sequence_is() -> None:
    pair = Pair("jobs")
    per_batch = 10
    for at in range(TAIL_ENTRIES_MAX // per_batch + 2):
        some = [message(at * per_batch + each) for each in range(per_batch)]
        for host in pair.hosts:
            host.ask(Send(JOBS, 0, some))
    assert all(host.partition(JOBS).index.chunk_numbers() for host in pair.hosts)

    some_receipts = receipts_of(pair.ask(Receive(JOBS, 0, 10)))[::2]
    pair.ask(*(Delete(JOBS, 0, [moved(each, shift) for each in some_receipts]) for shift in (0, SHIFT)))

    pair.ask(*(Peek(JOBS, 0, 1 + shift, 10) for shift in (0, SHIFT)))
    pair.check_copies()


def test_a_partition_counts_what_was_sent_to_it_not_where_its_numbers_begin() -> None:
    host = Host()
    host.ask(SetQueue(beginning_at(SEQUENCE_SPAN)))

    host.ask(Send(JOBS, 0, [message(1), message(2)]))

    counts = host.ask(CountMessages(JOBS))
    assert isinstance(counts, QueueCounts)
    assert (counts.sends, counts.visible) == (2, 2)
    assert host.partition(JOBS).head == SEQUENCE_SPAN
