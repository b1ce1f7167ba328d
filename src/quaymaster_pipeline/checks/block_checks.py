"""Whether rows of bronze.blocks are the blocks that came: each is what its content says, and none is missing or added.

    content ──SHA-256──▶ sha256            header in it ──▶ front_end, epoch, seq_lo, rows, sums, seal, previous, ...
    offsets of a partition: 0 ... dense, but for what the queue no longer had ... the position in the commit's note

A task answers *places*: stretches of offsets that one batch took. What lies between them is for the driver to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster.protocol.usage.usage_blocks import UnknownBlockVersion, decode_header
from quaymaster.protocol.usage.usage_rows import CorruptBlock
from quaymaster_pipeline.checks.usage_breaks import UsageBreak, differing, shown
from quaymaster_pipeline.usage.blocks import DAMAGED, MEASURES, BatchFacts, ReadBlock, block_rows, read_block
from quaymaster_pipeline.usage.bronze.planning import passed_in
from quaymaster_pipeline.usage.expired import ExpiredBlocks
from quaymaster_pipeline.usage.silver import Marked
from quaymaster_pipeline.warehouse.schemas import BLOCK_MARKS, BLOCKS, TIME
from quaymaster_pipeline.warehouse.times import time_of_us, us_of_time

_OF_BATCH: Final = ("feed", "batch_id", "taken_time", "closed_until")
"""The columns that are not of a block's content, but of the batch that took it; of these, blocks of a batch have the
same."""
_PLACE: Final = ("log_partition", "log_offset")
PLACE_COLUMNS: Final = (*_PLACE, *_OF_BATCH)
"""What `places_of` looks at."""
OF_CONTENT: Final = tuple(
    name for name in BLOCKS.file_schema.names if name not in (*_OF_BATCH, *_PLACE, "sha256", "content")
)
"""The columns that a block's content says."""
PLACES_OF_FILE_MAX: Final = 10_000
"""A file has a few; one that somebody made has so many at most, and the rest is one break."""
PLACES_SCHEMA: Final = pa.schema(
    [
        *(pa.field(name, pa.int64()) for name in ("log_partition", "batch_id", "low", "high")),
        pa.field("feed", pa.string()),
        *(pa.field(name, TIME) for name in ("taken_time", "closed_until")),
    ]
)


class CheckedBlocks(NamedTuple):
    """What was found of rows of bronze.blocks: breaks, and a mask of the rows whose content is what came.

    `expired` rows have no content any more: what silver must have of them cannot be said.
    """

    breaks: list[UsageBreak]
    is_right: Any
    expired: int


def check_blocks(blocks: Any) -> CheckedBlocks:
    """Compare rows of bronze.blocks with their content."""
    count = blocks.num_rows
    names = ["log_partition", "log_offset", "content", "damage", "sha256", "content_bytes"]
    given = blocks.select(names)
    read: list[ReadBlock] = []
    reasons: dict[int, str] = {}
    expired: list[int] = []
    for at, (partition, offset, content, damage, digest, content_bytes) in enumerate(
        zip(*(column.to_pylist() for column in given.columns), strict=True)
    ):
        block = _read_again(partition, offset, content, damage)
        read.append(block)
        if content is None and content_bytes == 0:
            expired.append(at)
        elif content is None:
            reasons[at] = "its content is not there"
        elif block.sha256 != digest:
            reasons[at] = "its content or its column sha256 was changed: the content has another hash"
        elif block.header is None and damage is None:
            reasons[at] = f"its content cannot be read: {block.damage}"
    expected = block_rows(read, BatchFacts("", 0, 0, 0))
    is_other = np.zeros(count, bool)
    columns: dict[int, str] = {}
    for name in OF_CONTENT:
        mask = differing(blocks.column(name), expected.column(name))
        if pc.any(mask).as_py():
            places = mask.to_numpy().copy()
            places[expired] = False
            is_other |= places
            for at in np.flatnonzero(places).tolist():
                columns.setdefault(at, name)
    for at, name in columns.items():
        if at not in reasons:
            found, said = (table.column(name)[at].as_py() for table in (blocks, expected))
            reasons[at] = f"its column {name} is {shown(found)}; its content says {shown(said)}"
    is_other[[*reasons, *expired]] = True
    breaks = [break_at(blocks, at, reasons[at], columns.get(at)) for at in sorted(reasons)]
    return CheckedBlocks(breaks, pa.array(~is_other), len(expired))


