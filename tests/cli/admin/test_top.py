"""`quaymaster top`: figures by themselves, printed once, and drawn on a screen."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from harness.command_line import PlayedServer, Refusal, Run
from hypothesis import given
from hypothesis import strategies as st
from textual.widgets import DataTable, Input, Static

from quaymaster.cli.admin.top_figures import (
    BAR_CELLS,
    SORTS,
    Look,
    QueueRow,
    age_text,
    arrange,
    depth_bar,
    rate_text,
    rows_of,
)
from quaymaster.cli.admin.top_screen import TopScreen
from quaymaster.cli.shared.failures import NoServer

STATUS = {"version": "1", "state": "serving", "ready": True, "reason": None, "broker": {}, "accounts": 1}
ALARM = {"AlarmName": "old", "StateValue": "ALARM", "StateReason": "3 of 5 above 300"}
CALM = {"AlarmName": "calm", "StateValue": "OK"}


def process(name: str, **figures: Any) -> dict[str, Any]:
    known = {"cpu": 0.421, "memory": 0.1, "memory_bytes": 1e8, "disk": 0.5, "leads": ["0", "3"]}
    times = {"seen_ms": 1, "measured_ms": 1}
    return {"name": name, "role": "broker", "zone": "a", "is_live": True, **known, **times, **figures}


CELL = {
    "name": "eu1",
    "processes": [process("b1"), process("[b2]", zone="", is_live=False, cpu=None, disk=None, leads=[])],
    "journals": [
        {
            "name": "3",
            "leader": "b1",
            "epoch": 17,
            "seen_ms": 1,
            "followers": [{"name": "b2", "lag_records": 0}, {"name": "b3", "lag_records": None}],
        },
        {"name": "4", "leader": None, "epoch": None, "seen_ms": 1, "followers": []},
        {
            "name": "5",
            "leader": None,
            "last_leader": "b2",
            "epoch": 3,
            "seen_ms": 1,
            "followers": [],
        },
    ],
}


def queue(name: str, number: int = 1, **figures: Any) -> dict[str, Any]:
    return {
        "name": name,
        "queue_id": number,
        "visible": 0,
        "in_flight": 0,
        "delayed": 0,
        "oldest_sent_ms": None,
        "sends": 0,
        "deletions": 0,
        **figures,
    }


def look(
    at_ms: int,
    *queues: dict[str, Any],
    alarms: list[dict[str, Any]] | None = None,
    cell: dict[str, Any] | None = None,
) -> Look:
    return Look(at_ms, STATUS, queues, alarms, cell)


def test_rates_are_means_since_the_look_before() -> None:
    before = look(1_000, queue("a", sends=10, deletions=4))
    now = look(
        3_000,
        queue("a", sends=20, deletions=4, visible=6, oldest_sent_ms=500),
        queue("new", 2, oldest_sent_ms=0),
    )

    a, new = rows_of(now, before)

    assert a == QueueRow("a", 6, 0, 0, 2.5, 5.0, 0.0)
    assert (new.sent_per_s, new.deleted_per_s, new.age_s) == (None, None, None)
    assert rows_of(now, None)[0].sent_per_s is None


def test_counts_that_went_back_are_no_negative_rate() -> None:
    before, now = look(1_000, queue("a", sends=10)), look(2_000, queue("a", sends=3))

    assert rows_of(now, before)[0].sent_per_s is None


def test_rows_are_sorted_by_each_field_and_filtered_by_a_part_of_their_names() -> None:
    rows = [
        QueueRow("Orders", 1, 9, 0, None, 2.0, None),
        QueueRow("orders-dlq", 5, 0, 0, 70.0, None, 1.0),
        QueueRow("mails", 5, 3, 0, 5.0, 0.5, 3.0),
    ]

    assert {sort: [row.name for row in arrange(rows, sort)] for sort in SORTS} == {
        "visible": ["mails", "orders-dlq", "Orders"],
        "in_flight": ["Orders", "mails", "orders-dlq"],
        "age_s": ["orders-dlq", "mails", "Orders"],
        "sent_per_s": ["Orders", "mails", "orders-dlq"],
        "deleted_per_s": ["mails", "orders-dlq", "Orders"],
        "name": ["Orders", "mails", "orders-dlq"],
    }
    assert [row.name for row in arrange(rows, "name", "ORDERS")] == ["Orders", "orders-dlq"]


@given(*[st.integers(0, 1 << 40)] * 3)
def test_a_bar_shows_each_state_that_there_is_and_never_more_than_its_cells(
    visible: int, in_flight: int, delayed: int
) -> None:
    bar = depth_bar(QueueRow("q", visible, in_flight, delayed, None, None, None))

    assert len(bar) <= BAR_CELLS
    assert ("█" in bar) == bool(visible)
    assert bool(bar) == bool(visible or in_flight or delayed)


def test_ages_and_rates_are_told_in_few_characters() -> None:
    ages = [age_text(seconds) for seconds in (None, 0, 59.9, 60, 7_300, 200_000)]
    assert ages == ["-", "0 s", "59 s", "1 min", "2 h", "2 d"]
    assert [rate_text(rate) for rate in (None, 0.0, 3.25, 12_345.0)] == ["-", "0.0/s", "3.2/s", "12,345/s"]


def play(server: PlayedServer, *pages: list[dict[str, Any]]) -> None:
    server.answers["GET /admin/v1/status"] = STATUS
    server.answers["GET /admin/v1/cell"] = Refusal(503, "ServiceUnavailable", "No console.")
    server.answers["GET /admin/v1/queues?account_id=000000000000&prefix=&limit=1000"] = [
        {"queues": queues, "next_token": None} for queues in pages
    ]


def test_two_looks_are_printed_once(
    run: Run, data: Path, server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    now = [queue("a", sends=8, visible=3), queue("b", 2, visible=4)]
    play(server, [queue("a", sends=8)], now)
    server.answers["DescribeAlarms"] = {"MetricAlarms": [ALARM, CALM]}

    shown = run("top", "--json", "--data", data).json

    assert shown["cell"] is None
    assert shown["process"] == {"version": "1", "state": "serving", "ready": True, "reason": None}
    assert [row["name"] for row in shown["queues"]] == ["b", "a"]
    assert shown["queues"][1]["sent_per_s"] == 0.0
    assert [(alert["name"], alert["state"]) for alert in shown["alerts"]] == [
        ("old", "ALARM"),
        ("calm", "OK"),
    ]

    play(server, now, now)
    server.answers["DescribeAlarms"] = Refusal(503, "ServiceUnavailable", "No console.")
    lines = run("top", "--once", "--sort", "name", "--filter", "A", "--data", data).out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["a"]


def test_cell_is_printed_with_what_processes_use_and_how_far_followers_are_behind(
    run: Run, data: Path, server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    play(server, [], [])
    server.answers["GET /admin/v1/cell"] = CELL

    lines = run("top", "--once", "--cell", "--data", data).out.splitlines()

    assert [line.split("\t") for line in lines] == [
        ["b1", "broker", "a", "live", "42%", "10%", "50%", "0 3"],
        ["[b2]", "broker", "-", "gone", "-", "10%", "-", "-"],
        ["3", "b1", "17", "b2 +0 b3 ?"],
        ["4", "-", "-", "-"],
        ["5", "- (last b2)", "3", "-"],
    ]
    play(server, [], [])
    server.answers["GET /admin/v1/cell"] = CELL
    assert run("top", "--json", "--data", data).json["cell"] == CELL
    play(server, [], [])
    missing = run("top", "--once", "--cell", "--data", data)
    assert "No console answers" in missing.err


def test_wrong_use_is_told(run: Run, data: Path, server: PlayedServer) -> None:
    play(server, [])

    unknown = run("top", "--sort", "weight", "--data", data)
    in_a_pipe = run("top", "--data", data)

    assert (unknown.code, "visible" in unknown.err) == (2, True)
    assert (in_a_pipe.code, "--once" in in_a_pipe.err) == (2, True)


def texts(app: TopScreen) -> list[str]:
    table = app.query_one(DataTable)
    return [str(table.get_row_at(at)[0]) for at in range(table.row_count)]


def test_the_screen_shows_the_cell_and_queues_again() -> None:
    def journals(app: TopScreen) -> str:
        return str(app.query_one("#journals", Static).render())

    async def scenario() -> None:
        now = look(1_000, queue("a"), cell=CELL)
        app = TopScreen(lambda: now, now, sort="visible", part="", interval_s=3_600)
        async with app.run_test() as pilot:
            await pilot.press("c")
            assert texts(app) == ["b1", "[b2]"]
            assert "journal 3  leader b1  epoch 17  b2 +0 b3 ?" in journals(app)
            await pilot.press("c")
            assert texts(app) == ["a"]
            assert journals(app) == ""
        alone = look(1_000, queue("a"))
        app = TopScreen(lambda: alone, alone, sort="visible", part="", interval_s=3_600, of_cell=True)
        async with app.run_test():
            assert texts(app) == []
            assert "No console answers" in journals(app)

    asyncio.run(scenario())


def test_the_screen_looks_again_sorts_filters_and_says_when_the_server_is_gone() -> None:
    looks: list[Look | Exception] = [
        look(2_000, queue("a", visible=1), queue("[b]", 2, visible=7), alarms=[ALARM, CALM]),
        NoServer("It is gone."),
    ]

    def again() -> Look:
        found = looks.pop(0) if len(looks) > 1 else looks[0]
        if isinstance(found, Exception):
            raise found
        return found

    async def scenario() -> None:
        app = TopScreen(again, look(1_000, queue("a")), sort="visible", part="", interval_s=3_600)
        async with app.run_test() as pilot:
            assert texts(app) == ["a"]

            app._look_again()
            await app.workers.wait_for_complete()
            await pilot.pause()
            assert texts(app) == ["[b]", "a"]
            assert "old: 3 of 5" in str(app.query_one("#alerts", Static).render())
            assert "calm" not in str(app.query_one("#alerts", Static).render())

            for _ in SORTS[1:]:
                await pilot.press("s")
            assert "by name" in str(app.query_one("#head", Static).render())
            await pilot.press("/", "a", "enter")
            assert texts(app) == ["a"]
            await pilot.press("escape")
            assert texts(app) == ["[b]", "a"]
            assert app.query_one(Input).value == ""

            app._look_again()
            await app.workers.wait_for_complete()
            await pilot.pause()
            assert "It is gone." in str(app.query_one("#head", Static).render())
            assert texts(app) == ["[b]", "a"]
            await pilot.press("q")

    asyncio.run(scenario())
