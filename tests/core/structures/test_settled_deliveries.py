"""Which deliveries finished their messages lately."""

from __future__ import annotations

from quaymaster.core.structures.ids.settled_deliveries import BY_DELETE, SETTLED_WINDOW_MS, SettledDeliveries

NOW_MS = 1_000_000


def test_only_the_delivery_that_finished_a_message_is_known() -> None:
    settled = SettledDeliveries()

    settled.note(7, 2, 0, NOW_MS)

    assert settled.find(7, 2, 0, NOW_MS) == BY_DELETE
    for other in ((7, 1, 0), (7, 3, 0), (8, 2, 0), (7, 2, 1)):
        assert settled.find(*other, NOW_MS) is None


def test_what_finished_a_message_is_told() -> None:
    settled = SettledDeliveries()

    settled.note(7, 2, 0, NOW_MS, by=1 << 63)

    assert settled.find(7, 2, 0, NOW_MS) == 1 << 63


def test_a_delivery_is_forgotten_after_five_minutes() -> None:
    settled = SettledDeliveries()
    settled.note(7, 2, 0, NOW_MS)

    assert settled.find(7, 2, 0, NOW_MS + SETTLED_WINDOW_MS - 1) == BY_DELETE
    assert settled.find(7, 2, 0, NOW_MS + SETTLED_WINDOW_MS) is None


def test_the_oldest_go_where_there_are_too_many() -> None:
    settled = SettledDeliveries(entries_max=10)

    for sequence in range(20_000):
        settled.note(sequence, 1, 0, NOW_MS)

    assert settled.find(0, 1, 0, NOW_MS) is None
    assert settled.find(19_999, 1, 0, NOW_MS) == BY_DELETE


def test_a_snapshot_has_them_all() -> None:
    settled = SettledDeliveries()
    for sequence in range(5_000):
        settled.note(sequence, 1, 3, NOW_MS, by=sequence)

    loaded = SettledDeliveries.from_bytes(b"".join(settled.pieces()))

    assert loaded.find(4_999, 1, 3, NOW_MS) == 4_999
    assert loaded.content(NOW_MS) == settled.content(NOW_MS)
