"""Dashboards, composed of CloudWatch's dashboard body: metric widgets only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from quaymaster.console.site import APIError, Chart, Series
from quaymaster.console.web.page_calls import Page, PageCall
from quaymaster.console.web.pages.attribute_forms import refused_field
from quaymaster.console.web.views.dashboard_body import DashboardBody, metric_queries, parse_dashboard

RANGES: Final = {"3h": ("3 hours", 10_800), "1d": ("1 day", 86_400), "7d": ("7 days", 604_800)}
POINTS_MAX: Final = 80
"""Periods are made longer, so that a chart has no more points."""
_UNITS: Final = {"ApproximateAgeOfOldestMessage": "Seconds", "SentMessageSize": "Bytes"}
FIRST_BODY: Final = json.dumps(
    {
        "widgets": [
            {
                "type": "metric",
                "x": 0,
                "y": 0,
                "width": 12,
                "height": 6,
                "properties": {
                    "title": "Messages sent",
                    "stat": "Sum",
                    "period": 300,
                    "metrics": [["AWS/SQS", "NumberOfMessagesSent", "QueueName", "QUEUE"]],
                },
            }
        ]
    },
    indent=2,
)


async def show_list(call: PageCall) -> Response:
    """List the account's dashboards."""
    answer = await call.api.cloudwatch(call.caller, "ListDashboards", {})
    return call.render("dashboards.html", dashboards=answer.get("DashboardEntries", []))


async def show(call: PageCall) -> Response:
    """Show a dashboard's charts."""
    name = call.part("name")
    answer = await call.api.cloudwatch(call.caller, "GetDashboard", {"DashboardName": name})
    body = parse_dashboard(answer.get("DashboardBody", ""))
    chosen = call.query("range") if call.query("range") in RANGES else "3h"
    charts = await _charts(call, body, RANGES[chosen][1])
    return call.render(
        "dashboard.html", name=name, body=body, charts=charts, ranges=RANGES, time_range=chosen
    )


async def _charts(call: PageCall, body: DashboardBody, length_s: int) -> list[Chart]:
    queries = metric_queries(body)
    if not queries:
        return []
    shortest_s = -(-length_s // POINTS_MAX // 60) * 60
    for query in queries:
        period_s = query["MetricStat"]["Period"]
        query["MetricStat"]["Period"] = -(-max(period_s, shortest_s) // period_s) * period_s
    end_s = call.site.now_ms() // 60_000 * 60
    members = {
        "MetricDataQueries": queries,
        "StartTime": float(end_s - length_s),
        "EndTime": float(end_s),
        "ScanBy": "TimestampAscending",
    }
    answer = await call.api.cloudwatch(call.caller, "GetMetricData", members)
    results = {result["Id"]: result for result in answer.get("MetricDataResults", [])}
    return [
        Chart(
            widget.title,
            _aligned(
                [
                    (metric.label, _UNITS.get(metric.metric, "Count"), results.get(f"w{at}_m{line}", {}))
                    for line, metric in enumerate(widget.metrics)
                ]
            ),
        )
        for at, widget in enumerate(body.widgets)
    ]


def _aligned(lines: Sequence[tuple[str, str, Mapping[str, Any]]]) -> list[Series]:
    """Return the lines of a chart at the same times; where one has no value it is None."""
    values = [
        dict(
            zip(
                (round(1_000 * at_s) for at_s in found.get("Timestamps", [])),
                found.get("Values", []),
                strict=True,
            )
        )
        for _, _, found in lines
    ]
    times = sorted({at_ms for one in values for at_ms in one})
    return [
        Series(label, unit, times, [one.get(at_ms) for at_ms in times])
        for (label, unit, _), one in zip(lines, values, strict=True)
    ]


async def show_new(call: PageCall) -> Response:
    """Show the form for a new dashboard."""
    return _form(call, "", FIRST_BODY, {}, 200)


async def show_edit(call: PageCall) -> Response:
    """Show the body of a dashboard to edit."""
    name = call.part("name")
    answer = await call.api.cloudwatch(call.caller, "GetDashboard", {"DashboardName": name})
    return _form(call, name, answer.get("DashboardBody", ""), {}, 200)


def _form(call: PageCall, name: str, body: str, errors: dict[str, str], status: int) -> Response:
    return call.render("dashboard_edit.html", status, name=name, body=body, errors=errors)


async def save(call: PageCall) -> Response:
    """Store a dashboard, or delete it."""
    name = call.field("DashboardName").strip()
    if call.field("delete"):
        await call.api.cloudwatch(call.caller, "DeleteDashboards", {"DashboardNames": [name]})
        return call.redirect("/dashboards", done="dashboard-deleted")
    body = call.field("DashboardBody")
    try:
        members = {"DashboardName": name, "DashboardBody": body}
        await call.api.cloudwatch(call.caller, "PutDashboard", members)
    except APIError as error:
        return _form(call, name, body, refused_field(error, ("DashboardName", "DashboardBody")), 422)
    return call.redirect(f"/dashboards/{quote(name)}", done="saved")


PAGES = (
    Page("/dashboards", show_list),
    Page("/dashboards/new", show_new, save),
    Page("/dashboards/{name}", show),
    Page("/dashboards/{name}/edit", show_edit, save),
)
