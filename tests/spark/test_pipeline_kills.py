"""`quaymaster pipeline run`, killed as kill -9 does before or after the commit of each table, with Spark running."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.pipeline_site import NOW, InProcess, Site, expected_usage
from harness.reconciled import compare_rows, compare_sums
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.checks.reconciliation import compare_notes
from quaymaster_pipeline.jobs.upkeep import compact

TABLES = (
    *("ops.block_marks", "bronze.blocks", "silver.quarantine", "silver.audit_events"),
    *("silver.usage_events", "gold.usage_hourly", "gold.latency_hourly", "gold.usage_daily"),
)
EVERYWHERE = [(table, when) for table in TABLES for when in ("before", "after")]
USUALLY = [("silver.usage_events", "before"), ("gold.usage_hourly", "after")]
KILLS = EVERYWHERE if os.environ.get("PIPELINE_FAULT_RUNS") else USUALLY
LATER = NOW + datetime.timedelta(days=60)
UPKEEP = [
    (job, when, words)
    for job in ("merge", "daily upkeep")  # what it commits as, in its own thread
    for when in ("before", "after")
    for words in (("--once",), ("--interval", "1"))
]
UPKEEP_KILLS = UPKEEP if os.environ.get("PIPELINE_FAULT_RUNS") else UPKEEP[1:5:3]
TIMEOUT_S = 600

RUN = """
import os, signal, sys

from quaymaster.cli.main import main
from quaymaster_pipeline.warehouse.tables import Table

_, name, when, *words = sys.argv
commit = Table.commit


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def killed(table, *arguments, **named):
    is_it = name in (table.spec.name, arguments[0])
    if is_it and when == "before":
        die()
    is_new = commit(table, *arguments, **named)
    if is_it and when == "after" and is_new:
        die()
    return is_new


Table.commit = killed
sys.argv = ["quaymaster", *words]
main()
"""


@pytest.mark.parametrize(("table", "when"), KILLS)
def test_the_driver_is_killed_and_the_next_run_counts_each_request_once(
    tmp_path: Path, table: str, when: str
) -> None:
    site, one, two = Site(tmp_path), FrontEnd("a", step_us=20_000_000), FrontEnd("b", step_us=9_000_000)
    again = one.block(60)
    site.ship(again, two.block(50), one.block(40))
    site.run()
    site.ship(two.block(30), again, one.block(70))
    words = ("pipeline", "run", "--once", "--files", str(site.feed), "--data", str(tmp_path))

    killed = subprocess.run(
        [sys.executable, "-c", RUN, table, when, *words, "--master", "local[2,3]"],
        timeout=TIMEOUT_S,
        capture_output=True,
        check=False,
    )
    summary = site.run()

    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert summary.taken == ((table, when) == ("bronze.blocks", "before"))
    assert site.usage() == expected_usage(one, two)
    assert sum(one.difference for one in (*compare_rows(site.warehouse), *compare_notes(site.warehouse))) == 0
    assert compare_sums(site.warehouse) == []


@pytest.mark.parametrize(("job", "when", "words"), UPKEEP_KILLS)
def test_the_driver_is_killed_in_its_upkeep_and_no_sum_changes(
    tmp_path: Path, job: str, when: str, words: tuple[str, ...]
) -> None:
    site, one, two = Site(tmp_path), FrontEnd("a", step_us=20_000_000), FrontEnd("b", step_us=9_000_000)
    for _ in range(2):
        site.ship(one.block(60), two.block(50))
        site.run()
    site.ship(one.block(40), two.block(30))
    given = ("pipeline", "run", "--files", str(site.feed), "--data", str(tmp_path), *words)

    killed = subprocess.run(
        [sys.executable, "-c", RUN, job, when, *given, "--master", "local[2,3]"],
        timeout=TIMEOUT_S,
        capture_output=True,
        check=False,
    )
    site.run()
    compact(InProcess(), site.warehouse, LATER)

    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert site.usage() == expected_usage(one, two)
    assert sum(one.difference for one in (*compare_rows(site.warehouse), *compare_notes(site.warehouse))) == 0
    assert compare_sums(site.warehouse) == []


def test_spark_says_nothing_on_stderr_unless_it_is_asked_to(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(10))
    words = ("pipeline", "run", "--once", "--files", str(site.feed), "--data", str(tmp_path))

    done = subprocess.run(
        [sys.executable, "-c", RUN, "none", "never", *words, "--master", "local[1]"],
        timeout=TIMEOUT_S,
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert b"10 requests in 1 blocks; difference 0" in done.stdout
    assert "WARNING" in (tmp_path / "spark" / "spark.log").read_text()
