"""How the records of a transaction change a partition: what its leader, its followers and a replay have in common.

    STAGE_BEGIN         batch u64 · sink length u8 · sink · stage's name; `sequence`: the stage's number
    STAGE               as a SEND's; `sequence`: the message's place (core/staged_messages); with OWN_DELAY
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
from collections.abc import Collection
from typing import Final, NamedTuple

from quaymaster.core.committed_runs import Run
from quaymaster.core.index import IndexEntry
from quaymaster.core.partition import Partition
from quaymaster.core.staged_messages import Stage, StagedMessages, place_of
from quaymaster.core.timers import round_up_to_slot_ms

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
    partition.dirty = True
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
) -> None:
    """What was staged is sent, from this sequence number on."""
    assert sequence == partition.next_sequence, (
        f"a commit from {sequence} on where {partition.next_sequence} is next "
        f"(queue {partition.definition.queue_id})"
    )
    staged = opened_staged(partition)
    duplicates = frozenset(committed.duplicates)
    for number in committed.numbers:
        stage = staged.stage(number)
        if duplicates:
            _send_each(partition, staged, stage, duplicates, delay_ms, time_ms)
        else:
            _send_runs(partition, staged, stage, delay_ms, time_ms)
    staged.commit(committed.sink, committed.batch, committed.messages, time_ms)
    staged.forget(partition.head, time_ms)


def _send_runs(
    partition: Partition, staged: StagedMessages, stage: Stage, delay_ms: int, time_ms: int
) -> None:
    """Send all of a stage. One by one takes ten times as long."""
    first = partition.next_sequence
    staged.runs.add(Run(place_of(stage.number, 0), first, stage.count, time_ms, delay_ms))
    groups = stage.groups
    delays_ms = None
    if stage.delays:
        own = {each: _own_delay(each, delay_ms, time_ms) for each in set(stage.delays)}
        effective = {each: delay_ms if found is None else found for each, found in own.items()}
        delays_ms = list(map(effective.__getitem__, stage.delays))
    has_all_dedups = stage.has_all_dedups
    dedups = bytes(stage.dedups) if has_all_dedups else b""
    done = 0
    for offset, count in zip(stage.offsets, stage.counts, strict=True):
        some = groups[done : done + count] if groups else None
        each = delays_ms[done : done + count] if delays_ms is not None else None
        partition.apply_send_run(offset, count, time_ms, delay_ms, some, each)
        if has_all_dedups:
            partition.remember_run(dedups[16 * done : 16 * (done + count)], offset, time_ms)
        done += count
    for group in set(groups):
        partition.order.sent(group, time_ms)
    if not has_all_dedups:
        for _, offset, dedup in stage.deduplicated():
            partition.remember(dedup, offset, time_ms)
    if stage.delays:
        _defer_run(partition, first, stage.delays, own, time_ms)
    if partition.sizes is not None:
        partition.sizes.add_run(first, stage.sizes)


def _own_delay(asked_ms: int, queue_delay_ms: int, time_ms: int) -> int | None:
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
    staged: StagedMessages,
    stage: Stage,
    duplicates: Collection[int],
    queue_delay_ms: int,
    time_ms: int,
) -> None:
    start = place = place_of(stage.number, 0)
    first = partition.next_sequence
    for message in stage.messages():
        place = message.place
        if place in duplicates:
            _add_run(staged, start, first, place - start, time_ms, queue_delay_ms)
            start, first = place + 1, partition.next_sequence
            continue
        sequence = partition.next_sequence
        own_ms = _own_delay(message.delay_ms, queue_delay_ms, time_ms)
        delay_ms = queue_delay_ms if own_ms is None else own_ms
        is_own = own_ms is not None
        partition.apply_send(
            sequence, message.offset, time_ms, delay_ms, is_own, message.group, message.dedup, None
        )
        if partition.sizes is not None:
            partition.sizes.add(sequence, message.payload_bytes)
    _add_run(staged, start, first, place + 1 - start, time_ms, queue_delay_ms)


def _add_run(
    staged: StagedMessages, place: int, sequence: int, count: int, time_ms: int, delay_ms: int
) -> None:
    if count:
        staged.runs.add(Run(place, sequence, count, time_ms, delay_ms))


def follow_commit(
    group: Partition, log: Partition, start: int, count: int, delay_ms: int, time_ms: int, *, one_delay: bool
) -> None:
    """What was staged in the log of this consumer group is sent, as [start, start + count); the log has it already."""
    stop = start + count
    start = max(start, group.next_sequence)  # what is below the log has dropped, see `Partition.follow`
    if one_delay:
        keys = log.index.groups_in(start, stop)
        group.apply_send_run(0, max(0, stop - start), time_ms, delay_ms, array("Q", keys) if keys else None)
        for key in keys:
            group.order.sent(key, time_ms)
        return
    queue_due_ms = time_ms + delay_from(time_ms, delay_ms)
    for sequence in range(start, stop):
        offset, sent_ms, due_ms, key = log.index.entry(sequence)
        own_delay = due_ms != queue_due_ms
        own_ms = due_ms - sent_ms if own_delay else delay_ms
        group.apply_send(sequence, offset, sent_ms, own_ms, own_delay, key, None, None)


def delay_from(time_ms: int, delay_ms: int) -> int:
    """Return a delay that begins at a time and ends where a slot does."""
    return round_up_to_slot_ms(time_ms + delay_ms) - time_ms if delay_ms else 0


def entry_of_staged(run: Run, offset: int, group: int, own_delay_ms: int | None) -> IndexEntry:
    """Return what the index says of a committed message that was staged; `own_delay_ms` None: it had none."""
    delay_ms = run.delay_ms if own_delay_ms is None else delay_from(run.sent_ms, own_delay_ms)
    return IndexEntry(offset, run.sent_ms, run.sent_ms + delay_ms, group)
