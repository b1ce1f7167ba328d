"""The content of blocks expires: addresses, agents and principals of requests leave bronze; headers and proofs stay.

What a block has is in silver: usage without any of these, and audit events with them, which have a retention of their
own (`quaymaster audit expire`). The header stays with its digest: it tells later whether a block is the same again.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from quaymaster_pipeline.jobs.retention import CONTENT_DAYS
from quaymaster_pipeline.usage import silver
from quaymaster_pipeline.usage.tasks import Workers, answer_counts, answer_files
from quaymaster_pipeline.warehouse.data_files import DataFile, FileWriter, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.schemas import BLOCKS, USAGE_EVENTS
from quaymaster_pipeline.warehouse.tables import Table, Warehouse, planning_again

APP: Final = "expiry"


class Expired(NamedTuple):
    """What expired: blocks, and how many bytes of content they had."""

    blocks: int
    content_bytes: int


def expire_content(
    workers: Workers, warehouse: Warehouse, now: datetime.datetime, *, days: int = CONTENT_DAYS
) -> Expired:
    """Take the content out of blocks that were taken more than `days` ago, if silver has what is in them.

    A pipeline may run beside it. The files are deleted when no version has had them for a while, by compaction.

    Raises:
        CommitConflict: others replaced the files again and again.
    """
    table, events = warehouse.table(BLOCKS), warehouse.table(USAGE_EVENTS)

    def expire() -> Expired:
        events.refresh()
        files = due(table, now, days, events.last_batch(silver.APP))
        if not files:
            return Expired(0, 0)
        answers = workers.over([file.path for file in files], expiry_work(table.place, files))
        table.commit(APP, None, answers.files(BLOCKS.name), removes=files)
        expired = answers.counts("expired")
        return Expired(expired["blocks"], expired["content_bytes"])

    return planning_again(expire, table)


def due(table: Table, now: datetime.datetime, days: int, last_batch: int) -> list[DataFile]:
    """Return the files that have content to expire, of batches up to `last_batch`."""
    first_kept = str(now.astimezone(datetime.UTC).date() - datetime.timedelta(days))
    return [
        file
        for file in table.files()
        if str(file.partition_value) < first_kept
        and file.bounds["batch_id"][1] <= last_batch
        and file.bounds["content_bytes"][1] > 0
    ]


def expiry_work(place: TablePlace, files: list[DataFile]) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: write a file again without the content of its blocks, and count what it had."""
    dates = {file.path: file.partition_value for file in files}
    schema = BLOCKS.file_schema
    kept = [name for name in schema.names if name not in ("content", "content_bytes")]

    def work(path: str) -> Iterator[Any]:
        blocks = content_bytes = 0
        with FileWriter(place, BLOCKS, APP, dates[path]) as writer:
            for rows in read_row_groups(place, BLOCKS, path, [*kept, "content_bytes"]):
                sizes = rows.column("content_bytes").to_pylist()
                blocks += sum(size > 0 for size in sizes)
                content_bytes += sum(sizes)
                nothing = {
                    "content": pa.nulls(rows.num_rows, pa.binary()),
                    "content_bytes": pa.array([0] * rows.num_rows, pa.int64()),
                }
                columns = [nothing[name] if name in nothing else rows.column(name) for name in schema.names]
                writer.write(pa.table(columns, schema=schema))
            written = writer.finish()
        yield from answer_files(BLOCKS.name, [written])
        yield answer_counts("expired", {"blocks": blocks, "content_bytes": content_bytes})

    return work
