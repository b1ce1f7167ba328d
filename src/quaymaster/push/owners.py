"""Which of several pushers calls for a queue: of those that are there, the one with the highest hash of both.

    alive/push/NODE    rows bound to leases of 2 s (`coordination/presence`)

Pushers may disagree for a moment: owning saves work and guards nothing, for receipts decide. A pusher that could not
renew its lease for RENEWED_MS may be gone for the others, and receives nothing new.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.presence import Presence, alive_key
from quaymaster.coordination.watched_prefix import WatchedPrefix
from quaymaster.core.structures.rendezvous import owner_of

PUSHER_ROLE: Final = "push"
RENEWED_S: Final = 1.5
RELIST_S: Final = 5.0
"""Watches tell of pushers; one that missed something is made good so soon."""


class Owners(Protocol):
    """Says which queues are this pusher's."""

    on_change: Callable[[], None]
    """Hears that pushers came or went."""

    def owns(self, queue_id: int) -> bool:
        """Tell whether this pusher calls for a queue."""
        ...

    def may_receive(self) -> bool:
        """Tell whether the others certainly know of this pusher."""
        ...


class OnlyPusher:
    """`Owners` where there are no others."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = _nothing

    def owns(self, queue_id: int) -> bool:
        """See `Owners`."""
        return True

    def may_receive(self) -> bool:
        """See `Owners`."""
        return True


class LivePushers:
    """`Owners` by the rows of pushers; `presence` is that of this one."""

    def __init__(
        self,
        store: Coordination,
        presence: Presence,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_change: Callable[[], None] = _nothing
        self._presence = presence
        self._clock = clock
        self._name = presence.row.node
        self._live: set[str] = set()
        self._watch = WatchedPrefix(store, alive_key(PUSHER_ROLE), self._on_row, relist_s=RELIST_S)

    async def start(self) -> None:
        """Begin to follow; return when all are known."""
        self._watch.start()
        await self._watch.listed.wait()

    async def close(self) -> None:
        """Stop following."""
        await self._watch.close()

    def owns(self, queue_id: int) -> bool:
        """See `Owners`."""
        return owner_of(f"{queue_id:016x}", self._live) == self._name

    def may_receive(self) -> bool:
        """See `Owners`."""
        return self._clock() - self._presence.renewed_s < RENEWED_S

    def _on_row(self, key: str, value: bytes | None) -> None:
        name = key.removeprefix(alive_key(PUSHER_ROLE))
        if value is None:
            self._live.discard(name)
        else:
            self._live.add(name)
        self.on_change()


def _nothing() -> None:
    """Nobody hears of changes yet."""
