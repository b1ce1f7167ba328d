"""The soak in its short form: several processes one after the other, nothing lost, nothing piled up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from process.soak import Sampler, Soak

MINUTES = float(os.environ.get("SOAK_MINUTES", "0.2"))
SEED = int(os.environ.get("SOAK_SEED", "7"))
STRETCH_MINUTES_MAX = 5.0


def test_nothing_is_lost_or_piled_up_over_kills_and_clean_ends(tmp_path: Path) -> None:
    stretches = max(2, round(MINUTES / STRETCH_MINUTES_MAX))
    stretch_s = MINUTES * 60 / stretches
    soak = Soak(
        tmp_path,
        seed=SEED,
        stretches=stretches,
        stretch_s=stretch_s,
        life_s=min(45.0, stretch_s / 3),
        kept_messages=round(min(20_000, 2_000 * MINUTES)),
        pause_s=0.01 if MINUTES < 1 else 0.03,
        sample_s=min(5.0, stretch_s / 6),
    )

    result = soak.run()

    print(result.report())
    if result.violations and soak.load is not None:
        soak.load.history.save(tmp_path / "history.jsonl")
    assert result.violations == [], f"seed {SEED}, history and data in {tmp_path}\n{result.report()}"
    assert result.errors == [], "the server logged errors"
    assert result.total("kills") >= 1
    assert result.total("clean_ends") >= 1
    assert result.total("acknowledged") > 1_000 * MINUTES, "the load did too little to mean anything"
    assert abs(result.after.threads - result.before.threads) <= 4
    # Files of the journal that are open for reading, at most a few at a time.
    assert result.after.file_descriptors < result.before.file_descriptors + 64


def test_a_server_that_was_just_killed_gives_no_sample(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        server: Any = SimpleNamespace(pid=child.pid, data=tmp_path)
        sampler = Sampler(server, interval_s=60)
        assert sampler.look() is not None

        child.kill()
        # Dead, and not yet waited for: it is still in /proc, and has no memory there.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

        assert sampler.look() is None
        assert child.wait() == -signal.SIGKILL
        sampler.stop()
