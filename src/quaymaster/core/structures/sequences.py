"""Sets of sequence numbers that stay small: how millions of passed-over or delayed messages cost bytes, not objects.

A few numbers lie in a sorted packed array (8 bytes each); more of them in a 64-bit roaring bitmap, which costs at
most 2 bytes a number when they are close together and next to nothing for a run.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from pyroaring import BitMap64

ARRAY_LENGTH_MAX = 48
"""Above this a bitmap is smaller and faster than a packed array."""


class SequenceSet:
    """A sorted set of unsigned 64-bit numbers with a cheap minimum."""

    __slots__ = ("_bitmap", "_numbers", "_size")

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._numbers: array[int] | None = array("Q")
        self._bitmap: BitMap64 | None = None
        self._size = 0
        for number in numbers:
            self.add(number)

    def __len__(self) -> int:
        return self._size

    def __bool__(self) -> bool:
        return self._size > 0

    def __contains__(self, number: int) -> bool:
        if self._bitmap is not None:
            return number in self._bitmap
        numbers = self._numbers
        assert numbers is not None, "a set is an array or a bitmap"
        at = bisect_left(numbers, number)
        return at < len(numbers) and numbers[at] == number

    def __iter__(self) -> Iterator[int]:
        return iter(self._bitmap if self._bitmap is not None else self._numbers or ())

    def __repr__(self) -> str:
        return f"SequenceSet({self._size} numbers)"

    def add(self, number: int) -> bool:
        """Add a number; false when it was there."""
        bitmap = self._bitmap
        if bitmap is not None:
            if number in bitmap:
                return False
            bitmap.add(number)
            self._size += 1
            return True
        numbers = self._numbers
        assert numbers is not None, "a set is an array or a bitmap"
        if not numbers or number > numbers[-1]:
            numbers.append(number)
        else:
            at = bisect_left(numbers, number)
            if numbers[at] == number:
                return False
            numbers.insert(at, number)
        self._size += 1
        if self._size > ARRAY_LENGTH_MAX:
            self._bitmap = BitMap64(numbers)
            self._numbers = None
        return True

    def add_range(self, start: int, stop: int) -> None:
        """Add every number of [start, stop)."""
        numbers = BitMap64()
        numbers.add_range(start, stop)
        self.update(numbers)

    def update(self, numbers: BitMap64) -> None:
        """Add every number of a bitmap."""
        known = self._numbers
        if known is not None and len(numbers) + self._size <= ARRAY_LENGTH_MAX:
            if numbers and (not known or numbers.min() > known[-1]):
                known.extend(numbers)
                self._size = len(known)
                return
            for number in numbers:
                self.add(number)
        elif numbers:
            if self._bitmap is None:
                self._bitmap, self._numbers = BitMap64(self._numbers or ()), None
            self._bitmap |= numbers
            self._size = len(self._bitmap)

    def discard(self, number: int) -> bool:
        """Remove a number; false when it was not there."""
        bitmap = self._bitmap
        if bitmap is not None:
            if number not in bitmap:
                return False
            bitmap.remove(number)
            self._size -= 1
            if not self._size:
                self._bitmap, self._numbers = None, array("Q")
            return True
        numbers = self._numbers
        assert numbers is not None, "a set is an array or a bitmap"
        at = bisect_left(numbers, number)
        if at == len(numbers) or numbers[at] != number:
            return False
        del numbers[at]
        self._size -= 1
        return True

    def discard_below(self, stop: int) -> int:
        """Remove every number below `stop`; return how many there were."""
        before = self._size
        if self._bitmap is not None:
            self._bitmap.remove_range(0, stop)
            self._size = len(self._bitmap)
            if not self._size:
                self._bitmap, self._numbers = None, array("Q")
        elif self._numbers:
            del self._numbers[: bisect_left(self._numbers, stop)]
            self._size = len(self._numbers)
        return before - self._size

    def first(self) -> int:
        """Return the smallest number of a set that is not empty."""
        if self._bitmap is not None:
            return int(self._bitmap.min())
        assert self._numbers, "an empty set has no first number"
        return self._numbers[0]

    def end_of_run(self, start: int) -> int:
        """Return the first number from `start` on that is not in the set."""
        if self._bitmap is not None:
            return end_of_run(self._bitmap, start)
        numbers = self._numbers
        assert numbers is not None, "a set is an array or a bitmap"
        at = bisect_left(numbers, start)
        while at < len(numbers) and numbers[at] == start:
            at += 1
            start += 1
        return start

    def count_between(self, start: int, stop: int) -> int:
        """Return how many numbers of [start, stop) are in the set."""
        if self._bitmap is not None:
            return int(self._bitmap.range_cardinality(start, stop))
        numbers = self._numbers
        assert numbers is not None, "a set is an array or a bitmap"
        return bisect_left(numbers, stop) - bisect_left(numbers, start)

    def remove_from(self, bitmap: BitMap64) -> None:
        """Take the numbers of this set out of a bitmap."""
        if self._bitmap is not None:
            bitmap -= self._bitmap
        else:
            bitmap.difference_update(BitMap64(self._numbers or ()))

    def bitmap(self) -> BitMap64:
        """Return a copy as a bitmap."""
        return BitMap64(self._bitmap if self._bitmap is not None else self._numbers or ())

    def to_bytes(self) -> bytes:
        """Return a form for snapshots: the same set gives the same bytes whatever its history."""
        if self._size <= ARRAY_LENGTH_MAX:
            return b"A" + array("Q", self).tobytes()
        bitmap = self.bitmap()
        bitmap.run_optimize()
        return b"R" + bitmap.serialize()

    @classmethod
    def from_bytes(cls, data: bytes) -> SequenceSet:
        """Rebuild a set from `to_bytes`."""
        result = cls()
        if data[:1] == b"A":
            numbers = array("Q")
            numbers.frombytes(data[1:])
            result._numbers = numbers
            result._size = len(numbers)
        else:
            bitmap = BitMap64.deserialize(data[1:])
            result._bitmap, result._numbers, result._size = bitmap, None, len(bitmap)
        return result


def end_of_run(bitmap: BitMap64, start: int) -> int:
    """Return the first number from `start` on that is not in a bitmap, in a few steps however long the run."""
    step = 1
    while bitmap.contains_range(start, start + step):
        start += step
        step *= 2
    while step:
        if bitmap.contains_range(start, start + step):
            start += step
        step //= 2
    return start
