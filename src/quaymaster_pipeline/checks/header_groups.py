"""Headers of the blocks of some front ends, with their marks, coverage and what has expired, as tasks read them.

Front ends are divided into groups by a hash of their names, so that a task has all blocks of each group in memory. An
item of work is many groups: its task reads all files once, and keeps the rows of its front ends on its disk, by group.
So what tasks read grows with the headers and with the cores, not with the number of groups.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.checks.block_links import BlockMark, ChainedBlock, ChainHead, ExpiredChain
from quaymaster_pipeline.usage.blocks import BLOCK_RANGE_COLUMNS, DAMAGED, block_ranges
from quaymaster_pipeline.usage.expired import LINE_COLUMNS
from quaymaster_pipeline.usage.sequences import CoverageLine, IncarnationId
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.schemas import EXPIRED_BLOCKS, TableSpec
from quaymaster_pipeline.warehouse.spools import GroupSpool

CHAIN_COLUMNS: Final = (
    *("batch_id", "log_partition", "log_offset", *BLOCK_RANGE_COLUMNS),
    *("previous", "dropped", "dropped_reason"),
)
MARK_COLUMNS: Final = ("batch_id", "log_partition", "log_offset", *BlockMark._fields)
_NEEDED: Final = (
    *("batch_id", "log_partition", "log_offset"),
    *("front_end", "epoch", "seq_lo", "seq_hi", "low_watermark"),
)
"""Without these a row of bronze is no block, which another check says."""
_LOST_SEAL, _REPAIRED = 1, 2
"""In `head_kinds`."""


CHAIN_BLOCKS: Final = 250_000
"""About so many headers a task has in memory, of some front ends each."""


class GroupItem(NamedTuple):
    """Which front ends an item of work is about: those of one of so many shares. They are divided into groups again."""

    share: int
    shares: int
    groups: int

    def groups_of(self, names: Any) -> Any:
        """Return of which group each front end is, -1 if it is of another share. No name is one, too."""
        different = pc.unique(names)
        hashes = [zlib.crc32((name or "").encode()) for name in different.to_pylist()]
        numbers = [
            one // self.shares % self.groups if one % self.shares == self.share else -1 for one in hashes
        ]
        return pa.array(numbers, pa.int32()).take(pc.index_in(names, different))


def plan_groups(blocks: Iterable[DataFile], cores: int) -> list[str]:
    """Return items of work: each reads all files, so there are no more than cores, nor than the headers need."""
    groups = max(1, -(-sum(file.rows for file in blocks) // CHAIN_BLOCKS))
    shares = max(1, min(groups, cores))
    return [json.dumps(GroupItem(share, shares, -(-groups // shares))) for share in range(shares)]


class PartOfTable(NamedTuple):
    """A table of which a task reads the rows of some front ends."""

    spec: TableSpec
    place: TablePlace
    paths: Sequence[str]
    columns: Sequence[str]

    def spool(self, item: GroupItem) -> GroupSpool:
        """Return the rows of the front ends of an item, on disk if they are many. Used with `with`."""
        spool = GroupSpool(pa.schema([self.spec.schema.field(name) for name in self.columns]))
        try:
            for path in self.paths:
                for rows in read_row_groups(self.place, self.spec, path, self.columns):
                    spool.add(rows, item.groups_of(rows.column("front_end")))
        except BaseException:
            spool.close()
            raise
        return spool


def read_groups(tables: Sequence[PartOfTable], item: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that each table has of the front ends of a group, group by group of an item. In a task."""
    wanted = GroupItem(*json.loads(item))
    with contextlib.ExitStack() as stack:
        spools = [stack.enter_context(table.spool(wanted)) for table in tables]
        for group in range(wanted.groups):
            yield tuple(spool.read(group) for spool in spools)


class Group(NamedTuple):
    """One of so many groups of front ends: an item of work that is about these alone is its JSON."""

    number: int
    groups: int

    @classmethod
    def of_item(cls, item: str) -> Group:
        """Return the group that an item of work is about."""
        return cls(*json.loads(item))

    def are_in(self, names: Any) -> Any:
        """Return which front ends are of the group, as a mask. No name is one, too."""
        return pc.equal(GroupItem(self.number, self.groups, groups=1).groups_of(names), 0)


