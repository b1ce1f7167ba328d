"""The state of a cell for pages: who is there, who leads, what processes use.

store ─▶ rows of processes, leaders ─┐
metrics of the processes ────────────┴▶ CellNow

A server is a cell of one: its journals tell which epochs they are of, and its metrics which workers it has.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from quaymaster.broker.replica.clock import wall_ms
from quaymaster.console.exchange import APIPlace
from quaymaster.console.process_monitor import ProcessMonitor, ProcessName
from quaymaster.console.queue_monitor import QueueMonitor
from quaymaster.console.site import CellDecision, CellFollower, CellJournal, CellNow, CellProcess, Chart
from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.presence import PresenceRow, list_alive
from quaymaster.core.cell.leader_table import Leader, LeaderTable
from quaymaster.core.monitoring.process_metrics import SAMPLE_MS
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.unreadable import UNREADABLE
from quaymaster.node.cell.transport import BROKER_ROLE, FRONT_END_ROLE, MANAGER_ROLE
from quaymaster.settings import parse_endpoint

LOOK_S: Final = 5.0
SERVER: Final = ProcessName("server", "server")
GONE_MS: Final = 4 * SAMPLE_MS
"""A worker that a server has told nothing of for so long is none any more."""


class CellView(Protocol):
    """What pages see of a cell. `processes` is to run as long as they are served."""

    @property
    def processes(self) -> ProcessMonitor: ...

    def now(self) -> CellNow: ...


class CellState:
    """The state of a cell: `look_for_ever` is to run."""

    def __init__(
        self, store: Coordination, table: LeaderTable, name: str, zone: str, *, is_one_host: bool = False
    ) -> None:
        """`is_one_host`: all processes are on this one's, and its loopback addresses are theirs."""
        self._store = store
        self._table = table
        self._name = name
        self._zone = zone
        self._is_one_host = is_one_host
        self._alive: list[PresenceRow] = []
        self._at_ms: int | None = None
        self.on_front_end: Callable[[PresenceRow], None] = lambda row: None
        """Called with a front end that is there, at each look."""
        self.processes = ProcessMonitor(self._places, now_ms=wall_ms)
        self.decisions: Callable[[], Sequence[CellDecision]] = tuple
        """What managers decided, the newest first."""

    async def look_for_ever(self) -> None:
        """Look every few seconds who is there."""
        while True:
            with contextlib.suppress(NotNow, *UNREADABLE):
                self._alive = await list_alive(self._store)
                self._at_ms = wall_ms()
                self._tell_front_end()
            await asyncio.sleep(LOOK_S)

    def _tell_front_end(self) -> None:
        found = [row for row in self._alive if row.role == FRONT_END_ROLE and row.address]
        if found:
            # One of its zone first, and the same as long as it is there.
            self.on_front_end(min(found, key=lambda row: (row.zone != self._zone, row.node)))

    def _places(self) -> Mapping[ProcessName, APIPlace]:
        return {
            ProcessName(row.role, row.node): APIPlace(f"http://{row.admin}")
            for row in self._alive
            # Programs of before did not tell theirs; a loopback address of another host is somebody else's here.
            if row.admin and (self._is_one_host or not parse_endpoint(row.admin).is_loopback)
        }

    def now(self) -> CellNow:
        """Return the state of the cell."""
        self.processes.watch()
        table = self._table
        # While there is an election the table still has the last leader, which may be deposed.
        leaders = {
            journal: None if table.is_electing(journal) else table.leader_of(journal)
            for journal in table.journals()
        }
        processes = [
            _with_use(
                CellProcess(
                    row.node,
                    row.role,
                    row.zone,
                    True,
                    self._at_ms,
                    None,
                    None,
                    [
                        str(journal)
                        for journal, leader in leaders.items()
                        if leader is not None and row.role == BROKER_ROLE and leader.broker == row.node
                    ],
                ),
                self.processes,
            )
            for row in self._alive
        ]
        journals = [self._journal(journal, leader) for journal, leader in sorted(leaders.items())]
        return CellNow(self._name, processes, journals, self.decisions())

    def _journal(self, journal: int, leader: Leader | None) -> CellJournal:
        last = self._table.last_broker_of(journal)
        return CellJournal(
            str(journal),
            None if leader is None else leader.broker,
            self._table.epoch_of(journal),
            self._at_ms,
            [] if last is None else self._followers(journal, last),
            last if leader is None else None,
        )

    def managers(self) -> list[str]:
        """Return the addresses of the managers that are there."""
        return [row.address for row in self._alive if row.role == MANAGER_ROLE and row.address]

    def _followers(self, journal: int, leader: str) -> Sequence[CellFollower]:
        """Return the followers of a journal, with what its leader told of them last."""
        track = self.processes.track(ProcessName(BROKER_ROLE, leader))
        lags = {} if track is None else track.lags.get(str(journal), {})
        names = sorted(name for name in self._table.brokers_of(journal) if name != leader)
        return [CellFollower(name, lags.get(name)) for name in names]


class ServerState:
    """The state of a server. `admin`: where its metrics are."""

    def __init__(self, name: str, monitor: QueueMonitor, admin: APIPlace) -> None:
        self._name = name
        self._monitor = monitor
        self.processes = ProcessMonitor(lambda: {SERVER: admin}, now_ms=monitor.now_ms)

    def now(self) -> CellNow:
        """Return the state of the server."""
        self.processes.watch()
        monitor = self._monitor
        seen_ms = monitor.book.seen_ms
        epochs = monitor.epochs()
        newest_ms = max(seen_ms.values(), default=None)
        leads = [str(journal) for journal in sorted(epochs)]
        server = CellProcess(
            SERVER.name, SERVER.role, "", newest_ms is not None, newest_ms, None, None, leads
        )
        journals = [
            CellJournal(str(journal), SERVER.name, epoch, seen_ms.get(journal), [])
            for journal, epoch in sorted(epochs.items())
        ]
        others = [
            CellProcess(name, role, "", True, track.newest.at_ms, None, None, [])
            for role, name in self.processes.names()
            if (track := self.processes.track(ProcessName(role, name))) is not None
            and track.newest is not None
            and (role, name) != SERVER
            and track.newest.at_ms > monitor.now_ms() - GONE_MS
        ]
        processes = [_with_use(one, self.processes) for one in (server, *others)]
        return CellNow(self._name, processes, journals, [])


def charts_of(state: CellView, role: str, name: str) -> Sequence[Chart] | None:
    """Return charts of what a process used; None: it is not known."""
    return state.processes.charts(ProcessName(role, name))


def _with_use(process: CellProcess, monitor: ProcessMonitor) -> CellProcess:
    track = monitor.track(ProcessName(process.role, process.name))
    if track is None or track.newest is None:
        return process
    use = track.newest
    return process._replace(
        cpu=use.cpu,
        memory=use.memory,
        memory_bytes=use.memory_bytes,
        disk=use.disk,
        measured_ms=use.at_ms,
    )
