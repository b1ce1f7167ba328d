"""Tasks that run as long as their process, and never fail but for a bug: one that fails ends the process.

    supervise(task) ──task raises──▶ the loop's exception handler ──▶ `on_failure`: log, not ready, exit code 1

A process that continued without such a task would answer from what it knew at that moment, and look well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

_IS_FATAL: Final = "quaymaster_is_fatal"


def supervise(task: asyncio.Task[None]) -> asyncio.Task[None]:
    """Return the task; if it fails, the process ends. Where no process listens, the loop logs it."""
    task.add_done_callback(_on_done)
    return task


def _on_done(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": f"task {task.get_name()} failed", "exception": error, "task": task}
        task.get_loop().call_exception_handler({**context, _IS_FATAL: True})


def listen_for_failures(loop: asyncio.AbstractEventLoop, on_failure: Callable[[Exception], None]) -> None:
    """Have `on_failure` hear of each supervised task that fails; everything else is logged, as without it."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if context.get(_IS_FATAL) and isinstance(error, Exception):
            on_failure(error)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
