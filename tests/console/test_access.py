"""What pages show of the console's memory is what the API lets their user ask for."""

from __future__ import annotations

import asyncio

import pytest

from console.fake_site import CUSTOMERS, OPERATORS, FakeSite, signed_in
from console.furnished import furnished_site
from console.pages import browser
from quaymaster.console.site import APIError, Caller
from quaymaster.console.web.access import (
    KEPT_S,
    PERMISSIONS,
    SESSIONS_MAX,
    UNANSWERED_S,
    Access,
    Question,
)
from quaymaster.console.web.live import Hub, LivePage, Topic
from quaymaster.console.web.pages.topics import renderer
from quaymaster.console.web.templating import Templates
from quaymaster.console.web.views.queue_list import QueueOrders
from quaymaster.protocol.admin.own import PERMISSIONS_MAX

ENDED = APIError("InvalidClientTokenId", "The security token is invalid.", 403)
AWAY = APIError("ServiceUnavailable", "The service cannot be reached.", 503)
LIST = Question("sqs:ListQueues", OPERATORS)
SHARED_PAGES = ("/", "/queues", "/queues?q=o", "/alerts")
LIVE = "/admin/v1/live?kind="


def limited(*allowed: str) -> FakeSite:
    """Return a site whose users have policies that allow these actions alone."""
    site = furnished_site()
    site.api.allowed = frozenset(allowed)
    return site


@pytest.mark.parametrize(("account", "queue"), [(OPERATORS, "orders"), (CUSTOMERS, "webhooks")])
def test_user_without_policies_sees_nothing_of_the_consoles_memory(account: str, queue: str) -> None:
    client = browser(limited(), account)

    pages = (*SHARED_PAGES, f"/queues/{account}/{queue}", f"/queues/{account}/{queue}?range=7d")
    live = (f"queue&account={account}&name={queue}", "overview", "alerts", "queues")
    for path in (*pages, *(LIVE + kind for kind in live)):
        reply = client.get(path)
        assert (reply.status, "no " in reply.text) == (403, True), path
        assert queue not in reply.text.replace(f"{account}/{queue}", ""), path


def test_operator_without_policies_sees_neither_the_cell_nor_other_accounts() -> None:
    client = browser(limited(), OPERATORS)

    paths = ("/cell", "/cell/broker/b1", f"{LIVE}cell", f"/queues/{CUSTOMERS}/webhooks")
    for path in (*paths, *(f"{one}?account={CUSTOMERS}" for one in ("/", "/queues", "/alerts"))):
        assert client.get(path).status == 403, path


def test_tabs_of_a_queue_have_its_values_only_for_those_who_may_see_them() -> None:
    path = f"/queues/{OPERATORS}/orders-dlq/purge"
    blind, seeing = limited(), limited(f"sqs:GetQueueAttributes {OPERATORS}/orders-dlq")

    assert "<strong>12</strong>" not in browser(blind, OPERATORS).get(path).text
    assert "<strong>12</strong>" in browser(seeing, OPERATORS).get(path).text


def test_queue_is_seen_by_the_permission_to_read_its_attributes_and_its_charts_are_not() -> None:
    site = limited(f"sqs:GetQueueAttributes {OPERATORS}/orders")
    client = browser(site, OPERATORS)

    page = client.get(f"/queues/{OPERATORS}/orders").text

    assert "48,213" in page
    assert "Charts are not shown: no quaymaster:GetQueueHistory" in page
    assert "<figure" not in page
    assert client.get(f"/queues/{OPERATORS}/emails").status == 403


def test_charts_are_seen_by_the_permission_to_read_metrics() -> None:
    page = browser(limited("quaymaster:GetQueueHistory"), OPERATORS).get(f"/queues/{CUSTOMERS}/webhooks").text

    assert "<figure" in page
    assert "5,118" not in page
    assert "Values are not shown: no sqs:GetQueueAttributes" in page


