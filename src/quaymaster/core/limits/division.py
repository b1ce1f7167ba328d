"""How the metadata node that owns an account divides one of its limits among front ends: by demand, in tokens.

    rate ──time──▶ owed to each front end, by its share ──report──▶ granted: what it needs for the next TOKENS_MS
                        ▲                                    │
         spare ◀────────┴── of front ends without demand ◀───┘ given back: what it has too much

Tokens are made here alone, at the limit's rate, and each is granted once. So the sum of what front ends let through is
the limit's, however load moves. A front end's share is its part of the demand; where less is asked for than there is,
the rest is divided evenly, so that each has tokens for what comes next.

A division that is new begins without tokens, unless its account was just idle: a new owner grants no burst.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from quaymaster.core.limits.bucket import BURST_MS

REPORT_MS: Final = 250
"""How often front ends report."""
TOKENS_MS: Final = 500
"""Tokens are granted for so long."""
GONE_MS: Final = 1_000
"""A front end that reported nothing for so long has no share."""
SPARE_TOKENS: Final = 2.0
"""What a front end may be owed above its tokens for TOKENS_MS: a part of a token, and one that it has just spent."""
_ROUNDING: Final = 1e-6


class Grant(NamedTuple):
    """Tokens for a front end, below 0 those that it gives back; and its share, in tokens a second."""

    tokens: float
    rate: float


class _Part:
    __slots__ = ("demand", "holding", "owed", "seen_ms", "share")

    def __init__(self) -> None:
        self.demand = self.holding = self.owed = self.share = self.seen_ms = 0.0


class Division:
    """Divides one limit. `is_whole`: its tokens are requests, of which a part is of no use."""

    def __init__(self, rate: float, now_ms: float, *, is_whole: bool, is_full: bool) -> None:
        self.rate = rate
        self._is_whole = is_whole
        self._at_ms = now_ms
        self._parts: dict[str, _Part] = {}
        self._spare = rate * BURST_MS / 1_000 if is_full else 0.0

    def is_used(self, now_ms: float) -> bool:
        """Tell whether a front end has a share of it; where none has for long, it is full again and can be dropped."""
        self._advance(now_ms)
        return bool(self._parts) or self._spare < self.rate * BURST_MS / 1_000

    def report(self, front_end: str, demand: float, unused: float, now_ms: float) -> Grant:
        """Take a front end's report; return what it is granted."""
        self._advance(now_ms)
        part = self._parts.get(front_end)
        if part is None:
            part = self._parts[front_end] = _Part()
        part.demand, part.holding, part.seen_ms = demand, unused, now_ms
        self._weigh()
        rate = part.share * self.rate
        target = max(rate * TOKENS_MS / 1_000, 1.0)
        if (
            self._is_whole
        ):  # one more: a token comes in REPORT_MS, and the next report may not tell yet that it is spent
            target = math.ceil(rate * TOKENS_MS / 1_000 - _ROUNDING) + 1.0
        if not demand:
            target = 0.0
        grant = self._grant(part, target - unused)
        part.holding += grant
        if not demand:
            self._drop(front_end)
        return Grant(grant, rate)

    def _grant(self, part: _Part, needed: float) -> float:
        if needed <= 0:
            back = min(-needed, max(0.0, part.holding))
            self._spare += back
            return -back
        granted = min(needed, part.owed + self._spare)
        if self._is_whole:  # so that the front end has whole ones
            granted = max(0.0, math.floor(part.holding + granted + _ROUNDING) - part.holding)
        of_spare = max(0.0, granted - part.owed)
        part.owed = max(0.0, part.owed - granted)
        self._spare -= of_spare
        return granted

    def _advance(self, now_ms: float) -> None:
        made = self.rate * (now_ms - self._at_ms) / 1_000
        self._at_ms = now_ms
        for name in [name for name, part in self._parts.items() if now_ms - part.seen_ms > GONE_MS]:
            self._drop(name)
            self._weigh()
        burst = self.rate * BURST_MS / 1_000
        held = 0.0
        for part in self._parts.values():
            part.owed += made * part.share
            kept = part.share * self.rate * TOKENS_MS / 1_000 + SPARE_TOKENS
            surplus = part.owed + max(0.0, part.holding) - kept
            if surplus > 0:
                moved = min(surplus, part.owed)
                part.owed -= moved
                self._spare += moved
            held += part.owed + max(0.0, part.holding)
        if not self._parts:
            self._spare += made
        self._spare = min(self._spare, max(0.0, burst - held))

    def _drop(self, front_end: str) -> None:
        self._spare += self._parts.pop(front_end).owed

    def _weigh(self) -> None:
        """Give each front end its share: of the demand, where that is the limit or more."""
        parts = self._parts.values()
        total = sum(part.demand for part in parts)
        rest = max(0.0, self.rate - total) / max(1, len(parts))
        for part in parts:
            part.share = (part.demand + rest) / max(total, self.rate)
