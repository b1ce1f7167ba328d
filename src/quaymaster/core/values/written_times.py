"""Times of a wall clock that were written down, perhaps by another clock than is read now. No I/O, no clock.

Either of the two may be wrong, or have been. So nothing waits until a clock that was days ahead is reached: a moment
that lies too far in the future counts as one that is over.
"""

from __future__ import annotations

from typing import Final

CLOCKS_DIFFER_MAX_MS: Final = 3_600_000
"""Clocks of processes that serve clients differ by less: a signature is good for a quarter of an hour."""


def has_passed(since_ms: int, length_ms: int, now_ms: int, *, ahead_max_ms: int | None = None) -> bool:
    """Tell whether a time of this length, which began at `since_ms`, is over at `now_ms`.

    It is, too, where it begins `ahead_max_ms` in the future, or later; by default its own length. What guards against
    others takes CLOCKS_DIFFER_MAX_MS, so that clocks which differ a little do not cut it short.
    """
    ahead_max_ms = length_ms if ahead_max_ms is None else ahead_max_ms
    return now_ms - since_ms >= length_ms or since_ms - now_ms >= ahead_max_ms
