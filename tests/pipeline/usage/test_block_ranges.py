"""Ranges of sequences: what is there, what is missing, and until when an hour is whole."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from quaymaster_pipeline.usage.ended import Ended, EndedIncarnations
from quaymaster_pipeline.usage.sequences import (
    BlockRange,
    Coverage,
    Gap,
    IncarnationId,
    _Progress,
    judge_blocks,
)

OWNER = IncarnationId("a", 1)
LATER = IncarnationId("a", 2)


def block(
    low: int,
    high: int,
    *,
    watermark: int = 0,
    owner: IncarnationId = OWNER,
    sha: bytes = b"",
    seal: int | None = None,
) -> BlockRange:
    return BlockRange(
        owner,
        low,
        high,
        sha or f"{low}-{high}".encode(),
        watermark,
        owner if seal is not None else None,
        seal,
    )


def coverage_of(*blocks: BlockRange) -> Coverage:
    coverage = Coverage()
    for one in blocks:
        coverage.add(one)
    return coverage


RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=12)


@given(RANGES, st.integers(0, 30), st.integers(0, 8))
def test_ranges_say_what_a_set_of_numbers_would(ranges: list[tuple[int, int]], low: int, length: int) -> None:
    coverage = coverage_of(*(block(start, start + count) for start, count in ranges))
    numbers = {number for start, count in ranges for number in range(start, start + count)}

    missing = {number for gap in coverage.gaps() for number in range(gap.seq_lo, gap.seq_hi)}

    assert coverage.overlaps(block(low, low + length)) == bool(numbers & set(range(low, low + length)))
    assert missing == set(range(max(numbers, default=-1) + 1)) - numbers


@given(st.permutations(range(8)))
def test_blocks_may_come_in_any_order(order: list[int]) -> None:
    coverage = coverage_of(*(block(at * 5, at * 5 + 5, watermark=at * 100) for at in order))

    assert coverage.gaps() == []
    assert coverage.closed_until_us() == 700


def test_an_hour_waits_for_the_gap_before_it() -> None:
    coverage = coverage_of(block(0, 5, watermark=100), block(10, 15, watermark=300))

    before = coverage.closed_until_us()
    gaps = coverage.gaps()
    coverage.add(block(5, 10, watermark=200))

    assert (before, gaps) == (100, [Gap(OWNER, 5, 10)])
    assert coverage.closed_until_us() == 300


def test_a_sign_of_life_moves_the_hour_on() -> None:
    coverage = coverage_of(block(0, 5, watermark=100), block(5, 5, watermark=900))

    assert coverage.closed_until_us() == 900


def test_the_slowest_front_end_says_when_an_hour_closes() -> None:
    coverage = coverage_of(
        block(0, 5, watermark=900), block(0, 5, watermark=100, owner=IncarnationId("b", 1))
    )

    assert coverage.closed_until_us() == 100


def test_a_sealed_incarnation_holds_nothing_up_when_it_is_whole() -> None:
    coverage = coverage_of(block(0, 5, watermark=100, seal=5), block(0, 9, watermark=700, owner=LATER))

    assert coverage.closed_until_us() == 700
    assert coverage.open_incarnations() == [LATER]


def test_a_seal_shows_what_is_missing_at_the_end() -> None:
    coverage = coverage_of(block(0, 5, watermark=100), block(9, 9, watermark=200, seal=9))

    assert coverage.gaps() == [Gap(OWNER, 5, 9)]
    assert coverage.closed_until_us() == 100


def test_nobody_knows_the_end_of_a_lost_incarnation_so_what_came_is_all() -> None:
    lost = BlockRange(OWNER, 5, 5, b"s", 150, OWNER, None)
    coverage = coverage_of(block(0, 5, watermark=100), lost)

    assert coverage.open_incarnations() == []
    assert coverage.closed_until_us() is None


def test_blocks_are_new_the_same_again_or_overlapping() -> None:
    coverage = coverage_of(block(0, 10))
    blocks = [
        block(0, 10),
        block(10, 20),
        block(10, 20),
        block(15, 25),
        block(0, 10, sha=b"other"),
        block(20, 20),
        block(0, 10, owner=LATER),
    ]

    states = judge_blocks(coverage, blocks, [(OWNER, 0, b"0-10")])

    assert states == ["duplicate", "new", "duplicate", "overlap", "overlap", "new", "new"]


def test_who_knows_the_end_of_an_incarnation_is_believed_whoever_came_last() -> None:
    def covered(*ends: int | None) -> Coverage:
        coverage = Coverage()
        coverage.add(block(0, 5))
        for at, end in enumerate(ends):
            coverage.add(BlockRange(OWNER, 5, 5, bytes([at]) * 32, 50, OWNER, end))
        return coverage

    assert covered(None).gaps() == []
    assert covered(None, 9).gaps() == covered(9, None).gaps() == [Gap(OWNER, 5, 9)]


BLOCKS = st.lists(
    st.tuples(
        st.sampled_from((OWNER, LATER)),
        st.integers(0, 20),
        st.integers(0, 6),
        st.sampled_from((None, OWNER)),
        st.one_of(st.none(), st.integers(0, 25)),
    ),
    max_size=12,
)


@given(BLOCKS)
def test_what_is_open_and_what_is_missing_is_kept_up_as_lines_say_it(
    blocks: list[tuple[IncarnationId, int, int, IncarnationId | None, int | None]],
) -> None:
    coverage = Coverage()
    for owner, low, count, sealed, end in blocks:
        coverage.add(BlockRange(owner, low, low + count, b"", low, sealed, end))

    made = Coverage.of_lines(coverage.lines())

    assert coverage.gaps() == made.gaps()
    assert coverage.open_incarnations() == made.open_incarnations()
    assert coverage.closed_until_us() == made.closed_until_us()


@given(BLOCKS, st.integers(0, 20), st.integers(1, 8))
def test_incarnations_that_ended_answer_packed_as_they_would_unpacked(
    blocks: list[tuple[IncarnationId, int, int, IncarnationId | None, int | None]], low: int, count: int
) -> None:
    packed, unpacked = Coverage(), Coverage()
    for owner, first, rows, sealed, end in blocks:
        one = BlockRange(owner, first, first + rows, b"", first * 10, sealed, end)
        packed.add(one)
        with patch.object(_Progress, "ended", None):
            unpacked.add(one)

    for owner in (OWNER, LATER):
        asked = BlockRange(owner, low, low + count, b"", 0)
        assert packed.overlaps(asked) == unpacked.overlaps(asked)
        assert packed.covers(asked) == unpacked.covers(asked)
        assert packed.heard_us(owner) == unpacked.heard_us(owner)
        assert packed.ranges_of(owner) == unpacked.ranges_of(owner)
    assert list(packed.lines()) == list(unpacked.lines())
    assert packed.gaps() == unpacked.gaps()
    assert packed.open_incarnations() == unpacked.open_incarnations()
    assert packed.closed_until_us() == unpacked.closed_until_us()


def test_an_incarnation_that_ended_takes_three_numbers_until_something_comes_of_it_again() -> None:
    coverage = coverage_of(block(0, 5, watermark=100, seal=5), block(0, 9, watermark=700, owner=LATER))

    ended = list(coverage.ended.items())
    others = [line.owner for line in coverage.lines_of_others()]
    repeated, longer = block(0, 5, watermark=100, seal=5), block(4, 7, watermark=200)
    states = judge_blocks(coverage, [repeated, longer], [(OWNER, 0, repeated.sha256)])

    assert ended == [(*OWNER, Ended(5, 100, True))]
    assert others == [LATER]
    assert states == ["duplicate", "overlap"]
    assert coverage.ranges_of(OWNER) == [(0, 7)]
    assert list(coverage.ended.items()) == []


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 6), st.booleans()), max_size=30))
def test_packed_incarnations_are_found_by_name_and_number(moves: list[tuple[str, int, bool]]) -> None:
    ended, expected = EndedIncarnations(), dict[tuple[str, int], Ended]()
    for at, (name, number, is_put) in enumerate(moves):
        if is_put and (name, number) not in expected:
            one = Ended(at, at * 7 if at % 3 else None, at % 2 == 0)
            ended.put(name, number, one)
            expected[name, number] = one
        elif not is_put:
            assert ended.pop(name, number) == expected.pop((name, number), None)

    assert list(ended.items()) == [(*key, one) for key, one in sorted(expected.items())]
    for name in "abc":
        for number in range(8):
            assert ended.get(name, number) == expected.get((name, number))


def test_a_copy_of_the_coverage_does_not_see_what_is_added_later() -> None:
    coverage = coverage_of(block(0, 5), block(7, 9))
    copy = coverage.copy()

    coverage.add(block(5, 7, seal=9))

    assert coverage.gaps() == []
    assert coverage.open_incarnations() == []
    assert copy.gaps() == [Gap(OWNER, 5, 7)]
    assert copy.open_incarnations() == [OWNER]
