"""A restored cell: every journal has one broker, and an epoch above all that it ever had."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.cell.restored_cell import assign_journals, restored_configuration
from quaymaster.core.values.journal_configuration import JournalConfiguration


def test_journals_are_spread_over_brokers_by_their_bytes() -> None:
    assigned = assign_journals({0: 10, 1: 700, 2: 300, 3: 350}, ["b2", "b1"])

    assert assigned == {1: "b1", 3: "b2", 2: "b2", 0: "b2"}


def test_empty_journals_are_spread_as_well() -> None:
    assert set(assign_journals({0: 0, 1: 0, 2: 0}, ["b1", "b2", "b3"]).values()) == {"b1", "b2", "b3"}


@given(
    st.dictionaries(st.integers(0, 20), st.integers(0, 1 << 40), max_size=20),
    st.lists(st.text(min_size=1), min_size=1, unique=True),
)
def test_every_journal_has_a_broker_that_is_there(sizes: dict[int, int], brokers: list[str]) -> None:
    assigned = assign_journals(sizes, brokers)

    assert assigned.keys() == sizes.keys()
    assert set(assigned.values()) <= set(brokers)
    assert assigned == assign_journals(dict(reversed(sizes.items())), brokers[::-1])


def test_restored_journal_is_led_by_its_one_member_in_a_higher_epoch() -> None:
    known = JournalConfiguration(9, "x@1", ("x@1", "y@1"), ("x@1",), False)

    assert restored_configuration("b@2", led_epoch=7, known=known) == JournalConfiguration(
        10, "b@2", ("b@2",), ("b@2",), False
    )
    assert restored_configuration("b@2", led_epoch=12, known=known).epoch == 13
    assert restored_configuration("b@2", led_epoch=7, known=None).epoch == 8
