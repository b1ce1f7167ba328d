"""Signing in and out, and what protects it."""

from __future__ import annotations

from base64 import urlsafe_b64decode

import pytest
from harness.page_clients import ASGIClient

from console.fake_site import CUSTOMERS, KEY, LINK_TOKEN, NOW_MS, OPERATORS, FakeSite
from console.pages import act, browser, csrf, sign_in
from quaymaster.console.web.app import WebOptions, create_app
from quaymaster.console.web.cookies import SESSION_COOKIE, VISIT_COOKIE, Cookies, Session, Visit
from quaymaster.console.web.guards import BadConsoleURL, Doors
from quaymaster.net.http.forwarded import TrustedProxies
from quaymaster.settings.addresses import parse_networks


def test_access_key_signs_in_and_its_secret_is_in_no_page_and_no_readable_cookie() -> None:
    client = browser(FakeSite())

    reply = sign_in(client, "AKOPERATOR")

    assert (reply.status, reply.headers["location"]) == (303, "/")
    assert "secret" not in client.cookies[SESSION_COOKIE]
    assert b"secret" not in urlsafe_b64decode(client.cookies[SESSION_COOKIE] + "===")
    page = client.get("/")
    assert page.status == 200
    assert "temporary secret" not in page.text
    assert "session token" not in page.text


def test_password_and_link_sign_in_too() -> None:
    for fields in (
        {"by": "password", "account": CUSTOMERS, "user": "ada", "password": "pass"},
        {"by": "link", "token": LINK_TOKEN},
    ):
        client = browser(FakeSite())

        reply = client.post("/sign-in", {"csrf": csrf(client.get("/sign-in")), **fields})

        assert reply.status == 303
        assert client.get("/").status == 200


def test_session_that_only_looks_is_asked_for_and_says_so() -> None:
    client = browser(FakeSite())
    fields = {
        "csrf": csrf(client.get("/sign-in")),
        "by": "key",
        "access_key_id": "AKOPERATOR",
        "secret": "secret",
    }

    client.post("/sign-in", {**fields, "read_only": "1"})

    assert "only looks" in client.get("/").text


def test_session_cookie_is_kept_from_scripts_and_other_sites() -> None:
    client = browser(FakeSite(), url="https://console.example.com", host="console.example.com")

    sign_in(client, "AKOPERATOR", origin="https://console.example.com")

    cookie = next(line for line in client.set_cookies if line.startswith(f"__Host-{SESSION_COOKIE}="))
    for word in ("Secure", "HttpOnly", "SameSite=strict", "Path=/"):
        assert word in cookie
    assert "Domain" not in cookie


def test_loopback_cookie_has_no_secure_prefix_for_browsers_would_drop_it() -> None:
    client = browser(FakeSite())

    sign_in(client, "AKOPERATOR")

    assert any(line.startswith(f"{SESSION_COOKIE}=") and "HttpOnly" in line for line in client.set_cookies)


def test_plain_url_of_another_machine_is_refused() -> None:
    for url in ("http://console.example.com", "https://", "https://a.example/path", "ftp://localhost"):
        with pytest.raises(BadConsoleURL):
            Doors(url)
    assert Doors("http://localhost:9326").knows("localhost:9326")


def test_wrong_secret_is_refused_without_telling_what_is_wrong() -> None:
    client = browser(FakeSite())

    reply = sign_in(client, "AKOPERATOR", "wrong")

    assert reply.status == 403
    assert "no such access key, or the secret" in reply.text
    assert SESSION_COOKIE not in client.cookies


def test_sixth_failure_within_a_minute_from_an_address_is_not_even_tried() -> None:
    site = FakeSite()
    client = browser(site)
    for number in range(5):
        assert sign_in(client, f"AK{number}", "wrong").status == 403
    tried = len(site.api.asked)

    reply = sign_in(client, "AKOPERATOR")

    assert reply.status == 429
    assert len(site.api.asked) == tried


def test_name_that_failed_twenty_times_is_refused_from_each_address() -> None:
    site = FakeSite()
    app = create_app(site, WebOptions(KEY))
    for number in range(20):
        assert sign_in(ASGIClient(app, address=f"10.0.0.{number}"), "AKOPERATOR", "wrong").status == 403

    reply = sign_in(ASGIClient(app, address="10.0.1.1"), "AKOPERATOR")

    assert reply.status == 429
    assert sign_in(ASGIClient(app, address="10.0.1.1"), "AKCUSTOMER").status == 303


