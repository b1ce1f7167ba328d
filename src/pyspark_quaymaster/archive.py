"""The archive of logs, as readers see it: which stretches of a partition it has, and the messages in them.

It is a Delta table (`quaymaster archive run` writes it) of one Parquet file per stretch: offsets of one partition
of one queue, without a gap. Which stretch a file has is in the table's log, so that no file is opened to find out.
"""

from __future__ import annotations

import datetime
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark_quaymaster.errors import OptionIsInvalid

COLUMN_OF_DATE = "date"
"""By which the table is partitioned; all messages of a file are of one day."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One file: offsets [first, end) of a partition, sent from `first_ms` to `last_ms` (ms since 1970)."""

    path: str
    queue_id: str
    partition: int
    first: int
    end: int
    first_ms: int
    last_ms: int


class Archive:
    """The table at the version it had when it was opened or last refreshed."""

    def __init__(self, uri: str, storage_options: Mapping[str, str]) -> None:
        """Open it; OptionIsInvalid when there is no such table, or nothing to read it with."""
        try:
            from deltalake import DeltaTable
            from deltalake.exceptions import TableNotFoundError
        except ImportError as error:
            raise OptionIsInvalid(f"archive needs {error.name}: pip install quaymaster[spark]") from error
        self._uri = uri.rstrip("/")
        self._storage_options = dict(storage_options)
        try:
            self._table = DeltaTable(self._uri, storage_options=self._storage_options)
        except TableNotFoundError as error:
            raise OptionIsInvalid(f"archive: there is no table in {self._uri}") from error
        self._stretches: dict[tuple[str, int], list[ArchivedFile]] = {}
        self._load()

    def refresh(self) -> None:
        """See what was archived since."""
        self._table.update_incremental()
        self._load()

    def stretches(self, queue_id: str, partition: int) -> Sequence[ArchivedFile]:
        """Return what there is of a partition, by offset."""
        return self._stretches.get((queue_id, partition), [])

    def find(self, queue_id: str, partition: int, offset: int) -> ArchivedFile | None:
        """Return the stretch that has a message, None when none has."""
        stretches = self.stretches(queue_id, partition)
        at = bisect_right(stretches, offset, key=lambda one: one.first) - 1
        return stretches[at] if at >= 0 and stretches[at].end > offset else None

    def earliest(self, queue_id: str, partition: int, live: int) -> int:
        """Return from which offset on there is everything up to `live`, which a log itself begins with."""
        earliest = live
        while (stretch := self.find(queue_id, partition, earliest - 1)) is not None:
            earliest = stretch.first
        return earliest

    def first_at(self, queue_id: str, partition: int, start: int, end: int, timestamp_ms: int) -> int:
        """Return the first offset of [start, end) whose message was sent at this time or later, `end` if none was."""
        for stretch in self.stretches(queue_id, partition):
            if stretch.end <= start or stretch.last_ms < timestamp_ms:
                continue
            first = stretch.first
            if stretch.first_ms < timestamp_ms:
                for batch in self.read(stretch, stretch.first, stretch.end, ["offset", "timestamp"]):
                    times = batch.column(1).cast("int64").to_pylist()
                    at = next(
                        (at for at, time_us in enumerate(times) if time_us >= timestamp_ms * 1_000), None
                    )
                    if at is not None:
                        first = batch.column(0)[at].as_py()
                        break
            return min(max(start, first), end)
        return end

    def read(self, stretch: ArchivedFile, first: int, end: int, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the messages of [first, end) in a stretch as `pyarrow.RecordBatch`es with these columns."""
        import pyarrow.parquet as pq

        with self._filesystem().open_input_file(stretch.path) as source:
            file = pq.ParquetFile(source)
            at = stretch.first
            for number in range(file.num_row_groups):
                rows = file.metadata.row_group(number).num_rows
                if first < at + rows and at < end:
                    group = file.read_row_group(number, columns=list(columns)).select(list(columns))
                    low, high = max(first, at) - at, min(end, at + rows) - at
                    yield from group.slice(low, high - low).combine_chunks().to_batches()
                at += rows

    def row_bytes(self, stretch: ArchivedFile, columns: Sequence[str]) -> float:
        """Return about how many bytes a message of a stretch has in these columns."""
        import pyarrow.parquet as pq

        with self._filesystem().open_input_file(stretch.path) as source:
            group = pq.ParquetFile(source).metadata.row_group(0)
            sizes = [group.column(number) for number in range(group.num_columns)]
            wanted = sum(
                one.total_uncompressed_size for one in sizes if one.path_in_schema.split(".")[0] in columns
            )
            return max(1.0, float(wanted) / int(group.num_rows))

    def _load(self) -> None:
        import pyarrow as pa

        found: dict[tuple[str, int], list[ArchivedFile]] = {}
        for file in pa.table(self._table.get_add_actions(flatten=True)).to_pylist():
            stretch = ArchivedFile(
                file["path"],
                file["min.queue_id"],
                int(file["min.partition"]),
                int(file["min.offset"]),
                int(file["max.offset"]) + 1,
                _ms(file["min.timestamp"]),
                _ms(file["max.timestamp"]),
            )
            found.setdefault((stretch.queue_id, stretch.partition), []).append(stretch)
        self._stretches = {key: sorted(some, key=lambda one: one.first) for key, some in found.items()}

    def _filesystem(self) -> Any:
        import pyarrow.fs

        if "://" not in self._uri:
            return pyarrow.fs.SubTreeFileSystem(self._uri, pyarrow.fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return pyarrow.fs.PyFileSystem(DeltaStorageHandler(self._uri, self._storage_options))


def _ms(value: datetime.datetime) -> int:
    return round(value.replace(tzinfo=datetime.UTC).timestamp() * 1_000)
