"""The keys under one prefix, told one by one as they change, for those who can go on with what they know.

    list ──▶ watch ──▶ list again after RELIST_S, on a lost watch, or when asked to
      └─── store unreachable: nothing is told, tried again ──┘

Watches are hints: a change that one never brought is found by the next listing. A store that cannot be reached and a
value that cannot be read are expected; whatever else `on_row` raises is a bug, and ends the process (`supervise`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from quaymaster.coordination.interface import ABSENT, Coordination, WatchLost
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.unreadable import UNREADABLE
from quaymaster.monitoring.logs import log_event, log_failure
from quaymaster.monitoring.supervision import supervise

RELIST_S: Final = 30.0
REFRESH_MIN_S: Final = 0.25
"""However often it is asked for, the store is not listed more often."""
LIST_TIMEOUT_S: Final = 5.0
RETRY_MIN_S: Final = 0.1
RETRY_MAX_S: Final = 1.0

log = logging.getLogger(__name__)


class WatchedPrefix:
    """Tells `on_row` of each key: its value, or None when it is gone. One it cannot read is logged and left out."""

    def __init__(
        self,
        store: Coordination,
        prefix: str,
        on_row: Callable[[str, bytes | None], None],
        *,
        relist_s: float = RELIST_S,
        retry_max_s: float = RETRY_MAX_S,
    ) -> None:
        """Make a follower; a store that is away is asked again after `retry_max_s` at the latest."""
        self._store = store
        self._prefix = prefix
        self._on_row = on_row
        self._relist_s = relist_s
        self._retry_max_s = retry_max_s
        self._revisions: dict[str, int] = {}
        self._watching: asyncio.Timeout | None = None
        self._listed_s = 0.0
        self._has_failed = False
        self._task: asyncio.Task[None] | None = None
        self.listed = asyncio.Event()
        """Set once the store was read for the first time."""

    def start(self) -> None:
        """Begin to follow the store."""
        self._task = supervise(asyncio.create_task(self._follow(), name=f"watch-{self._prefix}"))

    async def close(self) -> None:
        """Stop following. The store stays open."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def refresh(self) -> None:
        """List soon: what is known seems to be old."""
        if self._watching is not None and not self._watching.expired():
            now_s = asyncio.get_running_loop().time()
            at_s = max(now_s, self._listed_s + REFRESH_MIN_S)
            due_s = self._watching.when()
            if due_s is None or at_s < due_s:
                self._watching.reschedule(at_s)

    def revision_of(self, key: str) -> int:
        """Return the revision of what was told of a key last, ABSENT when it is gone; `on_row` may ask."""
        return self._revisions.get(key, ABSENT)

    async def _follow(self) -> None:
        retry_s = RETRY_MIN_S
        while True:
            try:
                async with asyncio.timeout(LIST_TIMEOUT_S):
                    revision = await self._list()
                self._on_reached()
                retry_s = RETRY_MIN_S
                await self._watch(revision)
                continue
            except WatchLost:
                retry_s = RETRY_MIN_S
            except (NotNow, TimeoutError) as error:
                self._on_unreachable(error)
            await asyncio.sleep(retry_s * random.uniform(0.5, 1))
            retry_s = min(2 * retry_s, self._retry_max_s)

    async def _list(self) -> int:
        items, revision = await self._store.list_all(self._prefix)
        for item in items:
            self._tell(item.key, item.value, item.revision)
        present = {item.key for item in items}
        for key, known in list(self._revisions.items()):
            if key not in present and known <= revision:
                del self._revisions[key]
                self._call(key, None)
        self._listed_s = asyncio.get_running_loop().time()
        return revision

    async def _watch(self, revision: int) -> None:
        """Follow the changes until it is time to list again."""
        try:
            async with asyncio.timeout(self._relist_s) as self._watching:
                async for events in self._store.watch(self._prefix, revision):
                    for event in events:
                        self._tell(event.key, event.value, event.revision)
        except TimeoutError:
            if self._watching is None or not self._watching.expired():
                raise
        finally:
            self._watching = None

    def _tell(self, key: str, value: bytes | None, revision: int) -> None:
        # A listing may be newer than the revision that is watched from, or come from a member that is behind.
        if revision <= self.revision_of(key):
            return
        if value is None:
            self._revisions.pop(key, None)
        else:
            self._revisions[key] = revision
        self._call(key, value)

    def _call(self, key: str, value: bytes | None) -> None:
        try:
            self._on_row(key, value)
        except (*UNREADABLE, ValueError) as error:
            log_failure(log, "key could not be read", error, key=key)

    def _on_reached(self) -> None:
        self.listed.set()
        if self._has_failed:
            self._has_failed = False
            log_event(log, logging.INFO, "coordination reached again", prefix=self._prefix)

    def _on_unreachable(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            reason = str(error) or type(error).__name__
            log_event(log, logging.WARNING, "coordination unreachable", prefix=self._prefix, error=reason)
