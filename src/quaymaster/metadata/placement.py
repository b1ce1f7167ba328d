"""Which journals take new queues: those of the cell that have, or had, a leader in service.

A queue and its dead-letter queue belong in one journal, where a message moves by one record. Which queues will belong
together is not known when they are made, but their names often tell: `related_names`.

A queue stays in its journal for life (`Partition.journal_id`); the journal moves between brokers, and the queue with
it. So nothing here needs to be right at once: a list some seconds old is good enough to choose from.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from quaymaster.coordination.cell_keys import JOURNALS, decode_configuration, journal_of
from quaymaster.coordination.interface import Coordination
from quaymaster.core.errors import NotNow
from quaymaster.core.replication import JournalConfiguration

log = logging.getLogger(__name__)

DEAD_LETTER_MARKS: Final = (
    *("-dlq", "_dlq", "-dead-letter", "_dead_letter", "-deadletter", "-dead-letter-queue", "-dead-letters"),
    *("-dead", "_dead", "-failed", "_failed", "-failures", "-errors", "-error", "_error", "DLQ", "Dlq"),
)
"""What the name of a dead-letter queue usually ends with, behind the name of its source."""
FIFO: Final = ".fifo"

REFRESH_S: Final = 5.0
EMPTY_REFRESH_S: Final = 0.5


class CellJournals:
    """The cell's journals, read from coordination now and then. Call it for those that take new queues."""

    def __init__(self, store: Coordination, *, refresh_s: float = REFRESH_S) -> None:
        self._store = store
        self._refresh_s = refresh_s
        self._journals: tuple[int, ...] = ()
        self._task: asyncio.Task[None] | None = None

    def __call__(self) -> Sequence[int]:
        return self._journals

    def start(self) -> None:
        """Begin to read them."""
        self._task = asyncio.create_task(self._keep(), name="cell-journals")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def refresh(self) -> None:
        """Read them now."""
        items, _ = await self._store.list_all(JOURNALS)
        self._journals = tuple(
            journal_of(item.key) for item in items if _was_led(decode_configuration(item.value))
        )

    async def _keep(self) -> None:
        is_failing = False
        while True:
            try:
                await self.refresh()
                is_failing = False
            except NotNow as error:  # those there were are still good
                if not is_failing:
                    log.warning("journals not read error=%s", error)
                is_failing = True
            await asyncio.sleep(self._refresh_s if self._journals else EMPTY_REFRESH_S)


def related_names(name: str) -> list[str]:
    """Return the names of queues that a new queue probably shares messages with: source or dead-letter queue."""
    fifo = FIFO if name.endswith(FIFO) else ""
    stem = name.removesuffix(FIFO)
    sources = [stem.removesuffix(mark) for mark in DEAD_LETTER_MARKS if stem.endswith(mark)]
    return [related + fifo for related in (*sources, *(stem + mark for mark in DEAD_LETTER_MARKS)) if related]


def _was_led(configuration: JournalConfiguration) -> bool:
    # Appointed anew and not activated yet: it has been, and will be again.
    return configuration.activated or bool(configuration.previous_members)
