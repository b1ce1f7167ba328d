"""The connector in a real Spark session, against the stand-in server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pyspark_quaymaster import SCHEMA
from pyspark_quaymaster.lag import messages_behind

from .conftest import WAIT_S
from .fake_server import FakeServer


def read(spark: SparkSession, fake: FakeServer, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("quaymaster").options(**fake.options, queue="orders").options(**options)
    return (reader.schema(schema) if schema else reader).load()


def test_the_source_is_found_without_registration_and_has_its_schema(
    spark: SparkSession, fake: FakeServer
) -> None:
    fake.make("orders", 100, 50)

    frame = read(spark, fake)

    assert frame.schema == SCHEMA
    assert frame.count() == 150
    first, second = frame.orderBy("partition", "offset").limit(2).collect()
    assert (first["queue"], first["value"], first["attributes"]) == ("orders", b"0/0", {})
    assert second["value"] == b"0/1"
    assert second["attributes"]["n"]["string_value"] == "1"
    assert second["attributes"]["b"]["binary_value"] == b"\xff\x00"


def test_columns_are_chosen_by_schema(spark: SparkSession, fake: FakeServer) -> None:
    fake.make("orders", 100)

    total = read(spark, fake, "offset long").agg(F.sum("offset")).first()

    assert total is not None
    assert total[0] == sum(range(100))
    assert {tuple(f["Columns"]) for action, f in fake.calls if action == "FetchMessages"} == {("offset",)}


def test_messages_are_counted_without_their_bodies(spark: SparkSession, fake: FakeServer) -> None:
    fake.make("orders", 100)

    assert read(spark, fake, "offset long").count() == 100
    assert {tuple(f["Columns"]) for action, f in fake.calls if action == "FetchMessages"} == {("offset",)}


def test_without_a_schema_spark_asks_for_all_columns_though_it_only_counts(
    spark: SparkSession, fake: FakeServer
) -> None:
    fake.make("orders", 100)

    assert read(spark, fake).count() == 100
    columns = {tuple(f["Columns"]) for action, f in fake.calls if action == "FetchMessages"}
    # When this fails, Spark prunes columns of Python sources, and the guide need not say that it does not.
    assert columns == {tuple(SCHEMA.fieldNames())}


@pytest.mark.parametrize("is_pushed", ["true", "false"])
def test_a_filter_gives_the_same_rows_whether_spark_offers_it_to_sources_or_not(
    spark: SparkSession, fake: FakeServer, is_pushed: str
) -> None:
    fake.make("orders", 100)
    name = "spark.sql.python.filterPushdown.enabled"
    usual = str(spark.conf.get(name))
    spark.conf.set(name, is_pushed)
    try:
        rows = (
            read(spark, fake).where("offset >= 40 AND offset < 50 AND key = 'g1'").select("offset").collect()
        )
    finally:
        spark.conf.set(name, usual)

    assert sorted(row["offset"] for row in rows) == [40, 43, 46, 49]


def test_with_pushdown_only_the_rows_that_filters_can_want_are_fetched(
    spark: SparkSession, fake: FakeServer
) -> None:
    fake.make("orders", 100, 100)
    name = "spark.sql.python.filterPushdown.enabled"
    usual = str(spark.conf.get(name))
    spark.conf.set(name, "true")
    try:
        frame = read(spark, fake, pushdown="true", includeHeaders="true").where(
            "partition = 1 AND offset >= 40 AND timestamp < '2100-01-01' AND key = 'g1'"
        )
        rows = frame.where("offset < 50").select("partition", "offset", "headers").collect()
    finally:
        spark.conf.set(name, usual)

    assert sorted((row["partition"], row["offset"]) for row in rows) == [(1, n) for n in (40, 43, 46, 49)]
    headers = {row["offset"]: [(one["key"], bytes(one["value"])) for one in row["headers"]] for row in rows}
    assert headers == {n: [("n", b"%d" % n), ("b", b"\xff\x00")] if n % 2 else [] for n in (40, 43, 46, 49)}
    fetched = [fields for action, fields in fake.calls if action == "FetchMessages"]
    assert {fields["Partition"] for fields in fetched} == {1}
    assert (
        min(fields["FromOffset"] for fields in fetched),
        max(fields["ToOffset"] for fields in fetched),
    ) == (
        40,
        50,
    )


def test_a_queue_can_be_a_view_in_sql(spark: SparkSession, fake: FakeServer) -> None:
    fake.make("orders", 10)
    options = ", ".join(f"{name} '{value}'" for name, value in {**fake.options, "queue": "orders"}.items())

    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING quaymaster OPTIONS ({options})")
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW counted (offset BIGINT) USING quaymaster OPTIONS ({options})"
    )

    assert spark.sql("SELECT max(offset) FROM orders WHERE partition = 0").first() == (9,)
    fake.calls.clear()
    assert spark.sql("SELECT count(*) FROM counted").first() == (10,)
    assert {tuple(f["Columns"]) for action, f in fake.calls if action == "FetchMessages"} == {("offset",)}


INSERTS = [
    ("", "(value, key) SELECT CAST('b' AS BINARY), 'k'"),
    ("", "(key, value) SELECT 'k', CAST('b' AS BINARY)"),
    ("", "BY NAME SELECT 'k' AS key, CAST('b' AS BINARY) AS value"),
    ("(value STRING, key STRING, delay_seconds INT)", "(key, value) VALUES ('k', 'b')"),
    ("(value STRING, key STRING)", "BY NAME SELECT 'k' AS key, 'b' AS value"),
    ("(value STRING, key STRING)", "SELECT 'b', 'k'"),
]
NAMED_IN_THE_VIEW = "(value STRING, attributes MAP<STRING, STRING>, delay_seconds INT)"


@pytest.mark.parametrize(("columns", "insert"), INSERTS)
def test_rows_are_inserted_into_a_view_by_the_names_of_its_columns(
    spark: SparkSession, fake: FakeServer, columns: str, insert: str
) -> None:
    fake.ordinary.add("bills")
    make_view(spark, fake, columns)

    spark.sql(f"INSERT INTO bills {insert}")

    (entry,) = fake.sent["bills"]
    assert {name: entry[name] for name in entry.keys() - {"Id"}} == {
        "MessageBody": "b",
        "MessageGroupId": "k",
    }


def test_delays_and_attributes_as_texts_are_inserted_into_a_view_that_names_them(
    spark: SparkSession, fake: FakeServer
) -> None:
    fake.ordinary.add("bills")
    make_view(spark, fake, NAMED_IN_THE_VIEW)

    spark.sql("INSERT INTO bills (value, delay_seconds, attributes) SELECT 'b', 7, map('color', 'red')")

    (entry,) = fake.sent["bills"]
    assert (entry["MessageBody"], entry["DelaySeconds"]) == ("b", 7)
    assert entry["MessageAttributes"] == {"color": {"DataType": "String", "StringValue": "red"}}


@pytest.mark.parametrize(
    ("columns", "statement", "complaint"),
    [
        (
            "",
            "INSERT INTO bills (value, offset) SELECT CAST('b' AS BINARY), 7",
            "column offset is what the queue gives",
        ),
        ("", "INSERT INTO bills (value) SELECT 'b'", 'Cannot safely cast `value` "STRING" to "BINARY"'),
        ("", "INSERT INTO bills SELECT 'b'", "INSERT_COLUMN_ARITY_MISMATCH"),
        ("", "INSERT INTO bills (value, delay_seconds) SELECT CAST('b' AS BINARY), 7", "UNRESOLVED_COLUMN"),
        (
            "",
            "INSERT INTO bills (value, attributes) SELECT CAST('b' AS BINARY), map('color', 'red')",
            "CANNOT_SAFELY_CAST",
        ),
        ("", "INSERT INTO bills (key) SELECT 'k'", "a row's value is null"),
        ("(value STRING, price INT)", "INSERT INTO bills SELECT 'b', 7", "column 'price' cannot be sent"),
        ("(value STRING)", "INSERT OVERWRITE bills SELECT 'b'", "cannot be overwritten"),
    ],
)
def test_an_insert_that_cannot_be_sent_says_what_can(
    spark: SparkSession, fake: FakeServer, columns: str, statement: str, complaint: str
) -> None:
    fake.ordinary.add("bills")
    make_view(spark, fake, columns)

    with pytest.raises(Exception, match=complaint):
        spark.sql(statement)

    assert fake.sent == {}


def make_view(spark: SparkSession, fake: FakeServer, columns: str) -> None:
    options = ", ".join(f"{name} '{value}'" for name, value in {**fake.options, "queue": "bills"}.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW bills {columns} USING quaymaster OPTIONS ({options})")


def test_a_stream_reads_all_messages_once_over_restarts(
    spark: SparkSession, fake: FakeServer, checkpoint: str, tmp_path: Path
) -> None:
    log = fake.make("orders", 300, 40)
    frame = (
        spark.readStream.format("quaymaster")
        .options(**fake.options, queue="orders", startingOffsets="earliest", maxOffsetsPerTrigger="50")
        .options(consumerGroup="billing")
        .load()
    )
    out = str(tmp_path / "out")

    for _ in range(2):
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(out)
        )
        assert query.awaitTermination(WAIT_S)
        log.partitions[1] += [b"later"] * 10

    found = spark.read.parquet(out)
    assert found.count() == found.select("partition", "offset").distinct().count() == 350
    progress: Any = query.lastProgress
    assert progress is not None
    # The last batch of the first run was told by the first trigger of the second; its own last batch is not told yet.
    assert fake.committed["orders@billing"][0] == 300


def test_lag_is_in_the_progress(spark: SparkSession, fake: FakeServer, checkpoint: str) -> None:
    fake.make("orders", 300)
    query = (
        spark.readStream.format("quaymaster")
        .options(**fake.options, queue="orders", startingOffsets="earliest", maxOffsetsPerTrigger="100")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)

    behind = [messages_behind(one) for one in query.recentProgress if one.numInputRows]

    assert behind == [{"101/0": 200}, {"101/0": 100}, {"101/0": 0}]
    assert messages_behind(None) == {}


def test_a_limit_misspelt_is_told_with_what_was_meant(spark: SparkSession, fake: FakeServer) -> None:
    fake.make("orders", 1)

    with pytest.raises(AnalysisException, match="did you mean maxRecordsPerPartition"):
        read(spark, fake, maxRecordsPerPartion="5").count()


def test_rows_are_sent_by_a_batch_and_by_a_stream(
    spark: SparkSession, fake: FakeServer, checkpoint: str
) -> None:
    fake.make("orders", 200)
    fake.ordinary.add("bills")
    fake.ordinary.add("bills.fifo")
    rows = spark.range(100).select(F.col("id").cast("string").alias("value"))
    rows.write.format("quaymaster").options(**fake.options, queue="bills").mode("append").save()
    query = (
        spark.readStream.format("quaymaster")
        .options(**fake.options, queue="orders", startingOffsets="earliest")
        .load()
        .select("value", "attributes", F.lit("group").alias("key"))
        .writeStream.format("quaymaster")
        .options(**fake.options, queue="bills.fifo", exactlyOnce="false")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)

    assert sorted(int(entry["MessageBody"]) for entry in fake.sent["bills"]) == list(range(100))
    assert [entry["MessageBody"] for entry in fake.sent["bills.fifo"]] == [f"0/{n}" for n in range(200)]
    assert fake.sent["bills.fifo"][7]["MessageAttributes"] == {
        "n": {"DataType": "Number", "StringValue": "7"},
        "b": {"DataType": "Binary", "BinaryValue": "/wA="},
    }
