"""The columns of the source, and answers of the server as Arrow batches of exactly the schema Spark expects.

Spark compares the first batch's Arrow schema with its own for equality, so batches are put into that one. `headers` are
made here, of the message attributes: what reads Kafka's source can go on as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
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
from quaymaster.protocol.logs.log_columns import NotColumns, parse_block

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
HEADERS = "headers"
HEADER_TYPE = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SCHEMA_WITH_HEADERS = StructType([*SCHEMA.fields, StructField(HEADERS, ArrayType(HEADER_TYPE))])
_ATTRIBUTES = "attributes"


def check_schema(schema: StructType, *, with_headers: bool = False) -> None:
    """Return when a schema is a choice of the source's columns; raises OptionIsInvalid naming the first that is not."""
    types: dict[str, DataType] = {
        field.name: field.dataType for field in (SCHEMA_WITH_HEADERS if with_headers else SCHEMA)
    }
    if not schema.fields:
        raise OptionIsInvalid(
            f"a schema without columns; to count, read offset alone; there are {', '.join(types)}"
        )
    for field in schema:
        there = types.get(field.name)
        if there is None:
            hint = " without includeHeaders=true" if field.name == HEADERS else ""
            raise OptionIsInvalid(f"there is no column {field.name!r}{hint}; there are {', '.join(types)}")
        if field.dataType != there:
            raise OptionIsInvalid(
                f"column {field.name} is {there.simpleString()}, not {field.dataType.simpleString()}: choose columns "
                "with schema(), and cast them afterwards"
            )


def columns_to_fetch(schema: StructType) -> list[str]:
    """Return the names of the server's columns that a schema is made of."""
    return list(dict.fromkeys(_ATTRIBUTES if name == HEADERS else name for name in schema.fieldNames()))


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
        from quaymaster.protocol.logs.log_arrow import to_record_batch

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
    arrays = [
        _headers(batch.column(_ATTRIBUTES), field.type)
        if field.name == HEADERS
        else batch.column(field.name).cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _headers(attributes: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return message attributes as Kafka has headers: in their order, each a name and bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # Of a slice, only its own entries.
    entries = pa.ListArray.from_arrays(
        attributes.offsets, pa.StructArray.from_arrays([attributes.keys, attributes.items], ["key", "value"])
    )
    names, values = entries.values.flatten()
    content = pc.coalesce(values.field("string_value").cast(pa.binary()), values.field("binary_value"))
    made = pa.StructArray.from_arrays([names, content], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(entries.offsets, made, type=kind)


def _slices(batch: pa.RecordBatch, rows_max: int) -> Iterator[pa.RecordBatch]:
    pieces = -(-batch.num_rows // rows_max)
    rows = -(-batch.num_rows // pieces)
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows) if pieces > 1 else batch
