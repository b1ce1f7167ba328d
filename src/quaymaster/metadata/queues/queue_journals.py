"""The journals' side of queues: what metadata tells them, and what it asks them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from quaymaster.core.values.errors import QueueDoesNotExist, QueueIdTaken, Timeout
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.queue_definitions import QueueDefinition
from quaymaster.core.values.queue_marks import QueueIdentity, QueueMarks
from quaymaster.metadata.queues.id_guard import MARKS_ASKED

log = logging.getLogger(__name__)

JOURNAL_TIMEOUT_MS: Final = 30_000
LATE_SET_MS: Final = 2 * JOURNAL_TIMEOUT_MS
"""When a journal has been told of a queue by every node that meant to before the queue was deleted."""


class QueueJournal(Protocol):
    """The journal's side of a queue's life. Each call returns when its record is committed and durable."""

    async def set_queue(self, definition: QueueDefinition) -> None:
        """Make the journal know the queue at this revision; idempotent.

        QueueRevisionTaken if it has a later one, or other attributes of this one.
        """
        ...

    async def delete_queue(self, queue_id: int, identity: QueueIdentity | None = None) -> None:
        """Make the journal forget the queue and its messages; idempotent, also for a queue it never knew.

        `identity`: who it must be; QueueIdTaken if the journal has another one under this id.
        """
        ...

    async def marks(self, journal_id: int) -> QueueMarks:
        """Return the highest ids that a journal ever saw."""
        ...

    async def data_keys(self, journal_id: int) -> set[int]:
        """Return the data keys that a journal's messages name; NotNow when its leader does not answer."""
        ...


class QueueJournals:
    """`ids` returns the journals that take new queues. What they are told has a time limit."""

    def __init__(self, ids: Callable[[], Sequence[int]], cell_format: CellFormat) -> None:
        self.ids = ids
        self.timeout_ms = JOURNAL_TIMEOUT_MS
        self._cell_format = cell_format
        self._journal: QueueJournal | None = None

    def attach(self, journal: QueueJournal) -> None:
        """Say who writes QUEUE_SET and QUEUE_DELETE. Needed before anything is created, set or deleted."""
        self._journal = journal

    @property
    def is_attached(self) -> bool:
        """Tell whether queues can be created, set and deleted."""
        return self._journal is not None

    @property
    def _attached(self) -> QueueJournal:
        assert self._journal is not None, "a journal is attached before queues are created, set or deleted"
        return self._journal

    async def set_queue(self, definition: QueueDefinition) -> None:
        """Make its journal know the queue at this revision: see `QueueJournal`."""
        try:
            await self._in_time(self._attached.set_queue(definition))
        except QueueIdTaken as error:
            log.error(
                "queue refused queue=%s queue_id=%d error=%s", definition.name, definition.queue_id, error
            )
            raise

    async def delete_queue(self, queue_id: int, identity: QueueIdentity | None = None) -> None:
        """Make its journal forget the queue, unless it has another one under this id."""
        with suppress(QueueDoesNotExist):  # forgotten for so long that nobody knows its journal
            try:
                await self._in_time(self._attached.delete_queue(queue_id, identity))
            except QueueIdTaken as error:  # it has nothing of the one that is to go
                log.error("queue deleted in metadata only queue_id=%d error=%s", queue_id, error)

    async def marks(self) -> list[QueueMarks]:
        """Return the highest ids that each journal ever saw; nothing in cells whose brokers cannot be asked."""
        if not self._cell_format.version_of(MARKS_ASKED):
            return []  # a broker of the cell may not know the question
        return [await self._attached.marks(journal_id) for journal_id in self.ids()]

    async def data_keys(self, journal_id: int) -> set[int]:
        """Return the data keys that a journal's messages name; NotNow when its leader does not answer."""
        return await self._attached.data_keys(journal_id)

    async def _in_time(self, call: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self.timeout_ms / 1000):
                await call
        except TimeoutError:
            raise Timeout from None
