"""Logs of real servers are split, merged and moved over the journals of workers: every group gets every message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.forked_programs import run_program
from harness.process import QuaymasterProcess

from pyspark_quaymaster.client import Client as LogClient
from pyspark_quaymaster.client import Log, Patience
from pyspark_quaymaster.credentials import Endpoint
from quaymaster.protocol.logs.log_arrow import to_record_batch
from quaymaster.protocol.logs.log_columns import parse_block

from .conftest import Connect
from .support import Client, bodies, running
from .test_log_queues import take_some
from .test_partitions import BY_GROUP, partitions, states, until_states

FIRST = 1 << 44
"""The first offset of the partitions that a first split makes."""


@pytest.fixture
def process(tmp_path: Path) -> QuaymasterProcess:
    # Snapshots often, so that log and groups are in them as of different moments.
    settings = {"workers": "2", "partition_closing_s": "0", "snapshot_records": "20"}
    return QuaymasterProcess(tmp_path / "data", settings=settings)


@contextmanager
def log_client(process: QuaymasterProcess) -> Iterator[LogClient]:
    env = process.env()
    endpoint = Endpoint(env.endpoint_url, env.region, env.access_key_id, env.secret_access_key)
    with closing(LogClient(endpoint, Patience())) as client:
        yield client


def read_whole(client: LogClient, log: Log) -> dict[int, list[str]]:
    """Return the bodies of all messages that are kept, by partition."""
    found: dict[int, list[str]] = {}
    for number, bounds in log.partitions.items():
        found[number] = []
        at = bounds.earliest
        while at < bounds.next:
            fetched = client.fetch(
                *(log.url, number, at, bounds.next), bytes_max=1 << 20, columns=["value"], form="columns"
            )
            values = to_record_batch(parse_block(fetched.body)).column(0).to_pylist()
            found[number] += [value.decode() for value in values]
            at = fetched.next_offset
    return found


def groups(process: QuaymasterProcess, *arguments: str) -> Any:
    """Return what a command of `quaymaster group` prints that must succeed."""
    done = run_program(["group", *arguments, "--json", "--data", str(process.data)])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def send_singly(client: Client, queue: str, sent: list[str]) -> None:
    """Send messages in requests of their own: those of one request go to one partition."""
    for body in sent:
        client.send(queue, [body])


def test_a_log_that_is_split_and_merged_is_whole_for_each_group_and_for_readers_by_offsets(
    process: QuaymasterProcess, connect: Connect
) -> None:
    before, split, merged = bodies(30, "before"), bodies(30, "split"), bodies(10, "merged")
    with running(process):
        client = connect(process)
        client.create("log", RetentionMode="Log")
        client.send("log", before)
        taken = take_some(client, "log@a", 10)

        rows = partitions(process, "split", "log", "--into", "2")
        assert states(rows)[1:] == ["open", "open"]
        assert len({row["journal"] for row in rows if row["state"] == "open"}) == 2
        send_singly(client, "log", split)
        until_states(process, "log", ["closed", "open", "open"])
        taken += take_some(client, "log@a", 10)
        process.kill9()
        process.start()
        client = connect(process)

        with log_client(process) as reader:
            log = reader.describe_log(reader.queue_url("log"))
            kept = read_whole(reader, log)
            assert kept[0] == before
            assert sorted(kept[1] + kept[2]) == split
            assert kept[1]
            assert kept[2]
            assert [log.partitions[number].earliest for number in (0, 1, 2)] == [1, FIRST, FIRST]
            assert reader.find_offsets(log.url, 0) == {0: 1, 1: FIRST, 2: FIRST}
            consumed = {0: 31, 1: FIRST + len(kept[1]), 2: FIRST}
            reader.commit_offsets(f"{log.url}@spark", consumed)
        assert client.take_all("log@spark") == sorted(kept[2])
        partitions(process, "merge", "log")
        client.send("log", merged)
        until_states(process, "log", ["closed"] * 3 + ["open"])

        assert sorted([*taken, *client.take_all("log@a")]) == sorted(before + split + merged)
        assert client.take_all("log@late") == client.take_all("log") == sorted(before + split + merged)
        (row,) = [row for row in groups(process, "list", "log")["groups"] if row["group"] == "a"]
        assert row["lag"] == 0
        assert [one["partition"] for one in row["partitions"]] == [0, 1, 2, 3]
        reset = groups(process, "reset", "log", "a", "--to", "earliest")
        assert reset["lag"] == 70
        assert client.take_all("log@a") == sorted(before + split + merged)

        assert client.call("PurgeQueue", "log").status == 200
        until_states(process, "log", ["drained"] * 3 + ["open"])
        with log_client(process) as reader:
            log = reader.describe_log(reader.queue_url("log"))
            assert read_whole(reader, log) == {0: [], 1: [], 2: [], 3: []}
            assert log.partitions[0].next == 31
        assert client.call("DeleteQueue", "log@late").status == 200
        assert client.call("DeleteQueue", "log").status == 200
        process.restart()  # no journal has anything of it, so all agree
        process.stop()


def test_a_log_that_is_made_with_equal_partitions_is_consumed_and_read_whole(
    process: QuaymasterProcess, connect: Connect
) -> None:
    sent = bodies(30)
    with running(process):
        client = connect(process)
        client.create("log", RetentionMode="Log", ReplicationMode="Peers")
        send_singly(client, "log", sent)

        assert client.take_all("log@a") == sent
        with log_client(process) as reader:
            kept = read_whole(reader, reader.describe_log(reader.queue_url("log")))
        assert sorted(kept) == [0, 1]
        assert all(kept.values())
        assert sorted(kept[0] + kept[1]) == sent
        process.stop()


def test_each_consumer_group_of_a_fifo_log_keeps_the_order_over_a_split(
    process: QuaymasterProcess, connect: Connect
) -> None:
    del process.settings["partition_closing_s"]  # ids are remembered
    with running(process):
        client = connect(process)
        client.create("steps.fifo", RetentionMode="Log", **BY_GROUP)

        def send(first: int, last: int) -> None:
            for number in range(first, last):
                for group in "abcd":
                    body = f"{group}{number}"
                    sent = client.call("SendMessage", "steps.fifo", MessageBody=body, MessageGroupId=group)
                    assert sent.status == 200, sent

        def received(consumer: str, count: int) -> dict[str, list[int]]:
            found: dict[str, list[int]] = {}
            for body in take_some(client, f"steps.fifo@{consumer}", count):
                found.setdefault(body[0], []).append(int(body[1:]))
            return found

        send(0, 3)
        first = received("x", 4)
        partitions(process, "split", "steps.fifo", "--into", "4")
        send(2, 6)  # the last of before once more: they are duplicates

        rest = received("x", 24 - sum(map(len, first.values())))
        assert {group: first.get(group, []) + rest.get(group, []) for group in "abcd"} == {
            group: list(range(6)) for group in "abcd"
        }
        assert received("y", 24) == {group: list(range(6)) for group in "abcd"}
        groups(process, "reset", "steps.fifo", "x", "--to", "earliest")
        assert received("x", 24) == {group: list(range(6)) for group in "abcd"}
        process.stop()
