"""How much work something is, counted: time says nothing on a busy machine."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import pytest

FEW, MANY, MANY_LONG = 100, 30_000, 100_000
"""So much others have. Many is enough for each walk through it to be noticed; `make soak` has three times as much."""
MANIES = (MANY, pytest.param(MANY_LONG, marks=pytest.mark.long))
"""For fixtures."""


def calls_of(work: Callable[[], object]) -> int:
    """Return how many functions are called, those written in C too.

    Garbage of others is left: to free it may call functions, and when that happens is up to chance.
    """
    calls = 0
    collected = gc.isenabled()

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.disable()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        if collected:
            gc.enable()
    return calls


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Make very many objects that stay: to look for garbage among them again and again takes as long as making them."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


GLANCE_MAX = 2_000
"""So many entries of what is large may be taken from it at once: a page of a list, or the oldest that leave."""


def _at_a_glance(entries: Iterable[Any]) -> Iterator[Any]:
    for number, entry in enumerate(entries):
        assert number < GLANCE_MAX, "what all have was walked"
        yield entry


def _walked(self: object, *arguments: object) -> NoReturn:
    raise AssertionError("what all have was walked or copied")


class _Unwalked:
    """What has an entry for each of very many: look-ups, and glances at a few."""

    def __iter__(self) -> Iterator[Any]:
        return _at_a_glance(super().__iter__())  # type: ignore[misc]

    copy = __copy__ = _walked


class UnwalkedDict(_Unwalked, dict[Any, Any]):
    __or__ = __ror__ = _walked

    def keys(self) -> Any:
        return _at_a_glance(super().keys())

    def values(self) -> Any:
        return _at_a_glance(super().values())

    def items(self) -> Any:
        return _at_a_glance(super().items())


class UnwalkedSet(_Unwalked, set[Any]):
    __or__ = __ror__ = __sub__ = __rsub__ = __and__ = __rand__ = _walked


class UnwalkedList(_Unwalked, list[Any]):
    __add__ = __radd__ = sort = _walked  # type: ignore[assignment]

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            assert len(range(*at.indices(len(self)))) <= GLANCE_MAX, "what all have was copied"
        return super().__getitem__(at)


_UNWALKED: dict[type, Callable[[Any], Any]] = {
    dict: UnwalkedDict,
    set: UnwalkedSet,
    list: UnwalkedList,
}


def forbid_walks(*holders: object, entries_min: int) -> list[str]:
    """Replace each large dict, set and list that these objects have by one that notices walks; return their names.

    What is found at once or in the end raises AssertionError: a walk, a copy, a sorting.
    """
    found: list[str] = []
    for holder in holders:
        for name, value in list(vars(holder).items()):
            unwalked = _UNWALKED.get(type(value))
            if unwalked is not None and len(value) >= entries_min:
                setattr(holder, name, unwalked(value))
                found.append(f"{type(holder).__name__}.{name}")
    return found
