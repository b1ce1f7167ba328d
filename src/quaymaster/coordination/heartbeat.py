"""For how long the store has not answered: asked once a second, for a connection that is cut off looks open.

A watch would tell as well, but late: it may rightly be silent for long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from quaymaster.coordination.interface import Coordination, KeyValue
from quaymaster.core.values.errors import NotNow

INTERVAL_S: Final = 1.0


class Heartbeat:
    """Asks for a key again and again. `run` is a task of the owner."""

    def __init__(
        self,
        store: Coordination,
        key: str,
        *,
        interval_s: float = INTERVAL_S,
        on_found: Callable[[KeyValue | None], None] = lambda found: None,
    ) -> None:
        """Ask for `key`, which need not exist. The store counts as heard when this is made.

        `on_found` hears of each answer.
        """
        self._store = store
        self._key = key
        self._interval_s = interval_s
        self._on_found = on_found
        self._heard_s = time.monotonic()

    @property
    def silent_ms(self) -> int:
        """Since the last question that was answered; up to a second, and the answer's time, when all is well."""
        return int((time.monotonic() - self._heard_s) * 1000)

    async def run(self) -> None:
        """Ask, for ever. Every question ends by the store's own time-out."""
        while True:
            asked_s = time.monotonic()
            with suppress(NotNow):
                found = await self._store.get(self._key)
                self._heard_s = asked_s
                self._on_found(found)
            await asyncio.sleep(self._interval_s)
