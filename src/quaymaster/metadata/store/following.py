"""Following a source of rows: its changes in order, and all of it again when they break off.

listed ──▶ watch ──lost, or the source is away──▶ list again ──▶ watch
                                                      └─ away: again, after a growing while
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Protocol

from quaymaster.coordination.interface import Event, KeyValue, WatchLost
from quaymaster.core.values.errors import NotNow
from quaymaster.metadata.store.rows import ROOT

RETRY_MIN_S: Final = 0.1
RETRY_MAX_S: Final = 1.0

log = logging.getLogger(__name__)


class RowSource(Protocol):
    """The part of `Coordination` that rows are followed by."""

    async def list_all(self, prefix: str) -> tuple[list[KeyValue], int]: ...

    def watch(self, prefix: str, after_revision: int) -> AsyncIterator[list[Event]]: ...


class RowFollower:
    """The task that does so: `take` gets changes; `list_again` reads everything, and returns as of which revision."""

    def __init__(
        self,
        name: str,
        source: RowSource,
        *,
        take: Callable[[list[Event]], None],
        list_again: Callable[[], Awaitable[int]],
    ) -> None:
        self._name = name
        self._source = source
        self._take = take
        self._list_again = list_again
        self._task: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None
        """Why the source is no longer followed; None while it is."""

    def start(self, revision: int) -> None:
        """Follow the changes after a revision."""
        self._task = asyncio.create_task(self._follow(revision), name=self._name)
        self._task.add_done_callback(self._on_end)

    async def close(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._task  # a failure was told when it happened
            self._task = None

    async def _follow(self, revision: int) -> None:
        retry_s = RETRY_MIN_S
        while True:
            try:
                async for events in self._source.watch(ROOT, revision):
                    self._take(events)
                    revision = events[-1].revision
                    retry_s = RETRY_MIN_S
            except (WatchLost, NotNow) as error:
                log.warning("%s: watch interrupted revision=%d error=%s", self._name, revision, error)
            try:
                revision = await self._list_again()
            except NotNow as error:
                log.warning("%s: store unreachable error=%s retry_s=%.1f", self._name, error, retry_s)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.failure = task.exception()
            log.error("%s stopped error=%s", self._name, self.failure)
