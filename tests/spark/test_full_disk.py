"""`quaymaster pipeline run` with Spark on a disk that is full: what tasks and the JVM meet is told in one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.disks import SmallDisk, small_disk
from harness.pipeline_site import Site, expected_usage
from harness.reconciled import compare_rows
from harness.usage_blocks import FrontEnd

TIMEOUT_S = 600


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path, 24 << 20) as disk:
        yield disk


@pytest.mark.privileged
def test_tasks_and_spark_itself_say_which_disk_is_full_and_the_next_run_counts_each_request_once(
    disk: SmallDisk,
) -> None:
    site, one, two = Site(disk.path / "data"), FrontEnd("a"), FrontEnd("b")
    site.ship(*[block for _ in range(4) for block in (one.block(3_000), two.block(3_000))])
    data = disk.path / "data"
    command = [
        sys.executable,
        "-m",
        "quaymaster.cli.main",
        "pipeline",
        "run",
        "--once",
        "--master",
        "local[2]",
    ]

    def run() -> tuple[int, list[str]]:
        done = subprocess.run(
            [*command, "--files", str(site.feed), "--data", str(data)],
            timeout=TIMEOUT_S,
            capture_output=True,
            check=False,
        )
        return done.returncode, done.stderr.decode().splitlines()

    site.root.mkdir()
    (site.root / "lock").touch()
    disk.fill()
    without_any = run()
    disk.give_back()
    disk.leave(200 << 10)
    in_tasks = run()
    disk.give_back()
    with_enough = run()

    full = "(No space left on device): make room there and run the command again"
    for (code, lines), place in ((without_any, data / "spark"), (in_tasks, site.root / "bronze")):
        assert (code, len(lines)) == (1, 1), lines
        assert lines[0].startswith(f"quaymaster: no more can be written to {place}")
        assert full in lines[0]
    assert with_enough == (0, [])
    assert site.usage() == expected_usage(one, two)
    assert [compared.difference for compared in compare_rows(site.warehouse)] == [0] * 5
