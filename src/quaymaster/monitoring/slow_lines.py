"""How many lines of a log say that something was slow."""

from __future__ import annotations

from typing import Final

LINES_PER_S_MAX: Final = 10
"""When everything is slow, a line for each request would make it slower still."""


class SlowLines:
    """The lines of one kind; `now_ms` is of any clock, always the same one."""

    __slots__ = ("_left_out", "_lines", "_second")

    def __init__(self) -> None:
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def enter(self, now_ms: float) -> int | None:
        """Return how many were left out since the last line, None to leave out this one."""
        second = int(now_ms // 1000)
        if second != self._second:
            self._second = second
            self._lines = 0
        if self._lines >= LINES_PER_S_MAX:
            self._left_out += 1
            return None
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        return left_out
