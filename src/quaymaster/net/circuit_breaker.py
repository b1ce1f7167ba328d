"""Whether a peer that answers nothing should be asked at all: the decision, without clock and loop.

    closed ──TIMEOUTS_MAX in a row, nothing answered between──▶ open ──after a while──▶ half open: one may try
      ▲                                                          ▲                         │
      └──────────────────────── any answer ──────────────────────┴──── no answer in time ──┘
                                                                       the while doubles

Only silence counts. An error is an answer, and a connection that cannot be made fails at once anyway.
"""

from __future__ import annotations

from typing import Final

TIMEOUTS_MAX: Final = 5
OPEN_MIN_MS: Final = 1_000
OPEN_MAX_MS: Final = 15_000


class CircuitBreaker:
    """Guards one peer. Times are milliseconds of any clock that does not jump."""

    __slots__ = ("_is_trying", "_open_ms", "_retry_at_ms", "is_open", "timeouts")

    def __init__(self) -> None:
        self.is_open = False
        self._is_trying = False
        self.timeouts = 0
        """In a row, with no answer between."""
        self._open_ms = OPEN_MIN_MS
        self._retry_at_ms = 0.0

    def allows(self, now_ms: float) -> bool:
        """Tell whether the peer may be asked; while open, the one who may try is told so once."""
        if not self.is_open:
            return True
        if now_ms < self._retry_at_ms:
            return False
        # Should the trial end without a word, there is another later.
        self._retry_at_ms = now_ms + self._open_ms
        self._is_trying = True
        return True

    def on_answer(self) -> bool:
        """Note an answer; true when that closed it."""
        self.timeouts = 0
        if not self.is_open:
            return False
        self.is_open = False
        self._open_ms = OPEN_MIN_MS
        return True

    def on_timeout(self, now_ms: float) -> bool:
        """Note that no answer came in time; true when that opened it."""
        self.timeouts += 1
        if self.is_open:
            # Of those asked before it was opened, nothing new is learned.
            if self._is_trying:
                self._is_trying = False
                self._open_ms = min(2 * self._open_ms, OPEN_MAX_MS)
                self._retry_at_ms = now_ms + self._open_ms
        elif self.timeouts >= TIMEOUTS_MAX:
            self.is_open = True
            self._is_trying = False
            self._retry_at_ms = now_ms + self._open_ms
            return True
        return False
