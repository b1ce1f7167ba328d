"""`pipeline run` and `pipeline compact` let audit events expire: the chains still prove the rest, and holds win."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from harness.command_line import Run
from harness.pipeline_site import NOW, InProcess, Site, no_spark
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.audit.audit import Audit, Hold
from quaymaster_pipeline.audit.verification import verify_chains
from quaymaster_pipeline.commands import spark
from quaymaster_pipeline.commands.upkeep import Upkeep
from quaymaster_pipeline.jobs import expiry
from quaymaster_pipeline.jobs.retention import AUDIT_DAYS, Retention
from quaymaster_pipeline.warehouse.schemas import AUDIT_EVENTS, BLOCKS

DAY_US = 86_400_000_000
ONE_DAY = datetime.timedelta(days=1)
LATER = NOW + (AUDIT_DAYS + 1) * ONE_DAY


def used(directory: Path) -> Site:
    """Return a site with audit events of two front ends on two days, both of them over when they were taken."""
    site, one, two = Site(directory), FrontEnd("a"), FrontEnd("b")
    for front_end in (one, two):
        site.ship(front_end.block(40))
        front_end.time_us += DAY_US
        site.ship(front_end.block(40))
    site.run(now=NOW + ONE_DAY)
    return site


def upkeep(site: Site, directory: Path, now: datetime.datetime) -> Upkeep:
    """Return what a run does besides its batches, at some time."""
    return Upkeep(
        InProcess(),
        site.warehouse,
        directory,
        retention=Retention(),
        counts_brokers=False,
        now=lambda: now,
    )


def days_of_events(site: Site) -> dict[str, int]:
    """Return how many audit events there are of each day."""
    found: dict[str, int] = {}
    for file in site.warehouse.table(AUDIT_EVENTS).files():
        found[str(file.partition_value)] = found.get(str(file.partition_value), 0) + file.rows
    return found


def test_a_run_lets_old_audit_events_expire_once_a_day_and_the_chains_hold(tmp_path: Path) -> None:
    site = used(tmp_path)
    had = days_of_events(site)

    upkeep(site, tmp_path, LATER - ONE_DAY).turn()
    early = days_of_events(site)
    upkeep(site, tmp_path, LATER).turn()

    assert (sorted(had), early) == (["2026-11-22", "2026-11-23"], had)
    assert days_of_events(site) == {"2026-11-23": had["2026-11-23"]}
    proof = verify_chains(InProcess(), site.warehouse)
    assert (proof.breaks, proof.events) == ([], had["2026-11-23"])


def test_a_run_keeps_what_a_hold_names(tmp_path: Path) -> None:
    site = used(tmp_path)
    had = days_of_events(site)
    Audit(site.warehouse).place_hold(Hold("case-7", None, None, None, "a lawsuit", NOW, None))

    upkeep(site, tmp_path, LATER + ONE_DAY).turn()

    assert days_of_events(site) == had


def test_where_a_chain_is_broken_no_audit_event_expires_and_all_else_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = used(tmp_path)
    table = site.warehouse.table(AUDIT_EVENTS)
    rows = table.read()
    table.commit("somebody", None, table.write("x", rows.slice(1)), removes=table.files())
    left = days_of_events(site)

    upkeep(site, tmp_path, LATER).turn()

    assert days_of_events(site) == left
    assert "a chain is broken" in capsys.readouterr().err
    contents = site.warehouse.table(BLOCKS).read(["content"]).column("content")
    assert contents.null_count == len(contents)


def test_chains_are_not_read_when_no_event_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = used(tmp_path)

    def read(*_: object) -> None:
        raise AssertionError("no event is old")

    monkeypatch.setattr(expiry, "expire_events", read)

    upkeep(site, tmp_path, LATER - ONE_DAY).turn()


@pytest.mark.parametrize(("days", "left"), [("1", 0), ("99999999999", 2)])
def test_compaction_lets_audit_events_expire_and_says_so(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, days: str, left: int
) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    site = used(tmp_path)

    done = run("pipeline", "compact", "--data", tmp_path, "--audit-days", days)

    assert (done.code, len(days_of_events(site))) == (0, left)
    assert ("audit events are deleted" in done.err) == (left == 0)
