"""How many open stages each account has in a journal: kept current, so that a check costs the same however many."""

from __future__ import annotations

from typing import Final

from quaymaster.core.partition.partition import Partition

ACCOUNT_STAGES_MAX: Final = 100_000


class OpenStages:
    """The partitions with open stages, and how many stages each account has."""

    __slots__ = ("_counts", "_stages")

    def __init__(self) -> None:
        self._stages: dict[int, tuple[str, int]] = {}
        self._counts: dict[str, int] = {}

    def of_account(self, account_id: str) -> int:
        """Return how many stages of an account are open."""
        return self._counts.get(account_id, 0)

    def note(self, partition: Partition) -> None:
        """The partition's stages are new, or others than before."""
        count = partition.staged.open_stages if partition.staged is not None else 0
        self.forget(partition.key)
        if count:
            account_id = partition.definition.account_id
            self._stages[partition.key] = account_id, count
            self._counts[account_id] = self.of_account(account_id) + count

    def forget(self, key: int) -> None:
        """The partition is gone."""
        account_id, count = self._stages.pop(key, ("", 0))
        if count:
            self._counts[account_id] -= count
            if not self._counts[account_id]:
                del self._counts[account_id]
