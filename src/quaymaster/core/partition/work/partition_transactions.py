"""How the records of a transaction change a partition: what its leader, its followers and a replay have in common.

    STAGE_BEGIN         batch u64 · sink length u8 · sink · stage's name; `sequence`: the stage's number
    STAGE               as a SEND's; `sequence`: the message's place (core/partition/staged_messages); with OWN_DELAY
                        due_after is the delay from the commit on
    TRANSACTION_COMMIT  batch u64 · sink length u8 · sink · messages u64 · stages u32 · number u64 of each, then places
                        u64 of the messages that are left out, as duplicates; `sequence`: that of the first message
                        that is not; `due_after`: the queue's delay; with ONE_DELAY all have that
    TRANSACTION_ABORT   batch u64 · sink length u8 · sink

A commit is the moment its messages are sent: they get sequence numbers without a gap, and its time.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.staged_messages import Stage, StagedMessages, place_of
from quaymaster.core.partition.work import slices
from quaymaster.core.structures.committed_runs import Run
from quaymaster.core.structures.orders.index import IndexEntry, SentRun
from quaymaster.core.structures.timers import round_up_to_slot_ms

ONE_DELAY: Final = 1
"""Flag of a TRANSACTION_COMMIT whose messages all have the queue's delay."""

_TRANSACTION = struct.Struct("<QB")
_COMMIT = struct.Struct("<QI")


class Committed(NamedTuple):
    """What a TRANSACTION_COMMIT says besides its row. `messages`: how many were staged."""

    sink: str
    batch: int
    messages: int
    numbers: list[int]
    duplicates: list[int]


def join_transaction(sink: str, batch: int, rest: bytes = b"") -> bytes:
    """Return the payload of a record of a transaction."""
    name = sink.encode()
    return b"".join((_TRANSACTION.pack(batch, len(name)), name, rest))


def split_transaction(payload: bytes | memoryview) -> tuple[str, int, bytes]:
    """Return sink, batch, and what is behind them."""
    batch, length = _TRANSACTION.unpack_from(payload)
    stop = _TRANSACTION.size + length
    return str(payload[_TRANSACTION.size : stop], "utf-8"), batch, bytes(payload[stop:])


def join_commit(committed: Committed) -> bytes:
    """Return the payload of a TRANSACTION_COMMIT."""
    counts = _COMMIT.pack(committed.messages, len(committed.numbers))
    numbers = array("Q", committed.numbers).tobytes() + array("Q", committed.duplicates).tobytes()
    return join_transaction(committed.sink, committed.batch, counts + numbers)


def split_commit(payload: bytes | memoryview) -> Committed:
    """Return what the payload of a TRANSACTION_COMMIT says."""
    sink, batch, rest = split_transaction(payload)
    messages, stages = _COMMIT.unpack_from(rest)
    numbers = array("Q", rest[_COMMIT.size :]).tolist()
    return Committed(sink, batch, messages, numbers[:stages], numbers[stages:])


def opened_staged(partition: Partition) -> StagedMessages:
    """Return what is staged in a partition, to change it."""
    partition.note_change()
    if partition.staged is None:
        partition.staged = StagedMessages()
    return partition.staged


def apply_stage_begin(
    partition: Partition, sink: str, batch: int, number: int, name: str, time_ms: int
) -> None:
    """A writer begins its part of a transaction."""
    staged = opened_staged(partition)
    staged.forget(partition.head, time_ms)
    staged.begin_stage(sink, batch, number, name, time_ms)


def apply_commit(
    partition: Partition, committed: Committed, sequence: int, delay_ms: int, time_ms: int
) -> Iterator[None]:
    """What was staged is sent, from this sequence number on: a slice with each step."""
    assert sequence == partition.next_sequence, (
        f"a commit from {sequence} on where {partition.next_sequence} is next "
        f"(queue {partition.definition.queue_id})"
    )
    staged = opened_staged(partition)
    duplicates = frozenset(committed.duplicates)
    for number in committed.numbers:
        stage = staged.stage(number)
        for start in range(0, stage.count, slices.SLICE_MESSAGES):
            stop = min(stage.count, start + slices.SLICE_MESSAGES)
            places = range(place_of(number, start), place_of(number, stop))
            is_in_columns = stage.count_offset_runs(start, stop) <= slices.SLICE_SINGLE_MESSAGES
            if is_in_columns and duplicates.isdisjoint(places):
                _send_run(partition, stage, start, stop, delay_ms, time_ms)
            else:
                yield from _send_each(partition, stage, start, stop, duplicates, delay_ms, time_ms)
            yield
    yield from _note_runs(staged, committed, duplicates, sequence, delay_ms, time_ms)
    staged.commit(committed.sink, committed.batch, committed.messages, time_ms)
    staged.forget(partition.head, time_ms)


