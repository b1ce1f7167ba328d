"""Brokers without disks or sockets behind a manager's links, over coordination in memory and a clock set by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec

from harness.planned_cell import PlannedCell
from quaymaster.coordination.cell_keys import (
    JOURNALS,
    BrokerRegistration,
    configuration_key,
    decode_configuration,
    encode_configuration,
    encode_registration,
    journal_of,
    registration_key,
)
from quaymaster.coordination.interface import (
    Compare,
    CoordinationUnavailable,
    Event,
    OutcomeUnknown,
    Put,
    RevisionMismatch,
)
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.cell.cell import BrokerReport, JournalSeen, PlacementSettings, broker_of
from quaymaster.core.values.errors import Timeout, Unreachable
from quaymaster.managers.broker_link import BrokerLink
from quaymaster.managers.in_cluster import InClusterManager
from quaymaster.managers.partition_manager import QueueNodes

from .waiting import PATIENCE_S

STEP_MS = 100


class Store(MemoryCoordination):
    """Coordination that can be away, or answer nothing though it did what was asked."""

    is_away = False
    loses_answers = 0

    async def transaction(self, compares, puts=(), deletes=()) -> int:  # type: ignore[no-untyped-def]
        revision = await super().transaction(compares, puts, deletes)
        if self.loses_answers and any(put.key.startswith(JOURNALS) for put in puts):
            self.loses_answers -= 1
            raise OutcomeUnknown
        return revision

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[list[Event]]:
        async for events in super().watch(prefix, after_revision):
            if self.is_away:
                raise CoordinationUnavailable
            yield events

    def change_while_away(self, puts: Sequence[Put], deletes: Sequence[str]) -> None:
        """Let somebody who reaches the store change it; whoever watches finds that it does not."""
        assert self.is_away
        self._apply(puts, deletes)

    def _enter(self) -> None:
        if self.is_away:
            raise CoordinationUnavailable
        super()._enter()


class FakeLink:
    """A manager's link to a broker of the fake cell."""

    def __init__(self, cell: FakeCell, name: str, on_closed: Callable[[], None]) -> None:
        self._cell = cell
        self._name = name
        self.on_closed = on_closed

    async def report(self, timeout_ms: int) -> BrokerReport:
        await self._reach()
        if self._name in self._cell.silent:
            raise Timeout
        host = self._cell.world.hosts[self._name]
        wall_ms = 0 if host.clock_ahead_ms is None else self._cell.now_ms() + host.clock_ahead_ms
        load = self._cell.world.load_of(self._name)
        return msgspec.structs.replace(host.report(), wall_ms=wall_ms, load=load)

    async def prepare(self, journal: int) -> str:
        await self._reach()
        if self._name in self._cell.stubborn:
            raise Timeout
        member = self._cell.world.prepare(self._name, journal)
        await self._cell.after("prepare")
        return member

    async def transfer(self, journal: int, member: str) -> bool:
        await self._reach()
        if self._name in self._cell.stubborn:
            return False
        leader = self._cell.world.configuration(journal).leader
        self._cell.world.set(journal, leader, role="follower", lag={})
        await self._cell.after("transfer")
        return True

    async def drop(self, journal: int, member: str, epoch: int) -> bool:
        await self._reach()
        if self._name in self._cell.stubborn:
            return False
        self._cell.world.hosts[self._name].replicas.pop(journal, None)
        await self._cell.after("drop")
        return True

    async def close(self) -> None:
        pass

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        host = self._cell.world.hosts.get(self._name)
        if host is None or not host.is_alive or self._name in self._cell.world.unseen:
            raise Unreachable


