"""Several who keep bytes share one bound."""

from __future__ import annotations

from quaymaster.core.structures.shared_bytes import SharedBytes


class Shelf:
    """Keeps things by their sizes; at least the newest, if told so."""

    def __init__(self, memory: SharedBytes, *, least: int = 0) -> None:
        self.memory = memory
        self.least = least
        self.sizes: list[int] = []
        self.size_bytes = 0
        memory.join(self)

    def put(self, size: int) -> None:
        self.sizes.append(size)
        self.size_bytes += size
        self.memory.add(self, size)

    def forget_oldest(self) -> bool:
        if len(self.sizes) <= self.least:
            return False
        size = self.sizes.pop(0)
        self.size_bytes -= size
        self.memory.drop(size)
        return True


def test_one_alone_has_all_of_it() -> None:
    memory = SharedBytes(100)
    shelf = Shelf(memory)

    for size in (40, 30, 30, 20):
        shelf.put(size)

    assert (shelf.sizes, memory.used) == ([30, 30, 20], 80)


def test_who_is_idle_gives_to_who_is_busy_down_to_its_part() -> None:
    memory = SharedBytes(100)
    idle, busy = Shelf(memory), Shelf(memory)
    for _ in range(10):
        idle.put(10)

    for _ in range(20):
        busy.put(10)

    assert (idle.size_bytes, busy.size_bytes, memory.used) == (50, 50, 100)


def test_small_one_never_pays_for_a_large_one() -> None:
    memory = SharedBytes(100)
    small, large = Shelf(memory), Shelf(memory)
    small.put(10)

    for _ in range(50):
        large.put(30)

    assert (small.sizes, large.sizes) == ([10], [30, 30, 30])


def test_bound_is_passed_only_by_what_each_must_keep() -> None:
    memory = SharedBytes(10)
    shelves = [Shelf(memory, least=1) for _ in range(2)]

    for shelf in shelves:
        shelf.put(20)
        shelf.put(30)

    assert [shelf.sizes for shelf in shelves] == [[30], [30]]
    assert memory.used == 60


def test_what_one_has_kept_counts_no_longer_when_it_leaves() -> None:
    memory = SharedBytes(100)
    gone, other = Shelf(memory), Shelf(memory)
    gone.put(60)

    memory.leave(gone)
    for _ in range(10):
        other.put(10)

    assert (memory.used, other.size_bytes) == (100, 100)
