"""Changes of active queues: attributes, which the journal is told of, and tags, which it does not know."""

from __future__ import annotations

import logging
from collections.abc import Callable

from quaymaster.coordination.interface import Compare, Put, RevisionMismatch
from quaymaster.coordination.push_rows import pushed_key
from quaymaster.core.values.errors import Overloaded, UnsupportedOperation
from quaymaster.core.values.formats import DELIVERY
from quaymaster.core.values.partition_tables import check_stays_by_group
from quaymaster.core.values.queues.attribute_rules import (
    PUSHED,
    change_attributes,
    require_delivery,
    says_push,
)
from quaymaster.core.values.queues.attributes import POLICY, PUSH_ENDPOINT
from quaymaster.core.values.queues.queue_definitions import (
    QueueDefinition,
    encode_queue_definition,
    replace_definition,
)
from quaymaster.metadata.keys.name_binding import BoundNames, NameBinding
from quaymaster.metadata.queues.dead_letter_targets import check_given_target, check_reach
from quaymaster.metadata.queues.permissions import (
    add_permission,
    bind_policy,
    kept_bindings,
    remove_permission,
)
from quaymaster.metadata.queues.push_secret_rows import with_push_secret
from quaymaster.metadata.queues.settling import Settling
from quaymaster.metadata.queues.shared_data_keys import DataKeyStale
from quaymaster.metadata.queues.stored_queues import StoredQueues, attempts, put_pending
from quaymaster.metadata.store.authorization_floor import raised_floor
from quaymaster.metadata.store.rows import MASTER_KEY, PENDING, PUSH_SECRETS, QUEUES
from quaymaster.protocol.actions.validation import check_tags
from quaymaster.protocol.rpc.metadata_messages import (
    AddPermission,
    RemovePermission,
    SetAttributes,
    TagQueue,
    UntagQueue,
)

log = logging.getLogger(__name__)


