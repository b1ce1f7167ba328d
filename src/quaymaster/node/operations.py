"""What the admin API can have done by the process it is part of."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from quaymaster.broker.copies.backup import OwnJournalCut, ServerCut, backup
from quaymaster.broker.own_journals import OwnJournals
from quaymaster.core.values.errors import UnsupportedOperation
from quaymaster.monitoring.loop_watch import LoopWatch
from quaymaster.node.journal_status import add_up_journals
from quaymaster.node.node import Node


class ServerOperations:
    """What a server can do, which keeps data itself."""

    def __init__(
        self, node: Node, own: OwnJournals, copy_metadata: Callable[[Path], Awaitable[object]]
    ) -> None:
        self._node = node
        self._own = own
        self._copy_metadata = copy_metadata

    async def status(self) -> Mapping[str, Any]:
        """Return figures of journals, cache and disk, ready for JSON."""
        return add_up_journals(await self._own.status())

    async def pauses(self) -> list[Mapping[str, float]]:
        """Return the longest pauses of this process's event loop."""
        return show_pauses(self._node.watch)

    async def accept_clock(self) -> None:
        """Let messages expire again although the clock jumped: an operator says that it is right."""
        self._own.accept_clock()

    async def backup(self, destination: Path, progress: Callable[[int, int], None]) -> Mapping[str, Any]:
        """Write a consistent copy of all data but the master keys; see `broker.backup`.

        What is in etcd is copied as well, so that a backup is whole: restored, it needs no etcd.
        """
        own = self._own
        journals = {number: OwnJournalCut(one, own.directory) for number, one in own.journals.items()}
        cut = ServerCut(journals, self._copy_metadata, self._node.data)
        made = await backup(cut, destination, progress)
        return {**made, "coordination": self._node.settings.coordination}


class FrontEndOperations:
    """What a front end of a cell can do about data: look."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def status(self) -> Mapping[str, Any]:
        """Return who this is: journals are shown by `quaymaster cell status`."""
        return {"role": "frontend", "node": self._node.settings.node_name, "cell": self._node.settings.cell}

    async def pauses(self) -> list[Mapping[str, float]]:
        """Return the longest pauses of this process's event loop."""
        return show_pauses(self._node.watch)

    async def accept_clock(self) -> None:
        """Refuse: clocks are the brokers'."""
        raise UnsupportedOperation("The clock is that of each broker; a front end has none that counts.")

    async def backup(self, destination: Path, progress: Callable[[int, int], None]) -> Mapping[str, Any]:
        """Refuse: a front end has no data."""
        raise UnsupportedOperation("A front end keeps no messages: `quaymaster cell backup` copies the cell.")


def show_pauses(watch: LoopWatch) -> list[Mapping[str, float]]:
    """Return the longest pause of the event loop in each second of the last minute that had one."""
    now_s = time.monotonic()
    return [
        {
            "ago_s": round(now_s - pause.at_s, 3),
            "own_ms": round(pause.own_s * 1000, 1),
            "wall_ms": round(pause.wall_s * 1000, 1),
            "cpu_ms": round(pause.cpu_s * 1000, 1),
        }
        for pause in watch.longest()
    ]
