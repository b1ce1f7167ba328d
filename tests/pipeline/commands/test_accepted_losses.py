"""Final invoices of a month that lost too much wait until an operator accepts that."""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from harness.broker_counts import keep_comparison
from harness.command_line import Run
from harness.pipeline_site import Site, no_spark
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.commands import billing, spark
from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.usage.feed import QUEUE_FEED
from quaymaster_pipeline.warehouse.schemas import BLOCKS, LOSSES
from quaymaster_pipeline.warehouse.tables import Warehouse

MONTH = Month(2020, 3)


def lose(tables: Warehouse, messages: int) -> None:
    line = {"queue_id": 1, "measure": "sends", "messages": messages, "cause": "crash", "month": str(MONTH)}
    rows = pa.Table.from_pylist([{name: line.get(name) for name in LOSSES.schema.names}], LOSSES.schema)
    table = tables.table(LOSSES)
    table.commit("test", None, table.write("test", rows))


def test_a_month_that_lost_too_much_has_no_final_invoices_until_its_losses_are_accepted(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    site = Site(tmp_path)
    site.ship(FrontEnd("a").block(10))
    site.run()
    tables = site.warehouse
    tables.table(BLOCKS).commit("test", 0, [], shared_notes={BRONZE: {"feed": f"{QUEUE_FEED}1"}})
    compared = MONTH.end + datetime.timedelta(days=1)
    keep_comparison(tables, compared)
    lose(tables, 10_001)

    def reason() -> str | None:
        return billing._why_brokers_do_not_say(site.warehouse, MONTH)

    before = reason()
    done = run("pipeline", "reconcile", "--data", tmp_path, "--accept-losses", str(MONTH))
    after = reason()
    lose(site.warehouse, 1)

    assert "10001 messages of 2020-03 were lost" in str(before)
    assert f"{10_001} lost messages of 2020-03 are accepted" in done.err
    assert after is None
    assert "10002 messages of 2020-03 were lost" in str(reason())


def test_losses_are_accepted_of_a_month_that_is_one(tmp_path: Path, run: Run) -> None:
    done = run("pipeline", "reconcile", "--data", tmp_path, "--accept-losses", "2020-13")

    assert done.code == 2
    assert "--accept-losses: '2020-13' is no month" in done.err
