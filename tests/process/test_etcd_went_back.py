"""A cell whose etcd was restored from an older copy gives no queue what belongs to another one."""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from pathlib import Path

import pytest
from harness.running_cell import RunningCell
from harness.waiting import PATIENCE_S

from .support import CellClient, bodies

LOST = 8
NEW = 8


def create_when_possible(client: CellClient, queue: str) -> None:
    """Create a queue; the cell may just be starting."""
    deadline = time.monotonic() + PATIENCE_S
    while (answer := client.call("CreateQueue", QueueName=queue)).status != 200:
        assert time.monotonic() < deadline, answer
        time.sleep(0.2)


@pytest.mark.timeout(900)
def test_queues_made_after_etcd_was_restored_have_nothing_of_those_it_has_forgotten(tmp_path: Path) -> None:
    roles = {"broker": 3, "manager": 1, "metadata": 1, "frontend": 1}
    with RunningCell.started(tmp_path, roles, settings={"usage": "false"}) as cell:
        with closing(CellClient(cell)) as client:
            create_when_possible(client, "kept")
            client.send("kept", bodies(10, "kept"))
        for process in cell.of_role("metadata"):
            process.stop()
        cell.etcd.kill(0)
        copied = tmp_path / "copied"
        shutil.copytree(cell.etcd.members[0].data, copied)
        cell.etcd.start(0)
        for process in cell.of_role("metadata"):  # with each start ids begin at another block
            process.start()
        with closing(CellClient(cell)) as client:
            for number in range(LOST):
                create_when_possible(client, f"lost-{number}")
                client.send(f"lost-{number}", bodies(10, f"lost-{number}"))
        for process in cell.processes.values():
            process.kill9()
        cell.etcd.kill(0)
        shutil.rmtree(cell.etcd.members[0].data)
        shutil.copytree(copied, cell.etcd.members[0].data)
        cell.etcd.start(0)
        for process in cell.processes.values():
            process.launch()
        cell["frontend-1"].wait_until_ready()
        cell.wait_until_whole()

        with closing(CellClient(cell)) as client:
            refused = client.call("CreateQueue", QueueName="new-0")
            assert refused.status == 503, refused
            assert "The metadata store went back" in str(refused.fields)
            assert "force-store" in str(refused.fields)
            assert client.take_all("kept") == bodies(10, "kept")

            decided = cell["metadata-1"].command("force-store", "--yes")
            assert decided.returncode == 0, decided
            for number in range(NEW):
                create_when_possible(client, f"new-{number}")
                client.send(f"new-{number}", bodies(5, f"new-{number}"))
            for number in range(NEW):
                assert client.counts(f"new-{number}") == 5
                assert client.take_all(f"new-{number}") == bodies(5, f"new-{number}")
