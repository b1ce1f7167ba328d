"""The connector in a real Spark session, against the real server."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.process import QuaymasterProcess
from harness.sqs import Endpoint
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pyspark_quaymaster.credentials import Endpoint as ConnectorEndpoint

from .conftest import WAIT_S

SETTINGS = {"authentication": "signed", "purge_interval_s": "0", "queue_name_reuse_s": "0"}
# As large as a message may be.
MEBIBYTE = 1 << 20


class Server:
    """A server, a client of it, and what Spark needs to reach it."""

    def __init__(self, data: Path) -> None:
        self.process = QuaymasterProcess(data, settings=SETTINGS)
        self.process.start()
        env = self.process.env()
        self.endpoint = Endpoint(
            self.process.endpoint_url, env.region, env.account_id, env.access_key_id, env.secret_access_key
        )
        self.sqs: Any = self.endpoint.client()

    def kill(self) -> None:
        """Kill what may die, and start it again."""
        self.process.kill9()
        self.process.start()

    @property
    def options(self) -> dict[str, str]:
        return {
            "endpointUrl": self.endpoint.url,
            "region": self.endpoint.region,
            "accessKeyId": self.endpoint.access_key_id,
            "secretAccessKey": self.endpoint.secret_access_key,
        }

    @property
    def endpoint_of_connector(self) -> ConnectorEndpoint:
        """Where the server is, as the connector's own client takes it."""
        known = self.endpoint
        return ConnectorEndpoint(known.url, known.region, known.access_key_id, known.secret_access_key)

    def make_log(self, *, fifo: bool = False, **attributes: str) -> str:
        """Create a log-retained queue and return its name."""
        name = f"log-{uuid.uuid4().hex[:12]}{'.fifo' if fifo else ''}"
        self.create(name, **({"FifoQueue": "true"} if fifo else {}), RetentionMode="Log", **attributes)
        return name

    def create(self, name: str, **attributes: str) -> None:
        self.sqs.create_queue(QueueName=name, Attributes=attributes)

    def send(self, name: str, *bodies: str) -> None:
        for first in range(0, len(bodies), 10):
            entries = [
                {"Id": str(number), "MessageBody": body}
                for number, body in enumerate(bodies[first : first + 10])
            ]
            answer = self.sqs.send_message_batch(QueueUrl=self.endpoint.queue_url(name), Entries=entries)
            assert "Failed" not in answer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of this file."""
    made = Server(tmp_path_factory.mktemp("spark-server") / "data")
    yield made
    made.process.stop()


def read(spark: SparkSession, server: Server, queue: str, **options: str) -> DataFrame:
    return spark.read.format("quaymaster").options(**server.options, queue=queue).options(**options).load()


def follow(spark: SparkSession, server: Server, queue: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("quaymaster").options(**server.options, queue=queue)
    return reader.options(**{"startingOffsets": "earliest", **options}).load()


def run(frame: DataFrame, checkpoint: str, kind: str = "noop", **options: str) -> None:
    """Run a stream until all is read that is there."""
    query = (
        frame.writeStream.format(kind)
        .options(**options)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)


@pytest.mark.parametrize("form", ["columns", "arrow"])
def test_messages_arrive_whole_with_all_that_sqs_keeps_of_them(
    spark: SparkSession, server: Server, form: str
) -> None:
    queue = server.make_log(fifo=True)
    url = server.endpoint.queue_url(queue)
    attributes = {
        "text": {"DataType": "String", "StringValue": "é\n"},
        "count": {"DataType": "Number.int", "StringValue": "12"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    small = server.sqs.send_message(
        QueueUrl=url,
        MessageBody="ünïcode",
        MessageGroupId="g",
        MessageDeduplicationId="d1",
        MessageAttributes=attributes,
    )
    server.sqs.send_message(
        QueueUrl=url, MessageBody="x" * MEBIBYTE, MessageGroupId="h", MessageDeduplicationId="d2"
    )

    first, second = read(spark, server, queue, fetchFormat=form).orderBy("offset").collect()

    assert (first["queue"], first["key"], first["dedup_id"]) == (queue, "g", "d1")
    assert bytes(first["value"]).decode() == "ünïcode"
    assert (first["message_id"], first["md5_body"]) == (small["MessageId"], small["MD5OfMessageBody"])
    assert {name: tuple(value) for name, value in first["attributes"].items()} == {
        "text": ("String", "é\n", None),
        "count": ("Number.int", "12", None),
        "bytes": ("Binary", None, b"\x00\xff"),
    }
    assert (len(second["value"]), second["offset"]) == (MEBIBYTE, first["offset"] + 1)


def test_an_empty_log_and_one_read_from_a_time_on(spark: SparkSession, server: Server) -> None:
    queue = server.make_log()
    assert read(spark, server, queue).count() == 0

    server.send(queue, "before")
    time.sleep(0.05)
    split_ms = time.time_ns() // 1_000_000
    time.sleep(0.05)
    server.send(queue, "after")

    rows = read(spark, server, queue, startingTimestamp=str(split_ms)).collect()
    assert [bytes(row["value"]) for row in rows] == [b"after"]
    rows = read(spark, server, queue, endingTimestamp=str(split_ms)).collect()
    assert [bytes(row["value"]) for row in rows] == [b"before"]


def test_every_acknowledged_message_comes_once_though_the_server_is_killed(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    server = Server(tmp_path / "data")
    try:
        queue = server.make_log()
        server.send(queue, *(f"first-{n}" for n in range(500)))
        taken: dict[int, list[tuple[int, str]]] = {}
        sent = [f"first-{n}" for n in range(500)]
        ends = threading.Event()

        def take(frame: DataFrame, batch_id: int) -> None:
            taken[batch_id] = [
                (row["offset"], bytes(row["value"]).decode()) for row in frame.orderBy("offset").collect()
            ]

        def break_things() -> None:
            for number in range(4):
                if ends.wait(1.0):
                    break
                server.process.kill9()
                server.process.start()
                bodies = [f"run{number}-{n}" for n in range(50)]
                server.send(queue, *bodies)
                sent.extend(bodies)

        query = (
            follow(spark, server, queue, maxOffsetsPerTrigger="60", consumerGroup="spark")
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="50 milliseconds")
            .start()
        )
        breaker = threading.Thread(target=break_things)
        breaker.start()
        try:
            breaker.join(WAIT_S)
            deadline = time.monotonic() + WAIT_S
            while sum(map(len, taken.values())) < len(sent):
                assert query.exception() is None
                assert time.monotonic() < deadline, f"{sum(map(len, taken.values()))} of {len(sent)}"
                time.sleep(0.2)
        finally:
            ends.set()
            breaker.join(WAIT_S)
            query.stop()

        rows = [row for batch in sorted(taken) for row in taken[batch]]
        offsets = [offset for offset, _ in rows]
        assert offsets == list(range(offsets[0], offsets[0] + len(rows)))
        assert sorted(body for _, body in rows) == sorted(sent)
    finally:
        server.process.stop()


def test_the_group_shows_nothing_left_once_the_stream_is_through(
    spark: SparkSession, server: Server, checkpoint: str
) -> None:
    queue = server.make_log()
    server.send(queue, *map(str, range(30)))
    url = f"{server.endpoint.queue_url(queue)}@spark"

    query = (
        follow(spark, server, queue, consumerGroup="spark")
        .writeStream.format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="50 milliseconds")
        .start()
    )
    try:
        deadline = time.monotonic() + WAIT_S
        while True:
            assert query.exception() is None
            assert time.monotonic() < deadline
            if query.lastProgress is not None:
                found = server.sqs.get_queue_attributes(
                    QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"]
                )
                if found["Attributes"]["ApproximateNumberOfMessages"] == "0":
                    break
            time.sleep(0.1)
    finally:
        query.stop()

    # A consumer of that group gets what comes later only; the log still has it all.
    server.send(queue, "later")
    received = server.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in received] == ["later"]
    assert read(spark, server, queue).count() == 31


def test_a_queue_made_anew_under_its_name_ends_the_query(
    spark: SparkSession, server: Server, checkpoint: str
) -> None:
    queue = server.make_log()
    server.send(queue, *map(str, range(30)))
    run(follow(spark, server, queue), checkpoint)

    server.sqs.delete_queue(QueueUrl=server.endpoint.queue_url(queue))
    server.create(queue, RetentionMode="Log")
    server.send(queue, *map(str, range(60)))

    with pytest.raises(StreamingQueryException, match="made anew under its name"):
        run(follow(spark, server, queue), checkpoint)


def test_an_ordinary_queue_is_no_source(spark: SparkSession, server: Server) -> None:
    server.create("ordinary")

    with pytest.raises(Exception, match="RetentionMode"):
        read(spark, server, "ordinary").count()


def test_messages_go_from_a_log_to_a_fifo_log_in_order_and_a_repetition_adds_nothing(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    source, target = server.make_log(), server.make_log(fifo=True)
    server.send(source, *map(str, range(300)))
    rows = follow(spark, server, source, maxOffsetsPerTrigger="100", maxTasks="1").select(
        "value",
        F.expr("concat('g', offset % 3)").alias("key"),
        F.expr("cast(offset as string)").alias("dedup_id"),
    )

    for number in range(2):
        checkpoint = str(tmp_path / f"checkpoint-{number}")
        run(rows, checkpoint, "quaymaster", **server.options, queue=target, exactlyOnce="false")

    found = read(spark, server, target).orderBy("offset").collect()
    assert sorted(int(row["value"]) for row in found) == list(range(300))
    for group in ("g0", "g1", "g2"):
        bodies = [int(row["value"]) for row in found if row["key"] == group]
        assert bodies == sorted(bodies)


def test_messages_are_copied_whole_and_once_from_log_to_log_by_transactions(
    spark: SparkSession, server: Server, checkpoint: str
) -> None:
    source, target = server.make_log(fifo=True), server.make_log(fifo=True)
    attributes = {
        "text": {"DataType": "String", "StringValue": "é"},
        "bytes": {"DataType": "Binary.gif", "BinaryValue": b"\x00\xff"},
    }
    for number, body in enumerate(["ünïcode", "x" * MEBIBYTE, "y" * MEBIBYTE, "z"]):
        server.sqs.send_message(
            QueueUrl=server.endpoint.queue_url(source),
            MessageBody=body,
            MessageGroupId=f"g{number % 2}",
            MessageDeduplicationId=str(number),
            **({"MessageAttributes": attributes} if number in (0, 3) else {}),
        )
    rows = follow(spark, server, source, maxOffsetsPerTrigger="3", maxTasks="1").select(
        "value", "key", "attributes"
    )

    for _ in range(2):
        run(rows, checkpoint, "quaymaster", **server.options, queue=target)

    columns = ("value", "key", "attributes")
    given, found = (read(spark, server, queue).orderBy("offset").collect() for queue in (source, target))
    assert [[row[name] for name in columns] for row in found] == [
        [row[name] for name in columns] for row in given
    ]
    assert len({row["dedup_id"] for row in found}) == 4


def test_a_batch_is_sent_to_an_ordinary_queue_once_though_it_is_written_twice(
    spark: SparkSession, server: Server
) -> None:
    server.create("sent")
    rows = spark.range(25).select(
        F.col("id").cast("string").alias("value"), F.expr("map('n', 'x')").alias("attributes")
    )

    for _ in range(2):
        writer = rows.write.format("quaymaster").options(**server.options, queue="sent", txnId="once")
        writer.mode("append").save()

    bodies: list[int] = []
    while len(bodies) < 25:
        answer = server.sqs.receive_message(
            QueueUrl=server.endpoint.queue_url("sent"),
            MaxNumberOfMessages=10,
            WaitTimeSeconds=5,
            MessageAttributeNames=["All"],
        )
        for message in answer["Messages"]:
            assert message["MessageAttributes"]["n"] == {"DataType": "String", "StringValue": "x"}
            bodies.append(int(message["Body"]))
    assert sorted(bodies) == list(range(25))
    counted = server.sqs.get_queue_attributes(
        QueueUrl=server.endpoint.queue_url("sent"), AttributeNames=["ApproximateNumberOfMessages"]
    )
    assert counted["Attributes"]["ApproximateNumberOfMessages"] == "0"
