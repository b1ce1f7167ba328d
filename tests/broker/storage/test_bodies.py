"""The body cache: the newest batches within a budget of bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quaymaster.broker.storage.bodies import TRIM_BATCHES, BodyCache
from quaymaster.core.structures.shared_bytes import SharedBytes
from quaymaster.core.values.records import Batch, Record, RecordType, encode_batch


def batch(base_offset: int, *payloads: bytes) -> Batch:
    records = [
        Record(RecordType.SEND, 3, 9, 0, 100 + base_offset + at, 5, 0, payload)
        for at, payload in enumerate(payloads)
    ]
    return encode_batch(records, epoch=1, base_offset=base_offset, time_ms=5, floor=0, previous_chain=0)


def test_a_record_is_found_by_its_offset() -> None:
    cache = BodyCache(SharedBytes(1 << 20))
    cache.add(batch(10, b"ten", b"eleven"))
    cache.add(batch(12, b"twelve"))

    assert cache.get(10) == (RecordType.SEND, 3, 110, b"ten")
    assert cache.get(11) == (RecordType.SEND, 3, 111, b"eleven")
    assert cache.get(12) == (RecordType.SEND, 3, 112, b"twelve")
    assert (cache.hits, cache.misses) == (3, 0)


def test_what_was_never_there_is_a_miss() -> None:
    cache = BodyCache(SharedBytes(1 << 20))
    assert cache.get(3) is None

    cache.add(batch(10, b"ten"))

    assert cache.get(9) is None
    assert cache.misses == 2


def test_the_oldest_batches_make_room_for_new_ones() -> None:
    memory = SharedBytes(3 * len(batch(0, b"x" * 100).data))
    cache = BodyCache(memory)

    for offset in range(10):
        cache.add(batch(offset, b"x" * 100))

    assert cache.size_bytes == memory.used <= memory.bytes_max
    assert [cache.get(offset) is not None for offset in range(10)] == [False] * 7 + [True] * 3


def test_caches_share_one_memory_and_give_it_back_when_they_are_cut_or_closed() -> None:
    one = len(batch(0, b"x" * 100).data)
    memory = SharedBytes(6 * one)
    idle, busy = BodyCache(memory), BodyCache(memory)
    for offset in range(6):
        idle.add(batch(offset, b"x" * 100))

    for offset in range(20):
        busy.add(batch(offset, b"x" * 100))
    assert (idle.size_bytes, busy.size_bytes) == (3 * one, 3 * one)
    busy.cut(18)
    assert memory.used == 4 * one

    idle.close()
    idle.add(batch(6, b"x" * 100))
    assert memory.used == busy.size_bytes == one


def test_the_newest_batch_stays_however_large_it_is() -> None:
    cache = BodyCache(SharedBytes(10))

    cache.add(batch(0, b"small"))
    cache.add(batch(1, b"x" * 1_000))

    assert cache.get(0) is None
    assert cache.get(1) == (RecordType.SEND, 3, 101, b"x" * 1_000)


def test_memory_does_not_grow_with_the_batches_that_were_evicted() -> None:
    one = len(batch(0, b"x").data)
    cache = BodyCache(SharedBytes(10 * one))

    for offset in range(5 * TRIM_BATCHES):
        cache.add(batch(offset, b"x"))

    assert len(cache._batches) <= 2 * TRIM_BATCHES + 10
    assert len(cache._base_offsets) == len(cache._batches)
    last = 5 * TRIM_BATCHES - 1
    assert cache.get(last) == (RecordType.SEND, 3, 100 + last, b"x")
    assert cache.get(last - 9) is not None
    assert cache.get(last - 11) is None


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.lists(st.integers(0, 19), max_size=12),
    st.integers(1, 60),
    st.integers(0, 3),
)
def test_messages_are_taken_in_the_order_asked_for_whatever_their_offsets(
    sizes: list[int], offsets: list[int], bytes_max: int, evicted: int
) -> None:
    cache = BodyCache(SharedBytes(1 << 20))
    bodies: dict[int, bytes] = {}
    for size in sizes:
        base = len(bodies)
        payloads = [b"prefix of 24 bytes......" + b"m%d" % (base + at) * (at + 1) for at in range(size)]
        bodies.update(enumerate(payloads, base))
        cache.add(batch(base, *payloads))
    cache._first = min(evicted, len(sizes))
    first = cache._base_offsets[cache._first] if cache._first < len(sizes) else len(bodies)
    asked = [offset for offset in offsets if offset in bodies]
    messages: list[bytes] = []

    left = cache.take_run(asked, messages, bytes_max)

    expected: list[bytes] = []
    rest = bytes_max
    for offset in asked:
        body = bodies[offset][24:]
        rest -= len(body)
        if offset < first or (rest < 0 and expected):
            rest = max(0, rest + len(body)) if offset < first else 0
            break
        expected.append(body)
    assert messages == expected
    assert left == max(0, rest)
