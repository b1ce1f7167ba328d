"""A process's own wall clock is set from outside; its other clocks and its sleep stay right."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from harness.wall_clock import WallClock

PROGRAM = """
import time
for _ in range(3):
    input()
    before = time.monotonic()
    time.sleep(0.01)
    print(time.time(), time.time_ns(), time.monotonic() - before, flush=True)
"""


def test_a_process_sees_its_wall_clock_jump_and_goes_on(tmp_path: Path) -> None:
    clock = WallClock(tmp_path / "clock")
    environment = {**os.environ, **clock.environment()}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for offset_s in (0.0, -600.0, 86_400.0):
            clock.set(offset_s)
            before = time.time()

            child.stdin.write("\n")
            child.stdin.flush()
            wall_s, wall_ns, slept_s = map(float, child.stdout.readline().split())

            after = time.time()
            assert before <= wall_s - offset_s <= after
            assert before <= wall_ns / 1e9 - offset_s <= after
            assert 0.01 <= slept_s <= after - before + 1
