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

from .cluster import PROC, python_workers
from .conftest import WAIT_S
from .fake_server import FakeServer

BATCHES = int(os.environ.get("SPARK_FAULT_BATCHES", "20"))
BATCH_ROWS = 40


def stream(spark: SparkSession, fake: FakeServer, **options: str) -> DataFrame:
    return (
        spark.readStream.format("quaymaster")
        .options(**fake.options, queue="orders", startingOffsets="earliest")
        .options(**options)
        .schema("partition int, offset long")
        .load()
    )


@pytest.mark.skipif(not PROC.exists(), reason="finds Spark's Python workers in /proc")
def test_nothing_is_lost_or_doubled_over_many_batches_while_python_workers_are_killed(
    spark: SparkSession, fake: FakeServer, checkpoint: str
) -> None:
    rows = BATCHES * BATCH_ROWS
    log = fake.make("orders", rows - rows // 3, rows // 3)
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
            workers = python_workers(os.getpid())
            if workers:
                os.kill(chance.choice(workers), signal.SIGKILL)
                killed.append(through)
            with fake._lock:
                log.partitions[chance.randrange(2)] += [b"more"] * 3

    frame = stream(spark, fake, maxOffsetsPerTrigger=str(BATCH_ROWS), minPartitions="2", maxTasks="2")
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        runs = 0
        while sum(map(len, batches.values())) < rows:
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
                assert runs < 2 * BATCHES
    finally:
        ends.set()
        killer.join()

    assert len(killed) >= BATCHES // 6
    assert len(batches) >= BATCHES
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


class Taking:
    """A stream of `orders` whose offsets are kept, over several runs from one checkpoint."""

    def __init__(self, spark: SparkSession, fake: FakeServer, checkpoint: str, **options: str) -> None:
        self.offsets: list[int] = []
        self.batches: list[int] = []
        self._frame = stream(spark, fake, **options)
        self._checkpoint = checkpoint

    def run(self, **trigger: bool) -> None:
        """Read what there is; raises StreamingQueryException."""
        query = (
            self._frame.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", self._checkpoint)
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )
        assert query.awaitTermination(WAIT_S)

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        offsets = sorted(row["offset"] for row in frame.collect())
        self.offsets += offsets
        self.batches.append(len(offsets))


def test_a_queue_made_anew_ends_the_query_or_is_read_from_its_beginning(
    spark: SparkSession, fake: FakeServer, checkpoint: str
) -> None:
    fake.make("orders", 5)
    strict = Taking(spark, fake, checkpoint)
    strict.run()
    fake.make("orders", 7)

    with pytest.raises(StreamingQueryException, match="made anew under its name"):
        strict.run()
    tolerant = Taking(spark, fake, checkpoint, failOnDataLoss="false")
    tolerant.run()

    assert strict.offsets == list(range(5))
    # The new queue enters at its beginning, and is read from there on by the next trigger.
    tolerant.run()
    assert tolerant.offsets == list(range(7))


def test_messages_that_retention_took_before_they_were_read_end_the_query_or_are_left_out(
    spark: SparkSession, fake: FakeServer, checkpoint: str
) -> None:
    log = fake.make("orders", 10)
    strict = Taking(spark, fake, checkpoint)
    strict.run()
    log.partitions[0] += [b"more"] * 20
    log.earliest[0] = 15

    with pytest.raises(StreamingQueryException, match="was read up to 10, and holds 15 to 30"):
        strict.run()
    tolerant = Taking(spark, fake, checkpoint, failOnDataLoss="false")
    tolerant.run()

    assert strict.offsets == list(range(10))
    assert tolerant.offsets == list(range(15, 30))


def test_a_run_of_what_is_there_ends_though_messages_keep_coming_and_one_batch_takes_all_when_asked(
    spark: SparkSession, fake: FakeServer, checkpoint: str
) -> None:
    log = fake.make("orders", 50)

    def before(action: str, fields: dict[str, Any]) -> None:
        log.partitions[0] += [b"more"] * 3

    fake.before = before
    taking = Taking(spark, fake, checkpoint, maxOffsetsPerTrigger="20")
    taking.run()
    assert len(taking.batches) >= 3
    assert max(taking.batches) <= 20
    there = len(taking.offsets)

    fake.before = lambda action, fields: None
    left = len(log.partitions[0]) - there
    taking.run(once=True)

    assert taking.batches[-1] == left > 20
    assert taking.offsets == list(range(len(log.partitions[0])))


def test_two_queries_of_one_group_that_run_in_turns_both_read_all_and_it_shows_the_one_ahead(
    spark: SparkSession, fake: FakeServer, tmp_path: Path
) -> None:
    log = fake.make("orders", 30)
    ahead = Taking(spark, fake, str(tmp_path / "ahead"), consumerGroup="billing")
    behind = Taking(spark, fake, str(tmp_path / "behind"), consumerGroup="billing", maxOffsetsPerTrigger="10")
    ahead.run()
    assert fake.committed["orders@billing"] == {0: 30}
    log.partitions[0] += [b"more"] * 10
    ahead.run()
    behind.run()

    assert fake.committed["orders@billing"] == {0: 40}
    assert ahead.offsets == behind.offsets == list(range(40))


def test_of_two_queries_of_one_group_at_the_same_time_the_first_ends_and_says_why(
    spark: SparkSession, fake: FakeServer, tmp_path: Path
) -> None:
    log = fake.make("orders", 30)
    frame = stream(spark, fake, consumerGroup="billing")
    first = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "first")).start()
    try:
        deadline = time.monotonic() + WAIT_S
        while fake.committed.get("orders@billing") != {0: 30}:
            assert time.monotonic() < deadline, fake.committed
            time.sleep(0.05)
        second = Taking(spark, fake, str(tmp_path / "second"), consumerGroup="billing")
        second.run()
        log.partitions[0] += [b"more"] * 10

        with pytest.raises(
            StreamingQueryException, match="another query reads orders with consumerGroup billing"
        ):
            first.awaitTermination(WAIT_S)
    finally:
        first.stop()
    second.run()

    assert second.offsets == list(range(40))
