"""Silver: requests of the batches of bronze, checked and each once, become usage and audit events, or go to quarantine.

Silver takes batches of bronze after its own last as one; its batch has the number of the last of them. Blocks that came
twice are left out as a whole, by what ops.block_marks says of them. The rows of a block that overlaps others are
compared one by one with what came before: the same again is a duplicate, the same identity with other content goes to
quarantine. Nothing is committed unless all that the headers count is in one of these.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.usage.audit_heads import HEADS, Heads, heads_of, newest_heads
from quaymaster_pipeline.usage.backlogs import AHEAD, BATCH, next_stop
from quaymaster_pipeline.usage.batch_rows import files_of_batches, in_batches
from quaymaster_pipeline.usage.blocks import BRONZE, MEASURES
from quaymaster_pipeline.usage.bronze.stored_blocks import blocks_at, blocks_of_all, shares_of, spans_of
from quaymaster_pipeline.usage.expired import ExpiredBlocks, Spans, expired_blocks
from quaymaster_pipeline.usage.partial_sums import SILVER, SUM_TABLES, PartialSums, WrittenSums
from quaymaster_pipeline.usage.requests import open_blocks, request_rows
from quaymaster_pipeline.usage.rules import IDENTITY, REPEATED, Silver, quarantine_rows, refine
from quaymaster_pipeline.usage.sequences import BlockRange, IncarnationId
from quaymaster_pipeline.usage.silver_commits import MadeBatch, decide, decided_batch, follow_again
from quaymaster_pipeline.usage.tasks import Workers, answer, answer_counts, answer_files
from quaymaster_pipeline.warehouse.data_files import (
    DataFile,
    FileWriter,
    TablePlace,
    read_file,
    read_row_groups,
)
from quaymaster_pipeline.warehouse.errors import SumsDiffer
from quaymaster_pipeline.warehouse.schemas import (
    AUDIT_EVENTS,
    BLOCK_MARKS,
    BLOCKS,
    EXPIRED_BLOCKS,
    QUARANTINE,
    REQUEST_COLUMNS,
    USAGE_EVENTS,
    TableSpec,
)
from quaymaster_pipeline.warehouse.tables import Table, Warehouse
from quaymaster_pipeline.warehouse.times import DAY_US, us_of_time

APP: Final = SILVER
_CONTENT = [field.name for field in REQUEST_COLUMNS]
SILVER_TABLES: Final = (USAGE_EVENTS, AUDIT_EVENTS, QUARANTINE)


@dataclass(frozen=True, slots=True)
class Refined:
    """A batch of silver, of batches of bronze from `first_batch` to `batch_id`; rows are counted once each."""

    first_batch: int
    batch_id: int
    tasks: int
    sums: WrittenSums
    rows: dict[str, int]


def refine_batches(workers: Workers, warehouse: Warehouse) -> Refined | None:
    """Commit the next batches of bronze that silver does not have to its tables; None when it has all.

    What a killed run decided, and `complete_batch` cannot commit, is taken again as the same batch, whatever bronze
    took since.

    Raises:
        SumsDiffer: what came out is not what went in, or not what was decided; nothing is committed.
        CommitConflict: another process refines, too.
    """
    blocks, usage = warehouse.table(BLOCKS), warehouse.table(USAGE_EVENTS)
    left = decided_batch(warehouse)
    first, last = usage.last_batch(APP) + 1, blocks.last_batch(BRONZE)
    if last < first:
        return None
    before = usage.note(APP).get("totals", {})
    headers = blocks.note(BRONZE).get("headers", {})
    if left is not None:
        last, headers = left.batch_id, _headers_up_to(blocks, left.batch_id)
    else:
        stop = next_stop(blocks.note(BRONZE).get(AHEAD, []), first, before.get("blocks.rows", 0))
        if stop is not None:
            last, headers = stop[BATCH], stop
    specs = (*SILVER_TABLES, *(sums.spec for sums in SUM_TABLES))
    places = {spec.name: warehouse.place(spec) for spec in specs}
    marks = warehouse.table(BLOCK_MARKS)
    marked = Marked(marks.place, [file.path for file in files_of_batches(marks, first, last)], first, last)
    overlapping = marked.overlapping()
    work = silver_work(_Blocks.of(warehouse) if overlapping else _Blocks(blocks.place), places, marked)
    items = [file.path for file in files_of_batches(blocks, first, last)]
    items += [json.dumps(share) for share in shares_of(overlapping, workers.cores)]
    answers = workers.over(items, work)
    counts = answers.counts("counts")
    heads = newest_heads(_heads_of_answer(text) for text in answers.texts(HEADS))
    sums = WrittenSums.of(answers)
    _check(counts, before, headers, sums.totals)
    made = MadeBatch(
        first, last, counts, heads, {spec.name: answers.files(spec.name) for spec in SILVER_TABLES}
    )
    if left is None:
        decide(warehouse, made)
    else:
        follow_again(warehouse, left, made)
    return Refined(first, last, answers.tasks, sums, dict(counts))


def _headers_up_to(blocks: Table, batch_id: int) -> Mapping[str, int]:
    """Return the control totals of bronze up to a batch, of which it may have noted none any more."""
    note = blocks.note(BRONZE)
    stops: Sequence[Mapping[str, int]] = note.get(AHEAD, [])
    noted = next((stop for stop in stops if stop[BATCH] == batch_id), None)
    if noted is not None:
        return noted
    headers = Counter(note.get("headers", {}))
    last = blocks.last_batch(BRONZE)
    for file in files_of_batches(blocks, batch_id + 1, last):
        for rows in read_row_groups(blocks.place, BLOCKS, file.path, ["batch_id", *MEASURES]):
            later = in_batches(rows, batch_id + 1, last)
            headers.subtract({measure: pc.sum(later.column(measure)).as_py() or 0 for measure in MEASURES})
    return headers


def _check(
    counts: Mapping[str, int], before: Mapping[str, int], headers: Mapping[str, int], sums: Mapping[str, int]
) -> None:
    """Raise SumsDiffer unless each request that headers count went somewhere, and only one way, and sums have it."""
    for measure in MEASURES:
        used = counts.get(f"usage.{measure}", 0)
        if sums.get(measure, 0) != used:
            raise SumsDiffer(
                f"gold would have {sums.get(measure, 0)} {measure} of {used} in the rows of this batch: nothing was "
                "committed to it, nor to silver"
            )
        went = sum(counts.get(f"{way}.{measure}", 0) for way in ("usage", "quarantine", "duplicates"))
        came = counts.get(f"blocks.{measure}", 0)
        all_came = came + before.get(f"blocks.{measure}", 0)
        if went != came or all_came != headers.get(measure, 0):
            raise SumsDiffer(
                f"silver would have {went} {measure} of {came} in the blocks of this batch, and {all_came} of "
                f"{headers.get(measure, 0)} in all: nothing was committed to it"
            )


class Marked:
    """What ops.block_marks says of the blocks of some batches. Can be pickled; read where it is used."""

    def __init__(self, place: TablePlace, paths: Sequence[str], first: int, last: int) -> None:
        self.first = first
        self.last = last
        self._place = place
        self._paths = list(paths)
        self._rows: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None}

    @property
    def rows(self) -> Any:
        """The marks."""
        if self._rows is None:
            found = [BLOCK_MARKS.file_schema.empty_table()]
            found += [read_file(self._place, BLOCK_MARKS, path) for path in self._paths]
            self._rows = in_batches(pa.concat_tables(found), self.first, self.last)
        return self._rows

    def overlapping(self) -> list[IncarnationId]:
        """Return the incarnations that have blocks whose rows must be looked at one by one."""
        rows = self._in_state("overlap").select(["front_end", "epoch"])
        return sorted({IncarnationId(row["front_end"], row["epoch"]) for row in rows.to_pylist()})

    def spans(self, owners: Iterable[IncarnationId]) -> dict[IncarnationId, tuple[int, int]]:
        """Return from where to where such blocks of these incarnations reach."""
        names = ("front_end", "epoch", "seq_lo", "seq_hi")
        rows = self._in_state("overlap")
        lines = zip(*(rows.column(name).to_pylist() for name in names), strict=True)
        return spans_of(
            owners, (BlockRange(IncarnationId(*line[:2]), line[2], line[3], b"", 0) for line in lines)
        )

    def are(self, state: str, blocks: Any) -> Any:
        """Return which of these blocks are in a state, as a mask."""
        return pc.is_in(block_keys(blocks), block_keys(self._in_state(state)))

    def _in_state(self, state: str) -> Any:
        return self.rows.filter(pc.equal(self.rows.column("state"), state))


class _Blocks(NamedTuple):
    """Bronze as tasks read it. Blocks may overlap any of `files`, also of batches long ago, and what has `expired`."""

    place: TablePlace
    files: Sequence[DataFile] = ()
    expired: ExpiredBlocks | None = None

    @classmethod
    def of(cls, warehouse: Warehouse) -> _Blocks:
        """Return all of it. Files are looked at first: what leaves them meanwhile is known to have expired."""
        blocks, expired = warehouse.table(BLOCKS), warehouse.table(EXPIRED_BLOCKS)
        expired.refresh()
        return cls(blocks.place, blocks.files(), expired_blocks(expired))


def silver_work(
    source: _Blocks, places: Mapping[str, TablePlace], marked: Marked
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: with one file of bronze, or with the overlapping blocks of some incarnations."""

    def work(item: str) -> Iterator[Any]:
        with contextlib.ExitStack() as stack:
            output = _Output(places, marked.last, stack)
            if item.startswith("["):
                spans = marked.spans([IncarnationId(*owner) for owner in json.loads(item)])
                paths = [file.path for file in source.files]
                for owner, headers in blocks_of_all(source.place, paths, spans, _HEADERS).items():
                    _take_overlaps(output, source, owner, headers, marked)
            else:
                for rows in read_row_groups(source.place, BLOCKS, item, _TAKEN):
                    _take_blocks(output, in_batches(rows, marked.first, marked.last), marked)
            yield from output.answers()

    return work


