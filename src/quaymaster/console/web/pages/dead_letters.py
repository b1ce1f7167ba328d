"""Dead letters: where a queue's go, whose come here, and moving them back."""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.responses import Response

from quaymaster.console.site import APIError, QueueNow
from quaymaster.console.web.page_calls import Page, PageCall
from quaymaster.console.web.pages.attribute_forms import refused_field
from quaymaster.console.web.pages.form_values import WrongField, whole_number
from quaymaster.console.web.pages.queue import PATH, find_queue, no_queue, queue_path, queue_url, render_tab

TASKS_SHOWN: Final = 10
RATE: Final = "MaxNumberOfMessagesPerSecond"


async def show(call: PageCall) -> Response:
    """Show both directions, and move tasks with their progress."""
    queue = await find_queue(call)
    return no_queue(call) if queue is None else await _show(call, queue, {}, 200)


async def _show(call: PageCall, queue: QueueNow, errors: dict[str, str], status: int) -> Response:
    if queue.account != call.session.account:
        return render_tab(
            call,
            queue,
            "queue_dead_letters.html",
            "dead-letters",
            target=None,
            sources=[],
            tasks=[],
            errors={},
            received_max=None,
        )
    url = {"QueueUrl": queue_url(queue)}
    asked = {**url, "AttributeNames": ["QueueArn", "RedrivePolicy"]}
    attributes = (await call.api.sqs(call.caller, "GetQueueAttributes", asked)).get("Attributes", {})
    policy = _redrive_policy(attributes.get("RedrivePolicy", ""))
    sources: list[str] = []
    tasks: list[dict[str, Any]] = []
    if queue.dead_letters_of:
        answer = await call.api.sqs(call.caller, "ListDeadLetterSourceQueues", {**url, "MaxResults": 100})
        sources = [source.rpartition("/")[2] for source in answer.get("queueUrls", [])]
        listed = {"SourceArn": attributes.get("QueueArn", ""), "MaxResults": TASKS_SHOWN}
        tasks = (await call.api.sqs(call.caller, "ListMessageMoveTasks", listed)).get("Results", [])
    return render_tab(
        call,
        queue,
        "queue_dead_letters.html",
        "dead-letters",
        status,
        target=policy.get("deadLetterTargetArn"),
        received_max=policy.get("maxReceiveCount"),
        sources=sources,
        tasks=tasks,
        errors=errors,
        given={name: call.field(name) for name in ("DestinationArn", RATE)},
    )


async def redrive(call: PageCall) -> Response:
    """Begin to move dead letters back, or cancel a task."""
    queue = await find_queue(call)
    if queue is None:
        return no_queue(call)
    there = f"{queue_path(queue)}/dead-letters"
    if call.field("TaskHandle"):
        await call.api.sqs(call.caller, "CancelMessageMoveTask", {"TaskHandle": call.field("TaskHandle")})
        return call.redirect(there, done="redrive-cancelled")
    asked = {"QueueUrl": queue_url(queue), "AttributeNames": ["QueueArn"]}
    arn = (await call.api.sqs(call.caller, "GetQueueAttributes", asked))["Attributes"]["QueueArn"]
    members: dict[str, Any] = {"SourceArn": arn}
    if call.field("DestinationArn").strip():
        members["DestinationArn"] = call.field("DestinationArn").strip()
    try:
        if call.field(RATE).strip():
            members[RATE] = whole_number(RATE, call.field(RATE))
        await call.api.sqs(call.caller, "StartMessageMoveTask", members)
    except WrongField as error:
        return await _show(call, queue, error.errors, 422)
    except APIError as error:
        return await _show(call, queue, refused_field(error, members), 422)
    return call.redirect(there, done="redriven")


def _redrive_policy(text: str) -> dict[str, Any]:
    try:
        policy = json.loads(text or "{}")
    except ValueError:
        return {}
    return policy if isinstance(policy, dict) else {}


PAGES = (Page(f"{PATH}/dead-letters", show, redrive),)
