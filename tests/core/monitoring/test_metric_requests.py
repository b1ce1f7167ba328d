"""CloudWatch's requests for metrics, from their members to their answers."""

from collections.abc import Mapping
from typing import Any

import pytest

from quaymaster.core.monitoring.metric_requests import (
    BadMetricRequest,
    Need,
    answer_metric_data,
    answer_statistics,
    list_metrics,
    plan_metric_data,
    plan_statistics,
)
from quaymaster.core.monitoring.minutes import VALUES
from quaymaster.core.monitoring.queue_statistics import METRICS, Kept, summary_of

ACCOUNT = "000000000000"
START_S = 1_800_000_000 // 86_400 * 86_400
NOW_S = START_S + 3_600.0
VISIBLE = "ApproximateNumberOfMessagesVisible"


def stat(
    id: str,
    metric: str = "NumberOfMessagesSent",
    statistic: str = "Sum",
    *,
    queue: str = "orders",
    **more: Any,
) -> dict[str, Any]:
    dimensions = [{"Name": "QueueName", "Value": queue}]
    named = {"Namespace": "AWS/SQS", "MetricName": metric, "Dimensions": dimensions}
    period_s = more.pop("period_s", 60)
    return {"Id": id, "MetricStat": {"Metric": named, "Stat": statistic, "Period": period_s}, **more}


def given(*queries: dict[str, Any], minutes: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "MetricDataQueries": list(queries),
        "StartTime": float(START_S),
        "EndTime": float(START_S + 60 * minutes),
        **more,
    }


def minutes(queue: str) -> list[Kept]:
    """Return ten minutes in which a queue was sent 1, 2, 3 ... messages of 10 bytes; the third is missing."""
    found = []
    for number in range(10):
        if number != 2:
            values = {"sent": number + 1, "sent_bytes": 10 * (number + 1), "visible": len(queue)}
            found.append(Kept(START_S + 60 * number, tuple(summary_of(values.get(name)) for name in VALUES)))
    return found


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    plan = plan_metric_data(request, ACCOUNT, NOW_S)
    return answer_metric_data(plan, {need: minutes(need.queue) for need in plan.needs})


def values(output: Mapping[str, Any]) -> dict[str, dict[float, float]]:
    """Return the series of an output by their ids, times counted from the start."""
    return {
        one["Id"]: {at - START_S: value for at, value in zip(one["Timestamps"], one["Values"], strict=True)}
        for one in output["MetricDataResults"]
    }


def refused(request: Mapping[str, Any]) -> tuple[str, str]:
    with pytest.raises(BadMetricRequest) as caught:
        answer(request)
    return caught.value.name, str(caught.value)


def test_values_come_the_newest_first_and_a_gap_is_no_zero() -> None:
    [result] = answer(given(stat("m")))["MetricDataResults"]

    assert [at - START_S for at in result["Timestamps"]] == [180, 60, 0]
    assert result["Values"] == [4.0, 2.0, 1.0]
    assert result["StatusCode"] == "Complete"
    assert result["Label"] == "NumberOfMessagesSent"
    assert "Messages" not in result


def test_values_come_the_oldest_first_where_that_is_asked_for() -> None:
    [result] = answer(given(stat("m"), ScanBy="TimestampAscending"))["MetricDataResults"]

    assert result["Values"] == [1.0, 2.0, 4.0]


def test_longer_periods_add_up() -> None:
    request = given(stat("m", period_s=300), minutes=10)

    assert values(answer(request)) == {"m": {0: 12.0, 300: 40.0}}


def test_what_is_not_there_has_no_values_and_is_no_error() -> None:
    other = stat("n")
    other["MetricStat"]["Metric"]["Namespace"] = "AWS/EC2"
    bytes_of = stat("u")
    bytes_of["MetricStat"]["Unit"] = "Bytes"

    assert values(answer(given(stat("m", "NoSuchMetric"), other, bytes_of))) == {"m": {}, "n": {}, "u": {}}


def test_expressions_are_over_other_queries_also_those_not_returned_and_other_expressions() -> None:
    request = given(
        {"Id": "rate", "Expression": "twice / 60", "Label": "per second"},
        {"Id": "twice", "Expression": "m * 2", "ReturnData": False},
        stat("m", ReturnData=False),
    )

    output = answer(request)

    assert values(output) == {"rate": {0: 2 / 60, 60: 4 / 60, 180: 8 / 60}}
    assert output["MetricDataResults"][0]["Label"] == "per second"


