"""Invoices made by tasks of a real Spark session."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.billing import MILLION, MONTH, used
from harness.invoicing import Bills
from pyspark.sql import SparkSession

from quaymaster_pipeline.billing.documents import render_json
from quaymaster_pipeline.billing.service import NotIssued, StoreDamaged
from quaymaster_pipeline.billing.tables import CHARGES
from quaymaster_pipeline.usage.tasks import SparkWorkers
from quaymaster_pipeline.warehouse import account_rows

DECEMBER, JANUARY = MONTH.next, MONTH.next.next


def fill(bills: Bills) -> None:
    """Two months of accounts, the second with late usage of the first."""
    accounts = [f"{number:012}" for number in range(12)]
    for number, account_id in enumerate(accounts):
        bills.use(used(MILLION + number), used(9, hour=700, billing_class="fifo"), account_id=account_id)
    bills.final(MONTH)
    bills.use(used(500_000, hour=700), account_id=accounts[3])
    for account_id in accounts:
        bills.use(used(MILLION, month=DECEMBER), account_id=account_id)
    bills.final(DECEMBER)


def test_invoices_made_by_sparks_tasks_are_those_of_one_process(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_rows, "ROWS_OF_TASK_MAX", 4)
    here, there = Bills(tmp_path / "here"), Bills(tmp_path / "spark", SparkWorkers(spark))
    for bills in (here, there):
        fill(bills)

    for month in (MONTH, DECEMBER):
        of_here, of_spark = (
            [bills.documents(one, render_json) for one in bills.invoices(month)] for bills in (here, there)
        )
        assert len(of_here) == 12
        assert of_spark == of_here
    assert len(there.warehouse.table(CHARGES).files()) > 4


def test_what_tasks_refuse_is_told_and_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    bills = Bills(tmp_path, SparkWorkers(spark))
    fill(bills)
    bills.use(used(5, month=JANUARY.next), used(5, month=JANUARY), account_id="000000000004")

    with pytest.raises(NotIssued, match="000000000004 has no final invoice for 2027-01 yet"):
        bills.final(JANUARY.next)
    (tmp_path / "gold" / "usage_daily" / bills.closes[-1].files[0]).unlink()
    with pytest.raises(StoreDamaged, match=r"closed-.* is gone"):
        bills.final(JANUARY.next)

    assert bills.invoices(JANUARY.next) == []
