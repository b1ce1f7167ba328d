"""Rows that are read more than once: in memory while they are few, else in a file that no other process sees."""

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


class _RowsOnDisk:
    """Batches of rows in a file that no other process sees: written, then read by number, any number of times.

    There is no file before the first batch, and none after `close`. Writing raises WarehouseFull.
    """

    def __init__(self, schema: Any) -> None:
        self.batches = 0
        self._schema = schema
        self._file: Any = None
        self._writer: Any = None
        self._reader: Any = None

    def write(self, batch: Any) -> None:
        """Add a batch."""
        assert self._reader is None, "nothing is added once it is read"
        with telling_full_disk(tempfile.gettempdir()):
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the spool)
                self._writer = pa.ipc.new_file(self._file, self._schema)
            self._writer.write_batch(batch)
        self.batches += 1

    def read(self, number: int) -> Any:
        """Return a batch."""
        if self._reader is None:
            with telling_full_disk(tempfile.gettempdir()):
                self._writer.close()
            self._file.seek(0)
            self._reader = pa.ipc.open_file(self._file)
        return self._reader.get_batch(number)

    def close(self) -> None:
        """Delete what is on disk."""
        if self._file is None:
            return
        if self._reader is None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._writer.close()
        self._file.close()


class _Spool:
    """What spools have in common. Used with `with`, what one wrote to disk goes with the block."""

    def __init__(self, schema: Any, rows_in_memory: int) -> None:
        self._schema = schema
        self._rows_in_memory = rows_in_memory
        self._waiting_rows = 0
        self._on_disk = _RowsOnDisk(schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Delete what is on disk."""
        self._on_disk.close()


class Spool(_Spool):
    """Tables of one schema, in the order in which they were added. It is written, and then read any number of times.

    Used with `with`, what it wrote to disk goes with the block. Adding raises WarehouseFull.
    """

    def __init__(self, schema: Any, rows_in_memory: int = ROWS_IN_MEMORY) -> None:
        super().__init__(schema, rows_in_memory)
        self.rows = 0
        self._waiting: list[Any] = []

    def add(self, rows: Any) -> None:
        """Add a table."""
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self.rows += rows.num_rows
        if self._waiting_rows > self._rows_in_memory:
            for batch in self._batches_waiting():
                self._on_disk.write(batch)
            self._waiting, self._waiting_rows = [], 0

    def __iter__(self) -> Iterator[Any]:
        """Yield what was added, in parts."""
        for number in range(self._on_disk.batches):
            yield pa.Table.from_batches([self._on_disk.read(number)])
        if self._waiting_rows:
            for batch in self._batches_waiting():
                yield pa.Table.from_batches([batch])

    def _batches_waiting(self) -> list[Any]:
        found: list[Any] = pa.concat_tables(self._waiting).combine_chunks().to_batches(ROWS_AT_ONCE)
        return found


class GroupSpool(_Spool):
    """Rows by group: added in any order, and read a group at a time, each of them once or more.

    At most so many rows are in memory, and the others in one file, where each group has a part of each time that they
    were too many. Used with `with`, the file goes with the block. Adding raises WarehouseFull.
    """

    def __init__(self, schema: Any, rows_in_memory: int = ROWS_OF_GROUPS_IN_MEMORY) -> None:
        super().__init__(schema, rows_in_memory)
        self._waiting: list[tuple[Any, Any]] = []
        self._parts: dict[int, list[int]] = {}
        """Which batches of the file are of a group."""

    def add(self, rows: Any, groups: Any) -> None:
        """Add rows, with the group of each. Those of a group below 0 are left out."""
        is_wanted = pc.greater_equal(groups, 0)
        rows, groups = rows.filter(is_wanted), pc.drop_null(groups.filter(is_wanted))
        if not rows.num_rows:
            return
        self._waiting.append((rows, groups))
        self._waiting_rows += rows.num_rows
        if self._waiting_rows > self._rows_in_memory:
            self._write()

    def read(self, group: int) -> Any:
        """Return the rows of a group, in the order in which they were added."""
        if self._waiting_rows:
            self._write()
        batches = [self._on_disk.read(number) for number in self._parts.get(group, ())]
        return pa.Table.from_batches(batches, self._schema)

    def _write(self) -> None:
        rows = pa.concat_tables([rows for rows, _ in self._waiting])
        groups = np.concatenate([mine.to_numpy(zero_copy_only=False) for _, mine in self._waiting])
        self._waiting, self._waiting_rows = [], 0
        order = np.argsort(groups, kind="stable")
        rows, groups = rows.take(pa.array(order)).combine_chunks(), groups[order]
        firsts = np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1])))
        for first, end in zip(firsts.tolist(), [*firsts[1:].tolist(), len(groups)], strict=True):
            (batch,) = rows.slice(first, end - first).to_batches()
            self._parts.setdefault(int(groups[first]), []).append(self._on_disk.batches)
            self._on_disk.write(batch)
