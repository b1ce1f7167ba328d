"""Forms that ask for nothing that their page can do: nothing is done, and none of them is said to be saved."""

from __future__ import annotations

import pytest

from console.fake_site import OPERATORS
from console.furnished import furnished_site
from console.pages import act, browser

QUEUE = f"/queues/{OPERATORS}/orders"


@pytest.mark.parametrize(
    "path",
    [
        *("/keys", "/users/ada", "/accounts", "/alerts", f"/alerts/{OPERATORS}/orders-old"),
        *(f"{QUEUE}/groups", f"{QUEUE}/push"),
    ],
)
def test_act_that_a_page_does_not_know_is_refused(path: str) -> None:
    site = furnished_site()

    reply = act(browser(site, OPERATORS), path, act="nope", name="x", group="x", kind="email", target="x")

    assert reply.status == 400
    assert "This page does not know the act &#39;nope&#39;." in reply.text
    assert [one.name for one in site.api.asked if one.api != "sign-in"] == []


@pytest.mark.parametrize("kind", ["nope", "FIFO"])
def test_queue_of_a_kind_that_there_is_not_is_not_made(kind: str) -> None:
    site = furnished_site()

    page = act(browser(site, OPERATORS), "/queues/new", QueueName="new", kind=kind)

    assert (page.status, "A queue is standard or fifo" in page.text) == (422, True)
    assert "CreateQueue" not in [one.name for one in site.api.asked]


def test_address_of_a_form_leads_to_its_page_where_it_is_loaded_again() -> None:
    client = browser(furnished_site(), OPERATORS)

    assert client.get("/keys").headers["location"] == "/users"
    for form in ("receive", "send", "delete"):
        assert client.get(f"{QUEUE}/messages/{form}").headers["location"] == f"{QUEUE}/messages"
    assert client.get("/sign-out").status == 405
