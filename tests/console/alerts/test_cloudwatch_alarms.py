"""CloudWatch's operations on alarms."""

from __future__ import annotations

from typing import Any

import pytest

from console.alerts.support import ACCOUNT, REGION, SHOP, AlertWorld, hook_arn, run_alerts
from quaymaster.console.alerts.alert_book import AlertBook
from quaymaster.console.alerts.cloudwatch_alarms import CloudWatchAlarms
from quaymaster.protocol.cloudwatch.errors import CloudWatchError
from quaymaster.protocol.rpc.monitoring_calls import MonitoringCall, encode_members

QUEUE = f"arn:aws:sqs:{REGION}:{ACCOUNT}:told"
PUT: dict[str, Any] = {
    "AlarmName": "orders-old",
    "MetricName": "ApproximateAgeOfOldestMessage",
    "Namespace": "AWS/SQS",
    "Statistic": "Maximum",
    "Dimensions": [{"Name": "QueueName", "Value": "orders"}],
    "Period": 60,
    "EvaluationPeriods": 5,
    "DatapointsToAlarm": 3,
    "Threshold": 300.0,
    "ComparisonOperator": "GreaterThanThreshold",
    "TreatMissingData": "notBreaching",
    "AlarmActions": [QUEUE],
    "AlarmDescription": "look",
    "Tags": [{"Key": "team", "Value": "a"}],
    "Unit": "Seconds",
}


class Caller:
    """Calls operations as an account."""

    def __init__(self, book: AlertBook, account: str = ACCOUNT) -> None:
        self._alarms = CloudWatchAlarms(book)
        self._account = account

    async def __call__(self, operation: str, **given: Any) -> dict[str, Any]:
        principal = f"arn:aws:iam::{self._account}:root"
        call = MonitoringCall(
            "cloudwatch", operation, self._account, principal, REGION, encode_members(given), "id"
        )
        return await self._alarms.answer(call)


async def names(call: Caller, **given: Any) -> list[str]:
    """Return the names of the alarms that are described."""
    return [alarm["AlarmName"] for alarm in (await call("DescribeAlarms", **given))["MetricAlarms"]]


def test_an_alarm_is_described_as_it_was_put() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            call = Caller(book)
            assert await call("PutMetricAlarm", **PUT) == {}

            [alarm] = (await call("DescribeAlarms"))["MetricAlarms"]

            same = {name: value for name, value in PUT.items() if name != "Tags"}
            assert {name: alarm[name] for name in same} == same
            assert alarm["AlarmArn"] == f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:orders-old"
            assert (alarm["StateValue"], alarm["ActionsEnabled"]) == ("INSUFFICIENT_DATA", True)
            assert alarm["StateUpdatedTimestamp"] == world.now_ms / 1_000
            assert "StateReasonData" not in alarm
            assert (await Caller(book, SHOP)("DescribeAlarms"))["MetricAlarms"] == []

    run_alerts(scenario)


def test_what_an_alarm_leaves_out_has_the_defaults_of_cloudwatch() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            call = Caller(book)
            left_out = (
                "DatapointsToAlarm",
                "TreatMissingData",
                "AlarmActions",
                "AlarmDescription",
                "Tags",
                "Unit",
            )
            await call("PutMetricAlarm", **{name: PUT[name] for name in PUT if name not in left_out})

            [alarm] = (await call("DescribeAlarms"))["MetricAlarms"]

            assert (alarm["DatapointsToAlarm"], alarm["TreatMissingData"], alarm["AlarmActions"]) == (
                5,
                "missing",
                [],
            )
            assert "AlarmDescription" not in alarm
            assert "Unit" not in alarm

    run_alerts(scenario)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"Namespace": "AWS/EC2"}, "InvalidParameterValueException"),
        ({"MetricName": None}, "MissingRequiredParameterException"),
        ({"Threshold": None}, "MissingRequiredParameterException"),
        ({"Metrics": [{"Id": "m"}]}, "ValidationException"),
        ({"ExtendedStatistic": "p99"}, "ValidationException"),
        ({"Statistic": "p99"}, "ValidationException"),
        ({"Period": 10}, "ValidationException"),
        ({"ComparisonOperator": "GreaterThanUpperThreshold"}, "ValidationException"),
        ({"TreatMissingData": "sometimes"}, "ValidationException"),
        ({"Dimensions": []}, "ValidationException"),
        ({"AlarmActions": [hook_arn()]}, "ValidationException"),
        ({"AlarmActions": ["arn:aws:automate:us-east-1:ec2:stop"]}, "ValidationException"),
    ],
)
def test_an_alarm_that_cannot_be_is_refused_and_nothing_is_ignored(
    changes: dict[str, Any], code: str
) -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            with pytest.raises(CloudWatchError) as refused:
                await Caller(book)("PutMetricAlarm", **{**PUT, **changes})
            assert refused.value.code == code
            assert len(book.rows.alerts) == 0

    run_alerts(scenario)


