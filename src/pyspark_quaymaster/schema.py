"""The columns of the source, and answers of the server as Arrow batches of exactly the schema Spark expects.

Spark compares the first batch's Arrow schema with its own for equality, so batches are put into that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_quaymaster.client import ARROW_TYPE, COLUMNS_TYPE, Fetched
from pyspark_quaymaster.errors import AnswerIsWrong, OptionIsInvalid
from quaymaster.protocol.log_columns import NotColumns, parse_block

if TYPE_CHECKING:
    import pyarrow as pa

ATTRIBUTE_TYPE = StructType(
    [
        StructField("type", StringType()),
        StructField("string_value", StringType()),
        StructField("binary_value", BinaryType()),
    ]
)
SCHEMA = StructType(
    [
        StructField("queue", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("key", StringType()),
        StructField("value", BinaryType()),
        StructField("message_id", StringType()),
        StructField("dedup_id", StringType()),
        StructField("sender_id", StringType()),
        StructField("attributes", MapType(StringType(), ATTRIBUTE_TYPE)),
        StructField("system_attributes", MapType(StringType(), StringType())),
        StructField("md5_body", StringType()),
    ]
)
_TYPES: dict[str, DataType] = {field.name: field.dataType for field in SCHEMA}


def check_schema(schema: StructType) -> None:
    """Return when a schema is a choice of the source's columns; raises OptionIsInvalid naming the first that is not."""
    if not schema.fields:
        raise OptionIsInvalid(f"a schema without columns; there are {', '.join(_TYPES)}")
    for field in schema:
        there = _TYPES.get(field.name)
        if there is None:
            raise OptionIsInvalid(f"there is no column {field.name!r}; there are {', '.join(_TYPES)}")
        if field.dataType != there:
            raise OptionIsInvalid(
                f"column {field.name} is {there.simpleString()}, not {field.dataType.simpleString()}: choose columns "
                "with schema(), and cast them afterwards"
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark compares batches with."""
    return to_arrow_schema(schema, timezone="UTC")


def decode(fetched: Fetched, schema: pa.Schema, rows_max: int) -> Iterator[pa.RecordBatch]:
    """Yield an answer's messages as batches of `schema` with at most `rows_max` rows; nothing is copied.

    Raises AnswerIsWrong for bytes that are no such answer.
    """
    import pyarrow as pa

    try:
        for batch in _batches(fetched):
            if batch.num_rows:
                yield from conform(batch, schema, rows_max)
    except (NotColumns, pa.ArrowInvalid, KeyError) as error:
        raise AnswerIsWrong(f"the server's {fetched.content_type} cannot be read: {error}") from error


def _batches(fetched: Fetched) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    if fetched.content_type == COLUMNS_TYPE:
        from quaymaster.protocol.log_arrow import to_record_batch

        yield to_record_batch(parse_block(fetched.body))
    elif fetched.content_type == ARROW_TYPE:
        with pa.ipc.open_stream(fetched.body) as reader:
            yield from reader
    else:
        raise AnswerIsWrong(f"messages came as {fetched.content_type!r}, which this connector does not read")


def conform(batch: pa.RecordBatch, schema: pa.Schema, rows_max: int) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches of exactly `schema` with at most `rows_max` rows."""
    return _slices(_conform(batch, schema), rows_max)


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    if batch.schema.equals(schema):
        return batch
    arrays = [batch.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _slices(batch: pa.RecordBatch, rows_max: int) -> Iterator[pa.RecordBatch]:
    pieces = -(-batch.num_rows // rows_max)
    rows = -(-batch.num_rows // pieces)
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows) if pieces > 1 else batch
