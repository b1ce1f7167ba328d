"""When a client was told to come back, and whether it came before that."""

from __future__ import annotations

import time


class ReturnTime:
    """Of one connection. Times are ms of `time.monotonic`."""

    __slots__ = ("_return_ms", "_told_ms")

    def __init__(self) -> None:
        self._told_ms = self._return_ms = 0.0

    def tell(self, received_ms: float, wait_ms: int) -> bool:
        """Note that the client is told to wait; return whether a request came after it was told so, and too early."""
        is_early = self._told_ms < received_ms < self._return_ms
        self._told_ms = time.monotonic() * 1000
        self._return_ms = self._told_ms + wait_ms
        return is_early
