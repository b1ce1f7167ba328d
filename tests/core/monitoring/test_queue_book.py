"""What a book of queues makes of the pages of leaders: minutes, exact over restarts, gaps and new leaders."""

from collections.abc import Iterable

from quaymaster.core.monitoring.minutes import COUNTERS, VALUES, Minute
from quaymaster.core.monitoring.queue_book import ACTIVE_MS, QueueBook
from quaymaster.core.values.queue_metrics import (
    GonePartition,
    JournalCursor,
    QueueMetricsPage,
    QueueMetricsRow,
    encode_cursor,
)

NOON_S = 1_800_000_000 // 3_600 * 3_600
NOON_MS = NOON_S * 1000
OLD_MS = NOON_MS - 90 * 86_400_000


def row(
    queue_id: int = 7, *, partition: int = 0, journal: int = 0, epoch: int = 1, **values: int
) -> QueueMetricsRow:
    return QueueMetricsRow(queue_id, partition, journal, epoch, **values)


def page(
    *rows: QueueMetricsRow,
    journals: Iterable[int] = (0,),
    gone: Iterable[GonePartition] = (),
    has_more: bool = False,
) -> QueueMetricsPage:
    cursor = encode_cursor({journal: JournalCursor(1, 5) for journal in journals})
    return QueueMetricsPage("b1", list(rows), cursor, list(gone), has_more)


def book(created_ms: int | None = OLD_MS) -> QueueBook:
    return QueueBook(lambda queue_id: created_ms)


def named(minute: Minute) -> dict[str, int | None]:
    return dict(zip(VALUES, minute.values, strict=True))


def known() -> QueueBook:
    """Return a book that knows an old queue at noon."""
    found = book()
    found.take(page(row(sent=1_000, visible=2, oldest_sent_ms=NOON_MS - 5_000)), NOON_MS)
    list(found.close(NOON_S - 60))
    return found


def test_a_queue_that_is_only_new_to_the_book_has_no_counts() -> None:
    found = book()

    told = found.take(page(row(sent=1_000, visible=2, oldest_sent_ms=NOON_MS - 5_500)), NOON_MS)

    [minute] = found.close(NOON_S - 60)
    assert told == {7}
    assert (minute.queue_id, minute.at_s) == (7, NOON_S - 60)
    assert named(minute)["sent"] == 0
    assert named(minute)["visible"] == 2
    assert named(minute)["oldest_age_s"] == 5


def test_a_young_queue_counts_from_its_creation() -> None:
    found = book(created_ms=NOON_MS - 100_000)

    found.take(page(row(sent=3, visible=3)), NOON_MS)

    minutes = list(found.close(NOON_S - 60))
    assert sum(named(minute)["sent"] or 0 for minute in minutes) == 3
    assert [minute.at_s for minute in minutes if named(minute)["visible"] is not None] == [NOON_S - 60]


def test_what_comes_after_the_first_listing_is_new_and_counts_from_nothing() -> None:
    found = known()

    found.take(page(row(8, sent=5, visible=5)), NOON_MS + 5_000)
    found.take(page(), NOON_MS + 60_000)

    sent = {minute.queue_id: named(minute)["sent"] for minute in found.close(NOON_S)}
    assert sent == {7: 0, 8: 5}


def test_a_listing_in_pages_is_one_listing() -> None:
    found = book()

    found.take(page(row(7, sent=10), has_more=True), NOON_MS)
    found.take(page(row(8, sent=10, visible=1)), NOON_MS)

    assert all(named(minute)["sent"] == 0 for minute in found.close(NOON_S - 60))


def test_counts_are_of_the_minute_in_which_they_were_told() -> None:
    found = known()

    found.take(page(row(sent=1_004, received=1)), NOON_MS + 30_000)
    found.take(page(row(sent=1_005, received=2)), NOON_MS + 60_000)
    [first] = found.close(NOON_S)
    found.take(page(), NOON_MS + 120_000)
    [second] = found.close(NOON_S + 60)

    assert (named(first)["sent"], named(first)["received"]) == (5, 2)
    assert (named(second)["sent"], named(second)["received"]) == (0, 0)


def test_partitions_are_added_up() -> None:
    found = known()

    parts = (row(sent=1_001, visible=3), row(partition=1, sent=4, visible=4, oldest_sent_ms=NOON_MS + 1_000))
    found.take(page(*parts), NOON_MS + 60_000)

    [minute] = found.close(NOON_S)
    assert named(minute)["sent"] == 5
    assert named(minute)["visible"] == 7
    assert named(minute)["oldest_age_s"] == 59


def test_a_leader_of_before_is_not_believed() -> None:
    found = known()
    found.take(page(row(epoch=2, sent=1_010)), NOON_MS + 5_000)

    assert found.take(page(row(epoch=1, sent=1_002)), NOON_MS + 6_000) == set()
    assert found.queues[7].rows[0].sent == 1_010


def test_what_is_told_again_is_nothing_new() -> None:
    found = known()
    list(found.changed)
    found.changed.clear()

    assert found.take(page(found.queues[7].rows[0]), NOON_MS + 5_000) == set()
    assert not found.changed


