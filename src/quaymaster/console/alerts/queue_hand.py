"""Notifications to queues, which front ends fetch, send and settle.

offered ──taken by a front end, for LEASE_MS──▶ settled: delivered, failed, retry
   └──── not taken, or not settled in time ───▶ retry
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from itertools import count, islice
from typing import Final

from quaymaster.protocol.rpc.alert_calls import (
    LEASE_MS,
    TAKEN_MAX,
    QueueNotification,
    SettledNotification,
)
from quaymaster.protocol.webhooks.attempts import Outcome

OFFERED_MAX: Final = 10_000


class QueueHand:
    """Holds what is to be sent to queues until a front end has sent it."""

    def __init__(self, *, lease_s: float = LEASE_MS / 1_000) -> None:
        self._lease_s = lease_s
        self._tickets = count(1)
        self._offered: OrderedDict[int, QueueNotification] = OrderedDict()
        self._settled: dict[int, asyncio.Future[Outcome]] = {}
        self._more = asyncio.Event()

    async def send(
        self, account_id: str, queue_arn: str, body: str, transition_id: str, alert_arn: str
    ) -> Outcome:
        """Have a front end send a message; returns what came of it, within twice the lease."""
        if len(self._settled) >= OFFERED_MAX:
            return "retry"
        ticket = next(self._tickets)
        self._offered[ticket] = QueueNotification(
            ticket, account_id, queue_arn, body, transition_id, alert_arn
        )
        settled = self._settled[ticket] = asyncio.get_running_loop().create_future()
        self._more.set()
        try:
            async with asyncio.timeout(2 * self._lease_s):
                outcome: Outcome = await settled
                return outcome
        except TimeoutError:
            return "retry"
        finally:
            self._offered.pop(ticket, None)
            del self._settled[ticket]

    async def take(self, wait_s: float) -> list[QueueNotification]:
        """Return some that were not taken yet; waits for the first."""
        try:
            async with asyncio.timeout(wait_s):
                while not self._offered:
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            return []
        taken = list(islice(self._offered.values(), TAKEN_MAX))
        for one in taken:
            del self._offered[one.ticket]
        return taken

    def settle(self, settled: list[SettledNotification]) -> None:
        """Take what came of some. One that is not waited for any more will be sent again."""
        for one in settled:
            waiting = self._settled.get(one.ticket)
            if waiting is not None and not waiting.done():
                waiting.set_result(one.outcome)
