"""Makes the consumer group that a receive asks for: the first one to ask of a log-retained queue makes it.

Receives run as callbacks. One that finds no group is told that it is not known yet, and asked again when it is made.

Who commits offsets may have the group as its one reader: the group's tag READER_TAG names the last one who took it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NoReturn

from quaymaster.core.values.errors import CallerError, GroupTakenOver, NotNow, NotYetKnown, Overloaded
from quaymaster.core.values.queue_definitions import QueueDefinition
from quaymaster.core.values.queue_names import group_name
from quaymaster.frontend.actions.queue_actions import QueueService
from quaymaster.frontend.actions.routing import GroupDoesNotExist
from quaymaster.protocol.rpc.metadata_messages import CreateGroup, TagQueue

CREATED_AT_ONCE_MAX: Final = 64
READER_TAG: Final = "quaymaster:reader"


class ConsumerGroups:
    """Creations of consumer groups that are under way: one for all who wait for it."""

    def __init__(self, queues: QueueService) -> None:
        self._queues = queues
        self._creating: dict[tuple[str, str], asyncio.Task[QueueDefinition]] = {}

    def create(self, missing: GroupDoesNotExist) -> NoReturn:
        """Begin to make a group, and raise NotYetKnown; Overloaded when too many are being made."""
        key = missing.log.account_id, group_name(missing.log.name, missing.group)
        task = self._creating.get(key)
        if task is None:
            if len(self._creating) >= CREATED_AT_ONCE_MAX:
                raise Overloaded
            change = self._queues.change(CreateGroup(*key))
            task = self._creating[key] = asyncio.ensure_future(change)
            task.add_done_callback(lambda done: self._creating.pop(key, None))
        creating = task

        def when_known(resume: Callable[[CallerError | NotNow | None], None]) -> None:
            creating.add_done_callback(lambda done: resume(_failure_of(done)))

        raise NotYetKnown(when_known)

    async def take(self, group: QueueDefinition, reader: str) -> None:
        """Let a reader have a group, and nobody who had it before."""
        await self._queues.change(TagQueue(group.account_id, group.name, {READER_TAG: reader}))

    async def check_reader(
        self, group: QueueDefinition, reader: str, find: Callable[[], QueueDefinition]
    ) -> None:
        """Raise GroupTakenOver unless a reader has the group, as far as can be learned. `find` looks it up again."""
        if group.tags.get(READER_TAG) == reader:
            return
        # Taken through another front end, this one may not have heard of it.
        await self._queues.refresh(group)
        if find().tags.get(READER_TAG) != reader:
            raise GroupTakenOver(group.name)


def _failure_of(done: asyncio.Future[QueueDefinition]) -> CallerError | NotNow | None:
    error = NotNow() if done.cancelled() else done.exception()
    if error is None or isinstance(error, CallerError | NotNow):
        return error
    return NotNow(f"The consumer group could not be made: {error}")
