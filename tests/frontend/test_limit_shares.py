"""Buckets of a front end of a cell: what is reported of them to whom, and what comes of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from frontend.support import until
from quaymaster.core.limits.division import REPORT_MS
from quaymaster.core.limits.limits import Limit, LimitName, LimitTable
from quaymaster.core.limits.share import State
from quaymaster.core.values.errors import NotNow
from quaymaster.frontend.callers.principal import Principal
from quaymaster.frontend.limits import limit_shares
from quaymaster.frontend.limits.limit_shares import LimitShares
from quaymaster.frontend.limits.limits import Limits
from quaymaster.protocol.actions.table import ACTIONS
from quaymaster.protocol.rpc.metadata_messages import BucketGrant, BucketReport, GrantedShares

ACCOUNT, OTHER = "111111111111", "222222222222"


class FakeOwners:
    """Each account is owned by a node of its name; `grant` is what all answer, None: nothing."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[BucketReport]]] = []
        self.grant: BucketGrant | None = BucketGrant(1_000.0, 4_000.0)
        self.is_known = True

    def owner_of(self, account_id: str) -> str | None:
        return account_id if self.is_known else None

    async def report(self, owner: str, reports: list[BucketReport]) -> GrantedShares:
        self.told.append((owner, reports))
        if self.grant is None:
            raise NotNow
        return GrantedShares(owner, [self.grant for _ in reports])

    async def probe_for_ever(self) -> None:
        await asyncio.Event().wait()


class World:
    """A front end of four with limits, whose clock the test moves."""

    def __init__(self) -> None:
        self.ms = 0.0
        self.table = LimitTable()
        self.table.set(LimitName(ACCOUNT), Limit(80, 8_000))
        self.limits = Limits(self.table, lambda: self.ms)
        self.owners = FakeOwners()
        self.shares = LimitShares(
            self.limits, self.owners, count_front_ends=lambda: 4, now_ms=lambda: self.ms
        )

    def use(self, account_id: str = ACCOUNT) -> None:
        request = SimpleNamespace(body=b"x" * 100)
        call: Any = SimpleNamespace(
            principal=Principal.of_root(account_id, "key", "sender"),
            action=ACTIONS["SendMessage"],
            request=request,
            queue=None,
            debtors=(),
            others=(),
        )
        self.limits.charge(call)

    def state(self) -> set[State]:
        return {shared.share.state for shared in self.shares._shared.values()}

    def was_owner(self) -> list[bool]:
        """Return what the last message says of its owner."""
        return [report.was_owner for report in self.owners.told[-1][1]]

    async def pass_first_reports(self) -> None:
        """Let what began to be used be reported, which waits for no round, and forget it."""
        await until(lambda: not self.shares._begun)
        await asyncio.gather(*self.shares._reporting)
        self.owners.told.clear()

    async def pass_round(self) -> None:
        """Let the time of a report pass."""
        self.ms += REPORT_MS
        await self.shares.report_busy()
        await asyncio.gather(*self.shares._reporting)


