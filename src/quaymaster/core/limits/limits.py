"""Limits as operators set them, and which of them hold for a request.

    the caller's account ──▶ account, account + action        on any queue, of any owner
    the queue            ──▶ queue, queue + action            of any caller

All of them hold together, so the strictest decides. An action is named by its limit class: that of a batch is its
single action, since SQS counts a batch as one request.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from quaymaster.core.values.errors import InvalidParameterValue

REQUESTS_MAX: Final = 10_000_000
BYTES_MIN: Final = 1_024
BYTES_MAX: Final = 10**12


class LimitName(NamedTuple):
    """What a limit is on. Empty: all queues, or all actions, of the account."""

    account_id: str
    queue: str = ""
    action: str = ""

    def text(self) -> str:
        """Return the name as a key of the store ends with it; none of the three has a slash."""
        return f"{self.account_id}/{self.queue}/{self.action}"

    @classmethod
    def parse(cls, text: str) -> LimitName:
        """Return the name that `text` gave."""
        return cls(*text.split("/", 2))


class Limit(NamedTuple):
    """So many requests and bytes a second; None: as many as come. At least one of them is given."""

    requests: int | None = None
    bytes: int | None = None

    def fields(self) -> dict[str, int]:
        """Return what is given, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def check_limit(requests: int | None, bytes_per_s: int | None) -> Limit:
    """Return the limit with these rates; InvalidParameterValue where it cannot be."""
    if requests is None and bytes_per_s is None:
        raise InvalidParameterValue("A limit has requests, bytes, or both.")
    if requests is not None and not 1 <= requests <= REQUESTS_MAX:
        raise InvalidParameterValue.of(
            "requests", requests, f"Must be between 1 and {REQUESTS_MAX} a second."
        )
    if bytes_per_s is not None and not BYTES_MIN <= bytes_per_s <= BYTES_MAX:
        raise InvalidParameterValue.of(
            "bytes", bytes_per_s, f"Must be between {BYTES_MIN} and {BYTES_MAX} a second."
        )
    return Limit(requests, bytes_per_s)


OnLimit = Callable[[LimitName, Limit | None], None]
"""Hears of a limit that was set, or (None) removed."""


class LimitTable:
    """The limits there are, by what they are on."""

    def __init__(self) -> None:
        self._limits: dict[tuple[str, str], dict[str, Limit]] = {}
        self._queues: dict[str, set[str]] = {}
        """Of each account, the queues with limits; "" for its own."""
        self._account_ids: list[str] = []
        """Of those that have limits, in order."""
        self.on_change: OnLimit = _ignore

    def __len__(self) -> int:
        return sum(map(len, self._limits.values()))

    def set(self, name: LimitName, limit: Limit | None) -> None:
        """Take over a limit, or that there is none."""
        place = name.account_id, name.queue
        if limit is not None:
            self._limits.setdefault(place, {})[name.action] = limit
            if name.account_id not in self._queues:
                insort(self._account_ids, name.account_id)
            self._queues.setdefault(name.account_id, set()).add(name.queue)
        elif self._limits.get(place, {}).pop(name.action, None) is not None and not self._limits[place]:
            del self._limits[place]
            queues = self._queues[name.account_id]
            queues.discard(name.queue)
            if not queues:
                del self._queues[name.account_id]
                del self._account_ids[bisect_left(self._account_ids, name.account_id)]
        self.on_change(name, limit)

    def get(self, name: LimitName) -> Limit | None:
        """Return a limit, or None."""
        return self._limits.get((name.account_id, name.queue), {}).get(name.action)

    def of_account(self, account_id: str) -> Iterator[tuple[LimitName, Limit]]:
        """Yield all limits of an account and its queues, in order."""
        for queue in sorted(self._queues.get(account_id, ())):
            for action, limit in sorted(self._limits[account_id, queue].items()):
                yield LimitName(account_id, queue, action), limit

    def count(self, account_id: str) -> int:
        """Return how many limits an account and its queues have."""
        return sum(len(self._limits[account_id, queue]) for queue in self._queues.get(account_id, ()))

    def accounts(self, after: str = "") -> Iterator[str]:
        """Yield the accounts behind one that have limits, in order."""
        at = bisect_right(self._account_ids, after)
        while at < len(self._account_ids):
            yield self._account_ids[at]
            at += 1

    def effective(self, caller: str, owner: str, queue: str) -> str:
        """Return, as JSON, the limits of an account's requests, with those of a queue if one is named."""
        described = {
            "Account": self._described(caller, ""),
            "Queue": self._described(owner, queue) if queue else {},
        }
        return json.dumps({name: limits for name, limits in described.items() if limits})

    def _described(self, account_id: str, queue: str) -> dict[str, Mapping[str, int]]:
        found = sorted(self._limits.get((account_id, queue), {}).items())
        return {
            action or "*": {word: limit._asdict()[word.lower()] for word in _WORDS if _has(limit, word)}
            for action, limit in found
        }


_WORDS: Final = ("Requests", "Bytes")


def _has(limit: Limit, word: str) -> bool:
    return limit._asdict()[word.lower()] is not None


def _ignore(name: LimitName, limit: Limit | None) -> None:
    """Nothing has to hear of it."""