class FakeCell:
    """Brokers, coordination, a clock, and managers by name."""

    def __init__(self, *names: str, replicas: int = 3, settings: PlacementSettings | None = None) -> None:
        self.settings = settings or PlacementSettings(replicas=replicas)
        self.world = PlannedCell(settings=self.settings)
        self.store = Store()
        self.managers: dict[str, InClusterManager] = {}
        self.links: list[FakeLink] = []
        self.silent: set[str] = set()
        """Brokers that answer no report."""
        self.stubborn: set[str] = set()
        """Brokers that do nothing they are asked to."""
        self.blind: set[str] = set()
        """Brokers that never lead what they are appointed for, and do not tell why."""
        self.is_deaf = False
        """Whether the brokers do not follow coordination."""
        self.kills_after: str | None = None
        """What a broker does next for the acting manager before that one dies, and does not hear of it."""
        self.stops_after: str | None = None
        """What a broker does next for the acting manager before that one is stopped for longer than its turn lasts."""
        self.queue_nodes: QueueNodes | None = None
        """Whom managers ask for changes of partitions."""
        self.failures: list[Exception] = []
        self._names = names

    def now_ms(self) -> int:
        return self.world.now_ms

    @asynccontextmanager
    async def running(self, *managers: str) -> AsyncIterator[FakeCell]:
        """Run brokers and managers; the test fails when one of them did."""
        for name in self._names:
            await self.join(name)
        brokers = asyncio.create_task(self._live())
        for name in managers or ("m1",):
            self.start_manager(name)
        try:
            yield self
        finally:
            for manager in self.managers.values():
                await manager.close()
            brokers.cancel()
            with suppress(asyncio.CancelledError):
                await brokers
            await self.store.close()
        assert self.failures == []

    def start_manager(self, name: str) -> InClusterManager:
        manager = InClusterManager(
            name,
            self.store,
            self._connect,
            settings=self.settings,
            queue_nodes=self.queue_nodes,
            now_ms=self.now_ms,
            poll_ms=5,
            lease_ttl_ms=1_000,
            on_failure=self.failures.append,
        )
        self.managers[name] = manager
        manager.start()
        return manager

    async def join(self, name: str) -> None:
        """Start and register a broker."""
        self.world.join(name)
        registration = BrokerRegistration(name, name, f"{name}:9340")
        await self.store.transaction([], [Put(registration_key(name), encode_registration(registration))])

    def kill(self, name: str) -> None:
        """Kill a broker: its connections end."""
        self.world.kill(name)
        for link in self.links:
            link.on_closed()

    def kill_manager(self, name: str) -> None:
        """End a manager as kill -9 does: nothing is finished, and its lease goes on for its time."""
        manager = self.managers.pop(name)
        for task in (*manager._tasks, *(watch._task for watch in manager._watches)):
            assert task is not None
            task.cancel()

    async def after(self, call: str) -> None:
        """Kill, or stop for a while, the acting manager if this is the call to do it after."""
        if self.stops_after == call:
            self.stops_after = None
            self.managers[self.acting()[0]].leadership._until_ms = 0
        if self.kills_after == call:
            self.kills_after = None
            self.kill_manager(self.acting()[0])
            await asyncio.Event().wait()

    async def pass_ms(self, ms: int, *, real_s: float = 0.004) -> None:
        """Let time pass for brokers and managers."""
        for _ in range(0, ms, STEP_MS):
            self.world.now_ms += STEP_MS
            await asyncio.sleep(real_s)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Let time pass, slowly, until something holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self.world.now_ms += 10
                await asyncio.sleep(0.002)

    async def until_led(self, *names: str) -> None:
        """Wait until these brokers lead all journals, each at least one."""
        await self.until(
            lambda: (
                bool(self.world.journals)
                and len(self.world.leaders()) == len(self.world.journals)
                and set(self.world.leaders().values()) == set(names)
            )
        )

    def acting(self) -> list[str]:
        """Return the managers that act."""
        return [name for name, manager in self.managers.items() if manager.leadership.is_held]

    def _connect(self, registration: BrokerRegistration, on_closed: Callable[[], None]) -> BrokerLink:
        link = FakeLink(self, registration.name, on_closed)
        self.links.append(link)
        return link

    async def _live(self) -> None:
        """Let the brokers follow coordination: elections, activations, replication."""
        while True:
            with suppress(CoordinationUnavailable, RevisionMismatch):
                items, _ = await self.store.list_all(JOURNALS)
                for item in items if not self.is_deaf else ():
                    number = journal_of(item.key)
                    configuration = decode_configuration(item.value)
                    self.world.journals[number] = JournalSeen(configuration, item.revision, 0, 0)
                    if broker_of(configuration.leader) not in self.blind:
                        self.world.elect(number)
                    activated = self.world.configuration(number)
                    if activated != configuration:
                        await MemoryCoordination.transaction(
                            self.store,
                            [Compare(item.key, item.revision)],
                            [Put(configuration_key(number), encode_configuration(activated))],
                        )
            for number in self.world.journals:
                self.world.replicate(number)
            await asyncio.sleep(0.002)
