"""Blocks that bronze has, read by incarnation: of many by one scan, or at some offsets with their content."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.usage.expired import are_of
from quaymaster_pipeline.usage.sequences import BlockRange, IncarnationId
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace, read_batches, read_row_groups
from quaymaster_pipeline.warehouse.schemas import BLOCKS
from quaymaster_pipeline.warehouse.tables import Table, within

HEADERS_SCANNED: Final = 65_536


def spans_of(
    owners: Iterable[IncarnationId], stretches: Iterable[BlockRange]
) -> dict[IncarnationId, tuple[int, int]]:
    """Return of each of these incarnations the first sequence that stretches have, and the end of the last."""
    spans: dict[IncarnationId, tuple[int, int]] = dict.fromkeys(owners, (1 << 62, 0))
    for one in stretches:
        if one.owner in spans:
            low, high = spans[one.owner]
            spans[one.owner] = min(low, one.seq_lo), max(high, one.seq_hi)
    return spans


def shares_of(owners: Sequence[IncarnationId], cores: int) -> list[Sequence[IncarnationId]]:
    """Return incarnations that follow each other by name, in as many shares as there are cores, none of them empty.

    A share is one scan: bronze is written by front end, so scans of different names read different parts of files.
    """
    size = max(1, -(-len(owners) // max(1, cores)))
    return [owners[at : at + size] for at in range(0, len(owners), size)]


def paths_of_incarnations(table: Table, owners: Sequence[IncarnationId]) -> list[str]:
    """Return the paths of the files that may have blocks of some of these incarnations, by the table's log."""
    lines = table.file_lines()
    if not lines.num_rows or not owners:
        return []
    first, last = min(owner.number for owner in owners), max(owner.number for owner in owners)
    may_have = pc.and_(
        pc.greater_equal(lines.column("max.epoch"), first), pc.less_equal(lines.column("min.epoch"), last)
    )
    paths: list[str] = lines.filter(may_have).column("path").to_pylist()
    return paths


def blocks_of_all(
    place: TablePlace,
    paths: Iterable[str],
    wanted: Mapping[IncarnationId, tuple[int, int]],
    names: Sequence[str],
) -> dict[IncarnationId, Any]:
    """Return of several incarnations the blocks that meet or touch some sequences, by one scan of files of bronze.

    Parts of files are left out that have none of their front ends. In a task.
    """
    schema = pa.schema([BLOCKS.schema.field(name) for name in names])
    found: dict[IncarnationId, list[Any]] = {owner: [schema.empty_table()] for owner in wanted}
    of_name: defaultdict[str, list[IncarnationId]] = defaultdict(list)
    for owner in sorted(wanted):
        of_name[owner.front_end].append(owner)
    front_ends = sorted(of_name)

    def may_have(low: str, high: str) -> bool:
        at = bisect.bisect_left(front_ends, low)
        return at < len(front_ends) and front_ends[at] <= high

    for path in paths:
        for rows in read_batches(
            place, BLOCKS, path, names, HEADERS_SCANNED, may_have=("front_end", may_have)
        ):
            rows = rows.filter(pc.is_in(rows.column("front_end"), pa.array(front_ends)))
            for name in pc.unique(rows.column("front_end")).to_pylist():
                for owner in of_name[name]:
                    low, high = wanted[owner]
                    is_near = pc.and_(
                        pc.greater_equal(rows.column("seq_hi"), low),
                        pc.less_equal(rows.column("seq_lo"), high),
                    )
                    found[owner].append(rows.filter(pc.and_(are_of(owner, rows), is_near)))
    return {owner: pa.concat_tables(parts) for owner, parts in found.items()}


def blocks_at(
    place: TablePlace,
    files: Iterable[DataFile],
    owner: IncarnationId,
    names: Sequence[str],
    offsets: tuple[int, int],
) -> Any:
    """Return the blocks that one incarnation of a front end wrote at some offsets, both included. In a task."""
    found = [pa.schema([BLOCKS.schema.field(name) for name in names]).empty_table()]
    for file in files:
        low, high = file.bounds.get("epoch", (0, -1))
        if low <= owner.number <= high:
            for rows in read_row_groups(place, BLOCKS, file.path, names, may_have=("log_offset", *offsets)):
                is_there = within(rows.column("log_offset"), offsets[0], offsets[1] + 1)
                found += [rows.filter(pc.and_(are_of(owner, rows), is_there))]
    return pa.concat_tables(found)
