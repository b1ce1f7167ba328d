"""What is known of rows that have expired: blocks by ops.expired_blocks, requests and hours by notes of their tables.

Rows of bronze.blocks expire in the order of their batches. The commit of ops.expired_blocks decides: rows of batches up
to its own that bronze.blocks still has, as after a kill, count no more. So who reads both looks at bronze.blocks first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.usage.sequences import BlockRange, Coverage, CoverageLine, IncarnationId
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.schemas import EXPIRED_BLOCKS
from quaymaster_pipeline.warehouse.tables import NO_BATCH, Table

APP: Final = "expired blocks"
"""The job that replaces ops.expired_blocks; the number of its commit is the last batch that has expired."""


@dataclass(frozen=True, slots=True)
class ExpiredBlocks:
    """Blocks that have expired: those of batches up to `through`. Can be pickled; tasks read the rows.

    `unlinked` of them named a block that may be one of the `damaged` ones. `next` is the first offset of each partition
    of the usage queue that has not expired, `headers` control totals.
    """

    place: TablePlace
    through: int = NO_BATCH
    blocks: int = 0
    damaged: int = 0
    unlinked: int = 0
    taken_us: int = 0
    next: Mapping[int, int] = field(default_factory=dict)
    headers: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of each file, by its path."""
    paths: tuple[str, ...] = ()

    def to_note(self) -> dict[str, Any]:
        """Return what the commit notes of them."""
        offsets = {str(partition): offset for partition, offset in self.next.items()}
        names = ("blocks", "damaged", "unlinked", "taken_us")
        given = {name: getattr(self, name) for name in names}
        return given | {"next": offsets, "headers": dict(self.headers), "files": dict(self.files)}

    def lines(self, owner: IncarnationId | None = None) -> list[CoverageLine]:
        """Return what came of incarnations, or of one of them. In a task, or where a start has nothing else."""
        found = []
        for path in self.paths:
            for rows in read_row_groups(self.place, EXPIRED_BLOCKS, path, LINE_COLUMNS):
                mine = rows if owner is None else rows.filter(are_of(owner, rows))
                columns = (mine.column(name).to_pylist() for name in LINE_COLUMNS)
                found += [CoverageLine(*line) for line in zip(*columns, strict=True)]
        return found

    def remaining(self, files: Iterable[DataFile]) -> list[DataFile]:
        """Return the files of bronze.blocks, or of its marks, that have later batches."""
        return [file for file in files if file.bounds.get("batch_id", (0, LAST_BATCH))[1] > self.through]


LINE_COLUMNS: Final = ("front_end", "epoch", "ranges", "watermarks", "is_sealed", "seal_end")
"""The columns that ops.coverage and ops.expired_blocks have in common: of a CoverageLine."""
LAST_BATCH: Final = 1 << 62


def expired_blocks(table: Table) -> ExpiredBlocks:
    """Return what has expired, by a version of ops.expired_blocks."""
    note = table.note(APP)
    if not note:
        return ExpiredBlocks(table.place)
    return ExpiredBlocks(
        table.place,
        table.last_batch(APP),
        note["blocks"],
        note["damaged"],
        note["unlinked"],
        note["taken_us"],
        {int(partition): offset for partition, offset in note["next"].items()},
        note["headers"],
        note["files"],
        tuple(file.path for file in table.files()),
    )


def are_of(owner: IncarnationId, rows: Any) -> Any:
    """Return which rows are of an incarnation, as a mask."""
    return pc.and_(
        pc.equal(rows.column("front_end"), owner.front_end), pc.equal(rows.column("epoch"), owner.number)
    )


class Spans:
    """Sequences of one incarnation, as few ranges: a look costs the same however long they are."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._lows, self._highs = (np.array([pair[side] for pair in ranges], np.int64) for side in (0, 1))

    @classmethod
    def of(cls, headers: Any, *lines: CoverageLine) -> Spans:
        """Return the sequences of these blocks, and of what lines say."""
        owner, coverage = IncarnationId("", 0), Coverage()
        ranges = list(zip(*(headers.column(name).to_pylist() for name in ("seq_lo", "seq_hi")), strict=True))
        for line in lines:
            ranges += zip(line.ranges[::2], line.ranges[1::2], strict=True)
        for low, high in ranges:
            coverage.add(BlockRange(owner, low, high, b"", 0))
        return cls(coverage.ranges_of(owner))

    def has(self, sequences: Any) -> Any:
        """Return which sequences are among them, as a mask of numpy."""
        if not len(self._lows):
            return np.zeros(len(sequences), bool)
        at = np.searchsorted(self._lows, sequences, side="right") - 1
        return (at >= 0) & (sequences < self._highs[at])

    def meet(self, headers: Any) -> Any:
        """Return which of these blocks have a sequence that is among them, as a mask."""
        lows, highs = (headers.column(name).to_numpy() for name in ("seq_lo", "seq_hi"))
        at = np.searchsorted(self._highs, lows, side="right")
        begins = np.append(self._lows, np.iinfo(np.int64).max)
        return pa.array((lows < highs) & (begins[at] < highs))


class ExpiredUsage(NamedTuple):
    """Requests, or their sums by hour, that have expired: of days before `before` (a date as text; empty: of none).

    They are of batches up to `through`. What came late to such a day expires once it is closed, too. `counts` are
    control totals.
    """

    before: str
    counts: Mapping[str, int]
    through: int = NO_BATCH

    def has(self, date: str | None) -> bool:
        """Return whether some of a day have expired."""
        return str(date) < self.before


EXPIRED: Final = "expired"
"""The note of usage_events, of usage_hourly and of quarantine with control totals of requests that they had and have no
more."""
EXPIRED_DAYS: Final = "expired days"
"""The note of usage_events and of usage_hourly: none of the day `before` and later ones has expired, nor of batches
after `through`."""


def expired_usage(table: Table) -> ExpiredUsage:
    """Return which requests have expired, by a version of usage_events, or which hours, by one of usage_hourly."""
    days = table.note(EXPIRED_DAYS)
    return ExpiredUsage(days.get("before", ""), table.note(EXPIRED), days.get("through", NO_BATCH))