_TAKEN: Final = [
    *("log_partition", "log_offset", "batch_id", "taken_time", "closed_until", "damage", "content"),
    *("content_bytes", "front_end", "epoch", "seq_lo", "seq_hi", *MEASURES),
]
_HEADERS: Final = [name for name in _TAKEN if name != "content"]
PART_BYTES: Final = 1 << 20
"""About so much content of overlapping blocks is opened at a time: some 20,000 requests, each looked at by itself."""


class _Output:
    """What one task writes and counts."""

    def __init__(self, places: Mapping[str, TablePlace], batch_id: int, stack: contextlib.ExitStack) -> None:
        self.counts: Counter[str] = Counter()
        self._places = places
        self._prefix = f"{APP}-{batch_id}"
        self._stack = stack
        self._writers: dict[tuple[str, str], FileWriter] = {}
        self._sums = PartialSums(places, batch_id)
        self._heads: Heads = {}

    def take(self, rows: Any, now_us: int, closed_until_us: int) -> None:
        """Take requests, each for the first time."""
        silver = refine(rows, now_us=now_us, closed_until_us=closed_until_us)
        self.counts.update(_counts_of(rows, silver))
        self._heads = newest_heads([self._heads, heads_of(silver.audit)])
        self._sums.add(silver.usage)
        for spec, table in zip(SILVER_TABLES, silver, strict=True):
            self.write(spec, table)

    def open(self, blocks: Any) -> Any:
        """Return the requests of blocks. A block whose rows cannot be read goes to quarantine with what it counts."""
        opened, unreadable = open_blocks(blocks)
        if unreadable:
            bad = blocks.take(pa.array([one.at for one in unreadable]))
            reasons = pa.array([one.reason for one in unreadable], pa.string())
            at = bad.schema.get_field_index("damage")
            self.write(QUARANTINE, _damaged_rows(bad.set_column(at, "damage", reasons)))
            self.counts.update(_header_counts("quarantine", bad))
            self.counts["damaged"] += bad.num_rows
        return request_rows(opened)

    def reject(self, rows: Any, rule: str, now_us: int) -> None:
        """Put requests that broke a rule of their place into quarantine."""
        if rows.num_rows:
            self.counts.update(_counted("quarantine", rows))
            self.write(QUARANTINE, quarantine_rows(rows, rule, _REASONS[rule], now_us))

    def write(self, spec: TableSpec, table: Any) -> None:
        """Write rows to a file of each date."""
        dates = table.column(spec.partition_column)
        for date in pc.unique(dates):
            key = (spec.name, str(date.as_py()))
            if key not in self._writers:
                writer = FileWriter(self._places[spec.name], spec, self._prefix, key[1])
                self._writers[key] = self._stack.enter_context(writer)
            self._writers[key].write(table.filter(pc.equal(dates, date)).select(spec.file_schema.names))

    def answers(self) -> Iterator[Any]:
        written = [(name, writer.finish()) for (name, _), writer in self._writers.items()]
        for name, file in written:
            yield from answer_files(name, [file])
        yield answer_counts("counts", self.counts)
        yield from self._sums.write().answers()
        yield answer(HEADS, json.dumps(self._heads).encode())


