"""Makes the consumer group that a receive asks for: the first one to ask of a log-retained queue makes it.

Receives run as callbacks. One that finds no group is told that it is not known yet, and asked again when it is made.

Who commits offsets may have the group as its one reader: the group's tag READER_TAG names the last one who took it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NoReturn

from quaymaster.core.values.errors import GroupTakenOver, Overloaded, QueueDoesNotExist
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import group_name
from quaymaster.frontend.actions.queue_actions import QueueService
from quaymaster.net.routing.metadata_client import unknown_until
from quaymaster.protocol.rpc.metadata_messages import CreateGroup, TagQueue

CREATED_AT_ONCE_MAX: Final = 64
READER_TAG: Final = "quaymaster:reader"


FindQueue = Callable[[str, str], QueueDefinition | None]
"""Returns an active queue by account and name, or None; answers from memory, since every request asks it."""


class GroupDoesNotExist(QueueDoesNotExist):
    """There is such a log-retained queue, but no such consumer group of it; to the caller, no such queue."""

    def __init__(self, log: QueueDefinition, group: str) -> None:
        super().__init__()
        self.log = log
        self.group = group


class ConsumerGroups:
    """Creations of consumer groups that are under way: one for all who wait for it."""

    def __init__(self, queues: QueueService, find_queue: FindQueue) -> None:
        self._queues = queues
        self._find_queue = find_queue
        self._creating: dict[tuple[str, str, int], asyncio.Task[QueueDefinition]] = {}

    def create(self, missing: GroupDoesNotExist) -> NoReturn:
        """Begin to make a group, and raise NotYetKnown; Overloaded when too many are being made."""
        log = missing.log
        name = group_name(log.name, missing.group)
        key = log.account_id, name, log.queue_id
        task = self._creating.get(key)
        if task is None:
            if len(self._creating) >= CREATED_AT_ONCE_MAX:
                raise Overloaded
            change = self._queues.change(CreateGroup(log.account_id, name, log_id=log.queue_id))
            task = self._creating[key] = asyncio.ensure_future(change)
            task.add_done_callback(lambda done: self._creating.pop(key, None))
        raise unknown_until(task)

    async def take(self, group: QueueDefinition, reader: str) -> None:
        """Let a reader have a group, and take it from those who had it before."""
        tags = {READER_TAG: reader}
        await self._queues.change(TagQueue(group.account_id, group.name, tags, queue_id=group.queue_id))

    async def check_reader(self, group: QueueDefinition, reader: str) -> None:
        """Raise GroupTakenOver unless a reader has the group, as far as can be learned."""
        if group.tags.get(READER_TAG) == reader:
            return
        # Taken through another front end, this one may not have heard of it.
        await self._queues.refresh(group)
        found = self._find_queue(group.account_id, group.name)
        if found is None:
            raise QueueDoesNotExist
        if found.tags.get(READER_TAG) != reader:
            raise GroupTakenOver(group.name)
