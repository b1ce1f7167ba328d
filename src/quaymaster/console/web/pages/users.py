"""Users and access keys of the user's own account. Secrets are shown once, when they are made."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from quaymaster.console.site import APIError
from quaymaster.console.web.page_calls import Page, PageCall, unknown_act
from quaymaster.console.web.pages.attribute_forms import refused_field
from quaymaster.console.web.views.policy_words import explain_policy

USERS: Final = "/admin/v1/users"
KEYS: Final = "/admin/v1/keys"


async def show_list(call: PageCall) -> Response:
    """List users, and all keys of the account."""
    return await _list(call, {}, 200)


async def _list(call: PageCall, errors: dict[str, str], status: int) -> Response:
    account = {"account_id": call.session.account}
    users = await call.api.admin(call.caller, "GET", USERS, query=account)
    keys = await call.api.admin(call.caller, "GET", KEYS, query=account)
    return call.render(
        "users.html",
        status,
        users=users.get("users", []),
        keys=keys.get("keys", []),
        errors=errors,
        given={"name": call.field("name")},
    )


async def create(call: PageCall) -> Response:
    """Make a user with its first key."""
    try:
        body = {"name": call.field("name").strip()}
        made = await call.api.admin(call.caller, "POST", USERS, body=body)
    except APIError as error:
        return await _list(call, refused_field(error, ("name",)), 422)
    return call.render("new_key.html", key=made, what=f"user {made.get('name', '')}", back="/users")


async def show(call: PageCall) -> Response:
    """Show a user's keys and policies."""
    return await _show(call, {}, 200)


async def _show(call: PageCall, errors: dict[str, str], status: int) -> Response:
    found = await call.api.admin(call.caller, "GET", _path(call))
    policies = found.get("policies", {})
    return call.render(
        "user.html",
        status,
        user=found,
        sentences={name: explain_policy(text) for name, text in policies.items()},
        errors=errors,
        given={name: call.field(name) for name in ("policy_name", "policy")},
    )


def _path(call: PageCall) -> str:
    return f"{USERS}/{quote(call.part('name'), safe='')}"


async def act(call: PageCall) -> Response:
    """Change a user: policies, password, sessions, a new key; or delete it, by its name."""
    path, there = _path(call), f"/users/{quote(call.part('name'), safe='')}"
    match call.field("act"):
        case "policy":
            body = {name: call.field(name).strip() for name in ("policy_name", "policy")}
            return await _change(call, f"{path}/policy", body, there)
        case "remove-policy":
            query = {"policy_name": call.field("policy_name")}
            await call.api.admin(call.caller, "DELETE", f"{path}/policy", query=query)
        case "password":
            return await _change(call, f"{path}/password", {"password": call.field("password")}, there)
        case "revoke":
            await call.api.admin(call.caller, "POST", f"{path}/revoke-sessions")
        case "key":
            made = await call.api.admin(call.caller, "POST", KEYS, body={"user": call.part("name")})
            return call.render("new_key.html", key=made, what=f"user {call.part('name')}", back=there)
        case "delete":
            if call.field("confirm").strip() != call.part("name"):
                return await _show(call, {"": "That is not the name of this user. Nothing was changed."}, 422)
            await call.api.admin(call.caller, "DELETE", path)
            return call.redirect("/users", done="user-deleted")
        case _:
            return unknown_act(call)
    return call.redirect(there, done="saved")


async def _change(call: PageCall, path: str, body: dict[str, str], there: str) -> Response:
    try:
        await call.api.admin(call.caller, "POST", path, body=body)
    except APIError as error:
        return await _show(call, refused_field(error, body), 422)
    return call.redirect(there, done="saved")


async def show_keys(call: PageCall) -> Response:
    """Go to the page of users, which lists keys: a form that was refused is reloaded from here."""
    return call.redirect("/users")


async def change_key(call: PageCall) -> Response:
    """Enable, disable, rotate or delete a key; deletion asks for its id. Or make one for the account's root."""
    key_id = call.field("access_key_id")
    path = f"{KEYS}/{quote(key_id, safe='')}"
    match call.field("act"):
        case "enable" | "disable" as change:
            await call.api.admin(call.caller, "POST", f"{path}/{change}")
        case "rotate":
            made = await call.api.admin(call.caller, "POST", f"{path}/rotate")
            return call.render("new_key.html", key=made, what=f"key {key_id}", back="/users")
        case "delete":
            if call.field("confirm").strip() != key_id:
                return await _list(call, {"": "That is not the id of the key. Nothing was changed."}, 422)
            await call.api.admin(call.caller, "DELETE", path)
            return call.redirect("/users", done="key-deleted")
        case "create":
            made = await call.api.admin(call.caller, "POST", KEYS, body={"name": call.field("name").strip()})
            return call.render("new_key.html", key=made, what="the account's root", back="/users")
        case _:
            return unknown_act(call)
    return call.redirect("/users", done="saved")


PAGES = (
    Page("/users", show_list, create),
    Page("/users/{name}", show, act),
    Page("/keys", show_keys, change_key),
)
