"""kill -9 under load: whatever the moment, no acknowledged message is lost and none is made up."""

from __future__ import annotations

import os
from pathlib import Path

from process.kill_storm import Storm

KILLS = int(os.environ.get("SOAK_RUNS", "10"))
SEED = int(os.environ.get("SOAK_SEED", "7"))


def test_nothing_is_lost_or_invented_when_the_server_is_killed_again_and_again(tmp_path: Path) -> None:
    storm = Storm(tmp_path, seed=SEED)

    result = storm.run(KILLS)

    print(result.report())
    if result.verdict.violations:
        storm.load.history.save(tmp_path / "history.jsonl")
    assert result.verdict.violations == [], f"seed {SEED}, history and data in {tmp_path}\n{result.report()}"
    assert result.kills.total() >= KILLS  # the last one may be followed by some while it starts
    assert result.verdict.acknowledged > 50 * KILLS, "the load did too little to mean anything"
