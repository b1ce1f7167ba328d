"""The files of the history: exact, bounded, and never in the way."""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from quaymaster.core.monitoring.minutes import VALUES, Minute
from quaymaster.core.monitoring.periods import DAY_S, Span
from quaymaster.core.monitoring.queue_statistics import Kept, Summary
from quaymaster.core.values.queue_metrics import QueueMetricsRow
from quaymaster.history.files import Closing, HistoryFiles, NoRoom, QueueName
from quaymaster.history.layout import day_file

NOON_S = 1_800_000_000 // DAY_S * DAY_S + DAY_S // 2
GIB = 1024**3
VISIBLE, SENT = VALUES.index("visible"), VALUES.index("sent")


@pytest.fixture
def files(tmp_path: Path) -> Iterator[HistoryFiles]:
    made = HistoryFiles(tmp_path, bytes_max=GIB)
    made.open()
    yield made
    made.close()


def minute(at_s: int, queue_id: int = 7, **values: int | None) -> Minute:
    return Minute(queue_id, at_s, tuple(values.get(name) for name in VALUES))


def closing(
    at_s: int,
    *minutes: Minute,
    rows: Sequence[QueueMetricsRow] = (),
    gone: Sequence[tuple[int, int]] = (),
    queue_id: int = 7,
) -> Closing:
    by_key: dict[tuple[int, int], QueueMetricsRow | None] = {
        (row.queue_id, row.partition): row for row in rows
    }
    by_key |= dict.fromkeys(gone)
    return Closing(at_s, minutes, by_key, {0: at_s * 1000}, {queue_id: QueueName("000000000000", "orders")})


def values(kept: Sequence[Kept], place: int) -> dict[int, int | None]:
    return {
        one.at_s - NOON_S: None if (found := one.summaries[place]) is None else found.total for one in kept
    }


def test_minutes_are_read_as_they_were_written(files: HistoryFiles) -> None:
    for number in range(3):
        at_s = NOON_S + 60 * number
        files.write(closing(at_s, minute(at_s, visible=number, sent=10), minute(at_s, 8, sent=99)))

    kept = files.read([7], Span(NOON_S, NOON_S + 180, 60))

    assert values(kept, VISIBLE) == {0: 0, 60: 1, 120: 2}
    assert values(kept, SENT) == {0: 10, 60: 10, 120: 10}
    assert files.read([9], Span(NOON_S, NOON_S + 180, 60)) == []


@pytest.mark.parametrize("period_s", [60, 3_600])
def test_many_queues_are_read_at_once_each_as_by_itself_with_the_values_asked_for(
    files: HistoryFiles, period_s: int
) -> None:
    for number in range(67):
        at_s = NOON_S + 60 * number
        queues = [minute(at_s, queue_id, visible=number, sent=queue_id) for queue_id in (7, 8, 9)]
        files.write(closing(at_s, *queues[: 3 if number < 9 else 2]))
    span = Span(NOON_S, NOON_S + 7_200, period_s)

    each = files.read_each([9, 7, 4], span)
    visible = files.read_each([7], span, values=["visible"])

    assert set(each) == {7, 9}
    assert {queue_id: files.read([queue_id], span) for queue_id in each} == each
    assert [kept.at_s for kept in each[7]] == sorted(kept.at_s for kept in each[7])
    assert [kept.summaries[VISIBLE] for kept in visible[7]] == [kept.summaries[VISIBLE] for kept in each[7]]
    assert all(kept.summaries[SENT] is None for kept in visible[7])
    assert len(files.read([7, 9], span)) == len(each[7]) + len(each[9])


def test_counts_that_come_late_are_added_and_gauges_stay(files: HistoryFiles) -> None:
    files.write(closing(NOON_S, minute(NOON_S, visible=4, sent=1)))

    files.write(closing(NOON_S + 60, minute(NOON_S, sent=2), minute(NOON_S + 60, visible=None, sent=3)))

    kept = files.read([7], Span(NOON_S, NOON_S + 120, 60))
    assert values(kept, SENT) == {0: 3, 60: 3}
    assert values(kept, VISIBLE) == {0: 4, 60: None}


