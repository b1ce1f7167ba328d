"""When a process that has ended is started again by the one that looks after it."""

from __future__ import annotations

from typing import Final

LIVED_MS: Final = 10_000
"""One that ran for so long had not failed at its start: the next is started at once."""
DELAY_MIN_MS: Final = 100
DELAY_MAX_MS: Final = 10_000


def count_failures(failures: int, lived_ms: float) -> int:
    """Return how many starts in a row did not last, after another that ran for `lived_ms`."""
    return 0 if lived_ms >= LIVED_MS else failures + 1


def restart_delay_ms(failures: int) -> int:
    """Return how long the next start waits after so many that did not last: not at all, then ever longer."""
    return 0 if not failures else min(DELAY_MAX_MS, DELAY_MIN_MS * 2 ** min(failures - 1, 20))
