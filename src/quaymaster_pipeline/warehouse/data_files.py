"""Parquet files of tables: written anywhere, named once, and part of a table only when its log says so.

A task that is repeated, or run twice at a time, writes files under other names; those that are not committed are
garbage that `quaymaster pipeline compact` removes. Paths are relative to the table; storage options are those of
`deltalake`, also for S3 and what is like it, so that Spark needs no Java library for it.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from quaymaster_pipeline.warehouse.errors import BrokenTable
from quaymaster_pipeline.warehouse.object_stores import telling_store, writing_to
from quaymaster_pipeline.warehouse.schemas import SUMMED_UP, TableSpec
from quaymaster_pipeline.warehouse.times import bound_of_time

ROW_GROUP_ROWS = 131_072
HASHED_AT_ONCE = 1 << 20
ROW_GROUP_BYTES = 64 << 20
"""Of rows in memory: what is read together must fit there."""
PLAIN_BYTES = 1 << 14
"""A file of so few bytes in memory is not compressed: it would hardly be smaller, as most of it says what columns there
are, and a compressor for each column costs as much to prepare as all else of writing, and thrice that of reading."""
UNIQUE_TEXTS = frozenset(
    {"event_id", "request_id", "request_params", "response_elements", "request_parameters"}
)
"""Columns whose values hardly repeat, for which a dictionary would be built in vain."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that a table has or may have. `bounds` are lowest and highest values by column, as the log has them."""

    path: str
    size: int
    rows: int
    partition_value: str | None
    bounds: Mapping[str, tuple[Any, Any]]
    nulls: Mapping[str, int] = field(default_factory=dict)
    """How many values of the columns with bounds are null."""
    written_ms: int = field(default=0, compare=False)
    """When it was written, by the clock of the store that has it; 0 where that does not matter any more."""

    def may_have(self, column: str, low: Any, high: Any) -> bool:
        """Return whether it may have rows with values of a column from `low` up to `high`, both included."""
        first, last = self.bounds[column]
        return bool(first <= high and low <= last)

    @property
    def stats(self) -> str:
        """The statistics as Delta's log has them."""
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": {name: low for name, (low, _) in self.bounds.items()},
                "maxValues": {name: high for name, (_, high) in self.bounds.items()},
                "nullCount": dict(self.nulls),
            }
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object, for notes in a table's log and for answers of tasks."""
        return {
            "path": self.path,
            "size": self.size,
            "rows": self.rows,
            "partition_value": self.partition_value,
            "bounds": {name: list(pair) for name, pair in self.bounds.items()},
            "nulls": dict(self.nulls),
            "written_ms": self.written_ms,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> DataFile:
        """Return what `to_json` was made of."""
        bounds = {name: (low, high) for name, (low, high) in fields["bounds"].items()}
        partition_value, nulls = fields["partition_value"], fields.get("nulls", {})
        sizes = fields["size"], fields["rows"]
        return cls(fields["path"], *sizes, partition_value, bounds, nulls, fields.get("written_ms", 0))

    @classmethod
    def of_note(cls, fields: Mapping[str, Any]) -> DataFile:
        """Return a file that the note of a commit to another table lists, to be committed next.

        However old it is then: who deletes old files commits those first.
        """
        return replace(cls.from_json(fields), written_ms=0)


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Where the files of one table are: a directory or a URI, with what is needed to get there. Can be pickled."""

    uri: str
    storage_options: Mapping[str, str]

    @property
    def is_local(self) -> bool:
        """Whether it is a directory of this machine."""
        return "://" not in self.uri

    def filesystem(self) -> Any:
        """Return a `pyarrow.fs.FileSystem` rooted at the table."""
        if self.is_local:
            os.makedirs(self.uri, exist_ok=True)
            return pyarrow.fs.SubTreeFileSystem(self.uri, pyarrow.fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        handler = DeltaStorageHandler(self.uri, dict(self.storage_options))
        return pyarrow.fs.PyFileSystem(handler)


def are_there(place: TablePlace, files: Iterable[DataFile]) -> bool:
    """Return whether none of these files is gone."""
    paths = [file.path for file in files]
    with telling_store(place.uri):
        found = place.filesystem().get_file_info(paths)
    return all(one.type == pyarrow.fs.FileType.File for one in found)


class FileWriter:
    """Writes one data file, batch by batch. `finish` makes it durable; without it nothing is left to commit.

    Used with `with`, an error in the block deletes the file: where the disk is full, what will not be committed takes
    no room. What writes raises WarehouseFull.
    """

    def __init__(
        self, place: TablePlace, spec: TableSpec, prefix: str, partition_value: str | None = None
    ) -> None:
        self._place = place
        self._schema = spec.file_schema
        self._partition_value = partition_value
        name = f"{prefix}-{uuid.uuid4().hex}.parquet"
        self._path = name if partition_value is None else f"{spec.partition_column}={partition_value}/{name}"
        self._rows = 0
        self._lows: dict[str, Any] = {}
        self._highs: dict[str, Any] = {}
        self._numbers = spec.number_columns
        self._bounded = spec.bounded_columns
        self._nulls = dict.fromkeys(self._bounded, 0)
        self._compression: str | dict[str, str] = "zstd"
        self._level: int | dict[str, int] = 1
        if spec.stored_as_is:
            packed = [name for name in self._schema.names if name not in spec.stored_as_is]
            self._compression = dict.fromkeys(spec.stored_as_is, "none") | dict.fromkeys(packed, "zstd")
            self._level = dict.fromkeys(packed, 1)
        self._writer: Any = None
        with writing_to(place.uri):
            filesystem = place.filesystem()
            if "/" in self._path:
                filesystem.create_dir(os.path.dirname(self._path), recursive=True)
            self._sink = filesystem.open_output_stream(self._path)
        self._waiting: list[Any] = []
        self._waiting_rows = self._waiting_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self._discard()

    def write(self, table: Any) -> None:
        """Add the rows of a `pyarrow.Table` with exactly the columns of a data file."""
        self._waiting.append(table)
        self._waiting_rows += table.num_rows
        self._waiting_bytes += table.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def end_row_group(self) -> None:
        """Let what is written next be read apart from what was written so far."""
        self._write_row_group()

    def finish(self) -> DataFile | None:
        """Close the file and return what there is to commit; None when no row was written."""
        self._write_row_group(is_last=True)
        with writing_to(self._place.uri):
            if self._writer is not None:
                self._writer.close()
            self._sink.close()
            if self._rows == 0:
                self._place.filesystem().delete_file(self._path)
                return None
            info = self._place.filesystem().get_file_info(self._path)
            if self._place.is_local:
                sync_file(os.path.join(self._place.uri, self._path))
        bounds = {name: (self._lows[name], self._highs[name]) for name in self._lows}
        written_ms = (info.mtime_ns or 0) // 1_000_000
        return DataFile(
            self._path, info.size, self._rows, self._partition_value, bounds, self._nulls, written_ms
        )

    def _write_row_group(self, *, is_last: bool = False) -> None:
        if not self._waiting_rows:
            self._waiting = []
            return
        table = pa.concat_tables(self._waiting)
        is_small = is_last and self._waiting_bytes <= PLAIN_BYTES
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        with writing_to(self._place.uri):
            if self._writer is None:
                self._writer = self._begin(is_compressed=not is_small)
            self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        self._rows += table.num_rows
        for name in self._bounded:
            self._nulls[name] += table.column(name).null_count
            pair = pc.min_max(table.column(name))
            low, high = pair["min"].as_py(), pair["max"].as_py()
            if low is not None:
                low, high = _stats_value(low), _stats_value(high)
                self._lows[name] = min(self._lows.get(name, low), low)
                self._highs[name] = max(self._highs.get(name, high), high)

    def _begin(self, *, is_compressed: bool) -> Any:
        texts = [field.name for field in self._schema if pa.types.is_string(field.type)]
        return pq.ParquetWriter(
            self._sink,
            self._schema,
            compression=self._compression if is_compressed else "none",
            compression_level=self._level if is_compressed else None,
            use_dictionary=[name for name in texts if name not in UNIQUE_TEXTS],
            # Differences and lengths cost less to compress than what they are made of, and take less room.
            column_encoding={
                **dict.fromkeys(self._numbers, "DELTA_BINARY_PACKED"),
                **{name: "DELTA_LENGTH_BYTE_ARRAY" for name in texts if name in UNIQUE_TEXTS},
            },
        )

    def _discard(self) -> None:
        if self._writer is not None:
            # Or pyarrow writes the file's end again when the writer is collected, and says on stderr that it cannot.
            self._writer.is_open = False
        for step in (self._sink.close, lambda: self._place.filesystem().delete_file(self._path)):
            with contextlib.suppress(OSError, pa.ArrowException):
                step()


def write_rows(place: TablePlace, spec: TableSpec, prefix: str, table: Any) -> list[DataFile]:
    """Write a `pyarrow.Table` that has the columns of `spec.schema`: one file for each partition."""
    files: list[DataFile] = []
    if spec.partition_column is None:
        parts: Sequence[tuple[str | None, Any]] = [(None, table)]
    else:
        dates = table.column(spec.partition_column)
        parts = [
            (str(date), table.filter(pc.equal(dates, pa.scalar(date, pa.date32()))))
            for date in sorted(pc.unique(dates).to_pylist())
        ]
    with contextlib.ExitStack() as stack:
        for value, part in parts:
            writer = stack.enter_context(FileWriter(place, spec, prefix, value))
            writer.write(part.select(spec.file_schema.names).cast(spec.file_schema))
            file = writer.finish()
            if file is not None:
                files.append(file)
    return files


def read_file(place: TablePlace, spec: TableSpec, path: str, columns: Sequence[str] | None = None) -> Any:
    """Return the rows of a data file with the columns asked for, or all; those it lacks are null.

    The partition column is not among them.

    Raises:
        BrokenTable: the file is gone, or is none.
    """
    groups = list(read_row_groups(place, spec, path, columns))
    return pa.concat_tables(groups) if groups else _wanted(spec, columns).empty_table()


def read_row_groups(
    place: TablePlace,
    spec: TableSpec,
    path: str,
    columns: Sequence[str] | None = None,
    *,
    may_have: tuple[str, int, int] | None = None,
    groups: Collection[int] | None = None,
) -> Iterator[Any]:
    """Yield the rows of a data file, as many at a time as were written together.

    `may_have` is a column of numbers, and a lowest and highest value: rows that were written together are left out if,
    by the file's statistics, none of them lies there. `groups` are which of those written together are wanted, by
    their number in the file.

    Raises:
        BrokenTable: the file is gone, or is none.
    """
    schema = _wanted(spec, columns)
    with _opened(place, spec, path, schema) as (file, names):
        for at in range(file.num_row_groups) if groups is None else sorted(groups):
            if may_have is None or _may_have(file, at, *may_have):
                yield _with_columns(file.read_row_group(at, columns=names), schema, names)


def read_batches(
    place: TablePlace,
    spec: TableSpec,
    path: str,
    columns: Sequence[str],
    rows: int,
    *,
    may_have: tuple[str, Callable[[Any, Any], bool]] | None = None,
) -> Iterator[Any]:
    """Yield the rows of a data file, at most so many at a time.

    `may_have` is a column, and whether rows are wanted that have values from a lowest to a highest one: what was
    written together is left out if they are not.

    Raises:
        BrokenTable: the file is gone, or is none.
    """
    schema = _wanted(spec, columns)
    with _opened(place, spec, path, schema) as (file, names):
        groups = [
            at
            for at in range(file.num_row_groups)
            if may_have is None
            or (found := _bounds(file, at, may_have[0])) is None
            or may_have[1](found.min, found.max)
        ]
        for batch in file.iter_batches(rows, row_groups=groups, columns=names):
            yield _with_columns(pa.Table.from_batches([batch]), schema, names)


@contextlib.contextmanager
def _opened(place: TablePlace, spec: TableSpec, path: str, schema: Any) -> Iterator[tuple[Any, list[str]]]:
    """Give an open data file, and which columns of a schema it has."""
    with (
        _telling_broken_file(spec, path),
        telling_store(place.uri),
        place.filesystem().open_input_file(path) as source,
    ):
        file = pq.ParquetFile(source)
        there = set(file.schema_arrow.names)
        yield file, [name for name in schema.names if name in there]


def _with_columns(found: Any, schema: Any, there: Collection[str]) -> Any:
    """Return rows with the columns of a schema; those that the file does not have are null."""
    if found.schema.equals(schema):
        return pa.table(found.columns, schema=schema)
    arrays = [
        found.column(field.name).cast(field.type)
        if field.name in there
        else pa.nulls(found.num_rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def _may_have(file: Any, row_group: int, name: str, low: int, high: int) -> bool:
    found = _bounds(file, row_group, name)
    return found is None or (found.min <= high and low <= found.max)


def _bounds(file: Any, row_group: int, name: str) -> Any:
    """Return the statistics of a column of a row group; None where there are none."""
    column = file.schema_arrow.get_field_index(name)
    found = None if column < 0 else file.metadata.row_group(row_group).column(column).statistics
    return None if found is None or not found.has_min_max else found


@contextlib.contextmanager
def _telling_broken_file(spec: TableSpec, path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        reason = "is not there, and the table's log has it"
    except (OSError, pa.ArrowException) as error:
        reason = f"cannot be read: {first_line(error)}"
    else:
        return
    advice = "`quaymaster pipeline backfill` makes it anew" if spec in SUMMED_UP else RESTORE
    raise BrokenTable(f"the table {spec.name} is broken: its file {path} {reason}; {advice}")


RESTORE = "restore it from a copy of the warehouse"
"""What to do about what nothing else has."""


def first_line(error: Exception) -> str:
    """Return what a library said, without what follows for its developers."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _wanted(spec: TableSpec, columns: Sequence[str] | None) -> Any:
    schema = spec.file_schema
    return schema if columns is None else pa.schema([schema.field(name) for name in columns])


def delete_files(place: TablePlace, files: Iterable[DataFile]) -> None:
    """Delete data files that no commit has. FileNotFoundError if one is gone."""
    filesystem = place.filesystem()
    for file in files:
        filesystem.delete_file(file.path)


def sync_file(path: str) -> None:
    """Make a file and its name durable."""
    for target in (path, os.path.dirname(path)):
        descriptor = os.open(target, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def hash_of_file(place: TablePlace, path: str) -> bytes:
    """Return the SHA-256 of a data file. FileNotFoundError if it is gone."""
    hashed = hashlib.sha256()
    with place.filesystem().open_input_stream(path) as source:
        while part := source.read(HASHED_AT_ONCE):
            hashed.update(part)
    return hashed.digest()


def _stats_value(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return bound_of_time(value)
    return value.isoformat() if isinstance(value, datetime.date) else value
