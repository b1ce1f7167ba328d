"""Which version of each form a cell's format stands for."""

from __future__ import annotations

import pytest

from quaymaster.core.values.errors import UnsupportedOperation
from quaymaster.core.values.formats import FORMAT_MAX, FORMAT_MIN, CellFormat, version_in, why_unreadable


@pytest.mark.parametrize(("number", "version"), [(1, 1), (2, 1), (3, 2), (4, 2)])
def test_what_is_written_is_the_last_version_that_came_with_the_format_or_before(
    number: int, version: int
) -> None:
    assert version_in({1: 1, 3: 2}, number) == version


def test_a_server_that_is_no_cell_writes_the_newest_format() -> None:
    assert CellFormat().number == FORMAT_MAX


def test_a_format_only_grows() -> None:
    cell_format = CellFormat(FORMAT_MIN)

    cell_format.raise_to(FORMAT_MAX)
    cell_format.raise_to(FORMAT_MIN)

    assert cell_format.number == FORMAT_MAX
    assert cell_format.version_of({1: 7}) == 7


def test_what_older_programs_do_not_know_is_refused_until_the_cell_is_upgraded() -> None:
    cell_format = CellFormat(FORMAT_MIN)
    with pytest.raises(
        UnsupportedOperation, match=r"^Boats sail once all processes .* `quaymaster cell upgrade`"
    ):
        cell_format.require({1: 0, FORMAT_MAX: 1}, "Boats sail")

    cell_format.raise_to(FORMAT_MAX)

    cell_format.require({1: 0, FORMAT_MAX: 1}, "Boats sail")


def test_formats_that_cannot_be_read_are_named() -> None:
    assert why_unreadable(FORMAT_MAX) is None
    assert "Start a newer version" in str(why_unreadable(FORMAT_MAX + 1))
    assert "Start an older version" in str(why_unreadable(FORMAT_MIN - 1))
