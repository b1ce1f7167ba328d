"""`mode=consume` in a real Spark session, against the real server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from .conftest import WAIT_S
from .test_consume import left, make, receive
from .test_server import Server


class SinkFails(Exception):
    """The sink failed once it had the batch."""


class Sink:
    """Keeps what each batch had, by its number; every time it was run."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.batches: dict[int, list[list[tuple[int, str]]]] = {}
        self.fails_at = fails_at

    def write(self, frame: DataFrame, number: int) -> None:
        rows = [(row["offset"], bytes(row["value"]).decode()) for row in frame.collect()]
        self.batches.setdefault(number, []).append(rows)
        if number == self.fails_at:
            self.fails_at = None
            raise SinkFails(number)

    @property
    def bodies(self) -> list[str]:
        return [body for number in sorted(self.batches) for _, body in self.batches[number][-1]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("consume-stream") / "data")
    yield made
    made.process.stop()


def run(spark: SparkSession, server: Server, queue: str, checkpoint: str, sink: Sink, **options: str) -> None:
    """Run the query until it has consumed what was there at its start."""
    source = spark.readStream.format("quaymaster").options(**server.options, queue=queue, mode="consume")
    query = (
        source.options(**options)
        .load()
        .writeStream.foreachBatch(sink.write)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)


def test_query_consumes_what_is_there_once_though_its_sink_fails(
    spark: SparkSession, server: Server, checkpoint: str
) -> None:
    queue = make(server, 50)
    sink = Sink(fails_at=1)

    with pytest.raises(StreamingQueryException, match="SinkFails"):
        run(spark, server, queue, checkpoint, sink, maxOffsetsPerTrigger="20")
    assert left(server, queue) == (10, 20), "the first batch is deleted, the one that failed is held"
    run(spark, server, queue, checkpoint, sink, maxOffsetsPerTrigger="20")

    assert sink.batches[1][0] == sink.batches[1][1]
    assert [len(sink.batches[number][-1]) for number in sorted(sink.batches)] == [20, 20, 10]
    assert sorted(sink.bodies) == sorted(f"body {number}" for number in range(50))
    assert left(server, queue) == (0, 0), "the last batch is settled before the query ends"
    assert receive(server, queue) == []


def test_columns_are_those_of_logs(
    spark: SparkSession, server: Server, checkpoint: str, tmp_path: Path
) -> None:
    queue = make(server)
    sent = server.sqs.send_message(
        QueueUrl=server.endpoint.queue_url(queue),
        MessageBody="ü",
        MessageAttributes={"n": {"DataType": "Number", "StringValue": "1"}},
    )
    target = str(tmp_path / "rows")

    query = (
        spark.readStream.format("quaymaster")
        .options(**server.options, queue=queue, mode="consume", includeHeaders="true")
        .load()
        .writeStream.format("parquet")
        .options(path=target, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)

    (row,) = spark.read.parquet(target).collect()
    assert (row["queue"], row["partition"], row["message_id"]) == (queue, 0, sent["MessageId"])
    assert (bytes(row["value"]).decode(), row["md5_body"]) == ("ü", sent["MD5OfMessageBody"])
    assert [(one["key"], bytes(one["value"])) for one in row["headers"]] == [("n", b"1")]


@pytest.mark.parametrize("dies", ["before", "after"])
def test_driver_that_is_killed_in_a_batch_repeats_it_identically(
    server: Server, checkpoint: str, tmp_path: Path, dies: str
) -> None:
    queue = make(server, 50)
    folder = tmp_path / "kept"
    folder.mkdir()
    source = {**server.options, "queue": queue, "mode": "consume", "maxOffsetsPerTrigger": "20"}
    settings = {"checkpoint": checkpoint, "source": source, "folder": str(folder), "dies": dies}
    program = [sys.executable, str(Path(__file__).with_name("consuming.py")), json.dumps(settings)]

    first = subprocess.run(program, timeout=WAIT_S, capture_output=True)
    held = left(server, queue)
    second = subprocess.run(program, timeout=WAIT_S, capture_output=True)

    assert first.returncode == -signal.SIGKILL, first.stderr[-2_000:]
    assert second.returncode == 0, second.stderr[-2_000:]
    assert held == (10, 20), "the batch that was killed is held"
    runs = {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}
    if dies == "after":
        assert runs["1-0"] == runs["1-1"]
    last = {name.partition("-")[0]: rows for name, rows in sorted(runs.items())}
    assert [len(last[number]) for number in ("0", "1", "2")] == [20, 20, 10]
    bodies = [body for rows in last.values() for _, body in rows]
    assert sorted(bodies) == sorted(f"body {number}" for number in range(50))
    assert left(server, queue) == (0, 0)
