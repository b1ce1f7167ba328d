"""Work that is done once for all who ask for it at the same time.

    asked ──▶ next run ──▶ run ──▶ answered          one run at a time, `pause_s` between two
    asked ──▶ next run ◀── asked while one runs: what that one finds may be older than the question

So each caller is answered by a run that began after it asked, and however many ask, the store behind has one
request at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, Generic, TypeVar

from quaymaster.coordination.interface import TRANSACTION_OPERATIONS_MAX, Coordination, KeyValue

PAUSE_S: Final = 0.005
"""Between two runs: a storm of questions costs the store 200 requests a second."""

T = TypeVar("T")


class Coalescer(Generic[T]):
    """A piece of work, shared. Within one event loop."""

    def __init__(self, work: Callable[[], Awaitable[T]], *, pause_s: float = PAUSE_S) -> None:
        self._work = work
        self._pause_s = pause_s
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """Return, or raise, what the run gives that begins next."""
        if self._next is None:
            self._next = asyncio.create_task(self._run(self._running))
            self._next.add_done_callback(_no_matter)
        return await asyncio.shield(self._next)

    async def close(self) -> None:
        """Give up what runs and what waits."""
        for task in (self._next, self._running):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _run(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
            await asyncio.sleep(self._pause_s)
        self._running, self._next = self._next, None
        try:
            return await self._work()
        finally:
            if self._next is None:
                self._running = None


def _no_matter(run: asyncio.Task[Any]) -> None:
    """The callers may have gone meanwhile: then none is told how it ended, and none needs to be."""
    if not run.cancelled():
        run.exception()


class StoreReads:
    """Reads rows from the store, those of all who ask in one request."""

    def __init__(self, store: Coordination) -> None:
        self._store = store
        self._wanted: set[str] = set()
        self._coalesced = Coalescer(self._read_wanted)

    async def read(self, keys: Collection[str]) -> tuple[dict[str, KeyValue], int]:
        """Return those of the rows that there are, and a revision of the store as of which they are."""
        self._wanted.update(keys)
        rows, revision = await self._coalesced()
        return {key: rows[key] for key in keys if key in rows}, revision

    async def close(self) -> None:
        """Read no more."""
        await self._coalesced.close()

    async def _read_wanted(self) -> tuple[dict[str, KeyValue], int]:
        wanted, self._wanted = self._wanted, set()
        found: dict[str, KeyValue] = {}
        revisions: list[int] = []
        keys = sorted(wanted)
        for start in range(0, len(keys), TRANSACTION_OPERATIONS_MAX):
            rows, revision = await self._store.read(keys[start : start + TRANSACTION_OPERATIONS_MAX])
            found.update((row.key, row) for row in rows)
            revisions.append(revision)
        return found, min(revisions)
