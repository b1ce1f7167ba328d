"""Limits as operators set them: who has them, in which cells, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from metadata.cell import Cell, run_cell
from metadata.support import ACCOUNT, World, eventually, run
from quaymaster.core.limits.limits import Limit, LimitName
from quaymaster.core.values.errors import LimitExceeded, ResourceNotFound, UnsupportedOperation
from quaymaster.core.values.formats import CellFormat
from quaymaster.metadata.limits import known_limits

SHOP = "111122223333"
NAME = LimitName(SHOP, "jobs", "SendMessage")


def test_limits_survive_a_restart_and_go_when_they_are_removed(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.accounts.create_account("shop", SHOP)
            await service.limits.set(NAME, Limit(50))
            await service.limits.set(LimitName(ACCOUNT), Limit(None, 1_000_000))
            await service.limits.set(NAME, Limit(60, 2_000))
        async with world.service() as service:
            assert service.limits.table.get(NAME) == Limit(60, 2_000)
            assert service.limits.table.get(LimitName(ACCOUNT)) == Limit(None, 1_000_000)
            await service.limits.remove(NAME)
            with pytest.raises(ResourceNotFound, match="no such limit"):
                await service.limits.remove(NAME)
        async with world.service() as service:
            assert len(service.limits.table) == 1

    run(scenario, tmp_path)


def test_only_accounts_that_there_are_get_limits_and_each_a_bounded_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_limits, "LIMITS_PER_ACCOUNT_MAX", 2)

    async def scenario(world: World) -> None:
        async with world.service() as service:
            with pytest.raises(ResourceNotFound, match=f"The account {SHOP} does not exist"):
                await service.limits.set(NAME, Limit(50))
            await service.accounts.create_account("shop", SHOP)
            await service.limits.set(NAME, Limit(50))
            await service.limits.set(LimitName(SHOP), Limit(50))
            with pytest.raises(LimitExceeded, match="LimitsPerAccount: 2"):
                await service.limits.set(LimitName(SHOP, "other"), Limit(50))
            await service.limits.set(NAME, Limit(70))

    run(scenario, tmp_path)


def test_a_deleted_account_takes_its_limits_with_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.accounts.create_account("shop", SHOP)
            for number in range(known_limits.DROPPED_AT_A_TIME + 1):
                await service.limits.set(LimitName(SHOP, f"q{number}"), Limit(50))

            await service.accounts.delete_account(SHOP)

            assert len(service.limits.table) == 0

    run(scenario, tmp_path)


def test_limits_that_a_crash_left_of_a_deleted_account_go_with_the_next_upkeep(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.accounts.create_account("shop", SHOP)
            await service.limits.set(NAME, Limit(50))
            await service.limits.set(LimitName(ACCOUNT), Limit(50))
            service.accounts._on_deleted = None  # killed right after the account's row was written
            await service.accounts.delete_account(SHOP)
        async with world.service() as service:
            assert service.limits.table.get(NAME) is not None

            await service.run_upkeep()

            assert service.limits.table.get(NAME) is None
            assert service.limits.table.get(LimitName(ACCOUNT)) is not None

    run(scenario, tmp_path)


def test_cells_of_older_formats_have_no_limits(tmp_path: Path) -> None:
    cell_format = CellFormat(5)

    async def scenario(cell: Cell) -> None:
        async with cell.started(cell_format=cell_format) as (a, _):
            with pytest.raises(UnsupportedOperation, match="quaymaster cell upgrade"):
                await a.limits.set(LimitName(ACCOUNT), Limit(50))
            cell_format.raise_to(6)
            await a.limits.set(LimitName(ACCOUNT), Limit(50))

    run_cell(scenario, tmp_path)


def test_all_front_ends_of_a_cell_follow_limits_and_know_how_many_they_are(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            await a.limits.set(LimitName(ACCOUNT), Limit(50))
            await eventually(lambda: b.limits.table.get(LimitName(ACCOUNT)) == Limit(50))
            await b.limits.remove(LimitName(ACCOUNT))
            await eventually(lambda: a.limits.table.get(LimitName(ACCOUNT)) is None)
            await eventually(lambda: a.count_front_ends() == b.count_front_ends() == 2)

    run_cell(scenario, tmp_path)
