"""The work of a close in tasks: blocks and events of batches are counted, and a day becomes one closed file.

A task adds up sorted files as streams, so its memory does not depend on how much a day has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.checks.close_heads import last_blocks_of_share
from quaymaster_pipeline.checks.day_plans import SUM_ROWS
from quaymaster_pipeline.jobs.backfill import add_to_digests, sorted_rows
from quaymaster_pipeline.usage import gold, silver
from quaymaster_pipeline.usage.batch_rows import in_batches
from quaymaster_pipeline.usage.blocks import MEASURES
from quaymaster_pipeline.usage.gold import DAILY, USED, daily_rows, partial_usage, with_date
from quaymaster_pipeline.usage.tasks import answer_counts, answer_files, answer_table
from quaymaster_pipeline.warehouse.closes import CLOSED, SUMS
from quaymaster_pipeline.warehouse.data_files import (
    DataFile,
    FileWriter,
    TablePlace,
    hash_of_file,
    read_row_groups,
)
from quaymaster_pipeline.warehouse.errors import SumsDiffer
from quaymaster_pipeline.warehouse.schemas import BLOCKS, DAY_KEYS, USAGE_DAILY, USAGE_EVENTS, USAGE_HOURLY
from quaymaster_pipeline.warehouse.sums import add_up, read_sorted, summed

HEADERS, USAGE, HEADS, COUNTED, CLOSED_DAY = "headers", "usage", "heads", "counted", "closed day"
"""Under which names tasks answer."""
_KEYS: Final = ("usage_date", *DAY_KEYS)


def counting_work(
    of_blocks: TablePlace, of_events: TablePlace, paths: Sequence[str], first: int, last: int
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does with a file of blocks or of events: count what batches have, both included.

    With a share of the front ends, it finds the last block of each of their incarnations, in all files of blocks.
    """

    def work(item: str) -> Iterator[Any]:
        what, of = json.loads(item)
        if what == HEADS:
            yield answer_table(HEADS, last_blocks_of_share(of_blocks, paths, (first, last), tuple(of)))
        else:
            yield answer_counts(COUNTED, count(what, of))

    def count(what: str, path: str) -> Counter[str]:
        counts: Counter[str] = Counter()
        if what == HEADERS:
            for rows in read_row_groups(of_blocks, BLOCKS, path, ["batch_id", *MEASURES]):
                mine = in_batches(rows, first, last)
                counts["blocks"] += mine.num_rows
                for measure in MEASURES:
                    counts[f"{what}.{measure}"] += pc.sum(mine.column(measure)).as_py() or 0
        else:
            names = ["batch_id", "messages", "bytes", "chunks", "http_status"]
            for rows in read_row_groups(of_events, USAGE_EVENTS, path, names):
                totals = silver.control_totals_of_usage(in_batches(rows, first, last))
                counts.update({f"{what}.{measure}": total for measure, total in totals.items()})
        return counts

    return work


_LINE: Final = pa.schema(
    [
        ("date", pa.string()),
        ("is_equal", pa.bool_()),
        ("file_hash", pa.binary()),
        *((f"{side}_{name}", pa.int64()) for side in ("found", "right") for name in SUMS),
    ]
)


def closing_work(
    of_events: TablePlace, of_hours: TablePlace, place: TablePlace, *, first: int, last: int
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does with a day: compare its files with what is right, and write one closed file of them.

    What is right are its hours; of usage that is late, the events of batches from `first` to `last`.
    """

    def work(item: str) -> Iterator[Any]:
        date, is_late, *sides = json.loads(item)
        right, found = ([DataFile.from_json(fields) for fields in side] for side in sides)
        is_right, is_there = _Side(), _Side()
        rows = (
            _late_sums(of_events, right, first, last)
            if is_late
            else summed(
                (sorted_rows(of_hours, USAGE_HOURLY, file, DAILY, len(right)) for file in right),
                DAILY.keys,
                DAILY.spec.file_schema,
            )
        )
        for _ in is_right.watched(rows):
            pass
        streams = (
            read_sorted(place, USAGE_DAILY, file, DAILY.spec.file_schema, of_files=len(found))
            for file in found
        )
        with FileWriter(place, USAGE_DAILY, CLOSED, date) as writer:
            for part in is_there.watched(summed(streams, DAILY.keys, DAILY.spec.file_schema)):
                writer.write(part)
            written = writer.finish()
            again = _Side()
            if written is not None:
                for _ in again.watched(
                    read_sorted(place, USAGE_DAILY, written, DAILY.spec.file_schema, of_files=1)
                ):
                    pass
            if again.digests != is_there.digests:
                raise SumsDiffer(
                    f"the closed file of {date} of {USAGE_DAILY.name} cannot be read as it was written"
                )
        yield from answer_files(USAGE_DAILY.name, [written])
        line = {
            "date": date,
            "is_equal": is_right.digests == is_there.digests,
            "file_hash": b"" if written is None else hash_of_file(place, written.path),
            **{f"found_{name}": is_there.sums[name] for name in SUMS},
            **{f"right_{name}": is_right.sums[name] for name in SUMS},
        }
        yield answer_table(CLOSED_DAY, pa.Table.from_pylist([line], schema=_LINE))

    return work


class _Side:
    """Digests and sums of the rows of a day, as they pass."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self._digests: list[Any] | None = None

    @property
    def digests(self) -> list[bytes]:
        """A digest of each column: equal if all rows are, whatever they are cut into."""
        return [digest.digest() for digest in self._digests or ()]

    def watched(self, parts: Iterable[Any]) -> Iterator[Any]:
        """Yield the parts."""
        for part in parts:
            self.sums.update(gold.day_sums(part))
            self._digests = add_to_digests(self._digests, part)
            yield part


def _late_sums(place: TablePlace, files: Sequence[DataFile], first: int, last: int) -> Iterator[Any]:
    """Yield the sums of a day by batches from `first` to `last`. In memory: what comes late is little."""
    parts: list[Any] = []
    waiting = 0
    for file in files:
        for rows in read_row_groups(place, USAGE_EVENTS, file.path, USED, may_have=("batch_id", first, last)):
            parts.append(daily_rows(with_date(partial_usage(in_batches(rows, first, last)))))
            waiting += parts[-1].num_rows
            if waiting > 2 * SUM_ROWS:
                parts = [_added(parts)]
                waiting = parts[0].num_rows
    found = _added(parts)
    yield found.select(DAILY.spec.file_schema.names)


def _added(parts: Sequence[Any]) -> Any:
    return add_up(pa.concat_tables([USAGE_DAILY.schema.empty_table(), *parts]), _KEYS, USAGE_DAILY.schema)
