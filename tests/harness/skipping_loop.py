"""An event loop whose clock does not wait: when nothing is to be done, it is the time of the next timer.

For code that talks to nothing outside its process. Runs are quick and, with `random` seeded, the same each time.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _SkippingSelector(selectors.DefaultSelector):
    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is not None:
            self.skipped_s += timeout
        elif not ready:
            return super().select(timeout)  # for a thread
        return ready


class SkippingLoop(asyncio.SelectorEventLoop):
    """`time()` begins at 0."""

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.skipped_s
