"""The content of blocks expires: addresses, agents and principals of requests leave bronze; headers and proofs stay.

What a block has is in silver: usage without any of these, and audit events with them, which have a retention of their
own (`--audit-days`, `quaymaster audit expire`). The header stays with its digest: it tells later whether a block is the
same again. Quarantine has what was recorded in its column `raw`, which expires with the content of blocks; its rows go
later.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.jobs.retention import CONTENT_DAYS, QUARANTINE_DAYS, first_kept
from quaymaster_pipeline.usage import silver
from quaymaster_pipeline.usage.expired import EXPIRED
from quaymaster_pipeline.usage.rules import are_links
from quaymaster_pipeline.usage.tasks import Workers, answer, answer_counts, answer_files
from quaymaster_pipeline.warehouse.data_files import DataFile, FileWriter, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.schemas import BLOCKS, QUARANTINE, USAGE_EVENTS, TableSpec
from quaymaster_pipeline.warehouse.tables import Table, Warehouse, planning_again

APP: Final = "expiry"
_REPLACED, _DROPPED = "replaced", "dropped"
_UNKNOWN: Final = (0, 1)
"""The bounds of a file that has none: it may have content."""


class Expired(NamedTuple):
    """What expired: blocks, and how many bytes of content they had."""

    blocks: int
    content_bytes: int


class ExpiredQuarantine(NamedTuple):
    """What expired of quarantine: the `raw` of rows that stay, and whole rows."""

    contents: int
    rows: int


class _Content(NamedTuple):
    """Columns of a table: what expires, and how many bytes it has."""

    spec: TableSpec
    column: str
    size: str


_OF_BLOCKS: Final = _Content(BLOCKS, "content", "content_bytes")
_OF_QUARANTINE: Final = _Content(QUARANTINE, "raw", "raw_bytes")


def expire_content(
    workers: Workers, warehouse: Warehouse, now: datetime.datetime, *, days: int = CONTENT_DAYS
) -> Expired:
    """Take the content out of blocks that were taken more than `days` ago, if silver has what is in them.

    A pipeline may run next to it. Compaction deletes the files once no version has had them for a while.

    Raises:
        CommitConflict: others replaced the files again and again.
    """
    table, events = warehouse.table(BLOCKS), warehouse.table(USAGE_EVENTS)

    def expire() -> Expired:
        events.refresh()
        files = due(table, now, days, events.last_batch(silver.APP))
        if not files:
            return Expired(0, 0)
        answers = workers.over([file.path for file in files], _emptying_work(table.place, _OF_BLOCKS, files))
        table.commit(APP, None, answers.files(BLOCKS.name), removes=files)
        expired = answers.counts("expired")
        return Expired(expired["rows"], expired["bytes"])

    return planning_again(expire, table)


def due(table: Table, now: datetime.datetime, days: int, last_batch: int) -> list[DataFile]:
    """Return the files of blocks that have content to expire, of batches up to `last_batch`."""
    lines = table.lines_of_days(end=str(first_kept(now, days)))
    if lines.num_rows:
        lines = lines.filter(
            pc.and_(
                pc.less_equal(lines.column("max.batch_id"), last_batch),
                pc.greater(lines.column("max.content_bytes"), 0),
            )
        )
    return table.files(lines)


def expire_quarantine(
    workers: Workers,
    warehouse: Warehouse,
    now: datetime.datetime,
    *,
    days: int = CONTENT_DAYS,
    row_days: int = QUARANTINE_DAYS,
) -> ExpiredQuarantine:
    """Take `raw` out of rows of quarantine older than `days`, and delete those older than `row_days`.

    Management requests stay without it, as audit chains go over them. What is deleted is counted in a note of the same
    commit, as it still belongs to what the layers add up to.

    Raises:
        CommitConflict: others replaced the files again and again.
    """
    table = warehouse.table(QUARANTINE)
    first_row, first_with_raw = (str(first_kept(now, one)) for one in (row_days, days))

    def expire() -> ExpiredQuarantine:
        files = table.files()
        old = {file.path: file for file in files if str(file.partition_value) < first_row}
        emptied = [
            file
            for file in files
            if first_row <= str(file.partition_value) < first_with_raw
            and file.bounds.get("raw_bytes", _UNKNOWN)[1] > 0
        ]
        if not old and not emptied:
            return ExpiredQuarantine(0, 0)
        work = _emptying_work(table.place, _OF_QUARANTINE, emptied)
        answers = workers.over([file.path for file in emptied], work)
        of_old = workers.over(list(old), _dropping_work(table.place, old))
        removes = [*(old[path] for path in of_old.texts(_REPLACED)), *emptied]
        if not removes:
            return ExpiredQuarantine(0, 0)
        dropped = of_old.counts(_DROPPED)
        adds = (answers + of_old).files(QUARANTINE.name)
        table.commit(APP, None, adds, removes=removes, counts={EXPIRED: {"rows": dropped["requests"]}})
        return ExpiredQuarantine(answers.counts("expired")["rows"], dropped["rows"])

    return planning_again(expire, table)


def _dropping_work(place: TablePlace, files: Mapping[str, DataFile]) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: write a file of quarantine again with links of audit chains alone, if it has others."""

    def work(path: str) -> Iterator[Any]:
        counts: Counter[str] = Counter()
        for rows in read_row_groups(place, QUARANTINE, path, ["rule", "record_hash", "block_row"]):
            goes = rows.filter(pc.invert(are_links(rows)))
            # Blocks that could not be read have no row: they are no requests, and are not counted.
            counts.update(rows=goes.num_rows, requests=goes.num_rows - goes.column("block_row").null_count)
        if not counts["rows"]:
            return
        with FileWriter(place, QUARANTINE, APP, files[path].partition_value) as writer:
            for rows in read_row_groups(place, QUARANTINE, path):
                writer.write(_emptied(_OF_QUARANTINE, rows.filter(are_links(rows))))
            written = writer.finish()
        yield from answer_files(QUARANTINE.name, [written])
        yield answer_counts(_DROPPED, counts)
        yield answer(_REPLACED, path.encode())

    return work


def _emptying_work(
    place: TablePlace, content: _Content, files: Sequence[DataFile]
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: write a file again without the content of its rows, and count what it had."""
    dates = {file.path: file.partition_value for file in files}
    spec, column, size = content
    schema = spec.file_schema
    kept = [name for name in schema.names if name != column]

    def work(path: str) -> Iterator[Any]:
        counts = {"rows": 0, "bytes": 0}
        with FileWriter(place, spec, APP, dates[path]) as writer:
            for rows in read_row_groups(place, spec, path, kept):
                sizes = pc.fill_null(rows.column(size), 0)
                counts["rows"] += pc.sum(pc.greater(sizes, 0)).as_py() or 0
                counts["bytes"] += pc.sum(sizes).as_py() or 0
                writer.write(_emptied(content, rows))
            written = writer.finish()
        yield from answer_files(spec.name, [written])
        yield answer_counts("expired", counts)

    return work


def _emptied(content: _Content, rows: Any) -> Any:
    """Return rows without what expires."""
    schema = content.spec.file_schema
    nothing = {
        content.column: pa.nulls(rows.num_rows, schema.field(content.column).type),
        content.size: pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows),
    }
    columns = [nothing[name] if name in nothing else rows.column(name) for name in schema.names]
    return pa.table(columns, schema=schema)
