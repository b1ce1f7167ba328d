"""Silver: rows of a batch of bronze, checked and each once, become usage and audit events, or go to quarantine.

A batch of silver is the batch of bronze with the same number. Blocks that came twice are left out as a whole, by what
ops.segments says of them. The rows of a block that overlaps others are compared one by one with what bronze had before:
the same again is a duplicate, the same identity with other content goes to quarantine.
"""

from __future__ import annotations

import contextlib
import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.usage.blocks import DAMAGED
from quaymaster_pipeline.usage.bronze import APP as BRONZE
from quaymaster_pipeline.usage.bronze import MEASURES, control_totals
from quaymaster_pipeline.usage.gold import USED, merge_usage, partial_usage
from quaymaster_pipeline.usage.latency import merge_latency, partial_latency
from quaymaster_pipeline.usage.rules import DAY_US, Silver, quarantine_rows, refine
from quaymaster_pipeline.usage.tasks import Workers, answer_files, answer_table
from quaymaster_pipeline.warehouse.data_files import DataFile, FileWriter, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.schemas import (
    AUDIT_EVENTS,
    QUARANTINE,
    REQUEST_COLUMNS,
    REQUEST_EVENTS,
    SEGMENTS,
    USAGE_EVENTS,
)
from quaymaster_pipeline.warehouse.tables import Table, Warehouse, within

APP = "silver"
COUNT_SCHEMA = pa.schema([("name", pa.string()), ("count", pa.int64())])
_CONTENT = [field.name for field in REQUEST_COLUMNS]
HEADS = "heads"
"""In the notes of audit_events and usage_events: the last audit event of each front end."""
HEAD_SCHEMA = pa.schema(
    [AUDIT_EVENTS.schema.field(name) for name in ("front_end", "epoch", "sequence", "record_hash")]
)

Heads = dict[str, tuple[int, int, str]]
"""Incarnation, sequence and hash (hex) of the last audit event of each front end."""


@dataclass(frozen=True, slots=True)
class Refined:
    """A batch of silver; rows are counted once each."""

    batch_id: int
    sums: Sums
    rows: dict[str, int]


class Sums(NamedTuple):
    """What gold takes of a batch: usage by hour, and counts of latencies."""

    usage: Any
    latency: Any


@dataclass(frozen=True, slots=True)
class _Marked:
    """Blocks of a batch that are not simply new, as `partition:offset`."""

    duplicate: frozenset[str]
    overlap: frozenset[str]
    damaged: Any


def refine_batch(workers: Workers, warehouse: Warehouse, closed_until_us: int) -> Refined:
    """Commit the last batch of bronze to the tables of silver that do not have it."""
    events = warehouse.table(REQUEST_EVENTS)
    batch_id = events.last_batch(BRONZE)
    # Not the clock: a batch that is taken again must be judged as the first time.
    now_us = events.note(BRONZE)["taken_us"]
    places = {spec.name: warehouse.place(spec) for spec in (USAGE_EVENTS, AUDIT_EVENTS, QUARANTINE)}
    marked = _marked_blocks(warehouse, batch_id)
    work = silver_work(
        events.place, places, batch_id, marked.duplicate, marked.overlap, now_us, closed_until_us
    )
    files = [file for file in events.files() if has_batch(file, batch_id)]
    answers = workers.over([file.path for file in files], work)
    counts: Counter[str] = Counter()
    for table in answers.tables("counts"):
        counts.update(
            dict(zip(table.column("name").to_pylist(), table.column("count").to_pylist(), strict=True))
        )
    parts, latencies = answers.tables("usage"), answers.tables("latency")
    heads = newest_heads(heads_of(table) for table in answers.tables(HEADS))
    written = {spec.name: answers.files(spec.name) for spec in (USAGE_EVENTS, AUDIT_EVENTS, QUARANTINE)}
    if marked.overlap:
        more = _refine_overlaps(warehouse, files, batch_id, marked, now_us, closed_until_us)
        counts.update(more.counts)
        heads = newest_heads([heads, heads_of(more.audit)])
        parts.append(partial_usage(more.usage))
        latencies.append(partial_latency(more.usage))
        for spec, rows in (
            (USAGE_EVENTS, more.usage),
            (AUDIT_EVENTS, more.audit),
            (QUARANTINE, more.quarantine),
        ):
            written[spec.name] += warehouse.table(spec).write(f"{APP}-{batch_id}", rows)
    if marked.damaged.num_rows:
        rows = _damaged_rows(marked.damaged, now_us)
        counts["damaged"] += rows.num_rows
        written[QUARANTINE.name] += warehouse.table(QUARANTINE).write(f"{APP}-{batch_id}", rows)
    # usage_events is last: when it has the batch, all of silver has.
    for spec in (QUARANTINE, AUDIT_EVENTS, USAGE_EVENTS):
        table = warehouse.table(spec)
        totals = Counter(table.note(APP).get("totals", {}))
        totals.update(counts)
        note = {"totals": dict(totals), HEADS: newest_heads([heads_in(table), heads])}
        table.commit(APP, batch_id, written[spec.name], note=note)
    return Refined(batch_id, Sums(merge_usage(parts), merge_latency(latencies)), dict(counts))


