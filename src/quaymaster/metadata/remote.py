"""Metadata as a front end of a cell has it: in memory, fed by metadata nodes; secrets unwrapped here and nowhere else.

    start ──list──▶ tables ◀──changes── metadata node (another one when it fails)
                      │ ▲                    ▲
     find_queue, ◀────┘ └── own changes      │ CreateQueue, ... , look-ups of what is not in memory
     access_key, data_key   applied at once ─┘

Look-ups answer from memory, as fast as in one process. What is not there is asked for (`NotYetKnown`): either it
comes into memory, or there is no such thing in the store.

**When no node answers**, what is known goes on being served, however old: messages flow. What is not known, and every
change, fails as "not now". `age_ms` says how old what is known may be.

Memory is bounded: of queues at most `rows_max` are kept, of data keys DATA_KEYS_KEPT_MAX; the others are asked for when
needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from msgspec.structs import replace

from quaymaster.coordination.interface import (
    ABSENT,
    Compare,
    Event,
    KeyValue,
    Put,
    RevisionMismatch,
    WatchLost,
)
from quaymaster.core.values.errors import (
    CallerError,
    ConnectionLost,
    NotNow,
    NotYetKnown,
    Overloaded,
    QueueDoesNotExist,
    Timeout,
    Unreachable,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import SHARED_DATA_KEYS, CellFormat
from quaymaster.core.values.queue_definitions import (
    QueueDefinition,
    decode_queue_definition,
    replace_definition,
)
from quaymaster.core.values.written_times import CLOCKS_DIFFER_MAX_MS, has_passed
from quaymaster.metadata.keys.accounts import AccessKey, Accounts
from quaymaster.metadata.keys.data_keys import UPKEEP_FAILS, DataKeys, MasterKeyRotation
from quaymaster.metadata.keys.master_keys import KeyProvider, KeysUnusable, MasterKeyMissing, MasterKeys
from quaymaster.metadata.queues.declared_queues import (
    apply_declared_queues,
    load_declared_queues,
    note_nothing,
)
from quaymaster.metadata.queues.known_queues import QueuePage
from quaymaster.metadata.store.identity import Identity, compare_identities
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.other_clocks import OtherClocks
from quaymaster.metadata.store.quotas import Quotas
from quaymaster.metadata.store.rows import (
    ACCESS_KEYS,
    ACCOUNTS,
    DATA_KEYS,
    DATA_KEYS_KEPT_MAX,
    MASTER_KEY,
    QUEUES,
    READERS,
    RECEIPT_KEYS,
    ReaderRow,
    encode_row,
    id_text,
    row_decoder,
)
from quaymaster.monitoring.metrics import Sample
from quaymaster.monitoring.supervision import supervise
from quaymaster.net.routing.metadata_client import MetadataClient, known, looked_up, one_request
from quaymaster.protocol.rpc.metadata_messages import (
    CancelPurge,
    ChangedQueue,
    CountedQueues,
    CountQueues,
    CreateGroup,
    CreateQueue,
    DeleteQueue,
    FindRows,
    FoundRows,
    GetRow,
    Greet,
    Greeting,
    ListRows,
    QueueChange,
    QueueList,
    QueueListing,
    RowPage,
    SetAttributes,
    StoreRow,
    Swap,
    TagQueue,
    Transact,
    Transacted,
    UntagQueue,
    Written,
)
from quaymaster.protocol.sqs.receipts import ReceiptHandles

log = logging.getLogger(__name__)

ROWS_MAX: Final = 200_000
UNKNOWN_MS: Final = 5_000
UNKNOWN_MAX: Final = 10_000
LOOKUPS_MAX: Final = 128
"""Look-ups at once, of each kind: together fewer than a client may have in flight, so that changes find room."""
LOOKUP_MS: Final = 2_000
STALENESS_MS: Final = 10_000
REFRESH_REST_MS: Final = 1_000
"""For how long rows in memory are good enough after the store could not be asked."""
LOOKUP_ATTEMPT_MS: Final = 500
LIST_MS: Final = 30_000
CHANGE_MS: Final = 20_000
UPKEEP_INTERVAL_MS: Final = 30_000
DELETIONS_KEPT: Final = 10_000
DATA_KEY_ATTEMPTS_MAX: Final = 8
RECEIPT_KEY_LEAD_MS: Final = 60_000
"""A new receipt key signs when every front end that hears of changes at all has had it for long."""
READER_GONE_MS: Final = 5 * UPKEEP_INTERVAL_MS
"""A front end not heard of for longer is gone, and need not have a new master key."""

_FOLLOWED: Final = (MASTER_KEY, ACCOUNTS, ACCESS_KEYS, DATA_KEYS, RECEIPT_KEYS, QUEUES, READERS)
_KEY_CHARS_MAX: Final = 200
_ACCESS_KEY: Final = re.compile(ACCESS_KEYS + "[A-Z0-9]{20}", re.ASCII)

_REPEATABLE: Final = (SetAttributes, TagQueue, UntagQueue, CancelPurge, CreateGroup)
"""Changes that may be asked of another node when one may have made them: made twice, they come to the same."""

Asked = TypeVar("Asked", bound=QueueChange | QueueListing)


class RemoteStore:
    """The rows of the store, read and written through a metadata node; never from anybody's memory."""

    def __init__(self, client: MetadataClient, deadline_ms: int) -> None:
        self._client = client
        self._deadline_ms = deadline_ms

    async def get(self, key: str) -> KeyValue | None:
        """Return a row as last changed, or None."""
        found = await self._client.ask(GetRow(key), FoundRows, key=key, deadline_ms=self._deadline_ms)
        return _key_value(found.rows[0]) if found.rows else None

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
            rows += [_key_value(row) for row in page.rows]
            if not page.more or (limit is not None and len(rows) >= limit):
                return rows[:limit], revision
            after = rows[-1].key
        await asyncio.sleep(0.1)