def _send_run(partition: Partition, stage: Stage, start: int, stop: int, delay_ms: int, time_ms: int) -> None:
    """Send all of a stretch of a stage. One by one takes ten times as long."""
    first = partition.next_sequence
    groups = stage.groups[start:stop]
    asked_ms = stage.delays[start:stop]
    delays_ms = None
    if asked_ms:
        own = {each: own_delay(each, delay_ms, time_ms) for each in set(asked_ms)}
        effective = {each: delay_ms if found is None else found for each, found in own.items()}
        delays_ms = list(map(effective.__getitem__, asked_ms))
    done = 0
    for offset, count in stage.offset_runs(start, stop):
        some = groups[done : done + count] if groups else None
        each = delays_ms[done : done + count] if delays_ms is not None else None
        partition.apply_send_run(SentRun(offset, count, time_ms, delay_ms, some, each))
        dedups = stage.dedups_of(start + done, start + done + count)
        if dedups is not None:
            partition.ids.note_run(dedups, offset, time_ms)
        else:
            for at, dedup in stage.deduplicated(start + done, start + done + count):
                partition.ids.note(dedup, None, offset + at - start - done, time_ms)
        done += count
    partition.order.sent_all(groups, time_ms)
    if asked_ms:
        _defer_run(partition, first, asked_ms, own, time_ms)
    sizes = stage.sizes[start:stop]
    if partition.sizes is not None:
        partition.sizes.add_run(first, sizes)
    if partition.totals is not None:
        partition.totals.sent_bytes += sum(sizes)


def own_delay(asked_ms: int, queue_delay_ms: int, time_ms: int) -> int | None:
    """Return the delay of its own that a message has, None where it has the queue's."""
    if asked_ms < 0 or not (asked_ms or queue_delay_ms):
        return None
    return delay_from(time_ms, asked_ms)


def _defer_run(
    partition: Partition, first: int, asked_ms: array[int], own: dict[int, int | None], time_ms: int
) -> None:
    """Note when the messages from `first` on are due that have delays of their own."""
    by_asked: dict[int, list[int]] = {each: [] for each in own}
    for sequence, asked in enumerate(asked_ms, first):
        by_asked[asked].append(sequence)
    by_due_ms: dict[int, list[int]] = {}
    surfaced: list[int] = []
    for asked, sequences in by_asked.items():
        delay_ms = own[asked]
        if delay_ms:
            by_due_ms.setdefault(time_ms + delay_ms, []).extend(sequences)
        elif delay_ms == 0:
            surfaced += sequences
    partition.defer_run(by_due_ms, surfaced)


def _send_each(
    partition: Partition,
    stage: Stage,
    start: int,
    stop: int,
    duplicates: Collection[int],
    queue_delay_ms: int,
    time_ms: int,
) -> Iterator[None]:
    """Send what is no duplicate of a stretch of a stage."""
    for number, message in enumerate(stage.messages(start, stop), 1):
        if not number % slices.SLICE_SINGLE_MESSAGES:
            yield
        if message.place in duplicates:
            continue
        sequence = partition.next_sequence
        own_ms = own_delay(message.delay_ms, queue_delay_ms, time_ms)
        delay_ms = queue_delay_ms if own_ms is None else own_ms
        is_own = own_ms is not None
        partition.apply_send(sequence, message.offset, time_ms, delay_ms, is_own, message.group)
        partition.ids.note(message.dedup, None, message.offset, time_ms)
        if partition.sizes is not None:
            partition.sizes.add(sequence, message.payload_bytes)
        if partition.totals is not None:
            partition.totals.sent_bytes += message.payload_bytes


def _note_runs(
    staged: StagedMessages,
    committed: Committed,
    duplicates: frozenset[int],
    sequence: int,
    delay_ms: int,
    time_ms: int,
) -> Iterator[None]:
    """Note which sequence numbers the places of a commit became: a row for each stretch without duplicates."""
    left_out = sorted(duplicates)
    for number in committed.numbers:
        start, end = place_of(number, 0), place_of(number, staged.stage(number).count)
        of_stage = left_out[bisect_left(left_out, start) : bisect_left(left_out, end)]
        for row, place in enumerate((*of_stage, end), 1):
            if place > start:
                staged.runs.add(Run(start, sequence, place - start, time_ms, delay_ms))
                sequence += place - start
            start = place + 1
            if not row % slices.SLICE_SINGLE_MESSAGES:
                yield


def follow_commit(
    group: Partition, log: Partition, start: int, count: int, delay_ms: int, time_ms: int, *, one_delay: bool
) -> Iterator[None]:
    """What was staged in the log of this consumer group is sent, as [start, start + count); the log has it already.

    A slice with each step.
    """
    stop = start + count
    start = max(start, group.next_sequence)  # what is below the log has dropped, see `consumer_groups.follow`
    if one_delay:
        while start < stop:
            end = min(stop, start + slices.SLICE_MESSAGES)
            keys = array("Q", log.index.groups_in(start, end))
            group.apply_send_run(SentRun(0, end - start, time_ms, delay_ms, keys or None))
            group.order.sent_all(keys, time_ms)
            start = end
            yield
        return
    queue_due_ms = time_ms + delay_from(time_ms, delay_ms)
    for sequence in range(start, stop):
        offset, sent_ms, due_ms, key = log.index.entry(sequence)
        own_delay = due_ms != queue_due_ms
        own_ms = due_ms - sent_ms if own_delay else delay_ms
        group.apply_send(sequence, offset, sent_ms, own_ms, own_delay, key)
        if not (sequence + 1 - start) % slices.SLICE_SINGLE_MESSAGES:
            yield


def delay_from(time_ms: int, delay_ms: int) -> int:
    """Return a delay that begins at a time and ends where a slot does."""
    return round_up_to_slot_ms(time_ms + delay_ms) - time_ms if delay_ms else 0


def entry_of_staged(run: Run, offset: int, group: int, own_delay_ms: int | None) -> IndexEntry:
    """Return what the index says of a committed message that was staged; `own_delay_ms` None: it had none."""
    delay_ms = run.delay_ms if own_delay_ms is None else delay_from(run.sent_ms, own_delay_ms)
    return IndexEntry(offset, run.sent_ms, run.sent_ms + delay_ms, group)
