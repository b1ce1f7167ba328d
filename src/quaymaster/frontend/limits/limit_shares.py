"""The limits of a front end of a cell: each bucket's tokens come from the metadata node that owns its account.

    first request ──5 ms──▶ report ──▶ grant ──REPORT_MS──▶ report ──▶ ... ──idle──▶ nothing is reported

Reports of all buckets with one owner go together. See `core/limits/share` for what a bucket does meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Final, Protocol

from quaymaster.core.limits.division import REPORT_MS, Grant
from quaymaster.core.limits.limits import LimitName
from quaymaster.core.limits.share import Share
from quaymaster.core.values.errors import NotNow
from quaymaster.frontend.limits.limits import Limits, Meter, Meters, Rate, monotonic_ms
from quaymaster.protocol.rpc.metadata_messages import BucketReport, GrantedShares

FIRST_REPORT_S: Final = 0.005
REPORTS_AT_A_TIME: Final = 500
"""So many are reported in a message, and so many answers taken at once: some microseconds each."""
SHARES_PER_TURN: Final = 500
"""So many are looked at before others have their turn on the loop: a server may have limits for tens of thousands of
accounts, all in use."""
NEW_OWNER_MS: Final = 2_000
"""An owner that a front end has had for less grants no burst."""


class Owners(Protocol):
    """Who divides limits: the metadata nodes."""

    def owner_of(self, account_id: str) -> str | None: ...

    async def report(self, owner: str, reports: list[BucketReport]) -> GrantedShares: ...

    async def probe_for_ever(self) -> None: ...


class _Shared:
    """A meter with its share, and who owned it when it was reported last."""

    __slots__ = ("meter", "owner", "owner_since_ms", "share")

    def __init__(self, meter: Meter, front_ends: int, now_ms: float) -> None:
        self.meter = meter
        self.share = Share(meter.bucket, meter.per_s, front_ends, now_ms)
        self.owner = ""
        self.owner_since_ms = now_ms

    def report(self, owner: str, now_ms: float) -> BucketReport:
        """Return what to tell an owner."""
        if owner != self.owner:
            self.owner, self.owner_since_ms = owner, now_ms
        is_new = now_ms - self.owner_since_ms < NEW_OWNER_MS
        report = self.share.report(now_ms, is_new_owner=is_new)
        is_bytes = self.meter.rate == "bytes"
        return BucketReport(self.meter.name.text(), is_bytes, report.demand, report.unused, not is_new)


Key = tuple[LimitName, Rate]
ByOwner = defaultdict[str, list[_Shared]]


class LimitShares:
    """Reports the buckets of `limits` that are in use. `count_front_ends` returns how many are alive."""

    def __init__(
        self,
        limits: Limits,
        owners: Owners,
        *,
        count_front_ends: Callable[[], int],
        now_ms: Callable[[], float] = monotonic_ms,
    ) -> None:
        self._limits = limits
        self._owners = owners
        self._count_front_ends = count_front_ends
        self._now_ms = now_ms
        self._shared: dict[Key, _Shared] = {}
        self._busy: dict[Key, _Shared] = {}
        """Those that are reported."""
        self._begun: list[_Shared] = []
        """Those that are to be reported for the first time, soon."""
        self._reporting: set[asyncio.Task[None]] = set()
        self._owners_asked: set[str] = set()
        for meter in limits.meters():
            self._take((meter,))
        limits.on_meters = self._on_meters
        limits.watch(self._on_use)

    async def run(self) -> None:
        """Report, until it is cancelled."""
        probing = asyncio.ensure_future(self._owners.probe_for_ever())
        try:
            while True:
                await asyncio.sleep(REPORT_MS / 1000)
                await self.report_busy()
        finally:
            for task in (probing, *self._reporting):
                task.cancel()
            await asyncio.gather(probing, *self._reporting, return_exceptions=True)

    async def report_busy(self) -> None:
        """Report all that are in use; those no longer are let go. Others have turns between."""
        busy = list(self._busy)
        by_owner: ByOwner = defaultdict(list)
        for at in range(0, len(busy), SHARES_PER_TURN):
            if at:
                await asyncio.sleep(0)
            self._look_at(busy[at : at + SHARES_PER_TURN], by_owner)
        for owner, owned in by_owner.items():
            if owner not in self._owners_asked:
                self._owners_asked.add(owner)
                self._tell_later(owner, owned, is_first=False)

    def _look_at(self, keys: list[Key], by_owner: ByOwner) -> None:
        now_ms, front_ends = self._now_ms(), self._count_front_ends()
        for key in keys:
            shared = self._busy.get(key)
            if shared is None:  # its limit was changed meanwhile
                continue
            shared.share.on_time(now_ms, front_ends)
            if shared.share.is_busy():
                self._find_owner(shared, by_owner, now_ms)
            else:
                del self._busy[key]
                self._limits.unwatched(shared.meter.name)

    def _on_meters(self, name: LimitName, meters: Meters) -> None:
        for rate in ("requests", "bytes"):
            self._shared.pop((name, rate), None)
            self._busy.pop((name, rate), None)
        self._take(meters)

    def _take(self, meters: Meters) -> None:
        now_ms, front_ends = self._now_ms(), self._count_front_ends()
        for meter in meters:
            self._shared[meter.name, meter.rate] = _Shared(meter, front_ends, now_ms)

    def _on_use(self, meters: Meters) -> None:
        """Requests begin to use some."""
        for meter in meters:
            key = meter.name, meter.rate
            shared = self._shared[key]
            if key not in self._busy:
                self._busy[key] = shared
                if not self._begun:
                    asyncio.get_running_loop().call_later(FIRST_REPORT_S, self._report_begun)
                self._begun.append(shared)

    def _report_begun(self) -> None:
        begun, self._begun = self._begun, []
        now_ms, front_ends = self._now_ms(), self._count_front_ends()
        by_owner: ByOwner = defaultdict(list)
        for shared in begun:
            shared.share.on_time(now_ms, front_ends)
            self._find_owner(shared, by_owner, now_ms)
        for owner, owned in by_owner.items():
            self._tell_later(owner, owned, is_first=True)

    def _find_owner(self, shared: _Shared, by_owner: ByOwner, now_ms: float) -> None:
        owner = self._owners.owner_of(shared.meter.name.account_id)
        if owner is None:
            shared.share.on_failure(now_ms)
        else:
            by_owner[owner].append(shared)

    def _tell_later(self, owner: str, owned: list[_Shared], *, is_first: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._tell(owner, owned, is_first=is_first))
        self._reporting.add(task)
        task.add_done_callback(self._reporting.discard)

    async def _tell(self, owner: str, owned: list[_Shared], *, is_first: bool) -> None:
        try:
            for at in range(0, len(owned), REPORTS_AT_A_TIME):
                await self._tell_some(owner, owned[at : at + REPORTS_AT_A_TIME])
        finally:
            if not is_first:
                self._owners_asked.discard(owner)

    async def _tell_some(self, owner: str, owned: list[_Shared]) -> None:
        now_ms = self._now_ms()
        reports = [shared.report(owner, now_ms) for shared in owned]
        try:
            granted = await self._owners.report(owner, reports)
        except NotNow:
            now_ms = self._now_ms()
            for shared in owned:
                shared.share.on_failure(now_ms)
            return
        now_ms = self._now_ms()
        for shared, grant in zip(owned, granted.grants, strict=True):
            if grant.rate < 0:  # the node has not heard of the limit yet
                shared.share.on_failure(now_ms)
            else:
                shared.share.on_grant(Grant(grant.tokens, grant.rate), now_ms)