def _read_again(partition: int, offset: int, content: bytes | None, damage: str | None) -> ReadBlock:
    """Return what bronze made of a block when it came."""
    if content is None:
        return ReadBlock(partition, offset, b"", None, None, damage)
    try:
        header = decode_header(content)
    except (CorruptBlock, UnknownBlockVersion) as error:
        if damage is None:
            return ReadBlock(partition, offset, content, sha256(content).digest(), None, str(error))
        # A body that was base64 of no block is kept as what it stood for: then it is not base64 any more.
        reasons = {str(error)} | ({read_block(partition, offset, content).damage} - {None})
        known = damage if damage in reasons else str(error)
        return ReadBlock(partition, offset, content, None, None, known)
    return ReadBlock(partition, offset, content, sha256(content).digest(), header, None)


def break_at(blocks: Any, at: int, reason: str, column: str | None = None) -> UsageBreak:
    """Return a break of one of these rows of bronze.blocks."""
    names = ("front_end", "epoch", "seq_lo", *_PLACE)
    front_end, *place = (blocks.column(name)[at].as_py() for name in names)
    return UsageBreak(BLOCKS.name, reason, front_end, *place)._replace(column=column)


def places_of(groups: Sequence[Any]) -> Any:
    """Return the places of all blocks of a file: a line for each stretch that one batch took."""
    if not groups:
        return PLACES_SCHEMA.empty_table()
    rows = pa.concat_tables(groups).select(PLACE_COLUMNS).sort_by([(name, "ascending") for name in _PLACE])
    if not rows.num_rows:
        return PLACES_SCHEMA.empty_table()
    offsets = _numbers(rows, "log_offset")
    is_new = np.concatenate(([True], np.diff(offsets) != 1))
    for name in ("log_partition", *_OF_BATCH):
        column = rows.column(name)
        is_new[1:] |= differing(column.slice(1), column.slice(0, rows.num_rows - 1)).to_numpy()
    firsts = np.flatnonzero(is_new)
    lasts = np.append(firsts[1:], rows.num_rows) - 1
    lines = rows.take(pa.array(firsts))
    columns = {
        **{name: lines.column(name) for name in ("log_partition", *_OF_BATCH)},
        "low": pa.array(offsets[firsts]),
        "high": pa.array(offsets[lasts] + 1),
    }
    return pa.table([columns[field.name].cast(field.type) for field in PLACES_SCHEMA], schema=PLACES_SCHEMA)


def _numbers(rows: Any, name: str) -> Any:
    return pc.fill_null(rows.column(name).cast(pa.int64()), -1).to_numpy()


def wrong_dates(blocks: Any, date: str | None) -> Iterator[UsageBreak]:
    """Yield rows that are in the file of another date than that on which they were taken."""
    dates = blocks.column("taken_time").cast(pa.timestamp("us")).cast(pa.date32()).cast(pa.string())
    for at in np.flatnonzero(
        differing(dates, pa.repeat(pa.scalar(date, pa.string()), len(dates))).to_numpy()
    ):
        reason = f"it was taken on {shown(dates[int(at)].as_py())}, and is among those of {shown(date)}"
        yield break_at(blocks, int(at), reason, "taken_time")


def wrongly_marked(blocks: Any, marked: Marked) -> Iterator[UsageBreak]:
    """Yield blocks that are damaged and not marked so, or the other way round."""
    damaged = pc.is_valid(blocks.column("damage"))
    if not marked.rows.num_rows and not pc.any(damaged).as_py():
        return
    for at in np.flatnonzero(pc.xor(marked.are(DAMAGED, blocks), damaged).to_numpy()).tolist():
        found, reason = break_at(blocks, at, ""), "it is marked damaged, or is and is not marked"
        yield found._replace(table=BLOCK_MARKS.name, reason=reason)


class BatchPlace(NamedTuple):
    """Offsets (half open) of a partition that one batch took."""

    log_partition: int
    low: int
    high: int
    batch_id: int
    feed: str | None
    taken_us: int | None
    closed_until_us: int | None


def in_order(tables: Iterable[Any]) -> list[BatchPlace]:
    """Return the places of all files, in the order of their offsets."""
    places = []
    for row in pa.concat_tables([PLACES_SCHEMA.empty_table(), *tables]).to_pylist():
        numbers = (row[name] for name in ("log_partition", "low", "high", "batch_id"))
        partition, low, high, batch = (-1 if number is None else number for number in numbers)
        taken, closed = (
            None if row[name] is None else us_of_time(row[name]) for name in ("taken_time", "closed_until")
        )
        places.append(BatchPlace(partition, low, high, batch, row["feed"], taken, closed))
    return sorted(places, key=lambda place: place[:4])


