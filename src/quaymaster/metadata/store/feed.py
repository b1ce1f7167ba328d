"""The rows of the store in a node's memory, as bytes, with the changes of late: what front ends are fed from.

    store ──list, watch──▶ rows, history ──pages, changes──▶ the node's own tables, and front ends' caches

All rows are here but data keys: of them there are at most DATA_KEYS_KEPT_MAX, the latest changed or asked for.

The order is the store's: position p means that every change up to revision p is in. So a follower of one node
up to p can go on with any other. When the store has to be listed again, what differs becomes changes; those who
follow notice nothing. They must list themselves only when the history no longer goes back to where they are.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Sequence
from typing import Final

from quaymaster.coordination.interface import Coordination, Event, KeyValue, WatchLost
from quaymaster.metadata.store.following import RowFollower
from quaymaster.metadata.store.rows import DATA_KEYS, DATA_KEYS_KEPT_MAX, ROOT

log = logging.getLogger(__name__)

HISTORY_MAX: Final = 100_000
"""Changes that are remembered; a front end that was away for longer lists everything again."""
_COMPARED_AT_A_TIME: Final = 1_000
_FOLLOWED_AT_A_TIME: Final = 1_000


class Feed:
    """Keeps up with the store. Within one event loop."""

    def __init__(
        self, store: Coordination, *, history_max: int = HISTORY_MAX, data_keys_max: int = DATA_KEYS_KEPT_MAX
    ) -> None:
        self._store = store
        self._history_max = history_max
        self._rows: dict[str, KeyValue] = {}
        self._keys: list[str] = []
        self._data_keys_max = data_keys_max
        self._data_keys: dict[str, None] = {}
        """Which data keys are here; the one that came first leaves first."""
        self._history: list[Event] = []
        """Its oldest eighth goes at once: a list begins anywhere without a walk."""
        self._forgotten = 0
        """Changes up to this revision may be missing in the history."""
        self._changed = asyncio.Event()
        self._follower = RowFollower("metadata feed", store, take=self._take, list_again=self._catch_up)
        self.position = 0
        """Every change up to this revision of the store is in."""

    async def start(self) -> None:
        """Read everything, and begin to follow the store."""
        items, revision = await self._store.list_all(ROOT)
        # A row changed while we listed comes once more, in its order.
        self._rows = {item.key: item for item in items if item.revision <= revision}
        data_keys = [key for key in self._rows if key.startswith(DATA_KEYS)]
        surplus = max(0, len(data_keys) - self._data_keys_max)
        for key in data_keys[:surplus]:
            del self._rows[key]
        self._data_keys = dict.fromkeys(data_keys[surplus:])
        self._keys = sorted(self._rows)
        self.position = self._forgotten = revision
        self._follower.start(revision)

    async def close(self) -> None:
        """Stop following. The store stays open."""
        await self._follower.close()

    @property
    def failure(self) -> BaseException | None:
        """Why the store is no longer followed; None while it is."""
        return self._follower.failure

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: str) -> KeyValue | None:
        """Return a row as of `position`."""
        return self._rows.get(key)

    def keep(self, row: KeyValue, read_at: int) -> None:
        """Have a data key that was read from the store at a revision, unless what is known here is newer."""
        if row.key.startswith(DATA_KEYS) and read_at >= self.position and row.key not in self._rows:
            self._put(row)

    def page(self, prefix: str, after: str, rows_max: int, bytes_max: int) -> tuple[list[KeyValue], bool]:
        """Return rows under a prefix behind a key, in order, as the limits allow; and whether there are more."""
        keys = self._keys
        start = bisect_right(keys, after) if after > prefix else bisect_left(keys, prefix)
        found: list[KeyValue] = []
        size = 0
        for at in range(start, len(keys)):
            key = keys[at]
            if not key.startswith(prefix):
                break
            row = self._rows[key]
            size += len(row.value)
            if found and (len(found) >= rows_max or size > bytes_max):
                return found, True
            found.append(row)
        return found, False

    def changes(
        self, prefixes: Sequence[str], after_revision: int, rows_max: int, bytes_max: int
    ) -> tuple[list[Event], int]:
        """Return what changed after a revision, in order, and up to where that is everything: at most `position`.

        A revision is never split. Raises WatchLost when the history does not go back that far.
        """
        if after_revision < self._forgotten:
            raise WatchLost(f"changes before revision {self._forgotten} are forgotten")
        history = self._history
        start = bisect_right(history, after_revision, key=lambda event: event.revision)
        found: list[Event] = []
        size = 0
        wanted = tuple(prefixes)
        for at in range(start, len(history)):
            event = history[at]
            if not event.key.startswith(wanted):
                continue
            if (len(found) >= rows_max or size > bytes_max) and event.revision != found[-1].revision:
                return found, found[-1].revision
            found.append(event)
            size += len(event.value or b"")
        return found, max(after_revision, self.position)

    async def wait_for_change(self) -> None:
        """Return when something changed."""
        await self._changed.wait()

    # As a source for the node's own tables

    async def list_all(self, prefix: str) -> tuple[list[KeyValue], int]:
        """Return every row under a prefix, and the revision to watch from."""
        rows, _ = self.page(prefix, "", len(self._keys) + 1, 1 << 62)
        return rows, self.position

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[list[Event]]:
        """Yield the changes after a revision, in order, for ever; WatchLost as `changes`."""
        position = after_revision
        while True:
            changed = self._changed
            events, position = self.changes([prefix], position, _FOLLOWED_AT_A_TIME, 1 << 62)
            if events:
                yield events
                if len(events) >= _FOLLOWED_AT_A_TIME:
                    await asyncio.sleep(0)
            elif position >= self.position:
                await changed.wait()

    # Following

    async def _catch_up(self) -> int:
        """List everything again, and take what differs as changes of the revisions they are of; return `position`."""
        items, revision = await self._store.list_all(ROOT)
        if revision <= self.position:
            return self.position
        events: list[Event] = []
        listed: set[str] = set()
        for number, item in enumerate(items, 1):
            listed.add(item.key)
            # What changed while we listed comes by the watch.
            if self.position < item.revision <= revision:
                events.append(Event(item.key, item.value, item.revision))
            if not number % _COMPARED_AT_A_TIME:
                await asyncio.sleep(0)
        # The revision of a deletion is not told; nothing after it is known of the key up to the listing's.
        for number, key in enumerate(tuple(self._rows), 1):
            known = self._rows.get(key)
            if known is not None and key not in listed and known.revision <= revision:
                events.append(Event(key, None, revision))
            if not number % _COMPARED_AT_A_TIME:
                await asyncio.sleep(0)
        events.sort(key=lambda event: event.revision)
        self._take(events, revision)
        return self.position

    def _take(self, events: list[Event], position: int = 0) -> None:
        """Take changes; `position`: all up to there are in, also where the last of them is older."""
        for event in events:
            if event.revision <= self.position:
                continue
            known = self._rows.get(event.key)
            if event.value is not None:
                self._put(KeyValue(event.key, event.value, event.revision))
            elif known is not None:
                self._drop(event.key)
            self._history.append(event)
        surplus = len(self._history) - self._history_max
        if surplus > self._history_max // 8:
            self._forgotten = self._history[surplus - 1].revision
            del self._history[:surplus]
        self.position = max(self.position, position, events[-1].revision if events else 0)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _put(self, row: KeyValue) -> None:
        if row.key not in self._rows:
            insort(self._keys, row.key)
        self._rows[row.key] = row
        if row.key.startswith(DATA_KEYS):
            self._data_keys.pop(row.key, None)
            self._data_keys[row.key] = None
            if len(self._data_keys) > self._data_keys_max:
                self._drop(next(iter(self._data_keys)))

    def _drop(self, key: str) -> None:
        del self._rows[key]
        del self._keys[bisect_left(self._keys, key)]
        self._data_keys.pop(key, None)
