"""Events from a log-retained queue to a Delta table and to another queue, with Spark, each of them once.

    events ──▶ batch read: how many of each kind
       ├─────▶ stream ─▶ foreachBatch ─▶ Delta table
       └─────▶ stream ─▶ alerts, a queue

Start a server with `make run`. In another terminal:

    scripts/bootstrap && source .venv/bin/activate       # needs Java 17
    eval "$(quaymaster env)"
    python examples/spark_events.py

Run it again: it adds nothing, unless you send more events with `--batch 2`. All that it writes on disk, the table and
the progress of its streams, is in `--directory`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import boto3
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

# Imported before the session is made, it lets Spark's workers use this Python.
from pyspark_quaymaster.lag import messages_behind

EVENTS, ALERTS = "spark-events", "spark-alerts"
EVENT = "id bigint, kind string, amount bigint"
# What the table has of a message, next to its body's fields. Other columns are neither sent nor decrypted.
COLUMNS = "partition int, offset bigint, timestamp timestamp, value binary"


def create_queues() -> None:
    """Create the queues, if they are not there. Spark reads queues that keep their messages: RetentionMode=Log."""
    sqs = boto3.client("sqs")
    sqs.create_queue(QueueName=EVENTS, Attributes={"RetentionMode": "Log"})
    sqs.create_queue(QueueName=ALERTS)


def send_events(spark: SparkSession, count: int, batch: int) -> None:
    """Send some events. Sent again with the same `txnId`, they add nothing."""
    kinds = F.element_at(
        F.array(F.lit("view"), F.lit("order"), F.lit("failure")), (F.col("id") % 3 + 1).cast("int")
    )
    events = spark.range(count).select("id", kinds.alias("kind"), (F.col("id") % 100).alias("amount"))
    (
        events.select(F.to_json(F.struct("*")).alias("value"))
        .write.format("quaymaster")
        .option("queue", EVENTS)
        .option("txnId", f"spark-events-{batch}")
        .mode("append")
        .save()
    )


def count_by_kind(spark: SparkSession) -> dict[str, int]:
    """Return how many events of each kind are in the queue, by a batch read of all of it."""
    bodies = spark.read.format("quaymaster").option("queue", EVENTS).schema("value binary").load()
    kinds = parse(bodies).groupBy("kind").count().collect()
    return {row["kind"]: row["count"] for row in kinds}


def parse(messages: DataFrame) -> DataFrame:
    """Return messages with the fields of their JSON in place of the body."""
    event = F.from_json(F.col("value").cast("string"), EVENT)
    return messages.withColumn("event", event).select(
        *(c for c in messages.columns if c != "value"), "event.*"
    )


def follow(spark: SparkSession) -> DataFrame:
    """Return the events as a stream, from the first one on, in batches that fit into the driver's memory."""
    return parse(
        spark.readStream.format("quaymaster")
        .option("queue", EVENTS)
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", str(64 << 20))
        .schema(COLUMNS)
        .load()
    )


def append_once(batch: DataFrame, batch_id: int, table: str) -> None:
    """Append a batch of a stream to a Delta table, unless the table has it.

    The table's log has the number of the last batch of each query in it, committed together with the rows. So a batch
    that Spark repeats, because the driver died before it noted the end of it, is passed over.
    """
    query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert query, "Spark tells foreachBatch which query it runs for"
    last = DeltaTable(table).transaction_version(query) if DeltaTable.is_deltatable(table) else None
    if last is None or last < batch_id:
        once = CommitProperties(app_transactions=[Transaction(query, batch_id)])
        write_deltalake(table, batch.toArrow(), mode="append", commit_properties=once)


def write_table(events: DataFrame, directory: Path, trigger: dict[str, Any]) -> StreamingQuery:
    """Start the stream that appends all events to a table."""
    table = str(directory / "events")
    return (
        events.writeStream.queryName("events to a table")
        .foreachBatch(lambda batch, batch_id: append_once(batch, batch_id, table))
        .option("checkpointLocation", str(directory / "checkpoints" / "events"))
        .trigger(**trigger)
        .start()
    )


def send_alerts(events: DataFrame, directory: Path, trigger: dict[str, Any]) -> StreamingQuery:
    """Start the stream that sends each failure to the queue of alerts, exactly once: each batch is a transaction."""
    failures = events.where("kind = 'failure'")
    return (
        failures.select(F.to_json(F.struct("id", "amount")).alias("value"))
        .writeStream.queryName("alerts")
        .format("quaymaster")
        .option("queue", ALERTS)
        .option("checkpointLocation", str(directory / "checkpoints" / "alerts"))
        .trigger(**trigger)
        .start()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Events from a queue to a Delta table and to another queue.")
    parser.add_argument(
        "--directory", type=Path, default=Path("spark-events"), help="for the table and checkpoints"
    )
    parser.add_argument("--events", type=int, default=3_000, help="how many are sent")
    parser.add_argument("--batch", type=int, default=1, help="their name: the same one is sent once")
    parser.add_argument(
        "--follow", action="store_true", help="run until Ctrl-C, and show how far the streams are behind"
    )
    given = parser.parse_args()

    create_queues()
    spark = SparkSession.builder.appName("events").getOrCreate()
    send_events(spark, given.events, given.batch)
    for kind, count in sorted(count_by_kind(spark).items()):
        print(f"{kind}: {count}")

    trigger: dict[str, Any] = {"processingTime": "5 seconds"} if given.follow else {"availableNow": True}
    events = follow(spark)
    queries = [start(events, given.directory, trigger) for start in (write_table, send_alerts)]
    for query in queries:
        while not query.awaitTermination(5):
            print(f"{query.name}: {sum(messages_behind(query.lastProgress).values())} messages behind")
    rows = DeltaTable(given.directory / "events").to_pyarrow_dataset().count_rows()
    print(f"rows of the table: {rows}")
    spark.stop()


if __name__ == "__main__":
    main()