class AttributeChanges:
    """Each change is tried again on the queue as another node has left it."""

    def __init__(self, queues: StoredQueues, binding: NameBinding, settling: Settling) -> None:
        self._queues = queues
        self._binding = binding
        self._settling = settling

    async def set_attributes(self, request: SetAttributes) -> QueueDefinition:
        """Set attributes; the dead-letter queue that is given must be one."""
        queues, account_id, name, changes = self._queues, request.account_id, request.name, request.changes

        def edit(current: QueueDefinition) -> dict[str, str]:
            arn = queues.arn_of(account_id, name)
            if current.group_of:
                raise UnsupportedOperation(
                    "A consumer group has the attributes of its queue: set them there."
                )
            changed = change_attributes(arn, current.attributes, changes)
            require_delivery(changed, queues.options.cell_format)
            if says_push(changes):
                queues.options.cell_format.require(DELIVERY, PUSHED)
            check_stays_by_group(current, changed)
            target = check_given_target(queues, arn, changed, changes)
            if target is not None:
                check_reach(current, target, queues.options.cell_format)
            return changed

        return await self._change_attributes(request, edit, binds=bool(changes.get(POLICY.name)))

    async def add_permission(self, request: AddPermission) -> QueueDefinition:
        """Add a statement to the queue's policy."""
        arn = str(self._queues.arn_of(request.account_id, request.name))
        return await self._change_policy(
            request,
            lambda policy: add_permission(
                policy,
                queue_arn=arn,
                label=request.label,
                account_ids=request.account_ids,
                actions=request.actions,
            ),
            only_adds=True,
        )

    async def remove_permission(self, request: RemovePermission) -> QueueDefinition:
        """Take a statement out of the queue's policy."""
        arn = str(self._queues.arn_of(request.account_id, request.name))
        return await self._change_policy(
            request,
            lambda policy: remove_permission(policy, queue_arn=arn, label=request.label),
        )

    async def tag(self, request: TagQueue) -> QueueDefinition:
        """Add tags."""

        def add(current: dict[str, str]) -> dict[str, str]:
            # Again: since the front end looked, others may have added theirs.
            check_tags(request.name, request.tags, current)
            return {**current, **request.tags}

        return await self._change_tags(request, add)

    async def untag(self, request: UntagQueue) -> QueueDefinition:
        """Take tags away."""
        gone = frozenset(request.keys)
        return await self._change_tags(
            request,
            lambda current: {key: value for key, value in current.items() if key not in gone},
        )

    async def _change_policy(
        self,
        request: AddPermission | RemovePermission,
        edit_policy: Callable[[str | None], str],
        *,
        only_adds: bool = False,
    ) -> QueueDefinition:
        def edit(current: QueueDefinition) -> dict[str, str]:
            policy = edit_policy(current.attributes.get(POLICY.name))
            attributes = {**current.attributes, POLICY.name: policy}
            if not policy:
                del attributes[POLICY.name]
            return attributes

        return await self._change_attributes(request, edit, only_adds=only_adds)

    async def _change_attributes(
        self,
        request: SetAttributes | AddPermission | RemovePermission,
        edit: Callable[[QueueDefinition], dict[str, str]],
        *,
        binds: bool = False,
        only_adds: bool = False,
    ) -> QueueDefinition:
        """Change attributes. `binds`: the policy is written as a whole, and names what there is under its names now.

        `only_adds`: the policy allows more than it did, and takes nothing away.
        """
        queues, suffix = self._queues, f"{request.account_id}/{request.name}"
        async with queues.only_one(suffix):
            async for _ in attempts(suffix):
                current = await queues.queue_meant(request.account_id, request.name, request.queue_id)
                compare = queues.rows.compare(suffix)
                now_ms = queues.now_ms()
                attributes = edit(current)
                if POLICY.name in attributes and POLICY.name not in current.attributes:
                    queues.quotas.check_policy(request.account_id)
                if PUSH_ENDPOINT.name in attributes and PUSH_ENDPOINT.name not in current.attributes:
                    queues.quotas.check_pushed(request.account_id)
                policy = attributes.get(POLICY.name, "")
                if binds:
                    bound = await bind_policy(self._binding, policy)
                else:
                    bound = BoundNames(kept_bindings(policy, current.policy_ids))
                given = request.push_secret if isinstance(request, SetAttributes) else None
                secret = with_push_secret(current.queue_id, given)
                changed = replace_definition(
                    current,
                    attributes=attributes,
                    revision=current.revision + 1,
                    modified_ms=now_ms,
                    policy_ids=bound.ids,
                )
                try:
                    puts = [*put_pending(changed, now_ms), *secret.puts]
                    if not only_adds and attributes.get(POLICY.name) != current.attributes.get(POLICY.name):
                        puts += raised_floor(queues.options.cell_format)
                    is_left = current.push_endpoint and not changed.push_endpoint
                    revision = await queues.mirror.transact(
                        [compare, *bound.unchanged, *secret.unchanged],
                        puts,
                        [pushed_key(current.queue_id)] if is_left else [],
                    )
                except RevisionMismatch as mismatch:
                    if mismatch.key.startswith((MASTER_KEY, PUSH_SECRETS)):
                        raise DataKeyStale from None
                    continue
                await self._settling.settle(changed, [Compare(PENDING + suffix, revision)])
                log.info("queue attributes set queue=%s revision=%d", suffix, changed.revision)
                return changed
            raise Overloaded

    async def _change_tags(
        self, request: TagQueue | UntagQueue, edit: Callable[[dict[str, str]], dict[str, str]]
    ) -> QueueDefinition:
        queues, suffix = self._queues, f"{request.account_id}/{request.name}"
        async with queues.only_one(suffix):
            async for _ in attempts(suffix):
                current = await queues.queue_meant(request.account_id, request.name, request.queue_id)
                compare = queues.rows.compare(suffix)
                changed = replace_definition(current, tags=edit(current.tags))
                try:
                    await queues.mirror.transact(
                        [compare], [Put(QUEUES + suffix, encode_queue_definition(changed))]
                    )
                except RevisionMismatch:
                    continue
                return changed
            raise Overloaded
