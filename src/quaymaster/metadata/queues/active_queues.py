"""Active queues in memory, found by name and by id. Queues that are being made or deleted are not found."""

from __future__ import annotations

from collections.abc import Iterable

from quaymaster.core.values.errors import QueueDoesNotExist
from quaymaster.core.values.partition_tables import journal_of_partition
from quaymaster.core.values.queues.queue_definitions import QueueDefinition


class ActiveQueues:
    """The look-ups that all who know queues have. Everything answers from RAM."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, str], QueueDefinition] = {}
        self._by_id: dict[int, QueueDefinition] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, account_id: str, name: str) -> QueueDefinition | None:
        """Return an active queue, or None."""
        return self._by_name.get((account_id, name))

    def queue(self, account_id: str, name: str) -> QueueDefinition:
        """Return an active queue; QueueDoesNotExist, and what `find` raises."""
        definition = self.find(account_id, name)
        if definition is None:
            raise QueueDoesNotExist
        return definition

    def queue_by_id(self, queue_id: int) -> QueueDefinition | None:
        """Return an active queue by its id, or None."""
        return self._by_id.get(queue_id)

    def journal_of(self, queue_id: int, partition: int) -> int | None:
        """Return which journal has a partition of a queue (ALL_PARTITIONS: the oldest), None when it is not known."""
        definition = self._by_id.get(queue_id)
        if definition is not None and definition.group_of:
            definition = self._by_id.get(definition.group_of)
        return None if definition is None else journal_of_partition(definition, partition)

    def account_of(self, queue_id: int) -> str:
        """Return who owns an active queue, "" when that is not known."""
        definition = self._by_id.get(queue_id)
        return "" if definition is None else definition.account_id

    def active_queues(self) -> Iterable[QueueDefinition]:
        """Return all active queues, of all accounts, in no order."""
        return list(self._by_id.values())

    def _note(self, old: QueueDefinition | None, new: QueueDefinition | None) -> None:
        """Have a row as it is now; `old`: as it was before, None for absent."""
        if old is not None and old.state == "active":
            del self._by_name[old.account_id, old.name]
            del self._by_id[old.queue_id]
        if new is not None and new.state == "active":
            self._by_name[new.account_id, new.name] = new
            self._by_id[new.queue_id] = new
