"""The heads of chains that a close records: of each incarnation whose blocks came since the close before, the last one.

    bronze.blocks, batches of a close ──front ends by hash──▶ last blocks ──▶ ops.close_heads   a row an incarnation
                                                              SHA-256 of all ──▶ ops.closes     kept for ever

No later block may name the last block of a chain, so its links do not show that it was cut off or replaced; the close
does. Which block is the last is decided by columns of headers alone, so it is found again as long as there are these.
Rows of ops.close_heads go with the headers; what ops.closes has of them is of one size, whatever came.
"""

from __future__ import annotations

import bisect
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.checks.block_links import ChainedBlock
from quaymaster_pipeline.checks.header_groups import Group
from quaymaster_pipeline.checks.usage_breaks import Findings, UsageBreak
from quaymaster_pipeline.usage.batch_rows import in_batches
from quaymaster_pipeline.usage.sequences import IncarnationId
from quaymaster_pipeline.warehouse.closes import DayClose
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.schemas import BLOCKS, CLOSE_HEADS

HEAD_COLUMNS: Final = ("number", "front_end", "epoch", "sequence", "batch_id", "sha256")
"""The columns of ops.close_heads that `close_heads` looks at."""
HEADERS_PER_SHARE: Final = 1_000_000
"""So many headers one task reads alone; of more, each task has the front ends of a share."""
_OWNER: Final = ("front_end", "epoch")
_ORDER: Final = ("seq_hi", "low_watermark", "log_partition", "log_offset")
"""The last block of an incarnation is the one with the highest of these: offsets tell any two apart."""
_READ: Final = (*_OWNER, *_ORDER, "batch_id", "sha256")
_WAITING_ROWS: Final = 1 << 17


class CloseHead(NamedTuple):
    """The last block that a close saw of an incarnation: up to which sequence it goes, its batch and SHA-256."""

    owner: IncarnationId
    sequence: int
    batch_id: int
    sha256: bytes


class HeadRange(NamedTuple):
    """Which batches a close with heads was about, both included."""

    number: int
    first_batch: int
    through_batch: int


# Recording


