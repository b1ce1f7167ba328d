"""Full collections of cyclic garbage stay short."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from quaymaster.node.garbage import (
    FULL_COLLECTION_MAX_S,
    LOOK_AFTER_S,
    YOUNG_OBJECTS_MAX,
    YOUNG_ROUNDS,
    GarbageCollection,
)


class Circle:
    """Something that refers to itself."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Circle.alive += 1

    def __del__(self) -> None:
        Circle.alive -= 1


class Clock:
    """Each look at it is `step_s` later."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


@pytest.fixture
def clean() -> Iterator[None]:
    Circle.alive = 0
    yield
    gc.unfreeze()
    gc.enable()
    gc.collect()


def collecting(step_s: float) -> GarbageCollection:
    garbage = GarbageCollection(clock=Clock(step_s))
    garbage.pause()
    garbage.resume()
    return garbage


@pytest.mark.usefixtures("clean")
def test_what_survives_a_long_collection_is_looked_at_no_more() -> None:
    garbage = collecting(2 * FULL_COLLECTION_MAX_S)
    kept = [Circle() for _ in range(100)]

    gc.collect()
    looked_at = len(gc.get_objects())

    assert garbage.times_set_aside == 1
    assert looked_at < len(kept)
    garbage.stop()
    assert len(gc.get_objects()) > len(kept)


@pytest.mark.usefixtures("clean")
def test_what_survives_a_short_collection_is_looked_at_again() -> None:
    garbage = collecting(0.0)
    kept = [Circle() for _ in range(100)]

    gc.collect()
    del kept
    gc.collect()

    assert garbage.times_set_aside == 0
    assert Circle.alive == 0
    garbage.stop()


@pytest.mark.usefixtures("clean")
def test_circles_that_nobody_holds_are_found_however_long_collections_take() -> None:
    garbage = collecting(2 * FULL_COLLECTION_MAX_S)
    for _ in range(3):
        Circle()
        gc.collect()

    assert Circle.alive == 0
    garbage.stop()


@pytest.mark.usefixtures("clean")
def test_circles_that_were_in_use_when_they_were_set_aside_are_found_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quaymaster.node.garbage.ALL_OBJECTS_CHEAP", 10_000_000)
    garbage = collecting(2 * LOOK_AFTER_S)
    in_use = [Circle() for _ in range(100)]
    gc.collect()
    assert garbage.times_set_aside == 1

    in_use.clear()
    garbage.look()

    assert Circle.alive == 0
    garbage.stop()


@pytest.mark.usefixtures("clean")
def test_what_is_much_is_looked_at_again_when_it_has_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quaymaster.node.garbage.ALL_OBJECTS_CHEAP", 0)
    garbage = collecting(2 * LOOK_AFTER_S)
    in_use = [Circle() for _ in range(100)]
    garbage.look()
    in_use.clear()

    garbage.look()
    assert Circle.alive == 100
    more = [[] for _ in range(2 * gc.get_freeze_count())]  # type: ignore[var-annotated]
    garbage.look()

    assert Circle.alive == 0
    assert more
    garbage.stop()


@pytest.mark.usefixtures("clean")
def test_a_look_does_not_pass_through_what_is_set_aside_until_that_has_doubled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quaymaster.node.garbage.ALL_OBJECTS_CHEAP", 0)
    garbage = collecting(2 * LOOK_AFTER_S)
    aside = gc.get_freeze_count()
    counted: list[int] = []
    count = gc.get_freeze_count

    def get_freeze_count() -> int:
        counted.append(count())
        return counted[-1]

    monkeypatch.setattr(gc, "get_freeze_count", get_freeze_count)
    kept: list[list[list[int]]] = []
    for _ in range(9):
        kept.append([[] for _ in range(aside // 10)])
        garbage.look()
    counted_before = list(counted)
    kept.append([[] for _ in range(aside // 5)])
    garbage.look()

    assert counted_before == []
    assert len(counted) == 1
    assert counted[0] >= 2 * aside
    assert garbage.times_set_aside >= 10
    garbage.stop()


@pytest.mark.usefixtures("clean")
def test_nothing_is_collected_while_the_server_starts() -> None:
    garbage = GarbageCollection()

    garbage.pause()

    assert not gc.isenabled()
    garbage.stop()
    assert gc.isenabled()


@pytest.mark.usefixtures("clean")
def test_young_objects_are_looked_at_less_often_while_it_runs() -> None:
    before = gc.get_threshold()

    garbage = collecting(0.0)

    assert gc.get_threshold() == (YOUNG_OBJECTS_MAX, *YOUNG_ROUNDS)
    garbage.stop()
    assert gc.get_threshold() == before


@pytest.mark.usefixtures("clean")
def test_circles_are_found_after_some_work_whatever_python_has_counted() -> None:
    garbage = collecting(LOOK_AFTER_S / 10)
    garbage.look()
    Circle()

    for _ in range(8):
        garbage.look()
    alive_before = Circle.alive
    for _ in range(3):
        garbage.look()

    assert (alive_before, Circle.alive) == (1, 0)
    garbage.stop()


@pytest.mark.usefixtures("clean")
def test_a_full_collection_meets_a_bounded_number_of_new_objects() -> None:
    garbage = GarbageCollection()
    met: list[int] = []
    kept: list[list[Circle]] = []

    def on_collection(phase: str, facts: dict[str, int]) -> None:
        if phase == "start" and facts["generation"] == 2:
            met.append(len(kept))
            kept.clear()

    gc.freeze()
    gc.collect()  # Python waits for a quarter of what the last full collection met: that was little, as in a server
    garbage.pause()
    garbage.resume()
    gc.callbacks.append(on_collection)
    everything = []
    for _ in range(20 * YOUNG_OBJECTS_MAX):
        circle = [Circle()]
        everything.append(circle)
        kept.append(circle)
    gc.callbacks.remove(on_collection)
    garbage.stop()

    # Each is a list and an object, and the young ones of the last round are still to come.
    assert met
    assert max(met) <= 4 * YOUNG_OBJECTS_MAX
