"""What becomes of partitions after their seal, by what their journals say of them.

    closing ──sealed for longer than ids are remembered──▶ closed ──empty──▶ drained ──15 days──▶ (not listed)

Ages are of the partition's own journal: clocks of two journals may differ by an hour for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from quaymaster.core.values.commands.partitions import PartitionOutcome
from quaymaster.core.values.partition_tables import in_state, with_state, without
from quaymaster.core.values.queues.queue_definitions import PartitionPlacement, QueueDefinition

REMOVED_MS: Final = 15 * 86_400_000
"""A drained partition is listed until so long after its seal: nothing asks for its old moves and batches then."""
LOOK_MIN_MS: Final = 1_000
LOOK_MAX_MS: Final = 30_000
"""How often a partition is looked at that may be emptied at any time; seldom, if it has not been for long."""
REMOVAL_LOOK_MS: Final = 3_600_000
"""A drained partition is looked at again after so long at most."""

Answers = Mapping[int, PartitionOutcome]
"""What journals said of partitions, by number. Of those that did not answer there is nothing."""


def aged(definition: QueueDefinition, answers: Answers, closing_ms: int) -> QueueDefinition:
    """Return the table as it should be; the same definition if it is so.

    `closing_ms`: how long a sealed partition is asked whether it knows a message's id.
    """
    for entry in definition.partitions:
        answer = answers.get(entry.number)
        if answer is None or answer.sealed_for_ms is None:
            continue
        state = entry.state
        if state == "closing" and answer.sealed_for_ms > closing_ms:
            state = "closed"
        if state == "closed" and answer.is_empty:
            definition = with_state(
                definition, entry.number, "drained", sends=answer.sends, deletions=answer.deletions
            )
        elif state != entry.state:
            definition = with_state(definition, entry.number, state)
        elif state == "drained" and answer.sealed_for_ms > REMOVED_MS:
            definition = without(definition, [entry.number])
    return definition


def unsealed(definition: QueueDefinition, answers: Answers) -> list[PartitionPlacement]:
    """Return the closing partitions whose journals have not sealed them, as far as they answered."""
    return [
        entry
        for entry in in_state(definition, "closing")
        if entry.number in answers and answers[entry.number].sealed_for_ms is None
    ]


def next_look_ms(definition: QueueDefinition, answers: Answers, closing_ms: int, looks: int) -> int:
    """Return in how many milliseconds the table may have to change; `looks`: how often it was looked at in vain."""
    patient_ms = min(LOOK_MIN_MS << min(looks, 5), LOOK_MAX_MS)
    waits = [REMOVAL_LOOK_MS]
    for entry in definition.partitions:
        answer = answers.get(entry.number)
        sealed_for_ms = None if answer is None else answer.sealed_for_ms
        if entry.state == "closed" or (entry.state == "closing" and sealed_for_ms is None):
            waits.append(patient_ms)
        elif entry.state == "closing" and sealed_for_ms is not None:
            waits.append(min(max(closing_ms - sealed_for_ms + 1, LOOK_MIN_MS), LOOK_MAX_MS))
        elif entry.state == "drained" and sealed_for_ms is not None:
            waits.append(max(REMOVED_MS - sealed_for_ms + 1, LOOK_MIN_MS))
    return min(waits)
