"""Coverage as rows of ops.coverage, and back. Incarnations that ended go as arrays, without an object for each."""

from __future__ import annotations

import itertools
from array import array
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.usage.ended import FIELDS, NEVER_HEARD, PACKED, EndedIncarnations
from quaymaster_pipeline.usage.expired import LINE_COLUMNS
from quaymaster_pipeline.usage.sequences import Coverage, CoverageLine
from quaymaster_pipeline.warehouse.schemas import COVERAGE

_LINE_SCHEMA = pa.schema([COVERAGE.schema.field(name) for name in LINE_COLUMNS])


def coverage_in(rows: Any) -> Coverage:
    """Return what rows of ops.coverage say."""
    rows = rows.select(LINE_COLUMNS).combine_chunks()
    have_ended, ends, heard = _ended_in(rows)
    others = rows.filter(pa.array(~have_ended))
    columns = (others.column(name).to_pylist() for name in LINE_COLUMNS)
    lines = [CoverageLine(*line) for line in zip(*columns, strict=True)]
    return Coverage.of_lines(lines, _packed(rows, have_ended, ends, heard))


def coverage_rows(coverage: Coverage, batch_id: int) -> Any:
    """Return rows of ops.coverage that say the same as of a batch, in the order of their incarnations."""
    others = list(zip(*coverage.lines_of_others(), strict=True)) or [()] * len(LINE_COLUMNS)
    columns = [pa.array(column, field.type) for column, field in zip(others, _LINE_SCHEMA, strict=True)]
    rows = pa.concat_tables([pa.table(columns, schema=_LINE_SCHEMA), _rows_of_ended(coverage.ended)])
    rows = rows.sort_by([("front_end", "ascending"), ("epoch", "ascending")])
    batches = pa.repeat(pa.scalar(batch_id, pa.int64()), rows.num_rows)
    return rows.append_column("batch_id", batches).select(COVERAGE.schema.names).cast(COVERAGE.schema)


def _ended_in(rows: Any) -> tuple[Any, Any, Any]:
    """Return which rows are of incarnations that ended whole, and of these the end and the time that was heard last.

    It is the rule of `Coverage`, over columns.
    """
    begins, ends, has_range, range_is_one = _pairs(rows.column("ranges"))
    upto, heard, has_heard, heard_is_one = _pairs(rows.column("watermarks"))
    ends = np.where(has_range, ends, 0)
    sealed = pc.and_(
        pc.fill_null(rows.column("is_sealed"), False), pc.is_valid(rows.column("front_end"))
    ).to_numpy()
    seal_ends = pc.fill_null(rows.column("seal_end"), -1).to_numpy()
    is_end = np.where(pc.is_null(rows.column("seal_end")).to_numpy(), True, seal_ends == ends)
    is_whole = range_is_one & (~has_range | ((begins == 0) & (ends > 0)))
    is_heard = heard_is_one & (~has_heard | ((upto == ends) & (heard >= 0)))
    return sealed & is_end & is_whole & is_heard, ends, np.where(has_heard, heard, NEVER_HEARD)


def _pairs(column: Any) -> tuple[Any, Any, Any, Any]:
    """Return of lists the first two numbers, whether there are any, and whether there are no more."""
    lists = column.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    flat = np.append(pc.list_flatten(lists).to_numpy(), [0, 0])
    firsts = np.cumsum(lengths) - lengths
    return flat[firsts], flat[firsts + 1], lengths > 0, lengths <= 2


def _packed(rows: Any, have_ended: Any, ends: Any, heard: Any) -> EndedIncarnations:
    at = np.flatnonzero(have_ended)
    mine = rows.select(["front_end", "epoch"]).take(pa.array(at))
    order = pc.sort_indices(mine, [("front_end", "ascending"), ("epoch", "ascending")]).to_numpy()
    mine, at = mine.take(pa.array(order)), at[order]
    is_known = pc.is_valid(rows.column("seal_end")).to_numpy()[at]
    numbers = np.empty((len(at), FIELDS), np.int64)
    numbers[:, 0] = mine.column("epoch").to_numpy()
    numbers[:, 1] = np.where(is_known, ends[at], ~ends[at])
    numbers[:, 2] = heard[at]
    names = mine.column("front_end").combine_chunks().dictionary_encode()
    codes = names.indices.to_numpy()
    firsts = np.flatnonzero(np.diff(codes, prepend=-1))
    bounds = [*firsts.tolist(), len(codes)]
    return EndedIncarnations(
        {
            name: array(PACKED, numbers[begin:end].tobytes())
            for name, (begin, end) in zip(
                names.dictionary.to_pylist(), itertools.pairwise(bounds), strict=True
            )
        }
    )


def _rows_of_ended(ended: EndedIncarnations) -> Any:
    packed = list(ended.packed())
    if not packed:
        return _LINE_SCHEMA.empty_table()
    parts = [np.frombuffer(numbers, np.int64).reshape(-1, FIELDS) for _, numbers in packed]
    numbers, ends, heard = np.concatenate(parts).T
    counts = [len(part) for part in parts]
    names = pa.array([name for name, _ in packed], pa.string())
    is_known = ends >= 0
    ends = np.where(is_known, ends, ~ends)
    columns = {
        "front_end": names.take(pa.array(np.repeat(np.arange(len(parts)), counts))),
        "epoch": pa.array(numbers),
        "ranges": _lists(np.zeros_like(ends), ends, ends > 0),
        "watermarks": _lists(ends, heard, heard != NEVER_HEARD),
        "is_sealed": pa.repeat(pa.scalar(value=True), len(ends)),
        "seal_end": pa.array(ends, mask=~is_known),
    }
    return pa.table([columns[name] for name in LINE_COLUMNS], schema=_LINE_SCHEMA)


def _lists(firsts: Any, seconds: Any, are_there: Any) -> Any:
    """Return lists of two numbers, empty where none are there."""
    offsets = np.concatenate(([0], np.cumsum(2 * are_there)))
    values = np.column_stack([firsts, seconds])[are_there].ravel()
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values, pa.int64()))
