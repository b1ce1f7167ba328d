"""Queues and consumer groups are created: stored as `creating`, told to their journal, stored as `active`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

from quaymaster.coordination.interface import Compare, Put, RevisionMismatch
from quaymaster.core.partition.consumer_groups import check_start
from quaymaster.core.queues.defined_queues import GROUPS_MAX
from quaymaster.core.values.errors import (
    CallerError,
    OverLimit,
    Overloaded,
    QueueDeletedRecently,
    QueueIdTaken,
    QueueNameExists,
    QueueRevisionTaken,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import DELIVERY, KEYED_IDS, LOG_QUEUES, PARTITIONS
from quaymaster.core.values.queues.attribute_rules import create_attributes, require_delivery, spelled
from quaymaster.core.values.queues.attributes import (
    GROUP_START,
    LOG,
    POLICY,
    PUSH_ENDPOINT,
    REPLICATION_MODE,
    RETENTION_MODE,
)
from quaymaster.core.values.queues.queue_definitions import (
    QueueDefinition,
    differing_attribute,
    encode_queue_definition,
    replace_definition,
)
from quaymaster.core.values.queues.queue_names import check_group_name, split_group
from quaymaster.metadata.keys.known_accounts import KnownAccounts
from quaymaster.metadata.keys.name_binding import BoundNames, NameBinding
from quaymaster.metadata.queues.dead_letter_targets import check_given_target
from quaymaster.metadata.queues.deletion import Deletion
from quaymaster.metadata.queues.id_guard import IdGuard
from quaymaster.metadata.queues.permissions import bind_policy
from quaymaster.metadata.queues.placement import choose_partitions
from quaymaster.metadata.queues.push_secret_rows import with_push_secret
from quaymaster.metadata.queues.queue_journals import QueueJournals, TableTaken
from quaymaster.metadata.queues.settling import Settling
from quaymaster.metadata.queues.shared_data_keys import DataKeyStale, SharedDataKeys
from quaymaster.metadata.queues.stored_queues import StoredQueues, attempts, put_pending, suffix_of
from quaymaster.metadata.store.rows import (
    DATA_KEYS,
    DELETED,
    MASTER_KEY,
    PENDING,
    QUEUES,
    DeletedRow,
    encode_row,
    id_text,
)
from quaymaster.protocol.rpc.metadata_messages import CreateGroup, CreateQueue
from quaymaster.protocol.sqs.internal_queues import is_internal

log = logging.getLogger(__name__)


class Creation:
    """Queues and consumer groups, from their request until they are active."""

    def __init__(
        self,
        queues: StoredQueues,
        accounts: KnownAccounts,
        binding: NameBinding,
        *,
        journals: QueueJournals,
        guard: IdGuard,
        data_keys: SharedDataKeys,
        settling: Settling,
        deletion: Deletion,
    ) -> None:
        self._queues = queues
        self._accounts = accounts
        self._binding = binding
        self._journals = journals
        self._guard = guard
        self._data_keys = data_keys
        self._settling = settling
        self._deletion = deletion

    async def create(self, request: CreateQueue) -> QueueDefinition:
        """Create a queue, or return the one of this name if it has all attributes that are asked for."""
        queues, account_id, name = self._queues, request.account_id, request.name
        attributes = create_attributes(queues.arn_of(account_id, name), request.attributes)
        if RETENTION_MODE.of(attributes) == LOG:
            queues.options.cell_format.require(LOG_QUEUES, "Log-retained queues can be created")
        if REPLICATION_MODE.of(attributes):
            is_log = RETENTION_MODE.of(attributes) == LOG
            queues.options.cell_format.require(
                DELIVERY if is_log else PARTITIONS, "Queues with ReplicationMode=Peers can be created"
            )
        require_delivery(attributes, queues.options.cell_format)
        asked = spelled(attributes, request.attributes)
        suffix = f"{account_id}/{name}"
        async with queues.only_one(suffix):
            async for _ in attempts(suffix):
                existing = queues.rows.get(suffix)
                # From the same moment as what is decided on it: other nodes go on while ids are fetched.
                unchanged = [queues.rows.compare(suffix), queues.deleted.compare(suffix)]
                if existing is None:
                    existing = await self._begin(request, attributes, unchanged)
                elif existing.state == "deleting":
                    if queues.options.queue_name_reuse_s:
                        raise QueueDeletedRecently(queues.options.queue_name_reuse_s)
                    await self._deletion.finish(existing)
                    continue
                else:
                    difference = differing_attribute(existing, asked)
                    if difference is not None:
                        raise QueueNameExists(difference)
                if existing is not None:
                    active = await self.finish(existing)
                    if active is not None:
                        return active
            raise Overloaded

    async def _begin(
        self, request: CreateQueue, attributes: Mapping[str, str], unchanged: Sequence[Compare]
    ) -> QueueDefinition | None:
        """Store the queue as `creating`; None when something it rests on changed meanwhile."""
        queues, account_id, name = self._queues, request.account_id, request.name
        unchanged = [*unchanged, self._accounts.check_open(account_id)]
        check_given_target(queues, queues.arn_of(account_id, name), attributes, request.attributes)
        predecessor = queues.deleted.get(f"{account_id}/{name}")
        self._check_name_has_rested(f"{account_id}/{name}")
        if not is_internal(account_id, name):
            queues.quotas.check_queue(account_id, has_policy=POLICY.name in attributes)
            if PUSH_ENDPOINT.name in attributes:
                queues.quotas.check_pushed(account_id)
        policy = attributes.get(POLICY.name)
        bound = BoundNames({}) if policy is None else await bind_policy(self._binding, policy)
        queue_id, block = await self._guard.next_id()
        data_key = self._data_keys.choose(account_id, attributes, request.data_key)
        secret = with_push_secret(queue_id, request.push_secret)
        now_ms = queues.now_ms()
        partitions = choose_partitions(queues, self._journals.ids(), account_id, name, attributes)
        definition = QueueDefinition(
            queue_id=queue_id,
            account_id=account_id,
            name=name,
            state="creating",
            revision=1,
            created_ms=now_ms,
            modified_ms=now_ms,
            attributes=dict(attributes),
            tags=dict(request.tags),
            data_key_id=data_key.key_id,
            partitions=partitions,
            next_partition=len(partitions),
            has_keyed_ids=bool(queues.options.cell_format.version_of(KEYED_IDS)),
            policy_ids=bound.ids,
        )
        changed = await self._store(
            definition,
            predecessor,
            [block, *data_key.unchanged, *secret.unchanged, *unchanged, *bound.unchanged],
            [*data_key.puts, *secret.puts],
        )
        if changed is None:
            return definition
        if (request.data_key is not None and changed.startswith((MASTER_KEY, DATA_KEYS))) or (
            request.push_secret is not None and changed == MASTER_KEY
        ):
            raise DataKeyStale
        return None

    async def create_group(self, request: CreateGroup) -> QueueDefinition:
        """Create a consumer group of a log, or return the one of this name."""
        queues, account_id, name = self._queues, request.account_id, request.name
        log_name, group = split_group(name)
        check_group_name(group)
        if request.start:
            check_start(request.start)
        suffix = f"{account_id}/{name}"
        async with queues.only_one(suffix):
            async for _ in attempts(suffix):
                queue = await queues.queue_meant(account_id, log_name, request.log_id)
                if not queue.is_log:
                    raise UnsupportedOperation(
                        f"The queue {log_name} has no consumer groups: its RetentionMode is not Log."
                    )
                existing = queues.rows.get(suffix)
                unchanged = [
                    queues.rows.compare(suffix),
                    queues.deleted.compare(suffix),
                    queues.rows.compare(suffix_of(queue)),
                ]
                if existing is None:
                    existing = await self._begin_group(queue, name, request.start, unchanged)
                elif existing.state == "deleting" or existing.group_of != queue.queue_id:
                    await self._deletion.finish(existing)
                    continue
                if existing is not None:
                    active = await self.finish(existing)
                    if active is not None:
                        return active
            raise Overloaded

    async def _begin_group(
        self, queue: QueueDefinition, name: str, start: str, unchanged: Sequence[Compare]
    ) -> QueueDefinition | None:
        """Store a consumer group as `creating`; None when something it rests on changed meanwhile."""
        queues = self._queues
        if len(queues.groups_of(queue.queue_id)) >= GROUPS_MAX:
            raise OverLimit(f"A log-retained queue may have {GROUPS_MAX} consumer groups.")
        queues.quotas.check_group(queue.account_id)
        predecessor = queues.deleted.get(f"{queue.account_id}/{name}")
        queue_id, block = await self._guard.next_id()
        now_ms = queues.now_ms()
        group = replace_definition(
            queue,
            queue_id=queue_id,
            name=name,
            state="creating",
            revision=1,
            created_ms=now_ms,
            modified_ms=now_ms,
            attributes={GROUP_START.name: start} if start else {},
            tags={},
            group_of=queue.queue_id,
        )
        changed = await self._store(group, predecessor, [block, *unchanged])
        return group if changed is None else None

    async def _store(
        self,
        new: QueueDefinition,
        predecessor: DeletedRow | None,
        unchanged: Sequence[Compare],
        more: Sequence[Put] = (),
    ) -> str | None:
        """Store a queue that is created; return which key was not `unchanged`, None when it is stored."""
        suffix = suffix_of(new)
        puts = [*more, *put_pending(new, new.created_ms)]
        if (
            predecessor is not None
        ):  # the journal is told of its deletion once more, see `Deletion.drop_old_rows`
            puts.append(Put(DELETED + id_text(predecessor.queue_id), encode_row(predecessor)))
        try:
            await self._queues.mirror.transact(unchanged, puts, [DELETED + suffix])
        except RevisionMismatch as mismatch:
            self._guard.note_mismatch(mismatch)
            return mismatch.key
        return None

    async def finish(self, definition: QueueDefinition) -> QueueDefinition | None:
        """Tell the journal and make the queue active; None when it became another one meanwhile."""
        queues, suffix = self._queues, suffix_of(definition)
        latest = queues.rows.get(suffix)  # another node may have gone on with it
        if latest is None or latest.queue_id != definition.queue_id or latest.state == "deleting":
            return None
        if latest.state == "active":
            return latest
        compare = queues.rows.compare(suffix)
        active = replace_definition(latest, state="active")
        try:
            await self._journals.set_queue(active)
        except QueueIdTaken:
            # Nothing of it is in the journal, where the id is another queue's: it begins once more with another id.
            self._guard.distrust()
            with suppress(RevisionMismatch):
                await queues.mirror.transact([compare], deletes=[QUEUES + suffix, PENDING + suffix])
            return None
        except (QueueRevisionTaken, TableTaken) as taken:
            await self._settling.outrank(latest, taken)
            return None
        except CallerError:  # the journal does not have the group's log (any more), or no room for the group
            await self._deletion.finish(latest)
            raise
        try:
            await queues.mirror.transact(
                [compare], [Put(QUEUES + suffix, encode_queue_definition(active))], [PENDING + suffix]
            )
        except RevisionMismatch:
            await self._settling.forget_if_gone(active)
            return None
        log.info("queue created queue=%s queue_id=%d", suffix, active.queue_id)
        return active

    def _check_name_has_rested(self, suffix: str) -> None:
        reuse_s = self._queues.options.queue_name_reuse_s
        deleted = self._queues.deleted
        if deleted.get(suffix) is not None and deleted.unchanged_ms(suffix) < reuse_s * 1000:
            raise QueueDeletedRecently(reuse_s)
