"""Reading a partition by sequence numbers: bounds, ranges, gaps, times, and chunks of the index."""

from __future__ import annotations

import pytest
from harness.replica_host import Host, message, queue
from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.core.partition.log_reads import FETCH_MESSAGES_MAX
from quaymaster.core.structures.orders.index import CHUNK_ENTRIES, MemoryChunks, SequenceIndex
from quaymaster.core.values.commands.decided import FetchedOffsets
from quaymaster.core.values.commands.logs import (
    Fetch,
    FetchOutcome,
    FindOffset,
    FoundOffset,
    LogBounds,
    LogBoundsOutcome,
)
from quaymaster.core.values.commands.messages import Send
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.errors import OffsetOutOfRange, QueueDoesNotExist

LOG = 1
FAR = 1 << 62
ROOM = 1 << 20


@pytest.fixture
def host() -> Host:
    host = Host()
    host.ask(SetQueue(queue(LOG, "log")))
    return host


def send(host: Host, count: int, *, after_ms: int = 0) -> None:
    while count:
        some = min(count, 10)
        host.ask(Send(LOG, 0, [message(number) for number in range(some)]), after_ms=after_ms)
        count -= some


def fetch(host: Host, start: int, stop: int = FAR) -> FetchedOffsets:
    outcome = host.ask(Fetch(LOG, 0, start, stop, ROOM))
    assert isinstance(outcome, FetchedOffsets)
    return outcome


def bounds(host: Host) -> tuple[int, int]:
    outcome = host.ask(LogBounds(LOG, 0))
    assert isinstance(outcome, LogBoundsOutcome)
    return outcome.earliest, outcome.end


def found(host: Host, time_ms: int) -> int:
    outcome = host.ask(FindOffset(LOG, 0, time_ms))
    assert isinstance(outcome, FoundOffset)
    return outcome.sequence


def test_an_empty_log_has_nothing_and_its_next_message_is_the_first(host: Host) -> None:
    assert bounds(host) == (1, 1)
    assert found(host, 0) == 1
    assert fetch(host, 1) == FetchedOffsets([], [], [], 1, 1, 1, ROOM)


def test_a_fetch_gives_the_messages_of_its_range_in_order(host: Host) -> None:
    send(host, 30)
    index = host.states.partition(LOG, 0).index

    outcome = fetch(host, 5, 9)

    assert outcome.sequences == [5, 6, 7, 8]
    assert outcome.offsets == [index.entry(sequence).offset for sequence in range(5, 9)]
    assert outcome.sent_ms == [host.now_ms] * 4
    assert (outcome.next_sequence, outcome.earliest, outcome.end) == (9, 1, 31)


def test_a_range_ends_where_the_committed_messages_do(host: Host) -> None:
    send(host, 3)

    assert fetch(host, 2).sequences == [2, 3]
    assert fetch(host, 4).sequences == []
    assert fetch(host, 4).next_sequence == 4
    assert fetch(host, 3, 2).next_sequence == 3


def test_what_is_not_committed_is_not_shown() -> None:
    host = Host(is_slow=True)
    host.ask(SetQueue(queue(LOG, "log")))
    host.propose(Send(LOG, 0, [message(1)]))

    token = host.propose(LogBounds(LOG, 0))
    assert host.replies[token] == LogBoundsOutcome(1, 1)
    host.make_durable()

    assert bounds(host) == (1, 2)
    assert fetch(host, 1).sequences == [1]


def test_one_fetch_gives_so_many_messages_and_the_next_goes_on(host: Host) -> None:
    total = FETCH_MESSAGES_MAX + CHUNK_ENTRIES + 100
    send(host, total)
    index = host.states.partition(LOG, 0).index

    at, seen, offsets = 1, [], []
    while at <= total:
        outcome = fetch(host, at)
        assert len(outcome.sequences) <= FETCH_MESSAGES_MAX
        seen += outcome.sequences
        offsets += outcome.offsets
        at = outcome.next_sequence

    assert seen == list(range(1, total + 1))
    assert offsets == [index.entry(sequence).offset for sequence in seen]


def test_deleted_messages_are_left_out(host: Host) -> None:
    send(host, 10)
    host.states.partition(LOG, 0).apply_delete((3, 4, 9), host.now_ms)

    outcome = fetch(host, 2, 8)

    assert outcome.sequences == [2, 5, 6, 7]
    assert len(outcome.offsets) == len(outcome.sent_ms) == 4
    assert outcome.next_sequence == 8
    assert fetch(host, 5, 8).sequences == [5, 6, 7]


@pytest.mark.parametrize("start", [1, 2, 12])
def test_a_range_that_begins_outside_is_refused_with_what_there_is(host: Host, start: int) -> None:
    send(host, 10)
    host.states.partition(LOG, 0).apply_delete((1, 2), host.now_ms)

    with pytest.raises(OffsetOutOfRange) as refused:
        fetch(host, start)

    assert (refused.value.earliest, refused.value.end) == (3, 11)
    assert refused.value.message == f"Offset {start} is out of range: EarliestOffset is 3 and NextOffset 11."


def test_without_messages_offsets_and_times_are_the_answer(host: Host) -> None:
    send(host, 3)

    outcome = host.ask(Fetch(LOG, 0, 2, FAR, 1, with_messages=False))

    assert outcome == FetchOutcome([2, 3], [host.now_ms] * 2, [], 4, 1, 4)


def test_the_first_message_of_a_time_is_found(host: Host) -> None:
    send(host, 10)
    first_ms = host.now_ms
    send(host, 10, after_ms=1_000)
    second_ms = host.now_ms

    assert found(host, 0) == 1
    assert found(host, first_ms) == 1
    assert found(host, first_ms + 1) == 11
    assert found(host, second_ms) == 11
    assert found(host, second_ms + 1) == 21


def test_a_queue_that_does_not_exist_cannot_be_read(host: Host) -> None:
    for command in (Fetch(9, 0, 1, 2, 1), LogBounds(9, 0), FindOffset(9, 0, 0)):
        with pytest.raises(QueueDoesNotExist):
            host.ask(command)


@settings(max_examples=30, deadline=None)
@given(
    total=st.integers(0, 2 * CHUNK_ENTRIES + 300),
    cut=st.integers(0, CHUNK_ENTRIES + 50),
    data=st.data(),
)
def test_offsets_and_times_of_a_stretch_are_those_of_its_entries(
    total: int, cut: int, data: st.DataObject
) -> None:
    index = SequenceIndex(MemoryChunks(), b"tag")
    for number in range(total):
        index.append(10 + 3 * number, 5_000 + number, 0, 0)
    first = min(cut, total) + 1
    index.drop_below(first)
    start = data.draw(st.integers(first, total + 1))
    stop = data.draw(st.integers(start, total + 1))

    pairs = [pair for run in index.offsets_and_times(start, stop) for pair in zip(*run, strict=True)]

    assert pairs == [(index.entry(at).offset, index.entry(at).sent_ms) for at in range(start, stop)]


def test_a_stretch_behind_the_end_of_the_index_is_cut() -> None:
    index = SequenceIndex(MemoryChunks(), b"tag")
    index.append(7, 8, 0, 0)

    assert [(list(offsets), times) for offsets, times in index.offsets_and_times(1, 9)] == [([7], [8])]
