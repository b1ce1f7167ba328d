"""Quaymaster for Spark: log-retained and plain queues as a data source and sink, `format("quaymaster")`.

Spark finds `DefaultSource` by this package's name; nothing needs to be registered. It needs the package on the driver
and in the Python of every executor (`pip install quaymaster[spark]`). Import it before the session is made: that lets
Spark use this Python for its workers, where nothing names another. Without the import Spark searches `python3` of the
PATH, and may end with DATA_SOURCE_NOT_FOUND (`environment`).
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

from pyspark_quaymaster.consume import ConsumeReader
from pyspark_quaymaster.environment import use_this_python
from pyspark_quaymaster.options import (
    consumes,
    includes_headers,
    parse_consume_options,
    parse_sink_options,
    parse_source_options,
)
from pyspark_quaymaster.schema import SCHEMA, SCHEMA_WITH_HEADERS, check_schema
from pyspark_quaymaster.sink.writers import BatchWriter, StreamWriter
from pyspark_quaymaster.source import BatchReader, FilteringReader, StreamReader

use_this_python()

__all__ = ["SCHEMA", "DefaultSource"]


class DefaultSource(DataSource):
    """`format("quaymaster")`."""

    @classmethod
    def name(cls) -> str:
        return "quaymaster"

    def schema(self) -> StructType:
        return SCHEMA_WITH_HEADERS if includes_headers(self.options) else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_source_options(self.options, is_stream=False)
        check_schema(schema, with_headers=includes_headers(self.options))
        return (FilteringReader if options.pushes_filters else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        if consumes(self.options):
            consuming = parse_consume_options(self.options)
            check_schema(schema, with_headers=includes_headers(self.options))
            return ConsumeReader(consuming, schema)
        options = parse_source_options(self.options, is_stream=True)
        check_schema(schema, with_headers=includes_headers(self.options))
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(parse_sink_options(self.options, is_stream=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return StreamWriter(parse_sink_options(self.options, is_stream=True), schema, overwrite)
