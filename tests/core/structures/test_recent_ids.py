"""Which ids were seen within the window."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from quaymaster.core.structures.ids import recent_ids
from quaymaster.core.structures.ids.recent_ids import (
    DIGESTED_AT_ONCE,
    FILTER_BITS,
    SLOT_ENTRIES,
    RecentIds,
    top_of,
)

WINDOW_MS = 300_000


def identity(number: int) -> bytes:
    return hashlib.blake2b(b"%d" % number, digest_size=16).digest()


def filled(count: int) -> RecentIds:
    ids = RecentIds(WINDOW_MS)
    for number in range(count):
        ids.add(identity(number), number, 1_000 + number)
    return ids


def test_id_is_found_until_the_window_has_passed() -> None:
    ids = RecentIds(WINDOW_MS)
    ids.add(identity(1), 77, 1_000)

    assert ids.find(identity(1), 1_000) == 77
    assert ids.find(identity(1), 1_000 + WINDOW_MS - 1) == 77
    assert ids.find(identity(1), 1_000 + WINDOW_MS) is None
    assert ids.find(identity(2), 1_000) is None


def test_id_that_was_stored_again_after_its_window_points_to_the_newer_record() -> None:
    ids = RecentIds(WINDOW_MS)
    ids.add(identity(1), 10, 1_000)
    ids.add(identity(1), 20, 2_000 + WINDOW_MS)

    assert ids.find(identity(1), 3_000 + WINDOW_MS) == 20


@pytest.mark.parametrize(
    "count", [1, SLOT_ENTRIES - 1, SLOT_ENTRIES, SLOT_ENTRIES + 1, 2 * SLOT_ENTRIES, 3 * SLOT_ENTRIES + 5]
)
def test_every_id_is_found_after_a_restart_also_with_a_slot_just_full(count: int) -> None:
    ids = filled(count)

    rebuilt = RecentIds.from_bytes(b"".join(ids.pieces()), WINDOW_MS)

    for found in (ids, rebuilt):
        assert all(found.find(identity(number), 20_000) == number for number in range(count))
        assert found.find(identity(-1), 20_000) is None
        assert len(found) == count
    assert rebuilt.entries(20_000) == ids.entries(20_000)
    assert rebuilt.pieces() == ids.pieces()


def test_full_slots_go_into_every_snapshot_without_being_copied() -> None:
    ids = filled(2 * SLOT_ENTRIES + 5)
    rebuilt = RecentIds.from_bytes(b"".join(ids.pieces()), WINDOW_MS)

    for found in (ids, rebuilt):
        before = found.pieces()
        found.add(identity(-5), 999, 30_000)
        after = found.pieces()
        assert len(before) == len(after) == 3
        assert before[0] is after[0]
        assert before[1] is after[1]
        assert len(after[2]) == len(before[2]) + 32


def test_rebuilt_ids_go_on_as_the_old_ones_would_have() -> None:
    ids = filled(SLOT_ENTRIES)
    rebuilt = RecentIds.from_bytes(b"".join(ids.pieces()), WINDOW_MS)

    for found in (ids, rebuilt):
        found.add(identity(-5), 999, 30_000)

    assert rebuilt.find(identity(-5), 30_000) == ids.find(identity(-5), 30_000) == 999
    assert rebuilt.entries(30_000) == ids.entries(30_000)


def test_slots_past_the_window_are_dropped_and_their_memory_with_them() -> None:
    ids = filled(3 * SLOT_ENTRIES)
    before = len(b"".join(ids.pieces()))

    ids.add(identity(-1), 1, 10_000_000)

    assert len(ids) == 1
    assert len(b"".join(ids.pieces())) < before / 100
    assert ids.find(identity(0), 10_000_000) is None


def test_oldest_ids_go_when_there_are_more_than_allowed() -> None:
    ids = RecentIds(WINDOW_MS, entries_max=SLOT_ENTRIES)

    for number in range(3 * SLOT_ENTRIES):
        ids.add(identity(number), number, 1_000)

    assert len(ids) <= 2 * SLOT_ENTRIES
    assert ids.find(identity(3 * SLOT_ENTRIES - 1), 1_000) == 3 * SLOT_ENTRIES - 1
    assert ids.find(identity(0), 1_000) is None


def test_ids_that_share_half_a_hash_are_told_apart() -> None:
    half = b"12345678"
    ids = RecentIds(WINDOW_MS)
    for number in range(10):
        ids.add(half + bytes([number]) * 8, number, 1_000)

    assert ids.find(half + bytes([4]) * 8, 1_000) == 4
    assert ids.find(half + bytes([44]) * 8, 1_000) is None
    assert ids.find(b"1234" + b"zzzz" + bytes(8), 1_000) is None


def test_ids_that_share_half_a_hash_are_told_apart_in_a_sorted_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_ids, "SLOT_ENTRIES", 3)
    half = b"12345678"
    ids = RecentIds(WINDOW_MS)
    for number in range(3):
        ids.add(half + bytes([number]) * 8, number, 1_000)

    assert [ids.find(half + bytes([number]) * 8, 1_000) for number in range(4)] == [0, 1, 2, None]
    assert ids.find(b"12345679" + bytes(8), 1_000) is None


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 200_000)), max_size=40))
def test_newest_use_within_the_window_counts(uses: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recent_ids, "SLOT_ENTRIES", 4)
        ids = RecentIds(WINDOW_MS)
        expected: dict[int, tuple[int, int]] = {}
        now_ms = 1_000
        for offset, (number, after_ms) in enumerate(uses):
            now_ms += after_ms
            known = expected.get(number)
            is_recent = known is not None and now_ms - known[1] < WINDOW_MS
            assert ids.find(identity(number), now_ms) == (known[0] if known and is_recent else None)
            ids.add(identity(number), offset, now_ms)
            expected[number] = (offset, now_ms)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9_000)), max_size=150),
    st.sampled_from([None, 8, 40]),
    st.sets(st.integers(0, 150), max_size=3),
)
def test_many_slots_answer_as_one_would(
    uses: list[tuple[int, int]], entries_max: int | None, restarts: set[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recent_ids, "SLOT_ENTRIES", 4)
        patch.setattr(recent_ids, "UNION_SLOTS", 4)
        patch.setattr(recent_ids, "UNION_SLOTS_MIN", 2)
        ids = RecentIds(WINDOW_MS, entries_max)
        expected: dict[int, tuple[int, int]] = {}
        now_ms = 1_000
        for offset, (number, after_ms) in enumerate(uses):
            if offset in restarts:
                ids = RecentIds.from_bytes(b"".join(ids.pieces()), WINDOW_MS, entries_max)
            now_ms += after_ms
            ids.add(identity(number), offset, now_ms)
            expected[number] = (offset, now_ms)
            kept = offset + 1 if entries_max is None else min(entries_max, offset + 1)
            for known, (used, used_ms) in expected.items():
                found = ids.find(identity(known), now_ms)
                if now_ms - used_ms >= WINDOW_MS:
                    assert found is None
                elif used > offset - kept:
                    assert found == used
                else:
                    assert found in (None, used)


@pytest.mark.parametrize("every_ms", [10_000, 100_000, WINDOW_MS, 2 * WINDOW_MS])
def test_ids_are_found_while_the_window_moves_over_many_slots(
    monkeypatch: pytest.MonkeyPatch, every_ms: int
) -> None:
    monkeypatch.setattr(recent_ids, "SLOT_ENTRIES", 2)
    monkeypatch.setattr(recent_ids, "UNION_SLOTS", 4)
    monkeypatch.setattr(recent_ids, "UNION_SLOTS_MIN", 2)
    ids = RecentIds(WINDOW_MS)

    for number in range(100):
        ids.add(identity(number), number, number * every_ms)

        for known in range(number + 1):
            is_recent = (number - known) * every_ms < WINDOW_MS
            assert ids.find(identity(known), number * every_ms) == (known if is_recent else None)


def test_what_was_never_seen_is_looked_for_in_few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_ids, "SLOT_ENTRIES", 4)
    ids = filled(4 * 600)
    asked: list[int] = []
    find_in = recent_ids._find_in

    def counting(slots: list[Any], *given: Any) -> int | None:
        asked.append(len(slots))
        return find_in(slots, *given)

    monkeypatch.setattr(recent_ids, "_find_in", counting)
    for number in range(100):
        assert ids.find(identity(-1 - number), 20_000) is None

    # 600 slots: two unions have 256 each, a third has 88.
    assert sum(asked) / 100 < 30


def test_the_filter_of_a_full_slot_takes_a_few_bytes_an_id_and_answers_almost_every_not_seen() -> None:
    ids = RecentIds(WINDOW_MS)
    for number in range(SLOT_ENTRIES):
        ids.add(hashlib.sha256(b"%d" % number).digest()[:16], number, 1_000)
    (slot,) = ids._slots

    looked_further = sum(
        hash_ >> 64 - FILTER_BITS in slot.filter
        for hash_ in (
            int.from_bytes(hashlib.sha256(b"other %d" % at).digest()[:8], "little") for at in range(1_000)
        )
    )

    assert len(slot.filter.serialize()) < 3 * SLOT_ENTRIES
    assert looked_further < 20


def in_a_run(ids: RecentIds, numbers: range, offset: int, time_ms: int) -> None:
    ids.add_run(b"".join(map(identity, numbers)), offset, time_ms)


def test_ids_that_come_at_once_are_those_that_come_one_by_one() -> None:
    rng = random.Random(7)
    at_once, one_by_one = RecentIds(WINDOW_MS), RecentIds(WINDOW_MS)
    time_ms, offset, last = 1_000, 0, 0
    for _ in range(30):
        time_ms += rng.choice((0, 1, WINDOW_MS // 10))
        count = rng.choice((1, 5, 700, 6_000))
        if rng.random() < 0.5:
            in_a_run(at_once, range(last, last + count), offset, time_ms)
        else:
            for number in range(count):
                at_once.add(identity(last + number), offset + number, time_ms)
        for number in range(count):
            one_by_one.add(identity(last + number), offset + number, time_ms)
        for number in rng.sample(range(last + count), min(last + count, rng.choice((0, 0, 3, 20)))):
            assert at_once.find(identity(number), time_ms) == one_by_one.find(identity(number), time_ms)
        if rng.random() < 0.3:
            at_once.digest(rng.randrange(3_000))
        last += count
        offset += count + 1

    assert at_once.entries(time_ms) == one_by_one.entries(time_ms)
    assert b"".join(at_once.pieces()) == b"".join(one_by_one.pieces())


def test_an_id_is_found_while_it_waits_to_be_sorted_and_the_newest_one_counts() -> None:
    ids = RecentIds(WINDOW_MS)
    in_a_run(ids, range(5_000), 0, 1_000)
    in_a_run(ids, range(4_000, 9_000), 10_000, 1_001)

    assert len(ids) == 10_000
    assert ids.find(identity(4_500), 1_001) == 10_500
    assert ids.find(identity(10), 1_001) == 10
    assert ids.find(identity(8_999), 1_001) == 14_999
    assert ids.find(identity(9_000), 1_001) is None
    assert ids.find(identity(10), 1_000 + WINDOW_MS) is None
    assert ids.find(identity(8_999), 1_000 + WINDOW_MS) == 14_999
    assert len(ids) == 10_000


def test_an_id_is_not_found_across_two_neighbours_of_a_run() -> None:
    ids = RecentIds(WINDOW_MS)
    first, second = bytes(range(16)), bytes(range(16, 32))
    ids.add_run((first + second) * 2_000, 0, 1_000)
    ids.add_run(first + second, 9_000, 1_000)

    assert ids.find(first[8:] + second[:8], 1_000) is None
    assert ids.find(second, 1_000) == 9_001
    assert ids.find(first, 1_000) == 9_000


def test_each_step_sorts_some_of_what_waits() -> None:
    ids = RecentIds(WINDOW_MS)
    in_a_run(ids, range(5 * DIGESTED_AT_ONCE), 0, 1_000)

    assert sum(1 for _ in ids.digesting()) == 4
    assert sum(1 for _ in ids.digesting()) == 0
    assert not ids.digest(1)


def test_one_question_tells_of_many_ids_whether_any_is_known() -> None:
    ids = RecentIds(WINDOW_MS)
    unknown = b"".join(identity(number) for number in range(100_000, 101_000))

    def has_any(identities: bytes, now_ms: int) -> bool:
        return ids.has_any(identities, ids.known_tops(now_ms), now_ms)

    assert not has_any(unknown, 1_000)
    in_a_run(ids, range(6_000), 0, 1_000)
    ids.digest(6_000)

    assert not has_any(unknown, 1_000)
    assert has_any(unknown + identity(17), 1_000)
    assert has_any(identity(5_999), 1_000)
    assert not has_any(identity(17), 1_000 + WINDOW_MS)
    ids.add(identity(7_000), 7_000, 1_000 + WINDOW_MS // 2)
    assert has_any(identity(7_000), 1_000 + WINDOW_MS)


def test_ids_are_known_below_the_offset_of_the_first_that_was_noted_and_after_a_restart_anywhere() -> None:
    one_by_one, at_once = RecentIds(WINDOW_MS), RecentIds(WINDOW_MS)
    assert not one_by_one.may_know_below(1_000)

    for offset in (10, 11):
        one_by_one.add(identity(offset), offset, 1_000)
        at_once.add_run(identity(offset), offset, 1_000)

    for ids in (one_by_one, at_once):
        assert (ids.may_know_below(10), ids.may_know_below(11)) == (False, True)
        assert RecentIds.from_bytes(b"".join(ids.pieces()), WINDOW_MS).may_know_below(1)
    assert not RecentIds.from_bytes(b"", WINDOW_MS).may_know_below(1_000)


@pytest.mark.parametrize("unions_of", [2, 3, 256])
def test_the_first_bits_of_all_ids_are_told_whatever_slots_and_unions_they_are_in(
    unions_of: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_ids, "SLOT_ENTRIES", 4)
    monkeypatch.setattr(recent_ids, "UNION_SLOTS", unions_of)
    monkeypatch.setattr(recent_ids, "UNION_SLOTS_MIN", 2)
    ids = RecentIds(WINDOW_MS, entries_max=40)
    assert ids.tops() == BitMap()
    for number in range(70):
        ids.add(identity(number), number, 1_000 + number)

        tops = ids.tops()

        assert tops is not None
        known = {top for _, one, _ in ids.entries(2_000) for top in [top_of(one)]}
        assert known <= set(tops) <= {top_of(identity(one)) for one in range(number + 1)}


def test_nothing_is_told_of_ids_while_some_are_in_no_order() -> None:
    ids = RecentIds(WINDOW_MS)
    ids.add_run(identity(1) + identity(2), 7, 1_000)

    assert ids.tops() is None
    ids.digest(2)
    assert set(ids.tops() or ()) == {top_of(identity(1)), top_of(identity(2))}
