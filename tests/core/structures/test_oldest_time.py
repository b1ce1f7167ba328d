"""The earliest of very many times is known while they come and go."""

from __future__ import annotations

import random

import pytest

from quaymaster.core.structures import oldest_time
from quaymaster.core.structures.oldest_time import OldestTime


def test_earliest_time_is_known_whatever_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oldest_time, "STALE_MAX", 3)
    chance = random.Random(3)
    oldest = OldestTime()
    there: list[int] = []

    for _ in range(5_000):
        if there and chance.random() < 0.5:
            oldest.remove(there.pop(chance.randrange(len(there))))
        else:
            there.append(chance.randrange(40))
            oldest.add(there[-1])

        assert oldest.first() == min(there, default=None)


def test_seconds_that_are_over_take_no_memory_behind_one_that_stays() -> None:
    oldest = OldestTime()
    oldest.add(1)

    for second in range(2, 10_000):
        oldest.add(second)
        oldest.remove(second)

    assert oldest.first() == 1
    assert len(oldest._heap) < 2_000
