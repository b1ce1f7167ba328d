"""The tasks of a broker of a cell: they are begun from anywhere and end with it; one that fails stops it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from quaymaster.core.values.errors import InternalFailure, NotNow
from quaymaster.monitoring.logs import log_failure
from quaymaster.net.rpc import IncomingCall

log = logging.getLogger(__name__)


class BrokerTasks:
    """`on_failed` hears of a task that failed: what must not happen."""

    def __init__(self, on_failed: Callable[[Exception], None]) -> None:
        self._on_failed = on_failed
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin work of its own."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def answer(self, call: IncomingCall, work: Coroutine[Any, Any, None]) -> None:
        """Begin work that replies to a call; what it raises is the answer."""

        async def answer() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 -- the call is answered with it
                if not isinstance(error, NotNow):
                    log_failure(log, "call failed", error, method=call.method)
                call.fail(error if isinstance(error, NotNow) else InternalFailure(str(error)))

        self.run(answer())

    async def close(self) -> None:
        """End all tasks."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            failure = error if isinstance(error, Exception) else RuntimeError(str(error))
            log_failure(log, "broker task failed", failure)
            self._on_failed(failure)
