"""Deletes and changes of visibility by receipts of several partitions: each goes to its own.

A receipt of a partition that is drained, or not listed any more, is of a message that is gone. In an ExactlyOnce queue
a drained partition still knows which delivery finished it; what only a removed one knew is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quaymaster.core.partition.receipts import EXPIRED, NOT_AVAILABLE, receipt_invalid
from quaymaster.core.spread.parts import SEVERAL, Part
from quaymaster.core.values.commands.messages import ChangeVisibility, Delete, EntriesOutcome, Receipt
from quaymaster.core.values.commands.unions import Outcome
from quaymaster.core.values.errors import QueueDoesNotExist
from quaymaster.core.values.partition_tables import entry_of, is_read
from quaymaster.core.values.queues.queue_definitions import QueueDefinition


class HandledEntries(msgspec.Struct, gc=False):
    """A Delete, or with timeouts a ChangeVisibility, of messages in these partitions. Only front ends know it."""

    queue_id: int
    partitions: list[int]
    receipts: list[Receipt]
    visibility_timeouts_ms: list[int] | None = None
    partition: int = SEVERAL


def handled(command: Delete | ChangeVisibility) -> HandledEntries:
    """Return a command about messages of one partition as one that is spread."""
    timeouts_ms = command.visibility_timeouts_ms if isinstance(command, ChangeVisibility) else None
    numbers = [command.partition] * len(command.receipts)
    return HandledEntries(command.queue_id, numbers, command.receipts, timeouts_ms)


class SpreadEntries:
    """Entries of one request. `result` has one outcome for each, in order."""

    def __init__(self, definition: QueueDefinition, command: HandledEntries) -> None:
        self.result: EntriesOutcome | Exception | None = None
        self._definition = definition
        self._command = command
        self._errors: list[Exception | None] = [None] * len(command.receipts)
        self._gone = 0
        self._left = 0

    def begin(self) -> list[Part]:
        """Return a command to each partition that has some of the messages."""
        parts: list[Part] = []
        for number in dict.fromkeys(self._command.partitions):
            parts += self._ask(number, [at for at, of in enumerate(self._command.partitions) if of == number])
        self._left = len(parts)
        self._finish()
        return parts

    def on_outcome(self, part: Part, outcome: Outcome | Exception, definition: QueueDefinition) -> list[Part]:
        """Take an answer; entries of a partition without a leader fail alone."""
        self._left -= 1
        if isinstance(outcome, EntriesOutcome):
            self._gone += outcome.gone
            for index, error in zip(part.indexes, outcome.errors, strict=True):
                self._errors[index] = error
        else:
            assert isinstance(outcome, Exception), f"entries are not answered so: {outcome}"
            for index in part.indexes:
                self._errors[index] = outcome
        self._finish()
        return []

    def again(self, part: Part, definition: QueueDefinition) -> list[Part]:
        """The partition was not known where it was sought; this is the newest table."""
        self._definition = definition
        self._left -= 1
        parts = self._ask(part.number, part.indexes)
        self._left += len(parts)
        self._finish()
        return parts

    def _ask(self, number: int, indexes: Sequence[int]) -> list[Part]:
        entry = entry_of(self._definition, number)
        # A number that was not given yet is one of a newer table, which a front end had that knows more. What is sent
        # there is not known, and the newest table is looked for.
        is_newer = number >= self._definition.next_partition
        is_exactly_once = self._definition.is_exactly_once
        if is_newer or (entry is not None and (is_read(entry) or is_exactly_once)):
            return [Part(number, self._to(number, indexes), list(indexes))]
        for index in indexes:
            if is_exactly_once:
                self._errors[index] = receipt_invalid(EXPIRED)
            elif self._command.visibility_timeouts_ms is None:
                self._gone += 1
            else:
                self._errors[index] = receipt_invalid(NOT_AVAILABLE)
        return []

    def _to(self, number: int, indexes: Sequence[int]) -> Delete | ChangeVisibility:
        command = self._command
        receipts = [command.receipts[index] for index in indexes]
        if command.visibility_timeouts_ms is None:
            return Delete(command.queue_id, number, receipts)
        timeouts_ms = [command.visibility_timeouts_ms[index] for index in indexes]
        return ChangeVisibility(command.queue_id, number, receipts, timeouts_ms)

    def _finish(self) -> None:
        if self._left:
            return
        first = self._errors[0]
        is_gone = isinstance(first, QueueDoesNotExist)
        self.result = first if is_gone else EntriesOutcome(self._errors, self._gone)
