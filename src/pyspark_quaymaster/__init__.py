"""Quaymaster for Spark: log-retained queues as a data source and sink, `format("quaymaster")`.

Spark finds `DefaultSource` by this package's name; nothing needs to be registered. It needs the package on the driver
and in the Python of every executor (`pip install quaymaster[spark]`).
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_quaymaster.options import parse_sink_options, parse_source_options
from pyspark_quaymaster.schema import SCHEMA
from pyspark_quaymaster.sink import BatchWriter, StreamWriter
from pyspark_quaymaster.source import BatchReader, StreamReader

__all__ = ["SCHEMA", "DefaultSource"]


class DefaultSource(DataSource):
    """`format("quaymaster")`."""

    @classmethod
    def name(cls) -> str:
        return "quaymaster"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(parse_source_options(self.options, is_stream=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader(parse_source_options(self.options, is_stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(parse_sink_options(self.options, is_stream=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return StreamWriter(parse_sink_options(self.options, is_stream=True), schema, overwrite)
