"""What accounts have in progress: none has more than half of what a front end takes at once.

    requests_max, long_polls_max, control_actions_max, data_actions_max ──▶ half of each for one account

With open authentication there is one account, which may have all.
"""

from __future__ import annotations

from typing import Final

LOADS_KEPT_MAX: Final = 16_384
"""Accounts that are remembered although nothing of theirs is in progress."""


class AccountLoad:
    """What one account has in progress."""

    __slots__ = ("actions", "long_polls", "requests")

    def __init__(self) -> None:
        self.requests = 0
        """Commands that wait for a broker, long polls aside."""
        self.long_polls = 0
        self.actions: dict[str, int] = {}
        """Actions that run as tasks, by plane."""


class AccountLoads:
    """Of one front end. `is_shared`: there are several accounts."""

    def __init__(self, *, requests_max: int, long_polls_max: int, is_shared: bool) -> None:
        self._is_shared = is_shared
        self.requests_max = self.part_of(requests_max)
        self.long_polls_max = self.part_of(long_polls_max)
        self._loads: dict[str, AccountLoad] = {}

    def part_of(self, number: int) -> int:
        """Return how many of so many one account may have."""
        return -(-number // 2) if self._is_shared else number

    def of(self, account_id: str) -> AccountLoad:
        """Return what an account has in progress."""
        load = self._loads.get(account_id)
        if load is None:
            if len(self._loads) >= LOADS_KEPT_MAX:
                self._loads = {
                    name: load
                    for name, load in self._loads.items()
                    if load.requests or load.long_polls or load.actions
                }
            load = self._loads[account_id] = AccountLoad()
        return load
