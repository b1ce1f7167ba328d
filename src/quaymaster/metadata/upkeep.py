"""Work that is due again and again: what fails for a reason that may pass is tried at the next turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from quaymaster.coordination.interface import RevisionMismatch, StoreUnusable
from quaymaster.core.values.errors import NotNow
from quaymaster.metadata.keys.key_providers import KeysUnusable
from quaymaster.monitoring.supervision import supervise

FAILS: Final = (NotNow, RevisionMismatch, KeysUnusable, StoreUnusable, TimeoutError, OSError)
"""What upkeep may meet, and tries again later: a store or key directory that cannot be used now, others."""

log = logging.getLogger(__name__)


class Upkeep:
    """The tasks of one object. They may be begun again after `close`."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def repeat(
        self, name: str, work: Callable[[], Awaitable[object]], interval_ms: int, *, is_due: bool = True
    ) -> None:
        """Do something in intervals; `is_due`: for the first time at once."""
        turns = self._turns(name, work, interval_ms / 1000, is_due=is_due)
        self._tasks.append(supervise(asyncio.create_task(turns, name=name)))

    async def close(self) -> None:
        """Do nothing more."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _turns(
        self, name: str, work: Callable[[], Awaitable[object]], interval_s: float, *, is_due: bool
    ) -> None:
        is_failing = False
        while True:
            if is_due:
                try:
                    await work()
                    is_failing = False
                except FAILS as error:
                    if not is_failing:
                        log.warning("%s failed error=%s", name, str(error) or "timeout")
                    is_failing = True
            is_due = True
            await asyncio.sleep(interval_s)
