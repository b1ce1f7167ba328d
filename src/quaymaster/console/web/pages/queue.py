"""One queue: charts, settings, and deleting or purging it, for which its name is asked."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from quaymaster.console.site import APIError, Chart, QueueNow, Site
from quaymaster.console.web import access
from quaymaster.console.web.page_calls import SESSION_ENDED, Page, PageCall, error_page
from quaymaster.console.web.pages.attribute_forms import GROUPS, fields_of, given_attributes, refused_field
from quaymaster.core.values.queues.attributes import LOG

PATH: Final = "/queues/{account}/{name}"
FIFO: Final = ".fifo"
NO_QUEUE: Final = frozenset(("QueueDoesNotExist", "InvalidAddress"))
"""Codes of the API for what is no queue, or cannot be one's name."""


class ChartOfQueue(NamedTuple):
    """A chart: its title, and its metrics with their statistics and labels."""

    title: str
    lines: tuple[tuple[str, str, str], ...]


class TimeRange(NamedTuple):
    """So long back, in periods that make about seventy points."""

    title: str
    length_s: int
    period_s: int


CHARTS: Final = (
    ChartOfQueue(
        "Messages",
        (
            ("ApproximateNumberOfMessagesVisible", "Average", "visible"),
            ("ApproximateNumberOfMessagesNotVisible", "Average", "in flight"),
            ("ApproximateNumberOfMessagesDelayed", "Average", "delayed"),
        ),
    ),
    ChartOfQueue("Age of the oldest message", (("ApproximateAgeOfOldestMessage", "Maximum", "age"),)),
    ChartOfQueue(
        "Messages per period",
        (
            ("NumberOfMessagesSent", "Sum", "sent"),
            ("NumberOfMessagesReceived", "Sum", "received"),
            ("NumberOfMessagesDeleted", "Sum", "deleted"),
        ),
    ),
    ChartOfQueue("Empty receives per period", (("NumberOfEmptyReceives", "Sum", "empty receives"),)),
)
RANGES: Final = {
    "1h": TimeRange("1 hour", 3_600, 60),
    "6h": TimeRange("6 hours", 21_600, 300),
    "1d": TimeRange("1 day", 86_400, 1_200),
    "7d": TimeRange("7 days", 604_800, 10_800),
    "60d": TimeRange("60 days", 5_184_000, 86_400),
}
DEFAULT_RANGE: Final = "1h"
_UNITS: Final = {"ApproximateAgeOfOldestMessage": "Seconds"}


async def find_charts(site: Site, account: str, name: str, time_range: str) -> list[Chart]:
    """Return a queue's charts over a range of RANGES."""
    span = RANGES[time_range]
    end_ms = site.now_ms() // (span.period_s * 1_000) * span.period_s * 1_000
    metrics = [(metric, statistic) for chart in CHARTS for metric, statistic, _ in chart.lines]
    found = await site.history(account, name, metrics, end_ms - span.length_s * 1_000, end_ms, span.period_s)
    series = iter(found)
    return [
        Chart(
            chart.title,
            [
                one._replace(label=label, unit=_UNITS.get(metric, one.unit))
                for (metric, _, label), one in zip(chart.lines, series, strict=False)
            ],
        )
        for chart in CHARTS
    ]


def visible_account(call: PageCall) -> str | None:
    """Return the account in the path, if the user may see it; for others there is no such queue."""
    account = call.part("account")
    return account if call.session.is_operator or account == call.session.account else None


async def find_queue(call: PageCall) -> QueueNow | None:
    """Return the queue in the path, without values that the user may not see; None: there is none.

    The console learns of a new queue within some seconds. Until then the API is asked whether it is there. Raises
    APIError.
    """
    account, name = visible_account(call), call.part("name")
    if account is None:
        return None
    queue = call.site.queue(account, name)
    if queue is None:
        return await _ask_for_new(call, account, name)
    if not await call.sees.refusal_on_queue(queue.account, name, access.queue_values):
        return queue
    return QueueNow(queue.account, name, queue.queue_id, queue.is_fifo, queue.is_log)


async def _ask_for_new(call: PageCall, account: str, name: str) -> QueueNow | None:
    """Return a queue that the API knows and the console does not yet; None: there is none."""
    new = QueueNow(account, name, "", is_fifo=name.endswith(FIFO))
    try:
        if account != call.session.account:
            query = {"account_id": account, "prefix": name, "limit": "1"}
            found = await call.api.admin(call.caller, "GET", "/admin/v1/queues", query=query)
            rows = [row for row in found.get("queues", []) if row["name"] == name]
            return msgspec.structs.replace(new, is_log=rows[0]["is_log"]) if rows else None
        attributes = await attributes_of(call, new)
    except APIError as error:
        # An account or name that cannot be one is a path of no queue.
        if error.code in NO_QUEUE or error.field in ("account_id", "prefix"):
            return None
        if (
            error.status == HTTPStatus.FORBIDDEN
            and call.request.method != "GET"
            and error.code not in SESSION_ENDED
        ):
            return new  # of the act itself the API decides by its own permission
        raise
    return msgspec.structs.replace(new, is_log=attributes.get("RetentionMode") == LOG)


def no_queue(call: PageCall) -> Response:
    """Return a page that says that there is no such queue."""
    text = f"There is no queue {call.part('name')} in account {call.part('account')}."
    return error_page(call, 404, "There is no such queue", text)


