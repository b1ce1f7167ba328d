"""Splits, merges and moves the load's queues while the nemesis does its work.

One change after the other, of queues by chance. A change that is refused, because the queue changes already or nobody
can answer now, is left at that; what came of those that were taken, the cell must finish by itself.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from random import Random
from typing import Any

from harness.waiting import PATIENCE_S, eventually

from quaymaster.cli.shared.client import AdminClient
from quaymaster.cli.shared.connection import ServerConnection
from quaymaster.cli.shared.failures import CommandFailed

from .cell import ADMIN_PORTS, Cell

INTERVAL_S = (0.2, 3.0)
PARTS = (2, 3, 4)
FRONT_ENDS = ("frontend-1", "frontend-2")


class PartitionChanges:
    """Changes the partitions of these queues from `start` to `stop`, on a thread of its own."""

    def __init__(self, cell: Cell, queues: Sequence[str], random: Random) -> None:
        self.made: Counter[str] = Counter()
        """How many changes of each kind were begun."""
        self.refused: Counter[str] = Counter()
        self._cell = cell
        self._queues = list(queues)
        self._random = Random(random.random())
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="partition-changes", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Change nothing more, and wait until no partition is new any more."""
        self._is_ending.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "a change of partitions was never answered"

    def settle(self) -> dict[str, list[dict[str, Any]]]:
        """Return the partitions of each queue, once no change is under way; the cell must be healed."""
        found: dict[str, list[dict[str, Any]]] = {}

        def are_settled() -> bool:
            for queue in self._queues:
                try:
                    with ExitStack() as stack:
                        rows = self._admin(stack, FRONT_ENDS[0]).call("ListPartitions", name=queue)
                except CommandFailed:
                    return False
                found[queue] = rows["partitions"]
                sealed = [row for row in found[queue] if row["state"] == "closing"]
                if any(row["state"] == "new" for row in found[queue]):
                    return False
                if any(row["sealed_for_ms"] is None for row in sealed):
                    return False
            return True

        eventually(are_settled, "the end of all changes of partitions")
        return found

    def _admin(self, stack: ExitStack, front_end: str) -> AdminClient:
        environment = self._cell.environment()
        host = self._cell.hosts.address(self._cell.member(front_end).host)
        connection = ServerConnection(
            "", environment.region, environment.access_key_id, environment.secret_access_key
        )
        return stack.enter_context(AdminClient(connection, f"http://{host}:{ADMIN_PORTS['frontend']}"))

    def _run(self) -> None:
        while not self._is_ending.wait(self._random.uniform(*INTERVAL_S)):
            queue = self._random.choice(self._queues)
            kind = self._random.choices(("SplitQueue", "MergeQueue", "MoveQueue"), (3, 1, 1))[0]
            fields = {"into": self._random.choice(PARTS)} if kind == "SplitQueue" else {}
            front_end = self._random.choice(FRONT_ENDS)
            try:
                with ExitStack() as stack:
                    self._admin(stack, front_end).call(kind, name=queue, **fields)
            except CommandFailed as error:
                self.refused[f"{kind}: {str(error)[:80]}"] += 1
            else:
                self.made[kind] += 1


def tell_changes(changes: PartitionChanges) -> str:
    """Return what was done, for people."""
    made = ", ".join(f"{count} {kind}" for kind, count in sorted(changes.made.items()))
    return f"changes of partitions begun: {made or 'none'}; refused: {sum(changes.refused.values())}"


def wait_for_changes(changes: PartitionChanges, least: int) -> None:
    """Return when so many changes were begun: a slow machine takes longer."""
    deadline = time.monotonic() + PATIENCE_S
    while changes.made.total() < least:
        assert time.monotonic() < deadline, f"{tell_changes(changes)}\n{changes.refused}"
        time.sleep(0.1)
