"""The state of a cell for pages: who is there, who leads, as the store has it; of a server, as its journals told it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from quaymaster.console.queue_monitor import QueueMonitor
from quaymaster.console.site import CellJournal, CellNow, CellProcess
from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.presence import PresenceRow, list_alive
from quaymaster.core.cell.leader_table import LeaderTable
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.unreadable import UNREADABLE
from quaymaster.monitoring.supervision import supervise

LOOK_S: Final = 5.0


class CellState:
    """Looks every few seconds, from `start` to `close`."""

    def __init__(self, store: Coordination, table: LeaderTable, name: str, zone: str) -> None:
        self._store = store
        self._table = table
        self._name = name
        self._zone = zone
        self._alive: list[PresenceRow] = []
        self._at_ms: int | None = None
        self.on_front_end: Callable[[PresenceRow], None] = lambda row: None
        """Called with a front end that is there, at each look."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look."""
        self._task = supervise(asyncio.create_task(self._look_for_ever(), name="cell-state"))

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look_for_ever(self) -> None:
        while True:
            with contextlib.suppress(NotNow, *UNREADABLE):
                self._alive = await list_alive(self._store)
                self._at_ms = time.time_ns() // 1_000_000
                self._tell_front_end()
            await asyncio.sleep(LOOK_S)

    def _tell_front_end(self) -> None:
        found = [row for row in self._alive if row.role == "frontend" and row.address]
        if found:
            # One of its zone first, and the same as long as it is there.
            self.on_front_end(min(found, key=lambda row: (row.zone != self._zone, row.node)))

    def now(self) -> CellNow:
        """Return the state of the cell."""
        leaders = {journal: self._table.leader_of(journal) for journal in self._table.journals()}
        processes = [
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
                    if leader is not None and row.role == "broker" and leader.broker == row.node
                ],
            )
            for row in self._alive
        ]
        journals = [
            CellJournal(
                str(journal),
                None if leader is None else leader.broker,
                None if leader is None else leader.epoch,
                self._at_ms,
                [],
            )
            for journal, leader in sorted(leaders.items())
        ]
        return CellNow(self._name, processes, journals, [])

    @staticmethod
    def of_server(name: str, monitor: QueueMonitor) -> CellNow:
        """Return the state of a server, which is a cell of one."""
        seen_ms = monitor.book.seen_ms
        epochs = monitor.epochs()
        newest_ms = max(seen_ms.values(), default=None)
        leads = [str(journal) for journal in sorted(epochs)]
        process = CellProcess("server", "server", "", newest_ms is not None, newest_ms, None, None, leads)
        journals = [
            CellJournal(str(journal), "server", epoch, seen_ms.get(journal), [])
            for journal, epoch in sorted(epochs.items())
        ]
        return CellNow(name, [process], journals, [])
