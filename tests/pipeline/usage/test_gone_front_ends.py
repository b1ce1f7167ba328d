"""A front end that is gone keeps hours open until another one seals for it; what comes all the same counts, late."""

from __future__ import annotations

from pathlib import Path

from harness.pipeline_site import Site, expected_usage
from harness.usage_blocks import NOON_US, SECOND_US, FrontEnd

from quaymaster.frontend.usage.incarnations import Incarnation, lost_block
from quaymaster.protocol.usage.usage_blocks import Seal
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.warehouse.schemas import USAGE_EVENTS


def closed_until(site: Site) -> int | None:
    return coverage_of(site.warehouse).closed_until_us()


def test_hours_close_without_a_front_end_that_was_sealed(tmp_path: Path) -> None:
    site, gone, runs = Site(tmp_path), FrontEnd("gone"), FrontEnd("runs", step_us=60 * SECOND_US)
    site.ship(gone.block(5), runs.block(200))
    site.run()
    before = closed_until(site)

    site.ship(lost_block("gone", Incarnation(2, runs.time_us, seals=1), "eu-west-1").data)
    site.run()

    assert before == gone.time_us
    assert closed_until(site) == runs.time_us > gone.time_us
    assert site.usage() == expected_usage(gone, runs)


def test_what_a_sealed_front_end_still_ships_counts_once_and_late(tmp_path: Path) -> None:
    site, gone, runs = Site(tmp_path), FrontEnd("gone"), FrontEnd("runs", step_us=60 * SECOND_US)
    lost = lost_block("gone", Incarnation(2, NOON_US, seals=1), "eu-west-1").data
    site.ship(gone.block(5), lost, runs.block(200))
    site.run()

    late = gone.block(7)
    site.ship(late, lost, late, gone.block(0, seal=Seal(1, 12, "stopped")), lost)
    site.run()

    assert site.usage() == expected_usage(gone, runs)
    is_late = site.warehouse.table(USAGE_EVENTS).read(["is_late"]).column("is_late").to_pylist()
    assert is_late.count(True) == 7
    assert closed_until(site) == runs.time_us
    assert coverage_of(site.warehouse).gaps() == []
