"""The history as an event loop uses it: each method has its work done by one thread, in the order of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from quaymaster.core.monitoring.periods import Span
from quaymaster.core.monitoring.queue_statistics import Kept
from quaymaster.history.files import Closing, HistoryFiles, Restored

T = TypeVar("T")


class History:
    """`open`, then `close`. What may be raised is said at `HistoryFiles`."""

    def __init__(self, files: HistoryFiles) -> None:
        self._files = files
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history")
        self.bytes = 0
        """What its files take, as of the last minute."""

    async def open(self) -> Restored:
        """Open the files; return what was known last."""
        return await self._do(self._files.open)

    async def close(self) -> None:
        """Close the files, after what was asked for before."""
        await self._do(self._files.close)
        self._thread.shutdown()

    async def write(self, closing: Closing, now_s: int) -> None:
        """Write a minute, and delete what is too old or too much."""
        await self._do(partial(self._write, closing, now_s))

    async def read(self, queue_ids: Iterable[int], span: Span, *, has_samples: bool = False) -> list[Kept]:
        """Return what is kept of queues in some periods, in order of time."""
        return await self._do(partial(self._files.read, queue_ids, span, has_samples=has_samples))

    async def read_each(
        self, queue_ids: Iterable[int], span: Span, *, values: Sequence[str]
    ) -> dict[int, list[Kept]]:
        """Return some values of what is kept of each queue, in order of time."""
        return await self._do(partial(self._files.read_each, queue_ids, span, values=values))

    async def ids_of(self, account: str, name: str) -> list[int]:
        """Return the ids of queues that have, or had, a name."""
        return await self._do(partial(self._files.ids_of, account, name))

    def notices(self) -> list[str]:
        """Return what an operator should know."""
        return list(self._files.set_aside)

    def _write(self, closing: Closing, now_s: int) -> None:
        self._files.write(closing)
        self._files.trim(now_s)
        self.bytes = self._files.bytes()

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
