"""Views of the warehouse in a Spark session have the rows that the tables' logs have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.object_store import object_store
from harness.pipeline_site import Site
from harness.usage_blocks import FrontEnd
from pyspark.sql import SparkSession

from quaymaster_pipeline.catalog import ALL_TABLES, register_views, view_name
from quaymaster_pipeline.warehouse.schemas import AUDIT_EVENTS, USAGE_DAILY, USAGE_EVENTS, USAGE_HOURLY
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

COMPARED = (USAGE_EVENTS, AUDIT_EVENTS, USAGE_HOURLY, USAGE_DAILY)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    for name in ("a", "b"):
        site.ship(FrontEnd(name, step_us=600_000_000).block(100))
        site.run()
    return site


def rows_of(rows: Any) -> list[str]:
    """Return rows of an Arrow table as texts, in an order that depends on nothing else."""
    return sorted(str(sorted(row.items())) for row in rows.to_pylist())


def rows_by_spark(spark: SparkSession, table: Table) -> Any:
    """Return a view's rows as an Arrow table of the table's own schema, or fail where they do not fit it."""
    found = spark.table(view_name(table.spec)).toArrow()
    assert found.schema.names == table.spec.schema.names
    return pa.table(
        [found.column(field.name).cast(field.type) for field in table.spec.schema], table.spec.schema
    )


def test_views_of_a_directory_have_all_rows_columns_and_dates(spark: SparkSession, site: Site) -> None:
    warehouse = site.warehouse

    names = register_views(spark, site.root)

    assert names == sorted(view_name(spec) for spec in ALL_TABLES)
    for spec in COMPARED:
        assert rows_of(rows_by_spark(spark, warehouse.table(spec))) == rows_of(warehouse.table(spec).read())
    days = {str(row[0]) for row in spark.sql("select distinct usage_date from usage_daily").collect()}
    assert days == {"2026-11-22", "2026-11-23"}


def test_views_of_tables_that_have_not_been_written_are_empty_and_have_their_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    names = register_views(spark, tmp_path)

    assert {spark.table(name).count() for name in names} == {0}
    for spec in ALL_TABLES:
        assert spark.table(view_name(spec)).columns == spec.schema.names


def test_views_have_no_rows_of_files_that_no_version_has(spark: SparkSession, site: Site) -> None:
    table = site.warehouse.table(USAGE_HOURLY)
    (file, *_) = table.files()
    whole = Path(table.place.uri, file.path)
    whole.with_name("killed.parquet").write_bytes(whole.read_bytes())

    register_views(spark, site.root)

    assert spark.table("usage_hourly").count() == table.rows


def test_views_keep_their_version_until_they_are_registered_again(spark: SparkSession, site: Site) -> None:
    register_views(spark, site.root)
    site.ship(FrontEnd("c").block(7))
    site.run()

    before = spark.table("usage_events").count()
    register_views(spark, site.root)

    assert (before, spark.table("usage_events").count()) == (200, 207)


def test_views_of_an_object_store_have_the_same_rows_without_a_java_library(
    spark: SparkSession, site: Site
) -> None:
    with object_store() as store:
        warehouse = Warehouse("s3://usage/warehouse", store.storage_options)
        site.pipeline(warehouse).catch_up()

        register_views(spark, "s3://usage/warehouse", store.storage_options)

        for spec in (USAGE_EVENTS, USAGE_HOURLY):
            rows = rows_by_spark(spark, warehouse.table(spec))
            assert rows.num_rows > 0
            assert rows_of(rows) == rows_of(warehouse.table(spec).read())
