"""Dashboards as CloudWatch's dashboard body has them: JSON with widgets. Only metric widgets are shown.

    {"widgets": [{"type": "metric", "x": 0, "y": 0, "width": 12, "height": 6, "properties": {
        "title": "Sent", "stat": "Sum", "period": 300,
        "metrics": [["AWS/SQS", "NumberOfMessagesSent", "QueueName", "orders"]]}}]}

In a metric, `.` is what stands at that place of the metric before it, `...` all places up to the last ones that follow.
Text widgets are kept and not shown: they would show one user's Markdown to another.

Source: Amazon CloudWatch User Guide, "Dashboard body structure and syntax".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

WIDGETS_MAX: Final = 100
METRICS_MAX: Final = 100
"""Of one widget."""
_PERIOD_S: Final = 300
_STATISTIC: Final = "Average"


class WidgetMetric(NamedTuple):
    """A line of a widget. `dimensions` are names and values."""

    namespace: str
    metric: str
    dimensions: tuple[tuple[str, str], ...]
    statistic: str
    period_s: int
    label: str


class MetricWidget(NamedTuple):
    """A widget that is shown: its title and lines."""

    title: str
    metrics: tuple[WidgetMetric, ...]


class DashboardBody(NamedTuple):
    """What a body has to show. `hidden`: widgets of other types; `problem`: why there is nothing, or ""."""

    widgets: tuple[MetricWidget, ...]
    hidden: int
    problem: str = ""


def parse_dashboard(text: str) -> DashboardBody:
    """Return the widgets of a body, in the order of rows and columns."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return DashboardBody((), 0, "The body is not JSON.")
    widgets = document.get("widgets") if isinstance(document, dict) else None
    if not isinstance(widgets, list):
        return DashboardBody((), 0, "The body has no widgets.")
    known = [widget for widget in widgets[:WIDGETS_MAX] if isinstance(widget, dict)]
    known.sort(key=lambda widget: (_number(widget.get("y"), 0), _number(widget.get("x"), 0)))
    shown = [widget for widget in known if widget.get("type") == "metric"]
    return DashboardBody(tuple(_widget(widget) for widget in shown), len(known) - len(shown))


def metric_queries(body: DashboardBody) -> list[dict[str, Any]]:
    """Return the queries of GetMetricData for all lines, with ids `wW_mM` of widget and line."""
    queries = []
    for at, widget in enumerate(body.widgets):
        for line, metric in enumerate(widget.metrics):
            dimensions = [{"Name": name, "Value": value} for name, value in metric.dimensions]
            named = {"Namespace": metric.namespace, "MetricName": metric.metric, "Dimensions": dimensions}
            stat = {"Metric": named, "Period": metric.period_s, "Stat": metric.statistic}
            queries.append({"Id": f"w{at}_m{line}", "MetricStat": stat, "ReturnData": True})
    return queries


def _widget(widget: Mapping[str, Any]) -> MetricWidget:
    properties = widget.get("properties")
    given: Mapping[str, Any] = properties if isinstance(properties, dict) else {}
    period_s = max(60, _number(given.get("period"), _PERIOD_S) // 60 * 60)
    statistic = str(given.get("stat", _STATISTIC))
    metrics: list[WidgetMetric] = []
    before: list[str] = []
    listed = given.get("metrics")
    for one in (listed if isinstance(listed, list) else [])[:METRICS_MAX]:
        if not isinstance(one, list) or not one:
            continue
        options: Mapping[str, Any] = one[-1] if isinstance(one[-1], dict) else {}
        texts = [str(part) for part in one if not isinstance(part, dict)]
        before = _spelled_out(texts, before)
        if len(before) >= 2 and len(before) % 2 == 0:
            metrics.append(_metric(before, options, statistic, period_s))
    title = str(given.get("title") or (metrics[0].metric if metrics else "Without metrics"))
    return MetricWidget(title, tuple(metrics))


def _spelled_out(texts: Sequence[str], before: Sequence[str]) -> list[str]:
    if "..." in texts:
        at = texts.index("...")
        rest = texts[at + 1 :]
        texts = [*texts[:at], *before[at : len(before) - len(rest)], *rest]
    return [before[at] if text == "." and at < len(before) else text for at, text in enumerate(texts)]


def _metric(texts: Sequence[str], options: Mapping[str, Any], statistic: str, period_s: int) -> WidgetMetric:
    dimensions = tuple(zip(texts[2::2], texts[3::2], strict=True))
    queue = next((value for name, value in dimensions if name == "QueueName"), "")
    return WidgetMetric(
        texts[0],
        texts[1],
        dimensions,
        str(options.get("stat", statistic)),
        max(60, _number(options.get("period"), period_s) // 60 * 60),
        str(options.get("label") or f"{queue} {texts[1]}".strip()),
    )


def _number(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**6 else default
