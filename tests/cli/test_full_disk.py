"""A disk that fills up while the pipeline's commands write: one line, nothing counted twice, and on with more room."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from harness.command_line import Result, Run
from harness.disks import SmallDisk, small_disk
from harness.pipeline_site import Site, expected_usage, no_spark
from harness.reconciled import compare_rows, compare_sums
from harness.usage_blocks import FrontEnd
from spark.fake_server import fake_server

from quaymaster_pipeline.archive.tables import MESSAGES
from quaymaster_pipeline.commands import spark
from quaymaster_pipeline.warehouse.data_files import FileWriter
from quaymaster_pipeline.warehouse.errors import WarehouseFull, telling_full_disk, why_no_room
from quaymaster_pipeline.warehouse.schemas import TABLES, USAGE_HOURLY

KIB = 1 << 10
DISK_BYTES = 24 << 20
ROOM_STEPS = [0, *range(40 * KIB, 400 * KIB, 40 * KIB), *range(400 * KIB, 4096 * KIB, 400 * KIB)]
"""So much is left at one try after the other, from none to enough: most of what is written fails once."""
FULL = "No space left on device"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path, DISK_BYTES) as disk:
        yield disk


@pytest.fixture(autouse=True)
def tasks_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)


def unfinished(site: Site) -> list[str]:
    """Return the Parquet files that have no end."""
    paths = site.root.glob("*/*/**/*.parquet")
    return [str(path) for path in paths if path.read_bytes()[-4:] != b"PAR1"]


def tried_with_more_and_more_room(
    run: Callable[..., Result], disk: SmallDisk, site: Site, *words: object
) -> int:
    """Run a command until it has room enough; return how often it had not. Each time it says so in one line."""
    for refused, room in enumerate(ROOM_STEPS):
        disk.give_back()
        if room:
            disk.leave(room)
        else:
            disk.fill()
        done = run(*words)
        if done.code == 0:
            disk.give_back()
            return refused
        assert done.code == 1, done.err
        assert done.out == ""
        (line,) = done.err.splitlines()
        assert line.startswith(f"quaymaster: no more can be written to {disk.path}")
        assert f"({FULL}): make room there and run the command again" in line
        assert unfinished(site) == []
    raise AssertionError("there was never room enough")


@pytest.mark.privileged
def test_a_disk_that_fills_up_costs_no_request_and_counts_none_twice(disk: SmallDisk, run: Run) -> None:
    site, one, two = Site(disk.path / "data"), FrontEnd("a", step_us=20_000_000), FrontEnd("b")
    data = disk.path / "data"
    words = ("pipeline", "run", "--once", "--files", site.feed, "--data", data)
    site.ship(one.block(2000), two.block(2000), one.block(2000))

    first = tried_with_more_and_more_room(run, disk, site, *words)
    site.ship(two.block(1000))
    second = tried_with_more_and_more_room(run, disk, site, *words)

    assert (first > 1, second > 0) == (True, True)
    assert site.usage() == expected_usage(one, two)
    assert [compared.difference for compared in compare_rows(site.warehouse)] == [0] * 5
    assert compare_sums(site.warehouse) == []


@pytest.mark.privileged
def test_what_mends_compares_and_bills_finds_no_room_and_goes_on_with_it(
    disk: SmallDisk, run: Run, tmp_path: Path
) -> None:
    site, one = Site(disk.path / "data"), FrontEnd("a", step_us=20_000_000)
    data = disk.path / "data"
    for _ in range(3):
        site.ship(one.block(500))
        site.run()
    hourly = site.warehouse.table(USAGE_HOURLY)
    hourly.commit("vandal", 0, [], removes=hourly.files()[:1])
    prices = tmp_path / "prices.toml"
    prices.write_text(run("billing", "prices", "show", "--data", data, "--format", "toml").out)

    refused = {
        words[1]: tried_with_more_and_more_room(run, disk, site, *words, "--data", data)
        for words in (
            ("pipeline", "backfill"),
            ("billing", "prices", "set", prices),
            ("billing", "invoice", "--month", "2026-11"),
            ("pipeline", "compact", "--keep-hours", "0"),
        )
    }

    assert min(refused.values()) > 0
    assert site.usage() == expected_usage(one)
    assert [compared.difference for compared in compare_rows(site.warehouse)] == [0] * 5
    invoice = run("billing", "invoice", "--month", "2026-11", "--data", data, "--json").json
    assert {made["revision"] for made in invoice} == {1}
    assert [spec.name for spec in TABLES if len(site.warehouse.table(spec).files()) > 3] == []


@pytest.mark.privileged
def test_invoices_that_find_no_room_leave_no_half_file(disk: SmallDisk, run: Run, tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.ship(FrontEnd("a").block(200))
    site.run()
    disk.fill()
    words = ("billing", "invoice", "--month", "2026-11", "--data", tmp_path, "--format", "json", "--out")

    full = run(*words, disk.path)
    left = [path.name for path in disk.path.glob("*.json*")]
    disk.give_back()
    done = run(*words, disk.path)

    assert full.code == 1
    assert full.err.startswith(f"quaymaster: no more can be written to {disk.path} ({FULL})")
    assert left == []
    assert (done.code, len(done.out.splitlines()) > 0) == (0, True)


@pytest.mark.privileged
def test_an_archive_that_finds_no_room_has_each_message_once_when_there_is_some(
    disk: SmallDisk, run: Run
) -> None:
    data = disk.path / "data"
    data.mkdir()
    site = Site(data)
    with fake_server() as server:
        server.make("orders", 2_000)
        keys = {
            "AWS_ACCESS_KEY_ID": server.endpoint.access_key_id,
            "AWS_SECRET_ACCESS_KEY": server.endpoint.secret_access_key,
        }
        words = ("archive", "run", "--once", "--queue", "orders", "--close-after", 0, "--data", data)

        refused = tried_with_more_and_more_room(
            partial(run, environment=keys), disk, site, *words, "--endpoint-url", server.endpoint.url
        )

    assert refused > 1
    messages = site.warehouse.table(MESSAGES)
    assert sorted(messages.read(["offset"]).column("offset").to_pylist()) == list(range(2_000))
    assert list(Path(messages.place.uri).glob("**/*.tmp")) == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "a library's own words"),
        OSError(errno.EDQUOT, "quota"),
        RuntimeError("java.io.IOException: No space left on device\n\tat ..."),
        RuntimeError("Generic LocalFileSystem error: unable to copy: File too large (os error 27)"),
    ],
)
def test_whoever_says_that_there_is_no_room_is_understood(error: Exception) -> None:
    with (
        pytest.raises(WarehouseFull, match=r"no more can be written to /place \("),
        telling_full_disk("/place"),
    ):
        raise error


def test_the_innermost_place_is_named_and_other_errors_are_left_alone() -> None:
    with (
        pytest.raises(WarehouseFull, match="/inner"),
        telling_full_disk("/outer"),
        telling_full_disk("/inner"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(PermissionError), telling_full_disk("/place"):
        raise PermissionError(errno.EACCES, "no")
    wrapped = ValueError("Spark's")
    wrapped.__cause__ = OSError(errno.ENOSPC, "x")
    assert why_no_room(wrapped) == FULL
    assert why_no_room(ValueError("x")) is None


def test_a_file_that_an_error_leaves_unfinished_is_deleted(tmp_path: Path) -> None:
    table = Site(tmp_path).warehouse.table(USAGE_HOURLY)

    def write() -> None:
        with FileWriter(table.place, USAGE_HOURLY, "gold-0", "2026-11-22") as writer:
            writer.write(USAGE_HOURLY.file_schema.empty_table())
            raise ValueError("a rule")

    with pytest.raises(ValueError, match="a rule"):
        write()

    assert list(Path(table.place.uri).glob("**/*.parquet")) == []
