"""A queue's policy: in sentences, as JSON to edit, and tried for an action."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from quaymaster.console.site import APIError, QueueNow
from quaymaster.console.web.page_calls import Page, PageCall
from quaymaster.console.web.pages.queue import PATH, find_queue, no_queue, queue_path, queue_url, render_tab
from quaymaster.console.web.views.policy_words import explain_policy
from quaymaster.core.access.permissions import Permission

POLICY: Final = "Policy"
TRIED: Final = tuple(
    permission.value
    for permission in (
        Permission.SEND_MESSAGE,
        Permission.RECEIVE_MESSAGE,
        Permission.DELETE_MESSAGE,
        Permission.CHANGE_MESSAGE_VISIBILITY,
        Permission.GET_QUEUE_ATTRIBUTES,
        Permission.SET_QUEUE_ATTRIBUTES,
        Permission.PURGE_QUEUE,
        Permission.DELETE_QUEUE,
    )
)
"""Actions that a page offers to try."""


async def show(call: PageCall) -> Response:
    """Show the policy in words and as text."""
    queue = await find_queue(call)
    return no_queue(call) if queue is None else await _show(call, queue, {}, 200)


async def _show(call: PageCall, queue: QueueNow, errors: dict[str, str], status: int) -> Response:
    path = f"/admin/v1/queues/{quote(queue.name)}/policy"
    stored: dict[str, Any] = await call.api.admin(
        call.caller, "GET", path, query={"account_id": queue.account}
    )
    text = call.field(POLICY) or stored.get("policy") or ""
    trial, problem = await _try(call, queue)
    return render_tab(
        call,
        queue,
        "queue_policy.html",
        "policy",
        status,
        text=text,
        sentences=explain_policy(stored.get("policy")),
        problem=stored.get("problem"),
        stale=stored.get("stale") or [],
        are_enforced=call.site.are_policies_enforced,
        errors=errors,
        actions=TRIED,
        action=call.query("try"),
        user=call.query("user"),
        trial=trial,
        trial_problem=problem,
    )


async def _try(call: PageCall, queue: QueueNow) -> tuple[dict[str, Any] | None, str]:
    """Return what front ends would decide of an action that the page is asked to try, or why it cannot be tried."""
    if call.query("try") not in TRIED:
        return None, ""
    query = {"action": call.query("try"), "account_id": queue.account, "user": call.query("user").strip()}
    try:
        return await call.api.admin(
            call.caller, "GET", f"/admin/v1/queues/{quote(queue.name)}/access", query=query
        ), ""
    except APIError as error:
        if error.is_failure:
            raise
        return None, error.message


async def save(call: PageCall) -> Response:
    """Set the policy, or take it away where the text is empty."""
    queue = await find_queue(call)
    if queue is None:
        return no_queue(call)
    text = "" if call.field("remove") else call.field(POLICY).strip()
    try:
        asked = {"QueueUrl": queue_url(queue), "Attributes": {POLICY: text}}
        await call.api.sqs(call.caller, "SetQueueAttributes", asked)
    except APIError as error:
        if error.is_failure:
            raise
        return await _show(call, queue, {POLICY: error.message}, 422)
    return call.redirect(f"{queue_path(queue)}/policy", done="saved")


PAGES = (Page(f"{PATH}/policy", show, save),)
