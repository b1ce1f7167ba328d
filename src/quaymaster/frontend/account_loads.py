"""What accounts have in progress: none has more than half of what a front end takes at once.

    requests_max, long_polls_max, control_actions_max, data_actions_max ──▶ half of each for one account
    all long_polls_max wait ──▶ the account with most ends its oldest, for one that has fewer by two

So accounts that keep all places of long polls, however few they are, leave others as many as they have themselves. A
poll that gives way ends empty: its client loses nothing.

With open authentication there is one account, which may have all.
"""

from __future__ import annotations

from typing import Final, Protocol

from quaymaster.core.structures.largest import Largest

LOADS_KEPT_MAX: Final = 16_384
"""Accounts that are remembered although nothing of theirs is in progress."""


class LongPoll(Protocol):
    """A receive that waits for messages."""

    def on_hurry(self) -> None:
        """Have it end soon, with what the broker was just handing out or with nothing."""
        ...


class AccountLoad:
    """What one account has in progress."""

    __slots__ = ("actions", "polls", "requests")

    def __init__(self) -> None:
        self.requests = 0
        """Commands that wait for a broker, long polls aside."""
        self.polls: dict[LongPoll, None] = {}
        """Long polls, the oldest first, without those that give way."""
        self.actions: dict[str, int] = {}
        """Actions that run as tasks, by plane."""

    @property
    def long_polls(self) -> int:
        """How many places of long polls it has."""
        return len(self.polls)


class AccountLoads:
    """Of one front end. `is_shared`: there are several accounts."""

    def __init__(self, *, requests_max: int, long_polls_max: int, is_shared: bool) -> None:
        self._is_shared = is_shared
        self.requests_max = self.part_of(requests_max)
        self.polls_of_all_max = long_polls_max
        self._polls_max = self.part_of(long_polls_max)
        self._polls_of_all = 0
        """Without those that give way: their places are given already."""
        self._with_most_polls: Largest[AccountLoad] = Largest()
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
                    if load.requests or load.polls or load.actions
                }
            load = self._loads[account_id] = AccountLoad()
        return load

    def has_place_for_poll(self, load: AccountLoad) -> bool:
        """Tell whether a long poll of an account may wait; one of the account with most may have to give way for it."""
        own = len(load.polls)
        if own >= self._polls_max:
            return False
        if self._polls_of_all < self.polls_of_all_max:
            return True
        largest = self._with_most_polls.find()
        if largest is None or len(largest.polls) < own + 2:
            return False
        oldest = next(iter(largest.polls))
        self.end_poll(largest, oldest)
        oldest.on_hurry()
        return True

    def begin_poll(self, load: AccountLoad, poll: LongPoll) -> None:
        """A long poll of an account waits."""
        load.polls[poll] = None
        self._polls_of_all += 1
        self._with_most_polls.count(load, len(load.polls) - 1, len(load.polls))

    def end_poll(self, load: AccountLoad, poll: LongPoll) -> None:
        """It waits no longer, or is about to end for others; told of again, nothing is done."""
        if poll not in load.polls:
            return
        del load.polls[poll]
        self._polls_of_all -= 1
        self._with_most_polls.count(load, len(load.polls) + 1, len(load.polls))
