"""Bronze: blocks of the usage queue become rows of request_events, each batch once, and lines of ops.segments.

Tasks decode blocks and write files; the driver judges the blocks by their ranges of sequences (new, duplicate, overlap,
damaged) and commits. The commit of request_events has the position in the queue, the running control totals and the
file of ops.segments, which is committed next: killed in between, the next run adds it.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.usage.blocks import DAMAGED, Origin, block_ranges, read_block, segment_table
from quaymaster_pipeline.usage.feed import BlockSource
from quaymaster_pipeline.usage.sequences import Coverage, IncarnationId, judge_blocks
from quaymaster_pipeline.usage.tasks import Answers, Workers, answer_files, answer_table
from quaymaster_pipeline.warehouse.data_files import DataFile, FileWriter, TablePlace
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.schemas import REQUEST_EVENTS, SEGMENTS
from quaymaster_pipeline.warehouse.tables import Warehouse

APP = "bronze"
BLOCKS_PER_BATCH_MAX = 1_024
"""A killed run repeats at most a batch: about four million rows, when blocks are full."""
MEASURES = ("rows", "messages", "bytes", "chunks", "errors")
"""The control totals of a layer."""
_SEGMENTS_APP = "bronze"


class FeedChanged(Exception):
    """The warehouse was filled from another feed than this one."""


class FeedIncomplete(Exception):
    """The feed did not give each block that it says it has."""


@dataclass(frozen=True, slots=True)
class BronzeBatch:
    """A batch of bronze."""

    batch_id: int
    blocks: int
    totals: Mapping[str, int]
    states: Mapping[str, int]


def take_batch(
    workers: Workers, warehouse: Warehouse, feed: BlockSource, coverage: Coverage, now: datetime.datetime
) -> BronzeBatch | None:
    """Commit the next batch of blocks; None when there is none. `coverage` then has its blocks.

    Raises:
        FeedChanged: this is another feed.
        FeedIncomplete: blocks are missing.
        CommitConflict: another process takes batches, too.
    """
    events, segments = warehouse.table(REQUEST_EVENTS), warehouse.table(SEGMENTS)
    note = events.note(APP)
    # Asked first: a queue that was made anew tells its new identity.
    bounds = feed.bounds()
    if note and note["feed"] != feed.identity:
        raise FeedChanged(f"the tables in {warehouse.root} are of {note['feed']}, not of {feed.identity}")
    ranges = plan_batch(bounds, positions_of(warehouse))
    if not ranges:
        return None
    batch_id = events.last_batch(APP) + 1
    answers = workers.over_blocks(
        feed, ranges, bronze_work(events.place, batch_id, now.astimezone(datetime.UTC).date())
    )
    lines = _lines_of(answers, ranges)
    table = judged(segment_table(lines), coverage, segments)
    totals = Counter(note.get("totals", {}))
    found: Counter[str] = Counter()
    for control in answers.tables("totals"):
        found.update(control.to_pylist()[0])
    states = Counter(table.column("state").to_pylist())
    totals.update(found)
    headers = Counter(note.get("headers", {}))
    headers.update({measure: pc.sum(table.column(measure)).as_py() or 0 for measure in MEASURES})
    files = segments.write(f"{APP}-{batch_id}", table)
    is_ours = events.commit(
        APP,
        batch_id,
        answers.files(REQUEST_EVENTS.name),
        note={
            "feed": feed.identity,
            "next": {
                **note.get("next", {}),
                **{str(partition): high for partition, (_, high) in ranges.items()},
            },
            "taken_us": int(now.timestamp() * 1_000_000),
            "totals": dict(totals),
            "headers": dict(headers),
            "segments": [file.to_json() for file in files],
        },
    )
    if not is_ours:
        raise CommitConflict(f"another process took batch {batch_id} into {warehouse.root}")
    commit_segments(warehouse)
    return BronzeBatch(batch_id, len(lines), dict(found), dict(states))


def _lines_of(answers: Answers, ranges: Mapping[int, tuple[int, int]]) -> list[dict[str, Any]]:
    """Return the lines of ops.segments that tasks made of the blocks they read; FeedIncomplete if any is missing."""
    lines = [line for table in answers.tables("segments") for line in table.to_pylist()]
    expected = {
        (partition, offset) for partition, (low, high) in ranges.items() for offset in range(low, high)
    }
    read = {(line["log_partition"], line["log_offset"]) for line in lines}
    if len(lines) != len(expected) or read != expected:
        raise FeedIncomplete(
            f"of {len(expected)} blocks the usage queue gave {len(lines)}, so nothing was taken"
        )
    return lines


def positions_of(warehouse: Warehouse) -> dict[int, int]:
    """Return the offset of the next block to take of each partition of the feed."""
    note = warehouse.table(REQUEST_EVENTS).note(APP)
    return {int(key): value for key, value in note.get("next", {}).items()}


def commit_segments(warehouse: Warehouse) -> None:
    """Add the lines of the last batch to ops.segments, unless they are there."""
    events = warehouse.table(REQUEST_EVENTS)
    files = [DataFile.from_json(fields) for fields in events.note(APP).get("segments", [])]
    if events.last_batch(APP) >= 0:
        warehouse.table(SEGMENTS).commit(_SEGMENTS_APP, events.last_batch(APP), files)


def plan_batch(
    bounds: Mapping[int, tuple[int, int]], positions: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """Return what the next batch takes of each partition, at most BLOCKS_PER_BATCH_MAX; nothing when all was taken.

    What the queue no longer has is passed over. It is not forgotten: its sequences stay missing.
    """
    left = BLOCKS_PER_BATCH_MAX
    ranges = {}
    for partition, (earliest, end) in sorted(bounds.items()):
        low = max(positions.get(partition, earliest), earliest)
        high = min(end, low + left)
        if high > low:
            ranges[partition] = (low, high)
            left -= high - low
    return ranges


def judged(table: Any, coverage: Coverage, segments: Any) -> Any:
    """Return lines of ops.segments with their states, and take them into the coverage."""
    damaged = pc.equal(pc.fill_null(table.column("state"), ""), DAMAGED)
    readable = table.filter(pc.invert(damaged))
    ranges = block_ranges(readable)
    doubtful = {block.owner.front_end for block in ranges if coverage.overlaps(block)}
    states = iter(judge_blocks(coverage, ranges, known_digests(segments, doubtful)))
    column = [DAMAGED if is_damaged else next(states) for is_damaged in damaged.to_pylist()]
    at = table.schema.get_field_index("state")
    return table.set_column(at, table.schema.field("state"), pa.array(column, pa.string()))


def known_digests(segments: Any, front_ends: set[str]) -> Iterator[tuple[IncarnationId, int, bytes]]:
    """Yield the blocks of these front ends that ops.segments has."""
    if not front_ends:
        return
    table = segments.read(["front_end", "epoch", "seq_lo", "sha256"])
    known = table.filter(pc.is_in(table.column("front_end"), pa.array(sorted(front_ends))))
    for front_end, incarnation, seq_lo, sha256 in zip(
        *(column.to_pylist() for column in known.columns), strict=True
    ):
        yield IncarnationId(front_end, incarnation), seq_lo, sha256


def coverage_of(warehouse: Warehouse) -> Coverage:
    """Return what all blocks taken so far cover."""
    names = ["state", "front_end", "epoch", "seq_lo", "seq_hi", "sha256", "low_watermark"]
    segments = warehouse.table(SEGMENTS).read([*names, "seal_epoch", "seal_end", "seal_reason"])
    coverage = Coverage()
    for block in block_ranges(segments.filter(pc.not_equal(segments.column("state"), DAMAGED))):
        coverage.add(block)
    return coverage


def bronze_work(
    place: TablePlace, batch_id: int, ingest_date: datetime.date
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return what a task does: decode the blocks it is given, and write their rows to one file."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        lines = []
        totals: Counter[str] = Counter()
        with FileWriter(place, REQUEST_EVENTS, f"{APP}-{batch_id}", str(ingest_date)) as writer:
            for batch in batches:
                columns = (batch.column(name) for name in ("log_partition", "log_offset", "value"))
                for partition, offset, value in zip(*columns, strict=True):
                    origin = Origin(partition.as_py(), offset.as_py(), batch_id)
                    line, rows = read_block(value.as_py(), origin)
                    lines.append(line)
                    if rows is not None:
                        writer.write(rows)
                        totals.update(control_totals(rows))
            written = writer.finish()
        yield from answer_files(REQUEST_EVENTS.name, [written])
        if lines:
            yield answer_table("segments", segment_table(lines))
            yield answer_table("totals", pa.Table.from_pylist([{name: totals[name] for name in MEASURES}]))

    return work


def control_totals(rows: Any) -> dict[str, int]:
    """Return the control totals of rows of request_events."""
    return {
        "rows": rows.num_rows,
        "messages": pc.sum(rows.column("message_count")).as_py() or 0,
        "bytes": pc.sum(rows.column("payload_bytes")).as_py() or 0,
        "chunks": pc.sum(rows.column("chunks")).as_py() or 0,
        "errors": pc.sum(pc.greater_equal(rows.column("http_status"), 400)).as_py() or 0,
    }
