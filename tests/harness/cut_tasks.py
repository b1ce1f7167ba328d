"""Tasks that are cancelled in the pass that makes them, so that not one line of theirs runs."""

from __future__ import annotations

import asyncio


class CutTasks(set[asyncio.Task[None]]):
    """Stands in for the set of a service's tasks, and cancels each that is added."""

    def add(self, task: asyncio.Task[None]) -> None:
        """Take a task, and cancel it."""
        super().add(task)
        task.cancel()
