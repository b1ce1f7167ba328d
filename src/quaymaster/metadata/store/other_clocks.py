"""What the clocks of other front ends say, as far as these are alive. No clock, no I/O.

Each front end writes its time into its row at every upkeep. Whether another one is alive is not judged by the times in
its row, for one of the two clocks may be wrong, but by whether that row changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

UNCHANGED_LOOKS_MAX: Final = 3
"""Front ends look as often as they write, but not at the same time: one that is gone has not written for longer."""


class OtherClocks:
    """The rows of other front ends, as they change from look to look."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}
        """By name: the time that it wrote last, and for how many looks that has not changed."""

    def look(self, written_ms: Mapping[str, int]) -> int | None:
        """Return the latest time that a live one has written, None when none is alive."""
        before = self._seen
        self._seen = {
            name: (time_ms, before[name][1] + 1 if name in before and before[name][0] == time_ms else 0)
            for name, time_ms in written_ms.items()
        }
        alive = [time_ms for time_ms, looks in self._seen.values() if looks < UNCHANGED_LOOKS_MAX]
        return max(alive, default=None)
