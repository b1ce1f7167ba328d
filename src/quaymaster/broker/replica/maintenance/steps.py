"""Stretches of background work on the event loop."""

from __future__ import annotations

import asyncio
import time

STEP_S = 0.004
"""How long a background step may hold the event loop."""


class Step:
    """A stretch of work on the event loop; others have their turn when it is over."""

    def __init__(self) -> None:
        self._until = time.perf_counter() + STEP_S

    def is_over(self) -> bool:
        """Whether it is time to pause."""
        return time.perf_counter() > self._until

    async def pause(self) -> None:
        """Give others their turn, and begin the next step."""
        await asyncio.sleep(0)
        self._until = time.perf_counter() + STEP_S
