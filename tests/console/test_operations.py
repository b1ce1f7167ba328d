"""What a console answers to front ends: CloudWatch's requests for metrics and dashboards, and scrapes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from console.monitored import ACCOUNT, CUSTOMER, NOON_MS, NOON_S, Monitored, definition, monitored, until
from quaymaster.console import dashboard_operations
from quaymaster.console.dashboard_operations import DashboardOperations
from quaymaster.console.dispatch import Dispatch
from quaymaster.console.metric_operations import MetricOperations
from quaymaster.coordination.interface import RevisionMismatch
from quaymaster.core.values.errors import NotNow, QueueDoesNotExist
from quaymaster.core.values.queue_metrics import QueueMetricsRow
from quaymaster.protocol.admin.operations import OPERATIONS
from quaymaster.protocol.admin.queues import TIME_MS_MAX, QueueHistory
from quaymaster.protocol.rpc.monitoring_calls import (
    SCRAPE_METRICS,
    MonitoringAnswer,
    MonitoringCall,
    MonitoringService,
    encode_members,
)

ORDERS = definition(7, "orders")
OTHER = definition(8, "orders", account=CUSTOMER)
DIMENSIONS = [{"Name": "QueueName", "Value": "orders"}]


def dispatch_of(found: Monitored) -> Dispatch:
    dispatch = Dispatch()
    dispatch.add("cloudwatch", MetricOperations(found.monitor).handlers)
    dashboards = DashboardOperations(found.store, now_ms=lambda: found.now_ms)
    dispatch.add("cloudwatch", dashboards.handlers)
    dispatch.add("admin", dashboards.admin_handlers)
    return dispatch


async def ask(
    dispatch: Dispatch,
    operation: str,
    *,
    account: str = ACCOUNT,
    service: MonitoringService = "cloudwatch",
    **given: Any,
) -> MonitoringAnswer:
    arn = f"arn:aws:iam::{account}:root"
    return await dispatch.call(
        MonitoringCall(service, operation, account, arn, "us-east-1", encode_members(given), "r-1")
    )


def code_of(answer: MonitoringAnswer) -> str:
    assert answer.error is not None
    return answer.error.code


async def after_a_minute(found: Monitored) -> Dispatch:
    """Have five messages sent to `orders` of the default account, and 70 to that of a customer."""
    found.leaders.set(QueueMetricsRow(7, 0, 0, 1, visible=1, sent=100))
    found.leaders.set(QueueMetricsRow(8, 0, 0, 1, visible=1, sent=100))
    await found.look(NOON_MS + 5_000)
    found.leaders.set(QueueMetricsRow(7, 0, 0, 1, visible=6, sent=105, sent_bytes=500, wait_ms=1_500))
    found.leaders.set(QueueMetricsRow(8, 0, 0, 1, visible=71, sent=170))
    await found.look(NOON_MS + 60_000)
    return dispatch_of(found)


def statistics(**more: Any) -> dict[str, Any]:
    return {
        "Namespace": "AWS/SQS",
        "MetricName": "NumberOfMessagesSent",
        "Dimensions": DIMENSIONS,
        "StartTime": NOON_S - 300.0,
        "EndTime": NOON_S + 60.0,
        "Period": 60,
        "Statistics": ["Sum"],
        **more,
    }


def test_metrics_are_those_of_the_account_that_asks(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, ORDERS, OTHER) as found:
            dispatch = await after_a_minute(found)

            for account, sent in ((ACCOUNT, 5.0), (CUSTOMER, 70.0)):
                answer = await ask(dispatch, "GetMetricStatistics", account=account, **statistics())
                assert [point["Sum"] for point in answer.returned["Datapoints"]] == [sent]
                stat = {
                    "Metric": {key: statistics()[key] for key in ("Namespace", "MetricName", "Dimensions")}
                }
                query = {"Id": "m", "MetricStat": {**stat, "Period": 60, "Stat": "p50"}}
                times: dict[str, Any] = {"StartTime": NOON_S - 60.0, "EndTime": NOON_S + 60.0}
                answer = await ask(
                    dispatch, "GetMetricData", account=account, MetricDataQueries=[query], **times
                )
                assert answer.returned["MetricDataResults"][0]["Values"] == [sent]
            nobody = await ask(dispatch, "GetMetricStatistics", account="222222222222", **statistics())
            assert nobody.returned["Datapoints"] == []
            listed = await ask(dispatch, "ListMetrics", account=CUSTOMER)
            assert len(listed.returned["Metrics"]) == 9
            assert (await ask(dispatch, "ListMetrics", account="222222222222")).returned["Metrics"] == []

    asyncio.run(run())


def test_a_queue_that_is_gone_still_has_its_past(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, ORDERS) as found:
            dispatch = await after_a_minute(found)
            await found.store.transaction([], [], [f"/queues/{ACCOUNT}/orders"])
            await until(lambda: found.queues.find(ACCOUNT, "orders") is None)

            answer = await ask(dispatch, "GetMetricStatistics", **statistics(ExtendedStatistics=["p90"]))
            [point] = answer.returned["Datapoints"]
            assert (point["Sum"], point["ExtendedStatistics"]["p90"]) == (5.0, 5.0)

    asyncio.run(run())


def test_requests_that_cannot_be_are_refused_as_cloudwatch_does(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, ORDERS) as found:
            dispatch = dispatch_of(found)

            assert code_of(await ask(dispatch, "GetMetricStatistics", **statistics(Period=7))) == (
                "InvalidParameterValueException"
            )
            assert code_of(await ask(dispatch, "PutMetricData")) == "InvalidAction"
            assert code_of(await ask(dispatch, "ListMetrics", service="admin")) == "InvalidAction"
            assert "ListMetrics" not in dispatch.operations("admin")
            assert "ListMetrics" in dispatch.operations("cloudwatch")

    asyncio.run(run())


def test_a_bug_in_an_operation_is_a_failure_of_its_request_alone(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, ORDERS) as found:
            dispatch = dispatch_of(found)

            async def fail(call: MonitoringCall) -> None:
                raise ZeroDivisionError

            async def refuse(call: MonitoringCall) -> None:
                raise QueueDoesNotExist

            dispatch.add("admin", {"Fail": fail, "Refuse": refuse})
            assert code_of(await ask(dispatch, "Fail", service="admin")) == "InternalServiceFault"
            refused = (await ask(dispatch, "Refuse", service="admin")).error
            assert refused is not None
            assert refused.status == 400
            assert "NonExistentQueue" in refused.code

    asyncio.run(run())


def test_a_customers_scrape_has_its_own_queues_only(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, ORDERS, OTHER) as found:
            dispatch = await after_a_minute(found)

            body = (await ask(dispatch, SCRAPE_METRICS, account=CUSTOMER)).returned["Body"]
            assert f'quaymaster_queue_sent_total{{account="{CUSTOMER}",queue="orders"}} 70' in body
            assert ACCOUNT not in body
            found.now_ms += 60_000
            stale = (await ask(dispatch, SCRAPE_METRICS, account=CUSTOMER)).returned["Body"]
            assert CUSTOMER not in stale

    asyncio.run(run())


def test_the_admin_api_shows_the_history_of_a_queue(tmp_path: Path) -> None:
    given = {
        "name": "orders",
        "statistic": "Sum",
        "period_s": 60,
        "start_ms": NOON_MS - 60_000,
        "end_ms": NOON_MS + 60_000,
    }

    async def run() -> None:
        async with monitored(tmp_path, ORDERS) as found:
            await after_a_minute(found)
            dispatch = Dispatch()
            dispatch.add("admin", MetricOperations(found.monitor).admin_handlers)

            async def history(metric: str, **more: Any) -> MonitoringAnswer:
                return await ask(
                    dispatch, "GetQueueHistory", service="admin", metric=metric, **{**given, **more}
                )

            shown = (await history("NumberOfMessagesSent")).returned
            assert convert(shown, QueueHistory).values == [None, 5.0]
            assert shown["times_ms"] == [NOON_MS - 60_000, NOON_MS]
            late = (await history("NumberOfMessagesSent", start_ms=0, end_ms=TIME_MS_MAX)).returned
            assert set(late["values"]) == {None}
            assert code_of(await history("NoSuchMetric")) == "InvalidParameterValue"
            assert code_of(await history("NumberOfMessagesSent", statistic="Mode")) == "InvalidParameterValue"
            assert code_of(await history("SentMessageSize", statistic="Maximum")) == "InvalidParameterValue"

    asyncio.run(run())


# Dashboards

BODY = json.dumps({"widgets": [{"type": "metric", "properties": {}}, {"type": "text", "properties": {}}]})


def test_dashboards_are_kept_listed_and_deleted(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path) as found:
            dispatch = dispatch_of(found)

            put = await ask(dispatch, "PutDashboard", DashboardName="shop", DashboardBody=BODY)
            assert put.returned["DashboardValidationMessages"] == [
                {"DataPath": "/widgets/1/type", "Message": "Widgets of type text are kept and not shown."}
            ]
            again = await ask(dispatch, "PutDashboard", DashboardName="shop", DashboardBody="{}")
            assert again.returned["DashboardValidationMessages"] == []
            await ask(dispatch, "PutDashboard", DashboardName="other", DashboardBody=BODY)
            other = dispatch_of(found)  # another console of the cell
            got = await ask(other, "GetDashboard", DashboardName="other")
            assert got.returned["DashboardBody"] == BODY
            assert got.returned["DashboardArn"] == f"arn:aws:cloudwatch::{ACCOUNT}:dashboard/other"
            entries = (await ask(other, "ListDashboards")).returned["DashboardEntries"]
            assert [(entry["DashboardName"], entry["Size"]) for entry in entries] == [
                ("other", len(BODY)),
                ("shop", 2),
            ]
            assert entries[0]["LastModified"] == NOON_S
            prefixed = await ask(other, "ListDashboards", DashboardNamePrefix="sh")
            assert len(prefixed.returned["DashboardEntries"]) == 1
            assert (await ask(other, "ListDashboards", account=CUSTOMER)).returned["DashboardEntries"] == []

            missing = await ask(other, "DeleteDashboards", DashboardNames=["shop", "none"])
            assert code_of(missing) == "DashboardNotFoundError"
            assert (await ask(other, "DeleteDashboards", DashboardNames=["shop", "other"])).error is None
            assert (
                code_of(await ask(dispatch, "GetDashboard", DashboardName="shop")) == "DashboardNotFoundError"
            )

    asyncio.run(run())


async def admin(dispatch: Dispatch, operation: str, **given: Any) -> MonitoringAnswer:
    """Ask as the admin API does, and see that what is answered is as its document says."""
    answer = await ask(dispatch, operation, service="admin", **given)
    if answer.error is None:
        convert(answer.returned, OPERATIONS[operation].answer, strict=True)
    return answer


def test_dashboards_of_both_apis_are_the_same(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path) as found:
            dispatch = dispatch_of(found)
            arn = f"arn:aws:cloudwatch::{ACCOUNT}:dashboard/shop"

            put = await admin(dispatch, "PutDashboard", name="shop", body=BODY)
            assert put.returned == {
                "name": "shop",
                "arn": arn,
                "remarks": [
                    {"path": "/widgets/1/type", "message": "Widgets of type text are kept and not shown."}
                ],
            }
            by_cloudwatch = await ask(dispatch, "GetDashboard", DashboardName="shop")
            assert by_cloudwatch.returned["DashboardBody"] == BODY
            await ask(dispatch, "PutDashboard", DashboardName="other", DashboardBody="{}")
            got = await admin(dispatch, "GetDashboard", name="other")
            assert (got.returned["body"], got.returned["modified_ms"]) == ("{}", NOON_MS)

            first = await admin(dispatch, "ListDashboards", prefix="", limit=1, next_token="")
            token = first.returned["next_token"]
            second = await admin(dispatch, "ListDashboards", prefix="", limit=1, next_token=token)
            assert [page.returned["dashboards"][0]["name"] for page in (first, second)] == ["other", "shop"]
            assert second.returned["dashboards"] == [
                {"name": "shop", "arn": arn, "modified_ms": NOON_MS, "bytes": len(BODY)}
            ]
            assert second.returned["next_token"] is None
            none = await admin(dispatch, "ListDashboards", prefix="x", limit=1, next_token="")
            assert none.returned == {"dashboards": [], "next_token": None}

            deleted = await admin(dispatch, "DeleteDashboards", name="shop")
            assert deleted.returned == {"name": "shop", "deleted": True}
            left = await ask(dispatch, "ListDashboards")
            assert [entry["DashboardName"] for entry in left.returned["DashboardEntries"]] == ["other"]

    asyncio.run(run())


def test_the_admin_api_says_why_a_dashboard_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with monitored(tmp_path) as found:
            dispatch = dispatch_of(found)
            for operation, given, code in (
                ("PutDashboard", {"name": "shop", "body": '{"widgets":1}'}, "InvalidParameterValue"),
                ("GetDashboard", {"name": "shop"}, "ResourceNotFoundException"),
                ("DeleteDashboards", {"name": "shop"}, "ResourceNotFoundException"),
                ("ListDashboards", {"prefix": "", "limit": 1, "next_token": "é"}, "InvalidParameterValue"),
            ):
                assert code_of(await admin(dispatch, operation, **given)) == code, operation

            monkeypatch.setattr(dashboard_operations, "DASHBOARDS_MAX", 1)
            await admin(dispatch, "PutDashboard", name="one", body="{}")
            more = await admin(dispatch, "PutDashboard", name="two", body="{}")
            assert code_of(more) == "LimitExceeded"

            async def changed_meanwhile(*given: Any) -> None:
                raise RevisionMismatch("changed", 1, 2)

            monkeypatch.setattr(found.store, "transaction", changed_meanwhile)
            with pytest.raises(NotNow, match="same moment"):
                await admin(dispatch, "PutDashboard", name="one", body="{}")

    asyncio.run(run())


def test_dashboards_that_cannot_be_are_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path) as found:
            dispatch = dispatch_of(found)

            bad = (await ask(dispatch, "PutDashboard", DashboardName="shop", DashboardBody="[]")).error
            assert bad is not None
            assert bad.code == "DashboardInvalidInputError"
            assert bad.more["dashboardValidationMessages"][0]["DataPath"] == "/"
            for operation, given in (
                ("PutDashboard", {"DashboardName": "a/b", "DashboardBody": "{}"}),
                ("DeleteDashboards", {"DashboardNames": []}),
                ("ListDashboards", {"NextToken": "é"}),
            ):
                assert code_of(await ask(dispatch, operation, **given)) == "InvalidParameterValueException"

    asyncio.run(run())


def test_many_dashboards_come_in_pages_and_have_a_limit(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path) as found:
            dispatch = dispatch_of(found)
            for number in range(500):
                await ask(dispatch, "PutDashboard", DashboardName=f"d{number:04}", DashboardBody="{}")

            one_more = await ask(dispatch, "PutDashboard", DashboardName="more", DashboardBody="{}")
            assert code_of(one_more) == "LimitExceededFault"
            changed = await ask(dispatch, "PutDashboard", DashboardName="d0001", DashboardBody="{}")
            assert changed.error is None
            page = (await ask(dispatch, "ListDashboards")).returned
            assert len(page["DashboardEntries"]) == 500
            assert "NextToken" not in page

    asyncio.run(run())
