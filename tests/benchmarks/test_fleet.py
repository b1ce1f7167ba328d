"""The fleet benchmark in short: its blocks, what ships them, and what is said of a run; Spark is left out."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from harness.pipeline_site import InProcess

from bench import fleet, fleet_restart, servers
from bench.fleet_blocks import Fleet, KeptBlocks, make_blocks, prepare
from quaymaster.protocol.usage.usage_blocks import decode_block
from quaymaster_pipeline.commands.pipeline import _feed
from quaymaster_pipeline.jobs.jobs import Pipeline
from quaymaster_pipeline.usage.usage import read_usage
from quaymaster_pipeline.warehouse.tables import Warehouse

FLEET = Fleet(front_ends=6, rows=40, queues=50)
BLOCKS = 15


def test_blocks_of_each_front_end_follow_each_other(tmp_path: Path) -> None:
    path = prepare(tmp_path, FLEET, BLOCKS)

    found = [decode_block(data) for data in KeptBlocks(path, BLOCKS)]
    for number in range(FLEET.front_ends):
        mine = found[number :: FLEET.front_ends]
        assert {block.header.front_end for block in mine} == {f"front-end-{number:04}"}
        for before, block in itertools.pairwise(mine):
            assert (block.header.seq_lo, block.header.previous) == (before.header.seq_hi, before.digest)
            assert min(block.rows.event_time_us) >= before.header.low_watermark_us


def test_blocks_are_made_once_and_a_run_of_fewer_takes_the_first(tmp_path: Path) -> None:
    path = prepare(tmp_path, FLEET, BLOCKS)
    made = path.stat().st_mtime_ns

    assert prepare(tmp_path, FLEET, BLOCKS - 4) == path

    assert path.stat().st_mtime_ns == made
    assert list(KeptBlocks(path, 2)) == list(KeptBlocks(path, BLOCKS))[:2]


def test_queues_are_used_unequally_and_few_requests_manage_something() -> None:
    many = Fleet(front_ends=1, rows=20_000, queues=1_000)

    block = decode_block(next(make_blocks(many)))

    names = [block.rows.contexts[at].queue_name for at in block.rows.context]
    assert names.count("orders-0") > 10 * names.count("orders-900")
    assert 0 < len(block.rows.changes) < 100


@pytest.mark.slow
def test_a_fleet_ships_through_the_usage_queue_and_figures_tell_of_the_run(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, FLEET, BLOCKS)

    shipped = fleet.ship(tmp_path / "server", prepared, BLOCKS, FLEET)

    rows = sum(decode_block(data).header.rows for data in KeptBlocks(prepared, BLOCKS))
    assert (shipped["blocks"], shipped["rows"]) == (BLOCKS, rows)
    with servers.Running(servers.SERVERS["quaymaster"], tmp_path / "server") as server:
        warehouse = Warehouse(tmp_path / "warehouse")
        with warehouse.ingesting():
            pipeline = Pipeline(InProcess(), warehouse, _feed(server.folder / "data", None))
            summary = pipeline.catch_up()
    sums = read_usage(warehouse, since="2026-01-01T00:00:00Z", until="2026-02-01T00:00:00Z")
    assert sum(line.requests for line in sums) == rows
    assert summary.rows < rows + 10  # the server was asked whether it is there
    assert pipeline.coverage.gaps() == []
    tables = fleet.tables_of(warehouse, [0])
    # Nobody knows yet how large blocks are, so the first batch is divided over all cores.
    assert len(fleet.shares_of(warehouse, 0)["blocks_by_task"]) == InProcess.cores
    assert tables["a_pass"]["bronze.blocks"]["made"] == InProcess.cores
    assert tables["a_day"]["files_made"] % fleet.PASSES_A_DAY == 0
    # The server records that it was asked, and may ship it while the pipeline runs.
    assert fleet_restart.restart(warehouse.root)["batches"] == summary.taken


def note(time_s: float, blocks: int, **cpu_s: float) -> dict[str, Any]:
    kinds = {"driver": 0.0, "driver_jvm": 0.0, "python_workers": 0.0, **cpu_s}
    workers = {"7": kinds["python_workers"]}
    return {"time_s": time_s, "blocks": blocks, "rows": blocks * 100, "cpu_s": kinds, "workers": workers} | {
        "load_average": 1.0
    }


def batch(layer: str, batch_id: int) -> dict[str, Any]:
    return {"layer": layer, "batch_id": batch_id, "tasks": 2, "rows": 0, "seconds": 1.0, "driver_cpu_s": 0.1}


@pytest.mark.parametrize(("more", "rate"), [({}, 250), ({"executor_jvms": 2.0}, 200)])
def test_rows_are_counted_for_each_second_that_tasks_used(more: dict[str, float], rate: int) -> None:
    notes = [note(0, 0), note(9, 10, driver=1, driver_jvm=1, python_workers=3, **more)]

    (one,) = fleet.passes_of([batch(layer, 0) for layer in ("bronze", "silver", "gold")], notes)
    figures = fleet.figures_of([one])

    # With a local master the driver's JVM runs tasks; with a cluster executors do.
    assert figures["rows_per_core_s"] == rate
    assert figures["driver_cpu_s"] == (2.0 if more else 1.0)
    assert figures["tasks"] == dict.fromkeys(("bronze", "silver", "gold"), 2)
    run = {"pass": figures, "driver_peak_mib": 5, "restart": {"seconds": 1.0}}
    assert "| local | 2, 2 | " in fleet.table_of({"runs": {"local": run}})


def test_a_start_over_a_history_reads_what_came_since_or_all_of_it() -> None:
    found = fleet_restart.measure(2, files_a_day=4, front_ends=5, pass_blocks=40)

    passes = 2 * fleet_restart.PASSES_A_DAY + fleet_restart.RECENT_PASSES
    assert found["files"] == 2 * 4 + fleet_restart.RECENT_PASSES * fleet_restart.PASS_FILES
    for name in ("with_coverage", "without_coverage"):
        assert found[name]["batches"] == passes
        assert found[name]["open_incarnations"] == 5
    assert found["with_coverage"]["headers"] < found["without_coverage"]["headers"]
