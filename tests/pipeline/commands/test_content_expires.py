"""`pipeline run` and `pipeline compact` let content expire, in bronze and in quarantine."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from harness.command_line import Run
from harness.pipeline_site import NOW, InProcess, Site, no_spark
from harness.usage_blocks import HOUR_US, FrontEnd

from quaymaster_pipeline.commands import spark
from quaymaster_pipeline.commands.upkeep import Upkeep
from quaymaster_pipeline.jobs.retention import CONTENT_DAYS, Retention
from quaymaster_pipeline.warehouse.schemas import BLOCKS, QUARANTINE

LONG_AGO = datetime.datetime(2021, 1, 1, tzinfo=datetime.UTC)


def contents(site: Site) -> tuple[int, int]:
    """Return how many blocks and rows of quarantine have any."""
    columns = [
        site.warehouse.table(spec).read([name]).column(name)
        for spec, name in ((BLOCKS, "content"), (QUARANTINE, "raw"))
    ]
    blocks, raw = (len(column) - column.null_count for column in columns)
    return blocks, raw


@pytest.mark.parametrize(("days", "left"), [(CONTENT_DAYS, (2, 40)), (CONTENT_DAYS + 1, (0, 0))])
def test_a_run_lets_contents_expire_once_a_day(tmp_path: Path, days: int, left: tuple[int, int]) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    blocks = [one.block(30)]
    one.time_us += 30 * 24 * HOUR_US
    site.ship(*blocks, one.block(40))
    site.run()

    Upkeep(
        InProcess(),
        site.warehouse,
        tmp_path,
        retention=Retention(),
        counts_brokers=False,
        now=lambda: NOW + datetime.timedelta(days),
    ).turn()

    assert contents(site) == left


def test_compaction_lets_all_expire_that_is_due_and_says_so(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    site = Site(tmp_path)
    site.ship(FrontEnd("a").block(40))
    # By this clock, times of the requests are ahead: all are quarantined.
    site.run(now=LONG_AGO)

    done = run("pipeline", "compact", "--data", tmp_path)

    assert contents(site) == (0, 0)
    # Six of the requests are links of the audit chain, and stay without what was recorded.
    assert site.warehouse.table(QUARANTINE).rows == 6
    assert "The content of 1 blocks has expired" in done.err
    assert "0 rows have lost what was recorded, and 34 are deleted" in done.err


def test_status_warns_of_content_that_should_have_expired(tmp_path: Path, run: Run) -> None:
    site = Site(tmp_path)
    site.ship(FrontEnd("a").block(40))
    site.run(now=LONG_AGO)

    shown = run("pipeline", "status", "--data", tmp_path)
    as_json = run("pipeline", "status", "--data", tmp_path, "--json").json

    assert "Content of 2021-01-01, with addresses and agents, is still in the tables" in shown.err
    assert (as_json["oldest_content"], as_json["is_content_overdue"]) == ("2021-01-01", True)
