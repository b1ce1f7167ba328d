"""Accounts, users, keys, usage and audit."""

from __future__ import annotations

from console.fake_site import CUSTOMERS, OPERATORS, FakeSite
from console.furnished import furnished_site
from console.pages import act, browser
from quaymaster.console.site import APIError


def changes(site: FakeSite) -> list[str]:
    return [
        asked.name for asked in site.api.asked if asked.api == "admin" and not asked.name.startswith("GET ")
    ]


def test_accounts_are_for_operators() -> None:
    site = furnished_site()
    client = browser(site, CUSTOMERS)

    assert client.get("/accounts").status == 403
    assert act(client, "/accounts", name="new").status == 403
    assert changes(site) == []


def test_account_is_made_with_its_secret_shown_once_and_deleted_by_its_id() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)

    made = act(client, "/accounts", name="new", account_id="")
    act(client, "/accounts", act="disable", account=CUSTOMERS)
    refused = act(client, "/accounts", act="delete", account=CUSTOMERS, confirm="1")
    act(client, "/accounts", act="delete", account=CUSTOMERS, confirm=CUSTOMERS)

    assert "new-secret" in made.text
    assert made.headers["cache-control"] == "no-store"
    assert refused.status == 422
    assert changes(site) == [
        "POST /admin/v1/accounts",
        f"POST /admin/v1/accounts/{CUSTOMERS}/disable",
        f"DELETE /admin/v1/accounts/{CUSTOMERS}",
    ]


def test_user_is_made_changed_and_deleted_by_its_name() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)

    assert "new-secret" in act(client, "/users", name="new").text
    assert "This identity may do everything with all queues" in client.get("/users/ada").text
    act(client, "/users/ada", act="policy", policy_name="p", policy="{}")
    act(client, "/users/ada", act="remove-policy", policy_name="p")
    act(client, "/users/ada", act="password", password="long enough")
    act(client, "/users/ada", act="revoke")
    assert "new-secret" in act(client, "/users/ada", act="key").text
    assert act(client, "/users/ada", act="delete", confirm="bob").status == 422
    act(client, "/users/ada", act="delete", confirm="ada")

    assert changes(site) == [
        "POST /admin/v1/users",
        "POST /admin/v1/users/ada/policy",
        "DELETE /admin/v1/users/ada/policy",
        "POST /admin/v1/users/ada/password",
        "POST /admin/v1/users/ada/revoke-sessions",
        "POST /admin/v1/keys",
        "DELETE /admin/v1/users/ada",
    ]


def test_error_of_a_policy_is_at_its_field_and_its_text_stays() -> None:
    site = furnished_site()

    def refuse(_: object) -> object:
        raise APIError("MalformedPolicyDocument", "The policy has no Statement.", 400, "policy")

    site.api.answers["POST /admin/v1/users/ada/policy"] = refuse

    page = act(browser(site, OPERATORS), "/users/ada", act="policy", policy_name="p", policy="{kept}")

    assert page.status == 422
    assert "{kept}" in page.text
    assert 'aria-describedby="policy-hint"' in page.text


def test_key_is_deleted_only_by_those_who_type_its_id() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)

    assert act(client, "/keys", act="delete", access_key_id="AKIAROOT", confirm="AKIA").status == 422
    act(client, "/keys", act="delete", access_key_id="AKIAROOT", confirm="AKIAROOT")
    act(client, "/keys", act="disable", access_key_id="AKIAROOT")
    assert "new-secret" in act(client, "/keys", act="rotate", access_key_id="AKIAROOT").text
    assert "new-secret" in act(client, "/keys", act="create").text

    assert changes(site) == [
        "DELETE /admin/v1/keys/AKIAROOT",
        "POST /admin/v1/keys/AKIAROOT/disable",
        "POST /admin/v1/keys/AKIAROOT/rotate",
        "POST /admin/v1/keys",
    ]


def test_usage_is_of_the_last_thirty_days_and_of_the_customers_own_account() -> None:
    site = furnished_site()
    client = browser(site, CUSTOMERS)

    page = client.get(f"/usage?account={OPERATORS}").text

    assert "12,400,000" in page
    assert "There are more rows" in page
    assert "Cost of these rows" in page
    assert "1.26 EUR" in page
    assert "0.1725" in page
    assert site.api.asked[-1].given == {"from": "2026-10-20", "to": "2026-11-18", "account_id": CUSTOMERS}


def test_pages_of_a_pipeline_that_is_not_there_or_still_reads_say_so() -> None:
    for status, code in ((400, "AWS.SimpleQueueService.UnsupportedOperation"), (503, "ServiceUnavailable")):
        site = furnished_site()

        def refuse(_: object, code: str = code, status: int = status) -> object:
            raise APIError(code, "The reason is told.", status)

        site.api.answers["GET /admin/v1/usage"] = site.api.answers["GET /admin/v1/audit"] = refuse
        client = browser(site, OPERATORS)
        for path in ("/usage", "/audit"):
            page = client.get(path)
            assert page.status == 200
            assert "The reason is told." in page.text


def test_usage_whose_costs_are_not_known_says_why_and_shows_no_zero() -> None:
    site = furnished_site()
    usage = site.api.answers["GET /admin/v1/usage"]({})
    rows = [{**row, "cost": None} for row in usage["rows"]]
    site.api.answers["GET /admin/v1/usage"] = lambda _: {
        "rows": rows,
        "has_more": False,
        "currency": None,
        "why_no_costs": "The price book has no price for 2026-11-14.",
    }

    page = browser(site, OPERATORS).get("/usage").text

    assert "Costs are not known: The price book has no price for 2026-11-14." in page
    assert "EUR" not in page
    assert "<dt>Cost" not in page


def test_audit_is_searched() -> None:
    site = furnished_site()

    page = browser(site, OPERATORS).get("/audit?principal=ada&action=PurgeQueue&from=").text

    assert site.api.asked[-1].given == {"principal": "ada", "action": "PurgeQueue", "account_id": OPERATORS}
    assert "2026-11-18 09:06:40" in page
    assert "! AccessDenied" in page
    assert "There are older events" in page
