"""A queue's messages. Peeking changes nothing; receiving, sending and deleting are the actions of SQS."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from starlette.responses import HTMLResponse, Response

from quaymaster.console.site import APIError, QueueNow
from quaymaster.console.web.page_calls import Page, PageCall
from quaymaster.console.web.pages.attribute_forms import refused_field
from quaymaster.console.web.pages.form_values import WrongField, string_attributes, whole_number
from quaymaster.console.web.pages.queue import PATH, find_queue, no_queue, queue_path, queue_url, render_tab
from quaymaster.console.web.views.message_view import MessageView, view_peeked, view_received

PEEKED: Final = 20
RECEIVED_MAX: Final = 10
_SEND_FIELDS: Final = (
    "MessageBody",
    "DelaySeconds",
    "MessageGroupId",
    "MessageDeduplicationId",
    "MessageAttributes",
)
_RECEIVE_FIELDS: Final = ("MaxNumberOfMessages", "VisibilityTimeout")
_PEEK_FIELDS: Final = ("from", "partition")


async def show(call: PageCall) -> Response:
    """Peek at messages: they stay as they are."""
    queue = await find_queue(call)
    return no_queue(call) if queue is None else await _peek(call, queue, {}, 200)


async def _peek(call: PageCall, queue: QueueNow, errors: dict[str, str], status: int) -> Response:
    query = {"count": str(PEEKED), "account_id": queue.account}
    query |= {name: call.query(name).strip() for name in _PEEK_FIELDS if call.query(name).strip()}
    path = f"/admin/v1/queues/{quote(queue.name)}/messages"
    found: dict[str, Any] = {}
    try:
        found = await call.api.admin(call.caller, "GET", path, query=query)
    except APIError as error:
        if error.field in _PEEK_FIELDS:
            errors, status = {"from": error.message}, 422
        elif error.is_failure or not errors:
            raise
        # Else the form that was refused is shown also to those who may not peek.
    shows_bodies = queue.account == call.session.account or call.state.options.operators_see_bodies
    messages = [view_peeked(one, shows_body=shows_bodies) for one in found.get("messages", [])]
    return _render(call, queue, messages, errors, status, found=found, is_received=False)


def _render(
    call: PageCall,
    queue: QueueNow,
    messages: list[MessageView],
    errors: dict[str, str],
    status: int,
    *,
    found: dict[str, Any],
    is_received: bool,
) -> Response:
    given = {name: call.field(name) for name in (*_SEND_FIELDS, *_RECEIVE_FIELDS)}
    return render_tab(
        call,
        queue,
        "queue_messages.html",
        "messages",
        status,
        messages=messages,
        is_received=is_received,
        from_sequence=call.query("from"),
        next_sequence=found.get("next_sequence") or None,
        next_partition=found.get("next_partition"),
        errors=errors,
        given=given,
    )


async def receive(call: PageCall) -> Response:
    """Receive messages: they are hidden from consumers until their visibility timeout passes."""
    queue = await find_queue(call)
    if queue is None:
        return no_queue(call)
    members: dict[str, Any] = {
        "QueueUrl": queue_url(queue),
        "MaxNumberOfMessages": RECEIVED_MAX,
        "MessageSystemAttributeNames": ["All"],
        "MessageAttributeNames": ["All"],
        "WaitTimeSeconds": 1,
    }
    try:
        members |= _numbers(call, *_RECEIVE_FIELDS)
        answer = await call.api.sqs(call.caller, "ReceiveMessage", members)
    except WrongField as error:
        return await _peek(call, queue, error.errors, 422)
    except APIError as error:
        return await _peek(call, queue, refused_field(error, _RECEIVE_FIELDS), 422)
    messages = [view_received(one) for one in answer.get("Messages", [])]
    return _render(call, queue, messages, {}, 200, found={}, is_received=True)


async def send(call: PageCall) -> Response:
    """Send a message."""
    queue = await find_queue(call)
    if queue is None:
        return no_queue(call)
    # Browsers write CR LF for each end of a line that was typed or pasted.
    body = call.field("MessageBody").replace("\r\n", "\n")
    members: dict[str, Any] = {"QueueUrl": queue_url(queue), "MessageBody": body}
    for name in ("MessageGroupId", "MessageDeduplicationId"):
        if call.field(name):
            members[name] = call.field(name)
    try:
        members |= _numbers(call, "DelaySeconds")
        attributes = string_attributes("MessageAttributes", call.field("MessageAttributes"))
        if attributes:
            members["MessageAttributes"] = attributes
        await call.api.sqs(call.caller, "SendMessage", members)
    except WrongField as error:
        return await _peek(call, queue, error.errors, 422)
    except APIError as error:
        return await _peek(call, queue, refused_field(error, _SEND_FIELDS), 422)
    return call.redirect(f"{queue_path(queue)}/messages", done="sent")


async def delete(call: PageCall) -> Response:
    """Delete a received message; htmx gets what stands in its place."""
    queue = await find_queue(call)
    if queue is None:
        return no_queue(call)
    members = {"QueueUrl": queue_url(queue), "ReceiptHandle": call.field("ReceiptHandle")}
    await call.api.sqs(call.caller, "DeleteMessage", members)
    if call.request.headers.get("hx-request"):
        return HTMLResponse('<p class="notice ok" role="status">✓ The message is deleted.</p>')
    return call.redirect(f"{queue_path(queue)}/messages", done="message-deleted")


def _numbers(call: PageCall, *names: str) -> dict[str, int]:
    """Return the numbers of fields that are not empty; WrongField."""
    return {name: whole_number(name, call.field(name)) for name in names if call.field(name).strip()}


async def show_messages(call: PageCall) -> Response:
    """Go to the messages: what a form led to is reloaded from the form's own address."""
    return call.redirect(call.request.url.path.rpartition("/")[0])


PAGES = (
    Page(f"{PATH}/messages", show),
    Page(f"{PATH}/messages/receive", show_messages, receive),
    Page(f"{PATH}/messages/send", show_messages, send),
    Page(f"{PATH}/messages/delete", show_messages, delete),
)
