"""The sink: rows become messages, exactly once by transactions in the broker, or at least once without.

A stream's transaction is named by its query and batch: both outlive the driver in the checkpoint, so a batch that is
repeated after any failure is known. A batch write has no such name, unless `txnId` gives it one.

Spark's order of calls: `write` in tasks (several attempts, perhaps at once), then `commit` on the driver with the
message of one attempt each. When `commit` raises, though it had its effect, Spark calls `abort` and repeats the batch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from pyspark_quaymaster.client import TransactionKey
from pyspark_quaymaster.errors import OptionIsInvalid
from pyspark_quaymaster.options import SinkOptions
from pyspark_quaymaster.schema import ATTRIBUTE_TYPE, SCHEMA
from pyspark_quaymaster.sink import staging
from pyspark_quaymaster.sink.entries import QUEUES_OWN, rows_of
from pyspark_quaymaster.sink.sending import send_rows

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"

_INTEGERS = (ByteType(), ShortType(), IntegerType(), LongType())
_COLUMNS: dict[str, tuple[DataType, ...]] = {
    "value": (StringType(), BinaryType()),
    "queue": (StringType(),),
    "key": (StringType(),),
    "dedup_id": (StringType(),),
    "attributes": (MapType(StringType(), ATTRIBUTE_TYPE), MapType(StringType(), StringType())),
    "delay_seconds": _INTEGERS,
}


@dataclass
class Sent(WriterCommitMessage):
    """What a task has sent."""

    messages: int


class StreamWriter(DataSourceStreamArrowWriter):
    """Sends each batch of a stream."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionIsInvalid("a queue is appended to: use outputMode append")
        check_sink_schema(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task()
        query = context.getLocalProperty(QUERY_PROPERTY)
        batch = context.getLocalProperty(BATCH_PROPERTY)
        assert query, "Spark tells the tasks of a stream which query they run for"
        assert batch, "and which batch"
        rows = rows_of(iterator)
        if self._options.exactly_once:
            transaction = TransactionKey(query, int(batch))
            return staging.stage_rows(rows, self._options, transaction, context.partitionId())
        return Sent(send_rows(rows, self._options, f"{query}/{batch}/{context.partitionId()}"))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make the batch visible; without transactions nothing: what was sent is there."""
        staging.commit(messages, self._options, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Let go what is staged and not committed; what was sent without a transaction cannot be taken back."""
        staging.abort(messages, self._options)


class BatchWriter(DataSourceArrowWriter):
    """Sends rows once if they have a `txnId`, otherwise at least once: what a task had sent before is sent again."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionIsInvalid("a queue cannot be overwritten: use mode append, or INSERT INTO")
        check_sink_schema(schema, options, is_batch=True)
        self._options = options
        # Made once on the driver: attempts of a task share it, so that they repeat the same deduplication ids.
        self._name = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        rows, partition = rows_of(iterator), _task().partitionId()
        if self._options.txn_id is not None:
            transaction = TransactionKey(f"txn:{self._options.txn_id}", 0)
            return staging.stage_rows(rows, self._options, transaction, partition)
        return Sent(send_rows(rows, self._options, f"{self._name}/{partition}"))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows visible; without a transaction nothing: what was sent is there."""
        staging.commit(messages, self._options, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Let go what is staged and not committed; what was sent without a transaction cannot be taken back."""
        staging.abort(messages, self._options)


def check_sink_schema(schema: StructType, options: SinkOptions, *, is_batch: bool = False) -> None:
    """Return when rows of a schema can be sent; raises OptionIsInvalid naming the column and its types.

    A batch may have all columns of the source: that is what INSERT INTO a view gives, with null in those that the
    statement does not name. `rows_of` refuses rows with more than that.
    """
    fields = {field.name: field.dataType for field in schema}
    is_view = is_batch and fields.keys() >= set(SCHEMA.fieldNames())
    for name, kind in fields.items():
        kinds = _COLUMNS.get(name)
        if kinds is None and is_view and name in QUEUES_OWN:
            continue
        if kinds is None:
            raise OptionIsInvalid(f"column {name!r} cannot be sent; select some of {', '.join(_COLUMNS)}")
        # Whether there are nulls inside does not matter here.
        if kind.simpleString() not in {one.simpleString() for one in kinds}:
            allowed = " or ".join(one.simpleString() for one in kinds)
            raise OptionIsInvalid(f"column {name} is {allowed}, not {kind.simpleString()}")
    if "value" not in fields:
        raise OptionIsInvalid("the column value, a message's body, is missing")
    if "queue" not in fields and options.queue is None:
        raise OptionIsInvalid("where to send is missing: set the option queue, or add a column queue")


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written by tasks"
    return context
