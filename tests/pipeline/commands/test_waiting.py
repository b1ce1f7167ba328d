"""When the next batch of a run begins: after its pause, or as soon as a full one waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from harness.pipeline_site import InProcess, Site

from pyspark_quaymaster.errors import ServerIsUnavailable
from quaymaster_pipeline.commands.running import IDLE_S, Run, _wait_for_more
from quaymaster_pipeline.jobs.jobs import BronzeJob
from quaymaster_pipeline.usage.bronze.planning import BATCH_BYTES_MAX, BLOCK_BYTES_GUESSED
from quaymaster_pipeline.usage.feed import FileFeed

FULL = BATCH_BYTES_MAX // BLOCK_BYTES_GUESSED
REST_S = 4.5


class Feed(FileFeed):
    """Has so many blocks more at each look; None: it does not answer."""

    def __init__(self, directory: Path, lags: Iterator[int | None]) -> None:
        super().__init__(directory)
        self._lags = lags

    def bounds(self) -> dict[int, tuple[int, int]]:
        lag = next(self._lags)
        if lag is None:
            raise ServerIsUnavailable("connection refused")
        return {0: (0, lag)}


class Pauses:
    """Stands in for threads, and for time."""

    def __init__(self) -> None:
        self.waited_s = 0.0

    def pause(self, seconds: float) -> None:
        self.waited_s += seconds


@pytest.mark.parametrize(
    ("lags", "waited_s"),
    [
        ([0, 0, FULL], 3.0),
        ([1, FULL - 1, 1, 1, 1], REST_S),
        ([0, 0, 0, 0, 0, 0, 1], REST_S + 2),
        ([0] * 100, IDLE_S + 0.5),
        ([0, None], REST_S),
        ([0, 0, 0, 0, 0, None], REST_S + 1),
    ],
)
def test_a_batch_begins_when_its_pause_is_over_and_blocks_wait_or_as_soon_as_they_fill_one(
    tmp_path: Path, lags: list[int | None], waited_s: float
) -> None:
    site = Site(tmp_path)
    job = BronzeJob(InProcess(), site.warehouse, Feed(site.feed, iter(lags)))
    run = Run(**dict.fromkeys(Run.__dataclass_fields__, cast("Any", None)))
    pauses = Pauses()

    _wait_for_more(run, job, cast("Any", pauses), REST_S / 3)

    assert pauses.waited_s == pytest.approx(waited_s)
