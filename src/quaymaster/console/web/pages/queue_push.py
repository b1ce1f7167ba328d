"""Where a queue's messages are pushed: its endpoint and how calls go, one call to try it, and the secret that signs."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from quaymaster.console.site import APIError, QueueNow
from quaymaster.console.web.page_calls import Page, PageCall, unknown_act
from quaymaster.console.web.pages.attribute_forms import (
    PUSH_FIELDS,
    fields_of,
    given_attributes,
    refused_field,
)
from quaymaster.console.web.pages.queue import (
    PATH,
    attributes_of,
    find_queue,
    no_queue,
    queue_path,
    queue_url,
    render_tab,
)


async def show(call: PageCall) -> Response:
    """Show how the queue is pushed, in a form."""
    queue = await find_queue(call)
    return no_queue(call) if queue is None else await _show(call, queue)


async def _show(
    call: PageCall,
    queue: QueueNow,
    errors: dict[str, str] | None = None,
    status: int = 200,
    *,
    tested: dict[str, Any] | None = None,
    secret: dict[str, Any] | None = None,
) -> Response:
    attributes = await attributes_of(call, queue)
    given = {**attributes, **{name: str(value) for name, value in call.form.items()}}
    return render_tab(
        call,
        queue,
        "queue_push.html",
        "push",
        status,
        fields=fields_of(given, PUSH_FIELDS),
        is_pushed="PushEndpoint" in attributes,
        state=attributes.get("PushState", ""),
        rate=attributes.get("PushAllowedRate", ""),
        errors=errors or {},
        tested=tested,
        secret=secret,
    )


async def act(call: PageCall) -> Response:
    """Set what the form changes; or try the endpoint, show its secret, or rotate that."""
    queue = await find_queue(call)
    if queue is None:
        return no_queue(call)
    try:
        match call.field("act"):
            case "test":
                return await _show(call, queue, tested=await _operate(call, queue, "POST", "test"))
            case "secret":
                return await _show(call, queue, secret=await _operate(call, queue, "GET", "secret"))
            case "rotate":
                await _operate(call, queue, "POST", "rotate")
                return await _show(call, queue, secret=await _operate(call, queue, "GET", "secret"))
            case act if act:
                return unknown_act(call)
        changed = given_attributes(call.form, await attributes_of(call, queue), PUSH_FIELDS)
        if changed:
            asked = {"QueueUrl": queue_url(queue), "Attributes": changed}
            await call.api.sqs(call.caller, "SetQueueAttributes", asked)
    except APIError as error:
        return await _show(call, queue, refused_field(error, PUSH_FIELDS), 422)
    return call.redirect(f"{queue_path(queue)}/push", done="saved")


async def _operate(call: PageCall, queue: QueueNow, method: str, what: str) -> dict[str, Any]:
    """Ask for something that the queue's owner may do with its pushing."""
    path = f"/admin/v1/queues/{quote(queue.name)}/push/{what}"
    whose = {"account_id": queue.account}
    found: dict[str, Any]
    if method == "GET":
        found = await call.api.admin(call.caller, method, path, query=whose)
    else:
        found = await call.api.admin(call.caller, method, path, body=whose)
    return found


PAGES = (Page(f"{PATH}/push", show, act),)