def test_an_expression_that_cannot_be_computed_says_so_in_its_messages() -> None:
    [result] = answer(given(stat("m", ReturnData=False), {"Id": "e", "Expression": "m + 1 / 0"}))[
        "MetricDataResults"
    ]

    assert result["Values"] == []
    assert result["Label"] == "e"
    assert result["Messages"] == [{"Code": "EvaluationError", "Value": "The expression divides by zero."}]


def test_the_query_of_keda_is_answered() -> None:
    words = f"""SELECT AVG("{VISIBLE}") FROM "AWS/SQS" WHERE QueueName = 'orders'"""

    assert values(answer(given({"Id": "q1", "Expression": words, "Period": 60}))) == {
        "q1": {0: 6.0, 60: 6.0, 180: 6.0}
    }


def test_a_statistic_that_is_not_kept_says_so() -> None:
    [result] = answer(given(stat("m", "SentMessageSize", "Maximum")))["MetricDataResults"]

    assert result["Values"] == []
    assert "only the sum is kept" in result["Messages"][0]["Value"]


def test_sizes_of_a_minute_without_messages_are_no_value() -> None:
    empty = Kept(START_S, tuple(summary_of(0 if name.startswith("sent") else None) for name in VALUES))
    plan = plan_metric_data(given(stat("m", "SentMessageSize", "Average")), ACCOUNT, NOW_S)

    assert values(answer_metric_data(plan, {need: [empty] for need in plan.needs})) == {"m": {}}


def test_labels_tell_queries_apart() -> None:
    request = given(stat("a"), stat("b", queue="mail"), stat("c", VISIBLE), stat("d", VISIBLE, "Maximum"))

    assert [one["Label"] for one in answer(request)["MetricDataResults"]] == [
        "orders NumberOfMessagesSent",
        "mail NumberOfMessagesSent",
        f"{VISIBLE} Sum",
        f"{VISIBLE} Maximum",
    ]


@pytest.mark.parametrize("scan", ["TimestampAscending", "TimestampDescending"])
def test_pages_have_all_values_once(scan: str) -> None:
    request = given(stat("m"), stat("n", queue="mail", period_s=120), minutes=10, ScanBy=scan)
    whole = values(answer(request))
    pages: dict[str, list[tuple[float, float]]] = {"m": [], "n": []}
    token: str | None = None
    count = 0
    while count == 0 or token is not None:
        page = answer({**request, "MaxDatapoints": 3, **({"NextToken": token} if token else {})})
        token = page.get("NextToken")
        count += 1
        for id, series in values(page).items():
            pages[id] += series.items()
        statuses = {one["StatusCode"] for one in page["MetricDataResults"]}
        assert statuses == {"Complete" if token is None else "PartialData"}

    assert count == 5
    assert {id: dict(points) for id, points in pages.items()} == whole
    assert all(len(points) == len(whole[id]) for id, points in pages.items())


def test_a_page_of_queries_none_of_which_is_returned_is_empty() -> None:
    assert answer(given(stat("m", ReturnData=False)))["MetricDataResults"] == []


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (given(stat("m"), minutes=0), "StartTime must be less"),
        (given(), "1 to 500"),
        (given(stat("m"), stat("m")), "given twice"),
        (given(stat("M")), "lower-case"),
        (given(stat("m", AccountId="111111111111")), "own queues only"),
        (given({"Id": "m"}), "either MetricStat or Expression"),
        (given(stat("m", Expression="1")), "either MetricStat or Expression"),
        (given({"Id": "e", "Expression": "m +"}), "Error in expression 'e': The expression ends too early"),
        (given({"Id": "e", "Expression": "m + 1"}), "there is no query m"),
        (given({"Id": "e", "Expression": "f"}, {"Id": "f", "Expression": "e"}), "needs itself"),
        (given({"Id": "e", "Expression": "1 + 1"}), "all of them of one period"),
        (given(stat("m"), stat("n", period_s=120), {"Id": "e", "Expression": "m + n"}), "of one period"),
        (given(stat("m"), MaxDatapoints=200_000), "MaxDatapoints"),
        (
            given({"Id": "q", "Expression": """SELECT SUM(m) FROM "AWS/SQS" WHERE QueueName = 'q'"""}),
            "needs a Period",
        ),
    ],
)
def test_requests_that_cannot_be_are_refused(request_: dict[str, Any], told: str) -> None:
    name, message = refused(request_)

    assert name == "ValidationException"
    assert told in message


