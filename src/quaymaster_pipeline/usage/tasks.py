"""How jobs hand work to Spark's tasks and get small answers back: bytes in, bytes out, rows never to the driver."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from quaymaster_pipeline.usage.feed import FeedIncomplete, NewerBlocks
from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.errors import BrokenTable, StoreFails, SumsDiffer, WarehouseFull

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


def answer_counts(what: str, counts: Mapping[str, int]) -> Any:
    """Return counts, by name, as an answer."""
    return answer(what, json.dumps(counts).encode())


def answer_table(what: str, table: Any) -> Any:
    """Return a small table as an answer."""
    sink = pa.BufferOutputStream()
    # It is copied several times on its way through the JVM, which costs more than to compress it.
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return answer(what, sink.getvalue().to_pybytes())


class Answers:
    """What the tasks of a job answered, and how many tasks there were."""

    def __init__(self, lines: Iterable[tuple[str, bytes]] = (), *, tasks: int = 0) -> None:
        self._lines = [(what, bytes(data)) for what, data in lines]
        self.tasks = tasks

    def __add__(self, other: Answers) -> Answers:
        return Answers([*self._lines, *other._lines], tasks=self.tasks + other.tasks)

    def files(self, table_name: str) -> list[DataFile]:
        """Return the files written for a table."""
        return [DataFile.from_json(json.loads(data)) for data in self._of(f"file {table_name}")]

    def tables(self, what: str) -> list[Any]:
        """Return the tables answered under a name."""
        return [pa.ipc.open_stream(data).read_all() for data in self._of(what)]

    def texts(self, what: str) -> list[str]:
        """Return the texts answered under a name."""
        return [data.decode() for data in self._of(what)]

    def counts(self, what: str) -> Counter[str]:
        """Return the sums of the counts answered under a name."""
        found: Counter[str] = Counter()
        for data in self._of(what):
            found.update(json.loads(data))
        return found

    def _of(self, wanted: str) -> list[bytes]:
        return [data for what, data in self._lines if what == wanted]


class Workers(Protocol):
    """Who runs tasks."""

    @property
    def cores(self) -> int:
        """How many tasks run at a time."""

    def over(
        self,
        items: Sequence[str],
        work: Callable[[str], Iterator[Any]],
        on_done: Callable[[int], None] | None = None,
    ) -> Answers:
        """Run `work` for each item; `on_done` is told of how many at a time it was done."""


class ThisProcess:
    """Runs tasks here, one after the other: for commands that do little, and need no Spark."""

    cores = 1

    def over(
        self,
        items: Sequence[str],
        work: Callable[[str], Iterator[Any]],
        on_done: Callable[[int], None] | None = None,
    ) -> Answers:
        """Run `work` for each item; `on_done` is told of each."""
        answers = Answers()
        for item in items:
            rows = (row for line in work(item) for row in line.to_pylist())
            answers += Answers(((row["what"], row["data"]) for row in rows), tasks=1)
            if on_done is not None:
                on_done(1)
        return answers


class SparkWorkers:
    """Spark's tasks, as many at a time as it has cores. One that fails is repeated where the master allows it."""

    def __init__(self, spark: SparkSession, pool: str | None = None, *, gives_way: bool = False) -> None:
        self._spark = spark
        self._pool = pool
        self._gives_way = gives_way

    @property
    def cores(self) -> int:
        """How many tasks run at a time, as of now: executors come and go."""
        return int(self._spark.sparkContext.defaultParallelism)

    def in_pool(self, name: str, *, gives_way: bool = False) -> SparkWorkers:
        """Return those of a pool of Spark's scheduler: of pools that have work each gets its share of the cores.

        `gives_way`: each item is a task, so that other pools get its core when the item is done.
        """
        return SparkWorkers(self._spark, name, gives_way=gives_way)

    def over(
        self,
        items: Sequence[str],
        work: Callable[[str], Iterator[Any]],
        on_done: Callable[[int], None] | None = None,
    ) -> Answers:
        """Run `work` for each item. With `on_done` in several jobs, as one job tells nothing before its end."""
        if on_done is None:
            return self._over(items, work) if items else Answers()
        answers, first = Answers(), 0
        while first < len(items):
            # Asked each time: executors that came meanwhile get work.
            count = ITEMS_OF_CORE * self.cores
            part = items[first : first + count]
            answers += self._over(part, work)
            on_done(len(part))
            first += count
        return answers

    def _over(self, items: Sequence[str], work: Callable[[str], Iterator[Any]]) -> Answers:
        context = self._spark.sparkContext
        # Tasks of a few items each, so that who is done early takes from who is not.
        tasks = len(items) if self._gives_way else min(len(items), ITEMS_OF_CORE * self.cores)
        if self._pool is not None:
            # Of the thread that calls: each thread of Python has one of the JVM.
            context.setLocalProperty("spark.scheduler.pool", self._pool)
        lines = self._spark.createDataFrame(
            context.parallelize([(item,) for item in items], tasks), "item string"
        )

        def work_on(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                for item in batch.column(0).to_pylist():
                    yield from work(item)

        return Answers(_collect(lines, work_on), tasks=tasks)


def _collect(rows: DataFrame, work: Callable[[Iterator[Any]], Iterator[Any]]) -> list[tuple[str, bytes]]:
    from pyspark.errors import PySparkException

    from pyspark_quaymaster import errors as source

    # What a task raised comes as the text of its traceback.
    kinds: dict[type[Exception], type[Exception]] = {
        kind: kind
        for kind in (BrokenTable, SumsDiffer, WarehouseFull, StoreFails, NewerBlocks, FeedIncomplete)
    }
    kinds |= dict.fromkeys((source.ServerIsUnavailable, source.RequestRefused), source.ServerIsUnavailable)
    kinds |= dict.fromkeys((source.DataIsLost, source.AnswerIsWrong), FeedIncomplete)
    try:
        found = rows.mapInArrow(work, ANSWER_FIELDS).collect()
    except PySparkException as error:
        for kind, told_as in kinds.items():
            told = re.search(rf"{kind.__module__}\.{kind.__name__}: (.+)", str(error))
            if told is not None:
                raise told_as(told[1].strip()) from None
        raise
    return [(row["what"], row["data"]) for row in found]
