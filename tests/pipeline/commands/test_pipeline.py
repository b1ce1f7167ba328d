"""`quaymaster pipeline` and `quaymaster usage` without Spark: what they refuse, and what they read."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from harness.command_line import Run, write_client_file
from harness.killed_jobs import killed_before
from harness.object_store import object_store
from harness.pipeline_site import NOW, InProcess, Site, expected_usage, no_spark
from harness.usage_blocks import FrontEnd
from harness.waiting import eventually

from pyspark_quaymaster.errors import ServerIsUnavailable
from quaymaster_pipeline.archive.ledger import Ledger, LedgerStretch, archive_lock
from quaymaster_pipeline.commands import operators, pipeline, spark
from quaymaster_pipeline.commands.usage_queue import find_usage_queue
from quaymaster_pipeline.jobs.turns import Background
from quaymaster_pipeline.usage import gold
from quaymaster_pipeline.usage.bronze import batches
from quaymaster_pipeline.usage.bronze.batches import take_batch
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.usage.feed import FileFeed
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.schemas import BLOCK_MARKS, RECONCILIATION, USAGE_EVENTS, USAGE_HOURLY
from quaymaster_pipeline.warehouse.session import SparkMissing, check_spark, java_version, spark_session
from quaymaster_pipeline.warehouse.tables import Warehouse

KEYS = {"AWS_ACCESS_KEY_ID": "QMTESTKEY", "AWS_SECRET_ACCESS_KEY": "a secret"}


def test_usage_is_a_list_of_what_accounts_used(run: Run, tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a", step_us=60_000_000)
    site.ship(one.block(100))
    site.run()

    everything = run("usage", "--data", tmp_path, "--json").json
    chosen = run("usage", "--data", tmp_path, "--queue", "queue-1", "--since", "2026-11-22T13", "--json")

    names = ("account", "queue", "action", "hour", "requests", "messages", "bytes", "chunks", "errors")
    assert all(tuple(line) == names for line in everything)
    found = {
        tuple(line[name] for name in names[:4]): tuple(line[name] for name in names[4:])
        for line in everything
    }
    assert found == expected_usage(one)
    lines = chosen.json
    assert {line["queue"] for line in lines} == {"queue-1"}
    assert {line["hour"] for line in lines} == {"2026-11-22T13:00:00Z"}


@pytest.mark.parametrize(
    "command",
    [("usage",), ("pipeline", "status"), ("pipeline", "tables"), ("billing", "accounts")],
    ids=" ".join,
)
def test_a_process_that_only_shows_tables_imports_no_pandas_and_shows_the_same(
    run: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    site = Site(tmp_path)
    site.ship(FrontEnd("a", step_us=60_000_000).block(100))
    site.run()
    script = Path(sys.executable).with_name("quaymaster")
    given = (*command, "--data", str(tmp_path), "--json")

    done = subprocess.run(
        [sys.executable, "-X", "importtime", script, *given], capture_output=True, text=True, check=True
    )

    assert "quaymaster_pipeline.warehouse.tables" in done.stderr
    assert "pandas.core" not in done.stderr
    shown, here = json.loads(done.stdout), run(*given).json
    for found in (shown, here):
        if command == ("pipeline", "status"):
            del found["lag_seconds"]
    assert shown == here


def test_usage_of_a_directory_without_tables_is_an_empty_list_and_says_what_to_run(
    run: Run, tmp_path: Path
) -> None:
    as_json = run("usage", "--data", tmp_path, "--json")
    for_people = run("usage", "--data", tmp_path)

    assert (as_json.code, as_json.json) == (0, [])
    assert "`quaymaster pipeline run`" in for_people.err


def test_usage_that_nothing_matches_is_not_called_missing(run: Run, tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.ship(FrontEnd("a").block(10))
    site.run()

    later = run("usage", "--data", tmp_path, "--since", "2027-01-01T00")

    assert later.code == 0
    assert "--since" in later.err
    assert "pipeline run" not in later.err


def test_a_comparison_that_cannot_be_made_yet_says_what_must_run_before(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    done = run("pipeline", "reconcile", "--data", tmp_path)

    assert "let `quaymaster pipeline run` take what is recorded in the next two minutes" in done.err


def test_verify_says_what_was_looked_at_and_what_was_changed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    site, one = Site(tmp_path), FrontEnd("a", step_us=60_000_000)
    site.ship(one.block(100), one.block(20, dropped=5))
    site.run()

    whole = run("pipeline", "verify", "--data", tmp_path)
    as_json = run("pipeline", "verify", "--data", tmp_path, "--json").json
    table = site.warehouse.table(USAGE_HOURLY)
    rows = table.read().to_pylist()
    rows[0]["messages"] += 1
    changed = pa.Table.from_pylist(rows, schema=USAGE_HOURLY.schema)
    table.commit("somebody", 0, table.write("x", changed), removes=table.files())
    broken = run("pipeline", "verify", "--data", tmp_path, shows_bars=True)
    broken_json = run("pipeline", "verify", "--data", tmp_path, "--json")

    assert whole.code == 0
    assert (as_json["blocks"], as_json["rows"], as_json["dropped"], as_json["breaks"]) == (2, 120, 5, [])
    assert broken.code == 1
    assert (
        "2 breaks; the first is gold.usage_hourly, hour 2026-11-22T12:00:00Z, account 00000000000"
        in broken.err
    )
    assert broken_json.code == 1
    told, total = broken_json.json["breaks"]
    assert "messages" in total["reason"]
    assert (told["table"], told["column"], told["hour"]) == (
        USAGE_HOURLY.name,
        "messages",
        "2026-11-22T12:00:00Z",
    )


def test_verify_lists_gaps_by_incarnation(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    site, one = Site(tmp_path), FrontEnd("a")
    one.block(7)
    site.ship(one.block(10))
    site.run()

    done = run("pipeline", "verify", "--data", tmp_path)
    as_json = run("pipeline", "verify", "--data", tmp_path, "--json").json

    assert "gap\ta 1: 0 to 7" in done.out
    assert as_json["gaps"] == [{"front_end": "a", "epoch": 1, "first": 0, "end": 7}]


def test_after_a_clock_was_set_back_reconcile_says_until_when_brokers_are_not_compared(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(10))
    site.run()
    latest = datetime.datetime.fromtimestamp(one.records[-1].event_time_us / 1e6, datetime.UTC)
    monkeypatch.setattr(operators, "_now", lambda: latest - datetime.timedelta(days=30))

    done = run("pipeline", "reconcile", "--data", tmp_path)

    assert done.code == 0
    (line,) = done.err.splitlines()  # brokers are not asked either
    assert line.startswith(
        f"Usage or counts of the brokers are of {latest:%Y-%m-%dT%H:%M:%SZ}, which is later"
    )
    assert "a clock was set back" in line


@pytest.mark.parametrize(
    ("command", "label"), [("backfill", "Summing up: files"), ("compact", "Compacting: files and tables")]
)
def test_a_terminal_shows_how_far_upkeep_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, label: str
) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    site, one = Site(tmp_path), FrontEnd("a")
    for _ in range(2):
        site.ship(one.block(10))
        site.run()

    shown = run("pipeline", command, "--data", tmp_path, shows_bars=True)
    as_json = run("pipeline", command, "--data", tmp_path, "--json", shows_bars=True)

    assert label not in as_json.err
    assert label in shown.err
    assert re.search(r"(?<!\d)([1-9]\d*)/\1(?!\d)", shown.err), "it comes to its end"
    assert label not in shown.out


def test_a_terminal_shows_how_far_a_comparison_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    site, one = Site(tmp_path), FrontEnd("a")
    for _ in range(2):
        site.ship(one.block(10))
        site.run()

    as_json = run("pipeline", "reconcile", "--data", tmp_path, "--json", shows_bars=True)
    shown = run("pipeline", "reconcile", "--data", tmp_path, shows_bars=True)

    assert "Comparing: files" not in as_json.err
    assert "Comparing: files" in shown.err
    assert "3/3" in shown.err  # two files of bronze, and the hours of a day


def test_metrics_of_tables_in_an_object_store_are_in_the_data_directory(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(100))

    with object_store() as store:
        options = [f"--storage-option={name}={value}" for name, value in store.storage_options.items()]
        words = ("--files", site.feed, "--once", "--warehouse", "s3://bucket/warehouse", *options)
        done = run("pipeline", "run", "--data", tmp_path, *words)

    assert done.code == 0, done.err
    assert 'quaymaster_pipeline_rows_total{layer="silver"} 100' in (tmp_path / "metrics.prom").read_text()


def test_a_run_keeps_when_layers_began_to_differ_and_when_they_agreed_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> tuple[int, list[tuple[str, str, int]]]:
        """Return how a run ended, and what it added to ops.reconciliation."""
        before = site.warehouse.table(RECONCILIATION).rows
        code = run("pipeline", "run", "--data", tmp_path, "--files", site.feed, "--once").code
        rows = site.warehouse.table(RECONCILIATION).read().sort_by("checked_time").to_pylist()
        return code, sorted((row["scope"], row["measure"], row["difference"]) for row in rows[before:])

    def add_to_totals(batch_id: int, requests: int) -> None:
        hourly = site.warehouse.table(USAGE_HOURLY)
        totals = hourly.note(gold.TOTALS)
        totals["rows"] += requests
        hourly.commit("vandal", batch_id, [], shared_notes={gold.TOTALS: totals})

    monkeypatch.setattr(spark, "spark_workers", no_spark)
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(10))
    measures = ("bytes", "chunks", "errors", "messages", "rows")

    at_first = look()
    add_to_totals(0, 3)
    differing, still = look(), look()
    add_to_totals(1, 2)
    more = look()
    add_to_totals(2, -5)
    mended, after = look(), look()

    assert at_first == after == (0, [])
    assert differing == (1, [("all", measure, 3 if measure == "rows" else 0) for measure in measures])
    assert still == (1, [])
    assert more == (1, [("all", measure, 5 if measure == "rows" else 0) for measure in measures])
    assert mended == (0, [("all", measure, 0) for measure in measures])


def test_a_run_merges_the_sums_of_hours_that_are_over_and_compaction_finds_them_done(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    for module in (pipeline, operators):
        monkeypatch.setattr(module, "_now", lambda: datetime.datetime(2026, 11, 24, tzinfo=datetime.UTC))
    site, one = Site(tmp_path), FrontEnd("a", step_us=60_000_000)
    site.ship(one.block(100))
    site.run()
    site.ship(one.block(50))
    partial = len(site.warehouse.table(USAGE_HOURLY).files())

    ended = run("pipeline", "run", "--data", tmp_path, "--files", site.feed, "--once")
    compacted = run("pipeline", "compact", "--data", tmp_path)

    assert ended.code == 0
    assert partial > 1
    assert len(site.warehouse.table(USAGE_HOURLY).files()) == 1
    assert "gold" not in compacted.out
    assert site.usage() == expected_usage(one)


def test_a_merge_that_gives_way_to_another_process_does_not_end_the_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise CommitConflict("another process wrote to the table")

    monkeypatch.setattr(spark, "spark_workers", no_spark)
    monkeypatch.setattr("quaymaster_pipeline.jobs.upkeep.merge_sums", lost)
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(10))

    ended = run("pipeline", "run", "--data", tmp_path, "--files", site.feed, "--once")

    assert ended.code == 0
    assert "until the next time" in ended.err
    assert site.usage() == expected_usage(one)


def test_marks_that_a_killed_run_left_are_committed_before_compaction_deletes_what_is_old(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    site, one = Site(tmp_path), FrontEnd("a")
    block = one.block(30)
    site.ship(block, block)
    site.run()
    site.ship(block)
    warehouse, feed = site.warehouse, FileFeed(site.feed)
    with monkeypatch.context() as killed:
        killed.setattr(batches, "commit_marks", lambda tables: None)
        take_batch(InProcess(), warehouse, feed, coverage_of(warehouse), NOW)
    for path in site.root.rglob("*.parquet"):
        os.utime(path, (0, 0))

    run("pipeline", "compact", "--data", tmp_path)
    site.run()

    assert site.warehouse.table(BLOCK_MARKS).read(["batch_id"]).num_rows == 2
    assert site.usage() == expected_usage(one)


def test_what_a_killed_run_decided_is_committed_before_compaction_deletes_what_is_old(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(30))
    with killed_before(USAGE_EVENTS):
        site.run()
    for path in site.root.rglob("*.parquet"):
        os.utime(path, (0, 0))

    run("pipeline", "compact", "--data", tmp_path)

    assert site.warehouse.table(USAGE_EVENTS).read(["sequence"]).num_rows == 30
    site.run()
    assert site.usage() == expected_usage(one)


def test_compaction_with_nothing_to_do_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    site, one = Site(tmp_path), FrontEnd("a")
    for _ in range(2):
        site.ship(one.block(10))
        site.run()

    first = run("pipeline", "compact", "--data", tmp_path)
    second = run("pipeline", "compact", "--data", tmp_path)

    assert "bronze.blocks\t2\t1" in first.out
    assert "No table has small files" not in first.err
    assert "No table has small files" in second.err


@pytest.mark.parametrize(
    "words",
    [
        ("pipeline", "run", "--once", "--files", "."),
        ("pipeline", "backfill"),
        ("pipeline", "compact"),
        ("pipeline", "reconcile"),
        ("pipeline", "status"),
        ("archive", "run", "--once", "--endpoint-url", "http://127.0.0.1:1"),
        ("archive", "status"),
        ("usage",),
    ],
)
def test_a_warehouse_that_is_a_file_is_refused_with_a_sentence(
    run: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    place = tmp_path / "place"
    place.write_text("")

    done = run(*words, "--data", tmp_path, "--warehouse", place, environment=KEYS)

    assert (done.code, done.err) == (2, f"quaymaster: --warehouse: {place} is not a directory.\n")


@pytest.mark.parametrize(
    "words",
    [
        ("pipeline", "run", "--once", "--files", "."),
        ("archive", "run", "--once", "--endpoint-url", "http://127.0.0.1:1"),
    ],
)
def test_a_warehouse_that_cannot_be_made_is_refused_with_a_sentence(
    run: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("")

    done = run(*words, "--data", tmp_path, "--warehouse", tmp_path / "file" / "x", environment=KEYS)

    assert done.code == 2
    assert (
        done.err
        == f"quaymaster: The warehouse {tmp_path / 'file' / 'x'} cannot be written: Not a directory.\n"
    )


def test_each_command_says_what_fills_the_warehouse_it_misses(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "nothing"

    usage = run("usage", "--warehouse", place).err
    archived = run("archive", "status", "--warehouse", place).err

    assert f"`quaymaster pipeline run --warehouse {place}` puts" in usage
    assert f"`quaymaster archive run --warehouse {place}` puts" in archived


def test_status_and_reconcile_read_the_tables(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(100))
    site.run()

    status = run("pipeline", "status", "--data", tmp_path, "--json").json
    compared = run("pipeline", "reconcile", "--data", tmp_path, "--json").json

    assert (status["rows"]["silver"], status["difference"], status["gaps"]) == (100, 0, [])
    assert [line["difference"] for line in compared] == [0] * 5


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("pipeline", "run", "--once"), 3, "keys/pipeline.json does not exist"),
        (("pipeline", "run", "--files", "/nowhere"), 2, "/nowhere is not a directory"),
        (("usage", "--since", "noon"), 2, "--since takes an hour such as 2026-11-22T10"),
        (("pipeline", "status", "--storage-option", "KEY"), 2, "takes KEY=VALUE"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(
    run: Run, tmp_path: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    done = run(*words, "--data", tmp_path, "--json")

    assert done.code == code
    assert message in json.loads(done.err)["error"]["message"]


def test_a_running_pipeline_waits_for_a_server_that_is_away_and_goes_on_with_what_it_has(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(100))
    looks = 0

    class ServerAway(FileFeed):
        def bounds(self) -> dict[int, tuple[int, int]]:
            raise ServerIsUnavailable("connection refused")

    def feed(*_: object, **__: object) -> FileFeed:
        return ServerAway(site.feed) if looks < 2 else FileFeed(site.feed)

    def pause(*_: object) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            eventually(lambda: site.usage() == expected_usage(one))
            raise KeyboardInterrupt

    monkeypatch.setattr(spark, "spark_workers", no_spark)
    monkeypatch.setattr(pipeline, "_feed", feed)
    monkeypatch.setattr(Background, "pause", pause)

    once = run("pipeline", "run", "--data", tmp_path, "--files", site.feed, "--once")
    ended = run("pipeline", "run", "--data", tmp_path, "--files", site.feed)

    assert once.code == 3
    assert ended.err.count("Trying again until it answers") == 2
    assert site.usage() == expected_usage(one)


def test_a_second_run_is_refused_and_what_operators_do_is_not(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(10))
    site.run()
    with Warehouse(tmp_path / "warehouse").ingesting():
        second = run("pipeline", "run", "--once", "--data", tmp_path, "--files", site.feed)
        hasty = run("pipeline", "compact", "--data", tmp_path, "--keep-hours", 0)
        others = [
            run("pipeline", *words, "--data", tmp_path)
            for words in (("reconcile",), ("backfill",), ("compact",))
        ]

    assert (second.code, hasty.code) == (1, 1)
    assert "another process takes usage into the tables" in second.err
    assert "another process takes usage into the tables" in hasty.err
    assert [done.code for done in others] == [0, 0, 0]


def write_pipeline_file(directory: Path, endpoint_url: str, key_id: str, *, age_s: int) -> None:
    """Write what a front end writes at its start."""
    path = directory / "keys" / "pipeline.json"
    path.parent.mkdir(parents=True)
    fields = {
        "endpoint_url": endpoint_url,
        "region": "eu-test-1",
        "access_key_id": key_id,
        "secret_access_key": "a secret",
        "queue_url": f"{endpoint_url}/999999999999/quaymaster-usage",
    }
    path.write_text(json.dumps(fields))
    os.utime(path, (1e9 - age_s, 1e9 - age_s))


def test_the_directory_of_a_server_says_how_its_usage_queue_is_read(tmp_path: Path) -> None:
    write_pipeline_file(tmp_path, "http://localhost:9324", "AKIA1", age_s=0)

    found = find_usage_queue(tmp_path)

    assert found.access_key_id == "AKIA1"
    assert found.queue_url == "http://localhost:9324/999999999999/quaymaster-usage"


def test_in_a_local_cluster_the_newest_access_key_is_used_at_the_endpoint_that_outlives_front_ends(
    tmp_path: Path,
) -> None:
    (tmp_path / "cluster.json").write_text("{}")
    write_client_file(tmp_path, "http://localhost:9324", "http://localhost:9325")
    write_pipeline_file(tmp_path / "frontend-1", "http://localhost:9328", "AKIA1", age_s=60)
    write_pipeline_file(tmp_path / "frontend-2", "http://localhost:9330", "AKIA2", age_s=0)

    found = find_usage_queue(tmp_path)

    assert (found.endpoint_url, found.region) == ("http://localhost:9324", "eu-test-1")
    assert (found.access_key_id, found.secret_access_key) == ("AKIA2", "a secret")
    assert found.queue_url == "http://localhost:9324/999999999999/quaymaster-usage"


def test_any_front_end_of_a_local_cluster_tells_how_the_usage_queue_is_read(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{}")
    write_client_file(tmp_path, "http://localhost:9324", "http://localhost:9325")
    write_pipeline_file(tmp_path / "frontend-2", "http://localhost:9330", "AKIA2", age_s=0)

    assert find_usage_queue(tmp_path).access_key_id == "AKIA2"


def test_a_local_cluster_that_never_recorded_says_how_it_is_started(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{}")

    done = run("pipeline", "run", "--once", "--data", tmp_path)

    assert done.code == 3
    assert f"`quaymaster local up --data {tmp_path}`" in done.err


def test_compact_makes_one_file_of_the_archives_ledger_unless_its_job_is_at_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def no_spark(*_: object, **__: object) -> Iterator[InProcess]:
        yield InProcess()

    monkeypatch.setattr(spark, "spark_workers", no_spark)
    warehouse = Warehouse(tmp_path / "warehouse")
    ledger = Ledger(warehouse, lambda: datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC))
    for first in (0, 5, 10):
        made = LedgerStretch("101", "orders", "0" * 12, 0, first, first + 5, "closed", f"p0-{first}")
        ledger.record(made, "closed")

    with archive_lock(warehouse):
        beside = run("pipeline", "compact", "--data", tmp_path, "--json")
    done = run("pipeline", "compact", "--data", tmp_path, "--json", "--keep-hours", 0)
    again = run("pipeline", "compact", "--data", tmp_path, "--json")

    assert (beside.code, beside.json) == (0, [])
    assert "another process writes the archive" in beside.err
    assert done.json == [{"table": "ops.retention_ledger", "before": 3, "after": 1}]
    assert again.json == []
    status = run("archive", "status", "--data", tmp_path, "--json").json
    assert [(line["queue"], line["closed"], line["next"]) for line in status] == [("orders", 3, 15)]


def test_a_half_written_access_file_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "pipeline.json").write_text("{")

    done = run("pipeline", "run", "--once", "--data", tmp_path)

    assert done.code == 3
    assert "is not whole" in done.err


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("no such thing", 0),
    ],
)
def test_java_tells_its_version_in_several_ways(text: str, version: int) -> None:
    assert java_version(text) == version


def test_without_java_spark_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")

    with pytest.raises(SparkMissing, match="apt-get install openjdk-17-jre-headless"):
        check_spark()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_master_that_is_none_is_refused_with_a_sentence(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.touch()

    with (
        pytest.raises(SparkMissing, match=f"does not start with master 'foo' .* in {log}"),
        spark_session("foo", directory=tmp_path, driver_memory="1g", log=log),
    ):
        pass


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(SparkMissing, match=f"none in JAVA_HOME, {tmp_path}"):
        check_spark()
