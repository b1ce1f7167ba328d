"""The disk of audit events is full or stalls: no change is made without its event, and messages go on."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.disks import SmallDisk, small_disk
from harness.process import QuaymasterProcess
from harness.waiting import eventually

from .conftest import Connect
from .support import Client, running
from .test_audit import acts_of
from .test_stores_that_went_back import command

pytestmark = pytest.mark.privileged

DISK_BYTES = 16 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path, DISK_BYTES) as disk:
        yield disk


@pytest.fixture
def process(disk: SmallDisk, tmp_path: Path) -> QuaymasterProcess:
    """Give a server whose spool is on a disk of its own."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (disk.path / "usage").mkdir(mode=0o700)
    (data / "usage").symlink_to(disk.path / "usage")
    process = QuaymasterProcess(
        data,
        settings={"purge_interval_s": "0", "queue_name_reuse_s": "0", "usage_spool_bytes_max": str(1 << 20)},
    )
    process.log_path = tmp_path / "server.log"
    return process


def readiness(process: QuaymasterProcess) -> dict[str, Any]:
    with urllib.request.urlopen(f"{process.admin_url}/health/ready", timeout=5) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def keys_of(process: QuaymasterProcess) -> int:
    listed = command("key", "list", "--json", "--data", str(process.data))
    assert listed.returncode == 0, listed
    return len(json.loads(listed.stdout)["keys"])


def check_that_changes_are_refused(client: Client, process: QuaymasterProcess) -> None:
    for action, fields in (
        ("DeleteQueue", {}),
        ("PurgeQueue", {}),
        ("SetQueueAttributes", {"Attributes": {"VisibilityTimeout": "7"}}),
    ):
        answer = client.call(action, "q", **fields)
        assert (answer.status, answer.message.split(":")[0]) == (503, "Nothing was changed"), answer
    keys = keys_of(process)
    made = command("key", "create", "--json", "--data", str(process.data))
    assert made.returncode != 0
    assert "audit event" in made.stderr
    assert "secret" not in made.stdout
    assert keys_of(process) == keys


def test_changes_are_refused_while_their_events_have_no_room_and_messages_go_on(
    disk: SmallDisk, process: QuaymasterProcess, connect: Connect
) -> None:
    with running(process):
        client = connect(process)
        client.create("q")
        disk.fill()
        client.send("q", ["before"])
        eventually(lambda: "notices" in readiness(process), "telling that changes are refused")

        check_that_changes_are_refused(client, process)

        client.send("q", [f"m{number}" for number in range(20)])
        assert len(client.take_all("q")) == 21
        assert client.call("GetQueueAttributes", "q", AttributeNames=["All"]).status == 200
        (notice,) = readiness(process)["notices"]
        assert "audit events cannot be written" in notice
        assert notice in command("doctor", "--data", str(process.data)).stdout

        disk.give_back()
        eventually(lambda: "notices" not in readiness(process), "taking changes again")

        assert client.call("DeleteQueue", "q").status == 200
        made = command("key", "create", "--json", "--data", str(process.data))
        assert made.returncode == 0, made
        assert process.log().count("usage records not written") == 1
        process.kill9()
        process.start()
        done = [event.action for event in acts_of(process) if event.http_status == 200]
        assert done == ["CreateQueue", "DeleteQueue", "CreateAccessKey"]
        process.stop()


def test_a_change_that_a_stalled_disk_has_no_event_of_is_not_answered_as_done(
    disk: SmallDisk, process: QuaymasterProcess, connect: Connect
) -> None:
    with running(process):
        client = connect(process)
        client.create("q")
        disk.stall()

        answer = client.call("SetQueueAttributes", "q", Attributes={"VisibilityTimeout": "7"})

        assert (answer.status, answer.message.split(":")[0]) == (503, "The outcome is unknown"), answer
        check_that_changes_are_refused(client, process)
        client.send("q", ["m"])

        disk.go_on()
        eventually(lambda: "notices" not in readiness(process), "taking changes again")
        assert client.call("DeleteQueue", "q").status == 200
        process.kill9()
        process.start()
        done = [event.action for event in acts_of(process) if event.http_status == 200]
        assert done == ["CreateQueue", "SetQueueAttributes", "DeleteQueue"]
        process.stop()
