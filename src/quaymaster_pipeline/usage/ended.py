"""Incarnations that ended and are whole, packed: three numbers each, in one array for each front end. Pure.

There are ever more of them, and hardly ever anything is asked of one. So a year of restarts of a thousand front ends is
a megabyte, and is read and written without an object for each.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

PACKED: Final = "q"
"""The type code of the arrays: 64 bits, signed."""
FIELDS: Final = 3
"""Of an incarnation, in turn: its number; the end of its sequences, as `~end` where the seal does not name it; the time
that was heard last, or NEVER_HEARD. Incarnations are in the order of their numbers."""
NEVER_HEARD: Final = -1


class Ended(NamedTuple):
    """An incarnation that ended, of which all sequences from 0 to `end` came.

    `heard_us` is its last low watermark, microseconds, None if no block of it came. `is_end_known`: its seal named the
    end; else its spool was lost, and what came is all.
    """

    end: int
    heard_us: int | None
    is_end_known: bool


class EndedIncarnations:
    """Those of all front ends. Arrays are never changed but replaced, so copies share them."""

    def __init__(self, packed: dict[str, array[int]] | None = None) -> None:
        """`packed` is an array for each front end, as `packed` gives them."""
        self._packed = packed or {}

    def copy(self) -> EndedIncarnations:
        """Return another one that has the same, for another thread to add to."""
        return EndedIncarnations(self._packed.copy())

    def packed(self) -> Iterator[tuple[str, array[int]]]:
        """Yield the front ends in the order of their names, each with its array."""
        yield from sorted(self._packed.items(), key=lambda item: item[0])

    def get(self, front_end: str, number: int) -> Ended | None:
        """Return an incarnation; None if it is not among them."""
        packed = self._packed.get(front_end)
        if packed is None:
            return None
        at = _place_of(number, packed)
        return _unpacked(packed, at) if _has(number, packed, at) else None

    def put(self, front_end: str, number: int, ended: Ended) -> None:
        """Add an incarnation that is not among them."""
        packed = self._packed.get(front_end, array(PACKED))
        at = _place_of(number, packed)
        end = ended.end if ended.is_end_known else ~ended.end
        one = array(PACKED, (number, end, NEVER_HEARD if ended.heard_us is None else ended.heard_us))
        self._packed[front_end] = packed[: at * FIELDS] + one + packed[at * FIELDS :]

    def pop(self, front_end: str, number: int) -> Ended | None:
        """Remove an incarnation and return it; None if it is not among them."""
        packed = self._packed.get(front_end)
        if packed is None:
            return None
        at = _place_of(number, packed)
        if not _has(number, packed, at):
            return None
        left = packed[: at * FIELDS] + packed[(at + 1) * FIELDS :]
        if left:
            self._packed[front_end] = left
        else:
            del self._packed[front_end]
        return _unpacked(packed, at)

    def items(self) -> Iterator[tuple[str, int, Ended]]:
        """Yield all, by name and number."""
        for front_end, packed in self.packed():
            for at in range(len(packed) // FIELDS):
                yield front_end, packed[at * FIELDS], _unpacked(packed, at)


def _place_of(number: int, packed: array[int]) -> int:
    """Return where an incarnation is, or would be."""
    return bisect.bisect_left(range(len(packed) // FIELDS), number, key=lambda at: packed[at * FIELDS])


def _has(number: int, packed: array[int], at: int) -> bool:
    return at * FIELDS < len(packed) and packed[at * FIELDS] == number


def _unpacked(packed: array[int], at: int) -> Ended:
    _, end, heard_us = packed[at * FIELDS : (at + 1) * FIELDS]
    is_end_known = end >= 0
    return Ended(end if is_end_known else ~end, None if heard_us == NEVER_HEARD else heard_us, is_end_known)
