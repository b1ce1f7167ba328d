"""Bronze: blocks of the usage queue become rows of bronze.blocks, each message once.

    driver: bounds of the feed, positions ──▶ stretches of a batch, planned by bytes
    tasks:  read their stretches, check each block, write a file, answer *runs*
    driver: compares runs with the coverage ──▶ all new, or doubtful
    tasks:  of a doubtful incarnation compare block by block: duplicate, overlap, new (ops.block_marks)
    driver: commits

A run is a stretch of an incarnation that continues without a gap. So the driver looks at as many as there are front
ends and tasks, not at blocks. The commit of bronze.blocks has the position in the queue, the running control totals and
the files of ops.block_marks, which are committed next: killed in between, the next run adds them.
"""

from __future__ import annotations

import bisect
import datetime
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster.protocol.usage.usage_blocks import BlockHeader, UnknownBlockVersion
from quaymaster_pipeline.usage.backlogs import AHEAD, stops_ahead
from quaymaster_pipeline.usage.blocks import (
    BLOCK_RANGE_COLUMNS,
    BatchFacts,
    ReadBlock,
    block_ranges,
    block_rows,
    read_block,
)
from quaymaster_pipeline.usage.expired import LINE_COLUMNS, are_of, expired_blocks
from quaymaster_pipeline.usage.feed import (
    BlockReader,
    BlockSource,
    FeedChanged,
    FeedIncomplete,
    NewerBlocks,
)
from quaymaster_pipeline.usage.sequences import (
    BlockRange,
    Coverage,
    CoverageLine,
    IncarnationId,
    State,
    judge_blocks,
)
from quaymaster_pipeline.usage.tasks import (
    Answers,
    ThisProcess,
    Workers,
    answer_counts,
    answer_files,
    answer_table,
)
from quaymaster_pipeline.warehouse.data_files import (
    DataFile,
    FileWriter,
    TablePlace,
    read_batches,
    read_row_groups,
    write_rows,
)
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.schemas import BLOCK_MARKS, BLOCKS, COVERAGE, EXPIRED_BLOCKS
from quaymaster_pipeline.warehouse.tables import NO_BATCH, Table, Warehouse, within
from quaymaster_pipeline.warehouse.times import time_of_us

APP: Final = "bronze"
PASSED: Final = "passed"
"""In the note of bronze.blocks: stretches of offsets, by partition, that the queue no longer had."""
MEASURES: Final = ("rows", "messages", "bytes", "chunks", "errors")
"""The control totals of a layer."""
BATCH_BLOCKS_MAX = 200_000
BATCH_BYTES_MAX: Final = 1 << 30
"""A batch takes no more; a killed run repeats at most a batch."""
FILE_BYTES: Final = 64 << 20
"""About how large the files of bronze are; a task has one in memory."""
OBJECT_BYTES: Final = 1 << 10
"""About what a block takes in memory besides its content."""
SPLIT_BYTES: Final = 4 << 20
"""From here on a batch is worth all cores."""
GROUP_BYTES: Final = 8 << 20
"""About how much of a file is read at a time by the next layer."""
BLOCK_BYTES_GUESSED: Final = 256 << 10
"""How large a block is, before any was seen: as large as they get, so that no batch has too many."""
BLOCKS_UNSEEN_MAX: Final = BATCH_BYTES_MAX // BLOCK_BYTES_GUESSED
BATCH_GROWTH: Final = 16
"""A batch has at most so many blocks, or so many times as many as the last one: how large blocks are is known of as
many as were seen."""
COVERAGE_BATCHES: Final = 64
COVERAGE_S: Final = 600
"""After so many batches, or seconds, ops.coverage is written again: a start reads the headers of what came since."""
HERE: Final = ThisProcess()
HEADERS_HERE_MAX: Final = 1_000_000
"""So many headers the driver reads itself, half a second long: what came since ops.coverage was written."""
HEADERS_OF_TASK: Final = 4_000_000
HEADERS_AT_ONCE: Final = 262_144
"""So many headers are in a task's memory; of others only the runs, which are as many as front ends."""
HEADERS_SCANNED: Final = 65_536
DAMAGED: Final = "damaged"
RUN_SCHEMA: Final = pa.schema(
    [
        pa.field("front_end", pa.string()),
        *(pa.field(name, pa.int64()) for name in ("epoch", "seq_lo", "seq_hi", "low_watermark")),
        *(pa.field(name, pa.int64()) for name in ("seal_epoch", "seal_end")),
        pa.field("is_seal", pa.bool_()),
    ]
)

