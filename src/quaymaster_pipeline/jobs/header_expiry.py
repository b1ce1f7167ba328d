"""Headers of blocks expire: rows of bronze.blocks and their marks, in the order of batches; ops.expired_blocks stays.

    blocks of whole days ──tasks, front ends by hash: judged a last time──▶ ops.expired_blocks   1 decides
    bronze.blocks without these files                                                            2 follows
    ops.block_marks without their marks, ops.close_heads without heads of them alone             3 follow

What stays says which sequences came, so a block that comes again is still known, and what the next block of each front
end must name, so a chain holds over the cut. Nothing expires that is broken: evidence of a change would go with it.
Killed after the first commit, the next run does the others; readers leave those blocks out already.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.compute as pc

from quaymaster_pipeline.checks.block_checks import PLACE_COLUMNS, in_order, judge_places, places_of
from quaymaster_pipeline.checks.block_links import (
    NOTHING_EXPIRED,
    expired_chain,
    judge_chain,
    judge_marks,
)
from quaymaster_pipeline.checks.close_heads import (
    HEAD_COLUMNS,
    HeadRange,
    close_heads,
    drop_heads,
    judge_heads,
    ranges_of_heads,
)
from quaymaster_pipeline.checks.header_groups import (
    CHAIN_COLUMNS,
    MARK_COLUMNS,
    PartOfTable,
    block_marks,
    chained_blocks,
    expired_chains,
    expired_rows,
    plan_groups,
    read_groups,
)
from quaymaster_pipeline.checks.usage_breaks import Findings, UsageBreak
from quaymaster_pipeline.checks.verification_tasks import PLACES, UNLINKED
from quaymaster_pipeline.jobs.retention import USAGE_DAYS, first_kept
from quaymaster_pipeline.usage.batch_rows import files_of_batches, in_batches
from quaymaster_pipeline.usage.blocks import BRONZE, MEASURES
from quaymaster_pipeline.usage.bronze.planning import PASSED, passed_in
from quaymaster_pipeline.usage.expired import APP, LAST_BATCH, ExpiredBlocks, expired_blocks
from quaymaster_pipeline.usage.tasks import Workers, answer_counts, answer_files, answer_table
from quaymaster_pipeline.warehouse.closes import closed_through, read_closes
from quaymaster_pipeline.warehouse.data_files import (
    DataFile,
    FileWriter,
    TablePlace,
    hash_of_file,
    read_row_groups,
    write_rows,
)
from quaymaster_pipeline.warehouse.errors import SumsDiffer
from quaymaster_pipeline.warehouse.schemas import (
    BLOCK_MARKS,
    BLOCKS,
    CLOSE_HEADS,
    EXPIRED_BLOCKS,
    USAGE_DAILY,
    USAGE_EVENTS,
)
from quaymaster_pipeline.warehouse.tables import NO_BATCH, Table, Warehouse, lowest, planning_again

_COUNTS: Final = "headers"
_PREFIX: Final = "expiry"
EXPIRY_APP: Final = "header expiry"
"""The job that takes rows out of bronze.blocks and ops.block_marks."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What expires now: all blocks of `files`, which are those of batches after `before.through` up to `through`."""

    before: ExpiredBlocks
    through: int
    files: tuple[DataFile, ...]


def expire_headers(
    workers: Workers, warehouse: Warehouse, now: datetime.datetime, *, days: int = USAGE_DAYS
) -> int:
    """Delete the rows of blocks that were taken more than `days` ago, and their marks; return how many blocks.

    Only of closed days, without content, and of which no request is in usage_events any more. A pipeline may run next
    to it.

    Raises:
        SumsDiffer: blocks are not what they must be; nothing has expired.
        CommitConflict: others replaced the files again and again.
    """
    blocks, expired = warehouse.table(BLOCKS), warehouse.table(EXPIRED_BLOCKS)

    def expire() -> int:
        plan = _plan(warehouse, now, days)
        if plan is None:
            return 0
        after, adds = _judge(workers, warehouse, plan)
        is_ours = expired.commit(
            APP,
            plan.through,
            adds,
            removes=expired.files(),
            note=after.to_note(),
            follows=plan.before.through,
        )
        return after.blocks - plan.before.blocks if is_ours else 0

    found = planning_again(expire, blocks, expired, warehouse.table(USAGE_DAILY))
    complete_expiry(workers, warehouse)
    return found