def _take_blocks(output: _Output, blocks: Any, marked: Marked) -> None:
    """Take the requests of blocks; not of those that overlap, which are another task's."""
    if not blocks.num_rows:
        return
    damaged = pc.is_valid(blocks.column("damage"))
    if pc.any(damaged).as_py():
        rows = _damaged_rows(blocks.filter(damaged))
        output.counts["damaged"] += rows.num_rows
        output.write(QUARANTINE, rows)
        blocks = blocks.filter(pc.invert(damaged))
    if marked.rows.num_rows:
        blocks = blocks.filter(pc.invert(marked.are("overlap", blocks)))
    output.counts.update(_header_counts("blocks", blocks))
    if marked.rows.num_rows:
        is_duplicate = marked.are("duplicate", blocks)
        output.counts.update(_header_counts("duplicates", blocks.filter(is_duplicate)))
        blocks = blocks.filter(pc.invert(is_duplicate))
    for of_batch in _by_batch(blocks):
        rows = output.open(of_batch)
        if rows.num_rows:
            output.take(rows, *_times_of(of_batch))


def _by_batch(blocks: Any) -> Iterator[Any]:
    for batch_id in pc.unique(blocks.column("batch_id")).to_pylist():
        yield in_batches(blocks, batch_id, batch_id)