def _key_value(row: StoreRow) -> KeyValue:
    assert row.value is not None, "a row that is listed or found has a value"
    return KeyValue(row.key, row.value, row.revision)


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
        """Not asked yet: the answer is good for whoever comes now, too."""
        self.asked: dict[str, asyncio.Task[bool]] = {}
        """Asked already: the answer may be older than who comes now."""
        self.unknown: dict[str, float] = {}
        """What there is not, and until when that is believed; the oldest first."""


class CacheLoader:
    """Asks for what is not in memory: each thing once, however many wait for it.

    A queue that was created elsewhere, and answered, is found: a node says that there is none when the store has
    none, and who asks later asks anew. Of keys it is remembered for a while: their ids are made up by chance, and
    nobody asks for one before it exists.

    Queues, access keys and data keys have bounds of their own: whoever makes up access keys does not keep anybody
    from finding a queue.
    """

    def __init__(
        self,
        client: MetadataClient,
        *,
        unknown_ms: int = UNKNOWN_MS,
        unknown_max: int = UNKNOWN_MAX,
        lookups_max: int = LOOKUPS_MAX,
        lookup_ms: int = LOOKUP_MS,
        staleness_ms: int = STALENESS_MS,
    ) -> None:
        self._client = client
        self._staleness_ms = staleness_ms
        self.results: Counter[str] = Counter()
        """What came of look-ups: found, absent or failed."""
        self._unknown_s = unknown_ms / 1000
        self._unknown_max = unknown_max
        self._lookups_max = lookups_max
        self._lookup_ms = lookup_ms
        self._kinds = {
            QUEUES: _Kind(remembers=False),
            ACCESS_KEYS: _Kind(remembers=True),
            DATA_KEYS: _Kind(remembers=True),
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
        deadline_s = time.monotonic() + self._lookup_ms / 1000
        while (left_ms := int((deadline_s - time.monotonic()) * 1000)) > 0:
            found = await self._client.ask(
                FindRows([key], self.mirror.position, kind.is_stored),
                FoundRows,
                key=key,
                deadline_ms=left_ms,
                attempt_ms=LOOKUP_ATTEMPT_MS,
            )
            if self.mirror.take_found(found.rows, found.position):
                if found.age_ms <= self._staleness_ms and key not in {row.key for row in found.rows}:
                    self.mirror.take_gone(key, found.position)
                if self.mirror.has(key):
                    self.results["found"] += 1
                    return True
                if found.age_ms <= self._staleness_ms:
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
        kind.unknown[key] = time.monotonic() + self._unknown_s
        if len(kind.unknown) > self._unknown_max:
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


class RemoteQueues:
    """Queues: found in memory, changed through a metadata node."""

    def __init__(
        self,
        client: MetadataClient,
        mirror: ReadThroughCache,
        lookups: CacheLoader,
        data_keys: DataKeys,
        *,
        rows_max: int,
        deadline_ms: int,
        staleness_ms: int,
        cell_format: CellFormat,
    ) -> None:
        self._cell_format = cell_format
        self._client = client
        self._mirror = mirror
        self._lookups = lookups
        self._data_keys = data_keys
        self._staleness_ms = staleness_ms
        self._deadline_ms = deadline_ms
        self._rows: MirrorTable[QueueDefinition] = mirror.table(
            QUEUES, decode_queue_definition, self._on_queue, capacity=rows_max
        )
        self._by_name: dict[tuple[str, str], QueueDefinition] = {}
        self._by_id: dict[int, QueueDefinition] = {}
        self._seen = 0
        """The revision of the last change that this front end made: whoever it asks next must know of it."""

    def find(self, account_id: str, name: str) -> QueueDefinition | None:
        """Return an active queue, or None; NotYetKnown while it is asked for."""
        definition = self._by_name.get((account_id, name))
        if definition is None:
            self._lookups.miss(f"{QUEUES}{account_id}/{name}")
        return definition

    def queue(self, account_id: str, name: str) -> QueueDefinition:
        """Return an active queue; QueueDoesNotExist, NotYetKnown."""
        definition = self.find(account_id, name)
        if definition is None:
            raise QueueDoesNotExist
        return definition

    def journal_of(self, queue_id: int, partition: int) -> int | None:
        """Return where a partition of a queue in memory is, None when it is not there."""
        definition = self._by_id.get(queue_id)
        if definition is None or partition >= len(definition.partitions):
            return None
        return definition.partitions[partition].journal_id

    def __len__(self) -> int:
        return len(self._by_name)

    async def list_page(self, request: QueueListing) -> QueuePage:
        """Return the queues that are asked for; as `Queues.list_page`."""
        self._check_fresh()
        listed = await self._client.ask(self._as_seen(request), QueueList, deadline_ms=self._deadline_ms)
        return QueuePage([decode_queue_definition(data) for data in listed.definitions], listed.next_token)

    def _check_fresh(self) -> None:
        """A list from a node that has not heard of its store for long would be taken for the truth."""
        age_ms = self._client.age_ms
        if age_ms > self._staleness_ms:
            raise NotNow(self._client.why_old)

    async def refresh(self, definition: QueueDefinition) -> None:
        """Have look-ups find a queue as it is in the store now, or as it is known where that cannot be learned."""
        await self._lookups.refresh(f"{QUEUES}{definition.account_id}/{definition.name}")

    async def change(self, request: QueueChange) -> QueueDefinition:
        """Have a node do what is asked; as `Queues.change`."""
        if isinstance(request, CreateQueue):
            return await self._create(request)
        if isinstance(request, DeleteQueue):
            return await self._delete(request)
        return self._take(await self._ask(request, is_repeatable=isinstance(request, _REPEATABLE)))

    async def _create(self, request: CreateQueue) -> QueueDefinition:
        shares_keys = self._cell_format.version_of(SHARED_DATA_KEYS)
        data_key = None if shares_keys else await self._data_keys.new_data_key()
        for _ in range(DATA_KEY_ATTEMPTS_MAX):
            changed = await self._ask(replace(request, data_key=data_key), is_repeatable=True)
            if changed.definition is None:
                if data_key is not None:
                    await self._mirror.refresh(MASTER_KEY)  # it was rotated meanwhile
                    self._data_keys.drop_ids()  # or the store that set them aside has gone back
                data_key = await self._data_keys.new_data_key()
                continue
            definition = self._take(changed)
            if data_key is not None and definition.data_key_id == data_key.key_id:
                # As of the beginning: any change that is heard of it, a new wrapping above all, is newer.
                data_row = StoreRow(DATA_KEYS + id_text(data_key.key_id), data_key.row, 1)
                self._mirror.take_found([data_row], changed.revision)
            return definition
        raise Overloaded

    async def _delete(self, request: DeleteQueue) -> QueueDefinition:
        account_id, name = request.account_id, request.name
        known = self._by_name.get((account_id, name))
        try:
            changed = await self._ask(request)
        except (Timeout, ConnectionLost):
            if known is None:
                raise
            # A node began, or did not. Whoever is asked next does it, or finds that it is done.
            try:
                changed = await self._ask(request)
            except QueueDoesNotExist:
                row = await self._mirror.store.get(f"{QUEUES}{account_id}/{name}")
                if row is not None and decode_queue_definition(row.value).queue_id == known.queue_id:
                    raise  # half done; a node's reconciler goes on with it
                return replace_definition(known, state="deleting")
        return self._take(changed)

    async def _ask(self, request: QueueChange, *, is_repeatable: bool = False) -> ChangedQueue:
        return await self._client.ask(
            self._as_seen(request),
            ChangedQueue,
            key=f"{QUEUES}{request.account_id}/{request.name}",
            deadline_ms=self._deadline_ms,
            attempt_ms=self._deadline_ms // 2,
            is_repeatable=is_repeatable,
        )

    def _as_seen(self, request: Asked) -> Asked:
        """Return the request as one that only a node answers that knows of what was changed here."""
        return replace(request, at_least=self._seen)

    def _take(self, changed: ChangedQueue) -> QueueDefinition:
        assert changed.definition is not None, "only a creation is answered without a queue"
        definition = decode_queue_definition(changed.definition)
        self._seen = max(self._seen, changed.revision)
        key = f"{QUEUES}{definition.account_id}/{definition.name}"
        self._mirror.take_found([StoreRow(key, changed.definition, changed.revision)], changed.revision)
        return definition

    def _on_queue(self, suffix: str, old: QueueDefinition | None, new: QueueDefinition | None) -> None:
        if old is not None and old.state == "active":
            del self._by_name[old.account_id, old.name]
            del self._by_id[old.queue_id]
        if new is not None and new.state == "active":
            self._by_name[new.account_id, new.name] = new
            self._by_id[new.queue_id] = new


async def _count_queues(
    client: MetadataClient, deadline_ms: int, account_id: str, at_least: int
) -> CountedQueues:
    return await client.ask(CountQueues(account_id, at_least), CountedQueues, deadline_ms=deadline_ms)


class RemoteMetadata:
    """What a front end of a cell asks of metadata; the same to it as `MetadataService`. Has the master keys."""

    def __init__(
        self,
        client: MetadataClient,
        key_provider: KeyProvider,
        *,
        name: str,
        region: str,
        account_id: str,
        now_ms: Callable[[], int],
        rows_max: int = ROWS_MAX,
        unknown_ms: int = UNKNOWN_MS,
        unknown_max: int = UNKNOWN_MAX,
        change_ms: int = CHANGE_MS,
        lookup_ms: int = LOOKUP_MS,
        staleness_ms: int = STALENESS_MS,
        upkeep_interval_ms: int = UPKEEP_INTERVAL_MS,
        cell_format: CellFormat | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self.name = name
        self.region = region
        self.account_id = account_id
        self._client = client
        self._now_ms = now_ms
        self._provider = key_provider
        self._upkeep_interval_ms = upkeep_interval_ms
        cell_format = cell_format or CellFormat()
        self.lookups = CacheLoader(
            client,
            unknown_ms=unknown_ms,
            unknown_max=unknown_max,
            lookup_ms=lookup_ms,
            staleness_ms=staleness_ms,
        )
        store = RemoteStore(client, change_ms)
        self._mirror = ReadThroughCache(store, RemoteSource(client, rows_max), self.lookups)
        self.lookups.mirror = self._mirror
        self._readers: MirrorTable[ReaderRow] = self._mirror.table(READERS, row_decoder(ReaderRow))
        self._other_clocks = OtherClocks()
        self.master_keys = MasterKeys(
            key_provider, self._mirror, check_new=self._check_all_have, retires_with_others=True
        )
        self.data_keys = DataKeys(
            self._mirror,
            self.master_keys,
            now_ms,
            capacity=min(rows_max, DATA_KEYS_KEPT_MAX),
            receipt_key_lead_ms=RECEIPT_KEY_LEAD_MS,
            on_missing=self.lookups.miss,
        )
        self.accounts = Accounts(
            self._mirror,
            self.master_keys,
            now_ms,
            count_queues=partial(_count_queues, client, change_ms),
            on_missing=self._miss_access_key,
            keys_max=(quotas or Quotas()).account_access_keys_max,
            cell_format=cell_format,
        )
        self.queues = RemoteQueues(
            client,
            self._mirror,
            self.lookups,
            self.data_keys,
            rows_max=rows_max,
            deadline_ms=change_ms,
            staleness_ms=staleness_ms,
            cell_format=cell_format,
        )
        self._rotation = MasterKeyRotation(self._mirror, self.master_keys)
        self._default_key: AccessKey | None = None
        self._upkeep_task: asyncio.Task[None] | None = None
        # The look-ups of every request, without a step in between.
        self.queue = self.queues.queue
        self.find_queue = self.queues.find
        self.journal_of = self.queues.journal_of
        self.access_key = self.accounts.access_key
        self.data_key = self.data_keys.data_key

    def _miss_access_key(self, key: str) -> None:
        # Anybody can make up credentials; what is no key's id costs no look-up.
        if _ACCESS_KEY.fullmatch(key) is not None:
            self.lookups.miss(key)

    async def start(self) -> None:
        """Fill the tables from a node, make what a cell's first start needs, and follow from then on.

        Raises:
            KeysUnusable: a master key is missing or damaged here.
            StoreUnusable: the nodes are another cell's, or keep what this program cannot read.
            NotNow: no node can be reached.
        """
        greeting = await self._client.ask(Greet(), Greeting, deadline_ms=LIST_MS)
        compare_identities(
            Identity(self.account_id, self.region), Identity(greeting.account_id, greeting.region)
        )
        await self._mirror.start()
        try:
            await self._start_keys()
            await self.data_keys.start()
            self._default_key = await self.accounts.ensure_default(self.account_id)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOKUP_MS / 1000):
                    await self._client.heard.wait()
            with contextlib.suppress(NotNow):  # the store cannot be written now; upkeep tries again
                await self._note_reader()
        except BaseException:
            await self._mirror.close()
            raise
        self._upkeep_task = supervise(asyncio.create_task(self._upkeep(), name="metadata-upkeep"))

    async def _start_keys(self) -> None:
        is_empty = not (self.data_keys.has_keys or self.accounts.count_accounts())
        try:
            await self.master_keys.start(store_is_empty=is_empty)
        except MasterKeyMissing as missing:
            raise KeysUnusable(
                f"{missing} The front ends of a cell share their master keys: copy {missing.key_id}.key (mode "
                "0600) from keys/ of a front end that runs."
            ) from None

    async def close(self) -> None:
        """Stop following."""
        if self._upkeep_task:
            self._upkeep_task.cancel()
            await asyncio.gather(self._upkeep_task, return_exceptions=True)
        await self.lookups.close()
        await self._mirror.close()

    @property
    def default_access_key(self) -> AccessKey | None:
        """The default account's key that `quaymaster env` shows, as of the start; None: all are disabled."""
        return self._default_key

    @property
    def failure(self) -> BaseException | None:
        """Why changes are no longer taken (then nothing should be served); None while all is well."""
        return self._mirror.failure

    @property
    def age_ms(self) -> float:
        """How old what is known may be."""
        return self._client.age_ms

    def why_not_ready(self) -> str | None:
        """Return why requests should go elsewhere, None when all is well; old knowledge is no reason."""
        return None if self.failure is None else f"Metadata cannot be followed: {self.failure}"

    def samples(self) -> list[Sample]:
        """Give metadata's metrics: a source for `Metrics`."""
        age_s = self._client.age_ms / 1000
        return [
            Sample("quaymaster_metadata_age_seconds", age_s),
            Sample("quaymaster_metadata_queues", len(self.queues)),
            Sample("quaymaster_metadata_retries_total", self._client.retries),
            Sample("quaymaster_metadata_nodes_silent", self._client.nodes_silent),
            *(
                Sample("quaymaster_metadata_lookups_total", number, (result,))
                for result, number in self.lookups.results.items()
            ),
        ]

    @property
    def receipt_handles(self) -> ReceiptHandles:
        """Mints and parses receipt handles with the keys of the moment."""
        return self.data_keys.receipt_handles

    @property
    def master_key_id(self) -> str:
        """The id of the master key that wraps everything now."""
        return self.master_keys.row.current_key_id

    async def load_queues_file(
        self, path: Path, *, note: Callable[[], Awaitable[None]] = note_nothing
    ) -> int:
        """Create and change the queues a TOML file declares; DeclaredQueuesError. Returns how many changed.

        `note` is called before the first change.
        """
        declared = load_declared_queues(path, region=self.region, account_id=self.account_id)
        with one_request():
            for queue in declared:
                try:
                    self.find_queue(self.account_id, queue.name)
                except NotYetKnown as unknown:
                    await known(unknown)
            return await apply_declared_queues(
                self.queues, declared, path=path, account_id=self.account_id, note=note
            )

    async def rotate_master_key(self) -> str:
        """Make a new master key, or take the one that was made and copied; wrap everything with it; retire the old.

        UnsupportedOperation names the front ends that do not have it yet: nothing was changed then.
        """
        try:
            return await self._rotation.rotate()
        except KeysUnusable as error:
            raise UnsupportedOperation(str(error)) from None

    async def rotate_receipt_key(self) -> int:
        """Sign receipt handles with a new key, once every front end knows it. Returns its id."""
        return await self.data_keys.rotate_receipt_key()

    async def run_upkeep(self) -> None:
        """Do what is due: a rotation cut short, keys and sessions past their time."""
        await self._note_reader()
        await self._rotation.finish()
        self.data_keys.take_receipt_keys()
        await self.data_keys.drop_old_receipt_keys()
        self.accounts.other_ms = self._other_clocks.look(
            {row.name: row.seen_ms for _, row in self._readers.items() if row.name != self.name}
        )
        await self.accounts.drop_expired_sessions()
        await self.accounts.drop_keys_of_deleted_accounts()

    async def _note_reader(self) -> None:
        key_ids = tuple(await asyncio.to_thread(self._provider.key_ids))
        row = ReaderRow(self.name, key_ids, self._now_ms())
        await self._mirror.transact([], [Put(READERS + self.name, encode_row(row))])

    def _check_all_have(self, key_id: str) -> None:
        now_ms = self._now_ms()
        without = sorted(
            row.name
            for _, row in self._readers.items()
            if row.name != self.name
            and not has_passed(row.seen_ms, READER_GONE_MS, now_ms, ahead_max_ms=CLOCKS_DIFFER_MAX_MS)
            and key_id not in row.key_ids
        )
        if without:
            raise KeysUnusable(
                f"Nothing was rotated: the front ends {', '.join(without)} do not have the new master key {key_id}. "
                f"Unless they read the key directory of {self.name}, give it to them ({key_id}.key from there, mode "
                f"0600; or QUAYMASTER_MASTER_KEY_PREVIOUS); then wait half a minute, and rotate again."
            )

    async def _upkeep(self) -> None:
        while True:
            await asyncio.sleep(self._upkeep_interval_ms / 1000)
            try:
                await self.run_upkeep()
            except UPKEEP_FAILS as error:
                log.warning("metadata upkeep failed error=%s", error)