PASSED_MAX: Final = 1_000
"""So many stretches of a partition that the queue no longer had are told apart; the oldest become one."""

Stretch = tuple[int, int, int]
"""A partition and a half-open range of its offsets."""


@dataclass(frozen=True, slots=True)
class BronzeBatch:
    """A batch of bronze. `totals` are sums of the headers, `states` counts of blocks."""

    batch_id: int
    blocks: int
    tasks: int
    content_bytes: int
    totals: Mapping[str, int]
    states: Mapping[str, int]


def take_batch(
    workers: Workers,
    warehouse: Warehouse,
    feed: BlockSource,
    coverage: Coverage,
    now: datetime.datetime,
    sizes: BlockSizes | None = None,
    refined: int = NO_BATCH,
) -> BronzeBatch | None:
    """Commit the next batch of blocks; None when there is none. `coverage` then has its blocks.

    `sizes` is what the last batch had, None when it is not known; `refined` the last batch that silver has.

    Raises:
        FeedChanged: this is another feed.
        FeedIncomplete: blocks are missing.
        NewerBlocks: a newer program wrote some of them.
        CommitConflict: another process takes batches, too.
    """
    table = warehouse.table(BLOCKS)
    note = table.note(APP)
    # Asked first: a queue that was made anew tells its new identity.
    bounds = feed.bounds()
    if note and note["feed"] != feed.identity:
        raise FeedChanged(f"the tables in {warehouse.root} are of {note['feed']}, not of {feed.identity}")
    positions = positions_of(warehouse)
    sizes = sizes or BlockSizes()
    ranges = plan_batch(bounds, positions, sizes)
    if not ranges:
        return None
    last_batch = table.last_batch(APP)
    table.refresh()  # upkeep makes other files of those that were there, and deletes them a day later
    if table.last_batch(APP) != last_batch:
        raise CommitConflict(f"another process took batch {last_batch + 1} into {warehouse.root}")
    # A clock that was set back must not make what is taken now older than what was taken before.
    taken_us = max(int(now.timestamp() * 1_000_000), note.get("taken_us", 0))
    batch = BatchFacts(feed.identity, last_batch + 1, taken_us, coverage.closed_until_us() or 0)
    places = {spec.name: warehouse.place(spec) for spec in (BLOCKS, BLOCK_MARKS)}
    items = [json.dumps(task) for task in plan_tasks(ranges, sizes.block_bytes, workers.cores)]
    answers = workers.over(items, bronze_work(places, feed.reader(), batch))
    found = answers.counts("found")
    expected = sum(high - low for low, high in ranges.values())
    if found["blocks"] != expected:
        raise FeedIncomplete(
            f"of {expected} blocks the usage queue gave {found['blocks']}, so nothing was taken"
        )
    runs = [run for answered in answers.tables("runs") for run in runs_of_table(answered)]
    files = answers.files(BLOCKS.name)
    answers += _judge(workers, warehouse, coverage, batch, runs, files)
    states = answers.counts("states")
    marks = answers.files(BLOCK_MARKS.name)
    headers = Counter(note.get("headers", {}))
    headers.update({measure: found[measure] for measure in MEASURES})
    is_ours = table.commit(
        APP,
        batch.batch_id,
        files,
        note={
            "feed": feed.identity,
            "next": {
                **note.get("next", {}),
                **{str(partition): high for partition, (_, high) in ranges.items()},
            },
            PASSED: passed_over(ranges, positions, note.get(PASSED, {})),
            "taken_us": taken_us,
            "headers": dict(headers),
            AHEAD: stops_ahead(note.get(AHEAD, []), refined, batch.batch_id, headers),
            "marks": [file.to_json() for file in marks],
        },
    )
    if not is_ours:
        raise CommitConflict(f"another process took batch {batch.batch_id} into {warehouse.root}")
    for run in runs:
        coverage.add(run)
    commit_marks(warehouse)
    states[DAMAGED] = found[DAMAGED]
    states["new"] = found["blocks"] - sum(states.values())
    totals = {measure: found[measure] for measure in MEASURES}
    return BronzeBatch(
        batch.batch_id, found["blocks"], answers.tasks, found["content_bytes"], totals, dict(+states)
    )


