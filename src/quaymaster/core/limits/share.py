"""One front end's share of a limit that several front ends enforce together.

    alone ──granted──▶ granted ──an owner fails, or is silent for TOKENS_MS──▶ kept ──ALONE_MS──▶ alone
     rate/N              │ tokens come by grants alone                     │ its mean share of late
      ▲                  └───────────────── not used for IDLE_MS ──────────┘ granted again ─▶ granted
      └─────────────────────────────────────────┘

The metadata node that owns the limit's account grants tokens (`division`). What a front end uses without a grant it
reports as debt, and the owner takes it off later grants: so the sum over all front ends stays what the limit says,
while load moves between them and owners change.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Final, NamedTuple

from quaymaster.core.limits.bucket import BURST_MS, Bucket
from quaymaster.core.limits.division import REPORT_MS, TOKENS_MS, Grant

MEAN_MS: Final = 10_000
"""The mean share is that of so long."""
ALONE_MS: Final = 60_000
"""After so long without a grant, a front end has rate/N."""
IDLE_MS: Final = 2_000
"""A bucket that was not asked for so long is no longer reported."""
DEMAND_LEAST: Final = 1_000 / REPORT_MS
"""Until then it reports at least one request in a report: a client that waits for a token comes back for it."""
BEGIN_MS: Final = 20
"""The first report follows the first request so soon."""


class State(Enum):
    """Where the tokens come from."""

    ALONE = auto()
    GRANTED = auto()
    KEPT = auto()


class Report(NamedTuple):
    """What the owner is told: what clients ask for in a second, and the tokens that are left; below 0: it owes them."""

    demand: float
    unused: float


class Share:
    """Decides where the tokens of a bucket come from. Times are milliseconds of the clock of its bucket."""

    def __init__(self, bucket: Bucket, rate: float, front_ends: int, now_ms: float) -> None:
        self._bucket = bucket
        self._rate = rate
        self._state = State.ALONE
        self._front_ends = front_ends
        self._granted_ms = now_ms
        self._demand = self._latest = 0.0
        self._asked_ms = now_ms
        """When its demand was not 0 last."""
        self._reported_ms = now_ms
        self._wanted = bucket.wanted
        self._reported = 0.0
        self._used_at_report = bucket.used
        self._base = 0.0
        """What was left of grants when it began to accrue tokens itself."""
        self._used_at_base = bucket.used
        self._is_forgiven = False
        """Whether no owner made the tokens that it used."""
        self._rates: deque[tuple[float, float]] = deque()
        """Shares told of late, in tokens a second, and when."""
        self._accrued = 0.0
        """The rate at which it accrues tokens itself."""
        self._accrue(rate / front_ends, now_ms)

    @property
    def state(self) -> State:
        """Where its tokens come from."""
        return self._state

    def is_busy(self) -> bool:
        """Tell whether there is something to report: somebody asked, or there are tokens of grants to give back."""
        return self._bucket.wanted != self._wanted or self._state is not State.ALONE

    def report(self, now_ms: float, *, is_new_owner: bool) -> Report:
        """Return what to tell the owner now; a new one made no tokens for the time since the last grant."""
        wanted, self._wanted = self._bucket.wanted - self._wanted, self._bucket.wanted
        elapsed_ms = max(1.0, now_ms - self._reported_ms)
        has_begun = not self._demand
        latest = wanted / (BEGIN_MS if has_begun else max(elapsed_ms, REPORT_MS)) * 1_000
        # What begins is believed at once, what ends at the second report, unless so much cannot have come by chance.
        if elapsed_ms < REPORT_MS / 2:  # too short to tell that less is asked for
            latest = max(latest, self._latest)
        has_ended = not latest and self._latest >= self._rate
        self._demand = 0.0 if has_ended else max(latest, (self._latest + latest) / 2)
        self._latest = latest
        if wanted:
            self._asked_ms = now_ms
        elif now_ms - self._asked_ms >= IDLE_MS:
            self._demand = 0.0
        else:
            self._demand = max(self._demand, DEMAND_LEAST)
        self._reported_ms = now_ms
        self._used_at_report = self._bucket.used
        self._reported = self._unused()
        if self._is_forgiven or (is_new_owner and self._state is State.KEPT):
            self._reported = max(0.0, self._reported)
        return Report(self._demand, self._reported)

    def on_grant(self, grant: Grant, now_ms: float) -> None:
        """Take what the owner granted on the last report."""
        bucket = self._bucket
        used = bucket.used - self._used_at_report
        bucket.allot(self._reported - used + grant.tokens, now_ms, over_ms=REPORT_MS, expected=grant.rate)
        self._state = State.GRANTED
        self._is_forgiven = False
        self._granted_ms = now_ms
        self._rates.append((now_ms, grant.rate))
        while self._rates[0][0] < now_ms - MEAN_MS:
            self._rates.popleft()
        if self._demand == 0.0:
            self._begin_alone(now_ms)

    def on_failure(self, now_ms: float) -> None:
        """The owner could not be asked: do without it. Its last grant is treated as having ended at once."""
        if self._state is State.GRANTED:
            mean = sum(rate for _, rate in self._rates) / len(self._rates)
            self._base, self._used_at_base = self._bucket.allotted, self._bucket.used
            self._state = State.KEPT
            missed_ms = min(now_ms - self._granted_ms, TOKENS_MS)
            self._accrue(mean, now_ms, more=mean * missed_ms / 1_000)

    def on_time(self, now_ms: float, front_ends: int) -> None:
        """Note that time passes, and how many front ends are alive."""
        silent_ms = now_ms - self._granted_ms
        if self._state is State.GRANTED and silent_ms > TOKENS_MS:
            self.on_failure(now_ms)
        elif self._state is State.KEPT and silent_ms > ALONE_MS:
            self._begin_alone(now_ms)
            self._is_forgiven = True
        if self._state is State.ALONE and front_ends != self._front_ends:
            self._accrue(self._rate / front_ends, now_ms)
        self._front_ends = front_ends

    def _begin_alone(self, now_ms: float) -> None:
        self._base, self._used_at_base = self._unused(), self._bucket.used
        self._state = State.ALONE
        self._rates.clear()
        self._accrue(self._rate / self._front_ends, now_ms)

    def _accrue(self, rate: float, now_ms: float, more: float = 0.0) -> None:
        self._accrued = rate
        # A burst of its own would be one for each front end: the owner has it, and is asked at the first request.
        self._bucket.accrue(rate, now_ms, burst=rate * REPORT_MS / 1_000, more=more)

    def _unused(self) -> float:
        """Return the tokens left of grants; below 0 what was used without one, of BURST_MS at most."""
        if self._state is State.GRANTED:
            return self._bucket.allotted
        left = self._base - (self._bucket.used - self._used_at_base)
        return max(left, min(self._base, -self._accrued * BURST_MS / 1_000))
