"""A transaction is in one partition of its queue: the oldest of its sink's key that knows it, or that takes messages.

Sealed partitions that do not know a batch say so; then the next younger one is asked, in the end the open one.

A batch is in one partition, whatever the groups of its messages are. So a FIFO queue takes transactions while it has
one open partition: with several, messages of a group would be in two, and their order lost. While several are merged,
each of them must be sealed before the one that follows takes a batch: until then messages of its groups are sent there.
"""

from __future__ import annotations

import msgspec
import xxhash

from quaymaster.core.spread.parts import Part, partitions_are_changing
from quaymaster.core.values.commands.messages import Elsewhere
from quaymaster.core.values.commands.transactions import AbortTransaction, CommitTransaction, StageMessages
from quaymaster.core.values.commands.unions import Outcome
from quaymaster.core.values.errors import UnsupportedOperation
from quaymaster.core.values.partition_tables import has_key, in_state
from quaymaster.core.values.queues.queue_definitions import PartitionPlacement, QueueDefinition

TransactionCommand = StageMessages | CommitTransaction | AbortTransaction


class SpreadTransaction:
    """A command about one batch of a sink."""

    def __init__(self, definition: QueueDefinition, command: TransactionCommand) -> None:
        self.result: Outcome | Exception | None = None
        self._command = command
        self._definition = definition
        self._key = xxhash.xxh3_64_intdigest(command.sink.encode())

    def begin(self) -> list[Part]:
        """Return the command to the oldest partition that may know the batch."""
        return self._ask(-1)

    def on_outcome(self, part: Part, outcome: Outcome | Exception, definition: QueueDefinition) -> list[Part]:
        """Take an answer; go on where the batch is not known."""
        self._definition = definition
        if isinstance(outcome, Elsewhere):
            return self._ask(part.number)
        self.result = outcome
        return []

    def again(self, part: Part, definition: QueueDefinition) -> list[Part]:
        """Ask the partition again by this newer table, or the next one where it is not listed any more."""
        self._definition = definition
        return self._ask(part.number - 1)

    def _ask(self, after: int) -> list[Part]:
        for entry in self._definition.partitions:
            if entry.number > after and self._is_asked(entry):
                if entry.state == "open" and self._would_lose_order():
                    self.result = UnsupportedOperation(
                        "A FIFO queue takes transactions while it has one open partition: merge its partitions first."
                    )
                    return []
                command = msgspec.structs.replace(self._command, partition=entry.number)
                return [Part(entry.number, command)]
        self.result = partitions_are_changing()
        return []

    def _is_asked(self, entry: PartitionPlacement) -> bool:
        if entry.state == "closing" and self._needs_order:
            return True
        return entry.state != "new" and has_key(entry, self._key)

    def _would_lose_order(self) -> bool:
        return self._needs_order and len(in_state(self._definition, "open")) > 1

    @property
    def _needs_order(self) -> bool:
        return self._definition.is_fifo and isinstance(self._command, StageMessages)
