"""Tasks in this process, and pipelines that use them: everything but Spark."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from pathlib import Path

from harness import usage_blocks
from quaymaster_pipeline.jobs.jobs import Pipeline, Summary
from quaymaster_pipeline.usage.feed import FileFeed
from quaymaster_pipeline.usage.tasks import ThisProcess, Workers
from quaymaster_pipeline.usage.usage import read_usage
from quaymaster_pipeline.warehouse.tables import Warehouse

NOW = datetime.datetime(2026, 11, 22, 18, tzinfo=datetime.UTC)


class InProcess(ThisProcess):
    """Runs tasks here, one after the other, and says that it has two cores, so that work is divided."""

    cores = 2

    def in_pool(self, name: str, *, gives_way: bool = False) -> InProcess:
        return self


@contextlib.contextmanager
def no_spark(*_: object, **__: object) -> Iterator[InProcess]:
    """Stand in for `commands.spark.spark_workers`: tasks run here."""
    yield InProcess()


class MovedFeed(FileFeed):
    """A feed of files that is still the one it was where it was made."""

    def __init__(self, directory: Path, identity: str) -> None:
        super().__init__(directory)
        self._made_as = identity

    @property
    def identity(self) -> str:
        return self._made_as


class Site:
    """A directory with a feed and a warehouse."""

    def __init__(self, directory: Path) -> None:
        self.feed = directory / "feed"
        self.feed.mkdir(parents=True, exist_ok=True)
        self.feed_identity = FileFeed(self.feed).identity
        """Tables know the feed by this, also where both are copied."""
        self.root = directory / "warehouse"
        self.front_ends: tuple[usage_blocks.FrontEnd, ...] = ()
        self._files = 0

    @property
    def warehouse(self) -> Warehouse:
        """The tables as they are now."""
        return Warehouse(self.root)

    @property
    def source(self) -> FileFeed:
        """The feed as a pipeline reads it."""
        return MovedFeed(self.feed, self.feed_identity)

    def ship(self, *blocks: bytes) -> None:
        """Add blocks to the feed."""
        self._files += 1
        usage_blocks.write_blocks(self.feed, f"{self._files:04}", *blocks)

    def run(self, *, now: datetime.datetime = NOW) -> Summary:
        """Take all that is there."""
        warehouse = self.warehouse
        with warehouse.ingesting():
            return self.pipeline(warehouse, now=now).catch_up()

    def pipeline(
        self, warehouse: Warehouse, *, now: datetime.datetime = NOW, workers: Workers | None = None
    ) -> Pipeline:
        return Pipeline(workers or InProcess(), warehouse, self.source, clock=lambda: now)

    def usage(self) -> dict[tuple[str, str, str, str], tuple[int, ...]]:
        """Return gold by account, queue, action and hour: requests, messages, bytes, chunks, errors."""
        return {
            (line.account, line.queue, line.action, line.hour): line[4:]
            for line in read_usage(self.warehouse)
        }


def expected_usage(*front_ends: usage_blocks.FrontEnd) -> dict[tuple[str, str, str, str], tuple[int, ...]]:
    """Return what gold must have of all records of these front ends."""
    records = [record for front_end in front_ends for record in front_end.records]
    names = ("requests", "messages", "bytes", "chunks", "errors")
    return {
        (*key[:3], hour_text(key[3])): tuple(sums[name] for name in names)
        for key, sums in usage_blocks.usage_of(records).items()
    }


def hour_text(hour_us: int) -> str:
    time = datetime.datetime.fromtimestamp(hour_us // 1_000_000, datetime.UTC)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
