"""What cannot be taken stops ingest alone: layers and upkeep go on, and it is told once, in tables and as a metric."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.command_line import Run
from harness.pipeline_site import NOW, InProcess, Site, expected_usage, no_spark
from harness.usage_blocks import FrontEnd
from harness.waiting import eventually

from quaymaster_pipeline.checks.status import read_status
from quaymaster_pipeline.commands import spark
from quaymaster_pipeline.jobs.turns import Background
from quaymaster_pipeline.usage.blocks import ReadBlock, read_block
from quaymaster_pipeline.usage.bronze import taking
from quaymaster_pipeline.usage.bronze.batches import take_batch
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.usage.feed import FileFeed, FileReader, Message, block_files


def of_an_older_program(partition: int, offset: int, body: bytes) -> ReadBlock:
    return read_block(partition, offset, bytes([9]) + body[1:])


class Gap(FileReader):
    """Does not give the last block that it is asked for."""

    def read(self, partition: int, first: int, end: int) -> Iterator[Message]:
        yield from super().read(partition, first, end - 1)


@contextlib.contextmanager
def stopped(how: str) -> Iterator[None]:
    """Let nothing be taken while the block runs."""
    with pytest.MonkeyPatch.context() as patched:
        if how == "newer":
            patched.setattr(taking, "read_block", of_an_older_program)
        else:
            patched.setattr(
                FileFeed, "reader", lambda feed: Gap(feed._directory, tuple(block_files(feed._directory)))
            )
        yield


def site_with_work_for_each_layer(directory: Path) -> tuple[Site, FrontEnd]:
    """Return a site with a batch that bronze alone has, and a block that was not taken."""
    site, one = Site(directory), FrontEnd("a")
    site.ship(one.block(30))
    warehouse = site.warehouse
    take_batch(InProcess(), warehouse, FileFeed(site.feed), coverage_of(warehouse), NOW)
    return site, one


@pytest.mark.parametrize(
    ("how", "words"), [("newer", "is of a newer program"), ("gap", "blocks the usage queue gave")]
)
def test_what_cannot_be_taken_yet_stops_ingest_alone_and_is_told_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, words: str
) -> None:
    site, one = site_with_work_for_each_layer(tmp_path)
    refined = expected_usage(one)
    site.ship(one.block(20))
    metrics = tmp_path / "warehouse" / "metrics.prom"
    hindrance = contextlib.ExitStack()
    hindrance.enter_context(stopped(how))
    looks = 0

    def is_told(value: int) -> bool:
        return metrics.exists() and f"quaymaster_pipeline_ingest_stopped {value}\n" in metrics.read_text()

    def pause(*_: object) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            eventually(lambda: is_told(1))
            eventually(lambda: site.usage() == refined)
            told.append(read_status(site.warehouse)["ingest_stopped"])
        if looks == 3:
            hindrance.close()
        if looks > 3:
            eventually(lambda: site.usage() == expected_usage(one))
            eventually(lambda: is_told(0))
            raise KeyboardInterrupt

    told: list[str] = []
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    monkeypatch.setattr(Background, "pause", pause)
    with hindrance:
        ended = run("pipeline", "run", "--data", tmp_path, "--files", site.feed, "--interval", 0)

    assert ended.err.count(words) == 1
    assert ended.err.count("Blocks are taken again") == 1
    assert len(told) == 1
    assert words in told[0]
    status = run("pipeline", "status", "--data", tmp_path)
    assert "No blocks are taken" not in status.err


def test_a_run_that_ends_does_all_else_and_ends_with_1_when_blocks_cannot_be_taken(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one = site_with_work_for_each_layer(tmp_path)
    refined = expected_usage(one)
    site.ship(one.block(20))
    monkeypatch.setattr(spark, "spark_workers", no_spark)

    with stopped("newer"):
        done = run("pipeline", "run", "--once", "--data", tmp_path, "--files", site.feed)

    assert (done.code, done.err.count("is of a newer program")) == (1, 1)
    assert site.usage() == refined
    text = (tmp_path / "warehouse" / "metrics.prom").read_text()
    assert "quaymaster_pipeline_ingest_stopped 1\n" in text
    assert "quaymaster_pipeline_lag_blocks 1\n" in text
    assert "No blocks are taken: block 1 of partition 0" in run("pipeline", "status", "--data", tmp_path).err
