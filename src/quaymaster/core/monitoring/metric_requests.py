"""CloudWatch's requests for metrics: what they ask for, and what is answered.

    input ──plan──▶ queries, and what they need ──read by the caller──▶ kept values ──answer──▶ output

Inputs and outputs are plain dicts in CloudWatch's member names; times are seconds since 1970. A long answer comes in
pages: each has all queries, over a stretch of time with at most MaxDatapoints values.

Source: CloudWatch API Reference, 2010-08-01.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from quaymaster.core.monitoring.expressions import (
    BadExpression,
    Node,
    Series,
    compute,
    is_select,
    parse_arithmetic,
    parse_select,
)
from quaymaster.core.monitoring.periods import Span, align, by_period
from quaymaster.core.monitoring.queue_statistics import (
    DIMENSION,
    METRICS,
    NAMESPACE,
    Kept,
    evaluate,
    has_statistic,
    is_statistic,
)

QUERIES_MAX: Final = 500
DATAPOINTS_MAX: Final = 100_800
STATISTICS_DATAPOINTS_MAX: Final = 1_440
LISTED_MAX: Final = 500
"""Metrics in a page of ListMetrics."""
_ID = re.compile(r"[a-z][a-zA-Z0-9_]{0,254}")
_TOKEN = re.compile(r"t(\d{1,11})")

ErrorName = Literal[
    "InvalidParameterCombinationException",
    "InvalidParameterValueException",
    "InvalidNextToken",
    "MissingRequiredParameterException",
    "ValidationException",
]


class BadMetricRequest(Exception):
    """A request that is refused; `name` is that of the error in CloudWatch's service model."""

    def __init__(self, name: ErrorName, message: str) -> None:
        super().__init__(message)
        self.name: ErrorName = name


class Asked(NamedTuple):
    """A statistic of a metric. `queue` is None where no queue can be meant: there are no values then."""

    queue: str | None
    metric: str
    statistic: str
    unit: str | None = None


class Query(NamedTuple):
    """One of GetMetricData's queries: something asked for, or an expression over others."""

    id: str
    label: str | None
    is_returned: bool
    period_s: int
    asked: Asked | None
    expression: Node | None


class Need(NamedTuple):
    """What has to be read: all that is kept of a queue in some periods."""

    queue: str
    span: Span


class DataPlan(NamedTuple):
    """What GetMetricData is to answer in this page. `token` names the next one."""

    queries: tuple[Query, ...]
    spans: Mapping[str, Span]
    is_descending: bool
    token: str | None

    @property
    def needs(self) -> set[Need]:
        """Return what has to be read."""
        return {
            Need(query.asked.queue, self.spans[query.id])
            for query in self.queries
            if query.asked is not None and query.asked.queue is not None
        }


Known = Mapping[Need, Sequence[Kept]]


# GetMetricData


def plan_metric_data(given: Mapping[str, Any], account: str, now_s: float) -> DataPlan:
    """Return what a request asks for. Raises BadMetricRequest."""
    queries = _queries(given["MetricDataQueries"], account)
    start, end = float(given["StartTime"]), float(given["EndTime"])
    if start >= end:
        raise BadMetricRequest(
            "ValidationException", "The parameter StartTime must be less than the parameter EndTime."
        )
    most = given.get("MaxDatapoints") or DATAPOINTS_MAX
    if not 1 <= most <= DATAPOINTS_MAX:
        raise BadMetricRequest("ValidationException", f"MaxDatapoints is between 1 and {DATAPOINTS_MAX}.")
    is_descending = given.get("ScanBy") != "TimestampAscending"
    spans = {query.id: align(start, end, query.period_s, now_s) for query in queries}
    spans, token = _page(queries, spans, min(most, DATAPOINTS_MAX), given.get("NextToken"), is_descending)
    return DataPlan(queries, spans, is_descending, token)


