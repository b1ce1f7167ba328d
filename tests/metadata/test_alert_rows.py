"""Rows of alerts, whose account is deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from metadata.cell import Cell, run_cell
from metadata.support import ACCOUNT, World, run
from quaymaster.coordination.interface import Put
from quaymaster.core.alerts.alerts import ALERTS, row_name
from quaymaster.metadata import alert_rows
from quaymaster.metadata.alert_rows import ALERT_ROWS

SHOP = "111122223333"


def test_a_deleted_account_takes_its_alerts_with_it_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_rows, "DROPPED_AT_A_TIME", 2)

    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.accounts.create_account("shop", SHOP)
            for prefix in ALERT_ROWS:
                names = [row_name(SHOP, f"a {number}") for number in range(3)] + [row_name(ACCOUNT, "b")]
                await world.store.transaction([], [Put(prefix + name, b"\x01") for name in names])

            await service.accounts.delete_account(SHOP)

            left = [row.key for prefix in ALERT_ROWS for row in (await world.store.list_all(prefix))[0]]
            assert left == [f"{prefix}{ACCOUNT}/b" for prefix in ALERT_ROWS]

    run(scenario, tmp_path)


def test_a_front_end_of_a_cell_drops_them_through_a_metadata_node(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (front_end, _):
            await front_end.accounts.create_account("shop", SHOP)
            await cell.store.transaction([], [Put(ALERTS + row_name(SHOP, "a"), b"\x01")])

            await front_end.accounts.delete_account(SHOP)

            assert (await cell.store.list_all(ALERTS))[0] == []

    run_cell(scenario, tmp_path)
