"""Rows that are read more than once: in memory while they are few, else in a file that nobody else sees."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.warehouse.errors import telling_full_disk

ROWS_IN_MEMORY: Final = 1 << 16
ROWS_AT_ONCE: Final = 1 << 14
"""So many are read together: what becomes of rows may take many times their memory."""

ROWS_OF_GROUPS_IN_MEMORY: Final = 1 << 18


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


class GroupSpool:
    """Rows by group: added in any order, and read a group at a time, each of them once or more.

    At most so many rows are in memory, and the others in one file, where each group has a part of each time that they
    were too many. Used with `with`, the file goes with the block. Adding raises WarehouseFull.
    """

    def __init__(self, schema: Any, rows_in_memory: int = ROWS_OF_GROUPS_IN_MEMORY) -> None:
        self._schema = schema
        self._rows_in_memory = rows_in_memory
        self._waiting: list[tuple[Any, Any]] = []
        self._waiting_rows = 0
        self._parts: dict[int, list[int]] = {}
        """Which batches of the file are of a group."""
        self._batches = 0
        self._file: Any = None
        self._writer: Any = None
        self._reader: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Delete what is on disk."""
        if self._file is not None:
            if self._reader is None:
                with contextlib.suppress(OSError, pa.ArrowException):
                    self._writer.close()
            self._file.close()

    def add(self, rows: Any, groups: Any) -> None:
        """Add rows, with the group of each. Those of a group below 0 are left out."""
        assert self._reader is None, "nothing is added once it is read"
        is_wanted = pc.greater_equal(groups, 0)
        rows, groups = rows.filter(is_wanted), pc.drop_null(groups.filter(is_wanted))
        if not rows.num_rows:
            return
        self._waiting.append((rows, groups))
        self._waiting_rows += rows.num_rows
        if self._waiting_rows > self._rows_in_memory:
            with telling_full_disk(tempfile.gettempdir()):
                self._write()

    def read(self, group: int) -> Any:
        """Return the rows of a group, in the order in which they were added."""
        if self._reader is None:
            with telling_full_disk(tempfile.gettempdir()):
                self._end()
        batches = [self._reader.get_batch(number) for number in self._parts.get(group, ())]
        return pa.Table.from_batches(batches, self._schema)

    def _write(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the spool)
            self._writer = pa.ipc.new_file(self._file, self._schema)
        if not self._waiting_rows:
            return
        rows = pa.concat_tables([rows for rows, _ in self._waiting])
        groups = np.concatenate([mine.to_numpy(zero_copy_only=False) for _, mine in self._waiting])
        self._waiting, self._waiting_rows = [], 0
        order = np.argsort(groups, kind="stable")
        rows, groups = rows.take(pa.array(order)).combine_chunks(), groups[order]
        firsts = np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1])))
        for first, end in zip(firsts.tolist(), [*firsts[1:].tolist(), len(groups)], strict=True):
            (batch,) = rows.slice(first, end - first).to_batches()
            self._writer.write_batch(batch)
            self._parts.setdefault(int(groups[first]), []).append(self._batches)
            self._batches += 1

    def _end(self) -> None:
        self._write()
        self._writer.close()
        self._file.seek(0)
        self._reader = pa.ipc.open_file(self._file)
