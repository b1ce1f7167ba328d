"""The sink with transactions as tasks and the driver use it, against a stand-in server: all becomes visible, once."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_quaymaster import DefaultSource
from pyspark_quaymaster.errors import (
    AnswerIsWrong,
    OptionIsInvalid,
    RequestRefused,
    ServerIsUnavailable,
    StagedRowsAreGone,
)
from pyspark_quaymaster.schema import SCHEMA, arrow_schema
from pyspark_quaymaster.sink import writers
from pyspark_quaymaster.sink.entries import MessageIsRefused
from pyspark_quaymaster.sink.writers import BatchWriter, StreamWriter

from .fake_server import FakeServer, Refusal, fake_server

VALUE = StructType([StructField("value", StringType())])
QUERY = "0b5d4a5e-7b1c-4f53-9a0e-0d6a63f7a111"

Messages = list[WriterCommitMessage | None]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        running.ordinary |= {"bills", "bills.fifo", "others"}
        yield running


class Task:
    """What the writer asks Spark of the task it runs in."""

    partition = 0
    batch = 0

    def partitionId(self) -> int:
        return self.partition

    def getLocalProperty(self, name: str) -> str | None:
        return {writers.QUERY_PROPERTY: QUERY, writers.BATCH_PROPERTY: str(self.batch)}.get(name)


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    made = Task()
    monkeypatch.setattr(writers, "_task", lambda: made)
    return made


def stream(server: FakeServer, columns: StructType = VALUE, **options: str) -> StreamWriter:
    made = DefaultSource({"queue": "bills", **server.options, **options}).streamWriter(columns, False)
    assert isinstance(made, StreamWriter)
    return made


def batch(server: FakeServer, **options: str) -> BatchWriter:
    made = DefaultSource({"queue": "bills", **server.options, **options}).writer(VALUE, False)
    assert isinstance(made, BatchWriter)
    return made


def rows(*values: object, columns: StructType = VALUE) -> Iterator[pa.RecordBatch]:
    given = [value if isinstance(value, dict) else {"value": str(value)} for value in values]
    return iter([pa.RecordBatch.from_pylist(given, schema=arrow_schema(columns))])


def write(writer: StreamWriter | BatchWriter, *values: object) -> WriterCommitMessage:
    """Run a task, and return its message as the driver gets it."""
    message: WriterCommitMessage = pickle.loads(pickle.dumps(writer.write(rows(*values))))
    return message


def bodies(server: FakeServer, queue: str = "bills") -> list[str]:
    return [message["MessageBody"] for message in server.sent.get(queue, [])]


def test_rows_are_seen_when_the_batch_is_committed_and_not_before(server: FakeServer, task: Task) -> None:
    writer = stream(server)
    messages: Messages = []
    for task.partition in range(3):
        messages.append(write(writer, *(f"{task.partition}-{n}" for n in range(1_234))))

    assert bodies(server) == []
    writer.commit(messages, 0)

    assert bodies(server) == [f"{partition}-{n}" for partition in range(3) for n in range(1_234)]


def test_a_batch_that_is_repeated_adds_nothing(server: FakeServer) -> None:
    writer = stream(server)
    writer.commit([write(writer, "a", "b")], 0)

    repeated = write(stream(server), "a", "b")
    writer.commit([repeated], 0)

    assert bodies(server) == ["a", "b"]


def test_a_commit_whose_answer_is_lost_is_asked_for_again(server: FakeServer) -> None:
    writer = stream(server)
    message = write(writer, "a")
    cut: list[str] = []

    def after(action: str, fields: dict[str, Any]) -> None:
        if action == "CommitTransaction" and not cut:
            cut.append(action)
            raise ConnectionError

    server.after = after
    writer.commit([message], 0)

    assert bodies(server) == ["a"]


def test_a_commit_that_raises_after_its_effect_is_not_undone_by_the_abort(server: FakeServer) -> None:
    writer = stream(server, deadline="300ms")
    message = write(writer, "a")

    def after(action: str, fields: dict[str, Any]) -> None:
        if action == "CommitTransaction":
            raise ConnectionError

    server.after = after
    with pytest.raises(ServerIsUnavailable):
        writer.commit([message], 0)
    writer.abort([message], 0)
    server.after = lambda action, fields: None
    writer.commit([write(writer, "a")], 0)

    assert bodies(server) == ["a"]


def test_an_abort_lets_go_what_is_staged_and_the_batch_may_come_again(server: FakeServer) -> None:
    writer = stream(server)
    message = write(writer, "a")

    writer.abort([message, None], 0)
    assert not any(stages for batches in server.staged.values() for stages in batches.values())
    with pytest.raises(StagedRowsAreGone, match="start"):
        writer.commit([message], 0)
    writer.commit([write(writer, "a")], 0)

    assert bodies(server) == ["a"]


def test_an_abort_that_does_not_come_through_hides_no_other_error(server: FakeServer) -> None:
    writer = stream(server, deadline="100ms")
    message = write(writer, "a")

    def before(action: str, fields: dict[str, Any]) -> None:
        raise ConnectionError

    server.before = before
    writer.abort([message], 0)


def test_only_one_of_several_attempts_at_a_task_counts(server: FakeServer) -> None:
    writer = stream(server)

    def before(action: str, fields: dict[str, Any]) -> None:
        if action == "StageMessages" and fields["FirstIndex"] >= 1_000:
            raise Refusal(400, "InternalFault")

    server.before = before
    with pytest.raises(RequestRefused):
        write(writer, *range(2_000))
    server.before = lambda action, fields: None
    slow, quick = write(writer, *range(700)), write(writer, *range(700))
    del slow  # Spark takes the first that is through
    writer.commit([quick], 0)

    assert bodies(server) == list(map(str, range(700)))


def test_rows_that_expired_before_the_commit_are_an_error_that_names_the_queue(server: FakeServer) -> None:
    writer = stream(server)
    message = write(writer, "a")

    server.expire()

    with pytest.raises(StagedRowsAreGone, match="/bills: rows of batch 0 are not there any more"):
        writer.commit([message], 0)
    assert bodies(server) == []


def test_a_driver_that_was_replaced_commits_nothing_more(server: FakeServer, task: Task) -> None:
    zombie, heir = stream(server), stream(server)
    staged_by_zombie = write(zombie, "a")
    heir.commit([write(heir, "a")], 0)
    task.batch = 1
    heir.commit([write(heir, "b")], 1)

    zombie.commit([staged_by_zombie], 0)
    task.batch = 0
    zombie.commit([write(zombie, "a", "more")], 0)

    assert bodies(server) == ["a", "b"]


def test_each_queue_has_its_transaction_and_rows_keep_their_order(server: FakeServer) -> None:
    columns = StructType([*VALUE, SCHEMA["queue"], SCHEMA["key"]])
    given = [
        {"value": str(n), "queue": ("others", "bills.fifo", None)[n % 3], "key": f"g{n % 2}"}
        for n in range(3_000)
    ]
    writer = stream(server, columns)

    writer.commit([writer.write(rows(*given, columns=columns))], 0)

    assert bodies(server, "others") == [str(n) for n in range(0, 3_000, 3)]
    assert bodies(server, "bills.fifo") == [str(n) for n in range(1, 3_000, 3)]
    assert bodies(server) == [str(n) for n in range(2, 3_000, 3)]
    assert len({message["MessageDeduplicationId"] for message in server.sent["bills.fifo"]}) == 1_000
    commits = [fields["QueueUrl"] for action, fields in server.calls if action == "CommitTransaction"]
    assert sorted(commits) == sorted(map(server.url, ["others", "bills.fifo", "bills"]))


def test_a_batch_committed_in_one_queue_only_is_completed_by_its_repetition(server: FakeServer) -> None:
    columns = StructType([*VALUE, SCHEMA["queue"]])
    given = [{"value": "a", "queue": "bills"}, {"value": "b", "queue": "others"}]
    writer = stream(server, columns)

    def before(action: str, fields: dict[str, Any]) -> None:
        if action == "CommitTransaction" and fields["QueueUrl"].endswith("/others"):
            raise Refusal(400, "InternalFault")

    server.before = before
    message = writer.write(rows(*given, columns=columns))
    with pytest.raises(RequestRefused):
        writer.commit([message], 0)
    writer.abort([message], 0)
    server.before = lambda action, fields: None
    writer.commit([writer.write(rows(*given, columns=columns))], 0)

    assert (bodies(server), bodies(server, "others")) == (["a"], ["b"])


def test_calls_have_at_most_1000_messages_and_two_mebibytes(server: FakeServer) -> None:
    write(stream(server), *range(2_100))
    write(stream(server), *("é" * 200_000 for _ in range(7)))
    write(stream(server), "x" * (1 << 20), "y" * (1 << 20), "z")

    sizes = [len(fields["Messages"]) for action, fields in server.calls if action == "StageMessages"]
    assert sizes == [1_000, 1_000, 100, 5, 2, 2, 1]


def test_a_task_without_rows_has_nothing_to_commit(server: FakeServer) -> None:
    writer = stream(server)

    writer.commit([write(writer)], 0)

    assert server.calls == []


def test_a_batch_write_with_a_txn_id_is_sent_once_however_often_it_is_run(server: FakeServer) -> None:
    for _ in range(2):
        writer = batch(server, txnId="load-2026.11:a_b")
        writer.commit([write(writer, "a"), write(writer, "b")])

    assert bodies(server) == ["a", "b"]
    assert server.last_batches == {("bills", "txn:load-2026.11:a_b"): 0}


def test_a_batch_write_that_fails_leaves_nothing(server: FakeServer) -> None:
    writer = batch(server, txnId="load")

    writer.abort([write(writer, "a"), None])

    assert bodies(server) == []
    assert not any(stages for batches in server.staged.values() for stages in batches.values())


def test_a_server_without_transactions_is_told_with_the_option_that_does_without(server: FakeServer) -> None:
    server.has_transactions = False

    with pytest.raises(OptionIsInvalid, match="exactlyOnce=false"):
        write(stream(server), "a")
    writer = stream(server, exactlyOnce="false")
    message = write(writer, "a")
    writer.commit([message], 0)
    writer.abort([message], 0)

    assert bodies(server) == ["a"]


def test_a_row_that_the_server_refuses_ends_the_task(server: FakeServer) -> None:
    def before(action: str, fields: dict[str, Any]) -> None:
        if action == "StageMessages" and fields["FirstIndex"] == 1_000:
            raise Refusal(400, "InvalidMessageContents")

    server.before = before

    with pytest.raises(MessageIsRefused, match="rows 1000 to 2000 of a task"):
        write(stream(server), *range(5_000))


def test_a_batch_with_more_rows_than_a_transaction_may_have_says_what_to_do(server: FakeServer) -> None:
    def before(action: str, fields: dict[str, Any]) -> None:
        raise Refusal(403, "OverLimit")

    server.before = before

    with pytest.raises(MessageIsRefused, match="maxOffsetsPerTrigger"):
        write(stream(server, queue=server.url("bills")), "a")


def test_a_fifo_row_needs_a_key(server: FakeServer) -> None:
    with pytest.raises(OptionIsInvalid, match="needs a key"):
        write(stream(server, queue="bills.fifo"), "a")


def test_a_server_that_has_not_all_that_was_staged_is_an_error(server: FakeServer) -> None:
    server._json = lambda action, fields: {"Staged": 1, "AlreadyCommitted": False}  # type: ignore[method-assign]

    with pytest.raises(AnswerIsWrong, match="2 messages were staged, the server has 1"):
        write(stream(server, queue=server.url("bills")), "a", "b")
