"""A cell of real processes keeps what it acknowledged, whatever happens to its processes, network, disks and clocks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .cell import Cell
from .nemesis import SHORT_FAULTS, Storm

MINUTES = float(os.environ.get("NEMESIS_MINUTES", "0"))
"""0: a few faults of short duration, one of a kind. Else all kinds by chance, for so long."""
SEED = int(os.environ.get("NEMESIS_SEED", "11"))
STRETCH_MINUTES = 5.0
SHORTER = 5.0

pytestmark = pytest.mark.privileged


@pytest.mark.timeout(MINUTES * 180 + 900)
def test_nothing_acknowledged_is_lost_whatever_happens_to_a_cell(tmp_path: Path) -> None:
    with Cell.started(tmp_path, etcd_members=3 if MINUTES else 1) as cell:
        storm = Storm(cell, seed=SEED, shorter=1.0 if MINUTES else SHORTER)
        if MINUTES:
            result = storm.run_for(MINUTES, STRETCH_MINUTES)
        else:
            result = storm.run_faults(SHORT_FAULTS)

    print(result.report())
    if result.violations and storm.load is not None:
        storm.load.history.save(tmp_path / "history.jsonl")
    assert result.violations == [], f"seed {SEED}, history and logs in {tmp_path}\n{result.report()}"
    assert result.ends == {}, f"processes ended that nobody ended, logs in {tmp_path}"
    assert len(result.faults) >= (MINUTES or len(SHORT_FAULTS))
    assert result.totals.acknowledged > 20 * len(result.faults), "the load did too little to mean anything"