def complete_expiry(workers: Workers, warehouse: Warehouse) -> None:
    """Delete the rows of blocks that have expired, and their marks, which a killed run left.

    Raises:
        CommitConflict: others replaced the files again and again.
    """
    blocks, marks, heads = (warehouse.table(spec) for spec in (BLOCKS, BLOCK_MARKS, CLOSE_HEADS))
    through = expired_blocks(warehouse.table(EXPIRED_BLOCKS)).through
    if through != NO_BATCH:
        planning_again(lambda: _drop_blocks(blocks, through), blocks)
        planning_again(lambda: _drop_marks(workers, marks, through), marks)
        planning_again(lambda: _drop_heads(heads, through), heads)


# Planning


def _plan(warehouse: Warehouse, now: datetime.datetime, days: int) -> _Plan | None:
    # In this order: what others let expire meanwhile is known to have.
    blocks, expired, events = (warehouse.table(spec) for spec in (BLOCKS, EXPIRED_BLOCKS, USAGE_EVENTS))
    for table in (events, blocks, expired):
        table.refresh()
    before = expired_blocks(expired)
    first = lowest(events.file_lines(), "batch_id")
    remaining = LAST_BATCH if first is None else int(first)
    last = min(closed_through(warehouse), remaining - 1)
    files = before.remaining(blocks.files())
    chosen = choose(files, str(first_kept(now, days)), last)
    if not chosen:
        return None
    return _Plan(before, max(file.bounds["batch_id"][1] for file in chosen), tuple(chosen))


def choose(files: Sequence[DataFile], first_day: str, last_batch: int) -> list[DataFile]:
    """Return the files of the first days that may expire: all of each day, before a date, up to a batch.

    A day that has content or a later batch stays, and so do those after it. So does one that shares a batch with a
    later day: only in a table that was changed by hand one does.
    """
    by_date: dict[str, list[DataFile]] = {}
    for file in files:
        by_date.setdefault(str(file.partition_value), []).append(file)
    chosen: list[DataFile] = []
    for date, mine in sorted(by_date.items()):
        has_content = any(file.bounds["content_bytes"][1] > 0 for file in mine)
        through = max(file.bounds["batch_id"][1] for file in mine)
        later = (file for other, others in by_date.items() if other > date for file in others)
        is_cut = all(file.bounds["batch_id"][0] > through for file in later)
        if date >= first_day or has_content or through > last_batch or not is_cut:
            break
        chosen += mine
    return chosen


# Judging what expires


def _judge(workers: Workers, warehouse: Warehouse, plan: _Plan) -> tuple[ExpiredBlocks, list[DataFile]]:
    """Return what has expired after this, and the files that say so.

    Raises:
        SumsDiffer: some of it is broken.
    """
    table, marks, before = warehouse.table(BLOCKS), warehouse.table(BLOCK_MARKS), plan.before
    heads = warehouse.table(CLOSE_HEADS)
    marks.refresh()
    heads.refresh()
    paths = [file.path for file in plan.files]
    of_files = workers.over(paths, _places_work(table.place))
    places, counts = in_order(of_files.tables(PLACES)), of_files.counts(_COUNTS)
    note = table.note(BRONZE)
    offsets = dict(before.next)
    for place in places:
        offsets[place.log_partition] = max(offsets.get(place.log_partition, 0), place.high)
    taken_us = max([before.taken_us, *(place.taken_us or 0 for place in places)])
    # As if these were all blocks that ever came.
    passed = {
        partition: [
            [low, min(high, offsets[partition])] for low, high in stretches if low < offsets[partition]
        ]
        for partition, stretches in passed_in(note).items()
        if partition in offsets
    }
    ends = {str(partition): end for partition, end in offsets.items()}
    then = note | {"next": ends, PASSED: passed, "taken_us": taken_us}
    breaks = list(judge_places(places, then, plan.through, before))

    tables = (
        PartOfTable(BLOCKS, table.place, paths, CHAIN_COLUMNS),
        PartOfTable(BLOCK_MARKS, marks.place, [file.path for file in marks.files()], MARK_COLUMNS),
        PartOfTable(EXPIRED_BLOCKS, before.place, before.paths, EXPIRED_BLOCKS.schema.names),
        PartOfTable(CLOSE_HEADS, heads.place, [file.path for file in heads.files()], HEAD_COLUMNS),
    )
    ranges = ranges_of_heads(read_closes(warehouse))
    of_chains = workers.over(
        plan_groups(plan.files, workers.cores),
        _chains_work(tables, before, plan.through, passed_in(note), ranges),
    )
    findings, unlinked = Findings(), Findings(what=UNLINKED)
    findings.take(of_chains)
    unlinked.take(of_chains)
    findings.add_all(breaks)
    damaged = before.damaged + counts["damaged"]
    if before.unlinked + unlinked.breaks_total > damaged:  # each of those may be one that is named
        findings.add_all(unlinked.breaks)
    if findings.breaks:
        raise SumsDiffer(_refusal(findings.breaks[0]))
    files = of_chains.files(EXPIRED_BLOCKS.name)
    headers = Counter(before.headers)
    headers.update({measure: counts[measure] for measure in MEASURES})
    after = ExpiredBlocks(
        before.place,
        plan.through,
        before.blocks + counts["blocks"],
        damaged,
        before.unlinked + unlinked.breaks_total,
        taken_us,
        offsets,
        headers,
        {file.path: hash_of_file(before.place, file.path).hex() for file in files},
    )
    return after, files