def judge_places(
    places: Sequence[BatchPlace],
    note: Mapping[str, Any],
    last_batch: int,
    expired: ExpiredBlocks,
) -> Iterator[UsageBreak]:
    """Yield where offsets are missing, twice there or beyond the position, and where blocks of a batch differ.

    They begin behind those that have `expired`.
    """
    if places and not note:
        yield UsageBreak(
            BLOCKS.name, "the note of its commits, which says how far it must reach, is not there"
        )
        return
    ends = {int(partition): end for partition, end in note.get("next", {}).items()}
    passed = passed_in(note)
    of_partition: dict[int, list[BatchPlace]] = {partition: [] for partition in ends}
    for place in places:
        of_partition.setdefault(place.log_partition, []).append(place)
    for partition, mine in of_partition.items():
        ranges = expired.next.get(partition, 0), ends.get(partition, 0)
        yield from _judge_offsets(partition, mine, ranges, passed.get(partition, []))
    yield from _judge_batches(places, note, last_batch, expired)


def _judge_offsets(
    partition: int,
    places: Sequence[BatchPlace],
    offsets: tuple[int, int],
    passed: Sequence[Sequence[int]],
) -> Iterator[UsageBreak]:
    begin, end = offsets

    def broken(offset: int, reason: str) -> UsageBreak:
        return UsageBreak(BLOCKS.name, reason, log_partition=partition, log_offset=offset)

    stretches: list[tuple[int, int, BatchPlace | None]] = [
        (max(begin, low), high, None) for low, high in passed if high > begin
    ]
    stretches += [(place.low, place.high, place) for place in places]
    expected, last_batch = begin, -1
    for low, high, place in sorted(stretches, key=lambda stretch: stretch[:2]):
        if low > expected:
            yield broken(expected, _missing(expected, low))
        if low < expected:
            yield broken(low, "it is there twice, or was put in")
        expected = max(expected, high)
        if place is None:
            continue
        if high > end:
            yield broken(max(low, end), f"it was put in: the table was filled up to offset {end}")
        if place.batch_id < last_batch:
            reason = f"its column batch_id is {place.batch_id}; blocks before it are of batch {last_batch}"
            yield broken(low, reason)._replace(column="batch_id")
        last_batch = max(last_batch, place.batch_id)
    if end > expected:
        yield broken(expected, _missing(expected, end))


def _missing(first: int, end: int) -> str:
    return "it is missing" if end - first == 1 else f"it and all up to offset {end - 1} are missing"


def _judge_batches(
    places: Iterable[BatchPlace], note: Mapping[str, Any], last_batch: int, expired: ExpiredBlocks
) -> Iterator[UsageBreak]:
    """Yield where blocks of one batch differ in what they have in common, or batches in what grows."""
    first_batch, taken_us = expired.through + 1, expired.taken_us
    facts: dict[int, BatchPlace] = {}
    for place in places:
        first = facts.setdefault(place.batch_id, place)
        for column, value, other in (
            ("taken_time", place.taken_us, first.taken_us),
            ("closed_until", place.closed_until_us, first.closed_until_us),
        ):
            if value != other:
                told, others = (None if us is None else time_of_us(us) for us in (value, other))
                reason = (
                    f"its column {column} is {told}; other blocks of batch {place.batch_id} have {others}"
                )
                yield _at(place, reason, column)
        if place.feed != note["feed"]:
            reason = (
                f"its column feed is {shown(place.feed)}; the table was filled from {shown(note['feed'])}"
            )
            yield _at(place, reason, "feed")
        if not first_batch <= place.batch_id <= last_batch:
            reason = f"its column batch_id is {place.batch_id}; the last batch is {last_batch}"
            if 0 <= place.batch_id < first_batch:
                reason = f"its column batch_id is {place.batch_id}; batches before {first_batch} have expired"
            yield _at(place, reason, "batch_id")
    for _, place in sorted(facts.items()):
        its_us = place.taken_us or 0
        is_last = place.batch_id == last_batch
        if not taken_us <= its_us <= note["taken_us"] or (is_last and its_us != note["taken_us"]):
            reason = "its column taken_time is not between those of the batches before and after it"
            yield _at(place, reason, "taken_time")
        taken_us = max(taken_us, its_us)


def _at(place: BatchPlace, reason: str, column: str) -> UsageBreak:
    return UsageBreak(
        BLOCKS.name, reason, log_partition=place.log_partition, log_offset=place.low, column=column
    )


def judge_totals(
    counts: Mapping[str, int], note: Mapping[str, Any], expired: Mapping[str, int]
) -> Iterator[UsageBreak]:
    """Yield what the headers of all blocks, and `expired` ones, do not add up to, by the note of the commits."""
    for measure in MEASURES:
        found = counts.get(f"blocks.{measure}", 0) + expired.get(measure, 0)
        said = note.get("headers", {}).get(measure, 0)
        if found != said:
            yield UsageBreak(BLOCKS.name, f"its blocks have {found} {measure} in all; {said} were taken")
