"""The work of `pipeline verify` in tasks: a file of blocks and its events, front ends by hash, hours of a day.

Each answers at most BREAKS_OF_ITEM breaks, counts, and of a file the places of its blocks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.checks.block_checks import (
    PLACE_COLUMNS,
    PLACES_OF_FILE_MAX,
    check_blocks,
    places_of,
    wrong_dates,
    wrongly_marked,
)
from quaymaster_pipeline.checks.block_links import (
    NOTHING_EXPIRED,
    FrontEndChain,
    judge_chain,
    judge_coverage,
    judge_marks,
)
from quaymaster_pipeline.checks.close_heads import HEAD_COLUMNS, close_heads, judge_heads, ranges_of_heads
from quaymaster_pipeline.checks.day_plans import EARLIEST_US, SUM_ROWS
from quaymaster_pipeline.checks.gold_checks import COMPARED, added_up, compare_hours, rows_of_file, sum_of_day
from quaymaster_pipeline.checks.header_groups import (
    CHAIN_COLUMNS,
    MARK_COLUMNS,
    PartOfTable,
    block_marks,
    chained_blocks,
    coverage_lines,
    expired_chains,
    read_groups,
)
from quaymaster_pipeline.checks.silver_checks import (
    NO_EVENTS,
    EventFile,
    EventsByBlock,
    compare_events,
    expected_events,
    place_keys,
)
from quaymaster_pipeline.checks.usage_breaks import GAPS_MAX, Findings, UsageBreak
from quaymaster_pipeline.usage.batch_rows import in_batches
from quaymaster_pipeline.usage.blocks import MEASURES
from quaymaster_pipeline.usage.bronze.planning import passed_in
from quaymaster_pipeline.usage.expired import LAST_BATCH, LINE_COLUMNS, ExpiredBlocks, ExpiredUsage
from quaymaster_pipeline.usage.gold import USED, control_totals, day_sums, partial_usage
from quaymaster_pipeline.usage.sequences import Gap
from quaymaster_pipeline.usage.silver import Marked
from quaymaster_pipeline.usage.tasks import answer_table
from quaymaster_pipeline.warehouse.closes import DayClose
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.schemas import (
    BLOCK_MARKS,
    BLOCKS,
    CLOSE_HEADS,
    COVERAGE,
    EXPIRED_BLOCKS,
    USAGE_EVENTS,
    USAGE_HOURLY,
)
from quaymaster_pipeline.warehouse.tables import within

PLACES, GAPS, UNLINKED, MATCHED = "places", "gaps", "unlinked", "matched"
EXPIRED_IN_CHAINS = "expired in chains"
"""Under which names tasks answer."""


class UsageGap(NamedTuple):
    """Sequences (half open) of an incarnation that never came."""

    front_end: str
    incarnation: int
    first: int
    end: int


_GAP_SCHEMA: Final = pa.schema(
    [("front_end", pa.string()), *((name, pa.int64()) for name in ("incarnation", "first", "end"))]
)


@dataclass(frozen=True, slots=True)
class SeenTables:
    """One version of each table, as tasks are told of it; the notes of their commits."""

    places: Mapping[str, TablePlace]
    blocks: Sequence[DataFile]
    marks: Sequence[DataFile]
    coverage: Sequence[DataFile]
    heads: Sequence[DataFile]
    events: Sequence[DataFile]
    hours: Sequence[DataFile]
    note: Mapping[str, Any]
    silver_totals: Mapping[str, int]
    last_batch: int
    silver_batch: int
    gold_batch: int
    coverage_batch: int
    daily: Sequence[DataFile]
    closes: Sequence[DayClose]
    last_close: int
    noted_closes: Sequence[DayClose]
    later_closes: Sequence[DayClose]
    daily_batch: int
    expired: ExpiredBlocks
    expired_usage: ExpiredUsage
    expired_hours: ExpiredUsage


def block_work(seen: SeenTables) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: check the blocks of one file of bronze, and the rows of silver that they give."""
    place, of_events, batch_id = seen.places[BLOCKS.name], seen.places[USAGE_EVENTS.name], seen.silver_batch
    marked = Marked(seen.places[BLOCK_MARKS.name], [file.path for file in seen.marks], 0, batch_id)

    def work(item: str) -> Iterator[Any]:
        path, date, files = json.loads(item)
        groups = list(read_row_groups(place, BLOCKS, path, PLACE_COLUMNS))
        events = EventsByBlock(of_events, [EventFile(*file) for file in files], groups)
        check = _FileCheck(events, marked, batch_id, date)
        for group, blocks in enumerate(read_row_groups(place, BLOCKS, path)):
            check.take(group, blocks)
        yield answer_table(PLACES, check.places_of(path, groups))
        yield from check.finish().answers()

    return work


