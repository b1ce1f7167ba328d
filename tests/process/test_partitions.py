"""Queues of a real server are split, merged and moved: nothing is lost, doubled or out of order."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from harness.checker import check
from harness.forked_programs import run_program
from harness.history import ServerEnded
from harness.load import Load
from harness.process import QuaymasterProcess
from harness.waiting import PATIENCE_S, eventually

from quaymaster.cli.shared.client import AdminClient
from quaymaster.cli.shared.connection import find_connection

from .conftest import Connect
from .support import Client, bodies, running

BY_GROUP = {
    "FifoQueue": "true",
    "ContentBasedDeduplication": "true",
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}


def command(process: QuaymasterProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `quaymaster queue` on a server's data directory."""
    return run_program(["queue", *arguments, "--data", str(process.data)])


def partitions(process: QuaymasterProcess, *arguments: str) -> list[dict[str, Any]]:
    """Return what a command prints that must succeed: the partitions of a queue."""
    done = command(process, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def states(rows: list[dict[str, Any]]) -> list[str]:
    return [row["state"] for row in rows]


def until_states(process: QuaymasterProcess, queue: str, expected: list[str]) -> None:
    """Wait until the partitions of a queue are in these states."""
    with AdminClient(find_connection(process.data, None)) as admin:
        eventually(
            lambda: states(admin.call("ListPartitions", name=queue)["partitions"]) == expected,
            f"{queue}: {expected}",
        )


def totals(process: QuaymasterProcess, client: Client, queue: str) -> tuple[int, int]:
    """Return how many messages of a queue were ever sent and deleted, as the admin API has it."""
    with AdminClient(find_connection(process.data, None)) as admin:
        (row,) = admin.queues(client.environment.account_id, queue)
    return row["sends"], row["deletions"]


@pytest.fixture
def process(tmp_path: Path) -> QuaymasterProcess:
    return QuaymasterProcess(tmp_path / "data")


def test_a_queue_is_split_merged_and_moved_and_its_old_partitions_are_drained(
    process: QuaymasterProcess, connect: Connect
) -> None:
    process.settings["partition_closing_s"] = "0"
    with running(process):
        client = connect(process)
        client.create("orders")
        client.send("orders", bodies(40, "before"))

        begun = partitions(process, "split", "orders", "--into", "2")
        assert states(begun)[1:] == ["open", "open"]
        client.send("orders", bodies(40, "split"))
        until_states(process, "orders", ["closed", "open", "open"])
        assert client.counts("orders") == 80
        assert client.take_all("orders") == sorted(bodies(40, "before") + bodies(40, "split"))
        until_states(process, "orders", ["drained", "open", "open"])

        for body in bodies(30, "merged"):  # a request goes to one partition: each of the two gets some
            client.send("orders", [body])
        partitions(process, "merge", "orders")
        until_states(process, "orders", ["drained", "closed", "closed", "open"])
        process.kill9()
        process.start()
        client = connect(process)
        client.send("orders", bodies(10, "again"))
        assert client.take_all("orders") == sorted(bodies(30, "merged") + bodies(10, "again"))

        moved = partitions(process, "move", "orders", "--wait-seconds", "30")
        assert states(moved)[-1] == "open"
        until_states(process, "orders", ["drained"] * 4 + ["open"])
        client.send("orders", bodies(5, "moved"))
        assert client.take_all("orders") == bodies(5, "moved")
        assert totals(process, client, "orders") == (125, 125)

        assert client.call("DeleteQueue", "orders").status == 200
        assert command(process, "partitions", "orders").returncode != 0
        process.stop()


def test_a_fifo_queue_that_is_split_keeps_the_order_of_each_group(
    process: QuaymasterProcess, connect: Connect
) -> None:
    with running(process):
        client = connect(process)
        client.create("steps.fifo", **BY_GROUP)
        client.create("whole.fifo", FifoQueue="true", ContentBasedDeduplication="true")

        def send(first: int, last: int) -> None:
            for number in range(first, last):
                for group in "abcdefgh":
                    sent = client.call(
                        "SendMessage",
                        "steps.fifo",
                        MessageBody=f"{group}{number}",
                        MessageGroupId=group,
                    )
                    assert sent.status == 200, sent

        send(0, 3)
        partitions(process, "split", "steps.fifo", "--into", "4")
        send(2, 6)  # the last of before once more: they are duplicates

        refused = command(process, "split", "whole.fifo", "--into", "2")
        assert refused.returncode == 1
        assert "DeduplicationScope=messageGroup" in refused.stderr

        received: dict[str, list[int]] = {}
        deadline = time.monotonic() + PATIENCE_S
        while sum(map(len, received.values())) < 48 and time.monotonic() < deadline:
            answer = client.call("ReceiveMessage", "steps.fifo", MaxNumberOfMessages=10, WaitTimeSeconds=1)
            assert answer.status == 200, answer
            for message in answer.fields.get("Messages") or []:
                received.setdefault(message["Body"][0], []).append(int(message["Body"][1:]))
                deleted = client.call("DeleteMessage", "steps.fifo", ReceiptHandle=message["ReceiptHandle"])
                assert deleted.status == 200, deleted
        assert received == {group: list(range(6)) for group in "abcdefgh"}
        assert client.counts("steps.fifo") == 0
        process.stop()


def test_queues_that_are_split_and_moved_under_load_lose_nothing_while_the_server_is_killed(
    process: QuaymasterProcess,
) -> None:
    with running(process):
        load = Load(process.env(), process.listen_port, workers=4, seed=16)
        load.create_queues()
        load.start()
        load.work_until(100)
        for queue, parts in (("plain-1", 3), ("deep", 2), ("grouped.fifo", 4), ("work", 2), ("dead", 2)):
            rows = partitions(process, "split", queue, "--into", str(parts))
            assert states(rows) == ["closing"] + ["open"] * parts
        partitions(process, "move", "row.fifo")
        load.work_until(200)
        invoked_ns = time.monotonic_ns()
        process.kill9()
        load.add(ServerEnded(invoked_ns, time.monotonic_ns(), "SIGKILL"))
        process.start()
        load.work_until(350)
        load.stop()
        left = load.drain()
        process.stop()

    verdict = check(load.history)
    assert verdict.violations == [], verdict.report()
    assert verdict.acknowledged > 300
    assert not any(any(found) for found in left.values()), left


def test_workers_share_a_queue_that_is_split_over_their_journals(
    process: QuaymasterProcess, connect: Connect
) -> None:
    process.settings |= {"workers": "2", "partition_closing_s": "0"}
    with running(process):
        client = connect(process)
        client.create("orders")
        client.send("orders", bodies(20, "before"))

        rows = partitions(process, "split", "orders", "--into", "2")
        assert len({row["journal"] for row in rows if row["state"] == "open"}) == 2
        client.send("orders", bodies(40, "split"))
        process.restart()
        client = connect(process)
        assert client.counts("orders") == 60
        assert client.take_all("orders") == sorted(bodies(20, "before") + bodies(40, "split"))
        until_states(process, "orders", ["drained", "open", "open"])
        assert totals(process, client, "orders") == (60, 60)

        assert client.call("DeleteQueue", "orders").status == 200
        process.restart()  # no journal has anything of it, so all agree
        process.stop()
