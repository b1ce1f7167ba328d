"""An active queue's journals are told of its newest revision, whatever others do meanwhile.

QUEUE_SET ──taken──▶ still there? ──yes──▶ pending row away
    ▲        │            └──────no──────▶ QUEUE_DELETE: a journal may have heard of the deletion first
    │        └──a journal has a later revision──▶ the store has gone back: a revision above the journal's
    │        └──a journal has a later table──▶ the same: the row takes the partitions of that table
    └─────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from quaymaster.coordination.interface import Compare, RevisionMismatch
from quaymaster.core.values.errors import Overloaded, QueueRevisionTaken
from quaymaster.core.values.partition_tables import is_newer_table, with_table_of
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, replace_definition
from quaymaster.metadata.queues.id_guard import LostAttributes
from quaymaster.metadata.queues.queue_journals import QueueJournals, TableTaken
from quaymaster.metadata.queues.stored_queues import StoredQueues, attempts, put_pending, suffix_of
from quaymaster.metadata.store.rows import PENDING, QUEUES

log = logging.getLogger(__name__)


class Settling:
    """Brings journals to what the store has of active queues."""

    def __init__(self, queues: StoredQueues, journals: QueueJournals) -> None:
        self._queues = queues
        self._journals = journals
        self.lost_attributes = LostAttributes()

    async def tell_again(self, definition: QueueDefinition) -> None:
        """Tell the journals of an active queue as the store has it, whatever later changes they know of."""
        try:
            await self._journals.set_queue(definition)
        except (QueueRevisionTaken, TableTaken):
            await self.settle(definition, [self._queues.rows.compare(suffix_of(definition))])

    async def tell(self, definition: QueueDefinition, journals: Collection[int]) -> bool:
        """Tell some journals of an active queue's revision; false where they know of later changes.

        Either the row then has those, or another node made them.
        """
        try:
            await self._journals.set_queue(definition, journals)
        except (QueueRevisionTaken, TableTaken) as taken:
            await self.outrank(definition, taken)
            return False
        return True

    async def settle(self, definition: QueueDefinition, unchanged: Sequence[Compare]) -> None:
        """Tell the journals of an active queue's revision, and take the pending row away if it is of that revision:
        if `unchanged` holds."""
        suffix = suffix_of(definition)
        async for _ in attempts(suffix):
            try:
                await self._journals.set_queue(definition)
                break
            except (QueueRevisionTaken, TableTaken) as taken:
                outranking = await self.outrank(definition, taken)
            if outranking is None:
                break  # the node that made a later change tells the journals of that
            definition, unchanged = outranking
        else:
            raise Overloaded
        if await self.forget_if_gone(definition):
            return
        try:
            await self._queues.mirror.transact(unchanged, deletes=[PENDING + suffix])
        except RevisionMismatch:
            # A newer change is pending, and its maker settles that; but if it was the deletion, the journal
            # may have heard of that first.
            await self._queues.mirror.refresh(QUEUES + suffix)
            await self.forget_if_gone(definition)

    async def outrank(
        self, definition: QueueDefinition, taken: QueueRevisionTaken | TableTaken
    ) -> tuple[QueueDefinition, Sequence[Compare]] | None:
        """Give a queue a revision above a journal's, which has later changes than the store: that has gone back.

        The partitions are then those that the journal knows of, if it has a later table: messages may be in them. Of
        the rest what the store has counts. Return the queue as it then is, and what holds until it is changed again;
        None when the store has a later change, too.
        """
        queues, suffix = self._queues, suffix_of(definition)
        async for _ in attempts(suffix):
            await queues.mirror.refresh(QUEUES + suffix)
            latest = queues.rows.get(suffix)
            if (
                latest is None
                or latest.queue_id != definition.queue_id
                or (latest.revision, latest.state) != (definition.revision, definition.state)
            ):
                return None
            if isinstance(taken, TableTaken):
                if not is_newer_table(taken.known, latest):
                    return None
                changed = with_table_of(latest, taken.known)
                revision, what = taken.known.revision, "the journal's partitions count"
            else:
                changed = replace_definition(latest, revision=taken.revision + 1)
                revision, what = taken.revision, "what the store has counts"
            try:
                stored = await queues.mirror.transact(
                    [queues.rows.compare(suffix)], put_pending(changed, queues.now_ms())
                )
            except RevisionMismatch:
                continue
            self.lost_attributes.note(suffix)
            log.error(
                "store behind journal queue=%s store_revision=%d journal_revision=%d: %s",
                suffix,
                definition.revision,
                revision,
                what,
            )
            return changed, [Compare(PENDING + suffix, stored)]
        raise Overloaded

    async def forget_if_gone(self, definition: QueueDefinition) -> bool:
        """Tell whether another node deleted the queue while we set it; then the journals must not keep what we wrote
        after."""
        latest = self._queues.rows.get(suffix_of(definition))
        if latest is not None and latest.queue_id == definition.queue_id and latest.state != "deleting":
            return False
        await self._journals.delete_queue(definition)
        return True
