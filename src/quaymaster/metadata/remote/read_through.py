"""The read-through cache of a front end of a cell: rows in memory, and what is not there asked for once.

look-up ──in memory──▶ row
    └──not there──▶ CacheLoader ──all who ask at once together──▶ metadata node ──▶ in memory, or there is none
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final

from quaymaster.coordination.interface import ABSENT
from quaymaster.core.values.errors import CallerError, NotNow, NotYetKnown, Overloaded, Unreachable
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.metadata.remote.rows import RemoteLimits, RemoteSource, RemoteStore
from quaymaster.metadata.store.mirror import Mirror
from quaymaster.metadata.store.rows import ACCESS_KEYS, DATA_KEYS, QUEUES, ROLES, SESSION_KEYS, USERS
from quaymaster.net.routing.metadata_client import MetadataClient, looked_up
from quaymaster.protocol.rpc.metadata_messages import FindRows, FoundRows, StoreRow

log = logging.getLogger(__name__)

LOOKUPS_MAX: Final = 128
"""Look-ups at once, of each kind: together fewer than a client may have in flight, so that changes find room."""
REFRESH_REST_MS: Final = 1_000
"""For how long rows in memory are good enough after the store could not be asked."""
LOOKUP_ATTEMPT_MS: Final = 500
DELETIONS_KEPT: Final = 10_000

_KEY_CHARS_MAX: Final = 200


class ReadThroughCache(Mirror):
    """A mirror that also takes rows found otherwise than by following, and knows what there is not."""

    def __init__(self, store: RemoteStore, source: RemoteSource, lookups: CacheLoader) -> None:
        super().__init__(store, source)
        self._lookups = lookups
        self._deleted: dict[str, int] = {}
        self._deletions: deque[str] = deque()
        self._forgotten = 0
        """Deletions up to this revision may be forgotten."""

    def take_found(self, rows: Iterable[StoreRow], position: int) -> bool:
        """Take rows that a node at some position has; False when it is too far behind to believe it."""
        if position < self._forgotten:
            return False
        for row in rows:
            self._apply(row.key, row.value, row.revision)
        return True

    def take_gone(self, key: str, position: int) -> None:
        """Take it that there was no such row at some position."""
        if self.revision(key) != ABSENT:
            self._apply(key, None, position)

    def revision(self, key: str) -> int:
        """Return the revision of a row in memory, ABSENT without one."""
        table, suffix = self._table_of(key)
        return ABSENT if table is None else table.revision(suffix)

    def has(self, key: str) -> bool:
        """Tell whether a row is in memory that can be used: a queue that is being made or deleted is none."""
        table, suffix = self._table_of(key)
        row = None if table is None else table.get(suffix)
        return row is not None and (not isinstance(row, QueueDefinition) or row.state == "active")

    def _apply(self, key: str, value: bytes | None, revision: int) -> None:
        if value is None:
            self._remember_deletion(key, revision)
        elif self._deleted.get(key, 0) >= revision:
            return  # what is older than its deletion
        else:
            self._lookups.forget_unknown(key)
        super()._apply(key, value, revision)

    def _remember_deletion(self, key: str, revision: int) -> None:
        if key not in self._deleted:
            self._deletions.append(key)
        self._deleted[key] = max(revision, self._deleted.get(key, 0))
        if len(self._deletions) > DELETIONS_KEPT:
            self._forgotten = max(self._forgotten, self._deleted.pop(self._deletions.popleft()))

    async def _list(self) -> int:
        revision = await super()._list()
        # Which rows went meanwhile, the listing did not say.
        self._forgotten = max(self._forgotten, revision)
        return revision


class _Kind:
    """What is asked for, and what there is not, under one prefix."""

    __slots__ = ("asked", "is_stored", "remembers", "unknown", "waiting")

    def __init__(self, *, remembers: bool, is_stored: bool = False) -> None:
        self.remembers = remembers
        """Whether what there is not is believed for a while."""
        self.is_stored = is_stored
        """Whether it is asked for as it is in the store, whatever nodes have in memory."""
        self.waiting: dict[str, asyncio.Task[bool]] = {}
        """Not asked yet: the answer is good for those who come now, too."""
        self.asked: dict[str, asyncio.Task[bool]] = {}
        """Asked already: the answer may be older than who comes now."""
        self.unknown: dict[str, float] = {}
        """What there is not, and until when that is believed; the oldest first."""


class CacheLoader:
    """Asks for what is not in memory: each thing once, however many wait for it.

    A queue that was created elsewhere, and answered, is found: a node says that there is none when the store has
    none, and who asks later asks again. Of keys it is remembered for a while: their ids are made up by chance, and
    none is asked for before it exists.

    Each kind of row has bounds of its own: made-up access keys keep
    no client from finding a queue.
    """

    def __init__(
        self, client: MetadataClient, limits: RemoteLimits, *, lookups_max: int = LOOKUPS_MAX
    ) -> None:
        self._client = client
        self._limits = limits
        self._lookups_max = lookups_max
        self.results: Counter[str] = Counter()
        """What came of look-ups: found, absent or failed."""
        self._kinds = {
            QUEUES: _Kind(remembers=False),
            ACCESS_KEYS: _Kind(remembers=True),
            USERS: _Kind(remembers=False),
            ROLES: _Kind(remembers=False),
            DATA_KEYS: _Kind(remembers=True),
            SESSION_KEYS: _Kind(remembers=True),
        }
        self._refreshed = _Kind(remembers=False, is_stored=True)
        self._refresh_rests_until_s = 0.0
        self.mirror: ReadThroughCache

    def __len__(self) -> int:
        return sum(len(kind.unknown) for kind in self._kinds.values())

    def miss(self, key: str) -> None:
        """Return when there is no such row; otherwise raise NotYetKnown, or Overloaded."""
        kind = self._kinds[_prefix_of(key)]
        until_s = kind.unknown.get(key)
        if until_s is not None:
            if time.monotonic() < until_s:
                return
            del kind.unknown[key]
        if len(key) > _KEY_CHARS_MAX or key in looked_up.get() or self.mirror.has(key):
            return
        task = self._look_up(kind, key)

        def when_known(resume: Callable[[CallerError | NotNow | None], None]) -> None:
            def on_done(done: asyncio.Task[bool]) -> None:
                error = _failure_of(done)
                if error is None and not done.result():
                    looked_up.set(looked_up.get() | {key})  # of this callback's own context
                resume(error)

            task.add_done_callback(on_done)

        raise NotYetKnown(when_known)

    async def refresh(self, key: str) -> None:
        """Have memory show a row as it is in the store; as it was known, where that cannot be learned soon."""
        if time.monotonic() < self._refresh_rests_until_s:
            return
        try:
            await asyncio.shield(self._look_up(self._refreshed, key))
        except NotNow as error:
            log.debug("row not refreshed key=%s error=%s", key, error)
            self._refresh_rests_until_s = time.monotonic() + REFRESH_REST_MS / 1000

    def _look_up(self, kind: _Kind, key: str) -> asyncio.Task[bool]:
        task = kind.waiting.get(key)
        if task is None:
            if len(kind.waiting) + len(kind.asked) >= self._lookups_max:
                raise Overloaded("Too much that is unknown is asked for at once.")
            task = kind.waiting[key] = asyncio.get_running_loop().create_task(self._ask_next(kind, key))
            task.add_done_callback(lambda done: self._on_asked(kind, key, done))
        return task

    def forget_unknown(self, key: str) -> None:
        """It is there now."""
        kind = self._kinds.get(_prefix_of(key))
        if kind is not None:
            kind.unknown.pop(key, None)

    async def close(self) -> None:
        """Ask no more."""
        kinds = [*self._kinds.values(), self._refreshed]
        tasks = [task for kind in kinds for task in (*kind.waiting.values(), *kind.asked.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_next(self, kind: _Kind, key: str) -> bool:
        """Ask when it is answered what was asked before; tell whether there is such a row."""
        before = kind.asked.get(key)
        if before is not None:
            await asyncio.wait([before])
        kind.asked[key] = kind.waiting.pop(key)
        return await self._ask(kind, key)

    async def _ask(self, kind: _Kind, key: str) -> bool:
        deadline_s = time.monotonic() + self._limits.lookup_ms / 1000
        while (left_ms := int((deadline_s - time.monotonic()) * 1000)) > 0:
            found = await self._client.ask(
                FindRows([key], self.mirror.position, kind.is_stored),
                FoundRows,
                key=key,
                deadline_ms=left_ms,
                attempt_ms=LOOKUP_ATTEMPT_MS,
            )
            if self.mirror.take_found(found.rows, found.position):
                if found.age_ms <= self._limits.staleness_ms and key not in {row.key for row in found.rows}:
                    self.mirror.take_gone(key, found.position)
                if self.mirror.has(key):
                    self.results["found"] += 1
                    return True
                if found.age_ms <= self._limits.staleness_ms:
                    self.results["absent"] += 1
                    self._note_unknown(kind, key)
                    return False
                # The node is cut off from its store: that it does not know something means nothing.
            await asyncio.sleep(0.05)
        raise Unreachable("The metadata nodes are behind, or cut off from their store.")

    def _note_unknown(self, kind: _Kind, key: str) -> None:
        if not kind.remembers:
            return
        kind.unknown.pop(key, None)
        kind.unknown[key] = time.monotonic() + self._limits.unknown_ms / 1000
        if len(kind.unknown) > self._limits.unknown_max:
            del kind.unknown[next(iter(kind.unknown))]

    def _on_asked(self, kind: _Kind, key: str, task: asyncio.Task[bool]) -> None:
        for tasks in (kind.waiting, kind.asked):
            if tasks.get(key) is task:
                del tasks[key]
        if not task.cancelled() and task.exception() is not None:  # those who wait are told
            self.results["failed"] += 1


def _prefix_of(key: str) -> str:
    return key[: key.find("/", 1) + 1]


def _failure_of(task: asyncio.Task[bool]) -> NotNow | None:
    if task.cancelled():
        return NotNow("The server is stopping.")
    error = task.exception()
    if error is None or isinstance(error, NotNow):
        return error
    log.error("metadata look-up failed", exc_info=error)
    return NotNow()
