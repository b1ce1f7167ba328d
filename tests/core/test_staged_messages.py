"""Staged messages take little room, and which number each became is known as long as somebody may ask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core import committed_runs, staged_messages
from quaymaster.core.committed_runs import Run
from quaymaster.core.staged_messages import RUN_KEPT_MS, StagedMessages, place_of

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


def test_forgetting_goes_by_the_time_of_the_commit() -> None:
    staged = StagedMessages()
    staged.runs.add(Run(place_of(1, 0), 1, 2, 1_000, 0))

    staged.forget(3, 1_000 + RUN_KEPT_MS - 1)
    assert len(staged.runs) == 1
    staged.forget(3, 1_000 + RUN_KEPT_MS)
    assert len(staged.runs) == 0


def test_a_snapshot_has_all_of_many_runs_and_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_runs, "PACKED_ROWS", 2)
    monkeypatch.setattr(committed_runs, "_ROWS_IN_PIECE", 4)
    monkeypatch.setattr(staged_messages, "_SINKS_IN_PIECE", 4)
    staged = StagedMessages()
    for number in range(1, 11):
        staged.begin_stage(f"sink-{number}", number, number, "stage", number)
        staged.runs.add(Run(place_of(number, 0), number, 1, number, number))
        staged.commit(f"sink-{number}", number, 1, number)
    staged.begin_stage("open", 1, 11, "stage", 99)

    pieces = list(staged.pieces())
    copy = StagedMessages.of_pieces(pieces)

    assert len(pieces) == 1 + 1 + 3 + (4 + 1)
    assert copy.content() == staged.content()
    assert list(copy.sinks) == list(staged.sinks)
    assert copy.next_number == 12