def test_periods_statistics_and_tokens_that_there_are_not_are_refused() -> None:
    assert refused(given(stat("m", period_s=90)))[0] == "InvalidParameterValueException"
    assert refused(given(stat("m", statistic="Median")))[0] == "InvalidParameterValueException"
    assert refused(given(stat("m"), NextToken="t1"))[0] == "InvalidNextToken"
    assert refused(given(stat("m"), NextToken="nonsense"))[0] == "InvalidNextToken"


# GetMetricStatistics


def statistics(**changed: Any) -> dict[str, Any]:
    return {
        "Namespace": "AWS/SQS",
        "MetricName": VISIBLE,
        "Dimensions": [{"Name": "QueueName", "Value": "orders"}],
        "StartTime": float(START_S),
        "EndTime": START_S + 180.0,
        "Period": 60,
        "Statistics": ["Sum", "Maximum"],
        "ExtendedStatistics": ["p90"],
        **changed,
    }


def test_statistics_of_a_metric_are_points_with_all_that_was_asked_for() -> None:
    plan = plan_statistics(statistics(), NOW_S)
    assert plan.needs == {Need("orders", plan.span)}

    output = answer_statistics(plan, {need: minutes("orders") for need in plan.needs})

    assert output["Label"] == VISIBLE
    assert output["Datapoints"] == [
        {
            "Timestamp": float(START_S + at),
            "Unit": "Count",
            "Sum": 6.0,
            "Maximum": 6.0,
            "ExtendedStatistics": {"p90": 6.0},
        }
        for at in (0, 60)
    ]


def test_statistics_of_no_queue_are_empty() -> None:
    plan = plan_statistics(statistics(Dimensions=[]), NOW_S)

    assert plan.needs == set()
    assert answer_statistics(plan, {}) == {"Label": VISIBLE, "Datapoints": []}


@pytest.mark.parametrize(
    ("changed", "name", "told"),
    [
        ({"Statistics": [], "ExtendedStatistics": None}, "MissingRequiredParameterException", "At least one"),
        ({"EndTime": float(START_S)}, "InvalidParameterValueException", "must be less"),
        ({"Period": 30}, "InvalidParameterValueException", "multiple of 60"),
        ({"Statistics": ["Mode"]}, "InvalidParameterValueException", "Mode is not kept"),
        (
            {"EndTime": START_S + 60.0 * 2_880},
            "InvalidParameterCombinationException",
            "You have requested up to 2,880 datapoints, which exceeds the limit of 1,440",
        ),
    ],
)
def test_statistics_that_cannot_be_are_refused(changed: dict[str, Any], name: str, told: str) -> None:
    with pytest.raises(BadMetricRequest, match=told) as caught:
        plan_statistics(statistics(**changed), NOW_S)
    assert caught.value.name == name


# ListMetrics


def listed(output: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(one["Dimensions"][0]["Value"], one["MetricName"]) for one in output["Metrics"]]


def test_fifo_queues_have_metrics_that_others_lack() -> None:
    found = listed(list_metrics({}, [("mail", False), ("orders.fifo", True)]))

    of_fifo = {name for name, metric in METRICS.items() if metric.is_of_fifo}
    assert {metric for queue, metric in found if queue == "orders.fifo"} == METRICS.keys()
    assert {metric for queue, metric in found if queue == "mail"} == METRICS.keys() - of_fifo


def test_metrics_are_found_by_name_and_dimension() -> None:
    queues = [("mail", False), ("orders", False)]
    by_value = {
        "Namespace": "AWS/SQS",
        "MetricName": VISIBLE,
        "Dimensions": [{"Name": "QueueName", "Value": "orders"}],
    }

    assert listed(list_metrics(by_value, queues)) == [("orders", VISIBLE)]
    assert len(list_metrics({"Dimensions": [{"Name": "QueueName"}]}, queues)["Metrics"]) == 18
    assert list_metrics({"Namespace": "AWS/EC2"}, queues) == {"Metrics": []}
    assert list_metrics({"Dimensions": [{"Name": "InstanceId"}]}, queues) == {"Metrics": []}


def test_many_metrics_come_in_pages() -> None:
    queues = [(f"q{number:03}", False) for number in range(120)]
    found: list[tuple[str, str]] = []
    token: str | None = None
    pages = 0
    while pages == 0 or token is not None:
        page = list_metrics({} if token is None else {"NextToken": token}, queues)
        token = page.get("NextToken")
        found += listed(page)
        pages += 1

    assert pages == 3
    assert len(found) == len(set(found)) == 120 * 9
    with pytest.raises(BadMetricRequest, match="token"):
        list_metrics({"NextToken": "nonsense"}, queues)
