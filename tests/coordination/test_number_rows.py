"""Rows that are numbers."""

from __future__ import annotations

import pytest

from quaymaster.coordination.interface import KeyValue, StoreUnusable
from quaymaster.coordination.number_rows import encode_number, number_of


@pytest.mark.parametrize("number", [0, 17, 2**64])
def test_a_number_is_read_as_it_was_written(number: int) -> None:
    assert number_of(KeyValue("/ids/queue", encode_number(number), 1)) == number


def test_no_row_is_nothing_yet() -> None:
    assert number_of(None) == 0


@pytest.mark.parametrize("damaged", [b"", b"-1", b"x"])
def test_a_damaged_row_is_told_by_its_key(damaged: bytes) -> None:
    with pytest.raises(StoreUnusable, match="/ids/queue in the metadata store is damaged"):
        number_of(KeyValue("/ids/queue", damaged, 1))
