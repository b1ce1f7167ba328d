"""The wheel: nothing early, nothing lost, nothing kept."""

from __future__ import annotations

import pytest

from quaymaster.core.structures import timers
from quaymaster.core.structures.sequences import SequenceSet
from quaymaster.core.structures.timers import (
    SLOT_MS,
    STALE_TIMES_MAX,
    TimerWheel,
    WorkLeft,
    round_up_to_slot_ms,
)


def everything_due(wheel: TimerWheel, now_ms: int) -> list[tuple[int, list[int]]]:
    found = []
    while (due := wheel.take_due(now_ms)) is not None:
        found.append((due[0], list(due[1])))
    return found


@pytest.mark.parametrize(("time_ms", "end_ms"), [(0, 0), (1, 50), (49, 50), (50, 50), (51, 100)])
def test_time_is_rounded_up_to_its_slot_and_never_down(time_ms: int, end_ms: int) -> None:
    assert round_up_to_slot_ms(time_ms) == end_ms


def test_what_is_due_comes_in_the_order_of_its_times() -> None:
    wheel = TimerWheel()
    wheel.add(1, 300)
    wheel.add(2, 100)
    wheel.add(3, 300)
    wheel.add(4, 350)

    assert everything_due(wheel, 300) == [(100, [2]), (300, [1, 3])]
    assert wheel.next_due_ms() == 350
    assert wheel


def test_empty_wheel_has_no_next_time() -> None:
    wheel = TimerWheel()

    assert wheel.next_due_ms() is None
    assert wheel.take_due(10**15) is None
    assert not wheel


def test_forgotten_entry_is_neither_due_nor_waited_for() -> None:
    wheel = TimerWheel()
    wheel.add(1, 100)
    wheel.add(2, 100)
    wheel.add(3, 200)

    wheel.discard(1, 100)
    wheel.discard(9, 150)
    assert wheel.next_due_ms() == 100
    wheel.discard(2, 100)

    assert wheel.next_due_ms() == 200
    wheel.discard(3, 200)
    assert wheel.take_due(200) is None
    assert wheel.next_due_ms() is None


def test_time_that_was_emptied_and_used_again_is_due_once() -> None:
    wheel = TimerWheel()
    wheel.add(1, 100)
    wheel.discard(1, 100)
    wheel.add(2, 100)

    assert everything_due(wheel, 100) == [(100, [2])]


def test_entries_that_come_and_go_leave_nothing_behind() -> None:
    wheel = TimerWheel()
    for number in range(10_000):
        wheel.add(number, number * SLOT_MS)
        wheel.discard(number, number * SLOT_MS)

    assert len(wheel._due_times) <= STALE_TIMES_MAX + 1
    assert not wheel


def test_wheel_is_rebuilt_from_its_slots() -> None:
    wheel = TimerWheel()
    wheel.add(5, 200)
    wheel.add(6, 100)
    rebuilt = TimerWheel()

    loaded = [list(slot) for part in wheel.freeze() for slot in rebuilt.load(part)]

    assert sorted(loaded) == [[5], [6]]
    assert everything_due(rebuilt, 200) == everything_due(wheel, 200)


def test_a_wheel_is_frozen_as_it_is_while_it_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "SLOTS_AT_A_TIME", 2)
    wheel = TimerWheel()
    for sequence in range(1, 11):
        wheel.add(sequence, -(-sequence // 2) * 100)

    frozen = wheel.freeze()
    first = next(frozen)
    wheel.add(11, 100)
    wheel.add(12, 900)
    wheel.discard(3, 200)
    for entries in (3, 1, 1):
        wheel.take_some_due(300, WorkLeft(entries))
    wheel.take_due(400)
    parts = [first, *frozen]

    assert {due_ms: list(SequenceSet.from_bytes(data)) for part in parts for due_ms, data in part} == {
        100: [1, 2],
        200: [3, 4],
        300: [5, 6],
        400: [7, 8],
        500: [9, 10],
    }
    assert all(len(part) <= 2 for part in parts)
