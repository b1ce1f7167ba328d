"""Sets of sequence numbers: the same set whatever it is kept in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from quaymaster.core.structures.sequences import ARRAY_LENGTH_MAX, SequenceSet, end_of_run

numbers = st.integers(0, 200)
MANY = range(0, 2 * (ARRAY_LENGTH_MAX + 10), 2)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), numbers),
            st.tuples(st.just("discard"), numbers),
            st.tuples(st.just("discard_below"), numbers),
            st.tuples(st.just("update"), st.sets(numbers, max_size=80)),
        ),
        max_size=150,
    )
)
def test_set_is_the_same_as_pythons_whatever_is_done_to_it(steps: list[tuple[str, object]]) -> None:
    found, expected = SequenceSet(), set[int]()

    for name, value in steps:
        if isinstance(value, set):
            found.update(BitMap64(value))
            expected |= value
        elif name == "add":
            assert found.add(int(str(value))) == (value not in expected)
            expected.add(int(str(value)))
        elif name == "discard":
            assert found.discard(int(str(value))) == (value in expected)
            expected.discard(int(str(value)))
        else:
            gone = {number for number in expected if number < int(str(value))}
            assert found.discard_below(int(str(value))) == len(gone)
            expected -= gone

        assert list(found) == sorted(expected)
        assert (len(found), bool(found)) == (len(expected), bool(expected))
        assert list(found.bitmap()) == sorted(expected)
        if expected:
            assert found.first() == min(expected)
    rebuilt = SequenceSet.from_bytes(found.to_bytes())
    assert list(rebuilt) == sorted(expected)
    assert len(rebuilt) == len(expected)
    assert rebuilt.to_bytes() == SequenceSet(sorted(expected)).to_bytes() == found.to_bytes()


@given(st.sets(numbers, max_size=120), numbers, numbers)
def test_questions_about_a_stretch_are_answered_from_array_and_bitmap(
    members: set[int], start: int, stop: int
) -> None:
    found = SequenceSet(members)
    bitmap = BitMap64(range(start, stop))

    found.remove_from(bitmap)

    assert set(bitmap) == set(range(start, stop)) - members
    if start <= stop:
        assert found.count_between(start, stop) == len(members & set(range(start, stop)))
    end = found.end_of_run(start)
    assert end not in members
    assert members.issuperset(range(start, end))
    assert (start in found) == (start in members)


def test_end_of_a_long_run_is_found_in_a_few_steps() -> None:
    bitmap = BitMap64()
    bitmap.add_range(5, 70_000_005)
    asked = 0

    class Counting:
        def contains_range(self, start: int, stop: int) -> bool:
            nonlocal asked
            asked += 1
            return bool(bitmap.contains_range(start, stop))

    assert end_of_run(Counting(), 5) == 70_000_005  # type: ignore[arg-type]
    assert end_of_run(bitmap, 4) == 4
    assert asked < 100


def test_set_says_how_many_it_has_not_which() -> None:
    assert repr(SequenceSet(MANY)) == f"SequenceSet({len(MANY)} numbers)"


def test_bitmap_of_a_set_is_a_copy() -> None:
    for members in ([1, 2], MANY):
        found = SequenceSet(members)

        found.bitmap().clear()

        assert list(found) == list(members)


def test_emptied_bitmap_is_an_array_again() -> None:
    found = SequenceSet(MANY)

    for number in MANY:
        found.discard(number)
    found.add(7)

    assert list(found) == [7]
    assert found.to_bytes()[:1] == b"A"


def test_bitmap_is_asked_and_cut_as_an_array_is() -> None:
    found = SequenceSet(MANY)
    bitmap = BitMap64(range(4))

    found.remove_from(bitmap)

    assert list(bitmap) == [1, 3]
    assert (found.count_between(2, 7), found.end_of_run(2), found.end_of_run(3)) == (3, 3, 3)
    assert 4 in found
    assert not found.add(4)
    assert not found.discard(5)
    assert found.discard_below(10) == 5
    assert found.discard_below(10**6) == len(MANY) - 5
    assert found.to_bytes() == SequenceSet().to_bytes()


def test_bitmap_is_added_to_an_array_and_to_a_bitmap() -> None:
    few, many = BitMap64([1, 5]), BitMap64(range(ARRAY_LENGTH_MAX + 1))
    found = SequenceSet([3])

    found.update(BitMap64())
    found.update(few)
    assert list(found) == [1, 3, 5]
    found.update(many)
    assert len(found) == ARRAY_LENGTH_MAX + 1
    found.update(BitMap64([1_000]))
    found.update(BitMap64())
    assert len(found) == ARRAY_LENGTH_MAX + 2


def test_array_is_asked_from_both_ends() -> None:
    found = SequenceSet([1, 2, 5])

    assert (found.count_between(0, 3), found.end_of_run(1), found.end_of_run(4)) == (2, 3, 4)
    assert (found.discard(9), found.discard(3), found.add(2)) == (False, False, False)
    assert found.discard_below(2) == 1
    assert SequenceSet().discard_below(2) == 0


def test_many_numbers_survive_a_snapshot() -> None:
    found = SequenceSet(MANY)

    rebuilt = SequenceSet.from_bytes(found.to_bytes())

    assert list(rebuilt) == list(MANY)
    assert rebuilt.add(1)
    assert len(rebuilt) == len(MANY) + 1


def test_small_updates_join_what_is_there_in_front_between_and_behind() -> None:
    found = SequenceSet([5, 9])

    found.update(BitMap64([20, 30]))
    found.update(BitMap64([1, 7, 30]))
    found.update(BitMap64())

    assert list(found) == [1, 5, 7, 9, 20, 30]
    assert len(found) == 6
