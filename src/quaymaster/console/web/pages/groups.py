"""Consumer groups of a log-retained queue: how far each is, making one, and having one start again elsewhere."""

from __future__ import annotations

from urllib.parse import quote

from starlette.responses import Response

from quaymaster.console.site import APIError, QueueNow
from quaymaster.console.web.page_calls import Page, PageCall, unknown_act
from quaymaster.console.web.pages.attribute_forms import refused_field
from quaymaster.console.web.pages.queue import PATH, find_queue, no_queue, queue_path, render_tab


async def show(call: PageCall) -> Response:
    """Show the groups with what they have not consumed."""
    queue = await find_queue(call)
    return no_queue(call) if queue is None else await _show(call, queue, {}, 200)


async def _show(call: PageCall, queue: QueueNow, errors: dict[str, str], status: int) -> Response:
    found = await call.api.admin(
        call.caller, "GET", f"{_path(queue.name)}/groups", query={"account_id": queue.account}
    )
    return render_tab(
        call,
        queue,
        "queue_groups.html",
        "groups",
        status,
        groups=found.get("groups", []),
        errors=errors,
        given={name: call.field(name) for name in ("group", "start")},
    )


def _path(name: str) -> str:
    return f"/admin/v1/queues/{quote(name)}"


async def act(call: PageCall) -> Response:
    """Make a group; or have one start again, for which its name is asked: it consumes again, or skips."""
    queue = await find_queue(call)
    if queue is None:
        return no_queue(call)
    if call.field("act") not in ("", "reset"):
        return unknown_act(call)
    body = {"start": call.field("start").strip(), "account_id": queue.account}
    group = call.field("group").strip()
    path = f"{_path(queue.name)}/groups"
    if call.field("act") == "reset":
        if call.field("confirm").strip() != group:
            error = "That is not the name of the group. Nothing was changed."
            return await _show(call, queue, {"": error}, 422)
        path = f"{_path(f'{queue.name}@{group}')}/reset"
    else:
        body["group"] = group
    try:
        await call.api.admin(call.caller, "POST", path, body=body)
    except APIError as error:
        return await _show(call, queue, refused_field(error, body), 422)
    return call.redirect(f"{queue_path(queue)}/groups", done="saved")


PAGES = (Page(f"{PATH}/groups", show, act),)