def test_longer_periods_have_the_sums_of_their_minutes_also_before_they_are_complete(
    files: HistoryFiles,
) -> None:
    minutes = [minute(NOON_S + 60 * number, visible=number, sent=1) for number in range(67)]
    files.write(closing(NOON_S + 60 * 30, *minutes[:31]))
    files.write(closing(NOON_S + 60 * 66, *minutes[31:]))

    hours = files.read([7], Span(NOON_S, NOON_S + 7_200, 3_600))
    assert hours[0].at_s == NOON_S
    assert hours[0].summaries[VISIBLE] == Summary(60, sum(range(60)), 0, 59)
    assert sum(value or 0 for value in values(hours, SENT).values()) == 67
    assert len(hours) == 1 + 1 + 2, "an hour, five minutes, two minutes"
    assert len(files.read([7], Span(NOON_S, NOON_S + 7_200, 3_600), has_samples=True)) == 67


def test_counts_that_come_late_are_in_longer_periods_too(files: HistoryFiles) -> None:
    files.write(closing(NOON_S + 3_540, *(minute(NOON_S + 60 * number, sent=1) for number in range(60))))

    at_s = NOON_S + 3_600
    files.write(closing(at_s, minute(NOON_S + 120, sent=40), minute(at_s, sent=1)))

    [hour] = files.read([7], Span(NOON_S, NOON_S + 3_600, 3_600))
    assert hour.summaries[SENT] == Summary(60, 100, 1, 41)


def test_a_period_whose_last_minute_was_never_written_is_there(files: HistoryFiles) -> None:
    files.write(closing(NOON_S, minute(NOON_S, visible=5)))

    files.write(closing(NOON_S + 600))

    [part] = files.read([7], Span(NOON_S, NOON_S + 300, 300))
    assert part.summaries[VISIBLE] == Summary(1, 5, 5, 5)


def test_days_have_files_of_their_own_and_are_read_together(files: HistoryFiles, tmp_path: Path) -> None:
    midnight_s = NOON_S + DAY_S // 2
    for at_s in (midnight_s - 60, midnight_s):
        files.write(closing(at_s, minute(at_s, sent=1)))

    assert len(files.read([7], Span(midnight_s - 60, midnight_s + 60, 60))) == 2
    assert day_file(tmp_path, 60, midnight_s - 60) != day_file(tmp_path, 60, midnight_s)
    assert all(day_file(tmp_path, 60, at_s).exists() for at_s in (midnight_s - 60, midnight_s))


def test_the_state_of_the_last_minute_is_known_after_a_restart(tmp_path: Path) -> None:
    first = HistoryFiles(tmp_path, bytes_max=GIB)
    first.open()
    rows = [QueueMetricsRow(7, partition, 0, 3, sent=partition) for partition in (0, 1)]
    first.write(closing(NOON_S, minute(NOON_S, sent=1), rows=rows))
    first.write(closing(NOON_S + 60, gone=[(7, 1)]))
    first.close()

    restored = HistoryFiles(tmp_path, bytes_max=GIB).open()

    assert restored.rows == [rows[0]]
    assert restored.seen_ms == {0: (NOON_S + 60) * 1000}


def test_a_queue_is_found_by_the_name_it_had(files: HistoryFiles) -> None:
    files.write(closing(NOON_S, minute(NOON_S, sent=1)))
    files.write(closing(NOON_S + 60, queue_id=9))

    assert sorted(files.ids_of("000000000000", "orders")) == [7, 9]
    assert files.ids_of("111111111111", "orders") == []


