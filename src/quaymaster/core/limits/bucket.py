"""One limit's bucket: tokens that come back at a rate, for one second at most.

This is the generic cell rate algorithm (GCRA), kept as tokens instead of times, since the rate of a bucket changes
while front ends share a limit. A request of any size goes through while there is a token, and then owes the rest:

    tokens ≥ 1 ──charge──▶ tokens - cost, below 0 at worst ──time──▶ at least 1 again

What is learned afterwards, the bytes of a reply, is charged as debt too. Debt is bounded, so that one large reply does
not shut a client out for hours.

Source: ITU-T I.371, GCRA as a continuous-state leaky bucket.
"""

from __future__ import annotations

import math
from typing import Final

BURST_MS: Final = 1_000
"""A bucket that was not used has the tokens of so long."""
DEBT_MS_MAX: Final = 10_000
"""A bucket owes at most the tokens of so long."""
HINT_MS_MAX: Final = 5_000
"""Clients are told to ask again after so long at most."""
_ONE: Final = 1.0 - 1e-6
"""Parts of a token add up to it."""


class Bucket:
    """Tokens of one front end for a limit of `rate` a second.

    Times are milliseconds of any clock that does not jump.
    """

    __slots__ = (
        "_at_ms",
        "_capacity",
        "_debt_max",
        "_expected_per_ms",
        "_hinted_ms",
        "_per_ms",
        "_pool",
        "tokens",
        "used",
        "wanted",
    )

    def __init__(self, rate: float, now_ms: float) -> None:
        self._at_ms = self._hinted_ms = now_ms
        self._debt_max = rate / 1_000 * DEBT_MS_MAX
        self._per_ms = self._expected_per_ms = rate / 1_000
        self._capacity = max(1.0, self._per_ms * BURST_MS)
        self._pool = math.inf
        """What may come back in all."""
        self.tokens = self._capacity
        self.used = 0.0
        """All that was ever charged."""
        self.wanted = 0.0
        """The same, and what was refused."""

    def accrue(self, rate: float, now_ms: float, *, burst: float, more: float = 0.0) -> None:
        """Have tokens come back at `rate` a second from now on, and be kept up to `burst` of them; `more` come now."""
        self._refill(now_ms)
        if self._pool != math.inf:
            self.tokens += self._pool
        self._pool = math.inf
        self._per_ms = rate / 1_000
        self._expected_per_ms = max(self._per_ms, 1 / HINT_MS_MAX)
        self._capacity = max(1.0, burst)
        self.tokens = min(self.tokens, self._capacity) + more

    def allot(self, total: float, now_ms: float, *, over_ms: float, expected: float) -> None:
        """Have `total` tokens and no more: those that are not here yet come back evenly in `over_ms`.

        `expected` is how many a second there will be in the long run.
        """
        self._refill(now_ms)
        total = max(total, -self._debt_max)
        self.tokens = min(self.tokens, total)
        self._pool = total - self.tokens
        self._per_ms = self._pool / over_ms
        self._expected_per_ms = max(expected / 1_000, 1 / HINT_MS_MAX)
        self._capacity = math.inf

    @property
    def allotted(self) -> float:
        """What is left of `allot`."""
        return self.tokens + self._pool

    def has_tokens(self, now_ms: float) -> bool:
        """Tell whether a request goes through."""
        if self.tokens < _ONE:
            self._refill(now_ms)
        return self.tokens >= _ONE

    def charge(self, cost: float, now_ms: float) -> None:
        """Take tokens for what goes through, or has gone through."""
        # As `_refill`; every request comes here.
        tokens = self.tokens
        if tokens < self._capacity:
            made = (now_ms - self._at_ms) * self._per_ms
            if made > self._pool:
                made = self._pool
            self._pool -= made
            tokens += made
            if tokens > self._capacity:
                tokens = self._capacity
        self._at_ms = now_ms
        tokens -= cost
        self.tokens = tokens if tokens > -self._debt_max else -self._debt_max
        self.used += cost
        self.wanted += cost

    def wait_ms(self, now_ms: float) -> float:
        """Return in how many ms there is a token."""
        self._refill(now_ms)
        return min(max(0.0, 1.0 - self.tokens) / self._expected_per_ms, HINT_MS_MAX)

    def refuse(self, cost: float, now_ms: float) -> float:
        """Note what was refused, and return in how many ms to ask again.

        Those who are refused are told moments one after the other, as far apart as what they ask for comes back.
        """
        self.wanted += cost
        per_ms = self._expected_per_ms
        token_ms = now_ms + max(0.0, 1.0 - self.tokens) / per_ms
        self._hinted_ms = min(max(token_ms, self._hinted_ms + cost / per_ms), now_ms + HINT_MS_MAX)
        return self._hinted_ms - now_ms

    def _refill(self, now_ms: float) -> None:
        if self.tokens < self._capacity:
            made = min((now_ms - self._at_ms) * self._per_ms, self._pool)
            self._pool -= made
            self.tokens = min(self.tokens + made, self._capacity)
        self._at_ms = now_ms