class _FileCheck:
    """Checks one file of bronze and its rows of silver, a group of blocks at a time."""

    def __init__(self, events: EventsByBlock, marked: Marked, batch_id: int, date: str | None) -> None:
        self._events = events
        self._marked = marked
        self._batch_id = batch_id
        self._date = date
        self._unknown = np.empty(0, np.int64)
        """Keys of blocks that are not what came: what silver must have of them is not known."""
        self._findings = Findings()

    def take(self, group: int, blocks: Any) -> None:
        """Check the next blocks of the file."""
        findings = self._findings
        findings.counts.update(
            blocks=blocks.num_rows,
            damaged=blocks.num_rows - blocks.column("damage").null_count,
            **{f"blocks.{measure}": pc.sum(blocks.column(measure)).as_py() or 0 for measure in MEASURES},
        )
        findings.add_all(wrong_dates(blocks, self._date))
        checked = check_blocks(blocks)
        findings.add_all(checked.breaks)
        findings.counts["expired"] += checked.expired
        is_known = pc.and_(checked.is_right, pc.is_valid(blocks.column("batch_id")))
        if not pc.all(is_known).as_py():
            unknown = place_keys(blocks.filter(pc.invert(is_known)))
            self._unknown = np.concatenate([self._unknown, unknown])
        is_taken = pc.less_equal(blocks.column("batch_id"), self._batch_id)
        self._compare(group, blocks.filter(pc.and_(is_known, is_taken)))

    def _compare(self, group: int, blocks: Any) -> None:
        self._findings.add_all(wrongly_marked(blocks, self._marked))
        expected, events = expected_events(blocks, self._marked), self._events
        found = events.rest(group) if expected.may.num_rows else events.take(group, expected.must.num_rows)
        if next(compare_events(expected, self._known(found)), None) is not None:
            # What seems to be missing may be further behind.
            found = pa.concat_tables([found, events.rest(group)])
            self._findings.add_all(compare_events(expected, self._known(found)))

    def _known(self, events: Any) -> Any:
        if not len(self._unknown):
            return events
        return events.filter(pa.array(~np.isin(place_keys(events), self._unknown)))

    def places_of(self, path: str, groups: Sequence[Any]) -> Any:
        """Return the places of all blocks of the file."""
        places = places_of(groups)
        if places.num_rows > PLACES_OF_FILE_MAX:
            self._findings.add(UsageBreak(BLOCKS.name, f"the file {path} is of {places.num_rows} pieces"))
        return places.slice(0, PLACES_OF_FILE_MAX)

    def finish(self) -> Findings:
        """Return what was found; what silver has beyond what these blocks give is part of that."""
        rest = self._known(self._events.rest())
        self._findings.add_all(compare_events(NO_EVENTS, rest))
        self._findings.counts[MATCHED] += self._events.rows
        return self._findings