def test_one_alarm_too_many_exceeds_a_limit() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book(alerts_per_account_max=0) as book:
            with pytest.raises(CloudWatchError) as refused:
                await Caller(book)("PutMetricAlarm", **PUT)
            assert refused.value.code == "LimitExceededFault"

    run_alerts(scenario)


def test_alarms_are_found_by_name_prefix_state_and_action() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            call = Caller(book)
            for name in ("a1", "a2", "b1"):
                await call("PutMetricAlarm", **{**PUT, "AlarmName": name})
            await call("PutMetricAlarm", **{**PUT, "AlarmName": "b2", "AlarmActions": []})
            await call(
                "SetAlarmState", AlarmName="a2", StateValue="ALARM", StateReason="x", StateReasonData="{}"
            )

            assert await names(call, AlarmNames=["b1", "a1", "none"]) == ["a1", "b1"]
            assert await names(call, AlarmNamePrefix="a") == ["a1", "a2"]
            assert await names(call, StateValue="ALARM") == ["a2"]
            assert await names(call, ActionPrefix="arn:aws:sqs") == ["a1", "a2", "b1"]
            assert await names(call, AlarmTypes=["CompositeAlarm"]) == []
            assert await names(call, ChildrenOfAlarmName="a1") == []
            [alarm] = (await call("DescribeAlarms", AlarmNames=["a2"]))["MetricAlarms"]
            assert (alarm["StateReason"], alarm["StateReasonData"]) == ("x", "{}")
            with pytest.raises(CloudWatchError) as refused:
                await names(call, AlarmNames=["a1"], AlarmNamePrefix="a")
            assert refused.value.code == "InvalidParameterCombinationException"

    run_alerts(scenario)


def test_alarms_come_in_pages() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            call = Caller(book)
            for number in range(5):
                await call("PutMetricAlarm", **{**PUT, "AlarmName": f"a{number}"})
            found: list[str] = []
            given: dict[str, Any] = {"MaxRecords": 2}
            while True:
                page = await call("DescribeAlarms", **given)
                found += [alarm["AlarmName"] for alarm in page["MetricAlarms"]]
                if "NextToken" not in page:
                    break
                given["NextToken"] = page["NextToken"]
            assert found == [f"a{number}" for number in range(5)]
            for wrong, code in (
                ({"NextToken": "?"}, "InvalidNextToken"),
                ({"MaxRecords": 101}, "ValidationException"),
            ):
                with pytest.raises(CloudWatchError) as refused:
                    await call("DescribeAlarms", **wrong)
                assert refused.value.code == code

    run_alerts(scenario)


def test_alarms_are_found_by_their_metric() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            call = Caller(book)
            await call("PutMetricAlarm", **PUT)
            about = {name: PUT[name] for name in ("MetricName", "Namespace", "Dimensions")}

            for given, count in (
                (about, 1),
                ({**about, "Statistic": "Maximum", "Period": 60}, 1),
                ({**about, "Statistic": "Sum"}, 0),
                ({**about, "Period": 300}, 0),
                ({**about, "ExtendedStatistic": "p99"}, 0),
                ({**about, "Dimensions": []}, 0),
                ({**about, "Namespace": "AWS/EC2"}, 0),
                ({**about, "MetricName": "NumberOfMessagesSent"}, 0),
            ):
                assert len((await call("DescribeAlarmsForMetric", **given))["MetricAlarms"]) == count, given

    run_alerts(scenario)


