"""Readers of a log of touches miss no key, and the log stays as long as there are keys."""

from __future__ import annotations

import random

import pytest

from quaymaster.core.structures import touch_log
from quaymaster.core.structures.touch_log import STALE_MAX, TouchLog


def all_after(log: TouchLog, position: int, count_max: int = 1_000) -> tuple[list[int], int]:
    """Read page after page, to the end."""
    found: list[int] = []
    while position < log.end:
        some, position = log.after(position, count_max)
        found += some
    return found, position


def test_each_key_is_told_of_once_as_it_was_last_touched() -> None:
    log = TouchLog()
    log.touch(1)
    log.touch(2)
    _, position = all_after(log, 0)
    log.touch(1)
    log.touch(3)

    assert all_after(log, position)[0] == [1, 3]
    assert all_after(log, 0)[0] == [2, 1, 3], "who begins later is told of all"


def test_key_is_put_in_once_until_somebody_has_read_it() -> None:
    log = TouchLog()

    for _ in range(10):
        log.touch(1)

    assert log.end == 1


def test_page_has_no_more_keys_than_were_asked_for() -> None:
    log = TouchLog()
    for key in range(5):
        log.touch(key)

    first, position = log.after(0, 2)
    second, position = log.after(position, 2)
    third, position = log.after(position, 2)

    assert [first, second, third] == [[0, 1], [2, 3], [4]]
    assert position == log.end


def test_key_that_is_gone_is_told_of_once_more_and_then_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touch_log, "STALE_MAX", 10)
    log = TouchLog()
    log.touch(1)
    _, position = all_after(log, 0)
    log.drop(1)

    assert all_after(log, position)[0] == [1]
    for key in range(2, 1_000):
        log.touch(key)
        all_after(log, 0)
        log.drop(key)
    assert len(log) < 600
    assert 1 not in all_after(log, 0)[0]


def test_key_that_is_there_again_is_no_longer_gone() -> None:
    log = TouchLog()
    log.drop(1)
    log.touch(1)

    for number in range(2 * STALE_MAX):
        log.touch(2)
        log.after(number, 1)

    assert sorted(all_after(log, 0)[0]) == [1, 2]


def test_readers_miss_nothing_however_they_are_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touch_log, "STALE_MAX", 20)
    chance = random.Random(7)
    log = TouchLog()
    value: dict[int, int] = {}
    positions = [0, 0]
    seen: list[dict[int, int]] = [{}, {}]

    for step in range(20_000):
        key = chance.randrange(50)
        value[key] = step
        log.touch(key)
        reader = chance.randrange(40)
        if reader < 2:
            keys, positions[reader] = log.after(positions[reader], chance.randrange(1, 30))
            seen[reader].update({found: value[found] for found in keys})

    for reader in (0, 1):
        keys, _ = all_after(log, positions[reader])
        seen[reader].update({found: value[found] for found in keys})
        assert seen[reader] == value
    assert len(log) < 50 * 4
