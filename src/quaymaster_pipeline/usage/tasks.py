"""How jobs hand work to Spark's tasks and get small answers back: bytes in, bytes out, rows never to the driver."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from quaymaster_pipeline.usage.feed import BlockSource
from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.errors import BrokenTable, StoreFails, WarehouseFull

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ANSWER_FIELDS = "what string, data binary"
ITEMS_OF_CORE = 4
"""So many items a core has in a job of work that is watched: enough that few cores wait at its end."""


def answer(what: str, data: bytes) -> Any:
    """Return one line of a task's answer."""
    return pa.record_batch([pa.array([what]), pa.array([data], pa.binary())], names=["what", "data"])


def answer_files(table_name: str, files: Iterable[DataFile | None]) -> Iterator[Any]:
    """Yield an answer for each file that a task wrote for a table."""
    for file in files:
        if file is not None:
            yield answer(f"file {table_name}", json.dumps(file.to_json()).encode())


def answer_table(what: str, table: Any) -> Any:
    """Return a small table as an answer."""
    sink = pa.BufferOutputStream()
    # It is copied several times on its way through the JVM, which costs more than to compress it.
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return answer(what, sink.getvalue().to_pybytes())


class Answers:
    """What the tasks of a job answered."""

    def __init__(self, lines: Iterable[tuple[str, bytes]]) -> None:
        self._lines = [(what, bytes(data)) for what, data in lines]

    def __add__(self, other: Answers) -> Answers:
        return Answers([*self._lines, *other._lines])

    def files(self, table_name: str) -> list[DataFile]:
        """Return the files written for a table."""
        return [DataFile.from_json(json.loads(data)) for data in self._of(f"file {table_name}")]

    def tables(self, what: str) -> list[Any]:
        """Return the tables answered under a name."""
        return [pa.ipc.open_stream(data).read_all() for data in self._of(what)]

    def _of(self, wanted: str) -> list[bytes]:
        return [data for what, data in self._lines if what == wanted]


class Workers(Protocol):
    """Who runs tasks."""

    def over_blocks(
        self,
        feed: BlockSource,
        ranges: Mapping[int, tuple[int, int]],
        work: Callable[[Iterator[Any]], Iterator[Any]],
    ) -> Answers:
        """Run `work` over the blocks of a feed, as Arrow batches; each task has some of them."""

    def over(
        self,
        items: Sequence[str],
        work: Callable[[str], Iterator[Any]],
        on_done: Callable[[int], None] | None = None,
    ) -> Answers:
        """Run `work` for each item; `on_done` is told of how many at a time it was done."""


class SparkWorkers:
    """Spark's tasks, as many at a time as it has cores. One that fails is repeated where the master allows it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        # A row of what tasks take is a block of thousands of records.
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "64")

    def over_blocks(
        self,
        feed: BlockSource,
        ranges: Mapping[int, tuple[int, int]],
        work: Callable[[Iterator[Any]], Iterator[Any]],
    ) -> Answers:
        """Run `work` over the blocks of a feed."""
        return _collect(feed.blocks(self._spark, ranges), work)

    def over(
        self,
        items: Sequence[str],
        work: Callable[[str], Iterator[Any]],
        on_done: Callable[[int], None] | None = None,
    ) -> Answers:
        """Run `work` for each item. With `on_done` in several jobs, as one job tells nothing before its end."""
        if on_done is None:
            return self._over(items, work) if items else Answers([])
        answers, first = Answers([]), 0
        while first < len(items):
            # Asked each time: executors that came meanwhile get work.
            count = ITEMS_OF_CORE * self._spark.sparkContext.defaultParallelism
            part = items[first : first + count]
            answers += self._over(part, work)
            on_done(len(part))
            first += count
        return answers

    def _over(self, items: Sequence[str], work: Callable[[str], Iterator[Any]]) -> Answers:
        context = self._spark.sparkContext
        tasks = min(len(items), context.defaultParallelism)
        lines = self._spark.createDataFrame(
            context.parallelize([(item,) for item in items], tasks), "item string"
        )

        def work_on(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                for item in batch.column(0).to_pylist():
                    yield from work(item)

        return _collect(lines, work_on)


def _collect(rows: DataFrame, work: Callable[[Iterator[Any]], Iterator[Any]]) -> Answers:
    from pyspark.errors import PySparkException

    try:
        found = rows.mapInArrow(work, ANSWER_FIELDS).collect()
    except PySparkException as error:
        # What a task raised comes as the text of its traceback.
        for kind in (BrokenTable, WarehouseFull, StoreFails):
            told = re.search(rf"{kind.__module__}\.{kind.__name__}: (.+)", str(error))
            if told is not None:
                raise kind(told[1].strip()) from None
        raise
    return Answers((row["what"], row["data"]) for row in found)
