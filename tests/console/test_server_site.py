"""What pages read of a console."""

import asyncio
from pathlib import Path

from console.monitored import ACCOUNT, CUSTOMER, NOON_MS, Monitored, definition, monitored
from quaymaster.console.api_client import APIClient
from quaymaster.console.exchange import APIPlace
from quaymaster.console.metric_operations import MetricOperations
from quaymaster.console.server_site import ServerSite
from quaymaster.console.site import AlertNow, CellNow, Problem, QueueNow
from quaymaster.core.values.queue_metrics import QueueMetricsRow

QUEUES = [definition(7, "orders"), definition(8, "mail.fifo", account=CUSTOMER)]
EMPTY = CellNow("eu1", [], [], [])
ALERT = AlertNow(CUSTOMER, "old", "ALARM", NOON_MS, "mail.fifo", "age > 300", "300 is not greater")
PROBLEM = Problem("critical", "JournalLeaderless", "journal 3", NOON_MS, "/cell")


def site_of(found: Monitored) -> ServerSite:
    api = APIClient(
        APIPlace("http://127.0.0.1:1"),
        APIPlace("http://127.0.0.1:2"),
        region="us-east-1",
        now_ms=lambda: found.now_ms,
    )
    return ServerSite(
        found.monitor,
        MetricOperations(found.monitor),
        api,
        cell=lambda: EMPTY,
        alerts=lambda account: [ALERT] if account in (None, CUSTOMER) else [],
        problems=lambda: [PROBLEM],
        accounts_with_alerts=lambda: [CUSTOMER, "222222222222"],
    )


def test_queues_have_their_newest_values_each_with_its_time(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, *QUEUES) as found:
            site = site_of(found)
            assert site.queue(ACCOUNT, "orders") == QueueNow(ACCOUNT, "orders", "7")
            found.leaders.set(QueueMetricsRow(7, 0, 0, 1, visible=3, sent=10, oldest_sent_ms=NOON_MS))
            await found.look(NOON_MS + 5_000)
            found.leaders.set(QueueMetricsRow(7, 0, 0, 1, visible=4, sent=20, oldest_sent_ms=NOON_MS))
            await found.look(NOON_MS + 10_000)

            queue = site.queue(ACCOUNT, "orders")
            assert queue is not None
            assert (queue.at_ms, queue.visible, queue.sent_per_s) == (NOON_MS + 10_000, 4, 2.0)
            assert site.queue(ACCOUNT, "none") is None
            everything = site.queues(None)
            assert {one.name: one.visible for one in everything} == {"orders": 4, "mail.fifo": None}
            assert site.queues(None) is everything
            assert [one.name for one in site.queues(CUSTOMER)] == ["mail.fifo"]
            await found.look(NOON_MS + 15_000)
            assert site.queues(None) is not everything
            site.watch(ACCOUNT, "orders")
            site.watch(ACCOUNT, "none")
            await found.monitor.look_at_watched(NOON_MS + 16_000)
            assert found.leaders.asked[-1].queue_ids == (7,)

    asyncio.run(run())


def test_the_history_of_a_queue_has_gaps_where_nothing_is_known(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, *QUEUES) as found:
            site = site_of(found)
            found.leaders.set(QueueMetricsRow(7, 0, 0, 1, visible=3, sent=10))
            await found.look(NOON_MS + 60_000)

            sent, visible = await site.history(
                ACCOUNT,
                "orders",
                [
                    ("NumberOfMessagesSent", "Sum"),
                    ("ApproximateNumberOfMessagesVisible", "p50"),
                    ("NoSuchMetric", "Sum"),
                    ("NumberOfMessagesSent", "Mode"),
                ],
                NOON_MS - 60_000,
                NOON_MS + 120_000,
                60,
            )
            assert (sent.label, sent.unit) == ("NumberOfMessagesSent Sum", "Count")
            assert sent.times_ms == [NOON_MS - 60_000, NOON_MS, NOON_MS + 60_000]
            assert sent.values == [None, 0.0, None]
            assert visible.values == [None, 3.0, None]
            [long] = await site.history(
                ACCOUNT, "orders", [("NumberOfMessagesSent", "Sum")], NOON_MS - 10**10, NOON_MS, 60
            )
            assert len(long.values) == 10_000

    asyncio.run(run())


def test_the_overview_has_charts_of_all_queues_and_what_needs_attention(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, *QUEUES) as found:
            site = site_of(found)
            assert site.overview(None).at_ms is None
            for queue_id in (7, 8):
                found.leaders.set(QueueMetricsRow(queue_id, 0, 0, 1, visible=3))
            await found.look(NOON_MS + 5_000)
            for queue_id in (7, 8):
                found.leaders.set(QueueMetricsRow(queue_id, 0, 0, 1, visible=3, sent=60))
            await found.look(NOON_MS + 60_000)
            await found.look(NOON_MS + 120_000)

            whole, own, other = (site.overview(account) for account in (None, CUSTOMER, "222222222222"))
            assert whole.at_ms == NOON_MS + 120_000
            assert whole.charts[0].series[0].values == [2.0, 0.0]
            assert own.charts[0].series[0].values == [1.0, 0.0]
            assert own.charts[1].series[0].values == [3, 3]
            assert other.charts[0].series[0].values == []
            assert [problem.title for problem in whole.problems] == ["JournalLeaderless", "old"]
            assert [problem.is_alert for problem in whole.problems] == [False, True]
            assert [problem.title for problem in own.problems] == ["old"]
            assert set(site.accounts()) == {ACCOUNT, CUSTOMER, "222222222222"}
            assert other.problems == []
            assert site.cell() is EMPTY
            assert site.alerts(CUSTOMER) == [ALERT]
            assert site.now_ms() == found.now_ms
            assert await site.ended_sessions([]) == []

    asyncio.run(run())