def plan_shares(headers: int, cores: int) -> list[tuple[int, int]]:
    """Return which share of how many each task has: all tasks read all files, so there are no more than cores."""
    if not headers:
        return []
    shares = max(1, min(cores, -(-headers // HEADERS_PER_SHARE)))
    return [(share, shares) for share in range(shares)]


def last_blocks_of_share(
    place: TablePlace, paths: Iterable[str], batches: tuple[int, int], share: tuple[int, int]
) -> Any:
    """Return the last block of batches from one to another of each incarnation of a share of the front ends."""
    parts: list[Any] = [BLOCKS.file_schema.empty_table().select(_READ)]
    for path in paths:
        for rows in read_row_groups(place, BLOCKS, path, _READ):
            mine = in_batches(rows, *batches)
            if share[1] > 1:
                mine = mine.filter(Group(*share).are_in(mine.column("front_end")))
            parts.append(mine)
            if sum(part.num_rows for part in parts) > _WAITING_ROWS + 2 * parts[0].num_rows:
                parts = [last_blocks(pa.concat_tables(parts))]
    return last_blocks(pa.concat_tables(parts))


def last_blocks(rows: Any) -> Any:
    """Return the last row of each incarnation, in the order of these. Damaged blocks belong to none."""
    for name in (*_OWNER, "seq_hi", "low_watermark"):
        rows = rows.filter(pc.is_valid(rows.column(name)))
    if not rows.num_rows:
        return rows
    rows = rows.sort_by([(name, "ascending") for name in (*_OWNER, *_ORDER)])
    here, there = rows.slice(1).select(_OWNER), rows.slice(0, rows.num_rows - 1).select(_OWNER)
    differs = [pc.not_equal(here.column(name), there.column(name)).to_numpy() for name in _OWNER]
    return rows.take(pa.array(np.flatnonzero(np.append(np.logical_or(*differs), [True]))))


def head_rows(parts: Iterable[Any], number: int, through_batch: int) -> Any:
    """Return rows of ops.close_heads of the last blocks that tasks found, in the order of incarnations."""
    found = pa.concat_tables([BLOCKS.file_schema.empty_table().select(_READ), *parts])
    found = found.sort_by([(name, "ascending") for name in _OWNER])
    columns = {
        "number": pa.repeat(pa.scalar(number, pa.int64()), found.num_rows),
        "through_batch": pa.repeat(pa.scalar(through_batch, pa.int64()), found.num_rows),
        "sequence": found.column("seq_hi"),
        **{name: found.column(name) for name in (*_OWNER, "batch_id", "sha256")},
    }
    names = CLOSE_HEADS.schema.names
    return pa.table([columns[name] for name in names], names=names).cast(CLOSE_HEADS.schema)


def digest_of_heads(rows: Any) -> bytes:
    """Return the SHA-256 of rows of one close, as a line of JSON each, in the order of incarnations."""
    digest = hashlib.sha256()
    names = ("front_end", "epoch", "sequence", "batch_id", "sha256")
    rows = rows.select(names).sort_by([(name, "ascending") for name in names])
    for *values, sha256 in zip(*(rows.column(name).to_pylist() for name in names), strict=True):
        digest.update(json.dumps([*values, None if sha256 is None else sha256.hex()]).encode() + b"\n")
    return digest.digest()


# Comparing


def ranges_of_heads(closes: Iterable[DayClose]) -> list[HeadRange]:
    """Return the batches of each close that recorded heads, in order."""
    return [
        HeadRange(close.number, close.first_batch, close.through_batch)
        for close in closes
        if close.heads_hash
    ]


def close_heads(rows: Any) -> dict[str, list[tuple[int, CloseHead]]]:
    """Return rows of ops.close_heads by front end, each with the number of its close.

    One that lacks something is none: the hash in ops.closes says that rows were changed.
    """
    for name in ("number", "sequence", "batch_id", "sha256"):
        rows = rows.filter(pc.is_valid(rows.column(name)))
    found: defaultdict[str, list[tuple[int, CloseHead]]] = defaultdict(list)
    for number, front_end, epoch, *rest in zip(
        *(rows.column(name).to_pylist() for name in HEAD_COLUMNS), strict=True
    ):
        found[front_end or ""].append((number, CloseHead(IncarnationId(front_end or "", epoch or 0), *rest)))
    return found


def judge_heads(
    blocks: Iterable[ChainedBlock],
    recorded: Iterable[tuple[int, CloseHead]],
    ranges: Sequence[HeadRange],
    after_batch: int,
    through_batch: int,
) -> Iterator[UsageBreak]:
    """Yield incarnations of a front end whose last blocks are not those that closes recorded.

    Only `blocks` of batches after one up to another one are looked at. So a head of others is not judged, nor what
    is before it: as it is not there, it is not known what else was not.
    """
    ends = [one.through_batch for one in ranges]
    last: dict[tuple[int, IncarnationId], ChainedBlock] = {}
    for block in blocks:
        if not after_batch < block.batch_id <= through_batch:
            continue
        at = bisect.bisect_left(ends, block.batch_id)
        if at == len(ranges) or block.batch_id < ranges[at].first_batch:
            continue
        key = ranges[at].number, block.block.owner
        if key not in last or _order(last[key]) < _order(block):
            last[key] = block
    known = {(number, head.owner): head for number, head in recorded}
    numbers = {one.number for one in ranges if one.through_batch > after_batch}
    for key in sorted(last.keys() | known.keys()):
        head, found = known.get(key), last.get(key)
        if key[0] not in numbers or (head is not None and not after_batch < head.batch_id <= through_batch):
            continue
        if head is None:
            assert found is not None, "one of both is there"
            reason = f"it was put in: close {key[0]} had no block of the incarnation"
            yield UsageBreak(BLOCKS.name, reason, *key[1], found.block.seq_lo, *found.place)
        elif found is None or (found.block.seq_hi, found.block.sha256) != (head.sequence, head.sha256):
            reason = (
                f"the last block that close {key[0]} had of the incarnation, up to this sequence and with the SHA-256 "
                f"{head.sha256.hex()}, is not the last one: it was cut off or changed, or others were put in"
            )
            yield UsageBreak(BLOCKS.name, reason, *key[1], head.sequence)


def _order(one: ChainedBlock) -> tuple[int, int, int, int]:
    return one.block.seq_hi, one.block.low_watermark_us, *one.place


def plan_heads(closes: Iterable[DayClose], files: Sequence[DataFile], after_batch: int) -> list[str]:
    """Return items of work: closes whose heads must be there, as some of their headers are, and the files with them."""
    return [
        json.dumps(
            [
                close.to_json(),
                [file.path for file in files if file.may_have("number", close.number, close.number)],
            ]
        )
        for close in closes
        if close.heads_hash and close.through_batch > after_batch
    ]


def heads_work(place: TablePlace) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: compare the heads of a close with what ops.closes says of them."""

    def work(item: str) -> Iterator[Any]:
        fields, paths = json.loads(item)
        close = DayClose.from_json(fields)
        parts = [CLOSE_HEADS.schema.empty_table()]
        for path in paths:
            parts += read_row_groups(place, CLOSE_HEADS, path)
        rows = pa.concat_tables([part.select(HEAD_COLUMNS) for part in parts])
        rows = rows.filter(pc.equal(rows.column("number"), close.number))
        findings = Findings()
        if (rows.num_rows, digest_of_heads(rows)) != (close.heads, close.heads_hash):
            reason = f"heads of close {close.number} were changed, deleted or put in: it had {close.heads}"
            findings.add(UsageBreak(CLOSE_HEADS.name, f"{reason}, and {rows.num_rows} are there"))
        yield from findings.answers()

    return work


def drop_heads(files: Iterable[DataFile], through_batch: int) -> list[DataFile]:
    """Return the files of closes of which no header is left once those up to a batch have expired."""
    return [file for file in files if file.bounds["through_batch"][1] <= through_batch]
