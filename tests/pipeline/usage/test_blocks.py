"""Blocks opened as arrays: what the plain decoder gives, and refused where it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.forged_blocks import forged
from harness.usage_blocks import FrontEnd, context_of

from quaymaster.protocol.usage.usage_blocks import decode_block
from quaymaster.protocol.usage.usage_rows import CorruptBlock, PackedRows, UsageRows
from quaymaster_pipeline.usage.requests import Contexts, Opened, Origin, open_block, request_rows
from quaymaster_pipeline.usage.rules import usage_rows
from quaymaster_pipeline.warehouse.data_files import FileWriter, TablePlace
from quaymaster_pipeline.warehouse.schemas import USAGE_EVENTS

ORIGIN = Origin(0, 7, 3)


def columns_of(rows: UsageRows) -> list[list[object]]:
    return [
        column.to_pylist() if isinstance(column, pa.Array) else list(column)
        for column in (getattr(rows, name) for name in UsageRows.__struct_fields__)
    ]


@pytest.mark.parametrize("rows", [0, 1, 30, 4_096])
def test_columns_are_those_of_the_plain_decoder(rows: int) -> None:
    data = FrontEnd("a").block(rows)

    opened, plain = open_block(data), decode_block(data)

    assert (opened.header, opened.digest) == (plain.header, plain.digest)
    assert columns_of(opened.rows) == columns_of(plain.rows)
    if rows:
        assert request_rows([Opened(opened, ORIGIN)]).equals(request_rows([Opened(plain, ORIGIN)]))


def test_rows_of_blocks_that_share_contexts_are_those_of_each_block_by_itself() -> None:
    front_ends = FrontEnd("a"), FrontEnd("b", besides=(context_of("SendMessage", 2, status=500),))
    data = [front_end.block(rows) for front_end in front_ends for rows in (30, 1, 7)]
    known = Contexts()

    together = request_rows([Opened(open_block(one, known), ORIGIN) for one in data])

    alone = [request_rows([Opened(open_block(one), ORIGIN)]) for one in data]
    assert together.equals(pa.concat_tables(alone))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.contexts.__setitem__(0, None), "cannot be read"),
        (lambda rows: setattr(rows, "latency", rows.latency[:-1]), "cannot be read"),
        (lambda rows: setattr(rows, "latency", b"x" + rows.latency[1:]), "cannot be read"),
        (lambda rows: setattr(rows, "latency", b""), "cannot be read"),
        (lambda rows: setattr(rows, "server", b"B" + bytes(29)), "not of one length"),
        (lambda rows: setattr(rows, "request_ids", rows.request_ids + "\n"), "not of one length"),
        (lambda rows: setattr(rows, "context", b"B" + bytes([200] * 30)), "name what it does not have"),
        (lambda rows: setattr(rows.changes[0], "row", 30), "name what it does not have"),
        (lambda rows: setattr(rows, "message_count", b"B" + bytes(30)), "not to what its header says"),
        (lambda rows: setattr(rows, "payload_bytes", b"B" + bytes(30)), "not to what its header says"),
    ],
)
def test_what_the_plain_decoder_refuses_is_refused_in_the_same_words(
    change: Callable[[PackedRows], None], message: str
) -> None:
    data = forged(FrontEnd("a").block(30), change)

    with pytest.raises(CorruptBlock, match=message):
        decode_block(data)
    with pytest.raises(CorruptBlock, match=message):
        open_block(data)


def test_a_number_that_tables_cannot_hold_is_damage_and_ends_no_task() -> None:
    data = forged(
        FrontEnd("a").block(30), lambda rows: setattr(rows, "latency", b"Q" + bytes(7 + 29 * 8) + b"\x80")
    )

    with pytest.raises(CorruptBlock, match="9223372036854775807"):
        open_block(data)


def test_numbers_of_a_data_file_are_written_as_differences(tmp_path: object) -> None:
    writer = FileWriter(TablePlace(f"{tmp_path}/table", {}), USAGE_EVENTS, "bronze-0", "2026-11-22")
    rows = usage_rows(request_rows([Opened(open_block(FrontEnd("a").block(4_096)), ORIGIN)]))
    rows = rows.select(USAGE_EVENTS.file_schema.names)
    writer.write(rows)

    file = writer.finish()

    assert file is not None
    path = f"{tmp_path}/table/{file.path}"
    group = pq.ParquetFile(path).metadata.row_group(0)
    encodings = {
        group.column(at).path_in_schema: group.column(at).encodings for at in range(group.num_columns)
    }
    for name in ("sequence", "event_time", "latency_us", "queue_sk"):
        assert "DELTA_BINARY_PACKED" in encodings[name]
    assert pq.read_table(path, partitioning=None).equals(rows)
