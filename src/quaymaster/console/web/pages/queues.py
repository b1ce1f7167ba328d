"""The list of queues: search, sort, 100 rows a step; and making a queue."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.responses import Response

from quaymaster.console.site import APIError, QueueNow
from quaymaster.console.web import access
from quaymaster.console.web.page_calls import Page, PageCall
from quaymaster.console.web.pages.attribute_forms import (
    GROUPS_OF_NEW,
    fields_of,
    given_attributes,
    refused_field,
)
from quaymaster.console.web.pages.queue import FIFO
from quaymaster.console.web.views.queue_list import SHOWN_MAX, STEP, ListRequest, parse_list

KINDS: Final = ("standard", "fifo")


async def list_request(call: PageCall) -> tuple[ListRequest, str]:
    """Return what a URL asks a list of queues for, and why it is of names alone; "": it has values, too.

    APIError: the user sees no list.
    """
    sees = call.sees
    scope, without_values = await sees.scope(call.query("account"), access.values)
    asked = parse_list(scope, call.query("q"), call.query("sort"), call.query("shown"))
    if without_values:
        refusal = await sees.refusal(scope, access.names)
        if refusal:
            raise access.refused(refusal)
        # The order of others would tell the values.
        asked = asked._replace(sort="-name" if asked.sort == "-name" else "name")
    return asked, without_values


def list_query(asked: ListRequest, **changed: object) -> str:
    """Return the query of a URL for a list, with some of it changed."""
    values = {
        "q": asked.search,
        "account": asked.account or "",
        "sort": asked.sort,
        "shown": asked.shown,
        **changed,
    }
    return urlencode({name: value for name, value in values.items() if value not in ("", STEP, "-visible")})


async def show(call: PageCall) -> Response:
    """Show the list; for htmx only the rows that come next."""
    asked, without_values = await list_request(call)
    now_ms = call.site.now_ms()
    found = call.state.orders.find(asked, call.site.queues, now_ms, call.site.queue)
    next_shown = min(SHOWN_MAX, asked.shown + STEP)
    has_more = found.found > asked.shown and next_shown > asked.shown
    rows = list(found.rows)
    if without_values:
        rows = [QueueNow(one.account, one.name, one.queue_id) for one in rows]
    values: dict[str, Any] = {
        "asked": asked,
        "found": found,
        "rows": rows,
        "without_values": without_values,
        "query": lambda **changed: list_query(asked, **changed),
        "next_shown": next_shown if has_more else None,
        "shows_accounts": call.session.is_operator,
    }
    if call.request.headers.get("hx-target") == "more":
        return call.render("queue_rows.html", **{**values, "rows": rows[asked.shown - STEP :]})
    return call.render("queues.html", **values)


async def show_new(call: PageCall) -> Response:
    """Show the form for a new queue."""
    return _new_form(call, {}, 200)


def _new_form(call: PageCall, errors: dict[str, str], status: int) -> Response:
    given = {name: str(value) for name, value in call.form.items()}
    return call.render(
        "queue_new.html", status, groups=GROUPS_OF_NEW, given=given, fields=fields_of(given), errors=errors
    )


async def create(call: PageCall) -> Response:
    """Make a queue."""
    name = call.field("QueueName").strip()
    kind = call.field("kind") or "standard"
    if kind not in KINDS:
        return _new_form(call, {"": f"A queue is {' or '.join(KINDS)}, not {kind!r}."}, 422)
    is_fifo = kind == "fifo"
    if is_fifo and name and not name.endswith(FIFO):
        name += FIFO
    attributes = {name: value for name, value in given_attributes(call.form, {}).items() if value}
    if is_fifo:
        attributes["FifoQueue"] = "true"
    try:
        await call.api.sqs(call.caller, "CreateQueue", {"QueueName": name, "Attributes": attributes})
    except APIError as error:
        return _new_form(call, refused_field(error, (*attributes, "QueueName")), 422)
    return call.redirect(f"/queues/{call.session.account}/{quote(name)}", done="created")


PAGES = (
    Page("/queues", show),
    Page("/queues/new", show_new, create),
)
