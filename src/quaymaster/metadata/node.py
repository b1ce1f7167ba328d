"""A metadata node: the rows of the store for front ends, and the changes of queues that touch metadata and journal.

    front ends ──requests──▶ node ──compare-and-swap──▶ store (etcd) ◀── other nodes
                              │ ▲                         │
               QUEUE_SET, ... │ └──── feed, tables ◀──────┘ watch
                              ▼
                           journals

Organized as `full`: every node holds everything, and any may be asked. Nodes know nothing of each other; what they
do at once is sorted out by compare-and-swap, and what one leaves half done another finishes (`reconcile`).

A node has no master key: secrets come wrapped, stay wrapped and leave wrapped. Front ends wrap and unwrap.

How old a node's knowledge is it finds out by itself: it writes a row now and then, and sees it come back by its watch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from quaymaster.coordination.interface import (
    Compare,
    Coordination,
    Event,
    KeyValue,
    Put,
    RevisionMismatch,
    StoreUnusable,
    WatchLost,
)
from quaymaster.coordination.key_uses import KEY_USES
from quaymaster.coordination.noted_acts import ACTS
from quaymaster.core.values.errors import AccessDenied, NotNow, Overloaded
from quaymaster.core.values.queues.queue_definitions import decode_queue_definition, encode_queue_definition
from quaymaster.metadata.alert_rows import ALERT_ROWS
from quaymaster.metadata.limits.divisions import Divisions
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.queue_registry import CATCH_UP_MS, QueueRegistry
from quaymaster.metadata.queues.known_queues import QueuePage
from quaymaster.metadata.queues.queue_journals import QueueJournal
from quaymaster.metadata.queues.shared_data_keys import DataKeyStale
from quaymaster.metadata.store.coalescer import Coalescer, StoreReads
from quaymaster.metadata.store.feed import Feed
from quaymaster.metadata.store.rows import (
    ACCESS_KEYS,
    ACCOUNTS,
    AUTHORIZATION_FLOOR,
    DATA_KEYS,
    IDS,
    ISSUERS,
    KMS_ALIASES,
    KMS_KEYS,
    LIMITS,
    MASTER_KEY,
    NODES,
    PUSH_SECRETS,
    PUSH_STATES,
    QUEUE_KEYS,
    QUEUES,
    READERS,
    RECEIPT_KEYS,
    ROLES,
    ROOT,
    SESSION_KEYS,
    USERS,
    WRAPPING_KEYS,
    NodeRow,
    encode_row,
    id_text,
)
from quaymaster.metadata.upkeep import Upkeep
from quaymaster.monitoring.metrics import Histogram, HistogramSample, Sample
from quaymaster.protocol.rpc.metadata_messages import (
    PAGE_BYTES_MAX,
    PAGE_ROWS_MAX,
    QUEUES_FOUND_MAX,
    Answer,
    ChangedQueue,
    Changes,
    CountQueues,
    FindQueues,
    FindRows,
    FoundRows,
    GetChanges,
    GetRow,
    Greet,
    Greeting,
    ListDeadLetterSources,
    ListGroups,
    ListQueues,
    ListRows,
    QueueChange,
    QueueList,
    ReportShares,
    Request,
    RowPage,
    StoreRow,
    Swap,
    Transact,
    Transacted,
)

log = logging.getLogger(__name__)

READ_MS: Final = 400
"""How long a look-up waits for the store; less than a front end waits for a node."""
FIND_KEYS_MAX: Final = 128
NEVER_MS: Final = 10**12

_WRITABLE: Final = (
    *(WRAPPING_KEYS, QUEUE_KEYS, KMS_KEYS, KMS_ALIASES),
    *(AUTHORIZATION_FLOOR, ACCOUNTS, USERS, ROLES, ACCESS_KEYS),
    *(DATA_KEYS, RECEIPT_KEYS, SESSION_KEYS, ISSUERS, MASTER_KEY, IDS, READERS, LIMITS, KEY_USES, ACTS),
    *(PUSH_SECRETS, PUSH_STATES),
    *ALERT_ROWS,
)
"""What front ends change by transactions of their own, and the events of that.