def _page(
    queries: Sequence[Query],
    spans: Mapping[str, Span],
    most: int,
    token: str | None,
    is_descending: bool,
) -> tuple[dict[str, Span], str | None]:
    """Return the part of the periods that a page has, and the token of the next one."""
    first = min(span.start_s for span in spans.values())
    last = max(span.periods_end_s for span in spans.values())
    at = last if is_descending else first
    if token is not None:
        found = _TOKEN.fullmatch(token)
        if found is None or not first <= int(found[1]) <= last:
            raise BadMetricRequest("InvalidNextToken", "The token is not of this request.")
        at = int(found[1])
    longest = max(query.period_s for query in queries)
    in_a_period = sum(-(-longest // query.period_s) for query in queries if query.is_returned) or 1
    stretch_s = max(1, most // in_a_period) * longest
    low, high = (at - stretch_s, at) if is_descending else (at, at + stretch_s)
    rest = low if is_descending else high
    has_more = rest > first if is_descending else rest < last
    return {id: _cut(span, low, high) for id, span in spans.items()}, f"t{rest}" if has_more else None


def _cut(span: Span, low: int, high: int) -> Span:
    """Return those periods that begin at `low` or later, and before `high`."""
    skipped = max(0, -(-(low - span.start_s) // span.period_s))
    return Span(span.start_s + skipped * span.period_s, min(span.end_s, high), span.period_s)


def _queries(given: Sequence[Mapping[str, Any]], account: str) -> tuple[Query, ...]:
    if not 1 <= len(given) <= QUERIES_MAX:
        raise BadMetricRequest("ValidationException", f"MetricDataQueries has 1 to {QUERIES_MAX} members.")
    queries: dict[str, Query] = {}
    for one in given:
        query = _query(one, account)
        if query.id in queries:
            raise BadMetricRequest("ValidationException", f"The id {query.id} is given twice.")
        queries[query.id] = query
    return tuple(_with_period(query, queries, ()) for query in queries.values())


def _query(given: Mapping[str, Any], account: str) -> Query:
    name = given["Id"]
    if _ID.fullmatch(name) is None:
        raise BadMetricRequest(
            "ValidationException",
            f"The id {name} does not begin with a lower-case letter, or has other characters.",
        )
    if given.get("AccountId") not in (None, account):
        raise BadMetricRequest("ValidationException", "An account has the metrics of its own queues only.")
    stat, expression = given.get("MetricStat"), given.get("Expression")
    if (stat is None) == (expression is None):
        raise BadMetricRequest(
            "ValidationException", f"The query {name} needs either MetricStat or Expression, and not both."
        )
    is_returned = given.get("ReturnData") is not False
    if stat is not None:
        metric = stat["Metric"]
        asked = Asked(
            _queue_of(metric.get("Namespace"), metric.get("Dimensions") or ()),
            metric.get("MetricName") or "",
            _statistic(stat["Stat"]),
            stat.get("Unit"),
        )
        return Query(name, given.get("Label"), is_returned, _period(stat["Period"]), asked, None)
    period_s = 0 if given.get("Period") is None else _period(given["Period"])
    try:
        if not is_select(str(expression)):
            return Query(
                name, given.get("Label"), is_returned, period_s, None, parse_arithmetic(str(expression))
            )
        selected = parse_select(str(expression))
    except BadExpression as error:
        raise BadMetricRequest("ValidationException", f"Error in expression '{name}': {error}") from None
    if not period_s:
        raise BadMetricRequest("ValidationException", f"The query {name} needs a Period.")
    dimensions = [{"Name": selected.dimension, "Value": selected.queue}]
    asked = Asked(_queue_of(selected.namespace, dimensions), selected.metric, selected.statistic)
    return Query(name, given.get("Label"), is_returned, period_s, asked, None)


def _with_period(query: Query, queries: Mapping[str, Query], above: tuple[str, ...]) -> Query:
    """Return a query with a period: that of what its expression needs, which must be one."""
    if query.expression is None:
        return query
    if query.id in above:
        raise BadMetricRequest("ValidationException", f"The expression '{query.id}' needs itself.")
    periods = set()
    for name in sorted(query.expression.ids()):
        if name not in queries:
            raise BadMetricRequest(
                "ValidationException", f"Error in expression '{query.id}': there is no query {name}."
            )
        periods.add(_with_period(queries[name], queries, (*above, query.id)).period_s)
    if len(periods) != 1:
        raise BadMetricRequest(
            "ValidationException", f"The expression '{query.id}' needs queries, all of them of one period."
        )
    return query._replace(period_s=periods.pop())


def answer_metric_data(plan: DataPlan, known: Known) -> dict[str, Any]:
    """Return the output of GetMetricData; `known` has what the plan needs."""
    queries = {query.id: query for query in plan.queries}
    series: dict[str, Series] = {}
    failed: dict[str, str] = {}
    for query in plan.queries:
        _evaluate(query, queries, plan.spans, known, series, failed)
    results = [_result(query, plan, series[query.id], failed) for query in plan.queries if query.is_returned]
    output: dict[str, Any] = {"MetricDataResults": results, "Messages": []}
    if plan.token is not None:
        output["NextToken"] = plan.token
    return output


def _evaluate(
    query: Query,
    queries: Mapping[str, Query],
    spans: Mapping[str, Span],
    known: Known,
    series: dict[str, Series],
    failed: dict[str, str],
) -> None:
    if query.id in series:
        return
    if query.asked is not None:
        span = spans[query.id]
        series[query.id] = _points(query.asked, span, known)
        return
    assert query.expression is not None, "a query asks for something, or is an expression"
    for name in query.expression.ids():
        _evaluate(queries[name], queries, spans, known, series, failed)
    try:
        found = compute(query.expression, series)
    except BadExpression as error:
        found = {}
        failed[query.id] = str(error)
    assert isinstance(found, dict), "an expression needs a series"
    series[query.id] = found


def _points(asked: Asked, span: Span, known: Known) -> Series:
    metric = METRICS.get(asked.metric)
    if asked.queue is None or metric is None or asked.unit not in (None, metric.unit):
        return {}
    if not has_statistic(metric, asked.statistic):
        return {}
    points: Series = {}
    for at_s, kept in by_period(span, known[Need(asked.queue, span)]):
        value = evaluate(metric, asked.statistic, kept)
        if value is not None:
            points[at_s] = value
    return points


def _result(query: Query, plan: DataPlan, points: Series, failed: Mapping[str, str]) -> dict[str, Any]:
    times = sorted(points, reverse=plan.is_descending)
    result: dict[str, Any] = {
        "Id": query.id,
        "Label": query.label or _label(query, plan.queries),
        "Timestamps": [float(at_s) for at_s in times],
        "Values": [points[at_s] for at_s in times],
        "StatusCode": "Complete" if plan.token is None else "PartialData",
    }
    messages = _messages(query, failed)
    if messages:
        result["Messages"] = messages
    return result


def _messages(query: Query, failed: Mapping[str, str]) -> list[dict[str, str]]:
    if query.id in failed:
        return [{"Code": "EvaluationError", "Value": failed[query.id]}]
    asked = query.asked
    metric = None if asked is None else METRICS.get(asked.metric)
    if asked is None or metric is None or has_statistic(metric, asked.statistic):
        return []
    return [{"Code": "StatisticNotKept", "Value": why_no_statistic(asked.metric, asked.statistic)}]


def why_no_statistic(metric: str, statistic: str) -> str:
    """Return why a metric has no such statistic."""
    return f"{metric} has no {statistic}: of the sizes of messages only the sum is kept."


def _label(query: Query, queries: Iterable[Query]) -> str:
    asked = query.asked
    if asked is None:
        return query.id
    same = [
        other.asked for other in queries if other.asked is not None and other.asked.metric == asked.metric
    ]
    words = [asked.metric]
    if len({other.queue for other in same}) > 1:
        words.insert(0, asked.queue or "")
    if len({other.statistic for other in same}) > 1:
        words.append(asked.statistic)
    return " ".join(words)


# GetMetricStatistics


class StatisticsPlan(NamedTuple):
    """What GetMetricStatistics is to answer."""

    queue: str | None
    metric: str
    statistics: tuple[str, ...]
    unit: str | None
    span: Span

    @property
    def needs(self) -> set[Need]:
        """Return what has to be read."""
        return set() if self.queue is None else {Need(self.queue, self.span)}


def plan_statistics(given: Mapping[str, Any], now_s: float) -> StatisticsPlan:
    """Return what a request asks for. Raises BadMetricRequest."""
    statistics = [*(given.get("Statistics") or ()), *(given.get("ExtendedStatistics") or ())]
    if not statistics:
        raise BadMetricRequest(
            "MissingRequiredParameterException",
            "At least one of Statistics and ExtendedStatistics is needed.",
        )
    start, end = float(given["StartTime"]), float(given["EndTime"])
    if start >= end:
        raise BadMetricRequest(
            "InvalidParameterValueException",
            "The parameter StartTime must be less than the parameter EndTime.",
        )
    period_s = _period(given["Period"])
    span = align(start, end, period_s, now_s)
    if span.periods > STATISTICS_DATAPOINTS_MAX:
        raise BadMetricRequest(
            "InvalidParameterCombinationException",
            f"You have requested up to {span.periods:,} datapoints, which exceeds the limit of "
            f"{STATISTICS_DATAPOINTS_MAX:,}. You may reduce the datapoints requested by increasing Period, or "
            "decreasing the time range.",
        )
    return StatisticsPlan(
        _queue_of(given.get("Namespace"), given.get("Dimensions") or ()),
        given["MetricName"],
        tuple(_statistic(one) for one in statistics),
        given.get("Unit"),
        span,
    )


def answer_statistics(plan: StatisticsPlan, known: Known) -> dict[str, Any]:
    """Return the output of GetMetricStatistics; `known` has what the plan needs."""
    points: dict[int, dict[str, Any]] = {}
    for statistic in plan.statistics:
        asked = Asked(plan.queue, plan.metric, statistic, plan.unit)
        for at_s, value in _points(asked, plan.span, known).items():
            point = points.setdefault(at_s, {"Timestamp": float(at_s), "Unit": METRICS[plan.metric].unit})
            if statistic[0] == "p":
                point.setdefault("ExtendedStatistics", {})[statistic] = value
            else:
                point[statistic] = value
    return {"Label": plan.metric, "Datapoints": [points[at_s] for at_s in sorted(points)]}


# ListMetrics


def list_metrics(given: Mapping[str, Any], queues: Sequence[tuple[str, bool]]) -> dict[str, Any]:
    """Return the output of ListMetrics. `queues`: names in order, and whether each is FIFO. Raises BadMetricRequest."""
    after = given.get("NextToken")
    wanted: str | None = None
    is_possible = given.get("Namespace") in (None, NAMESPACE)
    for dimension in given.get("Dimensions") or ():
        is_possible = is_possible and dimension["Name"] == DIMENSION
        wanted = dimension.get("Value") or wanted
    found: list[dict[str, Any]] = []
    token = None
    metrics = sorted(METRICS.items())
    for name, is_fifo in queues if is_possible else ():
        if wanted not in (None, name):
            continue
        for metric, row in metrics:
            if (row.is_of_fifo and not is_fifo) or given.get("MetricName") not in (None, metric):
                continue
            if after is not None and (name, metric) <= _place(after):
                continue
            if len(found) == LISTED_MAX:
                token = f"{found[-1]['Dimensions'][0]['Value']} {found[-1]['MetricName']}"
                break
            dimensions = [{"Name": DIMENSION, "Value": name}]
            found.append({"Namespace": NAMESPACE, "MetricName": metric, "Dimensions": dimensions})
        if token is not None:
            break
    output: dict[str, Any] = {"Metrics": found}
    if token is not None:
        output["NextToken"] = token
    return output


def _place(token: str) -> tuple[str, str]:
    name, separator, metric = token.partition(" ")
    if not separator:
        raise BadMetricRequest("InvalidParameterValueException", "The token is not of this request.")
    return name, metric


# Members


def _queue_of(namespace: str | None, dimensions: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the queue that dimensions name, None where they name none."""
    given = {one["Name"]: one.get("Value") for one in dimensions}
    return given.get(DIMENSION) if namespace == NAMESPACE and given.keys() == {DIMENSION} else None


def _period(given: int) -> int:
    if given < 60 or given % 60:
        raise BadMetricRequest(
            "InvalidParameterValueException", "The parameter Period must be a multiple of 60."
        )
    return given


def _statistic(given: str) -> str:
    if not is_statistic(given):
        raise BadMetricRequest(
            "InvalidParameterValueException",
            f"The statistic {given} is not kept. SampleCount, Average, Sum, Minimum, Maximum and percentiles are.",
        )
    return given