def test_list_has_names_alone_in_their_order_for_those_who_may_only_list_queues() -> None:
    client = browser(limited("sqs:ListQueues"), CUSTOMERS)

    page = client.get("/queues?sort=-visible").text

    assert page.index("search-index") < page.index("webhooks")
    assert "Values are not shown: no quaymaster:ListQueues" in page
    for shown in ("5,118", "431", "data-live"):
        assert shown not in page
    assert client.get(f"{LIVE}queues").status == 403


@pytest.mark.parametrize("permission", ["quaymaster:ListQueues", "cloudwatch:GetMetricData"])
def test_list_has_values_for_those_who_may_ask_for_them(permission: str) -> None:
    page = browser(limited(permission), CUSTOMERS).get("/queues").text

    assert "5,118" in page
    assert "data-live" in page


def test_operator_who_may_not_see_each_account_sees_the_own_one_and_those_that_are_allowed() -> None:
    site = limited(f"quaymaster:ListQueues {OPERATORS}/")
    client = browser(site, OPERATORS)

    assert "orders" in client.get("/queues").text
    assert "webhooks" not in client.get("/queues").text
    assert client.get(f"/queues?account={CUSTOMERS}").status == 403
    site = limited("quaymaster:ListQueues")
    assert "webhooks" in browser(site, OPERATORS).get("/queues").text


def test_overview_has_the_parts_that_its_user_may_see() -> None:
    charts = browser(limited("quaymaster:ListQueues"), OPERATORS).get("/").text
    assert "Messages per second" in charts
    assert "Alerts are not shown: no cloudwatch:DescribeAlarms" in charts
    for hidden in ("orders-old", "JournalLeaderless", "Nothing needs attention"):
        assert hidden not in charts

    alerts = browser(limited("cloudwatch:DescribeAlarms"), OPERATORS).get("/").text
    assert "orders-old" in alerts
    assert "JournalLeaderless" in browser(furnished_site(), OPERATORS).get("/").text
    for hidden in ("Messages per second", "JournalLeaderless"):
        assert hidden not in alerts.partition("Charts are not shown")[0]


def test_cell_has_decisions_only_for_those_who_may_list_them() -> None:
    assert "Decisions" not in browser(limited("quaymaster:GetCell"), OPERATORS).get("/cell").text
    allowed = limited("quaymaster:GetCell", "quaymaster:ListDecisions")
    assert "Decisions" in browser(allowed, OPERATORS).get("/cell").text


def test_session_that_has_ended_reads_no_page_from_memory() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)
    site.api.failure = ENDED

    assert client.get(f"{LIVE}overview", accept="text/event-stream").status == 401
    for path in (*SHARED_PAGES, "/cell", f"/queues/{OPERATORS}/orders", "/alerts/new"):
        client = browser(site, OPERATORS)
        reply = client.get(path)
        assert (reply.status, reply.headers["location"]) == (303, "/sign-in?done=ended"), path
        assert client.get(path).headers["location"].startswith("/sign-in"), "the cookie is gone"


def test_session_that_was_not_known_lately_sees_nothing_while_no_front_end_answers() -> None:
    site = furnished_site()
    site.api.failure = AWAY
    client = browser(site, OPERATORS)

    assert client.get("/cell").status == 503
    assert client.post("/sign-out", {}).status == 403


def test_front_end_of_an_older_version_is_named_as_what_is_in_the_way() -> None:
    site = furnished_site()
    site.api.failure = APIError("UnsupportedOperation", "There is no POST /admin/v1/me/permissions.", 404)

    reply = browser(site, OPERATORS).get("/queues")

    assert (reply.status, "an older version" in reply.text) == (503, True)


