"""Columns of a log: what goes in comes out as Arrow's arrays, whole and in part; damaged bytes are refused."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.core.values.messages import MessageContent
from quaymaster.protocol.logs.log_arrow import arrow_schema, to_ipc_stream, to_record_batch
from quaymaster.protocol.logs.log_columns import (
    ALIGNMENT,
    COLUMNS,
    Block,
    NotColumns,
    parse_block,
    render_block,
    slice_block,
)
from quaymaster.protocol.logs.log_rows import BlockBuilder, Rows, columns_of

NOTHING = Rows("jobs", 3, [], [], [], [], [])

texts = st.text(max_size=12)
attributes = st.lists(
    st.one_of(
        st.tuples(texts, st.sampled_from(["String", "Number.int"]), texts),
        st.tuples(texts, st.just("Binary"), st.binary(max_size=8)),
    ),
    max_size=3,
)
contents = st.builds(
    MessageContent,
    body=texts,
    body_md5=st.binary(min_size=16, max_size=16),
    attributes=attributes,
    attributes_md5=st.none(),
    sender_id=texts,
    group_id=st.none() | texts,
    dedup_id=st.none() | texts,
    trace_header=st.none() | texts,
)
row = st.tuples(
    st.integers(1, 2**62),
    st.integers(0, 2**52),
    st.binary(min_size=16, max_size=16),
    st.none() | texts,
    contents,
)


def rows_of(each: list[tuple[int, int, bytes, str | None, MessageContent]]) -> Rows:
    rows = Rows("jobs", 3, [], [], [], [], [])
    for offset, sent_ms, message_id, source, content in each:
        rows.offsets.append(offset)
        rows.sent_ms.append(sent_ms)
        rows.message_ids.append(message_id)
        rows.dead_letter_sources.append(source)
        rows.contents.append(content)
    return rows


def expected(
    offset: int, sent_ms: int, message_id: bytes, source: str | None, content: Any
) -> dict[str, Any]:
    system = [("AWSTraceHeader", content.trace_header), ("DeadLetterQueueSourceArn", source)]
    return {
        "queue": "jobs",
        "partition": 3,
        "offset": offset,
        "timestamp": sent_ms * 1_000,
        "key": content.group_id,
        "value": content.body.encode(),
        "message_id": str(uuid.UUID(bytes=message_id)),
        "dedup_id": content.dedup_id,
        "sender_id": content.sender_id,
        "attributes": [
            (
                name,
                {
                    "type": data_type,
                    "string_value": value if isinstance(value, str) else None,
                    "binary_value": value if isinstance(value, bytes) else None,
                },
            )
            for name, data_type, value in content.attributes
        ],
        "system_attributes": [(name, value) for name, value in system if value],
        "md5_body": content.body_md5.hex(),
    }


def seen(block: Block) -> list[dict[str, Any]]:
    batch = to_record_batch(block)
    batch.validate(full=True)
    if "timestamp" in block.columns:
        at = batch.schema.get_field_index("timestamp")
        batch = batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64()))
    return batch.to_pylist()  # type: ignore[no-any-return]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(row, max_size=5), max_size=4), st.data())
def test_columns_that_were_made_in_parts_are_the_same_bytes_as_those_of_all_messages(
    parts: list[list[Any]], data: st.DataObject
) -> None:
    names = data.draw(st.lists(st.sampled_from(list(COLUMNS)), unique=True, min_size=1))
    whole, joined = BlockBuilder(names), BlockBuilder(names)

    for part in parts:
        whole.append(rows_of(part))
        if data.draw(st.booleans()):
            joined.append(rows_of(part))
        else:
            joined.append_block(parse_block(b"".join(render_block(columns_of(rows_of(part), names)))))

    assert joined.names == whole.names == names
    assert b"".join(render_block(joined.block())) == b"".join(render_block(whole.block()))


def test_the_schema_is_the_one_that_spark_asks_for() -> None:
    attribute = pa.struct(
        [("type", pa.string()), ("string_value", pa.string()), ("binary_value", pa.binary())]
    )

    assert arrow_schema(COLUMNS) == pa.schema(
        [
            ("queue", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("key", pa.string()),
            ("value", pa.binary()),
            ("message_id", pa.string()),
            ("dedup_id", pa.string()),
            ("sender_id", pa.string()),
            ("attributes", pa.map_(pa.string(), attribute)),
            ("system_attributes", pa.map_(pa.string(), pa.string())),
            ("md5_body", pa.string()),
        ]
    )


@settings(deadline=None, max_examples=150)
@given(st.lists(row, max_size=20), st.data())
def test_messages_come_out_as_they_went_in_also_a_part_of_them(each: list[Any], data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(list(COLUMNS)), unique=True, min_size=1))
    start = data.draw(st.integers(0, len(each)))
    stop = data.draw(st.integers(start, len(each)))

    block = parse_block(b"".join(render_block(columns_of(rows_of(each), names))))

    assert list(block.columns) == names
    all_rows = [{name: value[name] for name in names} for value in [expected(*one) for one in each]]
    assert seen(block) == all_rows
    part = parse_block(b"".join(render_block(slice_block(block, start, stop))))
    assert part.rows == stop - start
    assert seen(part) == all_rows[start:stop]


@settings(deadline=None, max_examples=150)
@given(st.lists(st.lists(row, max_size=9), max_size=5))
def test_columns_made_in_parts_are_those_made_at_once(parts: list[list[Any]]) -> None:
    builder = BlockBuilder(COLUMNS)

    for part in parts:
        builder.append(rows_of(part))

    at_once = columns_of(rows_of([one for part in parts for one in part]), COLUMNS)
    assert b"".join(render_block(builder.block())) == b"".join(render_block(at_once))
    assert seen(builder.block()) == seen(at_once)


def test_a_whole_slice_is_the_block_itself() -> None:
    block = columns_of(NOTHING, ["value"])

    assert slice_block(block, 0, 0) is block


def test_without_contents_the_plain_columns_are_there() -> None:
    rows = Rows("jobs", 0, [7, 8], [1, 2], [], [], [])

    assert seen(columns_of(rows, ["offset", "timestamp", "queue", "partition"])) == [
        {"offset": 7, "timestamp": 1_000, "queue": "jobs", "partition": 0},
        {"offset": 8, "timestamp": 2_000, "queue": "jobs", "partition": 0},
    ]


@pytest.mark.parametrize("sender", ["me", "", "ö"])
def test_what_all_messages_have_alike_comes_out_for_each(sender: str) -> None:
    content = MessageContent("body", bytes(16), [], None, sender)
    each: list[Any] = [(number, 5, bytes(16), None, content) for number in range(1, 4)]

    assert seen(columns_of(rows_of(each), COLUMNS)) == [expected(*one) for one in each]


def test_a_text_may_be_empty_throughout() -> None:
    content = MessageContent("body", bytes(16), [], None, "me", group_id="")
    each: list[Any] = [(number, 5, bytes(16), None, content) for number in range(1, 4)]

    assert seen(columns_of(rows_of(each), ["key"])) == [{"key": ""}] * 3


def test_buffers_lie_where_a_processor_wants_them() -> None:
    rows = rows_of([(1, 2, bytes(16), None, MessageContent("body", bytes(16), [], None, "me"))])
    data = b"".join(render_block(columns_of(rows, COLUMNS)))

    block = parse_block(data)

    whole = memoryview(data)
    for buffers in block.columns.values():
        for buffer in buffers:
            found = bytes(buffer)
            assert not found or any(
                whole[at : at + len(found)] == found for at in range(0, len(data), ALIGNMENT)
            )


def test_an_ipc_stream_has_the_same_rows_and_the_exact_schema() -> None:
    block = columns_of(
        rows_of([(1, 2, bytes(16), "arn", MessageContent("ö", bytes(16), [], None, "me"))]), COLUMNS
    )

    table = pa.ipc.open_stream(to_ipc_stream(block)).read_all()

    assert table.schema == arrow_schema(COLUMNS)
    assert table.to_batches() == [to_record_batch(block)]


def test_the_bytes_of_columns_stay_as_they_are() -> None:
    data = b"".join(render_block(columns_of(Rows("q", 0, [5], [1], [], [], []), ["offset", "queue"])))

    assert data[:16] == b"\x01QMC" + bytes([1, 0, 0, 0, 2, 0, 0, 0, 88, 0, 0, 0])
    assert data[16:40] == bytes([3, 1, 0, 0]) + (128).to_bytes(8, "little") + (8).to_bytes(
        8, "little"
    ) + bytes([1, 3, 0, 0])
    assert data[128:136] == (5).to_bytes(8, "little")


def test_columns_of_a_newer_program_are_left_out() -> None:
    data = bytearray(
        b"".join(render_block(columns_of(Rows("q", 0, [5], [1], [], [], []), ["offset", "queue"])))
    )
    data[16] = 99

    assert list(parse_block(bytes(data)).columns) == ["queue"]


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, 2, "version 2"),
        (1, 0, "something else"),
        (8, 3, "head is cut short|contradicts|cut short"),
        (12, 0, "contradicts itself"),
        (17, 0, "contradicts itself"),
        (27, 255, "cut short"),
    ],
)
def test_what_is_damaged_is_said_to_be(at: int, value: int, message: str) -> None:
    data = bytearray(
        b"".join(render_block(columns_of(Rows("q", 0, [5], [1], [], [], []), ["offset", "queue"])))
    )
    data[at] = value

    with pytest.raises(NotColumns, match=message):
        parse_block(bytes(data))


@given(st.integers(0, 200))
def test_what_is_cut_short_is_not_read(size: int) -> None:
    data = b"".join(render_block(columns_of(Rows("jobs" * 9, 0, [5], [1], [], [], []), ["offset", "queue"])))
    assert len(data) > 200

    with pytest.raises(NotColumns):
        parse_block(data[:size])


@given(st.binary(max_size=120))
def test_any_bytes_are_columns_or_not(data: bytes) -> None:
    for given_bytes in (data, b"\x01QMC" + data):
        try:
            parse_block(given_bytes)
        except NotColumns:
            continue