def _refusal(found: UsageBreak) -> str:
    return (
        f"{BLOCKS.name} is not what it must be, so no row of it expires: {found.text}; "
        "`quaymaster pipeline verify` tells all"
    )


def _places_work(place: TablePlace) -> Callable[[str], Iterator[Any]]:
    """Return what a task does with a file: answer the places of its blocks, and what their headers count."""

    def work(path: str) -> Iterator[Any]:
        counts: Counter[str] = Counter()
        groups = []
        for rows in read_row_groups(place, BLOCKS, path, [*PLACE_COLUMNS, "damage", *MEASURES]):
            groups.append(rows.select(PLACE_COLUMNS))
            counts.update(blocks=rows.num_rows, damaged=rows.num_rows - rows.column("damage").null_count)
            counts.update({measure: pc.sum(rows.column(measure)).as_py() or 0 for measure in MEASURES})
        yield answer_table(PLACES, places_of(groups))
        yield answer_counts(_COUNTS, counts)

    return work


def _chains_work(
    tables: Sequence[PartOfTable],
    before: ExpiredBlocks,
    through: int,
    passed: dict[int, Any],
    ranges: Sequence[HeadRange],
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: judge the blocks of the front ends of an item, and write what stays known of them."""

    def work(item: str) -> Iterator[Any]:
        for blocks, marks, gone, heads in read_groups(tables, item):
            yield from judge(blocks, marks, gone, heads)

    def judge(blocks: Any, marks: Any, gone: Any, heads: Any) -> Iterator[Any]:
        heads_of = close_heads(heads)
        blocks_of, expired_of = chained_blocks(blocks), expired_chains(gone)
        marks_of = block_marks(in_batches(marks, before.through + 1, through))
        findings, unlinked, chains = Findings(), Findings(what=UNLINKED), []
        for front_end in sorted(blocks_of.keys() | marks_of.keys() | expired_of.keys() | heads_of.keys()):
            mine, marks_here = blocks_of.get(front_end, []), dict(marks_of.get(front_end, ()))
            earlier = expired_of.get(front_end, NOTHING_EXPIRED)
            chain = judge_chain(mine, passed, earlier, marks_here)
            findings.add_all(chain.breaks)
            unlinked.add_all(chain.unlinked)
            findings.add_all(judge_marks(mine, chain.states, marks_here))
            recorded = heads_of.get(front_end, ())
            findings.add_all(judge_heads(mine, recorded, ranges, before.through, through))
            chains.append(expired_chain(chain, mine, earlier))
        yield from findings.answers()
        yield from unlinked.answers()
        rows = expired_rows(chains, through)
        yield from answer_files(EXPIRED_BLOCKS.name, write_rows(before.place, EXPIRED_BLOCKS, _PREFIX, rows))

    return work


# Removing it


def _drop_blocks(table: Table, through: int) -> None:
    # Looked for at each turn of upkeep, in a table of many files, of which hardly ever one is left.
    removes = [file for file in files_of_batches(table, 0, through) if file.bounds["batch_id"][1] <= through]
    if removes:
        table.commit(EXPIRY_APP, None, [], removes=removes)


def _drop_heads(table: Table, through: int) -> None:
    removes = drop_heads(table.files(), through)
    if removes:
        table.commit(EXPIRY_APP, None, [], removes=removes)


def _drop_marks(workers: Workers, table: Table, through: int) -> None:
    """Delete the marks of batches up to `through`; files that have later ones, too, are written again."""
    removes = files_of_batches(table, 0, through)
    rewritten = [file.path for file in removes if file.bounds["batch_id"][1] > through]
    if not removes:
        return

    def work(path: str) -> Iterator[Any]:
        with FileWriter(table_place, BLOCK_MARKS, _PREFIX) as writer:
            for rows in read_row_groups(table_place, BLOCK_MARKS, path):
                writer.write(in_batches(rows, through + 1, LAST_BATCH))
            written = writer.finish()
        yield from answer_files(BLOCK_MARKS.name, [written])

    table_place = table.place
    adds = workers.over(rewritten, work).files(BLOCK_MARKS.name)
    table.commit(EXPIRY_APP, None, adds, removes=removes)
