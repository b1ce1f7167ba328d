"""A full disk: sends are refused with the cause, the rest goes on, and space alone brings everything back."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.checker import check
from harness.disks import SmallDisk, small_disk
from harness.history import ServerEnded
from harness.load import Answer, Load
from harness.process import QuaymasterProcess
from harness.waiting import eventually

from .conftest import Connect
from .support import Client, running

pytestmark = pytest.mark.privileged

MIB = 1 << 20
DISK_BYTES = 96 * MIB
LOW_BYTES = 12 * MIB


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path, DISK_BYTES) as disk:
        yield disk


@pytest.fixture
def process(disk: SmallDisk, tmp_path: Path) -> QuaymasterProcess:
    process = QuaymasterProcess(
        disk.path / "data",
        settings={
            "segment_bytes_max": str(MIB),
            "disk_low_bytes": str(LOW_BYTES),
            "snapshot_interval_s": "1",
            "purge_interval_s": "0",
            "queue_name_reuse_s": "0",
        },
    )
    process.log_path = tmp_path / "server.log"
    return process


def readiness(process: QuaymasterProcess) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{process.admin_url}/health/ready", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def send_until_refused(client: Client, queue: str, *, batches_max: int = 400) -> tuple[int, Answer]:
    """Send batches of 200 KB until one is refused; return how many messages were taken, and the refusal."""
    entries = [{"Id": str(index), "MessageBody": "x" * 20_000} for index in range(10)]
    for sent in range(batches_max):
        answer = client.call("SendMessageBatch", queue, Entries=entries)
        if answer.status != 200:
            return sent * 10, answer
    raise AssertionError("the disk did not fill up")


def test_sends_are_refused_and_the_rest_goes_on_while_the_disk_is_low(
    disk: SmallDisk, process: QuaymasterProcess, connect: Connect
) -> None:
    with running(process):
        client = connect(process)
        client.create("q")
        disk.leave(LOW_BYTES + 20 * MIB)

        sent, refusal = send_until_refused(client, "q")

        assert sent > 0
        assert refusal.status == 503
        assert "disk" in refusal.message.lower()
        assert client.counts("q") == sent
        received = client.call("ReceiveMessage", "q", MaxNumberOfMessages=10).fields["Messages"]
        assert len(received) == 10
        for message in received:
            assert client.call("DeleteMessage", "q", ReceiptHandle=message["ReceiptHandle"]).status == 200
        assert client.counts("q") == sent - 10
        assert client.call("CreateQueue", QueueName="another").status == 200
        assert client.call("SetQueueAttributes", "q", Attributes={"VisibilityTimeout": "7"}).status == 200
        assert client.call("PurgeQueue", "another").status == 200
        assert client.call("DeleteQueue", "another").status == 200
        assert process.is_running

        disk.give_back()

        eventually(
            lambda: client.call("SendMessage", "q", MessageBody="again").status == 200, "taking sends again"
        )
        assert readiness(process)[0] == 200
        assert len(client.take_all("q")) == sent - 10 + 1
        process.stop()


def test_nothing_is_lost_when_the_disk_is_full_to_the_last_byte_under_load(
    disk: SmallDisk, process: QuaymasterProcess, connect: Connect
) -> None:
    with running(process):
        load = Load(process.env(), process.listen_port, workers=4, seed=3)
        load.create_queues()
        probe = connect(process)
        probe.create("probe")  # no queue of the load's: its history must be complete
        load.start()
        time.sleep(2)

        fill_ends = time.monotonic() + 5
        while time.monotonic() < fill_ends:
            disk.fill()
            time.sleep(0.2)
        assert process.is_running, process.log()
        refusal = probe.call("SendMessage", "probe", MessageBody="refused")
        assert refusal.status == 503
        assert "disk" in refusal.message.lower()
        assert probe.counts("probe") == 0
        assert load.figures.unavailable > 0

        disk.give_back()
        eventually(
            lambda: probe.call("SendMessage", "probe", MessageBody="m").status == 200, "taking sends again"
        )
        time.sleep(1)

        disk.fill()
        time.sleep(1.5)
        invoked_ns = time.monotonic_ns()
        process.kill9()
        load.add(ServerEnded(invoked_ns, time.monotonic_ns(), "kill -9 on a full disk"))
        disk.give_back()
        process.start()
        load.pause()
        load.note_counts()
        load.resume()
        load.work_until(250)
        load.stop()
        load.drain()
        process.stop()

    verdict = check(load.history)
    assert verdict.violations == [], verdict.report()
    assert verdict.acknowledged > 200


def test_a_server_starts_on_a_full_disk_so_that_messages_can_be_taken_off_it(
    disk: SmallDisk, process: QuaymasterProcess, connect: Connect
) -> None:
    with running(process):
        client = connect(process)
        client.create("q")
        client.create("other")
        client.send("q", [f"m{number}" for number in range(100)])
        process.kill9()
        disk.fill()

        process.start()

        client = connect(process)
        assert client.call("SendMessage", "q", MessageBody="no").status == 503
        purge = client.call("PurgeQueue", "other")  # whether its event has room, the start has decided
        assert purge.status == 200 or purge.message.startswith("Nothing was changed")
        assert len(client.take_all("q")) == 100
        disk.give_back()
        eventually(
            lambda: client.call("SendMessage", "q", MessageBody="yes").status == 200, "taking sends again"
        )
        process.stop()
