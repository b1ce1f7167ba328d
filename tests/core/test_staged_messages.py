"""Staged messages take little room, and which number each became is known as long as somebody may ask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core import staged_messages
from quaymaster.core.staged_messages import (
    RUN_KEPT_MS,
    CommittedRuns,
    Run,
    StagedMessages,
    place_of,
    stage_of,
)

messages_ = st.tuples(
    st.integers(1, 3), st.integers(0, 3), st.sampled_from([None, b"d" * 16, b"e" * 16]), st.integers(-1, 2)
)


@given(st.lists(messages_, max_size=20))
def test_a_stage_gives_back_what_was_put_in(given: list[tuple[int, int, bytes | None, int]]) -> None:
    staged = StagedMessages()
    staged.begin_stage("sink", 1, 7, "stage", 0)
    expected = []
    offset = 10
    for index, (gap, group, dedup, delay_ms) in enumerate(given):
        offset += gap
        expected.append((place_of(7, index), offset, group, dedup, delay_ms, 100 + index))
        staged.add(
            place_of(7, index),
            offset,
            0,
            group=group,
            dedup=dedup,
            delay_ms=delay_ms,
            payload_bytes=100 + index,
        )

    for each in (staged, StagedMessages.of_pieces(staged.pieces())):
        stage = each.stage(7)
        assert [tuple(one) for one in stage.messages()] == expected
        assert each.messages == len(expected)


def test_messages_side_by_side_take_one_run() -> None:
    staged = StagedMessages()
    staged.begin_stage("sink", 1, 1, "stage", 0)
    for index in range(1_000):
        staged.add(place_of(1, index), index, 0, group=0, dedup=None, delay_ms=-1, payload_bytes=1)

    stage = staged.stage(1)

    assert (stage.offsets.tolist(), stage.counts.tolist()) == ([0], [1_000])
    assert not stage.groups
    assert not stage.dedups
    assert not stage.delays


def test_a_message_out_of_its_place_is_a_bug() -> None:
    staged = StagedMessages()
    staged.begin_stage("sink", 1, 1, "stage", 0)

    with pytest.raises(AssertionError, match="where 0 is next"):
        staged.add(place_of(1, 1), 5, 0, group=0, dedup=None, delay_ms=-1, payload_bytes=1)


def test_a_place_is_found_in_its_run_or_nowhere() -> None:
    runs = CommittedRuns()
    assert runs.find(0) is None
    runs.add(Run(place_of(5, 0), 100, 3, 1_000, 50))
    runs.add(Run(place_of(2, 4), 200, 2, 2_000, 0))

    assert runs.find(place_of(5, 2)) == Run(place_of(5, 2), 102, 1, 1_000, 50)
    assert runs.find(place_of(2, 5)) == Run(place_of(2, 5), 201, 1, 2_000, 0)
    assert [runs.find(place_of(*place)) for place in ((2, 3), (2, 6), (5, 3), (6, 0))] == [None] * 4
    assert stage_of(place_of(5, 2)) == 5


def test_runs_go_when_their_messages_are_gone_for_long_enough() -> None:
    runs = CommittedRuns()
    runs.add(Run(place_of(1, 0), 1, 2, 1_000, 0))
    runs.add(Run(place_of(2, 0), 3, 2, 2_000, 0))

    for head, before_ms, left in ((2, 9_000, 2), (3, 999, 2), (3, 1_000, 1), (5, 1_999, 1), (5, 2_000, 0)):
        runs.drop(head, before_ms)
        assert len(runs) == left
    runs.drop(5, 2_000)


def test_forgetting_goes_by_the_time_of_the_commit() -> None:
    staged = StagedMessages()
    staged.runs.add(Run(place_of(1, 0), 1, 2, 1_000, 0))

    staged.forget(3, 1_000 + RUN_KEPT_MS - 1)
    assert len(staged.runs) == 1
    staged.forget(3, 1_000 + RUN_KEPT_MS)
    assert len(staged.runs) == 0


def test_whoever_asks_while_runs_change_is_told_what_is_right() -> None:
    class Interrupted(CommittedRuns):
        """Another thread changes the runs in the middle of a question."""

        def __init__(self) -> None:
            super().__init__()
            self.changes = [
                lambda: self.add(Run(place_of(1, 0), 1, 2, 1_000, 0)),
                lambda: self.drop(3, 1_000),
                lambda: setattr(self, "_changes", self._changes + 1),
                lambda: setattr(self, "_changes", self._changes + 1),
            ]

        def _look_up(self, place: int) -> Run | None:
            found = super()._look_up(place)
            if self.changes:
                self.changes.pop(0)()
                if len(self.changes) == 2:
                    raise IndexError
            return found

    runs = Interrupted()
    runs.add(Run(place_of(2, 0), 3, 2, 2_000, 0))

    assert runs.find(place_of(2, 1)) == Run(place_of(2, 1), 4, 1, 2_000, 0)
    assert runs.changes == []


def test_a_snapshot_has_all_of_many_runs_and_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_messages, "_RUNS_IN_PIECE", 4)
    monkeypatch.setattr(staged_messages, "_SINKS_IN_PIECE", 4)
    staged = StagedMessages()
    for number in range(1, 11):
        staged.begin_stage(f"sink-{number}", number, number, "stage", number)
        staged.runs.add(Run(place_of(number, 0), number, 1, number, number))
        staged.commit(f"sink-{number}", number, 1, number)
    staged.begin_stage("open", 1, 11, "stage", 99)

    pieces = list(staged.pieces())
    copy = StagedMessages.of_pieces(pieces)

    assert len(pieces) == 1 + 1 + 3 + 3
    assert copy.content() == staged.content()
    assert list(copy.sinks) == list(staged.sinks)
    assert copy.next_number == 12
