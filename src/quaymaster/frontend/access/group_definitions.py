"""Consumer groups with what their logs say of them, remembered: nearly every request about a group needs it."""

from __future__ import annotations

from typing import Final

from quaymaster.core.values.queues.queue_definitions import QueueDefinition, group_definition

GROUPS_REMEMBERED_MAX: Final = 16_384
"""Of more, all are forgotten."""


class GroupDefinitions:
    """`of` gives the same object until a row of the group or of its log has changed."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[QueueDefinition, QueueDefinition, QueueDefinition]] = {}

    def of(self, group: QueueDefinition, log: QueueDefinition) -> QueueDefinition:
        """Return a group as it is in force; `group` and `log` are their rows."""
        known = self._known.get(group.queue_id)
        if known is not None and known[0] is group and known[1] is log:
            return known[2]
        definition = group_definition(group, log)
        if len(self._known) >= GROUPS_REMEMBERED_MAX:
            self._known.clear()
        self._known[group.queue_id] = group, log, definition
        return definition
