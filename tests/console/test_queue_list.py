"""Search, order and steps of the list of queues."""

from __future__ import annotations

from console.fake_site import NOW_MS, OPERATORS, FakeSite
from console.pages import browser
from quaymaster.console.site import QueueNow
from quaymaster.console.web.views.depth_bar import bar_length, depth_bar
from quaymaster.console.web.views.queue_list import SHOWN_MAX, QueueList, QueueOrders, parse_list, sort_queues


def queue(name: str, visible: int | None, *, oldest_sent_ms: int | None = None) -> QueueNow:
    return QueueNow(
        OPERATORS,
        name,
        f"id-{name}",
        at_ms=NOW_MS,
        visible=visible,
        in_flight=0,
        delayed=0,
        oldest_sent_ms=oldest_sent_ms,
    )


def names(
    asked: str, orders: QueueOrders, queues: list[QueueNow], now_ms: int = NOW_MS, search: str = ""
) -> str:
    return "".join(one.name for one in find(asked, orders, queues, now_ms, search).rows)


def find(asked: str, orders: QueueOrders, queues: list[QueueNow], now_ms: int, search: str = "") -> QueueList:
    newest = {(one.account, one.name): one for one in queues}
    return orders.find(
        parse_list(None, search, asked, ""),
        lambda account: queues,
        now_ms,
        lambda account, name: newest.get((account, name)),
    )


def test_queues_are_sorted_by_each_column_and_unknown_values_are_last_either_way() -> None:
    queues = [queue("b", 1), queue("a", None), queue("c", 3)]

    assert [one.name for one in sort_queues(queues, "visible", is_descending=True)] == ["c", "b", "a"]
    assert [one.name for one in sort_queues(queues, "visible", is_descending=False)] == ["b", "c", "a"]
    assert [one.name for one in sort_queues(queues, "name", is_descending=False)] == ["a", "b", "c"]


def test_queue_with_the_oldest_message_is_first_and_empty_ones_are_last() -> None:
    queues = [
        queue("new", 1, oldest_sent_ms=NOW_MS - 1),
        queue("none", 0, oldest_sent_ms=0),
        queue("old", 1, oldest_sent_ms=5),
    ]

    assert [one.name for one in sort_queues(queues, "oldest", is_descending=True)] == ["old", "new", "none"]


def test_order_stays_for_some_seconds_so_that_a_list_can_be_read() -> None:
    orders = QueueOrders()
    first, then = [queue("a", 2), queue("b", 1)], [queue("a", 0), queue("b", 1)]
    assert names("-visible", orders, first) == "ab"

    assert names("-visible", orders, then, NOW_MS + 4_999) == "ab"
    assert names("-visible", orders, then, NOW_MS + 5_000) == "ba"


def test_rows_of_a_kept_order_have_the_newest_values() -> None:
    orders = QueueOrders()
    first, then = [queue("a", 2), queue("b", 1)], [queue("a", 0), queue("b", 9)]
    names("-visible", orders, first)

    found = find("-visible", orders, then, NOW_MS + 1)

    assert [(one.name, one.visible) for one in found.rows] == [("a", 0), ("b", 9)]


def test_list_of_all_queues_is_asked_for_only_when_an_order_is_too_old() -> None:
    orders = QueueOrders()
    asked: list[str | None] = []

    def all_queues(account: str | None) -> list[QueueNow]:
        asked.append(account)
        return [queue("a", 1)]

    for since_ms in (0, 1_000, 4_999, 5_000, 6_000):
        found = orders.find(parse_list(OPERATORS, "", "", ""), all_queues, NOW_MS + since_ms, lambda *_: None)
        assert found.total == 1

    assert asked == [OPERATORS, OPERATORS]


def test_orders_that_are_kept_are_bounded() -> None:
    orders = QueueOrders()

    for number in range(100):
        orders.find(
            parse_list(str(number), "", "", ""), lambda account: [queue("a", 1)], NOW_MS, lambda *_: None
        )

    assert len(orders._orders) <= 32


def test_order_that_is_too_old_keeps_no_values_in_memory() -> None:
    orders = QueueOrders()
    old = [queue("a", 1)]
    find("name", orders, old, NOW_MS)

    find("-visible", orders, [queue("a", 2)], NOW_MS + 5_000)

    assert all(row is not old[0] for order in orders._orders.values() for row in order.rows)


def test_search_ignores_case_and_nonsense_in_a_url_counts_as_absent() -> None:
    assert (
        names("nonsense", QueueOrders(), [queue("Orders", 1), queue("mails", 2)], search=" RDER ") == "Orders"
    )
    assert parse_list(None, "", "", "99999999").shown == 100
    assert parse_list(None, "", "", "5000").shown == SHOWN_MAX
    assert parse_list(None, "", "", "-1").shown == 100


def test_hundred_rows_are_shown_and_a_hundred_more_are_added_at_a_step() -> None:
    site = FakeSite()
    site.listed = [queue(f"queue-{number:04}", 10_000 - number) for number in range(250)]
    client = browser(site, OPERATORS)

    page = client.get("/queues").text
    more = client.get("/queues?shown=200", hx_target="more", hx_request="true").text

    assert page.count("<tr id=") == 101
    assert "queue-0099" in page
    assert "queue-0100" not in page
    assert "queue-0100" in more
    assert "queue-0199" in more
    assert "queue-0099" not in more
    assert "<html" not in more


def test_value_that_is_not_known_is_a_dash_and_never_a_zero() -> None:
    site = FakeSite()
    site.listed = [QueueNow(OPERATORS, "new", "id-new")]
    client = browser(site, OPERATORS)

    for page in (client.get("/queues").text, client.get(f"/queues/{OPERATORS}/new").text):
        assert "not known" in page
        assert ">–<" in page
        assert ">0<" not in page
        assert ">0/s<" not in page


def test_value_older_than_fifteen_seconds_is_shown_as_stale() -> None:
    site = FakeSite()
    site.listed = [queue("a", 1)]
    client = browser(site, OPERATORS)

    site.at_ms = NOW_MS + 15_000
    assert "tag stale" not in client.get("/queues").text
    site.at_ms = NOW_MS + 16_000
    assert "tag stale" in client.get("/queues").text


def test_depth_bar_shows_each_part_and_one_message_among_millions_of_others_queues() -> None:
    assert 0 < bar_length(1) < bar_length(10) < bar_length(10_000_000) == bar_length(10**9) == 1
    assert bar_length(0) == 0
    bar = depth_bar(10, 5, 5)
    assert 'aria-label="10 visible, 5 in flight, 5 delayed"' in bar
    assert bar.count("<rect") == 4
    assert "not known" in depth_bar(None, 1, 1)


def test_bar_has_no_inline_style_which_the_pages_policy_forbids() -> None:
    assert "style" not in depth_bar(10, 5, 5)
