"""Deduplication ids that are stored with their messages."""

from __future__ import annotations

import random

import pytest

from quaymaster.core.structures.ids.id_limits import IdLimits
from quaymaster.core.structures.ids.kept_ids import KeptIds, KeptMessage
from quaymaster.core.structures.ids.recent_ids import SLOT_ENTRIES, top_of
from quaymaster.core.structures.ids.sent_ids import DEDUP_WINDOW_MS, SentIds

HOUR_MS = 3_600_000
NOW_MS = 10 * HOUR_MS


def identity(number: int) -> bytes:
    return random.Random(number).randbytes(16)


def message(number: int) -> KeptMessage:
    return KeptMessage(number, number.to_bytes(16, "big"))


def filled(count: int, *, every_ms: int = 1, window_ms: int = HOUR_MS) -> KeptIds:
    kept = KeptIds(window_ms)
    for number in range(count):
        kept.add(identity(number), message(number), NOW_MS + number * every_ms)
    return kept


def test_an_id_is_answered_with_its_message_for_the_window() -> None:
    kept = filled(3)

    assert kept.find(identity(1), NOW_MS + HOUR_MS) == message(1)
    assert kept.find(identity(1), NOW_MS + HOUR_MS + 1) is None
    assert kept.find(identity(9), NOW_MS) is None


def test_the_newest_message_of_an_id_counts() -> None:
    kept = filled(1)
    kept.add(identity(0), message(77), NOW_MS + HOUR_MS)

    assert kept.find(identity(0), NOW_MS + HOUR_MS) == message(77)


def test_what_is_past_the_window_leaves_in_blocks_and_the_others_are_found() -> None:
    count = 3 * SLOT_ENTRIES + 10
    kept = filled(count, every_ms=HOUR_MS // SLOT_ENTRIES)
    now_ms = NOW_MS + (count - 1) * (HOUR_MS // SLOT_ENTRIES)

    found = [number for number in range(count) if kept.find(identity(number), now_ms) is not None]

    assert found == list(range(count - len(found), count))
    assert all(kept.find(identity(number), now_ms) == message(number) for number in found[:50])
    assert kept.live(now_ms) == len(found)
    assert len(kept._full) <= 2


@pytest.mark.parametrize("count", [0, 1, SLOT_ENTRIES - 1, SLOT_ENTRIES, SLOT_ENTRIES + 1, 2 * SLOT_ENTRIES])
def test_it_is_known_exactly_how_many_are_within_the_window(count: int) -> None:
    kept = filled(count)

    for gone in {0, 1, count // 2, count - 1, count}:
        if 0 <= gone <= count:
            assert kept.live(NOW_MS + gone - 1 + HOUR_MS) == count - gone


@pytest.mark.parametrize("count", [1, SLOT_ENTRIES, 2 * SLOT_ENTRIES + 5])
def test_a_snapshot_has_them_all(count: int) -> None:
    kept = filled(count)
    now_ms = NOW_MS + count

    loaded = KeptIds.from_bytes(b"".join(kept.id_pieces()), b"".join(kept.message_pieces()), HOUR_MS)
    for each in (kept, loaded):
        each.add(identity(-1), message(5), now_ms)

    assert loaded.content(now_ms) == kept.content(now_ms)
    assert loaded.find(identity(count - 1), now_ms) == message(count - 1)
    assert loaded.find(identity(-1), now_ms) == message(5)


def test_a_longer_window_brings_nothing_back_that_is_gone() -> None:
    kept = filled(SLOT_ENTRIES - 1, window_ms=DEDUP_WINDOW_MS + 1)
    later_ms = NOW_MS + HOUR_MS
    kept.add(identity(-1), message(1), later_ms)
    kept.add(identity(-2), message(2), later_ms)

    kept.set_window(24 * HOUR_MS)

    assert kept.find(identity(-1), later_ms) == message(1)
    assert kept.live(later_ms) >= 2
    for number in range(SLOT_ENTRIES, 2 * SLOT_ENTRIES):
        kept.add(identity(number), message(number), later_ms + 24 * HOUR_MS)
    assert kept.find(identity(-1), later_ms + 24 * HOUR_MS) is None


def test_an_entry_whose_block_is_gone_is_not_known_though_its_id_still_is() -> None:
    kept = filled(SLOT_ENTRIES)
    kept._full.clear()
    kept._base = SLOT_ENTRIES

    assert kept.find(identity(0), NOW_MS) is None


# With the ids of short windows


def sent_ids(window_ms: int, dedup_ids_max: int = 100) -> SentIds:
    return SentIds(120_000, IdLimits(dedup_ids_max=dedup_ids_max), window_ms)


def test_ids_of_short_windows_are_found_by_their_records() -> None:
    ids = sent_ids(DEDUP_WINDOW_MS)

    ids.note(identity(1), None, 42, NOW_MS)

    assert not ids.keeps_messages
    assert ids.find(identity(1), None, NOW_MS) == 42
    assert ids.kept is None


def test_a_window_that_grows_and_shrinks_keeps_what_was_promised() -> None:
    ids = sent_ids(DEDUP_WINDOW_MS)
    ids.note(identity(1), None, 42, NOW_MS)
    ids.set_window(HOUR_MS)
    assert ids.keeps_messages
    ids.keep(identity(2), message(2), NOW_MS)

    assert ids.find(identity(1), None, NOW_MS + DEDUP_WINDOW_MS - 1) == 42
    assert ids.find(identity(1), None, NOW_MS + DEDUP_WINDOW_MS) is None
    assert ids.find(identity(2), None, NOW_MS + DEDUP_WINDOW_MS) == message(2)
    tops = ids.dedup_tops()
    assert tops is not None
    assert {top_of(identity(1)), top_of(identity(2))} <= set(tops)
    ids.set_window(DEDUP_WINDOW_MS)
    ids.note(identity(3), None, 43, NOW_MS + DEDUP_WINDOW_MS - 1)
    assert ids.find(identity(2), None, NOW_MS + DEDUP_WINDOW_MS - 1) == message(2)
    assert ids.find(identity(2), None, NOW_MS + DEDUP_WINDOW_MS) is None
    ids.note(identity(4), None, 44, NOW_MS + DEDUP_WINDOW_MS)
    assert ids.kept is None


def test_there_is_room_for_as_many_ids_as_may_be_kept_and_for_those_that_are_known() -> None:
    ids = sent_ids(HOUR_MS, dedup_ids_max=2)
    assert ids.has_room([identity(1), identity(2)], NOW_MS)
    assert not ids.has_room([identity(1), identity(2), identity(3)], NOW_MS)
    ids.keep(identity(1), message(1), NOW_MS)
    ids.keep(identity(2), message(2), NOW_MS + 1)

    assert ids.has_room([identity(1), identity(2)], NOW_MS + 1)
    assert not ids.has_room([identity(3)], NOW_MS + HOUR_MS - 1)
    assert ids.has_room([identity(3)], NOW_MS + HOUR_MS)
    assert not ids.has_room([identity(3), identity(4)], NOW_MS + HOUR_MS)


def test_a_purge_forgets_them() -> None:
    ids = sent_ids(HOUR_MS)
    ids.keep(identity(1), message(1), NOW_MS)

    ids.forget()

    assert ids.find(identity(1), None, NOW_MS) is None
    tops = ids.dedup_tops()
    assert tops is not None
    assert not tops
