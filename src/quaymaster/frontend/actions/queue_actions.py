"""Queues themselves: creating, finding, describing, changing, purging, deleting; their tags and permissions.

These are rare beside messages and run as one task each. The metadata service owns what a queue is, and
answers when metadata and journal are both durable; the broker knows what is in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from quaymaster.core.limits.limits import LimitTable
from quaymaster.core.push.states import PushState
from quaymaster.core.values.commands.messages import CountMessages, Purge, QueueCounts
from quaymaster.core.values.commands.partitions import AskPartition, PartitionOutcome
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.errors import MissingParameter, NotNow, QueueDoesNotExist, UnsupportedOperation
from quaymaster.core.values.queues.attribute_rules import check_attribute_names
from quaymaster.core.values.queues.attributes import (
    COMPUTED,
    ED25519,
    EFFECTIVE_LIMITS,
    LATEST,
    PUSH_ALLOWED_RATE,
    PUSH_PUBLIC_KEY,
    PUSH_SIGNING,
    PUSH_STATE,
    SETTABLE,
    ComputedAttribute,
    QueueFacts,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import split_group
from quaymaster.frontend.addresses import Addresses
from quaymaster.frontend.call import Call
from quaymaster.net.routing.metadata_client import when_known
from quaymaster.protocol.actions import permission_rules, validation
from quaymaster.protocol.rpc.metadata_messages import (
    AddPermission,
    BeginPurge,
    CancelPurge,
    CreateQueue,
    DeleteQueue,
    ListDeadLetterSources,
    ListQueues,
    QueueChange,
    QueueListing,
    RemovePermission,
    SetAttributes,
    TagQueue,
    UntagQueue,
)
from quaymaster.protocol.sqs import shapes

_OF_PUSHED: Final = (PUSH_STATE, PUSH_ALLOWED_RATE, PUSH_PUBLIC_KEY)
"""Shown of queues that are pushed, though SQS has no such thing."""
SOURCES_AT_A_TIME: Final = 1_000
"""So many sources of a dead-letter queue are listed together."""


class ListedQueues(Protocol):
    """Some queues in order of their names, and where to go on."""

    @property
    def queues(self) -> list[QueueDefinition]: ...
    @property
    def next_token(self) -> str | None: ...


class QueueService(Protocol):
    """The part of the metadata service that owns queues. What can be asked: `protocol/rpc/metadata_messages`.

    Errors are those of `core/values/errors`.
    """

    async def list_page(self, request: QueueListing) -> ListedQueues: ...

    async def change(self, request: QueueChange) -> QueueDefinition: ...

    async def refresh(self, definition: QueueDefinition) -> None:
        """Have look-ups find the queue as it is now, after any node's change, if that can be learned."""
        ...

    @property
    def queue_by_id(self) -> Callable[[int], QueueDefinition | None]:
        """Finds a queue in memory."""
        ...

    async def learn(self, queue_id: int) -> None:
        """Have look-ups find a queue by its id; QueueDoesNotExist if there is none."""
        ...


class PushStateService(Protocol):
    """The part of the metadata service that knows how calls to endpoints go."""

    def of(self, queue: QueueDefinition) -> PushState: ...

    def calls_per_minute(self, queue: QueueDefinition) -> int | None: ...