def sums_of_batch(workers: Workers, warehouse: Warehouse, batch_id: int) -> Sums:
    """Return the sums of a batch that silver has: what `Refined.sums` was."""
    table = warehouse.table(USAGE_EVENTS)
    paths = [file.path for file in table.files() if has_batch(file, batch_id)]
    answers = workers.over(paths, usage_work(table.place, batch_id, batch_id))
    return Sums(merge_usage(answers.tables("usage")), merge_latency(answers.tables("latency")))


def silver_work(
    source: TablePlace,
    places: dict[str, TablePlace],
    batch_id: int,
    duplicate: frozenset[str],
    overlap: frozenset[str],
    now_us: int,
    closed_until_us: int,
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does with one file of bronze."""

    def work(path: str) -> Iterator[Any]:
        writers: dict[tuple[str, str], FileWriter] = {}
        counts: Counter[str] = Counter()
        parts, latencies = [], []
        heads: Heads = {}
        with contextlib.ExitStack() as stack:
            for rows in read_row_groups(source, REQUEST_EVENTS, path):
                mine = rows.filter(pc.equal(rows.column("batch_id"), batch_id))
                if duplicate or overlap:
                    keys = block_keys(mine)
                    counts.update(_counted("duplicates", mine.filter(_is_in(keys, duplicate))))
                    mine = mine.filter(pc.invert(_is_in(keys, duplicate | overlap)))
                silver = refine(mine, now_us=now_us, closed_until_us=closed_until_us)
                counts.update(_counts_of(mine, silver))
                heads = newest_heads([heads, heads_of(silver.audit)])
                parts.append(partial_usage(silver.usage))
                latencies.append(partial_latency(silver.usage))
                tables = {
                    USAGE_EVENTS: silver.usage,
                    AUDIT_EVENTS: silver.audit,
                    QUARANTINE: silver.quarantine,
                }
                for spec, table in tables.items():
                    dates = table.column(spec.partition_column)
                    for date in pc.unique(dates):
                        key = (spec.name, str(date.as_py()))
                        if key not in writers:
                            writers[key] = stack.enter_context(
                                FileWriter(places[spec.name], spec, f"{APP}-{batch_id}", key[1])
                            )
                        writers[key].write(table.filter(pc.equal(dates, date)).select(spec.file_schema.names))
            written = [(name, writer.finish()) for (name, _), writer in writers.items()]
        for name, file in written:
            yield from answer_files(name, [file])
        yield answer_table("counts", pa.table([list(counts), list(counts.values())], schema=COUNT_SCHEMA))
        yield answer_table("usage", merge_usage(parts))
        yield answer_table("latency", merge_latency(latencies))
        lines = [
            (name, incarnation, sequence, bytes.fromhex(text))
            for name, (incarnation, sequence, text) in heads.items()
        ]
        yield answer_table(
            HEADS,
            pa.Table.from_pylist(
                [dict(zip(HEAD_SCHEMA.names, line, strict=True)) for line in lines], schema=HEAD_SCHEMA
            ),
        )

    return work


def heads_of(events: Any) -> Heads:
    """Return the last of these audit events of each front end."""
    return newest_heads(
        {name: (incarnation, sequence, (record_hash or b"").hex())}
        for name, incarnation, sequence, record_hash in zip(
            *(events.column(name).to_pylist() for name in HEAD_SCHEMA.names), strict=True
        )
    )


def heads_in(table: Table) -> Heads:
    """Return the heads that a table's note has; none where an earlier version wrote it."""
    return {name: (head[0], head[1], head[2]) for name, head in table.note(APP).get(HEADS, {}).items()}


def newest_heads(found: Iterable[Heads]) -> Heads:
    """Return the newest head of each front end."""
    newest: Heads = {}
    for heads in found:
        for name, head in heads.items():
            newest[name] = max(newest.get(name, head), head)
    return newest


def usage_work(
    source: TablePlace, first_batch: int, last_batch: int, hours_us: tuple[int, int] | None = None
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does to sum up a file of usage_events: batches inclusive, hours half open."""

    def work(path: str) -> Iterator[Any]:
        parts, latencies = [], []
        for rows in read_row_groups(source, USAGE_EVENTS, path, ["batch_id", *USED]):
            batches = rows.column("batch_id")
            mask = within(batches, first_batch, last_batch + 1)
            if hours_us is not None:
                hours = rows.column("hour").cast(pa.int64())
                mask = pc.and_(mask, within(hours, *hours_us))
            mine = rows.filter(mask)
            parts.append(partial_usage(mine))
            latencies.append(partial_latency(mine))
        yield answer_table("usage", merge_usage(parts))
        yield answer_table("latency", merge_latency(latencies))

    return work


def control_totals_of_usage(rows: Any) -> dict[str, int]:
    """Return the control totals of rows of usage_events, by the names that all layers have."""
    names = {"messages": "messages", "bytes": "bytes", "chunks": "chunks"}
    return {
        "rows": rows.num_rows,
        **{measure: pc.sum(rows.column(name)).as_py() or 0 for measure, name in names.items()},
        "errors": pc.sum(pc.greater_equal(rows.column("http_status"), 400)).as_py() or 0,
    }


def has_batch(file: DataFile, batch_id: int) -> bool:
    """Return whether a file may have rows of the batch."""
    low, high = file.bounds["batch_id"]
    return bool(low <= batch_id <= high)


def block_keys(rows: Any) -> Any:
    """Return each row's block, as `partition:offset`."""
    partition, offset = (rows.column(name).cast(pa.string()) for name in ("log_partition", "log_offset"))
    return pc.binary_join_element_wise(partition, offset, ":")


def _is_in(keys: Any, wanted: frozenset[str]) -> Any:
    return pc.is_in(keys, pa.array(sorted(wanted), pa.string()))


def _marked_blocks(warehouse: Warehouse, batch_id: int) -> _Marked:
    segments = warehouse.table(SEGMENTS)
    table = segments.read(files=[file for file in segments.files() if has_batch(file, batch_id)])
    table = table.filter(pc.equal(table.column("batch_id"), batch_id))

    def keys(state: str) -> frozenset[str]:
        return frozenset(block_keys(table.filter(pc.equal(table.column("state"), state))).to_pylist())

    return _Marked(keys("duplicate"), keys("overlap"), table.filter(pc.equal(table.column("state"), DAMAGED)))


def _counts_of(rows: Any, silver: Silver) -> Counter[str]:
    """Return the control totals of what became of rows of bronze, as `usage.messages` and so on."""
    counts = _counted("bronze", rows)
    found = control_totals_of_usage(silver.usage)
    for measure in MEASURES:
        counts[f"quarantine.{measure}"] = counts.pop(f"bronze.{measure}") - found[measure]
        counts[f"usage.{measure}"] = found[measure]
    counts["quarantine.rows"] = silver.quarantine.num_rows
    counts["audit.rows"] = silver.audit.num_rows
    return counts


def _counted(what: str, rows: Any) -> Counter[str]:
    return Counter({f"{what}.{measure}": count for measure, count in control_totals(rows).items()})


@dataclass(frozen=True, slots=True)
class _Overlaps:
    usage: Any
    audit: Any
    quarantine: Any
    counts: Counter[str]


def _refine_overlaps(
    warehouse: Warehouse,
    files: list[DataFile],
    batch_id: int,
    marked: _Marked,
    now_us: int,
    closed_until_us: int,
) -> _Overlaps:
    """Take the rows of overlapping blocks one by one. There are few: a front end's disk came back, or was copied."""
    events = warehouse.table(REQUEST_EVENTS)
    rows = events.read(files=files)
    mine = rows.filter(pc.equal(rows.column("batch_id"), batch_id))
    mine = mine.filter(_is_in(block_keys(mine), marked.overlap)).sort_by(
        [("log_partition", "ascending"), ("log_offset", "ascending"), ("block_row", "ascending")]
    )
    seen = _seen_before(warehouse, mine, batch_id, marked)
    same: list[int] = []
    other: list[int] = []
    fresh: list[int] = []
    for at, row in enumerate(mine.select(_CONTENT).to_pylist()):
        identity = (row["front_end"], row["epoch"], row["sequence"])
        before = seen.setdefault(identity, row)
        (fresh if before is row else same if before == row else other).append(at)
    first, again, odd = (mine.take(pa.array(places, pa.int64())) for places in (fresh, same, other))
    conflicts = quarantine_rows(odd, "identity", _REUSED, now_us)
    silver = refine(first, now_us=now_us, closed_until_us=closed_until_us)
    counts = _counts_of(first, silver) + _counted("duplicates", again) + _counted("quarantine", odd)
    return _Overlaps(silver.usage, silver.audit, pa.concat_tables([silver.quarantine, conflicts]), counts)


_REUSED = "another row has the same front end, incarnation and sequence, and other content"


def _seen_before(
    warehouse: Warehouse, mine: Any, batch_id: int, marked: _Marked
) -> dict[tuple[Any, ...], Any]:
    """Return the first row of bronze with each identity that rows of overlapping blocks may have."""
    events = warehouse.table(REQUEST_EVENTS)
    low, high = pc.min(mine.column("sequence")).as_py(), pc.max(mine.column("sequence")).as_py()
    owners = pc.unique(mine.column("front_end"))
    found: dict[tuple[Any, ...], Any] = {}
    for file in events.files():
        first, last = file.bounds["sequence"]
        if last < low or first > high or file.bounds["batch_id"][0] > batch_id:
            continue
        rows = events.read(files=[file])
        sequences = rows.column("sequence")
        mask = pc.and_(pc.greater_equal(sequences, low), pc.less_equal(sequences, high))
        mask = pc.and_(mask, pc.is_in(rows.column("front_end"), owners))
        mask = pc.and_(mask, pc.less_equal(rows.column("batch_id"), batch_id))
        # Of this batch itself only what is surely first: blocks that overlap are compared in their own order.
        unclear = pc.and_(
            pc.equal(rows.column("batch_id"), batch_id),
            _is_in(block_keys(rows), marked.overlap | marked.duplicate),
        )
        kept = rows.filter(pc.and_(mask, pc.invert(unclear))).sort_by(
            [("batch_id", "ascending"), ("log_partition", "ascending"), ("log_offset", "ascending")]
        )
        for row in kept.select([*_CONTENT, "batch_id", "log_offset"]).to_pylist():
            identity = (row["front_end"], row["epoch"], row["sequence"])
            place = (row.pop("batch_id"), row.pop("log_offset"))
            before = found.get(identity)
            if before is None or place < before[0]:
                found[identity] = (place, row)
    return {identity: row for identity, (_, row) in found.items()}


def _damaged_rows(damaged: Any, now_us: int) -> Any:
    """Return the rows of quarantine of blocks that could not be read."""
    count = damaged.num_rows
    columns = {
        "rule": pa.repeat("block", count),
        "reason": damaged.column("damage"),
        "raw": damaged.column("raw"),
        "quarantine_date": pa.array(
            [datetime.date(1970, 1, 1) + datetime.timedelta(now_us // DAY_US)] * count
        ),
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
