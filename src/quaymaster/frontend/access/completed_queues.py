"""The queues that receipt handles are of: a message that completes another names it by its handle alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.net.routing.metadata_client import unknown_until
from quaymaster.protocol.sqs.receipts import ReceiptHandles


class CompletedQueues:
    """Finds queues by receipt handles.

    `find_row` answers from memory, None where the queue is not known there; `learn` has memory know it, or raises
    QueueDoesNotExist.
    """

    def __init__(
        self,
        handles: ReceiptHandles,
        find_row: Callable[[int], QueueDefinition | None],
        learn: Callable[[int], Coroutine[Any, Any, None]],
    ) -> None:
        self._handles = handles
        self._find_row = find_row
        self._learn = learn

    def find(self, handle: str) -> QueueDefinition:
        """Return the queue that a handle is of, of a log the consumer group.

        Raises ReceiptHandleIsInvalid if it is not genuine, NotYetKnown while the queue is asked for.
        """
        queue_id = self._handles.queue_of(handle)
        found = self._find_row(queue_id)
        if found is None:
            raise unknown_until(asyncio.ensure_future(self._learn(queue_id)))
        return found