class QueueActions:
    """The handlers of the actions on queues."""

    def __init__(
        self,
        addresses: Addresses,
        queues: QueueService,
        limits: LimitTable,
        *,
        push_states: PushStateService,
        push_public_key: Callable[[QueueDefinition], str],
        can_delete: bool,
    ) -> None:
        self._addresses = addresses
        self._queues = queues
        self._limits = limits
        self._push_states = push_states
        self._push_public_key = push_public_key
        self._can_delete = can_delete

    async def dead_letter_sources(self, definition: QueueDefinition) -> AsyncIterator[list[QueueDefinition]]:
        """Return the queues whose redrive policy names this one, some at a time; QueueDoesNotExist."""
        token: str | None = None
        while True:
            request = ListDeadLetterSources(definition.account_id, definition.name, SOURCES_AT_A_TIME, token)
            page = await self._queues.list_page(request)
            yield page.queues
            token = page.next_token
            if token is None:
                return
            await asyncio.sleep(0)  # others take their turn, also where nothing is waited for

    # Being there

    async def create_queue(self, call: Call, given: shapes.CreateQueueRequest) -> shapes.CreateQueueResult:
        """Create a queue, or find the one that is as asked for."""
        if given.tags:
            validation.check_tags(given.QueueName, given.tags)
        request = CreateQueue(
            call.principal.account_id, given.QueueName, given.Attributes or {}, given.tags or {}
        )
        call.queue = definition = await self._queues.change(request)
        return shapes.CreateQueueResult(self._addresses.url(definition, call.request))

    async def delete_queue(self, call: Call, given: shapes.DeleteQueueRequest) -> None:
        """Delete a queue and all in it, unless the operator keeps that to the command line."""
        definition = call.resolved
        if not self._can_delete:
            raise UnsupportedOperation(
                'Queues are not deleted over the API here (setting delete_queue = "cli-only"). '
                f"Use `quaymaster queue delete {definition.name}` on the server."
            )
        await check_has_no_outputs(call.calls.ask, definition)
        await self._queues.change(
            DeleteQueue(definition.account_id, definition.name, queue_id=definition.queue_id)
        )

    async def get_queue_url(self, call: Call, given: shapes.GetQueueUrlRequest) -> shapes.GetQueueUrlResult:
        """Find a queue by its name."""
        return shapes.GetQueueUrlResult(self._addresses.url(call.resolved, call.request))

    async def list_queues(self, call: Call, given: shapes.ListQueuesRequest) -> shapes.ListQueuesResult:
        """List the caller's queues by name."""
        validation.check_list_results(given.MaxResults, given.NextToken)
        request = ListQueues(
            call.principal.account_id, given.QueueNamePrefix or "", given.MaxResults, given.NextToken or None
        )
        page = await self._queues.list_page(request)
        urls = [self._addresses.url(definition, call.request) for definition in page.queues]
        return shapes.ListQueuesResult(urls, page.next_token)

    async def list_dead_letter_source_queues(
        self, call: Call, given: shapes.ListDeadLetterSourceQueuesRequest
    ) -> shapes.ListDeadLetterSourceQueuesResult:
        """List the queues whose dead letters come here."""
        definition = call.resolved
        validation.check_list_results(given.MaxResults, given.NextToken)
        request = ListDeadLetterSources(
            definition.account_id, definition.name, given.MaxResults, given.NextToken or None
        )
        page = await self._queues.list_page(request)
        urls = [self._addresses.url(source, call.request) for source in page.queues]
        return shapes.ListDeadLetterSourceQueuesResult(urls, page.next_token)

    # Attributes

    async def get_queue_attributes(
        self, call: Call, given: shapes.GetQueueAttributesRequest
    ) -> shapes.GetQueueAttributesResult:
        """Describe a queue: those of the asked attributes that it has."""
        definition = call.resolved
        asked = check_attribute_names(given.AttributeNames)
        named = given.AttributeNames or ()
        computed = [
            each
            for name, each in COMPUTED.items()
            if (name in named or (asked is None and not each.is_ours)) and each not in _OF_PUSHED
        ]
        rate = self._push_states.calls_per_minute(definition)
        computed += [each for each in _of_pushed(definition, rate) if asked is None or each.name in asked]
        public_key = ""
        if PUSH_PUBLIC_KEY in computed:
            public_key = await when_known(partial(self._push_public_key, definition))
        counts = QueueCounts(0, 0, 0)
        if any(attribute.is_count for attribute in computed):
            counts = await self._count(call, definition)
        facts = QueueFacts(
            self._addresses.arn(definition),
            definition.created_ms,
            definition.modified_ms,
            counts.visible,
            counts.in_flight,
            counts.delayed,
            self._effective_limits(call, definition) if EFFECTIVE_LIMITS in computed else "",
            self._push_states.of(definition),
            str(rate),
            public_key,
        )
        values = {attribute.name: attribute.render(facts) for attribute in computed}
        in_force = definition.all_attributes()
        values |= {name: in_force[name] for name in in_force if _is_shown(definition, name, asked)}
        return shapes.GetQueueAttributesResult(values)

    def _effective_limits(self, call: Call, definition: QueueDefinition) -> str:
        name = split_group(definition.name)[0]
        return self._limits.effective(call.principal.account_id, definition.account_id, name)

    async def _count(self, call: Call, definition: QueueDefinition) -> QueueCounts:
        """Return what is in a queue; of a log-retained one, what its default group has, or would have."""
        if call.others:
            (definition,) = call.others
        elif definition.is_log and definition.group_start == LATEST:
            return QueueCounts(0, 0, 0)
        counts = await call.calls.ask(CountMessages(definition.queue_id))
        assert isinstance(counts, QueueCounts), "a CountMessages is answered by QueueCounts"
        return counts

    async def set_queue_attributes(self, call: Call, given: shapes.SetQueueAttributesRequest) -> None:
        """Change some of a queue's attributes."""
        definition = call.resolved
        if not given.Attributes:
            raise MissingParameter("Attribute.Name")
        await self._queues.change(
            SetAttributes(
                definition.account_id, definition.name, given.Attributes, queue_id=definition.queue_id
            )
        )

    # Messages, all of them

    async def purge_queue(self, call: Call, given: shapes.PurgeQueueRequest) -> None:
        """Delete every message that was sent before."""
        definition = call.resolved
        purged = (definition.account_id, definition.name, definition.queue_id)
        await self._queues.change(BeginPurge(*purged))
        try:
            await call.calls.ask(Purge(definition.queue_id))
        except NotNow:
            await self._queues.change(CancelPurge(*purged))
            raise

    # Tags and permissions

    async def tag_queue(self, call: Call, given: shapes.TagQueueRequest) -> None:
        """Put tags on a queue."""
        definition = call.resolved
        validation.check_tags(definition.name, given.Tags, definition.tags)
        await self._queues.change(
            TagQueue(definition.account_id, definition.name, given.Tags, queue_id=definition.queue_id)
        )

    async def untag_queue(self, call: Call, given: shapes.UntagQueueRequest) -> None:
        """Take tags off a queue."""
        definition = call.resolved
        validation.check_tag_keys(given.TagKeys)
        await self._queues.change(
            UntagQueue(definition.account_id, definition.name, given.TagKeys, queue_id=definition.queue_id)
        )

    async def list_queue_tags(
        self, call: Call, given: shapes.ListQueueTagsRequest
    ) -> shapes.ListQueueTagsResult:
        """List a queue's tags."""
        return shapes.ListQueueTagsResult(call.resolved.tags)

    async def add_permission(self, call: Call, given: shapes.AddPermissionRequest) -> None:
        """Add a statement to the queue's policy."""
        definition = call.resolved
        permission_rules.check_permission(given)
        await self._queues.change(
            AddPermission(
                definition.account_id,
                definition.name,
                given.Label,
                given.AWSAccountIds,
                given.Actions,
                queue_id=definition.queue_id,
            )
        )

    async def remove_permission(self, call: Call, given: shapes.RemovePermissionRequest) -> None:
        """Take a statement out of the queue's policy."""
        definition = call.resolved
        permission_rules.check_label(given.Label)
        await self._queues.change(
            RemovePermission(
                definition.account_id, definition.name, given.Label, queue_id=definition.queue_id
            )
        )


