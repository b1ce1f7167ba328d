"""The journals' side of queues: what metadata tells them, and what it asks them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from quaymaster.core.values.commands.partitions import PartitionOutcome
from quaymaster.core.values.errors import NotNow, QueueDoesNotExist, QueueIdTaken, QueueRevisionTaken, Timeout
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.partition_tables import awaited_journals, journals_of, told_journals
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_marks import QueueIdentity, QueueMarks, identity_of
from quaymaster.metadata.queues.id_guard import MARKS_ASKED

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

JOURNAL_TIMEOUT_MS: Final = 30_000
LATE_SET_MS: Final = 2 * JOURNAL_TIMEOUT_MS
"""When a journal has been told of a queue by every node that meant to before the queue was deleted."""
PARTITION_ASKED_MS: Final = 5_000
"""How long the answer about one partition may take: it is asked again soon."""
UNAWAITED_MS: Final = 1_000
"""How long a journal may take whose partitions of the queue are drained, or gone."""


class TableTaken(NotNow):
    """A journal has a later partition table, or another one of this version, and did nothing. `known`: what it has."""

    message = "A journal has a later partition table of this queue."

    def __init__(self, known: QueueDefinition) -> None:
        super().__init__()
        self.known = known


class QueueJournal(Protocol):
    """The journals' side of a queue's life. Each call returns when its record is committed and durable."""

    async def set_queue(self, definition: QueueDefinition, journal_id: int) -> QueueDefinition | None:
        """Make a journal know the queue at this revision; idempotent.

        Return None, or what the journal has: a later partition table, or another one of this version. It then did
        nothing. QueueRevisionTaken if it has a later revision, or other attributes of this one.
        """
        ...

    async def delete_queue(
        self, queue_id: int, identity: QueueIdentity | None = None, journal_id: int | None = None
    ) -> None:
        """Make a journal forget the queue and its messages; idempotent, also for a queue it never knew.

        `identity`: who it must be; QueueIdTaken if the journal has another one under this id.
        """
        ...

    async def partition(self, queue_id: int, number: int) -> PartitionOutcome:
        """Return how far a partition is on its way to be drained."""
        ...

    async def marks(self, journal_id: int) -> QueueMarks:
        """Return the highest ids that a journal ever saw."""
        ...

    async def data_keys(self, journal_id: int) -> set[int]:
        """Return the data keys that a journal's messages name; NotNow when its leader does not answer."""
        ...


