"""Queues as a front end of a cell has them: found in memory, changed by a metadata node."""

from __future__ import annotations

from typing import Final, TypeVar

from msgspec.structs import replace

from quaymaster.core.values.errors import ConnectionLost, NotNow, QueueDoesNotExist, Timeout
from quaymaster.core.values.queues.queue_definitions import (
    QueueDefinition,
    decode_queue_definition,
    replace_definition,
)
from quaymaster.metadata.queues.active_queues import ActiveQueues
from quaymaster.metadata.queues.known_queues import QueuePage
from quaymaster.metadata.queues.shared_data_keys import DataKeyStale
from quaymaster.metadata.remote.read_through import CacheLoader, ReadThroughCache
from quaymaster.metadata.remote.rows import RemoteLimits
from quaymaster.metadata.store.mirror import MirrorTable
from quaymaster.metadata.store.rows import DATA_KEYS, QUEUES, id_text
from quaymaster.net.routing.metadata_client import MetadataClient
from quaymaster.protocol.rpc.metadata_messages import (
    CancelPurge,
    ChangedQueue,
    CheckTable,
    CreateGroup,
    CreateQueue,
    DeleteQueue,
    FindQueues,
    QueueChange,
    QueueList,
    QueueListing,
    SetAttributes,
    StoreRow,
    TagQueue,
    UntagQueue,
)

_REPEATABLE: Final = (SetAttributes, TagQueue, UntagQueue, CancelPurge, CreateGroup, CheckTable)
"""Changes that may be asked of another node when one may have made them: made twice, they come to the same."""

Asked = TypeVar("Asked", bound=QueueChange | QueueListing)


class RemoteQueues(ActiveQueues):
    """Queues: found in memory, changed through a metadata node."""

    def __init__(
        self,
        client: MetadataClient,
        mirror: ReadThroughCache,
        lookups: CacheLoader,
        limits: RemoteLimits,
    ) -> None:
        super().__init__()
        self._client = client
        self._mirror = mirror
        self._lookups = lookups
        self._staleness_ms = limits.staleness_ms
        self._deadline_ms = limits.change_ms
        self._rows: MirrorTable[QueueDefinition] = mirror.table(
            QUEUES, decode_queue_definition, self._on_queue, capacity=limits.rows_max
        )
        self._seen = 0
        """The revision of the last change that this front end made: the node that it asks next must know of it."""

    def find(self, account_id: str, name: str) -> QueueDefinition | None:
        """Return an active queue, or None; NotYetKnown while it is asked for."""
        definition = self._by_name.get((account_id, name))
        if definition is None:
            self._lookups.miss(f"{QUEUES}{account_id}/{name}")
        return definition

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

    async def learn(self, queue_id: int) -> None:
        """Have look-ups find a queue by its id; QueueDoesNotExist if a node knows none."""
        listed = await self._client.ask(FindQueues([queue_id]), QueueList, deadline_ms=self._deadline_ms)
        if not listed.definitions:
            raise QueueDoesNotExist
        await self.refresh(decode_queue_definition(listed.definitions[0]))
        if self.queue_by_id(queue_id) is None:
            raise NotNow("The queue is not known here yet.")

    async def refresh(self, definition: QueueDefinition) -> None:
        """Have look-ups find a queue as it is in the store now, or as it is known where that cannot be learned."""
        await self._lookups.refresh(f"{QUEUES}{definition.account_id}/{definition.name}")

    async def change(self, request: QueueChange) -> QueueDefinition:
        """Have a node do what is asked; as `Queues.change`. Raises DataKeyStale as that does."""
        if isinstance(request, CreateQueue):
            return await self._create(request)
        if isinstance(request, DeleteQueue):
            return await self._delete(request)
        changed = await self._ask(request, is_repeatable=isinstance(request, _REPEATABLE))
        if changed.definition is None:
            raise DataKeyStale
        return self._take(changed)

    async def _create(self, request: CreateQueue) -> QueueDefinition:
        changed = await self._ask(request, is_repeatable=True)
        if changed.definition is None:
            raise DataKeyStale
        definition = self._take(changed)
        data_key = request.data_key
        if data_key is not None and definition.data_key_id == data_key.key_id:
            # As of the beginning: any change that is heard of it, a new wrapping above all, is newer.
            data_row = StoreRow(DATA_KEYS + id_text(data_key.key_id), data_key.row, 1)
            self._mirror.take_found([data_row], changed.revision)
        return definition

    async def _delete(self, request: DeleteQueue) -> QueueDefinition:
        account_id, name = request.account_id, request.name
        known = self._by_name.get((account_id, name))
        try:
            changed = await self._ask(request)
        except (Timeout, ConnectionLost):
            if known is None:
                raise
            # A node began, or did not. The node that is asked next does it, or finds that it is done.
            try:
                changed = await self._ask(request)
            except QueueDoesNotExist:
                row = await self._mirror.store.get(f"{QUEUES}{account_id}/{name}")
                queue_id = request.queue_id or known.queue_id
                if row is not None and decode_queue_definition(row.value).queue_id == queue_id:
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
        assert changed.definition is not None, "a queue that was changed is in the answer"
        definition = decode_queue_definition(changed.definition)
        self._seen = max(self._seen, changed.revision)
        key = f"{QUEUES}{definition.account_id}/{definition.name}"
        self._mirror.take_found([StoreRow(key, changed.definition, changed.revision)], changed.revision)
        return definition

    def _on_queue(self, suffix: str, old: QueueDefinition | None, new: QueueDefinition | None) -> None:
        self._note(old, new)
