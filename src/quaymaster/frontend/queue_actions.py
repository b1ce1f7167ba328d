"""Queues themselves: creating, finding, describing, changing, purging, deleting; their tags and permissions.

These are rare beside messages and run as one task each. The metadata service owns what a queue is, and
answers when metadata and journal are both durable; the broker knows what is in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from quaymaster.core.commands import CountMessages, Purge, QueueCounts
from quaymaster.core.errors import MissingParameter, NotNow, UnsupportedOperation
from quaymaster.core.queue_definitions import OWN_DEFAULTS, QueueDefinition
from quaymaster.frontend.call import Call
from quaymaster.frontend.routing import Routes
from quaymaster.protocol import shapes, validation
from quaymaster.protocol.queue_attributes import check_attribute_names

_COUNTED = frozenset(
    {
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    }
)


class QueuePage(Protocol):
    """Some queues in order of their names, and where to go on."""

    @property
    def queues(self) -> list[QueueDefinition]: ...
    @property
    def next_token(self) -> str | None: ...


class QueueService(Protocol):
    """The part of the metadata service that owns queues. Errors are those of `core.errors`."""

    async def list_queues(
        self,
        account_id: str,
        *,
        prefix: str = "",
        max_results: int | None = None,
        next_token: str | None = None,
    ) -> QueuePage: ...

    async def list_dead_letter_source_queues(
        self, target: QueueDefinition, *, max_results: int | None = None, next_token: str | None = None
    ) -> QueuePage: ...

    async def create_queue(
        self,
        account_id: str,
        name: str,
        attributes: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> QueueDefinition: ...

    async def set_attributes(
        self, account_id: str, name: str, changes: Mapping[str, str]
    ) -> QueueDefinition: ...

    async def add_permission(
        self, account_id: str, name: str, label: str, account_ids: Sequence[str], actions: Sequence[str]
    ) -> QueueDefinition: ...

    async def remove_permission(self, account_id: str, name: str, label: str) -> QueueDefinition: ...

    async def tag(self, account_id: str, name: str, tags: Mapping[str, str]) -> QueueDefinition: ...

    async def untag(self, account_id: str, name: str, keys: Iterable[str]) -> QueueDefinition: ...

    async def delete_queue(self, account_id: str, name: str) -> QueueDefinition: ...

    async def begin_purge(self, definition: QueueDefinition) -> None: ...

    async def cancel_purge(self, definition: QueueDefinition) -> None: ...


class QueueActions:
    """The handlers of the actions on queues."""

    def __init__(self, routes: Routes, queues: QueueService, *, can_delete: bool) -> None:
        self._routes = routes
        self._queues = queues
        self._can_delete = can_delete

    def handlers(self) -> dict[str, Callable[[Call, Any], Awaitable[shapes.Shape | None]]]:
        """Return the handler of each action."""
        return {
            "CreateQueue": self.create_queue,
            "DeleteQueue": self.delete_queue,
            "GetQueueUrl": self.get_queue_url,
            "ListQueues": self.list_queues,
            "ListDeadLetterSourceQueues": self.list_dead_letter_source_queues,
            "GetQueueAttributes": self.get_queue_attributes,
            "SetQueueAttributes": self.set_queue_attributes,
            "PurgeQueue": self.purge_queue,
            "TagQueue": self.tag_queue,
            "UntagQueue": self.untag_queue,
            "ListQueueTags": self.list_queue_tags,
            "AddPermission": self.add_permission,
            "RemovePermission": self.remove_permission,
        }

    async def is_dead_letter_queue(self, definition: QueueDefinition) -> bool:
        """Tell whether any queue's redrive policy names this one."""
        page = await self._queues.list_dead_letter_source_queues(definition, max_results=1)
        return bool(page.queues)

    # Being there

    async def create_queue(self, call: Call, given: shapes.CreateQueueRequest) -> shapes.CreateQueueResult:
        """Create a queue, or find the one that is as asked for."""
        call.queue_name = given.QueueName
        if given.tags:
            validation.check_tags(given.QueueName, given.tags)
        definition = await self._queues.create_queue(
            call.principal.account_id, given.QueueName, given.Attributes, given.tags
        )
        return shapes.CreateQueueResult(self._routes.url(definition, call.request))

    async def delete_queue(self, call: Call, given: shapes.DeleteQueueRequest) -> None:
        """Delete a queue and all in it, unless the operator keeps that to the command line."""
        definition = self._queue(call, given.QueueUrl)
        if not self._can_delete:
            raise UnsupportedOperation(
                'Queues are not deleted over the API here (setting delete_queue = "cli-only"). '
                f"Use `quaymaster queue delete {definition.name}` on the server."
            )
        await self._queues.delete_queue(definition.account_id, definition.name)

    async def get_queue_url(self, call: Call, given: shapes.GetQueueUrlRequest) -> shapes.GetQueueUrlResult:
        """Find a queue by its name."""
        call.queue_name = given.QueueName
        definition = self._routes.queue_of_name(
            given.QueueName, given.QueueOwnerAWSAccountId, call.principal.account_id
        )
        return shapes.GetQueueUrlResult(self._routes.url(definition, call.request))

    async def list_queues(self, call: Call, given: shapes.ListQueuesRequest) -> shapes.ListQueuesResult:
        """List the caller's queues by name."""
        validation.check_list_results(given.MaxResults, given.NextToken)
        page = await self._queues.list_queues(
            call.principal.account_id,
            prefix=given.QueueNamePrefix or "",
            max_results=given.MaxResults,
            next_token=given.NextToken or None,
        )
        urls = [self._routes.url(definition, call.request) for definition in page.queues]
        return shapes.ListQueuesResult(urls, page.next_token)

    async def list_dead_letter_source_queues(
        self, call: Call, given: shapes.ListDeadLetterSourceQueuesRequest
    ) -> shapes.ListDeadLetterSourceQueuesResult:
        """List the queues whose dead letters come here."""
        definition = self._queue(call, given.QueueUrl)
        validation.check_list_results(given.MaxResults, given.NextToken)
        page = await self._queues.list_dead_letter_source_queues(
            definition, max_results=given.MaxResults, next_token=given.NextToken or None
        )
        urls = [self._routes.url(source, call.request) for source in page.queues]
        return shapes.ListDeadLetterSourceQueuesResult(urls, page.next_token)

    # Attributes

    async def get_queue_attributes(
        self, call: Call, given: shapes.GetQueueAttributesRequest
    ) -> shapes.GetQueueAttributesResult:
        """Describe a queue: those of the asked attributes that it has."""
        definition = self._queue(call, given.QueueUrl)
        asked = check_attribute_names(given.AttributeNames)
        values: dict[str, str] = {}
        if asked is None or not _COUNTED.isdisjoint(asked):
            counts = await call.calls.ask(CountMessages(definition.queue_id))
            assert isinstance(counts, QueueCounts), "a CountMessages is answered by QueueCounts"
            values["ApproximateNumberOfMessages"] = str(counts.visible)
            values["ApproximateNumberOfMessagesNotVisible"] = str(counts.in_flight)
            values["ApproximateNumberOfMessagesDelayed"] = str(counts.delayed)
        values["QueueArn"] = self._routes.arn(definition)
        values["CreatedTimestamp"] = str(definition.created_ms // 1000)
        values["LastModifiedTimestamp"] = str(definition.modified_ms // 1000)
        values.update(definition.all_attributes())
        if asked is None:
            # What SQS does not have is shown where somebody set it; clients compare the rest with SQS.
            hidden = OWN_DEFAULTS.keys() - definition.attributes.keys()
            shown = {name: value for name, value in values.items() if name not in hidden}
        else:
            shown = {name: value for name, value in values.items() if name in asked}
        return shapes.GetQueueAttributesResult(shown)

    async def set_queue_attributes(self, call: Call, given: shapes.SetQueueAttributesRequest) -> None:
        """Change some of a queue's attributes."""
        definition = self._queue(call, given.QueueUrl)
        if not given.Attributes:
            raise MissingParameter("Attribute.Name")
        await self._queues.set_attributes(definition.account_id, definition.name, given.Attributes)

    # Messages, all of them

    async def purge_queue(self, call: Call, given: shapes.PurgeQueueRequest) -> None:
        """Delete every message that was sent before."""
        definition = self._queue(call, given.QueueUrl)
        await self._queues.begin_purge(definition)
        try:
            await call.calls.ask(Purge(definition.queue_id))
        except NotNow:
            await self._queues.cancel_purge(definition)
            raise

    # Tags and permissions

    async def tag_queue(self, call: Call, given: shapes.TagQueueRequest) -> None:
        """Put tags on a queue."""
        definition = self._queue(call, given.QueueUrl)
        validation.check_tags(definition.name, given.Tags, definition.tags)
        await self._queues.tag(definition.account_id, definition.name, given.Tags)

    async def untag_queue(self, call: Call, given: shapes.UntagQueueRequest) -> None:
        """Take tags off a queue."""
        definition = self._queue(call, given.QueueUrl)
        validation.check_tag_keys(given.TagKeys)
        await self._queues.untag(definition.account_id, definition.name, given.TagKeys)

    async def list_queue_tags(
        self, call: Call, given: shapes.ListQueueTagsRequest
    ) -> shapes.ListQueueTagsResult:
        """List a queue's tags."""
        return shapes.ListQueueTagsResult(self._queue(call, given.QueueUrl).tags)

    async def add_permission(self, call: Call, given: shapes.AddPermissionRequest) -> None:
        """Add a statement to the queue's policy."""
        definition = self._queue(call, given.QueueUrl)
        validation.check_permission(given)
        await self._queues.add_permission(
            definition.account_id, definition.name, given.Label, given.AWSAccountIds, given.Actions
        )

    async def remove_permission(self, call: Call, given: shapes.RemovePermissionRequest) -> None:
        """Take a statement out of the queue's policy."""
        definition = self._queue(call, given.QueueUrl)
        validation.check_label(given.Label)
        await self._queues.remove_permission(definition.account_id, definition.name, given.Label)

    def _queue(self, call: Call, url: str) -> QueueDefinition:
        definition = self._routes.queue_of_url(url, call.principal.account_id)
        call.queue_name = definition.name
        return definition
