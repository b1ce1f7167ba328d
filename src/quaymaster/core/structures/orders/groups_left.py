"""Which groups a sealed FIFO partition has no message of any more, as its children ask (`orders/held_groups`).

A group is there while something is known of it, or a message behind the cursor is of it. Which groups those are is
looked for once: the last message of each, so many messages with each question, as there may be very many. Until then
nothing is said. Nothing is added to a sealed partition, so what was found stays true.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.structures.orders.index import SequenceIndex

LOOKED_AT_MAX: Final = 16_384
"""So many messages are looked at with one question: up to ten milliseconds."""

PAGES: Final = 64
"""Groups lie in so many pages, by the last bits of their keys: a table of all would take long to grow."""


class GroupsLeft:
    """The last message of each group behind the cursor, as far as they are looked at."""

    __slots__ = ("_last", "_next_sequence")

    def __init__(self) -> None:
        self._last: list[dict[int, int]] = [{} for _ in range(PAGES)]
        self._next_sequence = 0

    def gone(
        self,
        order: FIFOOrder,
        index: SequenceIndex,
        groups: Iterable[int],
        *,
        looked_at_max: int = LOOKED_AT_MAX,
    ) -> list[int] | None:
        """Return which groups a sealed partition has no message of, None if that is not known yet: ask again."""
        cursor, end, pages = order.cursor, index.next_sequence, self._last
        start = max(self._next_sequence, cursor)
        if start < end:
            self._next_sequence = min(end, start + looked_at_max)
            for first, some in index.groups_of(start, self._next_sequence):
                for sequence, group in enumerate(some, first):
                    pages[group % PAGES][group] = sequence
            if self._next_sequence < end:
                return None
        elif cursor >= end:
            self._last = pages = [{} for _ in range(PAGES)]
        known = order.groups
        return [
            group for group in groups if group not in known and pages[group % PAGES].get(group, 0) < cursor
        ]
