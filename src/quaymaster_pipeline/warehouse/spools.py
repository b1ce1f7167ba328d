"""Rows that are read more than once: in memory while they are few, else in a file that nobody else sees."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from quaymaster_pipeline.warehouse.errors import telling_full_disk

ROWS_IN_MEMORY: Final = 1 << 16
ROWS_AT_ONCE: Final = 1 << 14
"""So many are read together: what becomes of rows may take many times their memory."""


class Spool:
    """Tables of one schema, in the order in which they were added. It is written, and then read any number of times.

    Used with `with`, what it wrote to disk goes with the block. Adding raises WarehouseFull.
    """

    def __init__(self, schema: Any, rows_in_memory: int = ROWS_IN_MEMORY) -> None:
        self.rows = 0
        self._schema = schema
        self._rows_in_memory = rows_in_memory
        self._waiting: list[Any] = []
        self._waiting_rows = 0
        self._file: Any = None
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            self._end()
        if self._file is not None:
            self._file.close()

    def add(self, rows: Any) -> None:
        """Add a table."""
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self.rows += rows.num_rows
        if self._waiting_rows > self._rows_in_memory:
            with telling_full_disk(tempfile.gettempdir()):
                self._write()

    def __iter__(self) -> Iterator[Any]:
        """Yield what was added, in parts."""
        with telling_full_disk(tempfile.gettempdir()):
            self._end()
        if self._file is not None:
            self._file.seek(0)
            with pa.ipc.open_stream(self._file) as reader:
                for batch in reader:
                    yield pa.Table.from_batches([batch])
        if self._waiting_rows:
            for batch in pa.concat_tables(self._waiting).to_batches(max_chunksize=ROWS_AT_ONCE):
                yield pa.Table.from_batches([batch])

    def _write(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the spool)
            self._writer = pa.ipc.new_stream(self._file, self._schema)
        self._writer.write_table(pa.concat_tables(self._waiting).combine_chunks(), ROWS_AT_ONCE)
        self._waiting, self._waiting_rows = [], 0

    def _end(self) -> None:
        if self._writer is not None:
            if self._waiting_rows:
                self._write()
            self._writer.close()
            self._writer = None
