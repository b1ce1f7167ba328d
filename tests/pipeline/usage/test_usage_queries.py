"""The queries of the page of usage queries give what was recorded, also where gold has parts of sums."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from harness.usage_questions import (
    ANSWERS,
    OPENERS,
    Asked,
    billed,
    blocks_of,
    day_of,
    make_site,
    split_sums,
    tidy,
)

SQL = blocks_of("sql")
PYTHON = blocks_of("python")


@pytest.fixture(scope="module", params=["whole", "in parts"])
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """Give a warehouse in the directory that tests run in, with a row for each key of gold, and with two."""
    directory: Path = tmp_path_factory.mktemp("asked")
    made = make_site(directory)
    if request.param == "in parts":
        split_sums(made.site.warehouse)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(directory)
        yield made


@pytest.fixture(scope="module")
def db(asked: Asked) -> Any:
    """Give DuckDB as the page opens it."""
    return run("DuckDB")["db"]


def run(name: str, **given: Any) -> dict[str, Any]:
    """Run a Python block of the page and return its names."""
    names = dict(given)
    # As in a new process: what a test before left unfinished on DuckDB's default connection would be in the way.
    duckdb.set_default_connection(duckdb.connect())
    exec(compile(PYTHON[name], name, "exec"), names)
    return names


def test_each_query_of_the_page_has_an_expected_answer() -> None:
    assert list(SQL) == list(ANSWERS)
    assert len(PYTHON) == len(OPENERS) + 4, "each has a test below; that of Spark is in tests/spark"


@pytest.mark.parametrize("heading", ANSWERS)
def test_a_query_in_duckdb_gives_what_was_recorded(db: Any, asked: Asked, heading: str) -> None:
    expected = tidy(ANSWERS[heading](asked))

    found = tidy(db.execute(SQL[heading]).fetchall())

    assert found == expected
    assert expected, "an empty answer shows nothing"


def test_duckdb_finds_all_requests_without_our_package(asked: Asked) -> None:
    rows = run("DuckDB without Quaymaster")["usage_hourly"]

    days = rows.aggregate("usage_date, sum(requests) as requests").order("usage_date").fetchall()

    assert days == sorted(Counter(map(day_of, asked.records)).items())


def test_polars_gives_an_accounts_usage_by_queue_and_day(asked: Asked) -> None:
    expected: defaultdict[tuple[datetime.date, str], list[int]] = defaultdict(lambda: [0] * 4)
    for one in asked.records:
        if one.account_id == "000000000001":
            counts = (1, billed(one), one.message_count, one.payload_bytes)
            sums = expected[day_of(one), one.queue_name]
            sums[:] = [sum(pair) for pair in zip(sums, counts, strict=True)]

    found = run("One account, by queue and day")["one_account"]

    assert found.rows() == [(*key, *sums) for key, sums in sorted(expected.items())]


def test_polars_gives_queues_whose_messages_are_received_more_often_than_deleted(asked: Asked) -> None:
    counts: Counter[tuple[int, str, str]] = Counter()
    for one in asked.records:
        counts[one.queue_id, one.queue_name, one.action] += one.message_count
    queues = sorted({(one.queue_id, one.queue_name) for one in asked.records if one.queue_id})
    lines = [(*queue, counts[*queue, "ReceiveMessage"], counts[*queue, "DeleteMessage"]) for queue in queues]

    found = run("Messages received more than once")["received_again"]

    assert found.rows() == [line for line in lines if line[2] > line[3]]
    assert found.height > 0


def test_pandas_gives_requests_by_day_and_action(asked: Asked) -> None:
    expected = Counter((day_of(one), one.action) for one in asked.records)

    found = run("Requests by day and action")["by_day"]

    assert {(day, action): count for (day, action), count in found.stack().items() if count} == expected


def test_pandas_gives_average_and_longest_latencies(asked: Asked) -> None:
    latencies: defaultdict[str, list[int]] = defaultdict(list)
    for one in asked.records:
        latencies[one.action].append(one.latency_us)

    found = run("Average and longest latency by action")["latency"]

    assert found["longest_us"].to_dict() == {action: max(of) for action, of in latencies.items()}
    assert found["average_us"].to_dict() == {
        action: pytest.approx(sum(of) / len(of)) for action, of in latencies.items()
    }
