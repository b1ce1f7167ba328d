"""Streams from a log to a queue in a real Spark session, broken at each point: every message arrives once, in order."""

from __future__ import annotations

import copy
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from .conftest import WAIT_S
from .fake_server import FakeServer, Refusal

ROWS, BATCH_ROWS = 60, 20
IN_ORDER = [f"0/{n}" for n in range(ROWS)]


@dataclass
class Copying:
    """A stream that copies the log `orders` to the queue `bills`, over as many runs as it takes."""

    spark: SparkSession
    fake: FakeServer
    checkpoint: Path
    sink_options: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Copy what there is; raises StreamingQueryException."""
        query = (
            self.spark.readStream.format("quaymaster")
            .options(**self.fake.options, queue="orders", startingOffsets="earliest")
            .options(maxOffsetsPerTrigger=str(BATCH_ROWS), minPartitions="2", maxTasks="2")
            .schema("value binary")
            .load()
            .writeStream.format("quaymaster")
            .options(**self.fake.options, queue="bills")
            .options(**self.sink_options)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)

    @property
    def bodies(self) -> list[str]:
        return [message["MessageBody"] for message in self.fake.sent.get("bills", [])]


@pytest.fixture
def copying(spark: SparkSession, fake: FakeServer, tmp_path: Path) -> Copying:
    fake.make("orders", ROWS)
    fake.ordinary.add("bills")
    return Copying(spark, fake, tmp_path / "checkpoint")


@dataclass
class Moment:
    """What a machine that died at some moment leaves: the query's checkpoint, and what the server has."""

    checkpoint: Path
    sent: dict[str, list[dict[str, Any]]]
    staged: Any
    last_batches: dict[tuple[str, str], int]

    @classmethod
    def of(cls, copying: Copying, kept: Path) -> Moment:
        shutil.copytree(copying.checkpoint, kept)
        fake = copying.fake
        return cls(kept, *copy.deepcopy((fake.sent, fake.staged, fake.last_batches)))

    def restore(self, fake: FakeServer) -> None:
        fake.sent, fake.staged, fake.last_batches = copy.deepcopy((self.sent, self.staged, self.last_batches))


def test_a_query_whose_machine_dies_at_any_point_of_a_batch_goes_on_exactly(
    copying: Copying, tmp_path: Path
) -> None:
    fake = copying.fake
    moments: dict[str, Moment] = {}

    def keep(name: str) -> None:
        if name not in moments:
            moments[name] = Moment.of(copying, tmp_path / name.replace(" ", "-"))

    def before(action: str, fields: dict[str, Any]) -> None:
        if fields.get("BatchId") == 1:
            keep(
                "offsets are written" if action == "StageMessages" else f"all is staged, before the {action}"
            )
        is_through = (copying.checkpoint / "commits" / "1").exists()
        if is_through and not (copying.checkpoint / "offsets" / "2").exists():
            keep("the batch is through")

    def after(action: str, fields: dict[str, Any]) -> None:
        if fields.get("BatchId") == 1:
            keep("a task has staged" if action == "StageMessages" else "the sink has committed")

    fake.before, fake.after = before, after
    copying.run()
    assert copying.bodies == IN_ORDER
    fake.before = fake.after = lambda action, fields: None
    # With AvailableNow there is a question to the server between two batches.
    assert len(moments) == 5, list(moments)

    for name, moment in moments.items():
        moment.restore(fake)
        assert (
            copying.bodies
            == IN_ORDER[: 2 * BATCH_ROWS if "has committed" in name or "through" in name else 20]
        )
        Copying(copying.spark, fake, moment.checkpoint).run()
        assert copying.bodies == IN_ORDER, name


def test_a_commit_that_raises_after_its_effect_is_aborted_and_repeated_in_vain(copying: Copying) -> None:
    fake = copying.fake
    copying.sink_options = {"deadline": "1s"}

    def after(action: str, fields: dict[str, Any]) -> None:
        if action == "CommitTransaction" and fields["BatchId"] == 1:
            raise ConnectionError

    fake.after = after
    with pytest.raises(StreamingQueryException, match="CommitTransaction"):
        copying.run()
    assert ("AbortTransaction", 1) in [(action, fields.get("BatchId")) for action, fields in fake.calls]
    fake.after = lambda action, fields: None
    copying.run()

    assert copying.bodies == IN_ORDER


def test_a_driver_that_was_replaced_adds_nothing_and_takes_nothing_away(
    copying: Copying, tmp_path: Path
) -> None:
    fake = copying.fake
    zombies = tmp_path / "zombie"

    def before(action: str, fields: dict[str, Any]) -> None:
        if action == "CommitTransaction" and fields["BatchId"] == 1 and not zombies.exists():
            shutil.copytree(copying.checkpoint, zombies)

    fake.before = before
    copying.run()
    fake.logs["orders"].partitions[0] += [f"0/{n}".encode() for n in range(ROWS, ROWS + 7)]
    Copying(copying.spark, fake, zombies).run()
    copying.run()

    assert copying.bodies == [f"0/{n}" for n in range(ROWS + 7)]


def test_a_task_that_fails_after_it_has_staged_is_repeated(copying: Copying) -> None:
    fake = copying.fake
    failed: list[str] = []

    def after(action: str, fields: dict[str, Any]) -> None:
        if action == "StageMessages" and fields["Stage"].partition("/")[0] not in failed:
            failed.append(fields["Stage"].partition("/")[0])
            raise Refusal(400, "InternalFault")

    fake.after = after
    copying.run()

    assert sorted(failed) == ["0", "1"]
    assert copying.bodies == IN_ORDER


def test_rows_that_expired_before_their_commit_are_sent_by_the_next_run(copying: Copying) -> None:
    fake = copying.fake

    def before(action: str, fields: dict[str, Any]) -> None:
        if action == "CommitTransaction" and fields["BatchId"] == 1:
            fake.expire()

    fake.before = before
    with pytest.raises(StreamingQueryException, match="rows of batch 1 are not there any more"):
        copying.run()
    assert copying.bodies == IN_ORDER[:BATCH_ROWS]
    fake.before = lambda action, fields: None
    copying.run()

    assert copying.bodies == IN_ORDER


def test_batch_writes_with_a_txn_id_are_repeated_without_effect(
    spark: SparkSession, fake: FakeServer, checkpoint: str
) -> None:
    fake.make("orders", ROWS)
    fake.ordinary |= {"bills", "copies"}
    failures: list[int] = []

    def send(frame: DataFrame, name: str, queue: str) -> None:
        writer = frame.write.format("quaymaster").options(**fake.options, queue=queue, txnId=name)
        writer.mode("append").save()

    def take(frame: DataFrame, batch_id: int) -> None:
        send(frame.select("value"), f"copying-{batch_id}", "copies")
        if batch_id == 1 and not failures:
            failures.append(batch_id)
            raise RuntimeError("after the write")

    rows = spark.range(100).selectExpr("cast(id as string) as value").coalesce(1)
    send(rows, "load", "bills")
    send(rows, "load", "bills")

    def run() -> None:
        query = (
            spark.readStream.format("quaymaster")
            .options(**fake.options, queue="orders", startingOffsets="earliest")
            .options(maxOffsetsPerTrigger=str(BATCH_ROWS))
            .schema("value binary")
            .load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)

    with pytest.raises(StreamingQueryException, match="after the write"):
        run()
    run()

    assert [message["MessageBody"] for message in fake.sent["bills"]] == list(map(str, range(100)))
    assert [message["MessageBody"] for message in fake.sent["copies"]] == IN_ORDER
