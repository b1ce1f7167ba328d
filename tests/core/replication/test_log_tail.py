"""The end of a log in memory: where batches end, and which of them are still there as bytes."""

from __future__ import annotations

import pytest

from quaymaster.core.replication.log_tail import LOG_START, TRIMMED_TOGETHER, LogTail, Position
from quaymaster.core.structures.shared_bytes import SharedBytes
from quaymaster.core.values.records import Batch, Record, RecordType, encode_batch


def appended(tail: LogTail, count: int = 1, *, payload: bytes = b"x" * 100) -> list[Batch]:
    """Append batches of two records each."""
    batches = []
    for _ in range(count):
        record = Record(RecordType.SEND, 0, 1, 0, 1, 0, 0, payload)
        end = tail.end
        batch = encode_batch(
            [record, record], epoch=1, base_offset=end.end, time_ms=0, floor=0, previous_chain=end.chain
        )
        tail.append(batch)
        batches.append(batch)
    return batches


def test_position_is_known_where_a_batch_ends_and_nowhere_else() -> None:
    tail = LogTail(Position(10, 1, 7), memory=SharedBytes(1 << 20))
    (batch,) = appended(tail)

    assert tail.position_at(10) == Position(10, 1, 7)
    assert tail.position_at(12) == Position(12, 1, batch.chain)
    assert [tail.position_at(end) for end in (0, 9, 11, 13)] == [None] * 4
    assert tail.start == Position(10, 1, 7)


def test_recovered_batches_have_positions_and_are_read_from_disk() -> None:
    positions = [Position(4, 1, 40), Position(6, 2, 60)]
    tail = LogTail(LOG_START, positions, memory=SharedBytes(1 << 20))

    assert tail.end == positions[-1]
    assert tail.position_at(4) == positions[0]
    assert tail.read(0, 1 << 20) is None
    assert tail.read(4, 1 << 20) is None
    assert tail.read(6, 1 << 20) == []


def test_only_the_newest_batches_are_kept_as_bytes() -> None:
    tail = LogTail(LOG_START, memory=SharedBytes(1_000))

    batches = appended(tail, 10)

    size = len(batches[0].data)
    kept = 1_000 // size
    assert tail.size_bytes == kept * size
    assert tail.read(2 * (10 - kept - 1), 1 << 20) is None
    assert tail.read(2 * (10 - kept), 1 << 20) == batches[-kept:]


def test_logs_share_one_memory_and_give_it_back_when_they_are_closed() -> None:
    memory = SharedBytes(1_000)
    idle, busy = LogTail(LOG_START, memory=memory), LogTail(LOG_START, memory=memory)
    size = len(appended(idle, 10)[0].data)

    batches = appended(busy, 20)

    assert memory.used == idle.size_bytes + busy.size_bytes <= 1_000
    assert abs(idle.size_bytes - busy.size_bytes) <= 2 * size
    assert busy.read(38, 1 << 20) == batches[-1:]
    busy.close()
    assert memory.used == idle.size_bytes


def test_log_that_is_closed_keeps_nothing_new() -> None:
    memory = SharedBytes(1_000)
    tail = LogTail(LOG_START, memory=memory)
    tail.close()

    appended(tail, 1)

    assert (tail.size_bytes, memory.used) == (0, 0)


def test_read_gives_whole_batches_up_to_so_many_bytes_and_at_least_one() -> None:
    tail = LogTail(LOG_START, memory=SharedBytes(1 << 20))
    batches = appended(tail, 5)
    size = len(batches[0].data)

    assert tail.read(0, 1) == batches[:1]
    assert tail.read(2, 2 * size) == batches[1:3]
    assert tail.read(2, 3 * size - 1) == batches[1:3]


def test_batch_that_does_not_follow_is_refused() -> None:
    tail = LogTail(LOG_START, memory=SharedBytes(1 << 20))
    (batch,) = appended(tail)

    with pytest.raises(AssertionError, match="does not follow"):
        tail.append(batch)


def test_what_is_cut_is_no_longer_there_and_its_bytes_are_not_counted() -> None:
    tail = LogTail(LOG_START, memory=SharedBytes(1 << 20))
    batches = appended(tail, 4)

    tail.truncate(4)
    assert (tail.end.end, tail.size_bytes) == (4, 2 * len(batches[0].data))
    assert tail.position_at(6) is None
    following = appended(tail, 1, payload=b"other")
    assert tail.read(4, 1 << 20) == following
    tail.truncate(0)

    assert (tail.end, tail.size_bytes, tail.read(0, 1)) == (LOG_START, 0, [])
    with pytest.raises(AssertionError, match="no batch is known to end at 3"):
        tail.truncate(3)


def test_cut_reaches_into_what_is_only_on_disk() -> None:
    tail = LogTail(LOG_START, [Position(2, 1, 20), Position(4, 1, 40)], memory=SharedBytes(1 << 20))
    appended(tail, 2)

    tail.truncate(2)
    following = appended(tail, 1)

    assert tail.size_bytes == len(following[0].data)
    assert tail.read(2, 1 << 20) == following
    assert tail.read(0, 1 << 20) is None


def test_what_is_below_is_forgotten_many_at_a_time_but_not_what_is_kept_as_bytes() -> None:
    tail = LogTail(LOG_START, memory=SharedBytes(1_000))
    batches = appended(tail, TRIMMED_TOGETHER + 10)

    tail.trim(2 * (TRIMMED_TOGETHER - 1))
    assert tail.start == LOG_START
    tail.trim(tail.end.end)

    kept = 1_000 // len(batches[0].data)
    first = batches[-kept]
    assert tail.start == Position(first.base_offset, 1, batches[-kept - 1].chain)
    assert tail.position_at(2) is None
    assert tail.read(first.base_offset, 1 << 20) == batches[-kept:]
