"""Which partitions have a running message move task: kept current, so that no others are looked through."""

from __future__ import annotations

from collections.abc import Iterator

from quaymaster.core.partition.partition import Partition


class RunningTasks:
    """The partitions with a running task, and how many each account has. Of a partition one runs at a time."""

    __slots__ = ("_accounts", "_counts")

    def __init__(self) -> None:
        self._accounts: dict[int, str] = {}
        self._counts: dict[str, int] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._accounts))

    def of_account(self, account_id: str) -> int:
        """Return how many tasks of an account run."""
        return self._counts.get(account_id, 0)

    def note(self, key: int, partition: Partition) -> None:
        """The tasks of the partition with this key are new, or others than before."""
        self.forget(key)
        if any(task.status == "RUNNING" for task in partition.tasks):
            account_id = self._accounts[key] = partition.definition.account_id
            self._counts[account_id] = self.of_account(account_id) + 1

    def forget(self, key: int) -> None:
        """The partition is gone."""
        account_id = self._accounts.pop(key, None)
        if account_id is not None:
            self._counts[account_id] -= 1
            if not self._counts[account_id]:
                del self._counts[account_id]
