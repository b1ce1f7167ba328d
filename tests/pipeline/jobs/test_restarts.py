"""Killed anywhere, and started again: every request once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from harness.pipeline_site import Site, expected_usage
from harness.reconciled import compare_rows, compare_sums
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.checks.reconciliation import compare_notes
from quaymaster_pipeline.usage.bronze import planning
from quaymaster_pipeline.warehouse.tables import Table

TESTS = Path(__file__).resolve().parents[2]


class Killed(BaseException):
    """The process ends here; nothing catches it."""


def check_all(site: Site, *front_ends: FrontEnd) -> None:
    """Check that every layer has every record once."""
    assert site.usage() == expected_usage(*front_ends)
    assert [one.difference for one in compare_rows(site.warehouse)] == [0] * 5
    assert compare_notes(site.warehouse) == compare_rows(site.warehouse)
    assert compare_sums(site.warehouse) == []


def test_each_process_lives_for_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "BATCH_BLOCKS_MAX", 3)
    site, one, two = Site(tmp_path), FrontEnd("a", step_us=20_000_000), FrontEnd("b", step_us=9_000_000)
    blocks = [one.block(100), two.block(80), one.block(90), two.block(10)]
    site.ship(*blocks[:3], blocks[0], blocks[3], blocks[1])
    commit = Table.commit
    done: list[str] = []

    def commit_once(table: Table, *arguments: Any, **named: Any) -> bool:
        if done:
            raise Killed  # with the next files written, and not committed
        is_new = commit(table, *arguments, **named)
        if is_new:
            done.append(table.spec.name)
        return is_new

    committed = []
    for _ in range(40):
        done.clear()
        with monkeypatch.context() as patched:
            patched.setattr(Table, "commit", commit_once)
            try:
                site.run()
            except Killed:
                committed += done
            else:
                committed += done
                break
    else:
        raise AssertionError(f"no end after {committed}")

    assert committed.count("bronze.blocks") == committed.count("gold.usage_daily") == 2
    assert committed.count("ops.block_marks") == 1  # with the second batch blocks come again
    assert len(committed) == 15
    check_all(site, one, two)


RUN = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from harness.pipeline_site import Site
from quaymaster_pipeline.usage.bronze import planning
planning.BATCH_BLOCKS_MAX = 2
Site(Path({directory!r})).run()
"""


@pytest.mark.slow
def test_processes_are_killed_at_random_moments(tmp_path: Path) -> None:
    chance = random.Random(6)
    site, one, two = Site(tmp_path), FrontEnd("a", step_us=20_000_000), FrontEnd("b", step_us=9_000_000)
    # How long a process takes if nobody kills it, once that is known.
    kills, whole_s = 0, 8.0
    script = RUN.format(tests=str(TESTS), directory=str(tmp_path))
    for _ in range(10):
        again = one.block(chance.randrange(1, 60))
        site.ship(again, two.block(chance.randrange(60)), again, one.block(5), two.block(9))
        began_s = time.monotonic()
        process = subprocess.Popen([sys.executable, "-c", script])
        try:
            process.wait(chance.uniform(0.2, 0.95) * whole_s)
            whole_s = time.monotonic() - began_s
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()

    site.run()

    assert kills > 0
    check_all(site, one, two)
