"""Everything metadata keeps, mirrored in RAM and kept fresh by one watch; readers never wait.

    start ──list──▶ tables ◀──watch── source ◀── store ◀──transact── this process
                       ▲                                                 │
                       └────────────── applied at once ──────────────────┘

The source is the store itself, or what follows it: a node's feed, a node on another host. It may be behind.

Own writes are applied as soon as they are durable, so who was answered reads what it wrote. Each row carries
its revision; an older event never overwrites a newer row.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from quaymaster.coordination.interface import (
    ABSENT,
    Compare,
    Event,
    KeyValue,
    Put,
    RevisionMismatch,
)
from quaymaster.metadata.store.following import RowFollower, RowSource
from quaymaster.metadata.store.rows import ROOT

log = logging.getLogger(__name__)

LISTED_AT_A_TIME: Final = 500
LOOKED_AT_AT_A_TIME: Final = 1_000
"""So many rows are looked at in one turn of the event loop."""

T = TypeVar("T")


class RowStore(Protocol):
    """The part of `Coordination` that rows are kept in."""

    async def get(self, key: str) -> KeyValue | None: ...

    async def list_all(self, prefix: str) -> tuple[list[KeyValue], int]: ...

    async def transaction(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int: ...


class MirrorTable(Generic[T]):
    """The rows under one prefix, decoded. `on_change` hears each change as (suffix, old, new); None: absent.

    With a `capacity`, the rows that came first leave when there are more: absent then does not mean that the store
    has no such row. With `monotonic_s` it is known for how long each row has been as it is.
    """

    def __init__(
        self,
        prefix: str,
        decode: Callable[[bytes], T],
        on_change: Callable[[str, T | None, T | None], None] | None = None,
        capacity: int | None = None,
        monotonic_s: Callable[[], float] | None = None,
    ) -> None:
        self.prefix = prefix
        self.capacity = capacity
        self._monotonic_s = monotonic_s
        self._since_s: dict[str, float] = {}
        self._decode = decode
        self._on_change = on_change
        self._rows: dict[str, tuple[int, T]] = {}
        # Own deletions the watch has not reported yet: a late event must not bring the row back.
        self._gone: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, suffix: str) -> T | None:
        """Return a row, or None."""
        row = self._rows.get(suffix)
        return None if row is None else row[1]

    def revision(self, suffix: str) -> int:
        """Return the revision to compare with in a transaction."""
        row = self._rows.get(suffix)
        return ABSENT if row is None else row[0]

    def compare(self, suffix: str) -> Compare:
        """Return the condition that the row is still as it is here."""
        return Compare(self.prefix + suffix, self.revision(suffix))

    def unchanged_ms(self, suffix: str) -> int:
        """Return for how long this process has had a row as it is, by its monotonic clock; 0 for none.

        So long it has been like that for certain: no wall clock, no restored store and no restart makes it longer.
        """
        assert self._monotonic_s is not None, "the table was made to know it"
        since_s = self._since_s.get(suffix)
        return 0 if since_s is None else int((self._monotonic_s() - since_s) * 1000)

    def items(self) -> Iterator[tuple[str, T]]:
        """Iterate over a copy of the rows, of which there are few."""
        return iter([(suffix, row) for suffix, (_, row) in self._rows.items()])

    async def in_turns(self) -> AsyncIterator[tuple[str, T]]:
        """Iterate over the rows there are at the beginning, as they are when their turn comes."""
        for number, suffix in enumerate(tuple(self._rows), 1):
            row = self._rows.get(suffix)
            if row is not None:
                yield suffix, row[1]
            if not number % LOOKED_AT_AT_A_TIME:
                await asyncio.sleep(0)

    def apply(self, suffix: str, value: bytes | None, revision: int) -> None:
        """Take over a change, unless a newer one is known."""
        known = self._rows.get(suffix)
        if known is not None and known[0] >= revision:
            return
        gone = self._gone.get(suffix)
        if gone is not None and gone >= revision:
            return
        old = None if known is None else known[1]
        new = None if value is None else self._decode(value)
        if new is None:
            self._rows.pop(suffix, None)
            self._gone[suffix] = revision
            self._gone.move_to_end(suffix)
            self._since_s.pop(suffix, None)
        else:
            self._rows[suffix] = (revision, new)
            if self._monotonic_s is not None:
                self._since_s[suffix] = self._monotonic_s()
        if self._on_change and (old is not None or new is not None):
            self._on_change(suffix, old, new)
        if self.capacity is not None and len(self._rows) > self.capacity:
            self._evict()

    def _evict(self) -> None:
        suffix = next(iter(self._rows))
        _, row = self._rows.pop(suffix)
        self._since_s.pop(suffix, None)
        if self._on_change:
            self._on_change(suffix, row, None)

    def forget_deletions(self, up_to_revision: int) -> None:
        """Drop what is known of deletions the watch has passed, up to the first that it has not."""
        while self._gone and next(iter(self._gone.values())) <= up_to_revision:
            self._gone.popitem(last=False)

    async def keep_only(self, suffixes: set[str], revision: int) -> None:
        """Drop the rows that a whole listing at `revision` no longer has, some in each turn of the loop."""
        async for suffix, _ in self.in_turns():
            if suffix not in suffixes and self.revision(suffix) <= revision:
                # One of exactly this revision was deleted while we listed; the watch says so.
                self.apply(suffix, None, revision)


class Mirror:
    """The tables, the store behind them, and the task that follows it."""

    def __init__(
        self, store: RowStore, source: RowSource, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.store = store
        self.monotonic_s = monotonic_s
        self._source = source
        self._tables: dict[str, MirrorTable[Any]] = {}
        self._follower = RowFollower("metadata mirror", source, take=self._take, list_again=self._list)
        self._moved = asyncio.Event()
        self.position = 0
        """Every change up to this revision is in the tables."""
        self.on_moved: Callable[[], None] = lambda: None
        """Called when the position was looked at, and whenever own changes were applied."""

    def table(
        self,
        prefix: str,
        decode: Callable[[bytes], T],
        on_change: Callable[[str, T | None, T | None], None] | None = None,
        capacity: int | None = None,
        *,
        is_timed: bool = False,
    ) -> MirrorTable[T]:
        """Add a table. Every row of the store under `prefix` is mirrored in it from `start` on, up to its capacity.

        `is_timed`: it tells how long rows have been as they are.
        """
        table = MirrorTable(prefix, decode, on_change, capacity, self._elapsed_s if is_timed else None)
        self._tables[prefix] = table
        return table

    def count(self, prefix: str) -> int:
        """Return how many rows there are in the table of a prefix."""
        return len(self._tables[prefix])

    async def start(self) -> None:
        """Fill the tables and begin to follow the store."""
        revision = await self._list()
        self._follower.start(revision)

    async def close(self) -> None:
        """Stop following. The store stays open."""
        await self._follower.close()

    @property
    def failure(self) -> BaseException | None:
        """Why the tables are no longer kept fresh; None while they are."""
        return self._follower.failure

    async def transact(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        """Run a transaction and show its result in the tables; on RevisionMismatch, the row as it is now."""
        try:
            revision = await self.store.transaction(compares, puts, deletes)
        except RevisionMismatch as mismatch:
            await self.refresh(mismatch.key)
            raise
        for put in puts:
            self._apply(put.key, put.value, revision)
        for key in deletes:
            self._apply(key, None, revision)
        self.on_moved()
        return revision

    async def refresh(self, key: str) -> None:
        """Read one key again: the table was behind."""
        row = await self.store.get(key)
        if row is not None:
            self._apply(key, row.value, row.revision)
            return
        table, suffix = self._table_of(key)
        if table is not None and table.revision(suffix) != ABSENT:
            table.apply(suffix, None, table.revision(suffix) + 1)

    async def refresh_all(self, prefix: str) -> None:
        """Read every row under a prefix again: the table was behind."""
        items, _ = await self.store.list_all(prefix)
        for item in items:
            self._apply(item.key, item.value, item.revision)

    def _elapsed_s(self) -> float:
        return self.monotonic_s()

    def _table_of(self, key: str) -> tuple[MirrorTable[Any] | None, str]:
        end = key.find("/", 1) + 1
        prefix = key[:end] if end else key
        return self._tables.get(prefix), key[len(prefix) :]

    def _apply(self, key: str, value: bytes | None, revision: int) -> None:
        table, suffix = self._table_of(key)
        if table is not None:
            table.apply(suffix, value, revision)

    async def _list(self) -> int:
        items, revision = await self._source.list_all(ROOT)
        found: dict[str, set[str]] = {prefix: set() for prefix in self._tables}
        for number, item in enumerate(items, 1):
            self._take_listed(item, found)
            if not number % LISTED_AT_A_TIME:
                await asyncio.sleep(0)  # what is written meanwhile has a newer revision
        for prefix, table in self._tables.items():
            await table.keep_only(found[prefix], revision)
        self._move(revision)
        return revision

    def _take_listed(self, item: KeyValue, found: dict[str, set[str]]) -> None:
        table, suffix = self._table_of(item.key)
        if table is not None:
            found[table.prefix].add(suffix)
            table.apply(suffix, item.value, item.revision)

    def _take(self, events: list[Event]) -> None:
        for event in events:
            self._apply(event.key, event.value, event.revision)
        revision = events[-1].revision
        self._move(revision)
        for table in self._tables.values():
            table.forget_deletions(revision)

    async def reached(self, revision: int) -> None:
        """Return when every change up to a revision is in the tables."""
        while self.position < revision:
            await self._moved.wait()

    def _move(self, revision: int) -> None:
        self.position = max(self.position, revision)
        self.on_moved()
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
