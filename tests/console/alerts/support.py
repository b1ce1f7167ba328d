"""Alerts of consoles over a store in memory, with a past and a clock that the test owns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from harness.waiting import PATIENCE_S

from quaymaster.console.alerts.alert_book import AlertBook
from quaymaster.console.alerts.alert_rows import AlertRows
from quaymaster.console.alerts.series import PointsAsked
from quaymaster.coordination.interface import Compare, Put
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.alerts.alerts import Destination
from quaymaster.core.values.errors import ResourceNotFound

ACCOUNT = "000000000000"
SHOP = "111122223333"
REGION = "us-east-1"
KEY = bytes(range(32))
START_MS = 1_700_000_040_000


def hook_arn(name: str = "hook", account_id: str = ACCOUNT) -> str:
    """Return the ARN of a destination."""
    return f"arn:aws:sns:{REGION}:{account_id}:{name}"


class NoMails:
    """Notes the confirmations that it is asked to send."""

    def __init__(self) -> None:
        self.sent: list[Destination] = []
        self.why_not = ""

    async def send_confirmation(self, destination: Destination) -> None:
        """See `ConfirmationMails`."""
        self.sent.append(destination)


class PlayedSeries:
    """A past that the test writes: values of each queue, the newest last."""

    def __init__(self) -> None:
        self.end_s = START_MS // 60_000 * 60
        self.values: dict[str, list[float | None]] = {}
        self.dead: list[str] = []
        self.asked: list[PointsAsked] = []
        self.fails: Exception | None = None

    def readable_end_s(self) -> int:
        """See `AlertSeries`."""
        return self.end_s

    def accounts(self) -> Sequence[str]:
        """See `AlertSeries`."""
        return [ACCOUNT]

    def queues(self, account_id: str) -> Sequence[str]:
        """See `AlertSeries`."""
        return list(self.values)

    def dead_letter_queues(self, account_id: str) -> Sequence[str]:
        """See `AlertSeries`."""
        return self.dead

    async def points(self, asked: Sequence[PointsAsked]) -> Sequence[Sequence[float | None]]:
        """See `AlertSeries`."""
        self.asked += asked
        if self.fails is not None:
            raise self.fails
        return [([None] * one.count + self.values.get(one.queue, []))[-one.count :] for one in asked]

    def pass_minute(self, **values: float | None) -> None:
        """Add a minute with these values."""
        self.end_s += 60
        for queue, value in values.items():
            self.values.setdefault(queue, []).append(value)


class AlertWorld:
    """The store that consoles share, and the clock."""

    def __init__(self) -> None:
        self.store = MemoryCoordination()
        self.now_ms = START_MS
        self.mails = NoMails()

    async def start(self) -> None:
        """Make the accounts."""
        await self.store.transaction(
            [], [Put(f"/accounts/{account}", b"there") for account in (ACCOUNT, SHOP)]
        )

    async def condition(self, account_id: str) -> Compare:
        """Return the condition that an account stays as it is."""
        row = await self.store.get(f"/accounts/{account_id}")
        if row is None or row.value != b"there":
            raise ResourceNotFound(f"The account {account_id} does not exist.")
        return Compare(row.key, row.revision)

    @asynccontextmanager
    async def book(self, **options: Any) -> AsyncIterator[AlertBook]:
        """Start a console's book."""
        rows = AlertRows(self.store)
        await rows.start()
        defaults: dict[str, Any] = {
            "account_condition": self.condition,
            "mails": self.mails,
            "key": KEY,
            "now_ms": lambda: self.now_ms,
        }
        try:
            yield AlertBook(rows, **{**defaults, **options})
        finally:
            await rows.close()


def run_alerts(scenario: Callable[[AlertWorld], Awaitable[None]]) -> None:
    """Run a scenario, within the limit of all tests."""

    async def main() -> None:
        world = AlertWorld()
        await world.start()
        async with asyncio.timeout(PATIENCE_S):
            await scenario(world)

    asyncio.run(main())


async def until(question: Callable[[], object]) -> None:
    """Return when the answer is truthy."""
    async with asyncio.timeout(PATIENCE_S):
        while not question():  # noqa: ASYNC110 -- a test's question is any code
            await asyncio.sleep(0.01)
