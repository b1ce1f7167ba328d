"""One of several managers acts: it holds a key bound to a lease; the others stand by and look.

    standing by ──key absent, written with a lease──▶ acting ──lease not renewed in time, or resigned──▶ standing by

Two may act at the same time, when a clock or the store errs. What they do are compare-and-swaps, so that does no
harm; the lease only spares them each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from quaymaster.coordination.interface import (
    ABSENT,
    Coordination,
    CoordinationUnavailable,
    LeaseExpired,
    OutcomeUnknown,
    RevisionMismatch,
)
from quaymaster.core.values.errors import NotNow
from quaymaster.monitoring.logs import log_event

LEASE_TTL_MS: Final = 2_000
"""The shortest that an etcd with its usual timings keeps: so long nobody acts when the acting one is killed."""

log = logging.getLogger(__name__)


class Leadership:
    """A claim to act, and whether it holds. `run` is a task of the owner."""

    def __init__(
        self,
        coordination: Coordination,
        key: str,
        name: str,
        *,
        now_ms: Callable[[], int],
        ttl_ms: int = LEASE_TTL_MS,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._coordination = coordination
        self._key = key
        self._name = name
        self._now_ms = now_ms
        self._ttl_ms = ttl_ms
        self._on_change = on_change
        self._lease_id = 0
        self._until_ms = 0
        self._rest_until_ms = 0
        self._was_held = False
        self.holder: str | None = None
        """Who acts, as far as was read."""
        self.changes = 0
        """How often this one began to act."""

    @property
    def is_held(self) -> bool:
        """Whether this one acts. Counted from before the renewal was asked for."""
        return self._now_ms() < self._until_ms

    async def run(self) -> None:
        """Try to hold the key, for ever."""
        while True:
            try:
                async with asyncio.timeout(self._ttl_ms / 1000):
                    await self._step()
            except LeaseExpired:
                self._lease_id = 0
                self._until_ms = 0
            except (RevisionMismatch, OutcomeUnknown, CoordinationUnavailable, NotNow, TimeoutError):
                pass  # looked at again in a moment; until then, what was held ends by its time
            self._tell()
            await asyncio.sleep(self._ttl_ms / 4000)

    async def resign(self, rest_ms: int) -> None:
        """Act no longer, and do not try to for a while, so that another one can."""
        self._rest_until_ms = self._now_ms() + rest_ms
        await self.close()
        self._tell()

    def end_rest(self) -> None:
        """Try again from now on."""
        self._rest_until_ms = 0

    async def close(self) -> None:
        """Give the key back, if the store can be reached."""
        lease_id, self._lease_id = self._lease_id, 0
        self._until_ms = 0
        if lease_id:
            try:
                async with asyncio.timeout(self._ttl_ms / 1000):
                    await self._coordination.revoke_lease(lease_id)
            except (NotNow, TimeoutError):
                pass  # it ends by itself

    async def _step(self) -> None:
        asked_ms = self._now_ms()
        if asked_ms < self._rest_until_ms:
            return
        found = await self._coordination.get(self._key)
        self.holder = found.value.decode() if found is not None else None
        if self._lease_id and self.holder == self._name:
            await self._coordination.keep_alive(self._lease_id)
        elif self.holder is None or self.holder == self._name:
            # Under the own name: from before a restart, or an answer that was lost.
            self._lease_id = await self._coordination.grant_lease(self._ttl_ms)
            await self._coordination.compare_and_swap(
                self._key,
                found.revision if found is not None else ABSENT,
                self._name.encode(),
                lease_id=self._lease_id,
            )
            self.holder = self._name
        else:
            self._lease_id = 0
            self._until_ms = 0
            return
        if asked_ms >= self._rest_until_ms:
            self._until_ms = asked_ms + self._ttl_ms

    def _tell(self) -> None:
        is_held = self.is_held
        if is_held != self._was_held:
            self._was_held = is_held
            self.changes += is_held
            event = "manager began to act" if is_held else "manager stands by"
            log_event(log, logging.INFO, event, manager=self._name, acting=self.holder)
            self._on_change()
