"""A metadata node's part in limits: it divides those of the accounts that it owns, as front ends ask it to.

    report of a front end ──▶ the division of each limit ──▶ tokens for the next half second

Which node owns an account is decided by front ends, from the nodes that answer them (`core/structures/rendezvous`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from quaymaster.core.limits.division import Division
from quaymaster.core.limits.limits import LimitName, LimitTable
from quaymaster.core.values.errors import Overloaded
from quaymaster.protocol.rpc.metadata_messages import (
    BucketGrant,
    BucketReport,
    GrantedShares,
    ReportShares,
)

REPORTS_MAX: Final = 1_000
"""Buckets of one message."""
YOUNG_MS: Final = 2_000
"""A node that runs for less knows nothing of what was granted before it."""
DEMAND_MAX: Final = 1e15
LOOKS: Final = 16
"""So many divisions, and as many as are reported, are looked at with each message for those that are idle."""
NO_LIMIT: Final = BucketGrant(0.0, -1.0)
"""Of a limit that this node does not know, or not any more."""


class Divisions:
    """Divides the limits of a table. `monotonic_ms` is a clock that does not jump."""

    def __init__(self, name: str, table: LimitTable, monotonic_ms: Callable[[], float]) -> None:
        self._name = name
        self._table = table
        self._monotonic_ms = monotonic_ms
        self._began_ms = monotonic_ms()
        self._divisions: dict[tuple[LimitName, bool], Division] = {}
        """By the limit, and whether its tokens are bytes. Those of idle accounts go."""

    def __len__(self) -> int:
        return len(self._divisions)

    def answer(self, request: ReportShares) -> GrantedShares:
        """Return what a front end is granted, in the order of its reports. Raises Overloaded."""
        if len(request.reports) > REPORTS_MAX:
            raise Overloaded(f"At most {REPORTS_MAX} buckets are reported together.")
        now_ms = self._monotonic_ms()
        self._drop_idle(now_ms, LOOKS + len(request.reports))
        grants = [self._grant(request.front_end, report, now_ms) for report in request.reports]
        return GrantedShares(self._name, grants)

    def _grant(self, front_end: str, report: BucketReport, now_ms: float) -> BucketGrant:
        name = LimitName.parse(report.limit)
        limit = self._table.get(name)
        rate = None if limit is None else limit.bytes if report.is_bytes else limit.requests
        if rate is None:
            return NO_LIMIT
        division = self._divisions.get((name, report.is_bytes))
        if division is None:
            is_full = report.was_owner and now_ms - self._began_ms >= YOUNG_MS
            division = Division(rate, now_ms, is_whole=not report.is_bytes, is_full=is_full)
            self._divisions[name, report.is_bytes] = division
        division.rate = float(rate)
        # What others say is a number, but perhaps none that can be: it is held within what the limit allows.
        demand = min(max(0.0, report.demand), DEMAND_MAX)
        unused = min(max(-10.0 * rate, report.unused), float(rate))
        granted = division.report(front_end, demand, unused, now_ms)
        return BucketGrant(granted.tokens, granted.rate)

    def _drop_idle(self, now_ms: float, looks: int) -> None:
        """Look at the divisions that were looked at the longest ago."""
        for key in list(islice(self._divisions, looks)):
            division = self._divisions.pop(key)
            if division.is_used(now_ms):
                self._divisions[key] = division
