"""The engines benchmark in short: files in which events come twice, and the same answers by stretches as by a whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench import engines, event_files, pipeline, processes
from bench.engines import QUESTIONS, check, dedup_query, heaps_of, hourly_query, queries_by_stretch
from bench.event_files import TWICE, files_of, write_files
from bench.meter import Meter

EVENTS = 5_500
PER_FILE = 2_000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Three files of three hours, in small row groups; to be read in stretches of 700 rows."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (pipeline, event_files, engines):
            patch.setattr(module, "EVENTS_PER_FILE", PER_FILE)
        patch.setattr(event_files, "ROW_GROUP_ROWS", 300)
        patch.setattr(engines, "ROWS_PER_STRETCH", 700)
        folder = tmp_path_factory.mktemp("events")
        write_files(folder, EVENTS)
        yield files_of(folder, EVENTS)


def answer(query: str) -> pa.Table:
    with duckdb.connect() as connection:
        return connection.sql(query).to_arrow_table()


def in_order(rows: pa.Table) -> list[dict[str, object]]:
    return sorted(rows.to_pylist(), key=lambda row: [str(value) for value in row.values()])


def test_some_events_come_twice_in_their_file_and_some_again_in_the_next(files: list[Path]) -> None:
    ids = [pq.read_table(path).column("event_id").to_pylist() for path in files]

    known = [set(found) for found in ids]
    assert len(known[0] | known[1] | known[2]) == EVENTS
    assert [len(found) - len(set(found)) for found in ids] == [10, 10, 8]
    assert [len(known[0] & known[1]), len(known[1] & known[2]), len(known[0] & known[2])] == [10, 10, 0]
    assert PER_FILE // TWICE == 20


def test_files_are_written_only_when_they_are_not_there(files: list[Path]) -> None:
    before = [path.stat().st_mtime_ns for path in files]
    content = files[1].read_bytes()
    files[1].unlink()

    write_files(files[0].parent, EVENTS)

    after = [path.stat().st_mtime_ns for path in files]
    assert (after[0], after[2]) == (before[0], before[2])
    assert files[1].read_bytes() == content


@pytest.mark.parametrize("question", ["hourly", "hourly_int"])
def test_sums_by_stretches_are_those_of_all_files(files: list[Path], question: str) -> None:
    whole = answer(hourly_query(f"read_parquet({list(map(str, files))})", QUESTIONS[question]))

    parts = [answer(query) for query in queries_by_stretch(files, question)]

    assert len(parts) == 3
    assert in_order(pa.concat_tables(parts)) == in_order(whole)


def test_events_are_counted_once_by_stretches_as_by_all_files(files: list[Path]) -> None:
    whole = answer(dedup_query(f"read_parquet({list(map(str, files))})", ()))

    parts = [answer(query) for query in queries_by_stretch(files, "dedup")]

    assert len(parts) > len(files)
    sums = pa.concat_tables(parts).group_by(["hour", "op"]).aggregate([("requests", "sum"), ("bytes", "sum")])
    assert in_order(sums.rename_columns(["hour", "op", "requests", "bytes"])) == in_order(whole)
    assert sum(whole.column("requests").to_pylist()) == EVENTS


@pytest.mark.slow
def test_spark_with_duckdb_in_its_tasks_answers_as_duckdb_does(files: list[Path]) -> None:
    with engines.duckdb_engine(files, 2, "") as run:
        wanted = {question: run(question)() for question in QUESTIONS}

    with engines.hybrid_engine(files, 2, "local[2]") as run:
        found = {question: run(question)() for question in QUESTIONS}

    assert found == wanted
    assert wanted["dedup"][1] == EVENTS


def test_answers_that_differ_are_told() -> None:
    same = {"dedup": {"answer": [1, 2, 3]}}
    check({"events": 5, "duckdb": same, "hybrid": same})

    with pytest.raises(AssertionError, match="dedup"):
        check({"duckdb": same, "hybrid": {"dedup": {"answer": [1, 2, 4]}}})


def test_heaps_are_named_for_the_jvms_that_run() -> None:
    assert heaps_of("duckdb", is_local=True) == {}
    assert heaps_of("hybrid", is_local=True) == {"driver_heap": "1g"}
    assert heaps_of("spark", is_local=False) == {"driver_heap": "4g", "executor_heap": "2g"}


def test_a_meter_counts_processes_that_are_named_though_not_below_this_one() -> None:
    """Whose parent has ended is below nobody here, as executors of a cluster are not."""
    burn = "import time\nwhile time.process_time() < 60: pass"
    start = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {burn!r}], stdout=sys.stderr)\n"
        "print(child.pid)"
    )
    told = subprocess.run(
        [sys.executable, "-c", start], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    )
    pid = int(told.stdout)
    try:
        alone, both = Meter(), Meter(pid)
        with alone, both:
            assert processes.wait_until(lambda: processes.cpu_s(pid) > 1, 60)
    finally:
        os.kill(pid, signal.SIGKILL)

    assert both.cpu_s >= alone.cpu_s + 0.5
    assert both.bytes_peak > alone.bytes_peak
