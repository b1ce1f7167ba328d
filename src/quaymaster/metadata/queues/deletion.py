"""What is deleted of queues: a queue with its consumer groups, or all its messages (a purge).

Nothing is deleted under a legal hold. The rows that remember a deletion or a purge are dropped when their time is over.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from quaymaster.coordination.interface import Put, RevisionMismatch
from quaymaster.coordination.push_rows import pushed_key
from quaymaster.core.values.errors import NotNow, Overloaded, PurgeQueueInProgress, UnsupportedOperation
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, replace_definition
from quaymaster.metadata.queues.known_queues import deleted_row
from quaymaster.metadata.queues.queue_journals import LATE_SET_MS, QueueJournals
from quaymaster.metadata.queues.stored_queues import (
    DROPPED_AT_ONCE,
    StoredQueues,
    attempts,
    batched,
    put_pending,
    suffix_of,
)
from quaymaster.metadata.store.mirror import MirrorTable
from quaymaster.metadata.store.rows import (
    DELETED,
    PENDING,
    PURGES,
    PUSH_SECRETS,
    PUSH_STATES,
    QUEUE_KEYS,
    QUEUES,
    PurgeRow,
    encode_row,
    id_text,
    row_decoder,
)
from quaymaster.protocol.rpc.metadata_messages import BeginPurge, CancelPurge, DeleteQueue

log = logging.getLogger(__name__)


class Deletion:
    """Queues and consumer groups, from `deleting` until their names have rested."""

    def __init__(self, queues: StoredQueues, journals: QueueJournals) -> None:
        self._queues = queues
        self._journals = journals

    async def delete(self, request: DeleteQueue) -> tuple[QueueDefinition, int]:
        """Delete a queue, and return the revision of its row from which on it was not found."""
        async with self._queues.only_one(f"{request.account_id}/{request.name}"):
            deleting, revision = await self._begin(request)
            await self.finish(deleting)
            return deleting, revision

    async def _begin(self, request: DeleteQueue) -> tuple[QueueDefinition, int]:
        queues, suffix = self._queues, f"{request.account_id}/{request.name}"
        async for _ in attempts(suffix):
            current = await queues.queue_meant(request.account_id, request.name, request.queue_id)
            _check_hold(current)
            compare = queues.rows.compare(suffix)
            now_ms = queues.now_ms()
            deleting = replace_definition(current, state="deleting", modified_ms=now_ms)
            try:
                revision = await queues.mirror.transact([compare], put_pending(deleting, now_ms))
            except RevisionMismatch:
                continue
            return deleting, revision
        raise Overloaded

    async def finish(self, definition: QueueDefinition) -> None:
        """Tell the journals, and leave nothing of the queue but the row that lets its name rest."""
        queues, suffix = self._queues, suffix_of(definition)
        latest = queues.rows.get(suffix)
        compare = queues.rows.compare(suffix)
        await self._journals.delete_queue(definition)
        await self.drop_groups_of(definition.queue_id)
        if latest is None or latest.queue_id != definition.queue_id:
            return  # another node finished it, and the name may be in use again
        deleted = deleted_row(queues.in_force(definition))
        try:
            await queues.mirror.transact(
                [compare], [Put(DELETED + suffix, encode_row(deleted))], _keys_of(suffix, definition)
            )
        except RevisionMismatch:
            return  # another node finished it
        log.info("queue deleted queue=%s queue_id=%d", suffix, definition.queue_id)

    async def drop_groups_of(self, queue_id: int) -> None:
        """Take away the consumer groups of a queue that is gone; the journal forgot them with it."""
        queues = self._queues
        for suffix in queues.groups_of(queue_id):
            group = queues.rows.get(suffix)
            assert group is not None, "who is noted as a group has a row"
            with suppress(RevisionMismatch):  # another node does the same
                await queues.mirror.transact([queues.rows.compare(suffix)], deletes=_keys_of(suffix, group))

    async def drop_old_rows(self) -> None:
        """Drop the rows of names that have rested."""
        queues = self._queues
        rest_ms = max(queues.options.queue_name_reuse_s * 1000, LATE_SET_MS)
        deleted = [  # what is dropped is what was looked at, not a later deletion of the name
            (queues.deleted.compare(key), row)
            async for key, row in queues.deleted.in_turns()
            if queues.deleted.unchanged_ms(key) >= rest_ms
        ]
        for some in batched(deleted, DROPPED_AT_ONCE):
            # Once more: a node that died while it set the queue may have told a journal after the deletion.
            try:
                for _, row in some:
                    await self._journals.delete_again(row.queue_id, row.journal_ids)
            except NotNow as error:
                log.warning("queues not deleted again queues=%d error=%s", len(some), error)
                break
            await queues.drop([compare for compare, _ in some])


class Purges:
    """When queues were purged last: the next purge must wait for `purge_interval_s`."""

    def __init__(self, queues: StoredQueues) -> None:
        self._queues = queues
        self._rows: MirrorTable[PurgeRow] = queues.mirror.table(PURGES, row_decoder(PurgeRow), is_timed=True)

    async def begin(self, request: BeginPurge) -> QueueDefinition:
        """Note that a purge begins; PurgeQueueInProgress when it is too soon after the one before."""
        definition = await self._queues.queue_meant(request.account_id, request.name, request.queue_id)
        _check_hold(definition)
        interval_s = self._queues.options.purge_interval_s
        if not interval_s:
            return definition
        suffix = id_text(definition.queue_id)
        if self._rows.get(suffix) is None or self._rows.unchanged_ms(suffix) >= interval_s * 1000:
            row = PurgeRow(self._queues.now_ms())
            try:
                await self._queues.mirror.transact(
                    [self._rows.compare(suffix)], [Put(PURGES + suffix, encode_row(row))]
                )
            except RevisionMismatch:
                pass  # another purge came first
            else:
                return definition
        raise PurgeQueueInProgress(definition.name, interval_s)

    async def cancel(self, request: CancelPurge) -> QueueDefinition:
        """Forget that a purge began."""
        definition = await self._queues.queue_meant(request.account_id, request.name, request.queue_id)
        suffix = id_text(definition.queue_id)
        if self._rows.get(suffix) is not None:
            await self._queues.mirror.transact([], deletes=[PURGES + suffix])
        return definition

    async def drop_old_rows(self) -> None:
        """Drop the rows of purges that keep no other waiting."""
        interval_ms = self._queues.options.purge_interval_s * 1000
        purged = [
            self._rows.compare(key)
            async for key, _ in self._rows.in_turns()
            if self._rows.unchanged_ms(key) >= interval_ms
        ]
        for marks in batched(purged, DROPPED_AT_ONCE):
            await self._queues.drop(marks)


def _keys_of(suffix: str, definition: QueueDefinition) -> list[str]:
    queue_id = id_text(definition.queue_id)
    of_queue = (PURGES, QUEUE_KEYS, PUSH_SECRETS, PUSH_STATES)
    return [
        *(QUEUES + suffix, PENDING + suffix, *(prefix + queue_id for prefix in of_queue)),
        pushed_key(definition.queue_id),
    ]


def _check_hold(definition: QueueDefinition) -> None:
    if definition.is_log and definition.has_legal_hold:
        raise UnsupportedOperation(
            f"The queue {definition.name} is under a legal hold: nothing of it is deleted until LegalHold is false."
        )