def test_after_a_gap_counts_are_spread_and_gauges_stay_missing() -> None:
    found = known()
    for number in range(3):
        assert [named(one)["visible"] for one in found.close(NOON_S + 60 * number)] == []

    found.take(page(row(sent=1_008, visible=9)), NOON_MS + 240_000)
    minutes = list(found.close(NOON_S + 180))

    by_time = {minute.at_s - NOON_S: named(minute) for minute in minutes}
    assert {at_s: values["sent"] for at_s, values in by_time.items()} == {0: 2, 60: 2, 120: 2, 180: 2}
    assert {at_s: values["visible"] for at_s, values in by_time.items()} == {
        0: None,
        60: None,
        120: None,
        180: 9,
    }


def test_counts_of_two_gaps_in_one_minute_are_added() -> None:
    found = known()
    found.take(page(row(8, journal=1, sent=4), journals=(1,)), NOON_MS)
    list(found.close(NOON_S))

    found.take(page(row(sent=1_002, received=1)), NOON_MS + 119_000)
    found.seen_ms[0] = NOON_MS
    found.take(page(row(sent=1_004, received=1)), NOON_MS + 119_500)

    late = [minute for minute in found.close(NOON_S + 60) if minute.at_s == NOON_S]
    assert [named(minute)["sent"] for minute in late] == [2]


def test_a_queue_one_of_whose_leaders_is_silent_has_counts_and_no_gauges() -> None:
    found = known()
    found.take(page(row(partition=1, journal=1, sent=9), journals=(1,)), NOON_MS)

    found.take(page(row(sent=1_006)), NOON_MS + 60_000)

    [minute] = found.close(NOON_S)
    assert named(minute)["sent"] == 6
    assert named(minute)["visible"] is None


def test_a_queue_that_nobody_touches_has_minutes_for_six_hours() -> None:
    found = known()
    found.take(page(row(sent=1_001)), NOON_MS + 1_000)
    ends = (NOON_MS + 60_000, NOON_MS + ACTIVE_MS, NOON_MS + ACTIVE_MS + 120_000)

    written = []
    for end_ms in ends:
        found.take(page(), end_ms)
        written.append(len(list(found.close(end_ms // 1000 - 60))))

    assert written == [1, 1, 0]


def test_a_queue_that_is_gone_has_its_last_counts_and_is_forgotten() -> None:
    found = known()
    found.take(page(row(sent=1_003)), NOON_MS + 10_000)

    told = found.take(page(gone=[GonePartition(7, 0, 0), GonePartition(9, 0, 0)]), NOON_MS + 20_000)

    [minute] = found.close(NOON_S)
    assert told == {7}
    assert named(minute)["sent"] == 3
    assert named(minute)["visible"] is None
    assert not found.queues


def test_a_partition_that_is_told_gone_by_another_journal_stays() -> None:
    found = known()

    assert found.take(page(gone=[GonePartition(7, 0, 5), GonePartition(7, 3, 0)]), NOON_MS + 1_000) == set()
    assert len(found.queues[7].rows) == 1


def test_a_book_goes_on_where_the_one_before_it_ended() -> None:
    before = known()
    after = book()
    after.restore([*before.queues[7].rows, row(partition=1, sent=5)], before.seen_ms)

    after.take(page(row(sent=1_004), row(partition=1, sent=6)), NOON_MS + 120_000)

    minutes = list(after.close(NOON_S + 60))
    assert {minute.at_s - NOON_S for minute in minutes} == {0, 60}
    assert sum(named(minute)["sent"] or 0 for minute in minutes) == 5


def test_values_are_as_old_as_the_leader_that_was_heard_last_of_all() -> None:
    found = known()

    assert found.value_ms(found.queues[7]) == NOON_MS
    found.take(page(row(partition=1, journal=1), journals=(1,), has_more=True), NOON_MS + 5_000)
    assert found.value_ms(found.queues[7]) is None
    found.take(page(journals=(1,)), NOON_MS + 6_000)
    assert found.value_ms(found.queues[7]) == NOON_MS


def test_the_age_of_what_is_young_by_another_clock_is_not_negative() -> None:
    found = known()
    found.take(page(row(visible=1, sent=1_001, oldest_sent_ms=NOON_MS + 90_000)), NOON_MS + 60_000)

    [minute] = found.close(NOON_S)
    assert named(minute)["oldest_age_s"] == 0


def test_a_new_epoch_alone_makes_no_queue_active() -> None:
    found = book()
    found.take(page(row(sent=10)), NOON_MS)

    found.take(page(row(epoch=2, sent=10)), NOON_MS + 60_000)

    assert list(found.close(NOON_S)) == []


def test_what_was_counted_lately_and_ever_is_told_of_each_queue() -> None:
    found = known()

    found.take(page(row(sent=1_003, received=2), row(8, sent=5)), NOON_MS + 5_000)
    found.take(page(row(epoch=2, sent=1_004, received=1)), NOON_MS + 10_000)

    place = COUNTERS.index("received")
    assert {queue_id: counts[0] for queue_id, counts in found.recent.items()} == {7: 4}
    assert (found.queues[7].totals[0], found.queues[7].totals[place]) == (4, 3)
    assert found.queues[8].totals[0] == 5