def run(test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(World())

    asyncio.run(main())


def test_a_front_end_begins_with_its_part_and_reports_soon_after_the_first_request() -> None:
    async def scenario(world: World) -> None:
        meters = {meter.rate: meter.bucket for meter in world.limits.meters()}
        assert meters["requests"].tokens == 80 / 4 / 4

        world.use()
        world.use()
        await until(lambda: world.owners.told)
        await until(lambda: world.state() == {State.GRANTED})

        ((owner, reports),) = world.owners.told
        assert owner == ACCOUNT
        assert [(report.is_bytes, report.unused) for report in reports] == [(False, -2.0), (True, -200.0)]
        assert not any(report.was_owner for report in reports)
        assert meters["requests"].allotted == 1_000 - 2

    run(scenario)


def test_only_buckets_in_use_are_reported_those_of_one_owner_together_until_they_are_idle() -> None:
    async def scenario(world: World) -> None:
        world.table.set(LimitName(OTHER), Limit(5))
        world.table.set(LimitName(OTHER, "jobs"), Limit(5))
        await world.pass_round()
        assert world.owners.told == []

        world.use()
        world.use(OTHER)
        await world.pass_first_reports()
        await world.pass_round()
        assert sorted((owner, len(reports)) for owner, reports in world.owners.told) == [
            (ACCOUNT, 2),
            (OTHER, 1),
        ]
        assert world.was_owner() == [False]
        for _ in range(9):
            world.use()
            await world.pass_round()
        assert world.was_owner() == [True, True]
        for _ in range(20):
            await world.pass_round()
        count = len(world.owners.told)
        await world.pass_round()
        assert len(world.owners.told) == count

        world.use()
        await until(lambda: len(world.owners.told) > count)

    run(scenario)


def test_a_front_end_does_without_owners_that_fail_are_unknown_or_know_no_such_limit() -> None:
    async def scenario(world: World) -> None:
        failures: list[tuple[BucketGrant | None, bool]] = [
            (None, True),
            (BucketGrant(0.0, -1.0), True),
            (BucketGrant(0.0, 5.0), False),
        ]
        for grant, is_known in failures:
            world.owners.grant, world.owners.is_known = BucketGrant(1_000.0, 4_000.0), True
            world.use()
            await world.pass_round()
            assert world.state() == {State.GRANTED}
            world.owners.grant, world.owners.is_known = grant, is_known
            world.use()
            await world.pass_round()
            assert world.state() == {State.KEPT}

    run(scenario)


def test_a_limit_that_is_changed_or_removed_while_it_is_in_use_is_reported_as_it_is() -> None:
    async def scenario(world: World) -> None:
        world.use()
        await world.pass_round()
        world.table.set(LimitName(ACCOUNT), Limit(8))
        world.use()
        await world.pass_first_reports()
        await world.pass_round()
        assert [len(reports) for _, reports in world.owners.told] == [1]
        world.table.set(LimitName(ACCOUNT), None)
        world.owners.told.clear()
        world.use()
        await world.pass_round()
        assert world.owners.told == []

    run(scenario)


def test_it_reports_until_it_is_cancelled() -> None:
    async def scenario(world: World) -> None:
        running = asyncio.ensure_future(world.shares.run())
        world.use()
        await until(lambda: len(world.owners.told) >= 2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert not world.shares._reporting

    run(scenario)


def test_a_round_over_many_busy_limits_leaves_turns_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_shares, "SHARES_PER_TURN", 4)
    monkeypatch.setattr(limit_shares, "REPORTS_AT_A_TIME", 4)

    async def scenario(world: World) -> None:
        accounts = [f"{number:012}" for number in range(300_000_000_000, 300_000_000_041)]
        for account in accounts:
            world.table.set(LimitName(account), Limit(5))
            world.use(account)
        world.shares._report_begun()
        await asyncio.gather(*world.shares._reporting)
        world.owners.told.clear()
        looked: list[int] = []
        looks = 0

        def count_looks(account_id: str) -> str | None:
            nonlocal looks
            looks += 1
            return ACCOUNT

        world.owners.owner_of = count_looks  # type: ignore[method-assign]
        world.ms += REPORT_MS
        reporting = asyncio.ensure_future(world.shares.report_busy())
        while not reporting.done():
            before = looks
            await asyncio.sleep(0)
            looked.append(looks - before)
        world.table.set(LimitName(accounts[0]), None)  # what is removed meanwhile is not missed
        await asyncio.gather(*world.shares._reporting)

        assert looks == len(accounts)
        assert max(looked) <= 4
        assert max(len(reports) for _, reports in world.owners.told) <= 4
        assert sum(len(reports) for _, reports in world.owners.told) == len(accounts)

    run(scenario)


def test_a_limit_that_is_removed_during_a_round_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_shares, "SHARES_PER_TURN", 1)

    async def scenario(world: World) -> None:
        world.table.set(LimitName(OTHER), Limit(5))
        world.use()
        world.use(OTHER)
        world.ms += REPORT_MS
        reporting = asyncio.ensure_future(world.shares.report_busy())
        await asyncio.sleep(0)
        world.table.set(LimitName(OTHER), None)
        await reporting
        await asyncio.gather(*world.shares._reporting)

        assert OTHER not in {owner for owner, _ in world.owners.told}

    run(scenario)