def chain_work(seen: SeenTables) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: check the chains of the front ends of an item, marks of their blocks, and coverage."""
    expired, silver_batch, coverage_batch = seen.expired, seen.silver_batch, seen.coverage_batch
    tables = [
        PartOfTable(BLOCKS, seen.places[BLOCKS.name], [file.path for file in seen.blocks], CHAIN_COLUMNS),
        PartOfTable(
            BLOCK_MARKS, seen.places[BLOCK_MARKS.name], [file.path for file in seen.marks], MARK_COLUMNS
        ),
        PartOfTable(
            COVERAGE, seen.places[COVERAGE.name], [file.path for file in seen.coverage], LINE_COLUMNS
        ),
        PartOfTable(EXPIRED_BLOCKS, expired.place, expired.paths, EXPIRED_BLOCKS.schema.names),
        PartOfTable(
            CLOSE_HEADS, seen.places[CLOSE_HEADS.name], [file.path for file in seen.heads], HEAD_COLUMNS
        ),
    ]
    ranges = ranges_of_heads(seen.closes)
    passed = passed_in(seen.note)

    def work(item: str) -> Iterator[Any]:
        for rows in read_groups(tables, item):
            yield from judge(*rows)

    def judge(blocks: Any, marks: Any, coverage: Any, gone: Any, heads: Any) -> Iterator[Any]:
        blocks_of, marks_of, lines_of, expired_of, heads_of = (
            chained_blocks(blocks),
            block_marks(in_batches(marks, expired.through + 1, silver_batch)),
            coverage_lines(coverage),
            expired_chains(gone),
            close_heads(heads),
        )
        findings, unlinked, gaps = Findings(), Findings(what=UNLINKED), list[Gap]()
        known = (blocks_of, marks_of, lines_of, expired_of, heads_of)
        for front_end in sorted(set().union(*known)):
            mine, before = blocks_of.get(front_end, []), expired_of.get(front_end, NOTHING_EXPIRED)
            marks_here = dict(marks_of.get(front_end, ()))
            chain = judge_chain(mine, passed, before, marks_here)
            findings.add_all(chain.breaks)
            unlinked.add_all(chain.unlinked)
            judged = [one for one in mine if one.batch_id <= silver_batch]
            findings.add_all(judge_marks(judged, chain.states, marks_here))
            covered = [one for one in mine if one.batch_id <= coverage_batch]
            if coverage_batch >= max(0, expired.through):
                lines = lines_of.get(front_end, ())
                findings.add_all(judge_coverage(covered, lines, chain.branched, before))
            recorded = heads_of.get(front_end, ())
            findings.add_all(judge_heads(mine, recorded, ranges, expired.through, LAST_BATCH))
            findings.counts[EXPIRED_IN_CHAINS] += sum(before.blocks.values())
            gaps += chain.gaps
            _count(findings, chain)
        rows = [UsageGap(*gap.owner, gap.seq_lo, gap.seq_hi)._asdict() for gap in gaps[:GAPS_MAX]]
        yield answer_table(GAPS, pa.Table.from_pylist(rows, schema=_GAP_SCHEMA))
        yield from findings.answers()
        yield from unlinked.answers()

    return work


def _count(findings: Findings, chain: FrontEndChain) -> None:
    states = list(chain.states.values())
    findings.counts.update(
        incarnations=chain.incarnations,
        branched=len(chain.branched),
        dropped=chain.dropped,
        duplicates=states.count("duplicate"),
        overlaps=states.count("overlap"),
        missing=sum(gap.seq_hi - gap.seq_lo for gap in chain.gaps),
        gaps_total=len(chain.gaps),
    )


def gold_work(of_events: TablePlace, of_hours: TablePlace, batch_id: int) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: compare the sums of a day, or some of its hours, of batches up to one that gold has.

    Of a day whose requests have expired, it answers the sums.
    """

    def work(item: str) -> Iterator[Any]:
        low, high, events, hours, expired_day = json.loads(item)
        findings = Findings()
        sums, found = _Sums(), _Sums()
        for path in () if expired_day else events:
            for rows in read_row_groups(of_events, USAGE_EVENTS, path, USED):
                mine = _filtered(rows, pc.less_equal(rows.column("batch_id"), batch_id))
                sums.add(partial_usage(_of_hours(mine, low, high)))
        for path in hours:
            for rows in read_row_groups(of_hours, USAGE_HOURLY, path, COMPARED):
                mine = _of_hours(rows, low, high)
                findings.counts[rows_of_file(path)] += mine.num_rows
                found.add(mine)
        of_gold = found.all()
        totals = control_totals(of_gold)
        findings.counts.update({f"gold.{name}": count for name, count in totals.items()})
        findings.counts["requests"] += totals["rows"]
        if expired_day is None:
            findings.add_all(compare_hours(sums.all(), of_gold))
        else:
            sums_of_day = day_sums(of_gold).items()
            findings.counts.update({sum_of_day(expired_day, name): count for name, count in sums_of_day})
        yield from findings.answers()

    return work


class _Sums:
    """Sums that are added up now and then, so that few are in memory."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self._rows = self._least = 0

    def add(self, rows: Any) -> None:
        self._parts.append(rows)
        self._rows += rows.num_rows
        if self._rows > SUM_ROWS + 2 * self._least:
            self._parts = [self.all()]
            self._rows = self._least = self._parts[0].num_rows

    def all(self) -> Any:
        return added_up(self._parts)


def _of_hours(rows: Any, low_us: int, high_us: int) -> Any:
    """Return the rows of these hours. Those without one are of the first."""
    hours = pc.fill_null(rows.column("hour").cast(pa.int64()), EARLIEST_US)
    return _filtered(rows, within(hours, low_us, high_us))


def _filtered(rows: Any, mask: Any) -> Any:
    """Return the rows that a mask has; mostly it has all, and nothing is copied."""
    return rows if pc.all(mask).as_py() else rows.filter(mask)
