"""Streams in a real Spark session while things break: every message once, and no group told too much."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from .conftest import WAIT_S
from .fake_server import FakeServer

PROC = Path("/proc")


def stream(spark: SparkSession, fake: FakeServer, **options: str) -> DataFrame:
    return (
        spark.readStream.format("quaymaster")
        .options(**fake.options, queue="orders", startingOffsets="earliest")
        .options(**options)
        .schema("partition int, offset long")
        .load()
    )


def python_workers() -> list[int]:
    """Return the Python processes that run tasks: the children of Spark's daemon, which is a child of our JVM."""
    parents: dict[int, int] = {os.getpid(): os.getppid()}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # it ended meanwhile
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    # The workers have the daemon's command line too, being forks of it; the daemon itself is a child of the JVM.
    return [
        pid for pid in ours if all(b"pyspark.daemon" in _command_line(one) for one in (pid, parents[pid]))
    ]


def _command_line(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.skipif(not PROC.exists(), reason="finds Spark's Python workers in /proc")
def test_nothing_is_lost_or_doubled_over_many_batches_while_python_workers_are_killed(
    spark: SparkSession, fake: FakeServer, checkpoint: str
) -> None:
    log = fake.make("orders", 1_500, 700)
    batches: dict[int, list[tuple[int, int]]] = {}
    chance = random.Random(7)
    ends = threading.Event()
    killed: list[int] = []  # after how many batches

    def take(frame: DataFrame, batch_id: int) -> None:
        # The batch as a whole is done, or it is done again: what it gives then must be the same.
        batches[batch_id] = [(row["partition"], row["offset"]) for row in frame.collect()]

    def kill() -> None:
        through = 0
        while not ends.wait(0.02):
            # After every third batch, at any moment of the next: the query gets on however slow the machine is.
            if len(batches) < through + 3:
                continue
            through = len(batches)
            time.sleep(chance.uniform(0, 0.5))
            workers = python_workers()
            if workers:
                os.kill(chance.choice(workers), signal.SIGKILL)
                killed.append(through)
            with fake._lock:
                log.partitions[chance.randrange(2)] += [b"more"] * 3

    frame = stream(spark, fake, maxOffsetsPerTrigger="40", minPartitions="2", maxTasks="2")
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        runs = 0
        while sum(map(len, batches.values())) < 2_200:
            runs += 1
            query = (
                frame.writeStream.foreachBatch(take)
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            try:
                assert query.awaitTermination(WAIT_S)
            except StreamingQueryException:
                # What was killed was the driver's reader, not a task: the query starts again from its checkpoint.
                assert runs < 100
    finally:
        ends.set()
        killer.join()

    assert len(killed) >= 10
    assert len(batches) >= 50
    for partition in range(2):
        offsets = [
            offset for _, rows in sorted(batches.items()) for number, offset in rows if number == partition
        ]
        assert offsets == list(range(len(offsets)))


def test_a_failed_batch_is_read_again_with_the_same_rows(
    spark: SparkSession, fake: FakeServer, checkpoint: str
) -> None:
    log = fake.make("orders", 50)
    given: list[tuple[int, list[int]]] = []

    def take(frame: DataFrame, batch_id: int) -> None:
        given.append((batch_id, [row["offset"] for row in frame.collect()]))
        if len(given) == 2:
            raise RuntimeError("the sink failed after it had written")

    def run() -> None:
        query = (
            stream(spark, fake, maxOffsetsPerTrigger="20", consumerGroup="billing")
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)

    with pytest.raises(StreamingQueryException, match="the sink failed"):
        run()
    # Batch 1 failed: only batch 0 is told.
    assert fake.committed == {"orders@billing": {0: 20}}
    log.partitions[0] += [b"later"] * 5
    run()

    assert [batch for batch, _ in given] == [0, 1, 1, 2]
    assert given[1] == given[2]
    assert [offset for _, offsets in [given[0], *given[2:]] for offset in offsets] == list(range(55))


def test_a_group_is_told_the_last_batch_though_nothing_more_comes_and_never_too_much(
    spark: SparkSession, fake: FakeServer, checkpoint: str
) -> None:
    log = fake.make("orders", 60)
    too_much: list[Any] = []

    def through() -> int:
        """Return up to where batches are committed, by the checkpoint."""
        commits = [int(path.name) for path in (Path(checkpoint) / "commits").glob("[0-9]*")]
        if not commits:
            return 0
        text = (Path(checkpoint) / "offsets" / str(max(commits))).read_text()
        return int(json.loads(text.splitlines()[-1])[f"{log.queue_id}/0"])

    def before(action: str, fields: dict[str, Any]) -> None:
        if action == "CommitOffsets" and fields["Offsets"][0]["Offset"] > through():
            too_much.append(fields)

    fake.before = before
    query = (
        stream(spark, fake, maxOffsetsPerTrigger="20", consumerGroup="billing")
        .writeStream.format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        deadline = time.monotonic() + WAIT_S
        while fake.committed.get("orders@billing") != {0: 60}:
            assert time.monotonic() < deadline, fake.committed
            assert query.exception() is None
            time.sleep(0.1)
    finally:
        query.stop()

    assert too_much == []


def test_a_queue_made_anew_ends_the_query(spark: SparkSession, fake: FakeServer, checkpoint: str) -> None:
    fake.make("orders", 5)

    def run() -> None:
        query = (
            stream(spark, fake)
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)

    run()
    fake.make("orders", 50)

    with pytest.raises(StreamingQueryException, match="made anew under its name"):
        run()
