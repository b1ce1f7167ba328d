"""The clocks of a cell's majority step: nothing expires until an operator says that they are right."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

from harness.running_cell import RoleProcess, RunningCell
from harness.waiting import PATIENCE_S
from harness.wall_clock import WallClock

from quaymaster.cli.shared.failures import EXIT_NO_SERVER

from .support import CellClient

DAY_S = 86_400
ROLES = {"broker": 1, "metadata": 1, "manager": 1, "frontend": 1}


def notices(process: RoleProcess) -> list[str]:
    """What a process that is ready tells operators."""
    url = f"http://127.0.0.1:{process.admin_port}/health/ready"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        found: list[str] = json.load(answer).get("notices", [])
    return found


def is_held(status: dict[str, Any]) -> bool:
    return any(problem.startswith("nothing expires in journal") for problem in status["problems"])


def test_messages_expire_again_once_an_operator_accepts_the_clocks_of_a_cell(tmp_path: Path) -> None:
    with RunningCell.started(tmp_path, ROLES, settings={"replicas": "1"}) as cell:
        broker, manager = cell["broker-1"], cell["manager-1"]
        cell.wait_until_whole()
        broker.stop()
        broker.clock = WallClock(tmp_path / "clock")
        broker.start()
        cell.wait_until_whole()
        client = CellClient(cell)
        client.create("q", MessageRetentionPeriod="600")
        client.send("q", ["m"])

        broker.clock.set(DAY_S)
        cell.wait_until(is_held)

        (notice,) = notices(broker)
        assert notice.startswith("nothing expires in journal 0: clocks are 86")
        status = manager.command("cell", "status")
        # The seconds that follow go on, so those of two moments differ.
        assert (status.returncode, "nothing expires in journal 0: clocks are 86" in status.stderr) == (
            1,
            True,
        )
        assert client.counts("q") == 1

        accepted = manager.command("clock", "accept", "--cell")

        assert (accepted.returncode, accepted.stdout) == (0, "broker-1 has accepted its clock\n")
        cell.wait_until(lambda status: not is_held(status))
        assert notices(broker) == []
        deadline = time.monotonic() + PATIENCE_S
        while client.counts("q"):
            assert time.monotonic() < deadline, f"the message does not expire\n{cell.logs()}"
            time.sleep(0.1)
        client.close()

        broker.kill9()
        missed = manager.command("clock", "accept", "--cell")

        assert (missed.returncode, missed.stdout) == (EXIT_NO_SERVER, "")
        assert "not told, for they do not answer: broker-1" in missed.stderr
