"""Tasks that answer a request each, also when they are ended before they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any


def begin_answer(
    tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None], *, if_ended: Callable[[], object]
) -> asyncio.Task[None]:
    """Begin a task that answers a request, kept in `tasks` until it is done; `if_ended` answers if it is cancelled.

    The task itself cannot: one that is cancelled in the pass that made it runs no line of its own.
    """
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)

    def end(done: asyncio.Task[None]) -> None:
        tasks.discard(done)
        if done.cancelled():
            if_ended()

    task.add_done_callback(end)
    return task


async def end_all(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks, and return once they are done and those that waited for them are answered."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