Queues are changed by requests that know the rules.
"""


class MetadataNode:
    """Answers the requests of front ends. Nodes of one store may be started, stopped and killed as one likes."""

    def __init__(
        self,
        store: Coordination,
        options: MetadataOptions,
        *,
        name: str,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], float],
        journals: Callable[[], Sequence[int]] = lambda: (0,),
        on_unusable: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """`on_unusable` is called when the store went back: what is in memory is newer, and the process must end."""
        self._durations: dict[str, Histogram] = {}
        self.name = name
        self._store = store
        self._greeting = Greeting(options.region, options.account_id, options.zone)
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self._beat_interval_ms = options.beat_interval_ms
        self.feed = Feed(store)
        self.registry = QueueRegistry(
            *(store, options),
            now_ms=now_ms,
            source=self.feed,
            journals=journals,
            node=name,
            monotonic_s=lambda: monotonic_ms() / 1000,
        )
        self.queues = self.registry.queues
        self._divisions = Divisions(name, self.registry.limits.table, monotonic_ms)
        self._confirmed_ms: float | None = None
        """When, by the monotonic clock, the feed had certainly everything."""
        self._reads = StoreReads(store)
        self._confirm = Coalescer(self.beat)
        self._on_unusable = on_unusable
        self._written = 0
        """The revision of its last beat."""
        self._went_back: StoreUnusable | None = None
        self._upkeep = Upkeep()

    async def start(self, journal: QueueJournal) -> None:
        """Read everything, finish what a crash cut in half as far as the journals can be reached, and keep up.

        Raises:
            StoreUnusable: the store holds what this program cannot read, or is another cell's.
            NotNow: the store cannot be reached.
        """
        began_ms = self._monotonic_ms()
        await self.feed.start()
        self._confirmed_ms = began_ms
        self.registry.attach_journal(journal)
        try:
            await self.registry.start()
        except BaseException:
            await self.feed.close()
            raise
        self._upkeep.repeat("metadata beat", self.beat, self._beat_interval_ms)

    async def close(self) -> None:
        """Stop. The store stays open."""
        await self._upkeep.close()
        await self._confirm.close()
        await self._reads.close()
        await self.registry.close()
        await self.feed.close()

    @property
    def failure(self) -> BaseException | None:
        """Why the node no longer follows the store (then it should be stopped); None while all is well."""
        return self._went_back or self.feed.failure or self.registry.failure

    @property
    def age_ms(self) -> int:
        """How old what the node knows may be."""
        if self._confirmed_ms is None or self.failure is not None:
            return NEVER_MS
        return max(0, int(self._monotonic_ms() - self._confirmed_ms))

    def why_not_ready(self) -> str | None:
        """Return why nothing should be asked of this node, None when all is well."""
        if self.failure is not None:
            return f"The metadata store cannot be followed: {self.failure}"
        return self.queues.id_guard.problem

    def samples(self) -> list[Sample]:
        """Give the node's metrics: a source for `Metrics`."""
        return [
            Sample("quaymaster_metadata_node_age_seconds", self.age_ms / 1000),
            Sample("quaymaster_metadata_node_rows", len(self.feed)),
            *self.registry.samples(),
        ]

    def durations_of(self, request: str) -> Histogram:
        """Return how long requests of a kind took to answer."""
        durations = self._durations.get(request)
        if durations is None:
            durations = self._durations[request] = Histogram()
        return durations

    def histograms(self) -> Iterator[HistogramSample]:
        """Give the durations of requests: a source for `Metrics`."""
        for request, durations in self._durations.items():
            yield HistogramSample("quaymaster_metadata_request_duration_seconds", durations, (request,))

    async def beat(self) -> int:
        """Write a row and wait until the watch brings it: then everything before is known too. Return its revision."""
        began_ms = self._monotonic_ms()
        row = encode_row(NodeRow(self.name, self._now_ms()))
        seen = max(self.feed.position, self._written)
        key = NODES + self.name
        try:
            try:
                unchanged = [Compare(key, self._written)] if self._written else []
                revision = await self._store.transaction(unchanged, [Put(key, row)])
            except RevisionMismatch as mismatch:
                if mismatch.found < mismatch.expected:
                    raise self._went_back_to(mismatch.expected, mismatch.found) from None
                revision = await self._store.transaction([], [Put(key, row)])  # two beats at once
        except NotNow:
            self.queues.id_guard.distrust()  # it is away, and may come back as it was before
            raise
        if revision <= seen:
            raise self._went_back_to(seen, revision)
        self._written = max(self._written, revision)
        async with asyncio.timeout(self._beat_interval_ms * 10 / 1000):
            while self.feed.position < revision:
                await self.feed.wait_for_change()
        self._confirmed_ms = began_ms
        return revision

    def _went_back_to(self, seen: int, revision: int) -> NotNow:
        """The store has lost what this node saw of it: what was written by it, or a later revision."""
        self._went_back = StoreUnusable(
            f"the metadata store went back: it was at revision {seen}, and has lost that (it says {revision}). It was "
            "restored from an older copy; start this node again to continue with that"
        )
        log.error("metadata store went back seen=%d revision=%d", seen, revision)
        self._on_unusable(self._went_back)
        return NotNow("The metadata store went back.")

    # Answering

    async def answer(self, request: Request) -> Answer:
        """Do what is asked.

        Raises:
            CallerError: what is asked cannot be.
            NotNow: it cannot be done now, or the outcome is unknown (Timeout).
        """
        if self.failure is not None:
            raise NotNow("This metadata node does not follow its store any more.")
        match request:
            case GetChanges():
                return await self._changes(request)
            case FindRows():
                return await self._find(request)
            case ListRows():
                return await self._list(request)
            case GetRow():
                _check_ours(request.key)
                row = await self._store.get(request.key)
                return FoundRows([] if row is None else [_row(row)], self.feed.position, self.age_ms)
            case Transact():
                return await self._transact(request)
            case ReportShares():
                return self._divisions.answer(request)
            case Greet():
                return self._greeting
            case ListQueues() | ListDeadLetterSources() | ListGroups():
                with contextlib.suppress(StoreUnreachable):  # the front end decides how old a list may be
                    await self._see_everything()
                await self.registry.reached(request.at_least)
                return _queue_list(await self.queues.list_page(request))
            case FindQueues():
                return self._find_queues(request)
            case CountQueues():
                await self._see_everything()
                return await self.registry.count(request.account_id, request.at_least)
        return await self._change(request)

    async def _changes(self, request: GetChanges) -> Changes:
        deadline_ms = self._monotonic_ms() + request.wait_ms
        while True:
            try:
                events, position = self.feed.changes(
                    request.prefixes, request.after_revision, PAGE_ROWS_MAX, PAGE_BYTES_MAX
                )
            except WatchLost:
                return Changes([], self.feed.position, self.age_ms, is_lost=True)
            left_ms = deadline_ms - self._monotonic_ms()
            if events or left_ms <= 0:
                more = position < self.feed.position
                return Changes([_changed(event) for event in events], position, self.age_ms, more=more)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_ms / 1000):
                    await self.feed.wait_for_change()

    async def _find(self, request: FindRows) -> FoundRows:
        if len(request.keys) > FIND_KEYS_MAX:
            raise Overloaded(f"At most {FIND_KEYS_MAX} rows are looked for together.")
        for key in request.keys:
            _check_ours(key)
        must_read = request.is_stored or self.feed.position < request.at_least
        known = {row.key: row for row in map(self.feed.get, request.keys) if row is not None}
        unsure = [key for key in request.keys if must_read or not _is_in_use(known.get(key))]
        position, age_ms = self.feed.position, self.age_ms
        if unsure:
            try:
                found, revision = await self._read(unsure)
            except StoreUnreachable:
                if must_read:
                    raise
            else:
                if revision < request.at_least:
                    raise NotNow("This metadata node is behind another one.")
                for row in found.values():
                    self.feed.keep(row, revision)
                known = {key: row for key, row in known.items() if key not in unsure} | found
                if len(unsure) == len(request.keys):
                    position, age_ms = revision, 0
        rows = [_row(row) for row in known.values()]
        # Who asks for a queue is about to need its data key.
        data_keys = [self.feed.get(_data_key_of(row)) for row in known.values() if row.key.startswith(QUEUES)]
        return FoundRows(rows + [_row(row) for row in data_keys if row is not None], position, age_ms)

    def _find_queues(self, request: FindQueues) -> QueueList:
        if len(request.queue_ids) > QUEUES_FOUND_MAX:
            raise Overloaded(f"At most {QUEUES_FOUND_MAX} queues are looked for together.")
        found = map(self.queues.queue_by_id, request.queue_ids)
        return QueueList([encode_queue_definition(queue) for queue in found if queue is not None], None)

    async def _read(self, keys: list[str]) -> tuple[dict[str, KeyValue], int]:
        try:
            async with asyncio.timeout(READ_MS / 1000):
                return await self._reads.read(keys)
        except (NotNow, TimeoutError) as error:
            raise StoreUnreachable(error) from None

    async def _list(self, request: ListRows) -> RowPage:
        _check_ours(request.prefix)
        if request.is_stored:
            listing = await self._store.list_prefix(request.prefix, after=request.after, limit=PAGE_ROWS_MAX)
            return RowPage([_row(row) for row in listing.items], listing.revision, listing.more)
        rows, more = self.feed.page(request.prefix, request.after, PAGE_ROWS_MAX, PAGE_BYTES_MAX)
        return RowPage([_row(row) for row in rows], self.feed.position, more)

    async def _transact(self, request: Transact) -> Transacted:
        for key in (*(put.key for put in request.puts), *request.deletes):
            if not key.startswith(_WRITABLE):
                raise AccessDenied(f"{key} is not for front ends to write.")
        try:
            revision = await self._store.transaction(
                [Compare(swap.key, swap.revision) for swap in request.compares],
                [Put(put.key, put.value) for put in request.puts],
                request.deletes,
            )
        except RevisionMismatch as mismatch:
            return Transacted(0, Swap(mismatch.key, mismatch.expected), mismatch.found)
        return Transacted(revision)

    async def _change(self, request: QueueChange) -> ChangedQueue:
        await self._see_everything()
        await self.registry.reached(request.at_least)
        try:
            definition, revision = await self.queues.change_row(request)
        except DataKeyStale:
            return ChangedQueue(None)
        return ChangedQueue(encode_queue_definition(definition), revision)

    async def _see_everything(self) -> None:
        """Return when the tables show what the store had when this was called: all that anybody was told of."""
        try:
            async with asyncio.timeout(CATCH_UP_MS / 1000):
                await self.registry.mirror.reached(await self._confirm())
        except (NotNow, TimeoutError) as error:
            raise StoreUnreachable(error) from None


class StoreUnreachable(NotNow):
    """Nothing was begun: what there is in the store cannot be known now."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"Metadata nodes cannot reach their store: {str(error) or 'no answer in time'}")


def _check_ours(key: str) -> None:
    if not key.startswith(ROOT):
        raise AccessDenied(f"{key!r} is not metadata's.")


def _is_in_use(row: KeyValue | None) -> bool:
    """Tell whether there is a row that says all: a queue that is being made or deleted may be so no more."""
    if row is None:
        return False
    return not row.key.startswith(QUEUES) or decode_queue_definition(row.value).state == "active"


def _data_key_of(row: KeyValue) -> str:
    return DATA_KEYS + id_text(decode_queue_definition(row.value).data_key_id)


def _row(row: KeyValue) -> StoreRow:
    return StoreRow(row.key, row.value, row.revision)


def _changed(event: Event) -> StoreRow:
    return StoreRow(event.key, event.value, event.revision)


def _queue_list(page: QueuePage) -> QueueList:
    return QueueList([encode_queue_definition(queue) for queue in page.queues], page.next_token)
