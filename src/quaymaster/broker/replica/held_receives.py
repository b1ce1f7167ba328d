"""Receives that found nothing but messages of groups which older partitions may have: none is answered empty untold.

    receive finds nothing, groups are held ──▶ wants a look ──all parents have answered──▶ decided again
                                                          └── not in time: not now, never "empty"

A receive that waits for messages anyway stays in its line (`waiters`), and is answered so only if a look is not done by
the end. Which groups are held, and what a look is: `core/structures/orders/held_groups`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from quaymaster.core.partition.partition import Partition
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.structures.orders.held_groups import HeldGroups, Look
from quaymaster.core.values.errors import NotNow

LOOK_S: Final = 1.0
"""So long a receive waits for a look: many times what one takes, and well within the patience of clients."""


class Looking(Protocol):
    """A receive or watch."""

    look: Look | None
    is_done: bool


Token = TypeVar("Token", bound=Looking)


class HeldReceives(Generic[Token]):
    """Those of one journal that wait for a look only. Use within one event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        try_again: Callable[[Token], None],
        refuse: Callable[[Token, NotNow], None],
        ask: Callable[[Partition], None],
    ) -> None:
        """`ask`: groups of a partition are to be asked about."""
        self._loop = loop
        self._try_again = try_again
        self._refuse = refuse
        self._ask = ask
        self._waiting: dict[Partition, dict[Token, asyncio.TimerHandle]] = {}

    def is_known(self, token: Token, partition: Partition) -> bool:
        """Return whether what a partition holds was looked at since this was called first: it has nothing to give."""
        holds = _holds_of(partition)
        if holds is None:
            return True
        if token.look is None or token.look.holds is not holds:
            token.look = Look(holds, holds.want_look())
        is_known = token.look.is_known
        if holds.is_waiting:
            self._ask(partition)
        return is_known

    def hold(self, token: Token, partition: Partition, until_s: float) -> None:
        """Keep a receive until there is more to tell, and no longer than until then; loop time."""
        if self._loop.time() >= until_s:
            self._refuse(token, not_known())
            return
        timer = self._loop.call_at(until_s, self._expire, token, partition)
        self._waiting.setdefault(partition, {})[token] = timer

    def look_again(self, partition: Partition, *, is_any_free: bool) -> None:
        """Parents have answered: have those decided again that may get something now, or are to hear of nothing."""
        waiting = self._waiting.get(partition, {})
        for token in [token for token in waiting if is_any_free or token.look is None or token.look.is_known]:
            self._leave(token, partition)
            if not token.is_done:
                self._try_again(token)

    def send_away(self, error: NotNow) -> None:
        """Nothing is decided here any more."""
        waiting, self._waiting = self._waiting, {}
        for tokens in waiting.values():
            for token, timer in tokens.items():
                timer.cancel()
                if not token.is_done:
                    self._refuse(token, error)

    def _expire(self, token: Token, partition: Partition) -> None:
        self._leave(token, partition)
        if not token.is_done:
            self._refuse(token, not_known())

    def _leave(self, token: Token, partition: Partition) -> None:
        waiting = self._waiting[partition]
        waiting.pop(token).cancel()
        if not waiting:
            del self._waiting[partition]


def not_known() -> NotNow:
    """Return what is answered instead of "nothing" while it is not known which groups older partitions have."""
    return NotNow(
        "Older partitions of the queue have not said yet which message groups they have. Try again."
    )


def _holds_of(partition: Partition) -> HeldGroups | None:
    return partition.order.holds if isinstance(partition.order, FIFOOrder) else None
