"""Operators are told what a cell waits for."""

from __future__ import annotations

import pytest
from harness.command_line import Run

from quaymaster.cli.cells import cell_operations


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
    monkeypatch.setattr(cell_operations, "_set_state", lambda *_: None)
    monkeypatch.setattr(cell_operations, "_ask_status", lambda *_: next(answers))
    monkeypatch.setattr(cell_operations, "DRAIN_LOOK_S", 0.0)

    drained = run("broker", "drain", "b3")

    assert drained.code == 0
    assert drained.err.count(in_vain) == 1
    assert drained.out == "b3 has nothing any more\n"
