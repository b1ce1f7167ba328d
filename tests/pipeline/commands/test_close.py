"""`pipeline run` closes days by itself, and `pipeline close` at once; both say what stays open."""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow.compute as pc
import pytest
from harness.built_once import built_once
from harness.command_line import Run
from harness.pipeline_site import InProcess, Site, no_spark
from harness.usage_blocks import slow

from quaymaster_pipeline.commands import spark
from quaymaster_pipeline.commands.upkeep import Upkeep
from quaymaster_pipeline.jobs.retention import Retention
from quaymaster_pipeline.warehouse.closes import last_closed_day, read_closes
from quaymaster_pipeline.warehouse.schemas import RECONCILIATION, USAGE_DAILY

THE_25TH = datetime.datetime(2026, 11, 25, 6, tzinfo=datetime.UTC)


@built_once
def shipped(directory: Path) -> Site:
    """A front end that has got from the 22nd to the 24th."""
    site = Site(directory)
    site.ship(slow("a").block(96))
    site.run(now=THE_25TH)
    return site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    return shipped(tmp_path)


def spoil(site: Site, date: str) -> None:
    """Change a sum of a day, as a mistake would."""
    table = site.warehouse.table(USAGE_DAILY)
    (file,) = [file for file in table.files() if file.partition_value == date]
    rows = table.read(files=[file])
    place = rows.schema.get_field_index("requests")
    wrong = rows.set_column(place, "requests", pc.add(rows.column("requests"), 1))
    table.commit("mistake", 0, table.write("x", wrong), removes=[file])


def turn(site: Site, tmp_path: Path) -> None:
    """Do what `pipeline run` does next to its batches, once."""
    upkeep = Upkeep(
        InProcess(),
        site.warehouse,
        tmp_path,
        retention=Retention(),
        counts_brokers=False,
        now=lambda: THE_25TH,
    )
    upkeep.turn()


def test_a_run_closes_the_days_that_are_due(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turn(site, tmp_path)

    assert last_closed_day(site.warehouse) == datetime.date(2026, 11, 23)
    assert "Closed: 2026-11-22 to 2026-11-23." in capsys.readouterr().err


def test_a_run_says_which_day_stays_open_and_keeps_why(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(site, "2026-11-23")

    turn(site, tmp_path)

    assert last_closed_day(site.warehouse) == datetime.date(2026, 11, 22)
    assert "this stays open: 2026-11-23" in capsys.readouterr().err
    kept = site.warehouse.table(RECONCILIATION).read(["scope", "measure", "difference"]).to_pylist()
    assert any(
        row["scope"] == "2026-11-23" and row["measure"] == "rows" and row["difference"] for row in kept
    )


def test_the_command_closes_at_once_and_shows_sums(run: Run, site: Site, tmp_path: Path) -> None:
    done = run("pipeline", "close", "--data", tmp_path)
    again = run("pipeline", "close", "--data", tmp_path)

    assert (done.code, again.code) == (0, 0)
    assert "2026-11-22" in done.out
    assert "No further day is due" in again.err
    assert [row.day.day for row in read_closes(site.warehouse)] == [22, 23]


def test_the_command_names_what_stays_open_until_it_is_accepted(run: Run, site: Site, tmp_path: Path) -> None:
    spoil(site, "2026-11-22")

    refused = run("pipeline", "close", "--data", tmp_path)
    accepted = run("pipeline", "close", "--data", tmp_path, "--accept", "2026-11-22", "--json")

    assert refused.code == 1
    assert "these stay open: 2026-11-22" in refused.err
    assert accepted.code == 0
    assert [(row["day"], row["accepted"]) for row in accepted.json["closes"]] == [
        ("2026-11-22", True),
        ("2026-11-23", False),
    ]