def _times_of(blocks: Any) -> tuple[int, int]:
    """Return when the batch of these blocks was taken, and until when all was there then, microseconds."""
    taken, closed = (blocks.column(name)[0].as_py() for name in ("taken_time", "closed_until"))
    return us_of_time(taken), us_of_time(closed)


_REASONS: Final = {
    IDENTITY: "another row has the same front end, incarnation and sequence, and other content",
    REPEATED: "a block with the same front end, incarnation and sequence came before, and its content has expired",
}


def _take_overlaps(
    output: _Output, source: _Blocks, owner: IncarnationId, headers: Any, marked: Marked
) -> None:
    """Take the rows of an incarnation's overlapping blocks one by one: a front end's disk came back, or was copied.

    `headers` are at least of those and of what they meet. Of what came before, only blocks that these meet are opened.
    Rows in the place of some whose content has expired are told by ranges, as there may be any number of them.
    """
    headers = headers.filter(
        pc.and_(pc.is_null(headers.column("damage")), pc.less_equal(headers.column("batch_id"), marked.last))
    ).sort_by([(name, "ascending") for name in ("batch_id", "log_partition", "log_offset")])
    is_mine = marked.are("overlap", headers)
    mine = headers.filter(is_mine)
    output.counts.update(_header_counts("blocks", mine))
    # Of these batches themselves, what is neither marked came first.
    before = pc.and_(
        Spans.of(mine).meet(headers), pc.invert(pc.or_(is_mine, marked.are("duplicate", headers)))
    )
    earlier = headers.filter(before)
    has_content = pc.greater(earlier.column("content_bytes"), 0)
    seen: dict[int, Any] = {}
    for blocks in _in_parts(source, owner, earlier.filter(has_content)):
        for row in request_rows(open_blocks(blocks)[0]).select(_CONTENT).to_pylist():
            seen.setdefault(row["sequence"], row)
    compared = np.fromiter(seen, np.int64, len(seen))
    lines = () if source.expired is None else source.expired.lines(owner)
    expired = Spans.of(earlier.filter(pc.invert(has_content)), *lines)
    for blocks in _in_parts(source, owner, mine):
        now_us, closed_until_us = _times_of(blocks)
        rows = output.open(blocks)
        sequences = rows.column("sequence").to_numpy()
        is_repeated = expired.has(sequences) & ~np.isin(sequences, compared)
        repeated, rows = (rows.filter(pa.array(mask)) for mask in (is_repeated, ~is_repeated))
        output.reject(repeated, REPEATED, now_us)
        fresh: list[int] = []
        same: list[int] = []
        other: list[int] = []
        for at, row in enumerate(rows.select(_CONTENT).to_pylist()):
            first = seen.setdefault(row["sequence"], row)
            (fresh if first is row else same if first == row else other).append(at)
        output.take(rows.take(pa.array(fresh, pa.int64())), now_us, closed_until_us)
        output.counts.update(_counted("duplicates", rows.take(pa.array(same, pa.int64()))))
        output.reject(rows.take(pa.array(other, pa.int64())), IDENTITY, now_us)


