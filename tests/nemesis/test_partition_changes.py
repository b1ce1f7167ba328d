"""Queues are split, merged and moved under load while processes of their cell die, hang and are cut off."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .cell import Cell
from .nemesis import CHANGES_MIN, Storm
from .partition_changes import tell_changes

MINUTES = float(os.environ.get("NEMESIS_MINUTES", "0"))
SEED = int(os.environ.get("NEMESIS_SEED", "16"))
STRETCH_MINUTES = 12.0
"""A partition is closing for five minutes and more: so in a stretch some queues are changed twice."""
SHORTER = 5.0
FAULTS = (
    *("leader killed", "metadata node killed", "broker paused", "front end killed", "broker cut off"),
    *("etcd killed", "manager killed", "pause, kill, resume, restart"),
)

pytestmark = pytest.mark.privileged


@pytest.mark.timeout(MINUTES * 180 + 900)
def test_nothing_is_lost_doubled_or_out_of_order_while_queues_change_their_partitions(tmp_path: Path) -> None:
    with Cell.started(tmp_path, etcd_members=3 if MINUTES else 1) as cell:
        storm = Storm(cell, seed=SEED, shorter=1.0 if MINUTES else SHORTER, changes_partitions=True)
        result = storm.run_for(MINUTES, STRETCH_MINUTES) if MINUTES else storm.run_faults(FAULTS)

    print(result.report())
    for changes in storm.changes:
        print(tell_changes(changes))
    if result.violations and storm.load is not None:
        storm.load.history.save(tmp_path / "history.jsonl")
    assert result.violations == [], f"seed {SEED}, history and logs in {tmp_path}\n{result.report()}"
    assert result.ends == {}, f"processes ended that nobody ended, logs in {tmp_path}"
    assert sum(changes.made.total() for changes in storm.changes) >= CHANGES_MIN
    assert result.totals.acknowledged > 20 * len(result.faults), "the load did too little to mean anything"
