"""Pages of a fake site, asked as a browser that is signed in or not."""

from __future__ import annotations

import re
from typing import Any

from harness.page_clients import ASGIClient, PageClient, PageReply

from console.fake_site import KEY, FakeSite
from quaymaster.console.web.app import WebOptions, create_app

_CSRF = re.compile(r'name="csrf" value="([\w-]+)"')


def browser(site: FakeSite, account: str | None = None, **options: Any) -> ASGIClient:
    """Return a browser at a site's pages, signed in with an access key of an account where one is given."""
    host = options.pop("host", "localhost:9326")
    client = ASGIClient(create_app(site, WebOptions(KEY, **options)), host)
    if account is not None:
        sign_in(client, "AKOPERATOR" if account == "0" * 12 else "AKCUSTOMER")
    return client


def sign_in(client: PageClient, key_id: str, secret: str = "secret", **headers: str) -> PageReply:
    """Fill in the sign-in form."""
    fields = {"csrf": csrf(client.get("/sign-in")), "by": "key", "access_key_id": key_id, "secret": secret}
    return client.post("/sign-in", fields, **headers)


def csrf(page: PageReply) -> str:
    """Return the token in the forms of a page."""
    found = _CSRF.search(page.text)
    assert found is not None, page.text
    return found[1]


def act(client: PageClient, path: str, **fields: str) -> PageReply:
    """Send a form that a page of this browser could have, with the token of its forms."""
    return client.post(path, {"csrf": csrf(client.get("/")), **fields})
