"""Queues where the master keys are: a queue that is created gets a data key where it needs one.

What is secret of a queue's attributes is wrapped here. Metadata nodes, which have no master keys, never see it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Protocol

from msgspec.structs import replace

from quaymaster.core.values.errors import NotNow, Overloaded, QueueNameExists
from quaymaster.core.values.formats import DELIVERY, SHARED_DATA_KEYS
from quaymaster.core.values.queues.attribute_rules import PUSHED, says_push, with_masked_headers
from quaymaster.core.values.queues.attributes import PUSH_ENDPOINT, PUSH_HEADERS
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.push_endpoints import check_reachable
from quaymaster.metadata.queues.known_queues import QueuePage
from quaymaster.metadata.queues.shared_data_keys import DataKeyStale
from quaymaster.metadata.store.mirror import Mirror
from quaymaster.metadata.store.rows import MASTER_KEY
from quaymaster.protocol.rpc.metadata_messages import (
    CreateQueue,
    NewDataKey,
    NewPushSecret,
    QueueChange,
    QueueListing,
    SetAttributes,
)

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

    async def learn(self, queue_id: int) -> None: ...

    async def change(self, request: QueueChange) -> QueueDefinition: ...


class MakesDataKeys(Protocol):
    """The part of `DataKeys` that makes them."""

    async def new_data_key(self) -> NewDataKey: ...

    def drop_ids(self) -> None: ...


class WrapsPushSecrets(Protocol):
    """The part of `PushSecretKeys` that goes with attributes."""

    async def secret_with(
        self, account_id: str, name: str, changes: Mapping[str, str], *, queue_id: int = 0, endpoint: str = ""
    ) -> NewPushSecret | None: ...

    async def refresh(self, queue_id: int) -> None: ...

    async def has_headers(self, queue: QueueDefinition, text: str) -> bool: ...


class KeyedQueues:
    """Look-ups answer as those of `RegisteredQueues`, without a step in between."""

    def __init__(
        self,
        queues: RegisteredQueues,
        data_keys: MakesDataKeys,
        mirror: Mirror,
        options: MetadataOptions,
        push_secrets: WrapsPushSecrets,
    ) -> None:
        self._queues = queues
        self._data_keys = data_keys
        self._push_secrets = push_secrets
        self._networks = options.outbound_networks
        self._mirror = mirror
        self._cell_format = options.cell_format
        self.find = queues.find
        self.queue = queues.queue
        self.queue_by_id = queues.queue_by_id
        self.journal_of = queues.journal_of
        self.account_of = queues.account_of
        self.list_page = queues.list_page
        self.refresh = queues.refresh
        self.learn = queues.learn

    def __len__(self) -> int:
        return len(self._queues)

    async def change(self, request: QueueChange) -> QueueDefinition:
        """Do what is asked, and return the queue as it then is. Raises as `Queues.change`, but no DataKeyStale."""
        if isinstance(request, CreateQueue):
            return await self._create(request)
        if isinstance(request, SetAttributes) and says_push(request.changes):
            return await self._set_push(request)
        return await self._queues.change(request)

    async def _set_push(self, request: SetAttributes) -> QueueDefinition:
        """Set attributes, some of which say how the queue is pushed."""
        self._cell_format.require(DELIVERY, PUSHED)
        changes = request.changes
        check_reachable(changes.get(PUSH_ENDPOINT.name, ""), self._networks)
        current = self._queues.queue(request.account_id, request.name)
        queue_id = request.queue_id or current.queue_id
        endpoint = current.push_endpoint
        for _ in range(DATA_KEY_ATTEMPTS_MAX):
            secret = await self._push_secrets.secret_with(
                *(request.account_id, request.name, changes),
                queue_id=queue_id,
                endpoint=endpoint,
            )
            masked = replace(
                request, changes=with_masked_headers(changes), queue_id=queue_id, push_secret=secret
            )
            try:
                changed = await self._queues.change(masked)
            except DataKeyStale:
                await self._push_secrets.refresh(queue_id)
                continue
            if secret is not None:
                await self._see_secret(changed)
                if PUSH_ENDPOINT.name not in changes and changed.push_endpoint != endpoint:
                    # It was set elsewhere meanwhile: headers are for the host of now.
                    endpoint = changed.push_endpoint
                    continue
            return changed
        raise Overloaded

    async def _see_secret(self, queue: QueueDefinition) -> None:
        """Let this process have what it has just stored, before those do whom it tells of it."""
        with suppress(NotNow):  # the change is made, and is heard of
            await self._push_secrets.refresh(queue.queue_id)

    async def _create(self, request: CreateQueue) -> QueueDefinition:
        # Most queues share their account's data key: one is made when it is asked for.
        shares_keys = self._cell_format.version_of(SHARED_DATA_KEYS)
        data_key = None if shares_keys else await self._data_keys.new_data_key()
        attributes, push_secret = request.attributes, None
        is_pushed = says_push(attributes)
        if is_pushed:
            self._cell_format.require(DELIVERY, PUSHED)
            check_reachable(attributes.get(PUSH_ENDPOINT.name, ""), self._networks)
            request = replace(request, attributes=with_masked_headers(attributes))
        for _ in range(DATA_KEY_ATTEMPTS_MAX):
            if is_pushed:
                push_secret = await self._push_secrets.secret_with(
                    request.account_id, request.name, attributes
                )
            try:
                made = await self._queues.change(replace(request, data_key=data_key, push_secret=push_secret))
            except DataKeyStale:
                if data_key is not None or is_pushed:
                    await self._mirror.refresh(MASTER_KEY)  # it was rotated meanwhile
                if data_key is not None:
                    self._data_keys.drop_ids()  # or the store that set them aside has gone back
                data_key = await self._data_keys.new_data_key()
                continue
            headers = attributes.get(PUSH_HEADERS.name)
            if headers:
                if not await self._push_secrets.has_headers(made, headers):
                    raise QueueNameExists(PUSH_HEADERS.name)  # a queue that was there has other ones
            elif push_secret is not None:
                await self._see_secret(made)
            return made
        raise Overloaded
