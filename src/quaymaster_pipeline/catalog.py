"""Every table of the warehouse, for its readers: a list of them, and all of them open in Arrow or in Spark.

    Warehouse ──list_tables──▶ name, place, version, rows, and the line that opens it in Python
              ──open_tables──▶ gold.usage_hourly as the Arrow dataset `usage_hourly`, for DuckDB, Polars, pandas
              ──register_views──▶ the same as a temporary view of Spark

A dataset or view has the rows of the version that the table had when it was opened. Spark reads the Parquet files of a
directory itself: only the columns and dates that a query needs. It has no library for object stores here, so its Python
workers read the files of one, with all columns.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.dataset

from quaymaster_pipeline.archive.tables import LEDGER, MESSAGES
from quaymaster_pipeline.audit.audit import ANCHORS, HOLDS
from quaymaster_pipeline.audit.stubs import ERASURES
from quaymaster_pipeline.billing.tables import ACCOUNTS, ADJUSTMENTS, CHARGES, INVOICES, PRICE_BOOK
from quaymaster_pipeline.warehouse.data_files import TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.schemas import BROKER_COUNTS, BROKER_STATE, QUEUES, TABLES, TableSpec
from quaymaster_pipeline.warehouse.tables import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALL_TABLES: Final = (
    *TABLES,
    *(BROKER_COUNTS, BROKER_STATE, QUEUES),
    *(CHARGES, ADJUSTMENTS, INVOICES, PRICE_BOOK, ACCOUNTS),
    *(HOLDS, ANCHORS, ERASURES),
    *(MESSAGES, LEDGER),
)
"""All tables that a warehouse can have. The last parts of their names differ, so views are named by them."""
READING_TASKS_MAX: Final = 32
"""Tasks that a view of an object store has. A client of Spark Connect cannot ask how many cores there are."""


@dataclass(frozen=True, slots=True)
class ListedTable:
    """A table as it is now. `version` is None where it has not been written yet, and so is `python`."""

    table: str
    version: int | None
    rows: int
    files: int
    bytes: int
    uri: str
    """A directory's absolute path, or the URI in an object store."""
    python: str | None
    """The expression that opens it with `deltalake.DeltaTable`; `storage_options` are those of the command."""

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return dataclasses.asdict(self)


def list_tables(warehouse: Warehouse) -> list[ListedTable]:
    """Return all tables by name, also those that have not been written yet."""
    found = []
    for spec in sorted(ALL_TABLES, key=lambda spec: spec.name):
        table = warehouse.table(spec)
        files = table.files()
        uri = os.path.abspath(table.place.uri) if table.place.is_local else table.place.uri
        is_there = table.version >= 0
        found.append(
            ListedTable(
                table=spec.name,
                version=table.version if is_there else None,
                rows=sum(file.rows for file in files),
                files=len(files),
                bytes=sum(file.size for file in files),
                uri=uri,
                python=_opening(uri, is_local=table.place.is_local) if is_there else None,
            )
        )
    return found


def _opening(uri: str, *, is_local: bool) -> str:
    # Options of a store may have secrets, so they are named and not shown.
    options = "" if is_local else ", storage_options=storage_options"
    return f"DeltaTable({json.dumps(uri, ensure_ascii=False)}{options})"


def view_name(spec: TableSpec) -> str:
    """Return what a table is called in SQL: the name without its layer, as temporary views have no schema."""
    return spec.name.partition(".")[2]


def open_tables(
    warehouse_uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return each table of a warehouse as a `pyarrow.dataset.Dataset`, by the name that it has in SQL.

    Tables that have not been written yet are empty. A dataset keeps its version; a second call gives the newest one.

    Other than `DeltaTable.to_pyarrow_dataset` it gives columns that older files lack, as null.

    Raises:
        BrokenTable: the log of a table cannot be read.
        StoreFails: the object store refuses.
    """
    warehouse = _warehouse(warehouse_uri, storage_options)
    return {view_name(spec): _dataset(warehouse, spec) for spec in ALL_TABLES}


def _warehouse(uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None) -> Warehouse:
    text = os.fspath(uri)
    return Warehouse(text if "://" in text else os.path.abspath(text), storage_options)


def _dataset(warehouse: Warehouse, spec: TableSpec) -> Any:
    table = warehouse.table(spec)
    files = table.files()
    parquet = pyarrow.dataset.ParquetFileFormat()
    filesystem = table.place.filesystem() if files else None
    fragments = [
        parquet.make_fragment(file.path, filesystem, _date_of_file(spec, file.partition_value))
        for file in files
    ]
    return pyarrow.dataset.FileSystemDataset(fragments, spec.schema, parquet, filesystem)


def _date_of_file(spec: TableSpec, value: str | None) -> Any:
    """Return what is true of all rows of a file, from which Arrow knows its date, and which files a query needs."""
    if spec.partition_column is None:
        return None
    return pyarrow.dataset.field(spec.partition_column) == _date(value)


def register_views(
    spark: SparkSession,
    warehouse_uri: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
) -> list[str]:
    """Make a temporary view of each table of a warehouse, and return their names.

    Views of tables that have not been written yet are empty. A view keeps its version; a second call replaces it with
    the newest one. Compaction deletes files that no version has had for a day, so renew views daily.

    Args:
        spark: The session that gets the views. Its time zone should be UTC.
        warehouse_uri: A directory that the driver and all executors see at that path, or `s3://...`.
        storage_options: What `deltalake` needs for the object store. Executors need the package `quaymaster[spark]`.

    Raises:
        BrokenTable: the log of a table cannot be read.
        StoreFails: the object store refuses.
    """
    warehouse = _warehouse(warehouse_uri, storage_options)
    for spec in ALL_TABLES:
        _frame(spark, warehouse, spec).createOrReplaceTempView(view_name(spec))
    return sorted(map(view_name, ALL_TABLES))


def _frame(spark: SparkSession, warehouse: Warehouse, spec: TableSpec) -> DataFrame:
    table = warehouse.table(spec)
    files = table.files()
    empty = spark.createDataFrame(spec.schema.empty_table())
    if not files:
        return empty
    if table.place.is_local:
        # The table's own schema: files of before lack its newest columns. The base path tells dates from directories.
        reader = spark.read.schema(empty.schema).option("basePath", table.place.uri)
        found = reader.parquet(*(f"{table.place.uri}/{file.path}" for file in files))
        return found.select(empty.columns)  # Spark has put the partition column at the end
    listed = spark.createDataFrame(
        [(file.path, file.partition_value) for file in files], "path string, partition_value string"
    )
    spread = listed.repartition(min(len(files), READING_TASKS_MAX))
    return spread.mapInArrow(_reading(table.place, spec), empty.schema)


def _reading(place: TablePlace, spec: TableSpec) -> Any:
    """Return a task for `mapInArrow`: the rows of the files that it is given."""

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for file in batch.to_pylist():
                for rows in read_row_groups(place, spec, file["path"]):
                    yield from _with_partition(spec, rows, file["partition_value"]).to_batches()

    return read


def _with_partition(spec: TableSpec, rows: Any, value: str | None) -> Any:
    if spec.partition_column is None:
        return rows
    dates = pa.repeat(_date(value), rows.num_rows)
    return rows.append_column(spec.schema.field(spec.partition_column), dates).select(spec.schema.names)


def _date(value: str | None) -> Any:
    return pa.scalar(datetime.date.fromisoformat(value or ""), pa.date32())
