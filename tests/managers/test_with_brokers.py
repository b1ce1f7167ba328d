"""The manager and real brokers over loopback: journals, leaders that go, brokers that drain, disks that are lost."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from harness.broker_support import options
from harness.waiting import PATIENCE_S

from quaymaster.broker.cell.broker_service import BrokerService, BrokerServiceOptions
from quaymaster.coordination.cell_keys import BROKERS, registration_key
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.cell.cell import PlacementSettings
from quaymaster.managers.broker_link import rpc_links
from quaymaster.managers.in_cluster import InClusterManager
from quaymaster.protocol.rpc.frames import Hello


class Cell:
    """Brokers by name, and a manager that need not be patient about what is for balance's sake."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.coordination = MemoryCoordination()
        self.brokers: dict[str, BrokerService] = {}
        self.failures: list[Exception] = []
        self.manager = InClusterManager(
            "m1",
            self.coordination,
            rpc_links(Hello(cell="test", role="manager", node="m1")),
            settings=PlacementSettings(settle_ms=500, drop_grace_ms=1_000),
            poll_ms=50,
            on_failure=self.failures.append,
        )

    async def start(self, name: str) -> None:
        """Start a broker over its directory."""
        broker = BrokerService(
            BrokerServiceOptions(
                name, f"zone-{name}", "test", "127.0.0.1", 0, "127.0.0.1:0", options(self.directory / name)
            ),
            self.coordination,
            on_stopped=self.failures.append,
        )
        await broker.start()
        self.brokers[name] = broker

    async def stop(self, name: str) -> None:
        """Stop a broker as SIGTERM does."""
        await self.brokers.pop(name).close()

    def leaders(self) -> list[str]:
        """Return who leads each journal, as the manager sees it; empty while one has no leader."""
        journals = self.manager.status().journals
        leaders = [journal.leader for journal in journals]
        return [] if None in leaders else sorted(leader for leader in leaders if leader is not None)

    def members(self) -> list[set[str]]:
        """Return the brokers of each journal's members."""
        journals = self.manager.status().journals
        return [{member.broker for member in journal.members} for journal in journals]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110 -- it is the brokers that are waited for
                await asyncio.sleep(0.02)

    async def until_led_by(self, *leaders: str) -> None:
        """Wait until the journals are led by these, in the order of their names."""
        await self.until(lambda: self.leaders() == list(leaders))


@asynccontextmanager
async def running(directory: Path, *names: str) -> AsyncIterator[Cell]:
    """Run brokers and their manager, until each of them leads its home journal."""
    cell = Cell(directory)
    for name in names:
        await cell.start(name)
    cell.manager.start()
    try:
        await cell.until_led_by(*names)
        yield cell
    finally:
        await cell.manager.close()
        for name in list(cell.brokers):
            await cell.stop(name)
        await cell.coordination.close()
    assert cell.failures == []


def test_brokers_that_start_lead_a_journal_each(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "a", "b", "c") as cell:
            assert cell.members() == [{"a", "b", "c"}] * 3
            assert cell.manager.status().problems == ()

    asyncio.run(scenario())


def test_journal_of_a_broker_that_stops_is_led_by_another_and_comes_home(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "a", "b", "c") as cell:
            await cell.stop("a")
            await cell.until(lambda: len(cell.leaders()) == 3 and "a" not in cell.leaders())

            await cell.start("a")
            await cell.until_led_by("a", "b", "c")

    asyncio.run(scenario())


def test_broker_that_joins_leads_and_one_that_drains_leaves(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "a", "b", "c") as cell:
            await cell.start("d")
            await cell.until_led_by("a", "b", "c", "d")

            await cell.manager.set_broker_state("b", "draining")
            await cell.until(lambda: all("b" not in members for members in cell.members()))
            await cell.until(lambda: "b" not in [broker.name for broker in cell.manager.status().brokers])

            items, _ = await cell.coordination.list_all(BROKERS)
            assert [item.key for item in items] == [registration_key(name) for name in "acd"]
            assert cell.brokers["b"].journals == {}
            assert [len(members) for members in cell.members()] == [3] * 4
            await cell.until(lambda: len(cell.leaders()) == 4)

    asyncio.run(scenario())


def test_broker_that_comes_back_with_an_empty_disk_is_filled_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "a", "b", "c") as cell:
            old = {journal.host.replica.node for journal in cell.brokers["c"].journals.values()}
            await cell.stop("c")
            shutil.rmtree(tmp_path / "c")

            await cell.start("c")
            await cell.until(
                lambda: len(cell.brokers["c"].journals) == 3 and cell.leaders() == ["a", "b", "c"]
            )

            new = {journal.host.replica.node for journal in cell.brokers["c"].journals.values()}
            assert not new & old
            assert cell.members() == [{"a", "b", "c"}] * 3

    asyncio.run(scenario())