def test_sign_in_without_the_token_of_its_form_is_refused() -> None:
    site = FakeSite()
    client = browser(site)
    client.get("/sign-in")

    for token in ("", "guessed"):
        fields = {"csrf": token, "by": "key", "access_key_id": "AKOPERATOR", "secret": "secret"}
        assert client.post("/sign-in", fields).status == 403

    assert site.api.asked == []


def test_page_for_signed_in_users_leads_to_sign_in_and_back() -> None:
    client = browser(FakeSite())

    reply = client.get("/?account=1")

    assert (reply.status, reply.headers["location"]) == (303, "/sign-in?next=/%3Faccount%3D1")
    fields = {
        "csrf": csrf(client.get("/sign-in")),
        "by": "key",
        "access_key_id": "AKOPERATOR",
        "secret": "secret",
    }
    assert client.post("/sign-in", {**fields, "next": "/?account=1"}).headers["location"] == "/?account=1"


def test_sign_in_never_leads_to_another_site() -> None:
    for there in ("https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)"):
        client = browser(FakeSite())
        fields = {
            "csrf": csrf(client.get("/sign-in")),
            "by": "key",
            "access_key_id": "AKOPERATOR",
            "secret": "secret",
        }

        reply = client.post("/sign-in", {**fields, "next": there})

        assert reply.headers["location"] == "/"


def test_link_from_another_site_is_loaded_again_so_that_the_strict_cookie_comes_along() -> None:
    reply = browser(FakeSite()).get("/", sec_fetch_site="cross-site", sec_fetch_mode="navigate")

    assert reply.status == 200
    assert 'http-equiv="refresh"' in reply.text
    assert "set-cookie" not in reply.headers


def test_sign_out_deletes_the_cookie_and_everywhere_ends_all_sessions() -> None:
    site = FakeSite()
    client = browser(site, CUSTOMERS)

    act(client, "/sign-out")

    assert SESSION_COOKIE not in client.cookies
    assert client.get("/").status == 303
    sign_in(client, "AKCUSTOMER")
    assert act(client, "/sign-out", everywhere="1").headers["location"] == "/sign-in?done=everywhere"
    assert site.api.asked[-1].name.startswith("POST ")


def test_failures_behind_a_trusted_proxy_are_counted_by_the_browsers_own_address() -> None:
    proxies = TrustedProxies(parse_networks("127.0.0.1"))
    app = create_app(FakeSite(), WebOptions(KEY, trusted_proxies=proxies))
    for number in range(6):
        client = ASGIClient(app)
        assert (
            sign_in(client, f"AK{number}", "wrong", x_forwarded_for="6.6.6.6, 10.0.0.1").status
            == (403, 429)[number > 4]
        )

    assert sign_in(ASGIClient(app), "AKOPERATOR", x_forwarded_for="10.0.0.2").status == 303
    other = ASGIClient(app, address="10.0.0.3")
    assert sign_in(other, "AKOPERATOR", x_forwarded_for="10.0.0.1").status == 303


def test_session_ends_with_its_credentials() -> None:
    site = FakeSite()
    client = browser(site, OPERATORS)

    site.at_ms = NOW_MS + 43_200_001

    assert client.get("/").status == 303


def test_cookie_of_another_key_another_purpose_or_changed_is_as_good_as_none() -> None:
    cookies = Cookies(KEY)
    visit = Visit("token")
    value = cookies.seal(VISIT_COOKIE, visit)

    assert cookies.open(VISIT_COOKIE, value, Visit) == visit
    assert Cookies(bytes(32)).open(VISIT_COOKIE, value, Visit) is None
    assert cookies.open(SESSION_COOKIE, value, Session) is None
    changed = value[:-6] + ("A" if value[-6] != "A" else "B") + value[-5:]
    for bad in (None, "", "§", "AAAA", value[:20], changed, "A" * 5_000):
        assert cookies.open(VISIT_COOKIE, bad, Visit) is None


def test_session_of_the_longest_names_fits_into_a_cookie() -> None:
    long = Session("c" * 22, "A" * 20, "s" * 40, "t" * 1_400, "1" * 12, "a" * 180, "n" * 128, False, NOW_MS)

    assert len(Cookies(KEY).seal(SESSION_COOKIE, long)) < 3_900
    assert "t" * 10 not in repr(long)
