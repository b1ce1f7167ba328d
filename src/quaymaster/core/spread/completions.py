"""A completion goes to the partition that its receipts name, wherever that is now."""

from __future__ import annotations

from quaymaster.core.partition.receipts import receipt_invalid
from quaymaster.core.queues.completions import GONE
from quaymaster.core.spread.parts import Part
from quaymaster.core.values.commands.completions import Complete, CompleteOutcome
from quaymaster.core.values.commands.unions import Outcome
from quaymaster.core.values.partition_tables import entry_of
from quaymaster.core.values.queues.queue_definitions import QueueDefinition


class SpreadCompletion:
    """One Complete. Its messages are gone if their partition is not listed any more; a drained one is still asked."""

    def __init__(self, definition: QueueDefinition, command: Complete) -> None:
        self.result: Outcome | Exception | None = None
        self._command = command
        self._definition = definition

    def begin(self) -> list[Part]:
        """Return the command to its partition."""
        return self._ask(self._definition)

    def on_outcome(self, part: Part, outcome: Outcome | Exception, definition: QueueDefinition) -> list[Part]:
        """Take the answer."""
        self.result = outcome
        return []

    def again(self, part: Part, definition: QueueDefinition) -> list[Part]:
        """The partition was not known where it was sought; this is the newest table."""
        return self._ask(definition)

    def _ask(self, definition: QueueDefinition) -> list[Part]:
        number = self._command.partition
        if number < definition.next_partition and entry_of(definition, number) is None:
            self.result = CompleteOutcome([receipt_invalid(GONE)] * len(self._command.receipts))
            return []
        return [Part(number, self._command, [0])]
