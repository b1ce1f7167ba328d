"""Operators' alerts on their way to Alertmanager."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web
from core.alerts.support import an_alert
from harness.web_servers import web_server
from msgspec.structs import replace

from console.alerts.support import ACCOUNT, REGION, SHOP, AlertWorld, PlayedSeries, run_alerts, until
from quaymaster.console.alerts.alert_book import AlertBook
from quaymaster.console.alerts.alertmanager import AlertmanagerFeed
from quaymaster.core.values.errors import NotNow
from quaymaster.net.outbound.client import OutboundClient


class Alertmanager:
    """A server that takes alerts, and answers with a status."""

    def __init__(self) -> None:
        self.status = 200
        self.posts: list[list[dict[str, Any]]] = []

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Take what was posted."""
        assert (request.method, request.path) == ("POST", "/am/api/v2/alerts")
        self.posts.append(json.loads(await request.read()))
        return web.Response(status=self.status)

    def names(self) -> list[str]:
        """Return the names of the alerts that were posted last."""
        return [alert["labels"]["alertname"] for alert in self.posts[-1]]


def feed_of(
    book: AlertBook, series: PlayedSeries, client: OutboundClient, url: str, **options: Any
) -> AlertmanagerFeed:
    """Return a feed of the console that leads."""
    defaults: dict[str, Any] = {"is_leading": lambda: True}
    return AlertmanagerFeed(
        book,
        series,
        client,
        url=url,
        cell="eu1",
        region=REGION,
        operators_account=ACCOUNT,
        **{**defaults, **options},
    )


def test_operators_alerts_are_told_again_and_again_and_those_of_customers_never() -> None:
    async def scenario(world: AlertWorld) -> None:
        manager, series, client = Alertmanager(), PlayedSeries(), OutboundClient(rules=None)
        async with web_server(manager.handle) as server, world.book() as book:
            await book.put(an_alert())
            await book.put(an_alert(name="silent", is_enabled=False))
            await book.put(replace(an_alert(name="theirs"), account_id=SHOP))
            for account, name in ((ACCOUNT, "orders-old"), (ACCOUNT, "silent"), (SHOP, "theirs")):
                await book.set_state(account, name, "ALARM", "by hand")
            feed = feed_of(book, series, client, f"{server.url}/am/")
            for _ in range(12):
                series.pass_minute(orders=4_000.0)
            await feed.tell()
            await feed.tell()

            assert manager.names() == ["QuaymasterWatchdog", "QuaymasterConsumersFallBehind", "orders-old"]
            assert manager.posts[0] == manager.posts[1]
            watchdog, built_in, own = manager.posts[0]
            assert built_in["labels"] == {
                "alertname": "QuaymasterConsumersFallBehind",
                "severity": "ticket",
                "cell": "eu1",
                "account": ACCOUNT,
            }
            assert "Queues: orders." in built_in["annotations"]["summary"]
            assert built_in["annotations"]["runbook_url"] == "docs/runbooks/ConsumersFallBehind.md"
            assert own["annotations"] == {"summary": "by hand"}
            assert own["startsAt"] == "2023-11-14T22:14:00.000+00:00"
            assert own["endsAt"] == watchdog["endsAt"] == "2023-11-14T22:19:00.000+00:00"
            assert feed.samples()[0].labels == ("alertmanager", "delivered")
            [(alert, status)] = feed.firing_built_in()
            assert (alert.account_id, status.state) == (ACCOUNT, "ALARM")

            series.pass_minute(orders=1.0)
            await feed.tell()
            assert manager.names() == ["QuaymasterWatchdog", "orders-old"]
        await client.close()

    run_alerts(scenario)


def test_an_alertmanager_that_is_away_or_refuses_is_tried_again() -> None:
    async def scenario(world: AlertWorld) -> None:
        manager, series, client = Alertmanager(), PlayedSeries(), OutboundClient(rules=None)
        series.fails = NotNow("history is away")
        async with world.book() as book:
            async with web_server(manager.handle) as server:
                url = f"{server.url}/am"
                manager.status = 400
                feed = feed_of(book, series, client, url)
                series.values["orders"] = []
                await feed.tell()
            await feed.tell()
            assert manager.names() == ["QuaymasterWatchdog"]
            assert {sample.labels[1]: sample.value for sample in feed.samples()} == {"failed": 1, "retry": 1}
        await client.close()

    run_alerts(scenario)


def test_a_console_that_stands_by_tells_nothing() -> None:
    async def scenario(world: AlertWorld) -> None:
        manager, series, client = Alertmanager(), PlayedSeries(), OutboundClient(rules=None)
        leads = [False]
        looked = []

        def is_leading() -> bool:
            looked.append(1)
            return leads[0]

        async with web_server(manager.handle) as server, world.book() as book:
            feed = feed_of(book, series, client, f"{server.url}/am", is_leading=is_leading, interval_s=0.01)
            task = asyncio.create_task(feed.run())
            await until(lambda: len(looked) > 3)
            assert manager.posts == []
            leads[0] = True
            await until(lambda: manager.posts)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await client.close()

    run_alerts(scenario)
