"""Operators are told what a cell consists of, and what it waits for."""

from __future__ import annotations

import json

import pytest
from harness.command_line import Run

from quaymaster.cli.admin import clock
from quaymaster.cli.cells import brokers, cell, cell_links, journals
from quaymaster.cli.shared.failures import NoServer


def test_a_drain_says_what_keeps_it_waiting_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    full, empty = ({"name": "b3", "replicas": replicas} for replicas in ([1, 2], []))
    in_vain = "journal 1 keeps a member in vain: broker b3 is draining, and no broker is free"
    answers = iter(
        [
            {"brokers": [full], "problems": []},
            {"brokers": [full], "problems": [in_vain]},
            {"brokers": [full], "problems": [in_vain]},
            {"brokers": [empty], "problems": []},
        ]
    )
    monkeypatch.setattr(brokers, "_set_state", lambda *_: None)
    monkeypatch.setattr(brokers, "ask_status", lambda *_: next(answers))
    monkeypatch.setattr(brokers, "DRAIN_LOOK_S", 0.0)

    drained = run("broker", "drain", "b3")

    assert drained.code == 0
    assert drained.err.count(in_vain) == 1
    assert drained.out == "b3 has nothing any more\n"


STATUS = {
    "manager": "m1",
    "acting_manager": "m1",
    "brokers": [
        {
            "name": "b1",
            "zone": "z1",
            "state": "active",
            "is_reachable": True,
            "leads": [0],
            "replicas": [0],
            "disk_free_bytes": 1024,
            "clock_ahead_ms": None,
            "address": "10.0.0.1:9340",
        }
    ],
    "journals": [
        {
            "journal": 0,
            "leader": "b1",
            "epoch": 3,
            "members": [{"broker": "b1", "lag_records": 2}, {"broker": "b2", "lag_records": 7}],
        }
    ],
    "problems": [],
}
BROKER = "b1\tz1\tactive\ttrue\t[0]\t[0]\t1.0 KiB\t?\t10.0.0.1:9340\n"
JOURNAL = "0\tb1\t3\tb1,b2\t7\n"


def decided(at_ms: int, manager: str, **changes: object) -> dict[str, object]:
    """Return what a manager tells of its one decision."""
    decision = {
        "action": "Transfer",
        "journal": 4,
        "broker": None,
        "leader": "b2",
        "epoch": 9,
        "reason": "b1 is busy",
    }
    taken = {"at_ms": at_ms, "decision": decision, "result": "done", "error": None, "times": 1, **changes}
    return {"manager": manager, "decisions": [taken]}


def test_decisions_of_all_managers_are_shown_by_time_and_those_that_do_not_answer_are_named(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(settings: object, address: str, *_: object) -> bytes:
        match address:
            case "m1:1":
                return json.dumps(decided(86_400_000, "m1", result="failed", error="away", times=3)).encode()
            case "m2:1":
                return json.dumps(decided(1_000, "m2")).encode()
            case _:
                raise NoServer(f"manager at {address}: gone")

    monkeypatch.setattr(cell_links, "ask", ask)
    managers = [word for name in ("m1", "m2", "m3") for word in ("--manager", f"{name}:1")]

    shown = run("cell", "decisions", *managers)

    assert shown.out == (
        "1970-01-01 00:00:01Z\tm2\tTransfer\t4\t-\tb2\tdone\t1\tb1 is busy\n"
        "1970-01-02 00:00:00Z\tm1\tTransfer\t4\t-\tb2\tfailed\t3\tb1 is busy; away\n"
    )
    assert shown.err == "manager at m3:1: gone\n"
    assert [one["manager"] for one in run("cell", "decisions", *managers, "--json").json["decisions"]] == [
        "m2",
        "m1",
    ]
    assert "m3:1: gone" in run("cell", "decisions", "--manager", "m3:1").err


def test_bug_in_asking_managers_is_not_taken_for_one_that_does_not_answer(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(*_: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(cell_links, "ask", ask)

    with pytest.raises(ZeroDivisionError):
        run("cell", "decisions", "--manager", "m1:1")


def test_brokers_and_journals_are_listed_as_the_status_of_a_cell_has_them(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (brokers, cell, journals):
        monkeypatch.setattr(module, "ask_status", lambda *_: STATUS)

    assert run("broker", "list").out == BROKER
    assert run("journal", "list").out == JOURNAL
    assert run("cell", "status").out == f"manager m1 says; m1 acts\n{BROKER}{JOURNAL}"
    assert run("broker", "list", "--json").json == {"brokers": STATUS["brokers"]}
    assert run("journal", "list", "--json").json == {"journals": STATUS["journals"]}


@pytest.mark.parametrize(
    "words", [("--cell",), ("--manager", "10.0.0.1:9350"), ("--set", "node=me")], ids=str
)
def test_the_clocks_of_a_cell_are_accepted_by_each_of_its_brokers(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    there, away = ({"name": name, "address": name} for name in ("b1", "b2"))

    async def ask(settings: object, address: str, *_: object) -> bytes:
        if address == "b2":
            raise NoServer("b2 is away")
        return b""

    monkeypatch.setattr(clock, "ask_status", lambda *_: {"brokers": [there, away]})
    monkeypatch.setattr(clock, "ask", ask)

    told = run("clock", "accept", *words)
    as_json = run("clock", "accept", *words, "--json")

    assert (told.code, told.out) == (3, "b1 has accepted its clock\n")
    assert "b2" in told.err
    assert as_json.json == {"accepted": ["b1"], "missing": ["b2"]}