def chained_blocks(rows: Any) -> dict[str, list[ChainedBlock]]:
    """Return the headers of blocks by front end."""
    for name in _NEEDED:
        rows = rows.filter(pc.is_valid(rows.column(name)))
    is_whole = pc.or_(pc.is_null(rows.column("seal_reason")), pc.is_valid(rows.column("seal_epoch")))
    rows = rows.filter(is_whole)
    names = (
        "batch_id",
        "log_partition",
        "log_offset",
        "previous",
        "dropped",
        "dropped_reason",
        "seal_reason",
    )
    columns = (rows.column(name).to_pylist() for name in names)
    found: defaultdict[str, list[ChainedBlock]] = defaultdict(list)
    for block, (batch, partition, offset, previous, dropped, *reasons) in zip(
        block_ranges(rows), zip(*columns, strict=True), strict=True
    ):
        one = ChainedBlock(batch, partition, offset, block, previous or b"", dropped or 0, *reasons)
        found[block.owner.front_end].append(one)
    return found


def block_marks(rows: Any) -> dict[str, list[tuple[tuple[int, int], BlockMark]]]:
    """Return marks by front end, each with the place of its block; those of damaged blocks have none."""
    found: defaultdict[str, list[tuple[tuple[int, int], BlockMark]]] = defaultdict(list)
    for row in rows.to_pylist():
        if row["front_end"] is None:
            if row["state"] == DAMAGED:
                continue  # `wrongly_marked` looks at these
            row["front_end"] = ""
        place = row["log_partition"], row["log_offset"]
        found[row["front_end"]].append((place, BlockMark(*(row[name] for name in BlockMark._fields))))
    return found


def coverage_lines(rows: Any) -> dict[str, list[CoverageLine]]:
    """Return lines of ops.coverage by front end."""
    found: defaultdict[str, list[CoverageLine]] = defaultdict(list)
    rows = rows.filter(pc.is_valid(rows.column("front_end")))
    for values in zip(*(rows.column(name).to_pylist() for name in LINE_COLUMNS), strict=True):
        line = CoverageLine(*values)
        found[line.front_end].append(line)
    return found


def expired_chains(rows: Any) -> dict[str, ExpiredChain]:
    """Return what rows of ops.expired_blocks say, by front end."""
    by_front_end: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows.filter(pc.is_valid(rows.column("front_end"))).to_pylist():
        by_front_end[row["front_end"]].append(row)
    return {front_end: _expired_chain(mine) for front_end, mine in by_front_end.items()}


def _expired_chain(rows: Sequence[dict[str, Any]]) -> ExpiredChain:
    owners = {IncarnationId(row["front_end"], row["epoch"]): row for row in rows}
    return ExpiredChain(
        [CoverageLine(*(row[name] for name in LINE_COLUMNS)) for row in rows],
        frozenset(owner for owner, row in owners.items() if row["is_branched"]),
        frozenset(owner for owner, row in owners.items() if row["is_lost"]),
        {owner: row["blocks"] for owner, row in owners.items()},
        {owner: row["dropped"] for owner, row in owners.items()},
        {
            digest: ChainHead(owner, end, bool(kind & _LOST_SEAL), bool(kind & _REPAIRED))
            for owner, row in owners.items()
            for digest, end, kind in zip(
                *(row[name] for name in ("head_hashes", "head_ends", "head_kinds")), strict=True
            )
        },
    )


def expired_rows(chains: Sequence[ExpiredChain], through: int) -> Any:
    """Return rows of ops.expired_blocks that say the same of front ends, when batches up to `through` have expired."""
    rows = []
    for chain in chains:
        heads: defaultdict[IncarnationId, list[tuple[bytes, int, int]]] = defaultdict(list)
        for digest, head in chain.heads.items():
            kind = _LOST_SEAL * head.is_lost_seal + _REPAIRED * head.is_repaired
            heads[head.owner].append((digest, head.seq_hi, kind))
        for line in chain.lines:
            owner = line.owner
            hashes, ends, kinds = zip(*heads[owner], strict=True) if heads[owner] else ((), (), ())
            rows.append(
                dict(zip(LINE_COLUMNS, line, strict=True))
                | {
                    "through_batch": through,
                    "is_lost": owner in chain.lost,
                    "is_branched": owner in chain.branched,
                    "blocks": chain.blocks.get(owner, 0),
                    "dropped": chain.dropped.get(owner, 0),
                    "head_hashes": hashes,
                    "head_ends": ends,
                    "head_kinds": kinds,
                }
            )
    return pa.Table.from_pylist(rows, schema=EXPIRED_BLOCKS.schema)