def _of_pushed(definition: QueueDefinition, rate: int | None) -> Iterator[ComputedAttribute]:
    """Give the attributes that a queue has because it is pushed; `rate`: what its endpoint allows."""
    if not definition.push_endpoint:
        return
    yield PUSH_STATE
    if rate is not None:
        yield PUSH_ALLOWED_RATE
    if PUSH_SIGNING.of(definition.attributes) == ED25519:
        yield PUSH_PUBLIC_KEY


def _is_shown(definition: QueueDefinition, name: str, asked: frozenset[str] | None) -> bool:
    """Return whether GetQueueAttributes returns an attribute that callers set; `asked` None: with All."""
    if asked is not None:
        return name in asked
    # What SQS does not have is shown where somebody set it; clients compare the rest with SQS.
    return name in definition.attributes or not SETTABLE[name].is_ours


async def check_has_no_outputs(
    ask: Callable[[Command], Awaitable[object]], definition: QueueDefinition
) -> None:
    """Raise NotNow while messages that completions sent from a queue are under way, as far as brokers answer.

    Its journals see to it again; but by then the queue is no longer found, so no client asks once more. A partition was
    drained when it had none; or it was given up, and its journal does not answer.
    """
    outputs = 0
    for entry in definition.partitions:
        if entry.state == "drained":
            continue
        with suppress(NotNow, QueueDoesNotExist):
            outcome = await ask(AskPartition(definition.queue_id, entry.number))
            assert isinstance(outcome, PartitionOutcome), "an AskPartition is answered by a PartitionOutcome"
            outputs += outcome.outputs
    if outputs:
        raise NotNow(
            f"{outputs} messages that completions sent from this queue have not arrived yet. Try again."
        )
