"""Acts that commands leave in a data directory: they are there until they were taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from quaymaster.coordination.left_acts import PLACE, LeftActs
from quaymaster.coordination.noted_acts import NotedAct


def act(number: int) -> NotedAct:
    return NotedAct(f"act-{number}", number, "DrainEdge", "ann@desk", "desk", {"data": "/data"})


def test_acts_are_read_the_oldest_first_until_they_are_forgotten(tmp_path: Path) -> None:
    left = LeftActs(tmp_path)
    assert left.read() == []
    for number in (2, 1, 3):
        left.leave(act(number))

    assert left.read() == [act(1), act(2), act(3)]
    left.forget(act(2))
    left.forget(act(2))
    assert LeftActs(tmp_path).read() == [act(1), act(3)]


def test_what_was_cut_off_or_damaged_is_no_act_and_hinders_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = LeftActs(tmp_path)
    left.leave(act(1))
    (tmp_path / PLACE / "act-2.new").write_bytes(b"cut")
    (tmp_path / PLACE / "act-3").write_bytes(b"damaged")
    (tmp_path / PLACE / "act-4").mkdir()
    (tmp_path / PLACE / "act-5").write_bytes(next((tmp_path / PLACE).glob("act-[12]")).read_bytes())

    assert left.read() == [act(1)]
    assert left.read() == [act(1)]
    assert caplog.text.count("act of operator not readable") == 2


def test_an_act_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")

    with pytest.raises(OSError, match="run"):
        LeftActs(tmp_path).leave(act(1))
