"""`pipeline verify` compares the end of the tables with the usage queue, and says so if that does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness.command_line import Run
from harness.pipeline_site import NOW, InProcess, Site, no_spark
from harness.usage_blocks import FrontEnd

from quaymaster.cli.shared.failures import NoServer
from quaymaster_pipeline.commands import operators, spark
from quaymaster_pipeline.jobs.jobs import Pipeline
from quaymaster_pipeline.usage.feed import QUEUE_FEED, FileFeed


class ToldQueue(FileFeed):
    """Files that pass for a usage queue; it was told that the tables have so many blocks."""

    told = 2

    @property
    def identity(self) -> str:
        return f"{QUEUE_FEED}quaymaster-usage:7"

    def committed(self) -> dict[int, int]:
        return {0: self.told}


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToldQueue:
    """Give a queue of two blocks that are in tables in the same directory."""
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(10), one.block(10))
    queue, warehouse = ToldQueue(site.feed), site.warehouse
    with warehouse.ingesting():
        Pipeline(InProcess(), warehouse, queue, clock=lambda: NOW).catch_up()
    return queue


@pytest.mark.parametrize(("told", "code"), [(2, 0), (5, 1)])
def test_tables_behind_what_the_usage_queue_was_told_end_verify_with_1(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, queue: ToldQueue, told: int, code: int
) -> None:
    queue.told = told
    monkeypatch.setattr(operators, "queue_feed", lambda *_, **__: queue)

    shown = run("pipeline", "verify", "--data", tmp_path, "--json")

    assert (shown.code, shown.json["breaks_total"]) == (code, code)
    assert ("partition 0, offset 2: it and all up to offset 4 are missing" in shown.err) == bool(code)


def test_verify_says_that_the_usage_queue_does_not_answer(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, queue: ToldQueue
) -> None:
    def away(*_: Any, **__: Any) -> ToldQueue:
        raise NoServer("It is away.")

    monkeypatch.setattr(operators, "queue_feed", away)

    shown = run("pipeline", "verify", "--data", tmp_path)

    assert shown.code == 0
    assert "The usage queue does not answer" in shown.err
