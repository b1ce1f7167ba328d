"""ops.dim_queue has every queue that a server listed, and when there was one; other engines read it."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path

import duckdb
import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster_pipeline.checks.brokers.broker_counts import QueueCount
from quaymaster_pipeline.jobs.queues import keep_queues, kind_of_queue, next_queues
from quaymaster_pipeline.warehouse.schemas import QUEUES
from quaymaster_pipeline.warehouse.tables import Warehouse

NOON = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
ONE, TWO = "000000000001", "000000000002"


def at(minutes: float) -> datetime.datetime:
    return NOON + datetime.timedelta(minutes=minutes)


def queue(queue_id: int, name: str = "orders", *, made: float = -5, account: str = ONE) -> QueueCount:
    created_ms = int(at(made).timestamp() * 1000)
    return QueueCount(queue_id, account, name, 7, 5, 0, True, created_ms, kind_of_queue(name, is_log=False))


def lives(rows: list[dict[str, object]]) -> dict[object, tuple[object, object]]:
    return {row["queue_id"]: (row["valid_from"], row["valid_to"]) for row in rows}


def test_queues_that_a_server_lists_are_kept_until_it_lists_them_no_more(tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path)

    keep_queues(warehouse, [queue(1), queue(2, "dead.fifo", account=TWO)], at(0))
    keep_queues(warehouse, [queue(1), queue(3, "dead.fifo", made=6)], at(10))

    rows = warehouse.table(QUEUES).read().to_pylist()
    assert lives(rows) == {1: (at(-5), None), 2: (at(-5), at(10)), 3: (at(6), None)}
    assert [(row["account_id"], row["queue_name"], row["queue_type"]) for row in rows] == [
        (ONE, "orders", "standard"),
        (TWO, "dead.fifo", "fifo"),
        (ONE, "dead.fifo", "fifo"),
    ]


def test_a_queue_made_anew_under_its_name_is_another_row_and_ends_the_one_before(tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path)

    keep_queues(warehouse, [queue(1)], at(0))
    keep_queues(warehouse, [queue(2, made=4)], at(10))

    assert lives(warehouse.table(QUEUES).read().to_pylist()) == {1: (at(-5), at(4)), 2: (at(4), None)}


def test_the_same_answer_again_is_no_commit(tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path)
    listed = [queue(1), queue(2, "dead")]
    first = keep_queues(warehouse, listed, at(0))
    version = warehouse.table(QUEUES).version

    again = keep_queues(warehouse, listed, at(10)) or keep_queues(Warehouse(tmp_path), listed[::-1], at(20))

    assert (first, again) == (True, False)
    assert Warehouse(tmp_path).table(QUEUES).version == version


def test_a_server_without_queues_makes_no_table(tmp_path: Path) -> None:
    assert not keep_queues(Warehouse(tmp_path), [], at(0))

    assert list(tmp_path.iterdir()) == []


def test_a_queue_that_a_restored_server_has_again_never_ended() -> None:
    rows = next_queues(next_queues([], [queue(1)], at(0)), [], at(10))

    again = next_queues(rows, [queue(1)], at(20))

    assert lives(rows) == {1: (at(-5), at(10))}
    assert lives(again) == {1: (at(-5), None)}


def test_a_queue_ends_no_earlier_than_it_began_though_clocks_differ() -> None:
    rows = next_queues([], [queue(1, made=3)], at(0))

    gone = next_queues(rows, [queue(2, made=2)], at(1))

    assert lives(gone)[1] == (at(3), at(3))


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "c.fifo"]), st.booleans()), max_size=12))
def test_of_each_name_one_queue_at_a_time_is_there_and_what_ended_stays(
    answers: list[dict[str, bool]],
) -> None:
    there: dict[str, QueueCount] = {}
    rows: list[dict[str, object]] = []
    ids = 0
    for minute, answer in enumerate(answers):
        before = lives(rows)
        fresh = {}
        for name, is_anew in answer.items():
            ids += 1
            fresh[name] = queue(ids, name, made=minute - 0.5) if is_anew else there.get(name)
        there = {name: found for name, found in fresh.items() if found is not None}

        rows = next_queues(rows, there.values(), at(minute))

        now = lives(rows)
        assert {row["queue_id"] for row in rows if row["valid_to"] is None} == {
            one.queue_id for one in there.values()
        }
        assert all(now[queue_id] == life for queue_id, life in before.items() if life[1] is not None)
        for name in there:
            lifetimes = sorted(
                (str(row["valid_from"]), str(row["valid_to"] or "9"))
                for row in rows
                if row["queue_name"] == name
            )
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(lifetimes))


@pytest.mark.parametrize(
    ("name", "is_log", "kind"),
    [
        ("orders", False, "standard"),
        ("orders.fifo", False, "fifo"),
        ("events", True, "log"),
        ("events@spark", False, "log"),
        ("events.fifo", True, "fifo"),
        ("events.fifo@spark", False, "fifo"),
    ],
)
def test_kinds_are_those_of_usage_records(name: str, is_log: bool, kind: str) -> None:
    assert kind_of_queue(name, is_log=is_log) == kind


def test_duckdb_and_polars_find_the_queue_that_had_a_name_at_a_time(tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path)
    for minute, listed in enumerate([[queue(1), queue(9, "b")], [queue(2, made=0.5)], []]):
        keep_queues(warehouse, listed, at(minute))
    table = warehouse.table(QUEUES)
    paths = [f"{table.place.uri}/{file.path}" for file in table.files()]
    moment = at(0.75)

    by_duckdb = duckdb.execute(
        f"select queue_id from read_parquet({paths}) where queue_name = 'orders' "
        "and valid_from <= $1 and $1 < coalesce(valid_to, 'infinity'::timestamptz)",
        [moment],
    ).fetchall()
    frame = polars.read_delta(table.place.uri)
    had_it = (polars.col("valid_from") <= moment) & (polars.col("valid_to").fill_null(at(1e6)) > moment)
    by_polars = frame.filter((polars.col("queue_name") == "orders") & had_it)

    assert by_duckdb == by_polars.select("queue_id").rows() == [(2,)]
    assert frame.height == 3
    assert frame["valid_to"].null_count() == 0
