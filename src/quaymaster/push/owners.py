"""Which of several pushers calls for a queue: of those that are there, the one with the highest hash of both.

    alive/push/NODE    rows bound to leases of 2 s (`coordination/presence`)

Pushers may disagree for a moment: owning saves work and guards nothing, for receipts decide. A pusher that could not
renew its lease for RENEWED_MS may be gone for the others, and receives nothing new.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from quaymaster.coordination.interface import Coordination, LeaseExpired
from quaymaster.coordination.presence import Presence, alive_key
from quaymaster.coordination.watched_prefix import WatchedPrefix
from quaymaster.core.structures.rendezvous import owner_of
from quaymaster.core.values.errors import NotNow
from quaymaster.monitoring.supervision import supervise

PUSHER_ROLE: Final = "push"
"""The same as the role of its process in a cell (`node/cell/transport`)."""
RENEWED_S: Final = 1.5
RETRY_S: Final = 0.25
RELIST_S: Final = 5.0
"""Watches tell of pushers; one that missed something is made good so soon."""


class Owners(Protocol):
    """Says which queues are this pusher's."""

    on_change: Callable[[], None]
    """Hears that pushers came or went."""

    def need(self) -> None:
        """There is a queue to be owned: from now on others must know of this pusher."""
        ...

    def owns(self, queue_id: int) -> bool:
        """Tell whether this pusher calls for a queue."""
        ...

    async def leave(self) -> None:
        """Let others have the queues, as far as the store can be reached: this pusher receives nothing any more."""
        ...

    def may_receive(self) -> bool:
        """Tell whether the others certainly know of this pusher."""
        ...


class OnlyPusher:
    """`Owners` where there are no others."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = _nothing

    def need(self) -> None:
        """See `Owners`."""

    def owns(self, queue_id: int) -> bool:
        """See `Owners`."""
        return True

    async def leave(self) -> None:
        """See `Owners`."""

    def may_receive(self) -> bool:
        """See `Owners`."""
        return True


class LivePushers:
    """`Owners` by the rows of pushers, which are followed from `need` to `close`.

    `presence` is that of this one. With `keeps_presence` its row is written when it is needed: a server without queues
    to push renews no lease. Others have written it before.
    """

    def __init__(
        self,
        store: Coordination,
        presence: Presence,
        *,
        keeps_presence: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_change: Callable[[], None] = _nothing
        self._presence = presence
        self._keeps_presence = keeps_presence
        self._clock = clock
        self._name = presence.row.node
        self._live: set[str] = set()
        self._watch = WatchedPrefix(store, alive_key(PUSHER_ROLE), self._on_row, relist_s=RELIST_S)
        self._appearing: asyncio.Task[None] | None = None

    def need(self) -> None:
        """See `Owners`."""
        if self._appearing is None:
            self._appearing = supervise(asyncio.create_task(self._appear(), name="pusher appears"))

    async def close(self) -> None:
        """Follow no more; others hear that this one is gone."""
        if self._appearing is None:
            return
        self._appearing.cancel()
        await asyncio.gather(self._appearing, return_exceptions=True)
        await self._watch.close()
        await self.leave()

    async def leave(self) -> None:
        """See `Owners`."""
        await self._presence.close()

    def owns(self, queue_id: int) -> bool:
        """See `Owners`."""
        return owner_of(f"{queue_id:016x}", self._live) == self._name

    def may_receive(self) -> bool:
        """See `Owners`."""
        return self._clock() - self._presence.renewed_s < RENEWED_S

    async def _appear(self) -> None:
        self._watch.start()
        while self._keeps_presence:
            try:
                await self._presence.register()
            except (NotNow, LeaseExpired):
                await asyncio.sleep(RETRY_S)
            else:
                self._presence.keep()
                return

    def _on_row(self, key: str, value: bytes | None) -> None:
        name = key.removeprefix(alive_key(PUSHER_ROLE))
        if value is None:
            self._live.discard(name)
        else:
            self._live.add(name)
        self.on_change()


def _nothing() -> None:
    """Nobody hears of changes yet."""
