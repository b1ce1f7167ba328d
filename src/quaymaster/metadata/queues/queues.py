"""Queues as they are made, changed and deleted, and the two steps that keep metadata and journal of one mind.

    CreateQueue ──▶ creating ──QUEUE_SET──▶ active ──DeleteQueue──▶ deleting ──QUEUE_DELETE──▶ gone, name resting
                                             │  ▲
                               SetAttributes └──┘ QUEUE_SET of the next revision

Each arrow starts with a transaction that also leaves a `pending` row, then tells the journal (idempotent by
revision), then takes the row away. What a crash or an unreachable journal cuts in half, `reconcile` finishes: the
pending rows say where.

A caller is answered when metadata and journal are both durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from quaymaster.core.values.errors import CallerError, NotNow, QueueDoesNotExist
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import split_group
from quaymaster.metadata.keys.known_accounts import KnownAccounts
from quaymaster.metadata.keys.known_identities import KnownIdentities
from quaymaster.metadata.keys.name_binding import NameBinding
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.queues.attribute_changes import AttributeChanges
from quaymaster.metadata.queues.creation import Creation
from quaymaster.metadata.queues.deletion import Deletion, Purges
from quaymaster.metadata.queues.id_guard import IdGuard
from quaymaster.metadata.queues.partition_changes import PartitionChanges
from quaymaster.metadata.queues.queue_journals import QueueJournals
from quaymaster.metadata.queues.settling import Settling
from quaymaster.metadata.queues.shared_data_keys import SharedDataKeys
from quaymaster.metadata.queues.stored_queues import StoredQueues, batched
from quaymaster.metadata.store.ids import IdAllocator
from quaymaster.metadata.store.mirror import Mirror
from quaymaster.metadata.store.rows import PENDING
from quaymaster.protocol.rpc.metadata_messages import (
    AddPermission,
    BeginPurge,
    CancelPurge,
    ChangePartitions,
    CheckTable,
    CreateGroup,
    CreateQueue,
    DeleteQueue,
    QueueChange,
    RemovePermission,
    SetAttributes,
    TagQueue,
    UntagQueue,
)

log = logging.getLogger(__name__)

RECONCILED_AT_ONCE: Final = 32
"""So many queues that were left half done are finished at the same time."""


class Queues(StoredQueues):
    """Queues that can be changed: `KnownQueues` says what they are, and what is here is async."""

    def __init__(
        self,
        mirror: Mirror,
        accounts: KnownAccounts,
        identities: KnownIdentities,
        options: MetadataOptions,
        *,
        now_ms: Callable[[], int],
        journals: Callable[[], Sequence[int]] = lambda: (0,),
        node: str = "",
    ) -> None:
        """`node`: the name of the node that changes queues, among all that do."""
        super().__init__(mirror, options, now_ms)
        self.journals = QueueJournals(journals, options.cell_format, self.in_force)
        self.id_guard = IdGuard(mirror.store, IdAllocator(mirror.store, "queue", node), self.journals.marks)
        self.data_keys = SharedDataKeys(self, self.id_guard)
        self.settling = Settling(self, self.journals)
        binding = NameBinding(mirror, accounts, identities)
        self._changes = AttributeChanges(self, binding, self.settling)
        self._deletion = Deletion(self, self.journals)
        self._purges = Purges(self)
        self.partition_changes = PartitionChanges(self, self.journals, self.settling)
        self._creation = Creation(
            self,
            accounts,
            binding,
            journals=self.journals,
            guard=self.id_guard,
            data_keys=self.data_keys,
            settling=self.settling,
            deletion=self._deletion,
        )

    def what_is_settled(self) -> tuple[dict[int, QueueDefinition], set[int]]:
        """Return all queues by id, and the ids of those about which the journal is still to be told something."""
        stored = {definition.queue_id: definition for _, definition in self.rows.items()}
        unsettled = {row.queue_id for _, row in self.pending.items()}
        unsettled |= {row.queue_id for _, row in self.deleted.items()}
        return stored, unsettled

    async def learn(self, queue_id: int) -> None:
        """Raise QueueDoesNotExist: a process that changes queues has all of them in memory."""
        raise QueueDoesNotExist

    async def refresh(self, definition: QueueDefinition) -> None:
        """Nothing: a process that changes queues has them in memory."""

    # Changing

    async def change(self, request: QueueChange) -> QueueDefinition:
        """Do what is asked (see `protocol/rpc/metadata_messages`), and return the queue as it then is.

        Raises:
            QueueDoesNotExist: there is no such queue.
            InvalidClientTokenId: the account is disabled or deleted.
            DataKeyStale: a new data key is needed; the one given was wrapped before the master key was rotated.
            QueueNameExists: what is to be created has another value for an attribute, which the error names.
            OverLimit: the account, or the queue, has as many of something as it may have.
            QueueDeletedRecently: the name has not rested for `queue_name_reuse_s`.
            PurgeQueueInProgress: it is within `purge_interval_s` of the one before.
            InvalidParameterValue, InvalidAttributeName, InvalidAttributeValue: name or attributes cannot be.
            UnsupportedOperation: it cannot be done to this queue, or not now.
        """
        match request:
            case CreateQueue():
                return await self._creation.create(request)
            case SetAttributes():
                return await self._changes.set_attributes(request)
            case AddPermission():
                return await self._changes.add_permission(request)
            case RemovePermission():
                return await self._changes.remove_permission(request)
            case TagQueue():
                return await self._changes.tag(request)
            case UntagQueue():
                return await self._changes.untag(request)
            case DeleteQueue():
                return (await self._deletion.delete(request))[0]
            case BeginPurge():
                return await self._purges.begin(request)
            case CancelPurge():
                return await self._purges.cancel(request)
            case CreateGroup():
                return await self._creation.create_group(request)
            case ChangePartitions():
                return await self.partition_changes.begin(request)
            case CheckTable():
                return await self.partition_changes.check(request)

    async def change_row(self, request: QueueChange) -> tuple[QueueDefinition, int]:
        """Do what is asked; return the queue's row of one moment, and that moment's revision.

        Of a deleted queue it is the revision from which on it was not found. Raises as `change`, and NotNow when the
        queue was deleted meanwhile.
        """
        if isinstance(request, DeleteQueue):
            return await self._deletion.delete(request)
        definition = await self.change(request)
        row = self.row(request.account_id, request.name)
        if row is None or row[0].queue_id != definition.queue_id:
            raise NotNow("The queue was deleted at the same time.")
        return row

    # Finishing what was cut in half

    async def reconcile(self, *, older_than_ms: int = 0) -> int:
        """Finish what is pending for `older_than_ms`, and drop rows whose time is over; return how many were finished.

        No caller waits for it: there may be thousands of such rows, and each takes a durable write or a part of one.
        """
        finished = await self.finish_pending(older_than_ms=older_than_ms)
        for queue_id in self.gone_logs():
            await self._deletion.drop_groups_of(queue_id)  # made while their queue was deleted
        await self._deletion.drop_old_rows()
        await self._purges.drop_old_rows()
        return finished

    async def finish_pending(self, *, older_than_ms: int = 0) -> int:
        """Finish creations, changes and deletions that are pending for `older_than_ms`; return how many.

        At the start everything pending was cut in half; later only what is older than any request lasts. What
        the journal cannot take now stays pending. Some are finished at a time: their writes go together.
        """
        waiting = [
            suffix
            async for suffix, _ in self.pending.in_turns()
            if self.pending.unchanged_ms(suffix) >= older_than_ms
        ]
        # Logs before their consumer groups, whose names go on behind theirs.
        logs = [suffix for suffix in waiting if not split_group(suffix)[1]]
        groups = [suffix for suffix in waiting if split_group(suffix)[1]]
        finished = 0
        for some in (*batched(logs, RECONCILED_AT_ONCE), *batched(groups, RECONCILED_AT_ONCE)):
            finished += sum(await asyncio.gather(*(self._finish_one(suffix) for suffix in some)))
        return finished

    async def _finish_one(self, suffix: str) -> bool:
        async with self.only_one(suffix):
            try:
                return await self._finish(suffix)
            except NotNow as error:
                log.warning("queue still pending queue=%s error=%s", suffix, error)
            except CallerError as error:
                log.warning("queue given up queue=%s error=%s", suffix, error)
        return False

    async def _finish(self, suffix: str) -> bool:
        if self.pending.get(suffix) is None:
            return False  # settled while we waited for the lock
        definition = self.rows.get(suffix)
        match definition:
            case None:
                await self.mirror.transact([], deletes=[PENDING + suffix])
            case QueueDefinition(state="creating"):
                await self._creation.finish(definition)
            case QueueDefinition(state="deleting"):
                await self._deletion.finish(definition)
            case _:
                unchanged = [self.rows.compare(suffix), self.pending.compare(suffix)]
                await self.settling.settle(definition, unchanged)
        log.info("queue reconciled queue=%s", suffix)
        return True