def caller(account: str = OPERATORS, address: str = "10.0.0.1") -> Caller:
    return Caller(signed_in(account).credentials, address)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_permissions_are_asked_for_once_in_a_while_and_for_many_pages_at_once() -> None:
    async def scenario() -> None:
        site, clock = limited("sqs:ListQueues"), Clock()
        access = Access(site.api, clock)

        found = await asyncio.gather(*(access.refusals(caller(), [LIST]) for _ in range(1_000)))
        await access.check_session(caller())
        assert found == [[""]] * 1_000
        assert site.api.permission_calls == 1

        clock.now_s = KEPT_S
        await access.check_session(caller())
        await access.refusals(caller(), [LIST])
        assert site.api.permission_calls == 2, "what pages looked at is asked for together with the session"
        site.api.allowed = frozenset()
        clock.now_s = 2 * KEPT_S
        assert await access.refusals(caller(), [LIST]) != [""]
        await access.refusals(caller(address="10.0.0.2"), [LIST])
        assert site.api.permission_calls == 4, "policies can ask for an address"

    asyncio.run(scenario())


def test_session_that_no_policy_limits_is_asked_for_no_permission() -> None:
    async def scenario() -> None:
        site, clock = furnished_site(), Clock()
        access = Access(site.api, clock)
        for clock.now_s in range(0, 100, 10):
            assert await access.refusals(caller(), [LIST]) == [""]
        assert site.api.permission_calls == 1

        site.api.failure = ENDED
        with pytest.raises(APIError, match="InvalidClientTokenId"):
            await access.check_session(caller())

    asyncio.run(scenario())


def test_permissions_of_many_accounts_are_asked_for_in_several_calls() -> None:
    async def scenario() -> None:
        site = limited("sqs:ListQueues")
        asked = [Question("sqs:ListQueues", f"{number:012}") for number in range(PERMISSIONS_MAX + 1)]

        assert await Access(site.api).refusals(caller(), asked) == [""] * len(asked)
        assert site.api.permission_calls == 2

    asyncio.run(scenario())


def test_what_was_known_counts_for_minutes_while_no_front_end_answers() -> None:
    async def scenario() -> None:
        site, clock = limited("sqs:ListQueues"), Clock()
        access = Access(site.api, clock)
        await access.refusals(caller(), [LIST])
        site.api.failure = AWAY

        for clock.now_s in (KEPT_S, KEPT_S + 1, UNANSWERED_S - 1):
            assert await access.refusals(caller(), [LIST]) == [""]
        assert site.api.permission_calls == 3, "a front end that does not answer is not asked for each page"
        with pytest.raises(APIError, match="ServiceUnavailable"):
            await access.refusals(caller(), [LIST._replace(name="other")])
        clock.now_s = UNANSWERED_S + KEPT_S
        with pytest.raises(APIError, match="ServiceUnavailable"):
            await access.check_session(caller())
        site.api.failure = None
        clock.now_s += KEPT_S
        await access.check_session(caller())

    asyncio.run(scenario())


def test_sessions_not_seen_for_longest_are_forgotten() -> None:
    async def scenario() -> None:
        site = furnished_site()
        access = Access(site.api)
        for number in range(SESSIONS_MAX + 1):
            await access.check_session(caller(address=str(number)))
        await access.check_session(caller(address="1"))
        assert site.api.permission_calls == SESSIONS_MAX + 1
        await access.check_session(caller(address="0"))
        assert site.api.permission_calls == SESSIONS_MAX + 2

    asyncio.run(scenario())


def test_live_page_is_loaded_again_when_its_user_may_not_see_it_any_more() -> None:
    is_seen = {"kept": True, "refused": False}

    async def scenario() -> None:
        site = furnished_site()
        hub = Hub(site, renderer(site, Templates(), QueueOrders()), 10)
        pages = {}
        for name in is_seen:

            async def seen(name: str = name) -> bool:
                return is_seen[name]

            pages[name] = LivePage(Topic("queues", None), signed_in(OPERATORS).credentials, seen)
            hub.join(pages[name])
        await hub.reload_refused()

        assert [event async for event in pages["refused"].events()] == ["event: reload\ndata: {}\n\n"]
        assert not pages["kept"].is_ended

    asyncio.run(scenario())


def test_permissions_are_asked_of_the_admin_api() -> None:
    assert PERMISSIONS == "/admin/v1/me/permissions"
