"""The authorization floor: the last change that could take permissions away, and who follows the store that far.

    change that takes away ──same transaction──▶ /authorization_floor      its revision is the floor
    front end, rows in memory ──applied up to the floor──▶ `followed` ──▶ brokers, which refuse front ends below it

The row says nothing but its revision: two changes at once need not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quaymaster.coordination.interface import Put
from quaymaster.core.values.formats import FRONT_DOOR, CellFormat
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.rows import AUTHORIZATION_FLOOR

_VALUE: Final = b"1"


def raised_floor(cell_format: CellFormat) -> list[Put]:
    """Return what raises the floor, for a transaction that can take permissions away."""
    # Older front ends tell no broker how far they follow: they would be refused for good.
    return [Put(AUTHORIZATION_FLOOR, _VALUE)] if cell_format.version_of(FRONT_DOOR) else []


class FollowedFloor:
    """Up to which floor the rows in this process's memory are complete."""

    def __init__(self, mirror: Mirror, age_ms: Callable[[], float] = lambda: 0.0) -> None:
        """`age_ms` says how old the rows may be."""
        self._age_ms = age_ms
        self.revision = 0
        """The floor that is followed; 0 while there is none."""
        self.listeners: list[Callable[[], None]] = []
        """Hear that it was raised."""
        self._mirror = mirror
        self._row: MirrorTable[bytes] = mirror.table(AUTHORIZATION_FLOOR, bytes)
        mirror.on_moved = self._look

    @property
    def age_ms(self) -> float:
        """How old what is known may be."""
        return self._age_ms()

    @property
    def raised(self) -> int:
        """The highest floor that is known: an own change is known before all changes before it are."""
        return self._row.revision("")

    def _look(self) -> None:
        """Take over the floor, if everything up to it is in the tables: rows that are listed come in parts."""
        revision = self._row.revision("")
        if revision <= self._mirror.position and revision != self.revision:
            self.revision = revision
            for listener in self.listeners:
                listener()
