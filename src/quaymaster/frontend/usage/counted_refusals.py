"""Refused requests that leave no record each: one record for all of a kind in an interval says how many there were."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

COUNTED_INTERVAL_MS: Final = 60_000
"""One record for each kind and so long."""
OTHERS: Final = "(others)"
"""In place of what is told apart no further: no queue or error is called so."""


class RefusalKind(NamedTuple):
    """What refused requests have in common. `protocol` is as in records; `account_id` "" where it is unknown."""

    account_id: str
    protocol: str
    action: str
    status: int
    code: str


PlainKind = tuple[str, str, str, int, str]
"""The same as a plain tuple, which costs a refusal less."""


class Refused(msgspec.Struct):
    """How many requests of one kind there were, with sums of their bytes."""

    peer: str
    """"" once there were several."""
    requests: int = 0
    request_bytes: int = 0
    response_bytes: int = 0


class CountedRefusals:
    """Counts of an interval. What is beyond `kinds_max` kinds is counted as `others`. `now_ms` never jumps."""

    def __init__(self, kinds_max: int, others: RefusalKind, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._kinds_max = kinds_max
        self._others = others
        self._counts: dict[PlainKind, Refused] = {}
        self._since_ms = 0.0

    def count(self, kind: PlainKind, peer: str, *, request_bytes: int = 0, response_bytes: int = 0) -> None:
        """Count a request."""
        refused = self._counts.get(kind)
        if refused is None:
            if not self._counts:
                self._since_ms = self._now_ms()
            elif len(self._counts) >= self._kinds_max:
                kind = self._others
            refused = self._counts.setdefault(kind, Refused(peer))
        refused.requests += 1
        refused.request_bytes += request_bytes
        refused.response_bytes += response_bytes
        if refused.peer != peer:
            refused.peer = ""

    def take(self, now_ms: float, *, is_last: bool) -> Iterator[tuple[RefusalKind, Refused, int]]:
        """Give each kind, its count and the seconds in which it was counted; nothing before the interval is over."""
        if not self._counts or not (is_last or now_ms - self._since_ms >= COUNTED_INTERVAL_MS):
            return
        counts, self._counts = self._counts, {}
        seconds = math.ceil((now_ms - self._since_ms) / 1000)
        for kind, refused in counts.items():
            yield RefusalKind(*kind), refused, seconds
