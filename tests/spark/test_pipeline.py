"""The usage pipeline in a real Spark session: from the queue to gold, with tasks whose processes are killed."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.pipeline_site import Site, expected_usage
from harness.reconciled import compare_rows
from harness.usage_blocks import HOUR_US, FrontEnd
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from quaymaster.protocol.usage.usage_blocks import block_text
from quaymaster_pipeline.audit.erasure import Erased, Subject, erase
from quaymaster_pipeline.audit.expiry import Expiry, expire_events
from quaymaster_pipeline.audit.verification import verify_chains
from quaymaster_pipeline.checks.verification import verify
from quaymaster_pipeline.jobs.backfill import backfill
from quaymaster_pipeline.jobs.content_expiry import expire_content, expire_quarantine
from quaymaster_pipeline.jobs.jobs import Pipeline
from quaymaster_pipeline.jobs.upkeep import compact
from quaymaster_pipeline.usage.bronze.planning import SPLIT_BYTES
from quaymaster_pipeline.usage.feed import BlockSource, FeedChanged, FileFeed, QueueFeed
from quaymaster_pipeline.usage.tasks import ITEMS_OF_CORE, Answers, SparkWorkers, answer_table
from quaymaster_pipeline.warehouse.schemas import BLOCKS, USAGE_EVENTS

from .fake_server import FakeServer

# Executors have this project, and not its tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
NOW = datetime.datetime(2026, 11, 22, 18, tzinfo=datetime.UTC)


def run(site: Site, workers: Any, feed: BlockSource) -> int:
    warehouse = site.warehouse
    with warehouse.ingesting():
        return Pipeline(workers, warehouse, feed, clock=lambda: NOW).catch_up().rows


def test_the_usage_queue_is_read_to_its_end_and_no_further_than_once(
    spark: SparkSession, fake: FakeServer, tmp_path: Path
) -> None:
    site, one, two = Site(tmp_path), FrontEnd("a", step_us=20_000_000), FrontEnd("b")
    log = fake.make("quaymaster-usage", 0, 0)
    log.partitions[0] += [block_text(one.block(rows)).encode() for rows in (100, 50, 0)]
    feed = QueueFeed(fake.endpoint, fake.url("quaymaster-usage"))
    workers = SparkWorkers(spark)

    told = [feed.committed()]
    first = run(site, workers, feed)
    log.partitions[0].append(block_text(one.block(20)).encode())
    log.partitions[1].append(block_text(two.block(30)).encode())
    second = run(site, workers, feed)
    third = run(site, workers, feed)

    assert (first, second, third) == (150, 50, 0)
    assert [*told, feed.committed()] == [{}, {0: 4, 1: 1}]
    assert site.usage() == expected_usage(one, two)
    with site.warehouse.ingesting():
        assert backfill(workers, site.warehouse, 0, 1 << 62).replaced == ()
        compact(workers, site.warehouse, NOW, keep_hours=0)
    assert site.usage() == expected_usage(one, two)
    assert [compared.difference for compared in compare_rows(site.warehouse)] == [0] * 5
    fake.make("quaymaster-usage", 0, 0)
    with pytest.raises(FeedChanged, match="quaymaster-usage"):
        run(site, workers, feed)


def test_a_batch_of_the_usage_queue_is_divided_over_all_cores(
    spark: SparkSession, fake: FakeServer, tmp_path: Path
) -> None:
    site, one = Site(tmp_path), FrontEnd("a", step_us=1_000)
    log = fake.make("quaymaster-usage", 0)
    log.partitions[0] += [block_text(one.block(4_096)).encode() for _ in range(40)]
    assert sum(map(len, log.partitions[0])) > SPLIT_BYTES * 4 // 3  # they are base64
    warehouse = site.warehouse
    workers = SparkWorkers(spark)

    with warehouse.ingesting():
        feed = QueueFeed(fake.endpoint, fake.url("quaymaster-usage"))
        batches = Pipeline(workers, warehouse, feed, clock=lambda: NOW).catch_up().batches

    assert [(batch.layer, batch.rows) for batch in batches[:2]] == [("bronze", 163_840), ("silver", 163_840)]
    assert workers.cores > 1
    assert batches[0].tasks == batches[1].tasks == workers.cores
    assert len(site.warehouse.table(BLOCKS).files()) == workers.cores
    assert site.usage() == expected_usage(one)


def test_a_row_that_somebody_changed_is_found_by_tasks_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    site, one, two = Site(tmp_path), FrontEnd("a", step_us=20_000_000), FrontEnd("b")
    workers = SparkWorkers(spark)
    for rows in (40, 60):
        site.ship(one.block(rows), two.block(rows), two.block(0))
        run(site, workers, FileFeed(site.feed))
    whole = verify(workers, site.warehouse)
    table = site.warehouse.table(USAGE_EVENTS)
    rows = table.read().to_pylist()
    rows[70]["account_id"] = "000000000099"
    changed = pa.Table.from_pylist(rows, schema=USAGE_EVENTS.schema)
    table.commit("somebody", 0, table.write("x", changed), removes=table.files())

    told: list[tuple[int, int]] = []
    found = verify(workers, site.warehouse, lambda *step: told.append(step))

    assert (whole.breaks_total, whole.blocks, whole.rows, whole.incarnations) == (0, 6, 200, 2)
    assert [(broken.table, broken.sequence, broken.column) for broken in found.breaks[:1]] == [
        (USAGE_EVENTS.name, rows[70]["sequence"], "account_id")
    ]
    assert told[-1][0] == told[-1][1]


class KilledOnce:
    """Spark's workers, of which each kind of job loses its process once in the middle of its work."""

    def __init__(self, spark: SparkSession, marks: Path) -> None:
        self._workers = SparkWorkers(spark)
        self._marks = marks
        self._jobs = 0

    @property
    def cores(self) -> int:
        return self._workers.cores

    def over(
        self,
        items: Sequence[str],
        work: Callable[[str], Iterator[Any]],
        on_done: Callable[[int], None] | None = None,
    ) -> Answers:
        return self._workers.over(items, self._deadly(work), on_done)

    def _deadly(self, work: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        self._jobs += 1
        mark = str(self._marks / str(self._jobs))

        def work_and_die(rows: Any) -> Iterator[Any]:
            for line in work(rows):
                yield line
                if not os.path.exists(mark):
                    with open(mark, "w"):
                        pass
                    os.kill(os.getpid(), signal.SIGKILL)

        return work_and_die


def test_work_that_is_watched_is_done_in_parts_and_all_of_it(spark: SparkSession) -> None:
    told: list[int] = []
    part = ITEMS_OF_CORE * spark.sparkContext.defaultParallelism
    items = [str(number) for number in range(2 * part + 1)]

    answers = SparkWorkers(spark).over(
        items, lambda item: iter([answer_table("item", pa.table({"item": [item]}))]), told.append
    )

    assert told == [part, part, 1]
    assert sorted(rows.column("item")[0].as_py() for rows in answers.tables("item")) == sorted(items)


def test_threads_have_pools_and_upkeep_a_task_for_each_item(spark: SparkSession) -> None:
    def pool() -> str | None:
        return spark.sparkContext.getLocalProperty("spark.scheduler.pool")

    def work(item: str) -> Iterator[Any]:
        yield answer_table("item", pa.table({"item": [item]}))

    items = [str(number) for number in range(2 * ITEMS_OF_CORE * spark.sparkContext.defaultParallelism)]
    workers, seen = SparkWorkers(spark), dict[str, tuple[int, str | None]]()

    def upkeep() -> None:
        seen["upkeep"] = workers.in_pool("upkeep", gives_way=True).over(items, work).tasks, pool()

    thread = threading.Thread(target=upkeep)
    thread.start()
    seen["bronze"] = workers.in_pool("bronze").over(items, work).tasks, pool()
    thread.join()

    assert seen == {"upkeep": (len(items), "upkeep"), "bronze": (len(items) // 2, "bronze")}


def test_tasks_whose_processes_are_killed_are_repeated_and_count_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    site, one = Site(tmp_path), FrontEnd("a", step_us=20_000_000)
    site.ship(*(one.block(40) for _ in range(5)))
    marks = tmp_path / "marks"
    marks.mkdir()

    rows = run(site, KilledOnce(spark, marks), FileFeed(site.feed))

    assert len(list(marks.iterdir())) == 2
    assert rows == 200
    assert site.usage() == expected_usage(one)
    assert [compared.difference for compared in compare_rows(site.warehouse)] == [0] * 5


def test_contents_go_though_processes_of_tasks_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a", step_us=20_000_000)
    site.ship(one.block(40), one.block(40))
    one.time_us += 30 * 24 * HOUR_US
    site.ship(one.block(20))
    run(site, SparkWorkers(spark), FileFeed(site.feed))
    events = sum(record.category == "management" for record in one.records[:80])
    marks = tmp_path / "marks"
    marks.mkdir()
    workers, later = KilledOnce(spark, marks), NOW + datetime.timedelta(40)
    everyone = Subject("principal", one.records[0].principal_id)

    done = erase(workers, site.warehouse, everyone, NOW, operator="somebody")
    again = erase(workers, site.warehouse, everyone, NOW, operator="somebody")
    blocks = expire_content(workers, site.warehouse, later).blocks
    in_quarantine = expire_quarantine(workers, site.warehouse, later)

    assert (done, again) == (Erased(events, 20, 0), Erased(0, 0, 0))
    assert (blocks, in_quarantine) == (3, (0, 0))
    proof = verify_chains(SparkWorkers(spark), site.warehouse)
    assert (proof.breaks, proof.erased) == ([], events)
    expired = expire_events(SparkWorkers(spark), site.warehouse, later, later)
    assert (expired, verify_chains(SparkWorkers(spark), site.warehouse).breaks) == (Expiry(events, 0, 0), [])
    assert list(marks.iterdir())
