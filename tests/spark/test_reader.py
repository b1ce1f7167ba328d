"""The source's readers as Spark calls them, against a stand-in server; no Spark session is needed for that."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import md5
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from pyspark_quaymaster import DefaultSource
from pyspark_quaymaster.client import Bounds, Log
from pyspark_quaymaster.errors import (
    AnswerIsWrong,
    DataIsLost,
    GroupIsTaken,
    OptionIsInvalid,
    RequestRefused,
)
from pyspark_quaymaster.logs import entered, left_behind
from pyspark_quaymaster.schema import SCHEMA, SCHEMA_WITH_HEADERS, arrow_schema, conform
from pyspark_quaymaster.source import BatchReader, QueuePartition, StreamReader

from .fake_server import START_MS, FakeServer, Refusal, fake_server

ALL = ReadAllAvailable()


_streams: list[StreamReader] = []


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        yield running
        while _streams:
            _streams.pop().stop()


def stream(server: FakeServer, columns: StructType = SCHEMA, /, **options: str) -> StreamReader:
    source = DefaultSource({**server.options, "queue": "orders", "startingOffsets": "earliest", **options})
    reader = source.streamReader(columns)
    assert isinstance(reader, StreamReader)
    _streams.append(reader)
    return reader


def batch(server: FakeServer, columns: StructType = SCHEMA, /, **options: str) -> BatchReader:
    reader = DefaultSource({**server.options, "queue": "orders", **options}).reader(columns)
    assert isinstance(reader, BatchReader)
    return reader


def batches(reader: BatchReader | StreamReader, tasks: Any) -> list[pa.RecordBatch]:
    """Read as executors do: by a copy of the reader, of copies of the partitions."""
    copies: tuple[BatchReader, list[InputPartition]] = pickle.loads(pickle.dumps((reader, list(tasks))))
    return [one for task in copies[1] for one in copies[0].read(task)]


def read_batch(reader: BatchReader) -> list[tuple[int, int]]:
    return [
        (row["partition"], row["offset"])
        for one in batches(reader, reader.partitions())
        for row in one.to_pylist()
    ]


def read_stream(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    return [
        (row["partition"], row["offset"])
        for one in batches(reader, reader.partitions(start, end))
        for row in one.to_pylist()
    ]


def rows_of(*counts: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, count in enumerate(counts) for offset in range(count)]


# Batch reads


def test_a_batch_reads_every_message_once_and_in_order(server: FakeServer) -> None:
    server.make("orders", 3_000, 0, 1, 7_000)

    assert read_batch(batch(server, fetchBytes="10000", maxRecordsPerPartition="999")) == rows_of(
        3_000, 0, 1, 7_000
    )


def test_few_large_messages_are_read_by_several_tasks(server: FakeServer) -> None:
    log = server.make("orders", 0, 0)
    log.partitions = [[b"x" * 100_000] * 30, [b"x" * 100_000] * 50]
    whole = {"maxTasks": "4"}

    tasks = list(batch(server, **whole).partitions())
    assert [sum(one.rows for one in task.ranges) for task in tasks if isinstance(task, QueuePartition)] == [
        *[20] * 4
    ]
    # One small look at each partition.
    looks = [fields for action, fields in server.calls if action == "FetchMessages"]
    assert sorted(fields["Partition"] for fields in looks) == [0, 1]
    assert {fields["MaxBytes"] for fields in looks} == {64 << 10}
    # Only the columns that are read count.
    assert len(list(batch(server, StructType([SCHEMA["offset"]]), **whole).partitions())) == 1
    assert len(list(batch(server, bytesPerTask="1000000").partitions())) == 9
    reader = stream(server, **whole)
    start = reader.initialOffset()
    assert len(list(reader.partitions(start, reader.latestOffset(start, ALL)))) == 4


def test_a_handful_of_messages_is_read_without_a_look_at_their_size(server: FakeServer) -> None:
    server.make("orders", 3, 4)

    assert len(list(batch(server).partitions())) == 1
    assert "FetchMessages" not in {action for action, _ in server.calls}


def test_messages_whose_size_cannot_be_told_are_planned_by_their_number(server: FakeServer) -> None:
    server.make("orders", 20_000)

    def trimmed(action: str, fields: dict[str, Any]) -> None:
        if action == "FetchMessages":
            raise Refusal(400, "OffsetOutOfRange")

    server.before = trimmed

    assert len(list(batch(server, maxTasks="4").partitions())) == 2
    reader = stream(server, maxBytesPerTrigger="1000000")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert sum(end.values()) - sum(start.values()) == 1_000_000 // (64 << 10)


def test_an_empty_log_gives_no_rows(server: FakeServer) -> None:
    server.make("orders", 0, 0)
    reader = batch(server)

    assert list(reader.partitions()) == []
    # What Spark runs when there are no partitions.
    assert list(reader.read(InputPartition(None))) == []


def test_only_the_columns_of_the_schema_are_asked_for(server: FakeServer) -> None:
    server.make("orders", 5)
    columns = StructType([SCHEMA["value"], SCHEMA["offset"]])
    reader = batch(server, columns)

    (found,) = batches(reader, reader.partitions())

    assert found.schema.equals(arrow_schema(columns))
    assert [fields["Columns"] for action, fields in server.calls if action == "FetchMessages"] == [
        ["value", "offset"]
    ]


@pytest.mark.parametrize("form", ["columns", "arrow"])
def test_batches_have_exactly_the_schema_that_spark_expects(server: FakeServer, form: str) -> None:
    server.make("orders", 5)
    reader = batch(server, SCHEMA, fetchFormat=form)

    (found,) = batches(reader, reader.partitions())

    assert found.schema.equals(arrow_schema(SCHEMA))
    found.validate(full=True)
    assert found.to_pylist()[1] == {
        "queue": "orders",
        "partition": 0,
        "offset": 1,
        "timestamp": datetime.fromtimestamp((START_MS + 1) / 1000, UTC),
        "key": "g1",
        "value": b"0/1",
        "message_id": "00000000-0000-0000-0000-000000000001",
        "dedup_id": None,
        "sender_id": "AIDA",
        "attributes": [
            ("n", {"type": "Number", "string_value": "1", "binary_value": None}),
            ("b", {"type": "Binary", "string_value": None, "binary_value": b"\xff\x00"}),
        ],
        "system_attributes": [],
        "md5_body": md5(b"0/1").hexdigest(),
    }


def test_an_answer_that_is_cut_or_in_another_form_is_an_error(server: FakeServer) -> None:
    server.make("orders", 5)
    reader = batch(server)
    tasks = reader.partitions()
    answer = server._fetch

    server._fetch = lambda fields: (answer(fields)[0][:50], answer(fields)[1])  # type: ignore[method-assign]
    with pytest.raises(AnswerIsWrong, match="cannot be read"):
        batches(reader, tasks)
    server._fetch = lambda fields: (b"", {**answer(fields)[1], "Content-Type": "text/html"})  # type: ignore[method-assign]
    with pytest.raises(AnswerIsWrong, match="messages came as 'text/html'"):
        batches(reader, tasks)


@pytest.mark.parametrize("size", [1, 24_999, 25_001, 100_000])
def test_large_answers_come_as_batches_of_at_most_25_000_rows(server: FakeServer, size: int) -> None:
    log = server.make("orders", 0)
    log.partitions[0] = [b""] * size
    reader = batch(server, StructType([SCHEMA["offset"]]), maxTasks="1", fetchBytes="64000000")

    sizes = [one.num_rows for one in batches(reader, reader.partitions())]

    assert sum(sizes) == size
    assert max(sizes) <= 25_000
    assert max(sizes) - min(sizes) < len(sizes)


@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        (StructField("no_such", StringType()), "no column 'no_such'; there are queue, partition"),
        (StructField("offset", IntegerType()), "offset is bigint, not int"),
        (StructField("value", StringType()), "value is binary, not string"),
    ],
)
def test_a_schema_of_other_columns_is_refused(server: FakeServer, field: StructField, complaint: str) -> None:
    with pytest.raises(OptionIsInvalid, match=complaint):
        batch(server, StructType([field]))


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (
            {"startingOffsets": '{"orders": {"0": 3, "1": -2}}'},
            [*((0, n) for n in range(3, 5)), *((1, n) for n in range(5))],
        ),
        ({"endingOffsets": '{"orders": {"0": 2, "1": -1}}'}, [(0, 0), (0, 1), *((1, n) for n in range(5))]),
        ({"startingTimestamp": str(START_MS + 4)}, [(0, 4), (1, 4)]),
        (
            {"startingOffsetsByTimestamp": f'{{"orders": {{"0": {START_MS + 4}, "1": 0}}}}'},
            [(0, 4), *((1, n) for n in range(5))],
        ),
        ({"endingTimestamp": str(START_MS + 1)}, [(0, 0), (1, 0)]),
        ({"endingTimestamp": str(START_MS + 100)}, rows_of(5, 5)),
        ({"startingTimestamp": str(START_MS + 100), "startingOffsetsByTimestampStrategy": "latest"}, []),
    ],
)
def test_a_batch_begins_and_ends_where_it_is_told(
    server: FakeServer, options: dict[str, str], rows: list[tuple[int, int]]
) -> None:
    server.make("orders", 5, 5)

    assert read_batch(batch(server, SCHEMA, **options)) == rows


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"startingTimestamp": str(START_MS + 100)}, "no message at or after"),
        ({"startingOffsets": '{"orders": {"0": 3}}'}, "exactly the partitions"),
        ({"startingOffsets": '{"orders": {"0": 3, "1": 6}}'}, "ends at 5; offset 6 is beyond it"),
        ({"startingOffsets": "first"}, "startingOffsets is JSON"),
        ({"startingOffsets": "latest"}, "would make a batch read empty"),
        ({"endingOffsets": "earliest"}, "not earliest"),
        ({"queues": "a,b"}, "exactly one of queue, queues, queuePattern and assign"),
        ({"mode": "consume"}, "mode=consume is for streams"),
        ({"mode": "both"}, "mode is log"),
        ({"fetch": "local"}, "only the server has their keys. fetch is auto or http"),
        ({"fetch": "ftp"}, "fetch is auto or http"),
        ({"pushdown": "perhaps"}, "pushdown is true or false"),
        ({"includeHeaders": "perhaps"}, "includeHeaders is true or false"),
        ({"maxOffsetsPerTriger": "5"}, "did you mean maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": "5"}, "is for streams"),
        ({"maxTasks": "none"}, "maxTasks is a whole number"),
        ({"minPartitions": "3", "maxTasks": "2"}, "above maxTasks"),
        ({"fetchFormat": "avro"}, "columns or arrow"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"deadline": "soon"}, "a time like"),
        (
            {
                "startingOffsets": '{"orders": {"0": 1, "1": 4}}',
                "endingOffsets": '{"orders": {"0": -1, "1": 3}}',
            },
            "endingOffsets of orders is before startingOffsets: partition 1 from 4 to 3",
        ),
    ],
)
def test_an_option_that_cannot_be_is_named(
    server: FakeServer, options: dict[str, str], complaint: str
) -> None:
    server.make("orders", 5, 5)

    with pytest.raises(OptionIsInvalid, match=complaint):
        batch(server, SCHEMA, **options).partitions()


def test_what_is_usual_can_be_said_in_words(server: FakeServer) -> None:
    server.make("orders", 5)

    for fetch in ("auto", "http"):
        assert read_batch(batch(server, mode="log", fetch=fetch, pushdown="false")) == rows_of(5)


def test_assign_names_the_partitions_to_read(server: FakeServer) -> None:
    server.make("orders", 3, 4, 5)
    server.make("bills", 2)
    assign = {"assign": '{"orders": [2, 0], "bills": [0]}'}
    offsets = '{"orders": {"0": 1, "2": -2}, "bills": {"0": 1}}'

    def reader(**options: str) -> BatchReader:
        made = DefaultSource({**server.options, **options}).reader(SCHEMA)
        assert isinstance(made, BatchReader)
        return made

    orders = [(number, offset) for number, count in ((0, 3), (2, 5)) for offset in range(count)]
    assert read_batch(reader(**assign)) == [*orders, *rows_of(2)]
    assert read_batch(reader(**assign, startingOffsets=offsets)) == [*orders[1:], (0, 1)]
    following = DefaultSource({**server.options, "assign": '{"orders": [1]}'}).streamReader(SCHEMA)
    assert isinstance(following, StreamReader)
    _streams.append(following)
    assert list(following.latestOffset({"version": 1}, ALL).values()) == [1, 0]
    with pytest.raises(
        OptionIsInvalid, match=r"partitions of orders that are not there: \[3\]; it has \[0, 1, 2\]"
    ):
        reader(assign='{"orders": [0, 3]}').partitions()
    with pytest.raises(OptionIsInvalid, match="named twice, by its name and by its URL"):
        reader(assign=f'{{"orders": [0], "{server.url("orders")}": [1]}}').partitions()


@pytest.mark.parametrize(
    "assign",
    ["orders", "{}", "[0]", '{"orders": []}', '{"orders": 0}', '{"orders": [true]}', '{"orders": [-1]}'],
)
def test_an_assignment_in_another_shape_is_refused(server: FakeServer, assign: str) -> None:
    with pytest.raises(OptionIsInvalid, match=r'assign is JSON like \{"orders"'):
        DefaultSource({**server.options, "assign": assign}).reader(SCHEMA)


def headers_of(offset: int) -> list[dict[str, Any]]:
    found = [{"key": "n", "value": b"%d" % offset}, {"key": "b", "value": b"\xff\x00"}]
    return found if offset % 2 else []


def test_a_part_of_a_batch_has_its_own_headers(server: FakeServer) -> None:
    server.make("orders", 9)
    columns = StructType([SCHEMA_WITH_HEADERS["headers"]])
    whole = batch(server, StructType([SCHEMA["attributes"]]))
    (found,) = batches(whole, whole.partitions())

    parts = [row for one in conform(found.slice(3, 4), arrow_schema(columns), 2) for row in one.to_pylist()]

    assert [row["headers"] for row in parts] == [headers_of(offset) for offset in range(3, 7)]


@pytest.mark.parametrize("form", ["columns", "arrow"])
@pytest.mark.parametrize("names", [["headers"], ["offset", "headers"], SCHEMA_WITH_HEADERS.fieldNames()])
def test_message_attributes_come_as_headers_if_that_is_asked_for(
    server: FakeServer, form: str, names: list[str]
) -> None:
    server.make("orders", 7)
    columns = StructType([SCHEMA_WITH_HEADERS[name] for name in names])
    reader = batch(
        server, columns, includeHeaders="true", fetchFormat=form, startingOffsets='{"orders": {"0": 3}}'
    )

    found = batches(reader, reader.partitions())

    assert {one.schema for one in found} == {arrow_schema(columns)}
    for one in found:
        one.validate(full=True)
    headers = [row["headers"] for one in found for row in one.to_pylist()]
    assert headers == [headers_of(offset) for offset in range(3, 7)]
    assert DefaultSource({"includeHeaders": "true"}).schema() == SCHEMA_WITH_HEADERS


def test_headers_are_not_there_unless_they_are_asked_for(server: FakeServer) -> None:
    with pytest.raises(OptionIsInvalid, match="no column 'headers' without includeHeaders=true"):
        batch(server, StructType([SCHEMA_WITH_HEADERS["headers"]]))


NOON = datetime.fromtimestamp(START_MS / 1000, UTC)


@pytest.mark.parametrize(
    ("filters", "rows"),
    [
        ([EqualTo(("partition",), 1)], [(1, n) for n in range(5)]),
        ([In(("partition",), (1, 7)), LessThan(("offset",), 2)], [(1, 0), (1, 1)]),
        ([EqualTo(("partition",), 1), EqualTo(("partition",), 0)], []),
        ([EqualTo(("offset",), 3)], [(0, 3), (1, 3)]),
        ([GreaterThan(("offset",), 2), LessThanOrEqual(("offset",), 3)], [(0, 3), (1, 3)]),
        ([GreaterThanOrEqual(("offset",), 4)], [(0, 4), (1, 4)]),
        ([GreaterThan(("offset",), 3), LessThan(("offset",), 2)], []),
        ([EqualTo(("queue",), "orders"), EqualTo(("offset",), 0)], [(0, 0), (1, 0)]),
        ([In(("queue",), ("bills",))], []),
        (
            [GreaterThanOrEqual(("timestamp",), NOON + timedelta(milliseconds=3))],
            [(0, 3), (0, 4), (1, 3), (1, 4)],
        ),
        ([EqualTo(("timestamp",), NOON + timedelta(days=1))], []),
        # Spark does these alone.
        ([LessThan(("timestamp",), NOON)], rows_of(5, 5)),
        ([GreaterThan(("timestamp",), datetime(2100, 1, 1))], rows_of(5, 5)),
        (
            [EqualTo(("key",), "g1"), Not(EqualTo(("offset",), 0)), GreaterThan(("partition",), 0)],
            rows_of(5, 5),
        ),
    ],
)
def test_filters_narrow_what_is_read_and_spark_still_applies_them(
    server: FakeServer, filters: list[Filter], rows: list[tuple[int, int]]
) -> None:
    server.make("orders", 5, 5)
    reader = batch(server, pushdown="true")

    assert list(reader.pushFilters(filters)) == filters

    assert read_batch(reader) == rows


def test_filters_are_not_for_streams(server: FakeServer) -> None:
    with pytest.raises(OptionIsInvalid, match="pushdown=true is for batch reads"):
        stream(server, pushdown="true")


def test_several_queues_are_read_by_list_or_pattern_and_ordinary_ones_passed_over(server: FakeServer) -> None:
    server.make("orders-eu", 2)
    server.make("orders-us", 3)
    server.make("bills", 4)
    server.ordinary.add("orders-dead")
    common = server.options

    by_list = DefaultSource({**common, "queues": "orders-eu, bills"}).reader(SCHEMA)
    by_pattern = DefaultSource({**common, "queuePattern": "orders-.*"}).reader(SCHEMA)

    assert isinstance(by_list, BatchReader)
    assert isinstance(by_pattern, BatchReader)
    assert len(read_batch(by_list)) == 6
    assert len(read_batch(by_pattern)) == 5


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nope", "GetQueueUrl of nope: QueueDoesNotExist"),
        ("plain", "DescribeLog of plain: UnsupportedOperation"),
    ],
)
def test_of_several_queues_the_one_that_cannot_be_read_is_named(
    server: FakeServer, name: str, complaint: str
) -> None:
    server.make("a", 1)
    server.make("b", 1)
    server.ordinary.add("plain")
    source = DefaultSource({**server.options, "queues": f"a,{name},b"})

    with pytest.raises(RequestRefused, match=complaint):
        source.reader(SCHEMA).partitions()


def test_a_gap_inside_a_range_is_an_error(server: FakeServer) -> None:
    log = server.make("orders", 5)
    reader = batch(server)
    tasks = reader.partitions()
    log.partitions[0] = log.partitions[0][:3]
    server.before = lambda action, fields: fields.update(ToOffset=3) if action == "FetchMessages" else None
    answer = server._fetch

    def with_gap(fields: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
        body, headers = answer(fields)
        return body, {**headers, "x-quaymaster-next-offset": "5"}

    server._fetch = with_gap  # type: ignore[method-assign]
    with pytest.raises(AnswerIsWrong, match="3 messages between the offsets 0 and 5"):
        batches(reader, tasks)


# Streams


def test_a_stream_reads_every_message_once_under_its_limit(server: FakeServer) -> None:
    log = server.make("orders", 40, 3)
    reader = stream(server, maxOffsetsPerTrigger="7")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(7)

    start = reader.initialOffset()
    rows: list[tuple[int, int]] = []
    for number in range(100):
        end = reader.latestOffset(start, limit)
        if number == 3:
            log.partitions[1] += [b"late"] * 5
        if end == start:
            break
        found = read_stream(reader, start, end)
        assert len(found) <= 7
        rows += found
        start = end

    assert sorted(rows) == rows_of(40, 8)
    assert reader.reportLatestOffset() == start


def test_a_limit_of_the_options_does_not_hold_when_all_is_asked_for(server: FakeServer) -> None:
    server.make("orders", 40)
    reader = stream(server, maxOffsetsPerTrigger="7", minOffsetsPerTrigger="1000")

    start = reader.initialOffset()

    assert len(read_stream(reader, start, reader.latestOffset(start, ALL))) == 40


def test_bytes_are_limited_by_the_size_of_rows_that_come(server: FakeServer) -> None:
    log = server.make("orders", 0)
    log.partitions[0] = [b"x" * 10_000] * 500
    reader = stream(server, maxBytesPerTrigger="1000000")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(1_000_000)

    start = reader.initialOffset()
    rows = len(read_stream(reader, start, reader.latestOffset(start, limit)))

    assert 80 <= rows <= 100


def test_few_messages_wait_for_more_but_not_longer_than_the_delay(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = server.make("orders", 5)
    now_s = 1_000.0
    monkeypatch.setattr("pyspark_quaymaster.source.time.monotonic", lambda: now_s)
    reader = stream(server, minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    limit = reader.getDefaultReadLimit()

    first = reader.latestOffset(reader.initialOffset(), limit)
    log.partitions[0] += [b"more"] * 5
    waiting = reader.latestOffset(first, limit)
    now_s += 61
    after_delay = reader.latestOffset(first, limit)
    log.partitions[0] += [b"more"] * 10
    with_enough = reader.latestOffset(after_delay, limit)

    assert waiting == first
    assert after_delay != first
    assert with_enough != after_delay


def test_available_now_ends_though_messages_keep_coming(server: FakeServer) -> None:
    log = server.make("orders", 20)
    reader = stream(server, maxOffsetsPerTrigger="6")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    rows: list[tuple[int, int]] = []

    for _ in range(100):
        log.partitions[0] += [b"more"] * 10
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end == start:
            break
        rows += read_stream(reader, start, end)
        start = end

    assert rows == rows_of(20)
    assert len(log.partitions[0]) < 100


def test_a_partition_that_is_new_is_read_from_its_beginning_and_replays_the_same(server: FakeServer) -> None:
    log = server.make("orders", 3)
    reader = stream(server)
    start = reader.latestOffset(reader.initialOffset(), ALL)
    log.partitions.append([b"new"] * 4)
    log.earliest.append(0)

    entered = reader.latestOffset(start, ALL)
    end = reader.latestOffset(entered, ALL)

    assert read_stream(reader, start, entered) == []
    assert read_stream(reader, entered, end) == [(1, n) for n in range(4)]
    assert read_stream(stream(server), entered, end) == [(1, n) for n in range(4)]


def test_a_drained_partition_that_was_read_leaves_the_checkpoint_before_it_is_not_listed_any_more(
    server: FakeServer,
) -> None:
    log = server.make("orders", 3, 4)
    reader = stream(server, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert read_stream(reader, start, end) == rows_of(3, 4)
    log.earliest[0] = 3
    log.drained.add(0)

    left = reader.latestOffset(end, ALL)
    assert [key for key in left if key != "version"] == [f"{log.queue_id}/1"]
    assert read_stream(reader, end, left) == []
    log.partitions[1] += [b"more"]
    on = reader.latestOffset(left, ALL)  # it does not enter again
    assert read_stream(reader, left, on) == [(1, 4)]
    log.unlisted.add(0)

    assert reader.latestOffset(on, ALL) == on


def test_a_partition_that_is_not_listed_any_more_and_may_not_have_been_read_is_an_error(
    server: FakeServer,
) -> None:
    log = server.make("orders", 3, 4)
    start = stream(server, startingOffsets="earliest").initialOffset()
    log.unlisted.add(0)

    with pytest.raises(DataIsLost, match="does not list partition 0 any more"):
        stream(server).latestOffset(start, ALL)
    lax = stream(server, failOnDataLoss="false")
    end = lax.latestOffset(start, ALL)
    assert read_stream(lax, start, end) == [(1, n) for n in range(4)]


def test_a_query_enters_drained_partitions_only_above_those_that_it_knows(server: FakeServer) -> None:
    """Below are those that it has read; those above came and went while it was stopped, and the archive has them."""
    bounds = {0: Bounds(0, 3, 3, is_drained=True), 1: Bounds(0, 0), 2: Bounds(0, 5, 5, is_drained=True)}
    bounds[3] = Bounds(2, 2, is_drained=True)
    logs = {"7": Log("7", "orders", "url", bounds)}

    assert entered({"7/1": 0}, logs) == {"7/2": 0}
    assert entered({}, logs) == {"7/0": 0, "7/1": 0, "7/2": 0}
    assert left_behind({"7/0": 3, "7/1": 0, "7/2": 5}, logs) == {"7/0"}
    assert left_behind({"7/0": 2, "7/1": 0}, logs) == set()


def test_the_same_offsets_give_the_same_rows_however_often_and_from_wherever(server: FakeServer) -> None:
    log = server.make("orders", 10, 10)
    reader = stream(server)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    log.partitions[0] += [b"more"] * 5

    assert read_stream(reader, start, end) == read_stream(stream(server), start, end) == rows_of(10, 10)


def test_the_group_is_told_what_is_consumed_each_trigger_also_when_idle(server: FakeServer) -> None:
    server.make("orders", 10)
    reader = stream(server, consumerGroup="billing")

    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert server.committed == {"orders@billing": {0: 0}}
    reader.latestOffset(end, ALL)
    assert server.committed == {"orders@billing": {0: 10}}
    reader.latestOffset(end, ALL)

    assert [action for action, _ in server.calls].count("CommitOffsets") == 2


def test_a_server_that_cannot_be_told_now_is_told_with_the_next_trigger(server: FakeServer) -> None:
    server.make("orders", 10)
    reader = stream(server, consumerGroup="billing", deadline="50ms")

    def away(action: str, fields: dict[str, Any]) -> None:
        if action == "CommitOffsets":
            raise Refusal(503, "ServiceUnavailable")

    server.before = away
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    server.before = lambda action, fields: None
    reader.latestOffset(end, ALL)

    assert server.committed == {"orders@billing": {0: 10}}


def test_of_two_queries_with_one_group_the_first_one_ends(server: FakeServer) -> None:
    log = server.make("orders", 10)
    first, second = stream(server, consumerGroup="billing"), stream(server, consumerGroup="billing")
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)

    second.latestOffset(start, ALL)
    log.partitions[0] += [b"more"] * 5

    with pytest.raises(GroupIsTaken, match="another query reads orders with consumerGroup billing since"):
        first.latestOffset(end, ALL)
    third = second.latestOffset(end, ALL)
    second.latestOffset(third, ALL)
    assert server.committed == {"orders@billing": {0: 15}}


def test_a_query_that_goes_on_takes_its_group_back(server: FakeServer) -> None:
    server.make("orders", 10)
    dead = stream(server, consumerGroup="billing")
    end = dead.latestOffset(dead.initialOffset(), ALL)

    again = stream(server, consumerGroup="billing")
    again.latestOffset(end, ALL)

    assert server.committed == {"orders@billing": {0: 10}}
    with pytest.raises(GroupIsTaken):
        dead.latestOffset(end, ALL)


def test_a_group_that_may_not_be_told_is_an_error(server: FakeServer) -> None:
    server.make("orders", 10)
    reader = stream(server, consumerGroup="billing")

    def refuse(action: str, fields: dict[str, Any]) -> None:
        if action == "CommitOffsets":
            raise Refusal(403, "AccessDenied")

    server.before = refuse
    with pytest.raises(OptionIsInvalid, match="consumerGroup billing of orders cannot be told"):
        reader.latestOffset(reader.initialOffset(), ALL)


# What is lost


def test_a_queue_made_anew_under_its_name_is_an_error(server: FakeServer) -> None:
    server.make("orders", 10)
    reader = stream(server)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    tasks = reader.partitions(start, end)
    server.make("orders", 20)

    with pytest.raises(DataIsLost, match="made anew"):
        reader.latestOffset(end, ALL)
    with pytest.raises(DataIsLost, match="made anew"):
        reader.partitions(start, end)
    with pytest.raises(DataIsLost, match="made anew"):
        batches(reader, tasks)


def test_without_fail_on_data_loss_the_new_queue_is_read_from_its_beginning(server: FakeServer) -> None:
    server.make("orders", 10)
    reader = stream(server, failOnDataLoss="false")
    start = reader.latestOffset(reader.initialOffset(), ALL)
    server.make("orders", 4)

    entered = reader.latestOffset(start, ALL)
    end = reader.latestOffset(entered, ALL)

    assert read_stream(reader, start, entered) == []
    assert read_stream(reader, entered, end) == rows_of(4)


def test_trimmed_messages_are_an_error_or_left_out(server: FakeServer) -> None:
    log = server.make("orders", 10)
    strict, lax = stream(server), stream(server, failOnDataLoss="false")
    start = strict.initialOffset()
    log.earliest[0] = 4

    with pytest.raises(DataIsLost, match="was read up to 0, and holds 4 to 10"):
        strict.latestOffset(start, ALL)
    end = lax.latestOffset(start, ALL)
    with pytest.raises(DataIsLost, match="offsets 0 to 4 of orders partition 0 are trimmed"):
        strict.partitions(start, end)
    assert read_stream(lax, start, end) == [(0, n) for n in range(4, 10)]


def test_messages_trimmed_while_they_are_read_are_an_error_or_left_out(server: FakeServer) -> None:
    log = server.make("orders", 10)
    strict, lax = batch(server), batch(server, failOnDataLoss="false")
    tasks = strict.partitions()
    log.earliest[0] = 4

    with pytest.raises(DataIsLost, match="while they are read: it begins at 4"):
        batches(strict, tasks)
    assert [row["offset"] for one in batches(lax, tasks) for row in one.to_pylist()] == list(range(4, 10))


def test_a_queue_deleted_while_it_is_read_is_an_error_or_ends_there(server: FakeServer) -> None:
    server.make("orders", 10)
    strict, lax = batch(server), batch(server, failOnDataLoss="false")
    tasks = strict.partitions()
    server.logs.clear()

    with pytest.raises(DataIsLost, match="the queue is deleted"):
        batches(strict, tasks)
    assert batches(lax, tasks) == []
