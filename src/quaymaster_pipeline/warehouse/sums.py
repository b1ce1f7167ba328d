"""Partial sums: rows that readers add up by their keys, in tables to which batches only append.

    a batch's tasks ──append──▶ many small files ──merge──▶ few large ones        the sums stay what they were

A file has the rows of one period (an hour, or all hours of a day), each key once, sorted by the keys. So files of any
size are added up as sorted streams, and the memory that takes does not depend on how many rows there are. Files that
are not sorted are added up as well, only that a key may then have several rows.

Only integers are added, so neither the order nor the grouping of partial sums matters.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.warehouse.data_files import DataFile, FileWriter, TablePlace, read_batches
from quaymaster_pipeline.warehouse.schemas import USAGE_COUNTS, TableSpec
from quaymaster_pipeline.warehouse.tables import Table

MAXIMA: Final = ("latency_us_max", "last_batch")
MINIMA: Final = ("first_batch",)
SUMS: Final = tuple(field.name for field in USAGE_COUNTS if field.name not in (*MAXIMA, *MINIMA))
"""Columns that are added."""
ROWS_IN_MEMORY: Final = 1 << 18
"""So many rows of all files together are read at a time when files are added up."""
ROWS_OF_FILE_MIN: Final = 1_024
_CODE_MAX = 1 << 62
_SPAN_MAX = 1 << 20
"""Integers that lie so near to each other are taken as they are."""

Key = tuple[tuple[bool, Any], ...]
"""A row's values of the keys, in Arrow's order, which has nulls last."""


@dataclass(frozen=True, slots=True)
class SumTable:
    """A table of partial sums."""

    spec: TableSpec
    keys: tuple[str, ...]
    """What tells the rows of one file apart, and their order."""
    period_column: str
    """A file has rows of one value of this: `hour`, or the date."""
    period_us: int
    merges_max: int
    """How often a row is merged before its period ends."""

    @property
    def sums(self) -> tuple[str, ...]:
        """The columns of this table that are added."""
        return tuple(name for name in SUMS if name in self.spec.file_schema.names)


def add_up(table: Any, keys: Sequence[str], schema: Any) -> Any:
    """Return rows with the same keys as one, in the order of the keys, with the columns of `schema`.

    Columns that are neither added nor the greatest or least must be the same in rows with the same keys.
    """
    if table.num_rows == 0:
        return schema.empty_table()
    codes = _codes(table, keys)
    # Sorted as one number, keys of any kind cost what one column of integers does: half of a hash table of all of them.
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    firsts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    representatives = pa.array(order[firsts])
    columns = []
    for field in schema:
        column, reduce = table.column(field.name), _reduction(field.name)
        if reduce is None:
            columns.append(column.take(representatives).cast(field.type))
        else:
            values = pc.fill_null(column, 0).to_numpy()[order]
            columns.append(pa.array(reduce.reduceat(values, firsts)).cast(field.type))
    return pa.table(columns, schema=schema)


def add_up_files(table: Table, files: Iterable[DataFile], keys: Sequence[str], names: Sequence[str]) -> Any:
    """Return the rows of files of a table, added up by `keys`, with the columns `names`; part after part."""
    schema = pa.schema([table.spec.schema.field(name) for name in names])
    found = schema.empty_table()
    part: list[DataFile] = []
    rows = 0
    for file in files:
        # At least as many as were found: else these are added up again and again.
        if part and rows + file.rows > max(ROWS_IN_MEMORY, found.num_rows):
            found = add_up(pa.concat_tables([found, table.read(names, files=part)]), keys, schema)
            part, rows = [], 0
        part.append(file)
        rows += file.rows
    return add_up(pa.concat_tables([found, table.read(names, files=part)]), keys, schema)


def totals_of(rows: Any, names: Iterable[str]) -> Counter[str]:
    """Return the sum of each of these columns."""
    return Counter({name: pc.sum(rows.column(name)).as_py() or 0 for name in names})


def write_sums(place: TablePlace, sums: SumTable, prefix: str, rows: Any) -> list[DataFile]:
    """Write rows with all columns of the table, in the order of the keys: a file a period."""
    files = []
    with contextlib.ExitStack() as stack:
        for period in pc.unique(rows.column(sums.period_column)):
            part = rows.filter(pc.equal(rows.column(sums.period_column), period))
            date = part.column(sums.spec.partition_column)[0].as_py()
            writer = stack.enter_context(FileWriter(place, sums.spec, prefix, str(date)))
            writer.write(part.select(sums.spec.file_schema.names).cast(sums.spec.file_schema))
            files.append(writer.finish())
    return [file for file in files if file is not None]


def read_sorted(
    place: TablePlace, spec: TableSpec, file: DataFile, schema: Any, *, of_files: int
) -> Iterator[Any]:
    """Yield the rows of a file with the columns of `schema`, a share of memory at a time where `of_files` are read."""
    rows = max(ROWS_OF_FILE_MIN, ROWS_IN_MEMORY // of_files)
    return read_batches(place, spec, file.path, schema.names, rows)


def summed(streams: Iterable[Iterator[Any]], keys: Sequence[str], schema: Any) -> Iterator[Any]:
    """Yield the rows of sorted streams, those with the same keys as one, in the order of the keys."""
    for rows in together(streams, keys, schema):
        yield add_up(rows, keys, schema)


def together(streams: Iterable[Iterator[Any]], keys: Sequence[str], schema: Any) -> Iterator[Any]:
    """Yield the rows of sorted streams, all that have the same keys at once, in the order of the keys, but for those in
    between that are yielded together.

    What is below the least of the last keys that streams have given is whole: no stream has more of it.
    """
    waiting: list[tuple[Any, Iterator[Any]]] = [(schema.empty_table(), stream) for stream in streams]
    while waiting:
        filled = []
        for rows, stream in waiting:
            while rows is not None and rows.num_rows == 0:
                rows = next(stream, None)
            if rows is not None:
                filled.append((rows.combine_chunks(), stream))
        bound = min((_key_at(rows, keys, rows.num_rows - 1) for rows, _ in filled), default=None)
        if bound is None:
            return
        counts = [_count_up_to(rows, keys, bound) for rows, _ in filled]
        yield pa.concat_tables(
            [rows.slice(0, count) for (rows, _), count in zip(filled, counts, strict=True)]
        )
        waiting = [(rows.slice(count), stream) for (rows, stream), count in zip(filled, counts, strict=True)]


def _key_at(rows: Any, keys: Sequence[str], at: int) -> Key:
    values = (rows.column(name)[at].as_py() for name in keys)
    return tuple((value is None, 0 if value is None else value) for value in values)


def _count_up_to(rows: Any, keys: Sequence[str], bound: Key) -> int:
    """Return how many rows, from the first on, are not above a key. The rows are sorted."""
    low, high = 0, int(rows.num_rows)
    if _key_at(rows, keys, high - 1) <= bound:
        return high
    while low < high:
        middle = (low + high) // 2
        if _key_at(rows, keys, middle) <= bound:
            low = middle + 1
        else:
            high = middle
    return low


def _reduction(name: str) -> Any:
    if name in SUMS:
        return np.add
    if name in MAXIMA:
        return np.maximum
    return np.minimum if name in MINIMA else None


def _codes(table: Any, keys: Sequence[str]) -> Any:
    """Return an int64 for each row, equal where the keys are, and in their order."""
    codes, size = np.zeros(table.num_rows, np.int64), 1
    for name in keys:
        values, ranks = _ranks(table.column(name))
        if size * values > _CODE_MAX:
            kept, codes = np.unique(codes, return_inverse=True)
            size = len(kept)
        codes, size = codes * values + ranks, size * values
    return codes


def _ranks(column: Any) -> tuple[int, Any]:
    """Return how many numbers are needed for a column's values, and one for each row, in the order of the values."""
    kind = column.type
    is_number = pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_integer(kind)
    if is_number and not column.null_count:
        numbers = (column.cast(pa.int32()) if pa.types.is_date(kind) else column).cast(pa.int64()).to_numpy()
        low, high = int(numbers.min()), int(numbers.max())
        if high - low < _SPAN_MAX:
            return high - low + 1, numbers - low
        found, ranks = np.unique(numbers, return_inverse=True)
        return len(found), ranks
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    found = pc.array_sort_indices(encoded.dictionary).to_numpy()
    ranks = np.empty(len(found), np.int64)
    ranks[found] = np.arange(len(found))
    return len(found), ranks[encoded.indices.to_numpy()]