def test_a_state_is_not_set_for_a_reason_whose_data_are_no_json() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            call = Caller(book)
            await call("PutMetricAlarm", **PUT)
            about = {"AlarmName": "orders-old", "StateValue": "ALARM", "StateReason": "x"}

            for data in ("{bad", "NaN", "[" * 4_000):
                with pytest.raises(CloudWatchError, match="StateReasonData was not valid JSON") as refused:
                    await call("SetAlarmState", **about, StateReasonData=data)
                assert (refused.value.code, refused.value.row.code) == ("InvalidFormatFault", "InvalidFormat")
            assert await names(call, StateValue="ALARM") == []

            await call("SetAlarmState", **about, StateReasonData="")
            assert await names(call, StateValue="ALARM") == ["orders-old"]

    run_alerts(scenario)


def test_a_history_has_what_happened_in_its_order() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            call = Caller(book)
            await call("PutMetricAlarm", **PUT)
            world.now_ms += 1_000
            await call("SetAlarmState", AlarmName="orders-old", StateValue="ALARM", StateReason="x")
            await call("PutMetricAlarm", **{**PUT, "AlarmName": "other"})

            async def kinds(**given: Any) -> list[tuple[str, str]]:
                items = (await call("DescribeAlarmHistory", **given))["AlarmHistoryItems"]
                return [(item["AlarmName"], item["HistoryItemType"]) for item in items]

            made, state = ("orders-old", "ConfigurationUpdate"), ("orders-old", "StateUpdate")
            assert await kinds(AlarmName="orders-old") == [state, made]
            assert await kinds(AlarmName="orders-old", ScanBy="TimestampAscending") == [made, state]
            assert await kinds(HistoryItemType="StateUpdate") == [state]
            assert await kinds(AlarmName="none") == []
            since_s = world.now_ms / 1_000
            assert await kinds(AlarmName="orders-old", StartDate=since_s) == [state]
            assert await kinds(AlarmName="orders-old", EndDate=since_s - 0.5) == [made]
            assert len(await kinds()) == 3
            first = await call("DescribeAlarmHistory", MaxRecords=2)
            second = await call("DescribeAlarmHistory", MaxRecords=2, NextToken=first["NextToken"])
            assert len(second["AlarmHistoryItems"]) == 1
            [item] = second["AlarmHistoryItems"]
            assert (item["AlarmType"], item["HistorySummary"]) == (
                "MetricAlarm",
                'Alarm "orders-old" created',
            )

    run_alerts(scenario)


def test_alarms_are_deleted_disabled_and_enabled_by_name() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            call = Caller(book)
            await call("PutMetricAlarm", **PUT)
            await call("DisableAlarmActions", AlarmNames=["orders-old"])
            assert not (await call("DescribeAlarms"))["MetricAlarms"][0]["ActionsEnabled"]
            await call("EnableAlarmActions", AlarmNames=["orders-old"])
            assert (await call("DescribeAlarms"))["MetricAlarms"][0]["ActionsEnabled"]
            with pytest.raises(CloudWatchError) as refused:
                await call("DeleteAlarms", AlarmNames=["none"])
            assert refused.value.code == "ResourceNotFound"
            with pytest.raises(CloudWatchError) as too_many:
                await call("DeleteAlarms", AlarmNames=[str(number) for number in range(101)])
            assert too_many.value.code == "ValidationException"
            await call("DeleteAlarms", AlarmNames=["orders-old"])
            assert await names(call) == []

    run_alerts(scenario)


def test_tags_are_of_an_alarm_by_its_arn() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            call = Caller(book)
            await call("PutMetricAlarm", **PUT)
            arn = f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:orders-old"
            await call("TagResource", ResourceARN=arn, Tags=[{"Key": "a", "Value": "1"}])
            await call("UntagResource", ResourceARN=arn, TagKeys=["team"])
            assert await call("ListTagsForResource", ResourceARN=arn) == {
                "Tags": [{"Key": "a", "Value": "1"}]
            }
            for other, code in (
                (f"arn:aws:cloudwatch:{REGION}:{SHOP}:alarm:orders-old", "InvalidParameterValueException"),
                (f"{arn}2", "ResourceNotFoundException"),
            ):
                with pytest.raises(CloudWatchError) as refused:
                    await call("ListTagsForResource", ResourceARN=other)
                assert refused.value.code == code

    run_alerts(scenario)


def test_each_operation_is_named() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            assert len(CloudWatchAlarms(book).operations) == 11

    run_alerts(scenario)
