"""Accounts, for operators: made, disabled, enabled again, and deleted by those who type their names."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from quaymaster.console.site import APIError
from quaymaster.console.web.page_calls import Page, PageCall, unknown_act
from quaymaster.console.web.pages.attribute_forms import refused_field

ACCOUNTS: Final = "/admin/v1/accounts"


async def show(call: PageCall) -> Response:
    """List accounts."""
    return await _list(call, {}, 200)


async def _list(call: PageCall, errors: dict[str, str], status: int) -> Response:
    query = {"limit": "100"}
    if call.query("next"):
        query["next_token"] = call.query("next")
    found = await call.api.admin(call.caller, "GET", ACCOUNTS, query=query)
    return call.render(
        "accounts.html",
        status,
        accounts=found.get("accounts", []),
        next_token=found.get("next_token"),
        errors=errors,
        given={name: call.field(name) for name in ("name", "account_id")},
    )


async def act(call: PageCall) -> Response:
    """Make an account; its first key is shown once. Or change the state of one."""
    account = call.field("account")
    match call.field("act"):
        case "enable" | "disable" as change:
            await call.api.admin(call.caller, "POST", f"{ACCOUNTS}/{quote(account, safe='')}/{change}")
            return call.redirect("/accounts", done="saved")
        case "delete":
            if call.field("confirm").strip() != account:
                return await _list(call, {"": "That is not the id of the account. Nothing was changed."}, 422)
            await call.api.admin(call.caller, "DELETE", f"{ACCOUNTS}/{quote(account, safe='')}")
            return call.redirect("/accounts", done="account-deleted")
        case act if act:
            return unknown_act(call)
    body = {name: call.field(name).strip() for name in ("name", "account_id") if call.field(name).strip()}
    try:
        made = await call.api.admin(call.caller, "POST", ACCOUNTS, body=body)
    except APIError as error:
        return await _list(call, refused_field(error, ("name", "account_id")), 422)
    return call.render(
        "new_key.html", key=made, what=f"account {made.get('account_id', '')}", back="/accounts"
    )


PAGES = (Page("/accounts", show, act, operators=True),)
