"""Keys in the order in which they were last touched: each reader asks for those after its position.

    touch(a) touch(b) touch(c) touch(a)      ─▶  a b c a        the first `a` is stale: it is passed over
                                                 ▲ base

A key that no reader has come to since it was last touched is not put in again. Entries in front are dropped when there
are too many stale ones. An entry there that is not stale goes behind the others, as if it was touched: it is read once
more. That of a key that is gone does not.
"""

from __future__ import annotations

from typing import Final

STALE_MAX: Final = 1_000
"""So many stale entries are kept, besides one for each key."""
LOOKED_AT_PER_KEY: Final = 4
"""So many entries a reader passes for each key that it asked for."""
_DROPPED_AT_A_TIME: Final = 256


class TouchLog:
    """Positions only grow, as long as it lives."""

    __slots__ = ("_base", "_gone", "_keys", "_positions", "_read_to")

    def __init__(self) -> None:
        self._gone: set[int] = set()
        self._keys: list[int] = []
        self._base = 0
        """The position of the first of them."""
        self._positions: dict[int, int] = {}
        """Where each key stands."""
        self._read_to = 0
        """Some reader has come this far."""

    def __len__(self) -> int:
        """How many entries are kept."""
        return len(self._keys)

    @property
    def end(self) -> int:
        """The position behind the last entry."""
        return self._base + len(self._keys)

    def touch(self, key: int) -> None:
        """Something about a key has changed."""
        self._gone.discard(key)
        self._touch(key)

    def drop(self, key: int) -> None:
        """A key is gone: readers are told once more."""
        self._gone.add(key)
        self._touch(key)

    def after(self, position: int, count_max: int) -> tuple[list[int], int]:
        """Return keys that were touched at a position or after it, and where to go on: at `end` there are no more."""
        at = max(position, self._base) - self._base
        stop = min(len(self._keys), at + LOOKED_AT_PER_KEY * count_max)
        found: list[int] = []
        while at < stop and len(found) < count_max:
            key = self._keys[at]
            if self._positions[key] == self._base + at:
                found.append(key)
            at += 1
        self._read_to = max(self._read_to, self._base + at)
        return found, self._base + at

    def _touch(self, key: int) -> None:
        if self._positions.get(key, -1) >= self._read_to:
            return
        self._put(key)
        if len(self._keys) > 2 * (len(self._positions) - len(self._gone)) + STALE_MAX:
            self._drop_first()

    def _put(self, key: int) -> None:
        self._positions[key] = self._base + len(self._keys)
        self._keys.append(key)

    def _drop_first(self) -> None:
        first = self._keys[:_DROPPED_AT_A_TIME]
        del self._keys[:_DROPPED_AT_A_TIME]
        base, self._base = self._base, self._base + len(first)
        for position, key in enumerate(first, base):
            if self._positions[key] != position:
                continue
            if key in self._gone:
                self._gone.discard(key)
                del self._positions[key]
            else:
                self._put(key)
