"""Queues for whoever has the master keys: a queue that is created gets a data key where it needs one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from msgspec.structs import replace

from quaymaster.core.values.errors import Overloaded
from quaymaster.core.values.formats import SHARED_DATA_KEYS, CellFormat
from quaymaster.core.values.queue_definitions import QueueDefinition
from quaymaster.metadata.queues.known_queues import QueuePage
from quaymaster.metadata.queues.shared_data_keys import DataKeyStale
from quaymaster.metadata.store.mirror import Mirror
from quaymaster.metadata.store.rows import MASTER_KEY
from quaymaster.protocol.rpc.metadata_messages import CreateQueue, NewDataKey, QueueChange, QueueListing

DATA_KEY_ATTEMPTS_MAX: Final = 8


class RegisteredQueues(Protocol):
    """Queues, found in memory and changed where they are registered."""

    @property
    def find(self) -> Callable[[str, str], QueueDefinition | None]: ...

    @property
    def queue(self) -> Callable[[str, str], QueueDefinition]: ...

    @property
    def queue_by_id(self) -> Callable[[int], QueueDefinition | None]: ...

    @property
    def journal_of(self) -> Callable[[int, int], int | None]: ...

    @property
    def account_of(self) -> Callable[[int], str]: ...

    def __len__(self) -> int: ...

    async def list_page(self, request: QueueListing) -> QueuePage: ...

    async def refresh(self, definition: QueueDefinition) -> None: ...

    async def change(self, request: QueueChange) -> QueueDefinition: ...


class MakesDataKeys(Protocol):
    """The part of `DataKeys` that makes them."""

    async def new_data_key(self) -> NewDataKey: ...

    def drop_ids(self) -> None: ...


class KeyedQueues:
    """Look-ups answer as those of `RegisteredQueues`, without a step in between."""

    def __init__(
        self, queues: RegisteredQueues, data_keys: MakesDataKeys, mirror: Mirror, cell_format: CellFormat
    ) -> None:
        self._queues = queues
        self._data_keys = data_keys
        self._mirror = mirror
        self._cell_format = cell_format
        self.find = queues.find
        self.queue = queues.queue
        self.queue_by_id = queues.queue_by_id
        self.journal_of = queues.journal_of
        self.account_of = queues.account_of
        self.list_page = queues.list_page
        self.refresh = queues.refresh

    def __len__(self) -> int:
        return len(self._queues)

    async def change(self, request: QueueChange) -> QueueDefinition:
        """Do what is asked, and return the queue as it then is. Raises as `Queues.change`, but no DataKeyStale."""
        if isinstance(request, CreateQueue):
            return await self._create(request)
        return await self._queues.change(request)

    async def _create(self, request: CreateQueue) -> QueueDefinition:
        # Most queues share their account's data key: one is made when it is asked for.
        shares_keys = self._cell_format.version_of(SHARED_DATA_KEYS)
        data_key = None if shares_keys else await self._data_keys.new_data_key()
        for _ in range(DATA_KEY_ATTEMPTS_MAX):
            try:
                return await self._queues.change(replace(request, data_key=data_key))
            except DataKeyStale:
                if data_key is not None:
                    await self._mirror.refresh(MASTER_KEY)  # it was rotated meanwhile
                    self._data_keys.drop_ids()  # or the store that set them aside has gone back
                data_key = await self._data_keys.new_data_key()
        raise Overloaded