def queue_path(queue: QueueNow) -> str:
    """Return the path of a queue's page."""
    return f"/queues/{queue.account}/{quote(queue.name)}"


def queue_url(queue: QueueNow) -> str:
    """Return what SQS names the queue by; hosts do not matter."""
    return f"/{queue.account}/{queue.name}"


def render_tab(
    call: PageCall, queue: QueueNow, template: str, tab: str, status: int = 200, **values: Any
) -> Response:
    """Return one of a queue's pages."""
    call.site.watch(queue.account, queue.name)
    is_own = queue.account == call.session.account
    return call.render(
        template, status, queue=queue, base=queue_path(queue), tab=tab, is_own=is_own, **values
    )


async def show(call: PageCall) -> Response:
    """Show a queue's charts."""
    queue = await find_queue(call)
    if queue is None:
        return no_queue(call)
    chosen = call.query("range")
    time_range = chosen if chosen in RANGES else DEFAULT_RANGE
    without_values, without_charts = await refusals_of_charts(call, queue.account, queue.name)
    charts = [] if without_charts else await find_charts(call.site, queue.account, queue.name, time_range)
    return render_tab(
        call,
        queue,
        "queue_charts.html",
        "charts",
        charts=charts,
        ranges=RANGES,
        time_range=time_range,
        without_values=without_values,
        without_charts=without_charts,
    )


async def refusals_of_charts(call: PageCall, account: str, name: str) -> tuple[str, str]:
    """Return why the user sees no values of a queue, and no charts; "": they are seen. APIError: neither is."""
    values = await call.sees.refusal_on_queue(account, name, access.queue_values)
    charts = await call.sees.refusal_on_queue(account, name, access.queue_history)
    if values and charts:
        raise access.refused(values)
    return values, charts


async def show_settings(call: PageCall) -> Response:
    """Show a queue's attributes, in a form."""
    queue = await find_queue(call)
    return no_queue(call) if queue is None else await _settings(call, queue, {}, 200)


async def _settings(call: PageCall, queue: QueueNow, errors: dict[str, str], status: int) -> Response:
    attributes = await attributes_of(call, queue)
    given = {**attributes, **{name: str(value) for name, value in call.form.items()}}
    return render_tab(
        call,
        queue,
        "queue_settings.html",
        "settings",
        status,
        groups=GROUPS,
        fields=fields_of(given),
        attributes=attributes,
        errors=errors,
    )


async def attributes_of(call: PageCall, queue: QueueNow) -> dict[str, str]:
    """Return a queue's attributes as SQS has them."""
    asked = {"QueueUrl": queue_url(queue), "AttributeNames": ["All"]}
    answer = await call.api.sqs(call.caller, "GetQueueAttributes", asked)
    attributes: dict[str, str] = answer.get("Attributes", {})
    return attributes


async def set_attributes(call: PageCall) -> Response:
    """Set the attributes that the form changes, and no others."""
    queue = await find_queue(call)
    if queue is None:
        return no_queue(call)
    changed = given_attributes(call.form, await attributes_of(call, queue))
    if changed:
        try:
            asked = {"QueueUrl": queue_url(queue), "Attributes": changed}
            await call.api.sqs(call.caller, "SetQueueAttributes", asked)
        except APIError as error:
            return await _settings(call, queue, refused_field(error, changed), 422)
    return call.redirect(f"{queue_path(queue)}/settings", done="saved")


async def ask_delete(call: PageCall) -> Response:
    """Ask for the name of the queue before it is deleted."""
    return await _ask(call, "delete")


async def ask_purge(call: PageCall) -> Response:
    """Ask for the name of the queue before it is purged."""
    return await _ask(call, "purge")


async def _ask(call: PageCall, what: str, error: str = "", status: int = 200) -> Response:
    queue = await find_queue(call)
    if queue is None:
        return no_queue(call)
    return call.render(
        "confirm_queue.html", status, queue=queue, base=queue_path(queue), what=what, error=error
    )


async def delete(call: PageCall) -> Response:
    """Delete the queue whose name was typed."""
    return await _confirmed(call, "delete", "DeleteQueue", "/queues", "deleted")


async def purge(call: PageCall) -> Response:
    """Delete all messages of the queue whose name was typed."""
    return await _confirmed(call, "purge", "PurgeQueue", "", "purged")


async def _confirmed(call: PageCall, what: str, action: str, there: str, done: str) -> Response:
    queue = await find_queue(call)
    if queue is None:
        return no_queue(call)
    if call.field("name").strip() != queue.name:
        return await _ask(call, what, "That is not the name of this queue. Nothing was changed.", 422)
    if what == "delete" and queue.account != call.session.account:
        path = f"/admin/v1/queues/{quote(queue.name)}"
        await call.api.admin(call.caller, "DELETE", path, query={"account_id": queue.account})
    else:
        await call.api.sqs(call.caller, action, {"QueueUrl": queue_url(queue)})
    return call.redirect(there or queue_path(queue), done=done)


PAGES = (
    Page(PATH, show),
    Page(f"{PATH}/settings", show_settings, set_attributes),
    Page(f"{PATH}/delete", ask_delete, delete),
    Page(f"{PATH}/purge", ask_purge, purge),
)