def positions_of(warehouse: Warehouse) -> dict[int, int]:
    """Return the offset of the next block to take of each partition of the feed."""
    note = warehouse.table(BLOCKS).note(APP)
    return {int(key): value for key, value in note.get("next", {}).items()}


def commit_marks(warehouse: Warehouse) -> None:
    """Add the marks of the last batch to ops.block_marks, unless they are there or there are none."""
    blocks = warehouse.table(BLOCKS)
    files = [DataFile.of_note(fields) for fields in blocks.note(APP).get("marks", [])]
    if files:
        warehouse.table(BLOCK_MARKS).commit(APP, blocks.last_batch(APP), files)


class BlockSizes(NamedTuple):
    """What is known of blocks when the next batch is planned: how many the last one had, and how large they were."""

    blocks: int = 0
    block_bytes: int = BLOCK_BYTES_GUESSED

    @property
    def blocks_max(self) -> int:
        """How many blocks the next batch may have."""
        return min(self.full_batch, max(BLOCKS_UNSEEN_MAX, BATCH_GROWTH * self.blocks))

    @property
    def full_batch(self) -> int:
        """How many blocks of this size are as much as any batch may have."""
        return max(1, min(BATCH_BLOCKS_MAX, BATCH_BYTES_MAX // max(1, self.block_bytes)))


def plan_batch(
    bounds: Mapping[int, tuple[int, int]], positions: Mapping[int, int], sizes: BlockSizes
) -> dict[int, tuple[int, int]]:
    """Return what the next batch takes of each partition; nothing when all was taken.

    Partitions have equal shares, and those that need less leave it to the others: in a backlog each one goes forward,
    and with them the time until which usage is whole. What the queue no longer has is passed over. It is not forgotten:
    its sequences stay missing.
    """
    lows = {
        partition: max(positions.get(partition, earliest), earliest)
        for partition, (earliest, _) in bounds.items()
    }
    waiting = sorted(
        (end - lows[partition], partition) for partition, (_, end) in bounds.items() if end > lows[partition]
    )
    left, taken = sizes.blocks_max, {}
    for at, (blocks, partition) in enumerate(waiting):
        taken[partition] = min(blocks, -(-left // (len(waiting) - at)))
        left -= taken[partition]
    return {
        partition: (lows[partition], lows[partition] + count)
        for partition, count in sorted(taken.items())
        if count
    }


def passed_over(
    ranges: Mapping[int, tuple[int, int]],
    positions: Mapping[int, int],
    before: Mapping[str, list[list[int]]],
) -> dict[str, list[list[int]]]:
    """Return the offsets that are not in the table because the queue no longer had them: half open, by partition.

    All others below the position are rows, so a row that somebody deleted is told apart.
    """
    passed = {partition: list(stretches) for partition, stretches in before.items()}
    for partition, (low, _) in ranges.items():
        position = positions.get(partition, 0)
        if position < low:
            stretches = passed.setdefault(str(partition), [])
            stretches.append([position, low])
            if len(stretches) > PASSED_MAX:
                stretches[:2] = [[stretches[0][0], stretches[1][1]]]
    return passed


def passed_in(note: Mapping[str, Any]) -> dict[int, list[list[int]]]:
    """Return the stretches of offsets that the queue no longer had, by partition, by the note of bronze.blocks."""
    return {int(partition): stretches for partition, stretches in note.get(PASSED, {}).items()}


def plan_tasks(ranges: Mapping[int, tuple[int, int]], block_bytes: int, cores: int) -> list[list[Stretch]]:
    """Return the stretches that each task reads: as many tasks as files, and all cores if there is enough to do."""
    blocks = sum(high - low for low, high in ranges.values())
    size = blocks * block_bytes
    tasks = min(blocks, max(-(-size // FILE_BYTES), cores if size >= SPLIT_BYTES else 1))
    planned: list[list[Stretch]] = [[] for _ in range(tasks)]
    # Task i has the blocks from i * blocks // tasks on, over all partitions one after the other.
    begin = 0
    for partition, (low, high) in ranges.items():
        end = begin + high - low
        for task, stretches in enumerate(planned):
            first = max(begin, task * blocks // tasks)
            last = min(end, (task + 1) * blocks // tasks)
            if first < last:
                stretches.append((partition, low + first - begin, low + last - begin))
        begin = end
    return planned


class Run(NamedTuple):
    """Blocks of an incarnation that follow each other, as one."""

    owner: IncarnationId
    seq_lo: int
    seq_hi: int
    low_watermark_us: int


def runs_of(headers: Iterable[BlockHeader]) -> list[Run]:
    """Return the runs of blocks. Those that came twice, or overlap, are runs of their own."""
    runs: list[Run] = []
    for header in sorted(headers, key=lambda one: (one.front_end, one.incarnation, one.seq_lo, one.seq_hi)):
        owner = IncarnationId(header.front_end, header.incarnation)
        last = runs[-1] if runs else None
        if last is not None and last.owner == owner and last.seq_hi == header.seq_lo:
            runs[-1] = Run(
                owner,
                last.seq_lo,
                header.seq_hi,
                max(last.low_watermark_us, header.low_watermark_us),
            )
        else:
            runs.append(Run(owner, header.seq_lo, header.seq_hi, header.low_watermark_us))
    return runs


def bronze_work(
    places: Mapping[str, TablePlace], reader: BlockReader, batch: BatchFacts
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: read its stretches, write their blocks to files by front end, and answer runs.

    It cuts files while it reads: what was planned may be of far larger blocks than those of before.
    """
    ingest_date = str(time_of_us(batch.taken_us).date())

    def work(item: str) -> Iterator[Any]:
        for blocks in _files_of(_read_stretches(reader, json.loads(item))):
            yield from write(blocks)

    def write(blocks: list[ReadBlock]) -> Iterator[Any]:
        headers = [block.header for block in blocks if block.header is not None]
        blocks.sort(key=_by_front_end)
        with FileWriter(places[BLOCKS.name], BLOCKS, f"{APP}-{batch.batch_id}", ingest_date) as writer:
            for group in _groups(blocks):
                writer.write(block_rows(group, batch))
                writer.end_row_group()
            written = writer.finish()
        yield from answer_files(BLOCKS.name, [written])
        damaged = [block for block in blocks if block.header is None]
        if damaged:
            marks = block_rows(damaged, batch)
            yield from _answer_marks(
                places[BLOCK_MARKS.name], batch.batch_id, marks, [DAMAGED] * len(damaged)
            )
        yield answer_table("runs", _run_table(headers))
        counts = Counter(
            blocks=len(blocks),
            content_bytes=sum(len(block.content) for block in blocks),
            rows=sum(header.rows for header in headers),
            messages=sum(header.messages for header in headers),
            bytes=sum(header.payload_bytes for header in headers),
            chunks=sum(header.chunks for header in headers),
            errors=sum(header.errors for header in headers),
        )
        counts[DAMAGED] = len(damaged)
        yield answer_counts("found", counts)

    return work


def _read_stretches(reader: BlockReader, stretches: Iterable[Sequence[int]]) -> Iterator[ReadBlock]:
    """Yield the blocks of stretches; fewer than that if one is missing."""
    for partition, first, end in stretches:
        expected = first
        for offset, body in reader.read(partition, first, end):
            if offset != expected:
                return
            expected += 1
            try:
                yield read_block(partition, offset, body)
            except UnknownBlockVersion as error:
                raise NewerBlocks(
                    f"block {offset} of partition {partition} of the usage queue is of a newer program: {error}; "
                    "nothing is taken, and nothing lost, until the pipeline is upgraded"
                ) from None
        if expected != end:
            return


def _files_of(blocks: Iterable[ReadBlock]) -> Iterator[list[ReadBlock]]:
    """Yield blocks, as many at a time as a file has. A list is emptied before the next one is filled."""
    group: list[ReadBlock] = []
    size = 0
    for block in blocks:
        group.append(block)
        size += len(block.content) + OBJECT_BYTES
        if size >= FILE_BYTES:
            yield group
            group.clear()
            size = 0
    if group:
        yield group


def _by_front_end(block: ReadBlock) -> tuple[Any, ...]:
    header = block.header
    owner = ("", 0, 0) if header is None else (header.front_end, header.incarnation, header.seq_lo)
    return (*owner, block.log_partition, block.log_offset)


def _groups(blocks: Sequence[ReadBlock]) -> Iterator[list[ReadBlock]]:
    """Yield blocks, about GROUP_BYTES at a time."""
    group: list[ReadBlock] = []
    size = 0
    for block in blocks:
        group.append(block)
        size += len(block.content)
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _run_table(headers: Sequence[BlockHeader]) -> Any:
    """Return runs, and after them the seals."""
    lines: list[tuple[Any, ...]] = [(*run.owner, *run[1:], None, None, False) for run in runs_of(headers)]
    lines += [
        (
            *(header.front_end, header.incarnation, header.seq_hi, header.seq_hi, header.low_watermark_us),
            *(header.seal.incarnation, header.seal.end_sequence, True),
        )
        for header in headers
        if header.seal is not None
    ]
    columns = list(zip(*lines, strict=True)) or [()] * len(RUN_SCHEMA)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, RUN_SCHEMA, strict=True)],
        schema=RUN_SCHEMA,
    )


def runs_of_table(table: Any) -> Iterator[BlockRange]:
    """Yield the runs and seals that a task answered."""
    for front_end, incarnation, low, high, low_us, seal_incarnation, seal_end, is_seal in zip(
        *(column.to_pylist() for column in table.columns), strict=True
    ):
        yield BlockRange(
            IncarnationId(front_end, incarnation),
            low,
            high,
            b"",
            low_us,
            IncarnationId(front_end, seal_incarnation) if is_seal else None,
            seal_end,
        )


# Judging what may have come before


def _judge(
    workers: Workers,
    warehouse: Warehouse,
    coverage: Coverage,
    batch: BatchFacts,
    runs: Sequence[BlockRange],
    files: Sequence[DataFile],
) -> Answers:
    """Compare the blocks of incarnations of which some may have come before; tasks write what they find to files."""
    owners = sorted(doubtful_owners(coverage, runs))
    if not owners:
        return Answers()
    spans = spans_of(owners, runs)
    items = [
        json.dumps([[*owner, *spans[owner], coverage.ranges_of(owner)] for owner in share])
        for share in shares_of(owners, workers.cores)
    ]
    paths = [*paths_of_incarnations(warehouse.table(BLOCKS), owners), *(file.path for file in files)]
    work = judge_work(warehouse.place(BLOCKS), warehouse.place(BLOCK_MARKS), batch.batch_id, paths)
    return workers.over(items, work)


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


def doubtful_owners(coverage: Coverage, runs: Iterable[BlockRange]) -> set[IncarnationId]:
    """Return the incarnations some of whose sequences came before, or come twice in these runs."""
    by_owner: defaultdict[IncarnationId, list[BlockRange]] = defaultdict(list)
    for run in runs:
        if run.seq_lo < run.seq_hi:
            by_owner[run.owner].append(run)
    doubtful = set()
    for owner, mine in by_owner.items():
        mine.sort(key=lambda run: run.seq_lo)
        meets = any(later.seq_lo < run.seq_hi for run, later in itertools.pairwise(mine))
        if meets or any(coverage.overlaps(run) for run in mine):
            doubtful.add(owner)
    return doubtful


def judge_work(
    place: TablePlace, marks: TablePlace, batch_id: int, paths: Sequence[str]
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: judge the batch's blocks of some incarnations, in the order of the queue."""
    names = ["batch_id", "log_partition", "log_offset", *BLOCK_RANGE_COLUMNS, "damage"]

    def work(item: str) -> Iterator[Any]:
        given = {
            IncarnationId(name, number): (low, high, ranges)
            for name, number, low, high, ranges in json.loads(item)
        }
        found = blocks_of_all(place, paths, {owner: span[:2] for owner, span in given.items()}, names)
        marked, states = [], list[State]()
        for owner, blocks in found.items():
            mine, of_mine = judge(owner, given[owner][2], blocks)
            is_marked = pa.array([state != "new" for state in of_mine], pa.bool_())
            marked.append(mine.filter(is_marked))
            states += [state for state in of_mine if state != "new"]
        if states:
            yield from _answer_marks(marks, batch_id, pa.concat_tables(marked), states)
        yield answer_counts("states", Counter(states))

    def judge(owner: IncarnationId, ranges: Sequence[Sequence[int]], blocks: Any) -> tuple[Any, list[State]]:
        coverage = Coverage()
        for low, high in ranges:
            coverage.add(BlockRange(owner, low, high, b"", 0))
        is_of_batch = pc.equal(blocks.column("batch_id"), batch_id)
        known = blocks.filter(pc.invert(is_of_batch)).select(["seq_lo", "sha256"]).to_pylist()
        mine = blocks.filter(is_of_batch).sort_by(
            [("log_partition", "ascending"), ("log_offset", "ascending")]
        )
        digests = [(owner, row["seq_lo"], row["sha256"]) for row in known]
        return mine, judge_blocks(coverage, block_ranges(mine), digests)

    return work


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


def _answer_marks(place: TablePlace, batch_id: int, blocks: Any, states: Sequence[str]) -> Iterator[Any]:
    columns = {
        "batch_id": pa.repeat(pa.scalar(batch_id, pa.int64()), len(states)),
        "state": pa.array(states, pa.string()),
    }
    names = BLOCK_MARKS.schema.names
    rows = pa.table(
        [columns[name] if name in columns else blocks.column(name) for name in names],
        schema=BLOCK_MARKS.schema,
    )
    yield from answer_files(BLOCK_MARKS.name, write_rows(place, BLOCK_MARKS, f"{APP}-{batch_id}", rows))


# What came so far


def coverage_of(warehouse: Warehouse, through: int | None = None, workers: Workers = HERE) -> Coverage:
    """Return what all blocks taken so far cover: as ops.coverage says, and the headers of what came since.

    Where ops.coverage is lost, what has expired is as ops.expired_blocks says, and tasks of `workers` read the headers
    of all that has not. `through`: only up to this batch, which other layers have.
    """
    warehouse.table(BLOCKS)  # looked at before what says which of them have expired
    saved = warehouse.table(COVERAGE).read()
    columns = (saved.column(name).to_pylist() for name in LINE_COLUMNS)
    coverage = Coverage.of_lines(CoverageLine(*line) for line in zip(*columns, strict=True))
    since = pc.max(saved.column("batch_id")).as_py() if saved.num_rows else NO_BATCH
    expired_table = warehouse.table(EXPIRED_BLOCKS)
    expired_table.refresh()
    expired = expired_blocks(expired_table)
    if since < expired.through:
        coverage, since = Coverage.of_lines(expired.lines()), expired.through
    add_batches(coverage, warehouse, since + 1, through, workers)
    return coverage


def add_batches(
    coverage: Coverage,
    warehouse: Warehouse,
    first: int,
    through: int | None = None,
    workers: Workers = HERE,
) -> None:
    """Add what the headers of the blocks of these batches say: from `first` on, up to `through` or the last one.

    Where they are many, as after a loss of ops.coverage, tasks of `workers` read them.
    """
    table = warehouse.table(BLOCKS)
    last = table.last_batch(APP) if through is None else through
    lines = lines_of_batches(table, first, last)
    if not lines.num_rows:
        return
    if pc.sum(lines.column("num_records")).as_py() <= HEADERS_HERE_MAX:
        workers = HERE
    answers = workers.over(plan_headers(lines), _runs_work(table.place, first, last))
    for answered in answers.tables("runs"):
        for run in runs_of_table(answered):
            coverage.add(run)


def plan_headers(lines: Any) -> list[str]:
    """Return items of work: paths of files, about HEADERS_OF_TASK headers each, in the order of their batches."""
    lines = lines.sort_by([("min.batch_id", "ascending"), ("path", "ascending")])
    paths, counts = lines.column("path").to_pylist(), lines.column("num_records").to_numpy()
    # A file is in the item in whose share its first header is.
    cuts = np.flatnonzero(np.diff((np.cumsum(counts) - counts) // HEADERS_OF_TASK)) + 1
    begins, stops = [0, *cuts.tolist()], [*cuts.tolist(), len(paths)]
    return [json.dumps(paths[begin:stop]) for begin, stop in zip(begins, stops, strict=True)]


def _runs_work(place: TablePlace, first: int, last: int) -> Callable[[str], Iterator[Any]]:
    """Return what a task does with files of bronze: answer the runs of their blocks of some batches."""

    def work(item: str) -> Iterator[Any]:
        runs, waiting, count = RUN_SCHEMA.empty_table(), [], 0
        for path in json.loads(item):
            for rows in read_row_groups(place, BLOCKS, path, ["batch_id", *_RUN_COLUMNS]):
                of_batches = in_batches(rows, first, last)
                waiting.append(of_batches.filter(pc.is_valid(of_batches.column("front_end"))))
                count += waiting[-1].num_rows
                if count >= HEADERS_AT_ONCE:
                    runs = merged_runs([runs, runs_of_rows(pa.concat_tables(waiting))])
                    waiting, count = [], 0
        if waiting:
            runs = merged_runs([runs, runs_of_rows(pa.concat_tables(waiting))])
        yield answer_table("runs", runs)

    return work


_RUN_COLUMNS: Final = tuple(name for name in BLOCK_RANGE_COLUMNS if name != "sha256")


def runs_of_rows(rows: Any) -> Any:
    """Return the runs of rows of bronze.blocks, as a task of bronze answers them, and after them the seals."""
    seals = rows.filter(pc.is_valid(rows.column("seal_reason")))
    columns = {name: seals.column(name) for name in ("front_end", "epoch", "seal_epoch", "seal_end")}
    columns |= {
        "seq_lo": seals.column("seq_hi"),
        "seq_hi": seals.column("seq_hi"),
        "low_watermark": seals.column("low_watermark").cast(pa.int64()),
        "is_seal": pa.repeat(pa.scalar(value=True), seals.num_rows),
    }
    of_seals = pa.table([columns[name] for name in RUN_SCHEMA.names], schema=RUN_SCHEMA)
    return pa.concat_tables([_joined(rows), of_seals])


def merged_runs(tables: Sequence[Any]) -> Any:
    """Return runs of several tasks or files as one table: those that continue each other are one run."""
    lines = pa.concat_tables(tables)
    is_seal = lines.column("is_seal")
    return pa.concat_tables([_joined(lines.filter(pc.invert(is_seal))), lines.filter(is_seal)])


def _joined(rows: Any) -> Any:
    """Return stretches of incarnations, blocks or runs of them, with those that continue each other as one run."""
    if not rows.num_rows:
        return RUN_SCHEMA.empty_table()
    names = rows.column("front_end").combine_chunks().dictionary_encode()
    ranks = np.empty(len(names.dictionary), np.int64)
    ranks[pc.array_sort_indices(names.dictionary).to_numpy()] = np.arange(len(ranks))
    front_end, epoch, low, high, low_us = (
        ranks[names.indices.to_numpy()],
        *(
            rows.column(name).cast(pa.int64()).to_numpy()
            for name in ("epoch", "seq_lo", "seq_hi", "low_watermark")
        ),
    )
    order = np.lexsort((high, low, epoch, front_end))
    front_end, epoch, low, high, low_us = (column[order] for column in (front_end, epoch, low, high, low_us))
    is_next = (front_end[1:] == front_end[:-1]) & (epoch[1:] == epoch[:-1]) & (low[1:] == high[:-1])
    firsts = np.flatnonzero(np.concatenate(([True], ~is_next)))
    lasts = np.append(firsts[1:], len(low)) - 1
    columns = {
        "front_end": rows.column("front_end").take(pa.array(order[firsts])),
        "epoch": epoch[firsts],
        "seq_lo": low[firsts],
        "seq_hi": high[lasts],
        "low_watermark": np.maximum.reduceat(low_us, firsts),
        "is_seal": np.zeros(len(firsts), np.bool_),
    }
    return pa.table(
        [columns.get(name, pa.nulls(len(firsts), pa.int64())) for name in RUN_SCHEMA.names],
        schema=RUN_SCHEMA,
    )


class CoverageKeeper:
    """Writes ops.coverage now and then."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._written_us: int | None = None

    def keep(self, coverage: Coverage, batch_id: int, now: datetime.datetime) -> None:
        """Write what `coverage` has up to a batch if it has been long, in batches or in time."""
        table = self._warehouse.table(COVERAGE)
        now_us = int(now.timestamp() * 1_000_000)
        if self._written_us is None:
            self._written_us = now_us
        is_due = now_us - self._written_us >= COVERAGE_S * 1_000_000
        before = table.last_batch(APP)
        if batch_id - before < COVERAGE_BATCHES and not is_due:
            return
        columns = list(zip(*coverage.lines(), strict=True)) or [()] * len(LINE_COLUMNS)
        lines = dict(zip(LINE_COLUMNS, columns, strict=True)) | {"batch_id": [batch_id] * len(columns[0])}
        rows = pa.table(
            [pa.array(lines[field.name], field.type) for field in COVERAGE.schema], schema=COVERAGE.schema
        )
        adds = table.write(f"{APP}-{batch_id}", rows)
        table.commit(APP, batch_id, adds, removes=table.files(), follows=before)
        self._written_us = now_us


def in_batches(rows: Any, first: int, last: int) -> Any:
    """Return the rows of these batches, both included."""
    return rows.filter(within(rows.column("batch_id"), first, last + 1))


def files_of_batches(table: Table, first: int, last: int) -> list[DataFile]:
    """Return the files that may have rows of these batches, both included."""
    return table.files(lines_of_batches(table, first, last))


def lines_of_batches(table: Table, first: int, last: int) -> Any:
    """Return the `file_lines` of the files that may have rows of these batches, both included."""
    lines = table.file_lines()
    if not lines.num_rows:
        return lines
    lines = lines.filter(pc.greater_equal(lines.column("max.batch_id"), first))
    return lines.filter(pc.less_equal(lines.column("min.batch_id"), last))
