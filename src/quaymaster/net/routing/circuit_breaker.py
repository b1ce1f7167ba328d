"""Whether a peer that answers nothing should be asked at all: the decision, without clock and loop.

    closed ──TIMEOUTS_MAX in a row, nothing answered between──▶ open ──after a while──▶ half open: one may try
      ▲                                                          ▲                         │
      └──────────────────────── any answer ──────────────────────┴──── no answer in time ──┘

The while is a second, and stays one: a peer that was silent for an hour is asked within a second of its return.

Only silence counts. An error is an answer, and a connection that cannot be made fails at once anyway.
"""

from __future__ import annotations

from typing import Final

TIMEOUTS_MAX: Final = 5
OPEN_MS: Final = 1_000


class CircuitBreaker:
    """Guards one peer. Times are milliseconds of any clock that does not jump."""

    __slots__ = ("_retry_at_ms", "is_open", "timeouts")

    def __init__(self) -> None:
        self.is_open = False
        self.timeouts = 0
        """In a row, with no answer between."""
        self._retry_at_ms = 0.0

    def allows(self, now_ms: float) -> bool:
        """Tell whether the peer may be asked; while open, the one who may try is told so once."""
        if not self.is_open:
            return True
        if now_ms < self._retry_at_ms:
            return False
        # Should the trial end without a word, there is another later.
        self._retry_at_ms = now_ms + OPEN_MS
        return True

    def on_answer(self) -> bool:
        """Note an answer; true when that closed it."""
        self.timeouts = 0
        if not self.is_open:
            return False
        self.is_open = False
        return True

    def on_timeout(self, now_ms: float) -> bool:
        """Note that no answer came in time; true when that opened it."""
        self.timeouts += 1
        if self.is_open or self.timeouts < TIMEOUTS_MAX:
            return False
        self.is_open = True
        self._retry_at_ms = now_ms + OPEN_MS
        return True
