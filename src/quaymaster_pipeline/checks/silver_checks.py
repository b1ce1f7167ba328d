"""Whether rows of usage_events are those that their blocks give: made from the blocks again, and compared.

    file of bronze ──open_blocks, request_rows, refine──▶ rows that must be there ─┐
    files of silver with its batches ──by partition and offset──▶ rows that are ───┴──▶ changed, missing, put in

A task has a group of blocks in memory, and of silver what was read before its group came. Where silver is in the order
of bronze, as it is written, that is a few megabytes.

Of a block that overlaps others, only what is there is compared: which of its rows came first is not worked out again.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.checks.block_checks import BatchPlace
from quaymaster_pipeline.checks.usage_breaks import UsageBreak, differing, shown
from quaymaster_pipeline.usage.requests import open_blocks, request_rows
from quaymaster_pipeline.usage.rules import refine
from quaymaster_pipeline.usage.silver import Marked
from quaymaster_pipeline.warehouse.data_files import TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.schemas import USAGE_EVENTS
from quaymaster_pipeline.warehouse.times import us_of_time

KEY: Final = ("log_partition", "log_offset", "block_row")
"""Where a row came from: no two have the same."""
_DATE: Final = str(USAGE_EVENTS.partition_column)
_PARTITION_SHIFT: Final = 1 << 44


class ExpectedEvents(NamedTuple):
    """Rows of usage_events that blocks give: those that must be there, and those that may."""

    must: Any
    may: Any


NO_EVENTS: Final = ExpectedEvents(USAGE_EVENTS.schema.empty_table(), USAGE_EVENTS.schema.empty_table())


def expected_events(blocks: Any, marked: Marked) -> ExpectedEvents:
    """Return the rows of usage_events that blocks of bronze give. Their content must be what came."""
    blocks = blocks.filter(
        pc.and_(pc.is_null(blocks.column("damage")), pc.is_valid(blocks.column("content")))
    )
    overlapping = blocks.slice(0, 0)
    if marked.rows.num_rows:
        is_overlap = marked.are("overlap", blocks)
        overlapping = blocks.filter(is_overlap)
        blocks = blocks.filter(pc.invert(pc.or_(is_overlap, marked.are("duplicate", blocks))))
    return ExpectedEvents(_events_of(blocks), _events_of(overlapping))


def _events_of(blocks: Any) -> Any:
    found = [USAGE_EVENTS.schema.empty_table()]
    for batch_id in pc.unique(blocks.column("batch_id")):
        of_batch = blocks.filter(pc.equal(blocks.column("batch_id"), batch_id))
        taken, closed = (of_batch.column(name)[0].as_py() for name in ("taken_time", "closed_until"))
        rows = request_rows(open_blocks(of_batch)[0])
        if rows.num_rows:
            times = (0 if time is None else us_of_time(time) for time in (taken, closed))
            found.append(refine(rows, now_us=next(times), closed_until_us=next(times)).usage)
    return pa.concat_tables(found)


def compare_events(expected: ExpectedEvents, found: Any) -> Iterator[UsageBreak]:
    """Yield rows that are not what their blocks give. All rows of these blocks are given, and no others."""
    must, found = _in_order(expected.must), _in_order(found)
    if not expected.may.num_rows and must.num_rows == found.num_rows and _changed(found, must) is None:
        return
    known = {}
    for table, needed in ((must, True), (expected.may, False)):
        for at, key in enumerate(_keys(table)):
            known[key] = (table, at, needed)
    lines: list[tuple[Any, int, int]] = []
    for at, key in enumerate(_keys(found)):
        match = known.get(key)
        if match is None or match[1] < 0:
            reason = "it was put in: its block has no such row" if match is None else "it is there twice"
            yield _at(found, at, reason)
            continue
        lines.append((match[0], match[1], at))
        known[key] = (match[0], -1, match[2])
    for table in (must, expected.may):
        mine = [(there, here) for of, there, here in lines if of is table]
        here = found.take(pa.array([pair[1] for pair in mine], pa.int64()))
        there = table.take(pa.array([pair[0] for pair in mine], pa.int64()))
        for at, name in sorted((_changed(here, there) or {}).items()):
            is_value, must_value = (rows.column(name)[at].as_py() for rows in (here, there))
            reason = f"its column {name} is {shown(is_value)}; its block says {shown(must_value)}"
            # The place as the block has it: what was changed may be the place.
            yield _at(there, at, reason, name)
    for table, at, needed in known.values():
        if needed and at >= 0:
            yield _at(table, at, "it is missing")


def _changed(here: Any, there: Any) -> dict[int, str] | None:
    """Return the first column that differs, by row; None when all are the same."""
    found: dict[int, str] = {}
    for name in USAGE_EVENTS.schema.names:
        one, other = here.column(name), there.column(name)
        if not one.equals(other):
            for at in np.flatnonzero(differing(one, other).to_numpy()).tolist():
                found.setdefault(at, name)
    return found or None


def _in_order(rows: Any) -> Any:
    keys = [pc.fill_null(rows.column(name).cast(pa.int64()), -1).to_numpy() for name in reversed(KEY)]
    order = np.lexsort(keys)
    if bool(np.all(order[1:] > order[:-1])):
        return rows
    return rows.take(pa.array(order))


def _keys(rows: Any) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows.column(name).to_pylist() for name in KEY), strict=True)


def _at(rows: Any, at: int, reason: str, column: str | None = None) -> UsageBreak:
    names = ("front_end", "epoch", "sequence", "log_partition", "log_offset")
    front_end, *place = (rows.column(name)[at].as_py() for name in names)
    return UsageBreak(USAGE_EVENTS.name, reason, front_end, *place)._replace(column=column)


class EventFile(NamedTuple):
    """A file of usage_events, and the date that it is of."""

    path: str
    date: str | None


def read_events(
    place: TablePlace,
    file: EventFile,
    columns: Sequence[str] | None = None,
    may_have: tuple[str, int, int] | None = None,
) -> Iterator[Any]:
    """Yield rows of a file of usage_events with their date, as many at a time as were written together."""
    date = pa.scalar(None if file.date is None else datetime.date.fromisoformat(file.date), pa.date32())
    for rows in read_row_groups(place, USAGE_EVENTS, file.path, columns, may_have=may_have):
        yield rows.append_column(USAGE_EVENTS.schema.field(_DATE), pa.repeat(date, rows.num_rows))


def place_keys(rows: Any) -> Any:
    """Return partition and offset of rows as one integer each."""
    partition, offset = (
        pc.fill_null(rows.column(name).cast(pa.int64()), -1).to_numpy()
        for name in ("log_partition", "log_offset")
    )
    return partition * _PARTITION_SHIFT + offset


class EventsByBlock:
    """The rows of usage_events that are of the blocks of one file of bronze, given a group of blocks at a time.

    `groups` are the places of the file's blocks, a table for each group. Files are read in turn, as far as is needed.
    """

    def __init__(self, place: TablePlace, files: Iterable[EventFile], groups: Sequence[Any]) -> None:
        keys = [place_keys(group) for group in groups]
        all_keys = np.concatenate([np.empty(0, np.int64), *keys])
        order = np.argsort(all_keys, kind="stable")
        self._keys = all_keys[order]
        self._group_of = np.repeat(np.arange(len(groups)), [len(of_group) for of_group in keys])[order]
        offsets = [pc.min_max(group.column("log_offset")).as_py() for group in groups if group.num_rows]
        low, high = ([pair[side] for pair in offsets if pair[side] is not None] for side in ("min", "max"))
        # Unless they lie, statistics of files say what need not be read; one row may then be met less than there are.
        may_have = ("log_offset", min(low, default=0), max(high, default=-1))
        self._sources = [read_events(place, file, None, may_have) for file in files]
        self._waiting: dict[int, list[Any]] = {}
        self.rows = 0
        """How many rows were found so far."""

    def take(self, group: int, count: int) -> Any:
        """Return the rows of a group of blocks, `count` or what there is."""
        while self._sources and sum(rows.num_rows for rows in self._waiting.get(group, ())) < count:
            self._read()
        return pa.concat_tables([USAGE_EVENTS.schema.empty_table(), *self._waiting.pop(group, ())])

    def rest(self, group: int | None = None) -> Any:
        """Return what was not taken, of a group or of all, after reading all files."""
        while self._sources:
            self._read()
        groups = list(self._waiting) if group is None else [group]
        found = [rows for one in groups for rows in self._waiting.pop(one, ())]
        return pa.concat_tables([USAGE_EVENTS.schema.empty_table(), *found])

    def _read(self) -> None:
        source = self._sources.pop(0)
        rows = next(source, None)
        if rows is None:
            return
        self._sources.append(source)
        if not len(self._keys):
            return
        keys = place_keys(rows)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        groups = np.where(self._keys[at] == keys, self._group_of[at], -1)
        rows = rows.select(USAGE_EVENTS.schema.names)
        for group in np.unique(groups[groups >= 0]).tolist():
            mine = groups == group
            found = rows if mine.all() else rows.filter(pa.array(mine))
            self._waiting.setdefault(group, []).append(found)
            self.rows += found.num_rows


class BlockPlaces(NamedTuple):
    """Where there are blocks: keys of the first and last offsets of stretches, and their batches, in order."""

    lows: Any
    highs: Any
    batches: Any

    @classmethod
    def of(cls, places: Sequence[BatchPlace]) -> BlockPlaces:
        """Return what `places` says."""
        names = ("log_partition", "low", "high", "batch_id")
        columns = [np.array([getattr(place, name) for place in places], np.int64) for name in names]
        partitions, lows, highs, batches = columns
        # As in `place_keys`: of a number that no partition has the key is some number, too.
        return cls(partitions * _PARTITION_SHIFT + lows, partitions * _PARTITION_SHIFT + highs, batches)


def rows_of_no_block(rows: Any, places: BlockPlaces) -> Iterator[UsageBreak]:
    """Yield rows of usage_events of which bronze has no block."""
    keys = place_keys(rows)
    batches = pc.fill_null(rows.column("batch_id"), -1).to_numpy()
    at = np.searchsorted(places.lows, keys, side="right") - 1
    is_known = np.zeros(len(keys), bool)
    if len(places.lows):
        is_known = (at >= 0) & (keys < places.highs[at]) & (places.batches[at] == batches)
    for found in np.flatnonzero(~is_known).tolist():
        yield _at(rows, found, "it was put in: there is no block that it may be of")
