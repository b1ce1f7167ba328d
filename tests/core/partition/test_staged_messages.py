"""Staged messages take little room, and which number each became is known as long as somebody may ask."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import msgspec
import pytest
from harness.steps import calls_of
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.partition import staged_messages, staged_snapshots
from quaymaster.core.partition.staged_messages import (
    OPEN_MESSAGES_MAX,
    RUN_KEPT_MS,
    Stage,
    StagedMessages,
    Transaction,
    place_of,
)
from quaymaster.core.partition.staged_snapshots import PART_BYTES, EncodedStage, Parts
from quaymaster.core.structures import committed_runs
from quaymaster.core.structures.committed_runs import Run


def joined(staged: StagedMessages) -> list[bytes]:
    """Return the pieces of a snapshot, each whole."""
    return [whole(piece) for piece in staged.pieces()]


def whole(piece: bytes | Parts) -> bytes:
    if isinstance(piece, bytes):
        return piece
    data = b"".join(piece.parts)
    assert len(data) == piece.size
    return data


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

    for each in (staged, StagedMessages.of_pieces(joined(staged))):
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

    pieces = joined(staged)
    copy = StagedMessages.of_pieces(pieces)

    assert len(pieces) == 1 + 1 + 3 + (4 + 1)
    assert copy.content() == staged.content()
    assert list(copy.sinks) == list(staged.sinks)
    assert copy.next_number == 12


def stage_some(staged: StagedMessages, count: int, *, plain: bool) -> None:
    """Stage so many more messages, every third behind a gap, with or without what only some messages have."""
    stage = staged.stage(7)
    for index in range(stage.count, stage.count + count):
        staged.add(
            place_of(7, index),
            10 + index + index // 3,
            0,
            group=0 if plain else index,
            dedup=None if plain else index.to_bytes(16, "big"),
            delay_ms=-1 if plain else index,
            payload_bytes=index,
        )


@pytest.mark.parametrize("before", [0, 1, 200])
@pytest.mark.parametrize(("first", "then"), [(True, True), (True, False), (False, False)])
def test_a_stage_is_in_a_snapshot_as_it_was_when_that_began(
    monkeypatch: pytest.MonkeyPatch, before: int, first: bool, then: bool
) -> None:
    monkeypatch.setattr(staged_snapshots, "PART_BYTES", 64)
    staged = StagedMessages()
    staged.begin_stage("sink", 1, 7, "stage", 0)
    stage_some(staged, before, plain=first)
    expected = staged.content()

    pieces = staged.pieces()
    stage_some(staged, 1, plain=then)
    found = [whole(next(pieces))]
    stage_some(staged, 50, plain=then)
    staged.drop("sink", 1)
    found += map(whole, pieces)

    assert StagedMessages.of_pieces(found).content() == expected


def test_the_parts_of_a_stage_are_what_older_programs_wrote_of_it() -> None:
    staged = StagedMessages()
    staged.begin_stage("sink", 1, 7, "stage", 0)
    stage_some(staged, 5, plain=False)
    stage = staged.stage(7)

    _, encoded, *_ = joined(staged)

    assert msgspec.msgpack.decode(encoded, type=EncodedStage) == EncodedStage(
        *("sink", 1, 7, "stage", 5),
        *(bytes(memoryview(column)) for column in (stage.offsets, stage.counts, stage.groups)),
        *(bytes(memoryview(column)) for column in (stage.dedups, stage.delays, stage.sizes)),
    )


def stage_of_many(count: int) -> StagedMessages:
    """Return a stage of so many messages that have all there may be, each in a run of its own."""
    staged = StagedMessages()
    stage = Stage(7, "stage")
    each = bytes(8 * count), b"\1\0\0\0" * count, bytes(8 * count), bytes(16 * count)
    stage.load(count, *each, bytes(4 * count), bytes(4 * count))
    transaction = staged.open["sink", 1] = Transaction("sink", 1, 0)
    transaction.stages["stage"] = stage
    return staged


def test_a_snapshot_of_very_many_staged_messages_copies_a_little_at_a_time() -> None:
    staged = stage_of_many(OPEN_MESSAGES_MAX // 10)
    begun: list[Iterator[bytes | Parts]] = []

    tracemalloc.start()
    try:
        begun.append(staged.pieces())
        _, copied_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    sizes = [len(part) for piece in begun[0] if isinstance(piece, Parts) for part in piece.parts]
    assert copied_bytes < PART_BYTES
    assert max(sizes) <= 2 * PART_BYTES
    assert sum(sizes) > 44 * OPEN_MESSAGES_MAX // 10


def test_beginning_a_snapshot_takes_as_many_steps_with_100_staged_messages_as_with_100000() -> None:
    steps = [calls_of(stage_of_many(count).pieces) for count in (100, 100, 100_000)]

    assert steps[1] == steps[2]
