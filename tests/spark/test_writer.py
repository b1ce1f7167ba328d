"""The sink as tasks use it, without transactions, against a stand-in server: what is sent, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, MapType, StringType, StructField, StructType

from pyspark_quaymaster import DefaultSource
from pyspark_quaymaster.client import Client
from pyspark_quaymaster.errors import OptionIsInvalid, ServerIsUnavailable
from pyspark_quaymaster.schema import SCHEMA, arrow_schema
from pyspark_quaymaster.sink import writers
from pyspark_quaymaster.sink.entries import MessageIsRefused
from pyspark_quaymaster.sink.sending import send_all
from pyspark_quaymaster.sink.writers import BatchWriter, Sent

from .fake_server import FakeServer, fake_server

VALUE = StructField("value", StringType())
KEY = StructField("key", StringType())


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        running.ordinary |= {"bills", "bills.fifo"}
        yield running


class Task:
    """What the writer asks Spark of the task it runs in."""

    def partitionId(self) -> int:
        return 3


@pytest.fixture(autouse=True)
def _task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "_task", Task)


def writer(server: FakeServer, columns: StructType, /, **options: str) -> BatchWriter:
    made = DefaultSource({**server.options, **options}).writer(columns, overwrite=False)
    assert isinstance(made, BatchWriter)
    return made


def rows(columns: StructType, *values: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_pylist(list(values), schema=arrow_schema(columns))])


def test_rows_are_sent_whole_in_batches_of_ten(server: FakeServer) -> None:
    columns = StructType([VALUE])

    sent = writer(server, columns, queue="bills").write(
        rows(columns, *({"value": str(n)} for n in range(95)))
    )

    assert sent == Sent(95)
    assert sorted(int(entry["MessageBody"]) for entry in server.sent["bills"]) == list(range(95))
    sizes = [len(fields["Entries"]) for action, fields in server.calls if action == "SendMessageBatch"]
    assert sorted(sizes) == [5, *[10] * 9]


def test_a_batch_has_at_most_a_mebibyte(server: FakeServer) -> None:
    columns = StructType([VALUE])

    writer(server, columns, queue="bills").write(rows(columns, *({"value": "é" * 200_000} for _ in range(5))))

    sizes = [len(fields["Entries"]) for action, fields in server.calls if action == "SendMessageBatch"]
    assert sorted(sizes) == [1, 2, 2]


def test_all_columns_arrive_as_sqs_has_them(server: FakeServer) -> None:
    columns = StructType(
        [
            SCHEMA["value"],
            KEY,
            SCHEMA["dedup_id"],
            SCHEMA["attributes"],
            StructField("delay_seconds", IntegerType()),
        ]
    )
    attributes = [
        ("n", {"type": "Number", "string_value": "5", "binary_value": None}),
        ("b", {"type": "Binary.gif", "string_value": None, "binary_value": b"\xff\x00"}),
    ]
    row = {"value": "é".encode(), "key": "k", "dedup_id": "d", "attributes": attributes, "delay_seconds": 7}

    writer(server, columns, queue="bills").write(rows(columns, row))

    assert server.sent["bills"] == [
        {
            "Id": "0",
            "MessageBody": "é",
            "MessageGroupId": "k",
            "MessageDeduplicationId": "d",
            "DelaySeconds": 7,
            "MessageAttributes": {
                "n": {"DataType": "Number", "StringValue": "5"},
                "b": {"DataType": "Binary.gif", "BinaryValue": "/wA="},
            },
        }
    ]


def test_plain_texts_may_be_attributes_and_a_row_may_name_its_queue(server: FakeServer) -> None:
    server.make("orders", 0)
    columns = StructType(
        [VALUE, SCHEMA["queue"], StructField("attributes", MapType(StringType(), StringType()))]
    )

    writer(server, columns, queue="bills").write(
        rows(
            columns,
            {"value": "a", "queue": "orders", "attributes": [("t", "text")]},
            {"value": "b", "queue": None, "attributes": None},
        )
    )

    (order,), (bill,) = server.sent["orders"], server.sent["bills"]
    assert order["MessageAttributes"] == {"t": {"DataType": "String", "StringValue": "text"}}
    assert bill["MessageBody"] == "b"


def test_each_group_of_a_fifo_queue_keeps_its_order(server: FakeServer) -> None:
    columns = StructType([VALUE, KEY])
    given = [{"value": f"{n}", "key": f"g{n % 7}"} for n in range(200)]

    writer(server, columns, queue="bills.fifo", sendConcurrency="3").write(rows(columns, *given))

    for group in range(7):
        bodies = [
            int(e["MessageBody"]) for e in server.sent["bills.fifo"] if e["MessageGroupId"] == f"g{group}"
        ]
        assert bodies == [n for n in range(200) if n % 7 == group]


def test_a_repeated_task_repeats_deduplication_ids_in_whatever_order_its_rows_come(
    server: FakeServer,
) -> None:
    columns = StructType([VALUE, KEY])
    given = [{"value": str(n % 5), "key": "g"} for n in range(20)]
    task = writer(server, columns, queue="bills.fifo")

    task.write(rows(columns, *given))
    task.write(rows(columns, *reversed(given)))
    writer(server, columns, queue="bills.fifo").write(rows(columns, *given))

    ids = [entry["MessageDeduplicationId"] for entry in server.sent["bills.fifo"]]
    assert len(set(ids[:20])) == 20
    assert set(ids[20:40]) == set(ids[:20])
    assert not set(ids[40:]) & set(ids[:20])


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"value": None, "key": "k"}, "value is null"),
        ({"value": b"\xff", "key": "k"}, "no UTF-8"),
        ({"value": b"x", "key": None}, "needs a key"),
    ],
)
def test_a_row_that_is_no_message_ends_the_task(
    server: FakeServer, row: dict[str, Any], complaint: str
) -> None:
    columns = StructType([SCHEMA["value"], KEY])

    with pytest.raises(OptionIsInvalid, match=complaint):
        writer(server, columns, queue="bills.fifo").write(rows(columns, row))


@pytest.mark.parametrize(
    ("fields", "options", "complaint"),
    [
        ([KEY], {"queue": "bills"}, "value, a message's body, is missing"),
        ([VALUE], {}, "where to send is missing"),
        ([VALUE, SCHEMA["md5_body"]], {"queue": "bills"}, "'md5_body' cannot be sent"),
        ([StructField("value", IntegerType())], {"queue": "bills"}, "value is string or binary, not int"),
        ([VALUE], {"queue": "bills", "exactlyOnce": "true"}, "exactlyOnce=true needs a txnId"),
        ([VALUE], {"queue": "bills", "txnId": "t1", "exactlyOnce": "false"}, "exactlyOnce=false makes none"),
        ([VALUE], {"queue": "bills", "txnId": "a/b"}, "txnId has 1 to 124 letters"),
        ([VALUE], {"queue": "bills", "txnId": "t1", "sendConcurrency": "2"}, "for exactlyOnce=false"),
        ([VALUE], {"queue": "bills", "maxTasks": "3"}, "there is no option maxtasks"),
    ],
)
def test_what_cannot_be_written_is_refused_before_a_task_runs(
    server: FakeServer, fields: list[StructField], options: dict[str, str], complaint: str
) -> None:
    columns = StructType(fields)

    with pytest.raises(OptionIsInvalid, match=complaint):
        writer(server, columns, **options)


def test_all_columns_of_the_source_can_be_written_if_those_of_the_queue_are_null(server: FakeServer) -> None:
    made = writer(server, SCHEMA, queue="bills")

    made.write(rows(SCHEMA, {"value": b"b", "key": "k"}))

    assert [entry["MessageBody"] for entry in server.sent["bills"]] == ["b"]
    with pytest.raises(OptionIsInvalid, match="column message_id is what the queue gives"):
        made.write(rows(SCHEMA, {"value": b"b"}, {"value": b"c", "message_id": "m"}))
    with pytest.raises(OptionIsInvalid, match="'partition' cannot be sent"):
        DefaultSource({**server.options, "queue": "bills"}).streamWriter(SCHEMA, overwrite=False)


def test_a_stream_has_other_options_than_a_batch(server: FakeServer) -> None:
    columns = StructType([VALUE])

    with pytest.raises(OptionIsInvalid, match="txnId is for batch writes"):
        DefaultSource({**server.options, "queue": "bills", "txnId": "t"}).streamWriter(columns, False)
    with pytest.raises(OptionIsInvalid, match="appended"):
        DefaultSource({**server.options, "queue": "bills"}).streamWriter(columns, overwrite=True)


def test_an_error_of_one_connection_ends_the_task(server: FakeServer) -> None:
    columns = StructType([VALUE])

    failed = {"Failed": [{"Id": "0", "SenderFault": True, "Code": "InvalidMessageContents", "Message": "no"}]}
    answer = server._json

    def refusing(action: str, fields: dict[str, Any]) -> dict[str, Any]:
        if action == "SendMessageBatch" and any(entry["MessageBody"] == "500" for entry in fields["Entries"]):
            return failed
        return answer(action, fields)

    server._json = refusing  # type: ignore[method-assign]
    with pytest.raises(MessageIsRefused, match="InvalidMessageContents: no"):
        writer(server, columns, queue="bills").write(
            rows(columns, *({"value": str(n)} for n in range(1_000)))
        )


def test_messages_that_fail_for_now_are_sent_again_alone(server: FakeServer) -> None:
    answers: list[dict[str, Any]] = [
        {"Failed": [{"Id": "1", "SenderFault": False, "Code": "InternalFailure"}]},
        {"Failed": [{"Id": "1", "SenderFault": False, "Code": "InternalFailure"}]},
        {"Successful": []},
    ]
    asked: list[list[str]] = []

    def answer(action: str, fields: dict[str, Any]) -> dict[str, Any]:
        asked.append([entry["Id"] for entry in fields["Entries"]])
        return answers[len(asked) - 1]

    server._json = answer  # type: ignore[method-assign]
    with Client(server.endpoint) as client:
        send_all(
            client, server.url("bills"), [{"Id": "0", "MessageBody": "a"}, {"Id": "1", "MessageBody": "b"}]
        )

    assert asked == [["0", "1"], ["1"], ["1"]]


def test_messages_that_fail_again_and_again_end_the_task(server: FakeServer) -> None:
    failed = {"Failed": [{"Id": "0", "SenderFault": False, "Code": "InternalFailure"}]}
    server._json = lambda action, fields: failed  # type: ignore[method-assign]

    with (
        Client(server.endpoint) as client,
        pytest.raises(ServerIsUnavailable, match="1 messages were not taken"),
    ):
        send_all(client, server.url("bills"), [{"Id": "0", "MessageBody": "a"}])