class QueueJournals:
    """`ids` returns the journals that take new queues; `in_force`: a consumer group with what its log says of it.

    What they are told has a time limit.
    """

    def __init__(
        self,
        ids: Callable[[], Sequence[int]],
        cell_format: CellFormat,
        in_force: Callable[[QueueDefinition], QueueDefinition] = lambda definition: definition,
    ) -> None:
        self.ids = ids
        self._in_force = in_force
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

    async def set_queue(self, definition: QueueDefinition, journals: Collection[int] | None = None) -> None:
        """Make journals know the queue at this revision: those given, or all that its table names.

        Of all, those are not waited for whose partitions are drained. A consumer group is told to the journals that
        have partitions of its log.

        Raises:
            QueueIdTaken, QueueRevisionTaken: see `QueueJournal`.
            TableTaken: a journal has a later partition table.
            NotNow: a journal did not answer.
        """
        definition = self._in_force(definition)
        awaited, others = _journals_to_tell(definition) if journals is None else (tuple(journals), ())

        async def tell(journal_id: int) -> None:
            if definition.group_of and _is_new_in(definition, journal_id):
                await self._tell_behind_log(definition, journal_id)
                return
            known = await self._attached.set_queue(definition, journal_id)
            if known is not None:
                raise TableTaken(known)

        try:
            await self._tell(tell, awaited, others)
        except QueueIdTaken as error:
            log.error(
                "queue refused queue=%s queue_id=%d error=%s", definition.name, definition.queue_id, error
            )
            raise

    async def _tell_behind_log(self, group: QueueDefinition, journal_id: int) -> None:
        """Make a journal know a group which may yet have to hear of its log."""
        try:
            await self._attached.set_queue(group, journal_id)
        except QueueDoesNotExist:
            raise NotNow("The partitions of the queue are changing. Try again.") from None

    async def delete_queue(self, definition: QueueDefinition) -> None:
        """Make a queue's journals forget it, unless they have another one under this id."""
        definition = self._in_force(definition)
        awaited, others = _journals_to_tell(definition)
        await self._delete(definition.queue_id, awaited, others, identity_of(definition))

    async def delete_again(self, queue_id: int, journals: Sequence[int]) -> None:
        """Make journals forget a queue that is gone, whichever they have under this id."""
        await self._delete(queue_id, tuple(dict.fromkeys(journals)))

    async def partition(self, queue_id: int, number: int) -> PartitionOutcome:
        """Return how far a partition is on its way to be drained; NotNow when its leader does not answer."""
        call = self._attached.partition(queue_id, number)
        return await _in_time(call, min(PARTITION_ASKED_MS, self.timeout_ms))

    async def marks(self) -> list[QueueMarks]:
        """Return the highest ids that each journal ever saw; nothing in cells whose brokers cannot be asked."""
        if not self._cell_format.version_of(MARKS_ASKED):
            return []  # a broker of the cell may not know the question
        return [await self._attached.marks(journal_id) for journal_id in self.ids()]

    async def data_keys(self, journal_id: int) -> set[int]:
        """Return the data keys that a journal's messages name; NotNow when its leader does not answer."""
        return await self._attached.data_keys(journal_id)

    async def _delete(
        self,
        queue_id: int,
        awaited: Sequence[int],
        others: Sequence[int] = (),
        identity: QueueIdentity | None = None,
    ) -> None:
        async def tell(journal_id: int) -> None:
            with suppress(QueueDoesNotExist):  # forgotten for so long that its journal is not known any more
                try:
                    await self._attached.delete_queue(queue_id, identity, journal_id)
                except QueueIdTaken as error:  # it has nothing of the one that is to go
                    log.error("queue deleted in metadata only queue_id=%d error=%s", queue_id, error)

        await self._tell(tell, awaited, others)

    async def _tell(
        self, tell: Callable[[int], Awaitable[None]], awaited: Sequence[int], others: Sequence[int]
    ) -> None:
        """Tell journals something, all at once, and raise what weighs most of what they refuse."""
        if len(awaited) == 1 and not others:
            await _in_time(tell(awaited[0]), self.timeout_ms)
            return
        answers = await asyncio.gather(
            *(_in_time(tell(journal_id), self.timeout_ms) for journal_id in awaited),
            *(_in_time(tell(journal_id), min(UNAWAITED_MS, self.timeout_ms)) for journal_id in others),
            return_exceptions=True,
        )
        refusals = []
        for number, answer in enumerate(answers):
            if isinstance(answer, BaseException):
                if number < len(awaited) or _weight(answer) > _ABSENT:
                    refusals.append(answer)
                else:
                    log.info("journal not told journal=%d error=%s", others[number - len(awaited)], answer)
        if refusals:
            raise max(refusals, key=_weight)


_ABSENT: Final = (0, 0)


def _weight(refusal: BaseException) -> tuple[int, int]:
    """Return how much the refusal of one of several journals weighs; `_ABSENT`: it said nothing of what it has."""
    match refusal:
        case QueueIdTaken():
            return 3, 0
        case TableTaken():
            return 2, refusal.known.table_version
        case QueueRevisionTaken():
            return 1, refusal.revision
    return _ABSENT if isinstance(refusal, NotNow) else (4, 0)


async def _in_time(call: Awaitable[Answer], timeout_ms: int) -> Answer:
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await call
    except TimeoutError:
        raise Timeout from None


def _journals_to_tell(definition: QueueDefinition) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the journals that must hear of a queue's change, and those that need not be waited for."""
    awaited = awaited_journals(definition)
    told = journals_of(definition) if definition.group_of else told_journals(definition)
    return awaited, tuple(each for each in told if each not in awaited)


def _is_new_in(definition: QueueDefinition, journal_id: int) -> bool:
    """Return whether a queue has but new partitions in a journal."""
    return all(entry.state == "new" for entry in definition.partitions if entry.journal_id == journal_id)
