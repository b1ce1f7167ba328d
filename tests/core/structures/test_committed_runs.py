"""What became of a staged message is known as long as somebody may ask, and takes next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quaymaster.core.partition.staged_messages import place_of, stage_of
from quaymaster.core.structures import committed_runs
from quaymaster.core.structures.committed_runs import PACKED_ROWS, CommittedRuns, PackedRuns, Run, RunsState

_decode = msgspec.msgpack.Decoder(PackedRuns | RunsState).decode


@contextmanager
def packed_early(rows: int = 3) -> Iterator[None]:
    with (
        patch.object(committed_runs, "PACKED_ROWS", rows),
        patch.object(committed_runs, "_ROWS_IN_PIECE", rows),
    ):
        yield


def copy_of(runs: CommittedRuns) -> CommittedRuns:
    """Return what a snapshot gives back."""
    copy = CommittedRuns()
    for piece in runs.state():
        copy.load(_decode(msgspec.msgpack.encode(piece)))
    return copy


def steady(stages: int, *, from_ms: int = 1_700_000_000_000) -> CommittedRuns:
    """Return the runs of a stream that commits one stage of some messages each second, more or less."""
    runs = CommittedRuns()
    sequence = 1
    for number in range(1, stages + 1):
        length = number * 7919 % 100 + 1
        runs.add(Run(place_of(number, 0), sequence, length, from_ms + 1_000 * number + number * 31 % 17, 0))
        sequence += length
    return runs


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

    for head, before_ms, left in ((2, 999, 2), (3, 999, 2), (3, 1_000, 1), (5, 1_999, 1), (5, 2_000, 0)):
        runs.drop(head, before_ms)
        assert len(runs) == left
    runs.drop(5, 2_000)


def test_what_is_said_of_head_and_time_never_falls() -> None:
    runs = CommittedRuns()
    runs.add(Run(place_of(1, 0), 7, 2, 1_000, 0))  # in front, and lives longer
    runs.add(Run(place_of(2, 0), 3, 2, 1_000, 0))

    runs.drop(5, 1_000)
    runs.drop(4, 900)

    assert runs.find(place_of(2, 0)) is None
    assert [run.sequence for run in runs.content()] == [7]


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


def test_a_stage_of_a_steady_stream_takes_less_than_four_bytes() -> None:
    runs = steady(12 * PACKED_ROWS)

    packed = [piece for piece in runs.state() if isinstance(piece, PackedRuns)]

    assert len(packed) == 11
    assert sum(len(piece.data) for piece in packed) < 3 * sum(piece.rows for piece in packed)
    assert runs.size_bytes < len(runs) * (4 + 32 / 11)


def test_sizes_go_down_to_nothing_with_the_messages() -> None:
    with packed_early():
        runs = steady(20)
        assert (len(runs), runs.size_bytes > 20 * 4) == (20, True)

        runs.drop(1 << 40, 1 << 60)

        assert (len(runs), runs.size_bytes, runs.content()) == (0, 0, [])
        assert runs.find(place_of(3, 0)) is None
        runs.add(Run(place_of(2, 0), 1 << 50, 1, 0, 0))
        assert runs.find(place_of(2, 0)) is not None


def test_what_is_gone_is_not_found_though_it_lies_among_what_is_not() -> None:
    with packed_early():
        runs = CommittedRuns()
        runs.add(Run(place_of(1, 0), 900, 1, 5, 0))  # committed last, and so in front of what goes earlier
        for number in range(2, 7):
            runs.add(Run(place_of(number, 0), number, 1, 5, 0))
        runs.drop(10, 5)

        for each in (runs, copy_of(runs)):
            assert len(each) == 3  # all packed
            assert [run.sequence for run in each.content()] == [900]
            assert [each.find(place_of(number, 0)) for number in range(2, 7)] == [None] * 5
            each.drop(901, 5)
            assert len(each) == 0


def test_rows_of_an_earlier_snapshot_are_read() -> None:
    rows = [(place_of(3, 0), 1, 1_000, 2, 50), (place_of(4, 0), 3, 2_000, 1, 0)]
    columns = zip(*rows, strict=True)
    earlier = msgspec.msgpack.encode(
        (
            4,
            [
                b"".join(value.to_bytes(size, "little") for value in column)
                for column, size in zip(columns, (8, 8, 8, 4, 4), strict=True)
            ],
        )
    )

    runs = CommittedRuns()
    runs.load(_decode(earlier))

    assert runs.content() == [Run(place_of(3, 0), 1, 2, 1_000, 50), Run(place_of(4, 0), 3, 1, 2_000, 0)]


def test_packed_rows_that_are_cut_off_are_a_bug() -> None:
    with packed_early():
        runs = steady(10)
        packed = [piece for piece in runs.state() if isinstance(piece, PackedRuns)]
        damaged = CommittedRuns()
        damaged.load(msgspec.structs.replace(packed[0], rows=2))

        with pytest.raises(AssertionError, match="are not 2 packed runs"):
            damaged.find(place_of(1, 0))


def test_a_snapshot_is_of_the_moment_it_was_begun() -> None:
    with packed_early():
        runs = steady(20)
        before = runs.content()
        state = runs.state()
        next(state)

        runs.drop(1 << 40, 1 << 60)
        runs.add(Run(place_of(99, 0), 1 << 41, 1, 1 << 61, 0))

        copy = CommittedRuns()
        for piece in [*steady(20).state()][:1]:
            copy.load(piece)
        for piece in state:
            copy.load(piece)
        assert copy.content() == before


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1 << 39), st.integers(1, 1 << 62), st.integers(0, 1 << 48), st.integers(1, 1 << 24)
        ),
        min_size=12,
        max_size=30,
        unique_by=lambda row: row[0],
    )
)
def test_any_numbers_are_packed_and_found_again(rows: list[tuple[int, int, int, int]]) -> None:
    with packed_early():
        runs = CommittedRuns()
        for stage, sequence, sent_ms, length in rows:
            runs.add(Run(place_of(stage, 0), sequence, length, sent_ms, stage % 7))

        expected = sorted(
            Run(place_of(stage, 0), sequence, length, sent_ms, stage % 7)
            for stage, sequence, sent_ms, length in rows
        )
        assert runs.content() == expected
        assert copy_of(runs).content() == expected
        for run in expected:
            last = run.length - 1
            assert runs.find(run.place + last) == run._replace(
                place=run.place + last, sequence=run.sequence + last, length=1
            )


class AgainstOneRowForEachMessage(RuleBasedStateMachine):
    """Runs beside a plain map of all places: stages begin in one order and are committed in another."""

    @initialize()
    def begin(self) -> None:
        self._small = packed_early()
        self._small.__enter__()
        self.runs = CommittedRuns()
        self.places: dict[int, Run] = {}
        self.stops: dict[int, tuple[int, int]] = {}
        """Of each run's first place, behind which number it ends, and when it was sent."""
        self.first_of: dict[int, int] = {}
        self.open = [1]
        self.number = 1
        self.sequence = 1
        self.head = 1
        self.before_ms = 0
        self.now_ms = 1_000

    def teardown(self) -> None:
        if hasattr(self, "_small"):
            self._small.__exit__(None, None, None)

    @rule(count=st.integers(1, 5))
    def begin_stages(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.open.append(self.number)

    @rule(
        which=st.one_of(st.just(0), st.just(-1), st.integers(0, 50)),
        lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
        between=st.integers(0, 3),
        later_ms=st.integers(0, 50),
        delay_ms=st.sampled_from([0, 50]),
    )
    def commit(self, which: int, lengths: list[int], between: int, later_ms: int, delay_ms: int) -> None:
        if not self.open:
            self.begin_stages(1)
        number = self.open.pop(which if which == -1 else which % len(self.open))
        self.sequence += between  # plain sends
        self.now_ms += later_ms
        index = 0
        for length in lengths:  # a duplicate lies between two of them
            place = place_of(number, index)
            self.runs.add(Run(place, self.sequence, length, self.now_ms, delay_ms))
            self.stops[place] = self.sequence + length, self.now_ms
            for at in range(length):
                self.places[place + at] = Run(place + at, self.sequence + at, 1, self.now_ms, delay_ms)
                self.first_of[place + at] = place
            index += length + 1
            self.sequence += length

    @rule(share=st.floats(0, 1), age_ms=st.integers(0, 300))
    def drop(self, share: float, age_ms: int) -> None:
        self.head += round(share * (self.sequence - self.head))
        self.before_ms = max(self.before_ms, self.now_ms - age_ms)
        self.runs.drop(self.head, self.now_ms - age_ms)
        gone = {
            first
            for first, (stop, sent_ms) in self.stops.items()
            if stop <= self.head and sent_ms <= self.before_ms
        }
        for place in [place for place in self.places if self.first_of[place] in gone]:
            del self.places[place]
        for first in gone:
            del self.stops[first]

    @rule()
    def restart(self) -> None:
        """The other replica goes on from a snapshot."""
        self.runs = copy_of(self.runs)

    @rule()
    def compare_with_a_restarted_one(self) -> None:
        assert copy_of(self.runs).content() == self.runs.content()

    @invariant()
    def every_place_is_what_the_map_says(self) -> None:
        if not hasattr(self, "runs"):
            return
        for place, first in self.first_of.items():
            assert self.runs.find(place) == self.places.get(place)
            if place + 1 not in self.first_of:  # a duplicate, or the end of a stage
                assert self.runs.find(place + 1) is None
            if place == first:
                assert self.runs.find(place - 1) == self.places.get(place - 1)
        assert [run.place for run in self.runs.content()] == sorted(self.stops)
        assert len(self.runs) >= len(self.stops)


TestAgainstOneRowForEachMessage = AgainstOneRowForEachMessage.TestCase
TestAgainstOneRowForEachMessage.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
