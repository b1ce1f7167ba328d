"""A cell whose etcd was restored from an older copy believes nothing of it before an operator decided."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from harness.load import SQSConnection
from harness.process import Environment
from harness.running_cell import RoleProcess, RunningCell
from harness.waiting import PATIENCE_S, eventually

from .support import CellClient, bodies

ROLES = {"broker": 3, "manager": 1, "metadata": 1, "frontend": 1}
SETTINGS = {"usage": "false"}
LOST = 8
NEW = 8


def create_when_possible(client: CellClient, queue: str) -> None:
    """Create a queue; the cell may just be starting."""
    deadline = time.monotonic() + PATIENCE_S
    while (answer := client.call("CreateQueue", QueueName=queue)).status != 200:
        assert time.monotonic() < deadline, answer
        time.sleep(0.2)


def key_command(cell: RunningCell, *arguments: str) -> dict[str, Any]:
    done = cell["frontend-1"].command("key", *arguments)
    assert done.returncode == 0, done
    found: dict[str, Any] = json.loads(done.stdout) if "--json" in arguments else {}
    return found


def new_key(cell: RunningCell) -> Environment:
    made = key_command(cell, "create", "--json")
    return cell.environment()._replace(
        access_key_id=str(made["access_key_id"]), secret_access_key=str(made["secret_access_key"])
    )


def status_with(cell: RunningCell, key: Environment) -> int:
    """Return how a request that is signed with a key is answered."""
    with closing(SQSConnection(key, cell["frontend-1"].port)) as connection:
        return connection.call("GetQueueUrl", {"QueueName": "kept"}).status


def why_not_ready(process: RoleProcess) -> str:
    """Return what readiness says; empty when the process is ready or does not listen."""
    with closing(HTTPConnection("127.0.0.1", process.admin_port, timeout=5)) as connection:
        try:
            connection.request("GET", "/health/ready")
            return str(json.loads(connection.getresponse().read()).get("reason", ""))
        except OSError:
            return ""


def witnessed(cell: RunningCell) -> dict[str, bytes]:
    """Return what each process with a memory has of the store."""
    return {
        process.name: (process.data / "store.witness").read_bytes()
        for role in ("broker", "metadata")
        for process in cell.of_role(role)
    }


def wait_until_witnessed(cell: RunningCell, before: dict[str, bytes]) -> None:
    """Return when each of them has seen a later change."""
    eventually(lambda: all(now != before[name] for name, now in witnessed(cell).items()), "witnesses")


def copy_of_etcd(cell: RunningCell, to: Path) -> Path:
    """Copy etcd's only member; it is away for a moment."""
    cell.etcd.kill(0)
    shutil.copytree(cell.etcd.members[0].data, to)
    cell.etcd.start(0)
    return to


def restore_etcd(cell: RunningCell, copied: Path) -> None:
    cell.etcd.kill(0)
    shutil.rmtree(cell.etcd.members[0].data)
    shutil.copytree(copied, cell.etcd.members[0].data)
    cell.etcd.start(0)


def restart_with(cell: RunningCell, copied: Path) -> None:
    """Let the whole cell start with an older etcd, at once."""
    for process in cell.processes.values():
        process.kill9()
    restore_etcd(cell, copied)
    for process in cell.processes.values():
        process.launch()


def force_store(cell: RunningCell) -> None:
    decided = cell["metadata-1"].command("force-store", "--yes")
    assert decided.returncode == 0, decided
    assert "The metadata store went back" in decided.stderr


@pytest.mark.timeout(900)
def test_queues_made_after_etcd_was_restored_have_nothing_of_those_it_has_forgotten(tmp_path: Path) -> None:
    with RunningCell.started(tmp_path, ROLES, settings=SETTINGS) as cell:
        with closing(CellClient(cell)) as client:
            create_when_possible(client, "kept")
            client.send("kept", bodies(10, "kept"))
        for process in cell.of_role("metadata"):
            process.stop()
        copied = copy_of_etcd(cell, tmp_path / "copied")
        for process in cell.of_role("metadata"):  # with each start ids begin at another block
            process.start()
        before = witnessed(cell)
        with closing(CellClient(cell)) as client:
            for number in range(LOST):
                create_when_possible(client, f"lost-{number}")
                client.send(f"lost-{number}", bodies(10, f"lost-{number}"))
        wait_until_witnessed(cell, before)
        restart_with(cell, copied)

        for name in ("metadata-1", "frontend-1", "broker-1"):
            eventually(lambda name=name: "The metadata store went back" in why_not_ready(cell[name]), name)  # type: ignore[misc]
        cell.wait_until(lambda status: any("force-store" in problem for problem in status["problems"]))
        force_store(cell)
        for process in cell.processes.values():
            process.wait_until_ready()
        cell.wait_until_whole()

        with closing(CellClient(cell)) as client:
            assert client.take_all("kept") == bodies(10, "kept")
            for number in range(NEW):
                create_when_possible(client, f"new-{number}")
                client.send(f"new-{number}", bodies(5, f"new-{number}"))
            for number in range(NEW):
                assert client.counts(f"new-{number}") == 5
                assert client.take_all(f"new-{number}") == bodies(5, f"new-{number}")


@pytest.mark.timeout(900)
def test_keys_that_were_deleted_or_disabled_work_in_no_restored_etcd_before_an_operator_decided(
    tmp_path: Path,
) -> None:
    with RunningCell.started(tmp_path, ROLES, settings=SETTINGS) as cell:
        with closing(CellClient(cell)) as client:
            create_when_possible(client, "kept")
            client.send("kept", bodies(10, "kept"))
        deleted, disabled = new_key(cell), new_key(cell)
        before = witnessed(cell)
        copied = copy_of_etcd(cell, tmp_path / "copied")
        cell.wait_until_whole()
        for change, key in (("delete", deleted), ("disable", disabled)):
            eventually(
                lambda change=change, key=key: (  # type: ignore[misc]
                    cell["frontend-1"].command("key", change, key.access_key_id).returncode == 0
                ),
                change,
            )
        eventually(lambda: {status_with(cell, key) for key in (deleted, disabled)} == {403})
        wait_until_witnessed(cell, before)

        restore_etcd(cell, copied)  # under the processes that run: they know better
        for process in (*cell.of_role("broker"), *cell.of_role("metadata")):
            eventually(
                lambda process=process: "force-store" in why_not_ready(process) or not process.is_running,  # type: ignore[misc]
                process.name,
            )
        assert {status_with(cell, key) for key in (deleted, disabled)} == {403}
        with closing(CellClient(cell)) as client:
            assert client.take_all("kept") == bodies(10, "kept")

        restart_with(cell, copied)
        for name in ("metadata-1", "frontend-1"):
            eventually(lambda name=name: "The metadata store went back" in why_not_ready(cell[name]), name)  # type: ignore[misc]
            assert cell[name].is_running
        force_store(cell)
        for process in cell.processes.values():
            process.wait_until_ready()
        cell.wait_until_whole()
        assert {status_with(cell, key) for key in (deleted, disabled)} == {200}  # as the operator was told
        for process in cell.processes.values():
            process.kill9()
            process.launch()
        for process in cell.processes.values():
            process.wait_until_ready()
