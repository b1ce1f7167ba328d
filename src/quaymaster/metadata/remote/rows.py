"""The rows of the store as a front end of a cell has them, through metadata nodes: as stored, or as nodes know them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from quaymaster.coordination.counted_time import COUNTED_TIME
from quaymaster.coordination.interface import (
    Compare,
    Event,
    KeyValue,
    Put,
    RevisionMismatch,
    WatchLost,
)
from quaymaster.metadata.store.rows import (
    ACCESS_KEYS,
    ACCOUNTS,
    AUTHORIZATION_FLOOR,
    DATA_KEYS,
    DATA_KEYS_KEPT_MAX,
    ISSUERS,
    KMS_ALIASES,
    KMS_KEYS,
    LIMITS,
    MASTER_KEY,
    PUSH_SECRETS,
    PUSH_STATES,
    QUEUE_KEYS,
    QUEUES,
    READERS,
    RECEIPT_KEYS,
    ROLES,
    SESSION_KEYS,
    USERS,
    WRAPPING_KEYS,
)
from quaymaster.net.routing.metadata_client import MetadataClient
from quaymaster.protocol.rpc.metadata_messages import (
    FoundRows,
    GetRow,
    ListRows,
    RowPage,
    StoreRow,
    Swap,
    Transact,
    Transacted,
    Written,
)

LIST_MS: Final = 30_000

_FOLLOWED: Final = (
    *(WRAPPING_KEYS, QUEUE_KEYS, KMS_KEYS, KMS_ALIASES),
    *(AUTHORIZATION_FLOOR, MASTER_KEY, ACCOUNTS, USERS, ROLES, ACCESS_KEYS),
    *(DATA_KEYS, RECEIPT_KEYS, SESSION_KEYS, ISSUERS, QUEUES, READERS, LIMITS, COUNTED_TIME),
    *(PUSH_SECRETS, PUSH_STATES),
)


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """How much a front end keeps, and how long it waits. The names are those of the settings where there are some."""

    rows_max: int = 200_000
    """Most queues in memory."""
    unknown_ms: int = 5_000
    """For so long it is believed that there is no such key."""
    unknown_max: int = 10_000
    change_ms: int = 20_000
    lookup_ms: int = 2_000
    staleness_ms: int = 10_000
    """What is known may be so old before a list of queues is refused."""


class RemoteStore:
    """The rows of the store, read and written through a metadata node; never from anybody's memory."""

    def __init__(self, client: MetadataClient, deadline_ms: int) -> None:
        self._client = client
        self._deadline_ms = deadline_ms

    async def get(self, key: str) -> KeyValue | None:
        """Return a row as last changed, or None."""
        found = await self._client.ask(GetRow(key), FoundRows, key=key, deadline_ms=self._deadline_ms)
        return key_value(found.rows[0]) if found.rows else None

    async def list_all(self, prefix: str) -> tuple[list[KeyValue], int]:
        """Return every row under a prefix, and the revision to watch from."""
        return await _list_all(self._client, prefix, self._deadline_ms, is_stored=True)

    async def transaction(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        """Do all of it or none, and return the new revision; RevisionMismatch."""
        request = Transact(
            [Swap(compare.key, compare.revision) for compare in compares],
            [Written(put.key, put.value) for put in puts],
            list(deletes),
        )
        done = await self._client.ask(request, Transacted, deadline_ms=self._deadline_ms, is_repeatable=False)
        if done.failed is not None:
            raise RevisionMismatch(done.failed.key, done.failed.revision, done.found_revision)
        return done.revision


class RemoteSource:
    """The rows as metadata nodes have them in memory, and their changes."""

    def __init__(self, client: MetadataClient, rows_max: int) -> None:
        self._client = client
        self._limits = {QUEUES: rows_max, DATA_KEYS: min(rows_max, DATA_KEYS_KEPT_MAX)}

    async def list_all(self, prefix: str) -> tuple[list[KeyValue], int]:
        """Return every row this front end keeps, up to its limits, and the revision to follow from."""
        found: list[KeyValue] = []
        revisions: list[int] = []
        for followed in _FOLLOWED:
            limit = self._limits.get(followed)
            rows, revision = await _list_all(self._client, followed, LIST_MS, limit=limit)
            found += rows
            revisions.append(revision)
        return found, min(revisions)

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[list[Event]]:
        """Yield the changes after a revision, in order; WatchLost."""
        async for changes in self._client.follow(_FOLLOWED, after_revision):
            if changes.is_lost:
                raise WatchLost("the metadata node does not remember that far back")
            if changes.rows:
                yield [Event(row.key, row.value, row.revision) for row in changes.rows]


async def _list_all(
    client: MetadataClient,
    prefix: str,
    deadline_ms: int,
    *,
    is_stored: bool = False,
    limit: int | None = None,
) -> tuple[list[KeyValue], int]:
    while True:
        rows: list[KeyValue] = []
        after = ""
        revision: int | None = None
        while True:
            request = ListRows(prefix, after, is_stored)
            page = await client.ask(request, RowPage, key=prefix, deadline_ms=deadline_ms)
            if revision is None:
                revision = page.revision
            elif page.revision < revision:
                break  # of another node, which is behind the one before: changes between them would be missed
            rows += [key_value(row) for row in page.rows]
            if not page.more or (limit is not None and len(rows) >= limit):
                return rows[:limit], revision
            after = rows[-1].key
        await asyncio.sleep(0.1)


def key_value(row: StoreRow) -> KeyValue:
    """Return a row that is listed or found."""
    assert row.value is not None, "a row that is listed or found has a value"
    return KeyValue(row.key, row.value, row.revision)