def _in_parts(source: _Blocks, owner: IncarnationId, headers: Any) -> Iterator[Any]:
    """Yield the blocks of these headers with content, in their order: of one batch, and about PART_BYTES, at a time."""
    for batch_id in pc.unique(headers.column("batch_id")).to_pylist():
        of_batch = in_batches(headers, batch_id, batch_id)
        files = [file for file in source.files if file.may_have("batch_id", batch_id, batch_id)]
        parts = np.cumsum(of_batch.column("content_bytes").to_numpy()) // PART_BYTES
        for part in np.unique(parts):
            wanted = of_batch.filter(pa.array(parts == part))
            offsets = pc.min_max(wanted.column("log_offset")).as_py()
            found = blocks_at(source.place, files, owner, _TAKEN, (offsets["min"], offsets["max"]))
            found = found.filter(pc.is_in(block_keys(found), block_keys(wanted)))
            yield found.sort_by([(name, "ascending") for name in ("log_partition", "log_offset")])


def _heads_of_answer(text: str) -> Heads:
    return {name: (head[0], head[1], head[2]) for name, head in json.loads(text).items()}


def control_totals_of_usage(rows: Any) -> dict[str, int]:
    """Return the control totals of rows of usage_events, by the names that all layers have."""
    names = {"messages": "messages", "bytes": "bytes", "chunks": "chunks"}
    return {
        "rows": rows.num_rows,
        **{measure: pc.sum(rows.column(name)).as_py() or 0 for measure, name in names.items()},
        "errors": pc.sum(pc.greater_equal(rows.column("http_status"), 400)).as_py() or 0,
    }


def block_keys(rows: Any) -> Any:
    """Return each block's place in the queue, as `partition:offset`."""
    partition, offset = (rows.column(name).cast(pa.string()) for name in ("log_partition", "log_offset"))
    return pc.binary_join_element_wise(partition, offset, ":").combine_chunks()


def _counts_of(rows: Any, silver: Silver) -> Counter[str]:
    """Return the control totals of what became of requests, as `usage.messages` and so on."""
    counts = _counted("quarantine", rows)
    for measure, count in control_totals_of_usage(silver.usage).items():
        counts[f"quarantine.{measure}"] -= count
        counts[f"usage.{measure}"] = count
    counts["quarantine.rows"] = silver.quarantine.num_rows
    counts["audit.rows"] = silver.audit.num_rows
    return counts


def _control_totals(rows: Any) -> dict[str, int]:
    """Return the control totals of requests."""
    return {
        "rows": rows.num_rows,
        "messages": pc.sum(rows.column("message_count")).as_py() or 0,
        "bytes": pc.sum(rows.column("payload_bytes")).as_py() or 0,
        "chunks": pc.sum(rows.column("chunks")).as_py() or 0,
        "errors": pc.sum(pc.greater_equal(rows.column("http_status"), 400)).as_py() or 0,
    }


def _counted(what: str, rows: Any) -> Counter[str]:
    return Counter({f"{what}.{measure}": count for measure, count in _control_totals(rows).items()})


def _header_counts(what: str, blocks: Any) -> Counter[str]:
    """Return what the headers of blocks count."""
    return Counter({f"{what}.{measure}": pc.sum(blocks.column(measure)).as_py() or 0 for measure in MEASURES})


def _damaged_rows(damaged: Any) -> Any:
    """Return the rows of quarantine of blocks that could not be read."""
    count = damaged.num_rows
    days = pc.divide(damaged.column("taken_time").cast(pa.int64()), DAY_US).cast(pa.int32())
    columns = {
        "rule": pa.repeat("block", count),
        "reason": damaged.column("damage"),
        "raw": damaged.column("content"),
        "raw_bytes": pc.fill_null(pc.binary_length(damaged.column("content")), 0).cast(pa.int64()),
        "quarantine_date": days.cast(pa.date32()),
    }
    arrays = []
    for field in QUARANTINE.schema:
        if field.name in columns:
            arrays.append(columns[field.name])
        elif field.name in ("log_partition", "log_offset", "batch_id"):
            arrays.append(damaged.column(field.name))
        else:
            arrays.append(pa.nulls(count, field.type))
    return pa.table(arrays, schema=QUARANTINE.schema)