def test_a_minute_that_cannot_be_written_whole_is_not_written_at_all(
    files: HistoryFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(closing(NOON_S, minute(NOON_S, sent=1)))

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(files, "_write_state", fail)
    with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
        files.write(closing(NOON_S + 60, minute(NOON_S + 60, sent=5)))
    monkeypatch.undo()
    files.write(closing(NOON_S + 120, minute(NOON_S + 120, sent=5)))

    assert values(files.read([7], Span(NOON_S, NOON_S + 180, 60)), SENT) == {0: 1, 120: 5}


@pytest.mark.parametrize("level", [60, 300, 3_600])
def test_a_damaged_file_is_set_aside_with_a_sentence_and_writing_goes_on(
    files: HistoryFiles, tmp_path: Path, level: int
) -> None:
    files.write(closing(NOON_S, minute(NOON_S, sent=1)))
    path = day_file(tmp_path, level, NOON_S)
    path.write_bytes(b"nonsense" * 1_000)

    files.write(closing(NOON_S + 60, minute(NOON_S + 60, sent=2)))

    [told] = files.set_aside
    assert str(path) in told
    assert path.with_name(path.name + ".damaged").exists()
    assert values(files.read([7], Span(NOON_S + 60, NOON_S + 120, 60)), SENT) == {60: 2}


def test_a_damaged_file_that_is_read_is_set_aside_and_has_nothing(
    files: HistoryFiles, tmp_path: Path
) -> None:
    files.write(closing(NOON_S, minute(NOON_S, sent=1)))
    day_file(tmp_path, 60, NOON_S).write_bytes(b"nonsense" * 1_000)

    assert files.read([7], Span(NOON_S, NOON_S + 60, 60)) == []
    assert len(files.set_aside) == 1


def test_a_missing_file_is_no_problem(files: HistoryFiles, tmp_path: Path) -> None:
    files.write(closing(NOON_S, minute(NOON_S, sent=1)))
    day_file(tmp_path, 60, NOON_S).unlink()

    assert files.read([7], Span(NOON_S, NOON_S + 60, 60)) == []
    files.write(closing(NOON_S + 60, minute(NOON_S + 60, sent=2)))
    assert values(files.read([7], Span(NOON_S, NOON_S + 120, 60)), SENT) == {60: 2}


@pytest.mark.parametrize("damage", [b"nonsense" * 1_000, None])
def test_a_damaged_state_is_set_aside_at_the_start_and_while_it_is_used(
    tmp_path: Path, damage: bytes | None
) -> None:
    path = tmp_path / "state.sqlite"
    if damage is None:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
    else:
        path.write_bytes(damage)
    files = HistoryFiles(tmp_path, bytes_max=GIB)

    assert files.open().rows == []
    files.write(closing(NOON_S, minute(NOON_S, sent=1)))
    files.close()

    assert len(files.set_aside) == 1
    assert (tmp_path / "state.sqlite.damaged").exists()


def test_nothing_is_written_where_messages_need_the_room(tmp_path: Path) -> None:
    free = [50]
    files = HistoryFiles(
        tmp_path,
        bytes_max=GIB,
        free_bytes_min=lambda size: size // 10,
        free_bytes=lambda path: (1_000, free[0]),
    )
    files.open()

    with pytest.raises(NoRoom, match="50 bytes are free, and 100 are left"):
        files.write(closing(NOON_S, minute(NOON_S, sent=1)))
    free[0] = 100
    files.write(closing(NOON_S, minute(NOON_S, sent=1)))
    files.close()

    assert values(files.read([7], Span(NOON_S, NOON_S + 60, 60)), SENT) == {0: 1}


def test_what_is_too_old_is_deleted(files: HistoryFiles, tmp_path: Path) -> None:
    files.write(closing(NOON_S, minute(NOON_S, sent=1)))

    for days, left in ((14, {60, 300, 3_600}), (16, {300, 3_600}), (64, {3_600}), (456, set())):
        files.trim(NOON_S + days * DAY_S)
        assert {level for level in (60, 300, 3_600) if day_file(tmp_path, level, NOON_S).exists()} == left


def test_the_oldest_minutes_go_first_where_there_is_too_much(tmp_path: Path) -> None:
    files = HistoryFiles(tmp_path, bytes_max=GIB)
    files.open()
    for day in range(3):
        at_s = NOON_S + day * DAY_S
        for number in range(2):
            start_s = at_s + 60 * number
            queues = [minute(start_s, queue_id, sent=1_000_000) for queue_id in range(2_000)]
            files.write(closing(start_s, *queues))
    files.close()
    small = HistoryFiles(tmp_path, bytes_max=files.bytes() - 200_000)
    small.open()

    small.trim(NOON_S + 2 * DAY_S)

    left = [day_file(tmp_path, 60, NOON_S + day * DAY_S).exists() for day in range(3)]
    small.close()
    assert left == [False, False, True] or left == [False, True, True]


def test_of_one_day_the_oldest_hours_go_first_and_their_space_is_used_again(tmp_path: Path) -> None:
    files = HistoryFiles(tmp_path, bytes_max=GIB)
    files.open()
    for hour in range(3):
        at_s = NOON_S + 3_600 * hour
        files.write(closing(at_s, *(minute(at_s, queue_id, sent=1_000_000) for queue_id in range(3_000))))
    whole = files.bytes()
    files.close()
    small = HistoryFiles(tmp_path, bytes_max=whole - 20_000)
    small.open()

    small.trim(NOON_S + 7_200)
    at_s = NOON_S + 7_260
    small.write(closing(at_s, *(minute(at_s, queue_id, sent=1_000_000) for queue_id in range(3_000))))

    span = Span(NOON_S, NOON_S + 10_800, 60)
    assert [kept.at_s - NOON_S for kept in small.read([7], span)] == [3_600, 7_200, 7_260]
    assert small.bytes() <= whole
    small.close()
