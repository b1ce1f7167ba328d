"""Live pages: one rendering a topic and second, slow pages skip, revoked sessions end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from harness.waiting import PATIENCE_S

from console.fake_site import CUSTOMERS, NOW_MS, OPERATORS, FakeSite, signed_in
from console.furnished import SCRIPT, furnished_site
from console.pages import browser
from quaymaster.console.site import AlertNow, QueueNow
from quaymaster.console.web.live import Fragments, Hub, LivePage, TooManyLivePages, Topic
from quaymaster.console.web.pages.topics import renderer
from quaymaster.console.web.templating import Templates
from quaymaster.console.web.views.queue_list import QueueOrders

CREDENTIALS = signed_in(OPERATORS).credentials
QUEUES = Topic("queues", None, ("", "-visible", "100", ""))


async def next_event(events: AsyncIterator[str]) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        event = await anext(events)
    return json.loads(event.partition("data: ")[2])


def hub_of(site: FakeSite, pages_max: int = 10) -> Hub:
    return Hub(site, renderer(site, Templates(), QueueOrders()), pages_max)


def test_topic_of_a_thousand_pages_is_rendered_once() -> None:
    rendered = []

    async def render(topic: Topic) -> Fragments:
        rendered.append(topic)
        return {"a": "1"}

    async def scenario() -> None:
        hub = Hub(FakeSite(), render, 1_000)
        pages = [LivePage(QUEUES, CREDENTIALS) for _ in range(1_000)]
        for page in pages:
            hub.join(page)
        await hub.render_once()

        assert rendered == [QUEUES]
        assert await next_event(pages[-1].events()) == {"a": "1"}

    asyncio.run(scenario())


def test_page_gets_only_what_is_new_and_a_slow_one_the_newest_of_it() -> None:
    site = FakeSite()
    one = QueueNow(OPERATORS, "a", "1", at_ms=NOW_MS, visible=1, in_flight=0, delayed=0)
    other = QueueNow(OPERATORS, "b", "2", at_ms=NOW_MS, visible=0, in_flight=0, delayed=0)

    async def scenario() -> None:
        hub = hub_of(site)
        page = LivePage(QUEUES, CREDENTIALS)
        hub.join(page)
        events = page.events()
        site.listed = [one, other]
        await hub.render_once()
        assert set(await next_event(events)) == {"q1", "q2"}

        for visible in (2, 3, 4):
            site.listed = [QueueNow(OPERATORS, "a", "1", False, False, 0, NOW_MS, visible, 0, 0), other]
            await hub.render_once()
        news = await next_event(events)

        assert set(news) == {"q1"}
        assert ">4<" in news["q1"]

    asyncio.run(scenario())


def test_page_that_joins_later_gets_all_that_is_shown() -> None:
    site = furnished_site()

    async def scenario() -> None:
        hub = hub_of(site)
        hub.join(LivePage(QUEUES, CREDENTIALS))
        await hub.render_once()
        late = LivePage(QUEUES, CREDENTIALS)
        hub.join(late)

        assert len(await next_event(late.events())) == len(site.listed)

    asyncio.run(scenario())


def test_page_of_a_revoked_session_ends_and_others_stay() -> None:
    site = FakeSite()

    async def scenario() -> None:
        hub = hub_of(site)
        revoked, kept = LivePage(QUEUES, CREDENTIALS), LivePage(QUEUES, signed_in(CUSTOMERS).credentials)
        hub.join(revoked)
        hub.join(kept)
        site.ended.add(CREDENTIALS)
        await hub.end_revoked()

        events = [event async for event in revoked.events()]
        assert events == ["event: ended\ndata: {}\n\n"]
        assert not kept.is_ended

    asyncio.run(scenario())


def test_more_live_pages_than_a_setting_allows_are_refused() -> None:
    async def scenario() -> None:
        hub = hub_of(FakeSite(), pages_max=1)
        page = LivePage(QUEUES, CREDENTIALS)
        hub.join(page)
        with pytest.raises(TooManyLivePages):
            hub.join(LivePage(QUEUES, CREDENTIALS))
        hub.leave(page)
        hub.join(LivePage(QUEUES, CREDENTIALS))

    asyncio.run(scenario())
    assert browser(FakeSite(), OPERATORS, live_pages_max=0).get("/admin/v1/live?kind=overview").status == 503


def test_topic_that_cannot_be_rendered_stops_no_other() -> None:
    async def render(topic: Topic) -> Fragments:
        if topic.kind == "bad":
            raise RuntimeError("planted")
        return {"a": "1"}

    async def scenario() -> None:
        hub = Hub(FakeSite(), render, 10)
        hub.join(LivePage(Topic("bad", None), CREDENTIALS))
        page = LivePage(QUEUES, CREDENTIALS)
        hub.join(page)
        await hub.render_once()

        assert await next_event(page.events()) == {"a": "1"}

    asyncio.run(scenario())


def test_hub_that_stops_ends_all_pages_and_takes_no_more() -> None:
    async def scenario() -> None:
        hub = hub_of(furnished_site())
        page = LivePage(QUEUES, CREDENTIALS)
        hub.join(page)
        task = asyncio.create_task(hub.run())
        await next_event(page.events())
        task.cancel()
        await asyncio.wait([task])

        assert page.is_ended
        with pytest.raises(TooManyLivePages):
            hub.join(LivePage(QUEUES, CREDENTIALS))

    asyncio.run(scenario())


def test_customer_follows_no_topic_of_another_account() -> None:
    client = browser(furnished_site(), CUSTOMERS)

    assert client.get(f"/admin/v1/live?kind=queue&account={OPERATORS}&name=orders").status == 404
    assert client.get("/admin/v1/live?kind=cell").status == 404
    assert client.get("/admin/v1/live?kind=none").status == 404


def test_live_stream_without_a_session_is_refused() -> None:
    assert browser(FakeSite()).get("/admin/v1/live?kind=overview", accept="text/event-stream").status == 401


def test_script_in_what_an_alert_says_is_text_on_live_pages_too() -> None:
    site = furnished_site()
    site.alerts_now = [AlertNow(OPERATORS, SCRIPT, "ALARM", NOW_MS, SCRIPT, SCRIPT, SCRIPT)]

    async def scenario() -> None:
        rendered = await renderer(site, Templates(), QueueOrders())(Topic("alerts", None))
        assert "<script" not in rendered["alerts"]
        assert "<img" not in rendered["alerts"]
        assert "&lt;script&gt;" in rendered["alerts"]

    asyncio.run(scenario())


def test_each_kind_of_topic_is_rendered() -> None:
    site = furnished_site()

    async def scenario() -> None:
        render = renderer(site, Templates(), QueueOrders())
        assert set(await render(Topic("overview", None, ("alerts", "cell")))) == {"overview"}
        assert set(await render(Topic("alerts", None))) == {"alerts"}
        assert set(await render(Topic("cell", None))) == {"cell"}
        for _ in range(2):
            assert set(await render(Topic("queue", OPERATORS, ("orders", "1h", "values", "charts")))) == {
                "facts",
                "charts",
            }
        assert await render(Topic("queue", OPERATORS, ("none", "1h"))) == {}

    asyncio.run(scenario())
    assert site.watched == [f"{OPERATORS}/orders"] * 2
