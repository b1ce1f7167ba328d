"""Two processes under one broker's name, in a real cell with one broker: one of them serves, the other says why not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from harness.running_cell import RunningCell

from process.support import EXIT_UNUSABLE

EXIT_FAILED = 1


def test_a_displaced_broker_ends_and_a_second_one_does_not_start(tmp_path: Path) -> None:
    with RunningCell.started(tmp_path, {"broker": 1, "metadata": 1}) as cell:
        first = cell["broker-1"]
        second = cell.add("broker", "broker-1-again")
        second.settings["node"] = "broker-1"

        second.launch()
        assert second.ended_with() == EXIT_UNUSABLE
        assert f"A broker broker-1 runs already, at 127.0.0.1:{first.port}" in second.log()
        assert first.is_ready

        assert first.child is not None
        os.kill(first.child.pid, signal.SIGSTOP)
        second.start()
        os.kill(first.child.pid, signal.SIGCONT)

        assert first.ended_with() == EXIT_FAILED
        assert (
            f"Another process registered as the broker broker-1 and answers at 127.0.0.1:{second.port}"
            in (first.log())
        )
        assert second.is_ready
