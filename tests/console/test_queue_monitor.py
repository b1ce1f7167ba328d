"""How a console comes to know queues: by asking all leaders, exact over whatever happens to them and to it."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from console.monitored import GIB, NOON_MS, NOON_S, Monitored, definition, monitored, until
from quaymaster.core.monitoring.minutes import VALUES
from quaymaster.core.monitoring.periods import Span
from quaymaster.core.values.queue_metrics import QueueMetricsRow
from quaymaster.history.files import HistoryFiles, NoRoom

ORDERS = definition(7, "orders")


def row(queue_id: int = 7, *, epoch: int = 1, **values: int) -> QueueMetricsRow:
    return QueueMetricsRow(queue_id, 0, 0, epoch, **values)


async def kept(found: Monitored, value: str, *, minutes: int = 10) -> Mapping[int, int | None]:
    """Return a value of the queue by the minutes since noon."""
    place = VALUES.index(value)
    rows = await found.monitor.history.read([7], Span(NOON_S, NOON_S + 60 * minutes, 60))
    return {
        (one.at_s - NOON_S) // 60: None if (summary := one.summaries[place]) is None else summary.total
        for one in rows
    }


def test_the_history_has_what_the_leaders_counted(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, ORDERS) as found:
            found.leaders.set(row(sent=100, visible=1))
            await found.look(NOON_MS + 5_000)
            for number in range(1, 25):
                found.leaders.set(row(sent=100 + number, received=number // 2, visible=number))
                await found.look(NOON_MS + 5_000 + 5_000 * number)

            assert await kept(found, "sent") == {0: 11, 1: 12}
            assert await kept(found, "received") == {0: 5, 1: 6}
            assert await kept(found, "visible") == {0: 11, 1: 23}

    asyncio.run(run())


def test_a_console_that_was_away_spreads_what_happened_meanwhile(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, ORDERS) as found:
            found.leaders.set(row(sent=100, visible=1))
            await found.look(NOON_MS + 60_000)
            store = found.store
        async with monitored(tmp_path, store=store, now_ms=NOON_MS + 299_000) as found:
            found.leaders.set(row(sent=140, visible=3))
            await found.look(NOON_MS + 300_000)

            assert await kept(found, "sent") == {0: 0, 1: 10, 2: 10, 3: 10, 4: 10}
            assert await kept(found, "visible") == {0: 1, 1: None, 2: None, 3: None, 4: 3}

    asyncio.run(run())


def test_a_new_leader_makes_no_negative_rate(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, ORDERS) as found:
            found.leaders.set(row(sent=100, received=90))
            await found.look(NOON_MS + 5_000)
            found.leaders.set(row(epoch=2, sent=103, received=1))
            await found.look(NOON_MS + 10_000)
            rates = found.monitor.rates(7)
            await found.look(NOON_MS + 60_000)

            assert (rates.sent_per_s, rates.received_per_s) == (3 / 5, 1 / 5)
            assert await kept(found, "received") == {0: 1}

    asyncio.run(run())


def test_what_a_silent_leader_does_not_tell_is_stale_and_not_zero(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, ORDERS) as found:
            found.leaders.set(row(sent=100, visible=5))
            await found.look(NOON_MS + 5_000)
            found.leaders.silent.add("b1")
            await found.look(NOON_MS + 60_000)
            queue = found.monitor.booked(7)
            assert queue is not None
            value_ms = found.monitor.value_ms(queue)
            found.leaders.silent.clear()
            found.leaders.set(row(sent=104, visible=9))
            await found.look(NOON_MS + 65_000)
            await found.look(NOON_MS + 120_000)

            assert value_ms == NOON_MS + 5_000
            assert await kept(found, "visible") == {0: None, 1: 9}
            assert await kept(found, "sent") == {0: 2, 1: 2}

    asyncio.run(run())


def test_many_queues_come_in_pages_and_count_from_what_they_have(tmp_path: Path) -> None:
    queues = [definition(number, f"q{number}") for number in range(1, 51)]

    async def run() -> None:
        async with monitored(tmp_path, *queues) as found:
            found.leaders.page_rows = 7
            for queue in queues:
                found.leaders.set(row(queue.queue_id, sent=1_000, visible=1))
            await found.look(NOON_MS + 5_000)
            await found.look(NOON_MS + 60_000)

            assert len(found.monitor.book.queues) == 50
            assert await kept(found, "sent") == {0: 0}

    asyncio.run(run())


def test_watched_queues_are_asked_for_by_name_until_nobody_looks(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, ORDERS) as found:
            found.leaders.set(row(sent=100, visible=5))
            await found.look(NOON_MS + 5_000)
            found.monitor.watch(7)
            found.leaders.set(row(sent=110, visible=6))
            await found.monitor.look_at_watched(NOON_MS + 6_000)
            queue = found.monitor.booked(7)

            assert queue is not None
            assert queue.rows[0].visible == 6
            assert found.monitor.value_ms(queue) == NOON_MS + 6_000
            assert found.monitor.rates(7).sent_per_s == 10.0
            assert found.leaders.asked[-1].queue_ids == (7,)

            await found.monitor.look_at_watched(NOON_MS + 7_000)
            assert found.monitor.rates(7).sent_per_s == 0.0

            found.leaders.set(row(sent=111, visible=7))
            found.leaders.silent.add("b1")
            await found.monitor.look_at_watched(NOON_MS + 8_000)
            assert found.monitor.value_ms(queue) == NOON_MS + 7_000

            asked = len(found.leaders.asked)
            await found.monitor.look_at_watched(NOON_MS + 60_000)
            assert len(found.leaders.asked) == asked

    asyncio.run(run())


def test_counts_are_kept_while_nothing_can_be_written_and_spread_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with monitored(tmp_path, ORDERS) as found:
            found.leaders.set(row(sent=100, visible=1))
            await found.look(NOON_MS + 5_000)

            def fail(closing: object) -> None:
                raise NoRoom("1 byte is free, and 2 are left to messages")

            monkeypatch.setattr(found.files, "write", fail)
            for number in (1, 2):
                found.leaders.set(row(sent=100 + 10 * number, visible=1))
                await found.look(NOON_MS + 60_000 * number)
            notices = found.monitor.notices()
            lag_s = found.monitor.lag_s
            monkeypatch.undo()
            found.leaders.set(row(sent=124, visible=1))
            await found.look(NOON_MS + 180_000)

            sent = await kept(found, "sent")
            assert sum(value or 0 for value in sent.values()) == 24
            assert set(sent) == {0, 1, 2}
            assert notices == ["The history is not written: 1 byte is free, and 2 are left to messages."]
            assert lag_s == 120.0
            assert found.monitor.notices() == []

    asyncio.run(run())


def test_a_queue_that_was_deleted_is_found_by_the_name_that_it_had(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, ORDERS) as found:
            found.leaders.set(row(sent=100, visible=1))
            await found.look(NOON_MS + 60_000)

            assert await found.monitor.history.ids_of("000000000000", "orders") == [7]

    asyncio.run(run())


def test_a_monitor_asks_by_itself(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, ORDERS) as found:
            found.leaders.set(row(sent=100, visible=1))
            found.now_ms = NOON_MS + 4_999
            asking = asyncio.create_task(found.monitor.run())
            await until(lambda: found.monitor.round > 0)
            found.monitor.watch(7)
            found.now_ms = NOON_MS + 5_999
            await until(lambda: any(request.queue_ids == (7,) for request in found.leaders.asked))
            asking.cancel()

            assert found.monitor.booked(7) is not None
            assert found.monitor.epochs() == {0: 1}

    asyncio.run(run())


def test_minutes_that_nobody_looked_at_are_gaps(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, ORDERS) as found:
            found.leaders.set(row(sent=100, visible=1))
            await found.look(NOON_MS + 5_000)
            found.leaders.set(row(sent=160, visible=2))
            await found.look(NOON_MS + 3_600_000)

            sent = await kept(found, "sent", minutes=60)
            assert sum(value or 0 for value in sent.values()) == 60
            assert len(sent) == 60
            visible = await kept(found, "visible", minutes=60)
            assert {minute for minute, value in visible.items() if value is not None} == {59}

    asyncio.run(run())


def test_the_history_has_its_files_where_it_is_told(tmp_path: Path) -> None:
    files = HistoryFiles(tmp_path / "history", bytes_max=GIB)
    files.open()
    files.close()

    assert (tmp_path / "history" / "state.sqlite").exists()
