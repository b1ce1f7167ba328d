"""What each request must pass, and the headers of each reply."""

from __future__ import annotations

from harness.page_clients import ASGIClient

from console.fake_site import CUSTOMERS, KEY, OPERATORS, FakeSite
from console.pages import browser, csrf, sign_in
from quaymaster.console.web.app import WebOptions, create_app
from quaymaster.console.web.guards import is_loopback
from quaymaster.console.web.rates import Buckets


def test_foreign_host_is_misdirected() -> None:
    client = browser(FakeSite(), OPERATORS)

    for host in (
        "evil.example",
        "localhost.evil.example",
        "",
        "127.0.0.1.evil.example:9326",
        "user@localhost",
        "[::1",
    ):
        client.host = host
        assert client.get("/").status == 421
    client.host = "[::1]:9326"
    assert client.get("/sign-in").status == 200


def test_change_from_another_origin_is_refused_before_its_form_is_read() -> None:
    site = FakeSite()
    client = browser(site, CUSTOMERS)
    token = csrf(client.get("/"))

    for origin in ("", "null", "http://evil.example", "https://localhost:9326", "http://localhost:1"):
        assert client.post("/sign-out", {"csrf": token}, origin=origin).status == 403

    assert client.get("/").status == 200


def test_change_without_the_sessions_token_is_refused() -> None:
    site = FakeSite()
    client = browser(site, CUSTOMERS)
    other = browser(site, CUSTOMERS)

    for token in ("", "guessed", csrf(other.get("/"))):
        assert client.post("/sign-out", {"csrf": token}).status == 403

    assert client.get("/").status == 200


def test_each_reply_forbids_what_pages_do_not_need() -> None:
    client = browser(FakeSite())

    for target in ("/sign-in", "/static/app.js", "/none", "/"):
        headers = client.get(target).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["referrer-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff"


def test_form_without_length_or_beyond_the_largest_message_is_refused() -> None:
    client = browser(FakeSite())

    assert client.post("/sign-in", {}, content_length="x").status == 411
    assert client.post("/sign-in", {}, content_length="5000000").status == 413


def test_error_page_of_a_signed_in_user_still_leads_to_all_pages() -> None:
    inside = browser(FakeSite(), OPERATORS).get("/none")
    outside = browser(FakeSite()).get("/none")

    assert (inside.status, outside.status) == (404, 404)
    assert 'href="/queues"' in inside.text
    assert 'href="/queues"' not in outside.text


def test_session_that_asks_too_often_is_told_to_wait() -> None:
    app = create_app(FakeSite(), WebOptions(KEY))
    client = ASGIClient(app)
    sign_in(client, "AKOPERATOR")
    app.state.web.requests = Buckets(per_s=0, burst=1)

    replies = [client.get("/"), client.get("/")]

    assert [reply.status for reply in replies] == [200, 429]
    assert replies[1].headers["retry-after"] == "1"


def test_tokens_of_names_not_seen_for_long_are_forgotten() -> None:
    now_s = 0.0
    buckets = Buckets(per_s=1, burst=2, names_max=2, clock=lambda: now_s)

    assert [buckets.take("a") for _ in range(3)] == [True, True, False]
    now_s = 1.0
    assert buckets.take("a")
    buckets.take("b")
    buckets.take("c")

    assert buckets.take("a")


def test_only_names_of_this_machine_itself_are_loopback() -> None:
    assert all(
        is_loopback(name) for name in ("localhost", "localhost:1", "127.0.0.1", "127.9.9.9:2", "[::1]:3")
    )
    assert not any(
        is_loopback(name) for name in ("", "10.0.0.1", "localhost.", "0.0.0.0", "a@localhost", "[::1")
    )
