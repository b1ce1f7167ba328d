"""A table of rows is a dict that can be frozen and emptied in steps."""

from __future__ import annotations

import tracemalloc
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.structures.rows import PACKED_FROM_ROWS, PAGE_BITS, RowTable

PAGE = 1 << PAGE_BITS
SEQUENCES = st.integers(1, 3 * PAGE)


def filled(sequences: range) -> RowTable[str]:
    table: RowTable[str] = RowTable()
    for sequence in sequences:
        table[sequence] = str(sequence)
    return table


class Pairs:
    """Numbers as rows, and their halves in columns."""

    def columns(self) -> tuple[array[int], ...]:
        return array("I"), array("Q")

    def split(self, row: int) -> tuple[int, ...]:
        return row + 1, row

    def join(self, *numbers: int) -> int:
        assert numbers[0] == numbers[1] + 1
        return numbers[1]


@given(
    st.sampled_from([None, Pairs()]),
    st.lists(st.tuples(st.sampled_from(["set", "take", "delete", "below", "freeze"]), SEQUENCES)),
)
def test_a_table_holds_what_a_dict_holds_and_a_frozen_one_what_it_held(
    packing: Pairs | None, steps: list[tuple[str, int]]
) -> None:
    table: RowTable[int] = RowTable(packing)
    # Half a page more than is packed, so that what follows meets pages of both kinds.
    for sequence in range(1, PACKED_FROM_ROWS + 5):
        table[sequence] = sequence
    expected: dict[int, int] = dict(table)
    frozen, expected_frozen = table.freeze(), dict(expected)
    for number, (step, sequence) in enumerate(steps):
        if step == "set":
            table[sequence] = expected[sequence] = number
        elif step == "take":
            assert table.take(sequence) == expected.pop(sequence, None)
        elif step == "delete" and sequence in expected:
            del table[sequence], expected[sequence]
        elif step == "below":
            gone = {known for known in expected if known < sequence}
            assert set(table.take_below(sequence)) == gone
            expected = {known: row for known, row in expected.items() if known not in gone}
        elif step == "freeze":
            assert {key: row for page in frozen for key, row in page.items()} == expected_frozen
            frozen, expected_frozen = table.freeze(), dict(expected)
            if sequence % 2:
                next(frozen, None)
                frozen, expected_frozen = table.freeze(), dict(expected)
        assert len(table) == len(expected)
        assert (sequence in table) == (sequence in expected)
        assert table.get(sequence) == expected.get(sequence)
        assert table.get(sequence, -1) == expected.get(sequence, -1)

    assert table == expected
    assert {key: row for page in frozen for key, row in page.items()} == expected_frozen


def test_a_page_is_copied_once_when_it_changes_while_it_is_frozen() -> None:
    table = filled(range(1, 3 * PAGE))

    frozen = table.freeze()
    first = next(frozen)
    table[PAGE + 1] = "changed"
    changed = table._pages[1]
    table[PAGE + 2] = "changed too"
    second = next(frozen)

    assert first is table._pages[0]
    assert table._pages[1] is changed
    assert second[PAGE + 1] == str(PAGE + 1)


def test_a_table_is_emptied_a_page_at_a_time() -> None:
    table = filled(range(1, 3 * PAGE))

    assert len(list(table.emptied())) == 3


def test_a_stop_is_a_whole_page_behind_so_many_rows() -> None:
    table = filled(range(1, 3 * PAGE))

    assert table.stop_after(3 * PAGE) is None
    assert table.stop_after(PAGE // 2) == PAGE
    assert table.stop_after(PAGE) == 2 * PAGE


def test_what_was_frozen_can_be_loaded() -> None:
    table = filled(range(1, 3 * PAGE))
    loaded: RowTable[str] = RowTable()

    for page in table.freeze():
        loaded.load(page)

    assert loaded == table


def test_many_rows_of_a_page_take_a_few_bytes_each() -> None:
    def bytes_of(rows: int) -> int:
        tracemalloc.start()
        table = RowTable(Pairs())
        for sequence in range(rows):
            table[sequence] = sequence
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert len(table) == rows
        return size

    assert bytes_of(20 * PAGE) < 20 * PAGE * 16


def test_a_row_that_is_not_in_a_packed_page_is_missing() -> None:
    table = RowTable(Pairs())
    for sequence in range(1, PACKED_FROM_ROWS + 5):
        table[sequence] = sequence

    del table[3]

    assert 3 not in table
    assert table.take(3) is None
    with pytest.raises(KeyError):
        table[3]
    with pytest.raises(KeyError):
        del table[3]
    table[3] = 7
    assert table[3] == 7
    assert len(table) == PACKED_FROM_ROWS + 4
