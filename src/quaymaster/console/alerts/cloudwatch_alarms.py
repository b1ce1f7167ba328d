"""CloudWatch's operations on alarms, which are the console's alerts.

    PutMetricAlarm DescribeAlarms DescribeAlarmsForMetric DescribeAlarmHistory DeleteAlarms SetAlarmState
    EnableAlarmActions DisableAlarmActions ListTagsForResource TagResource UntagResource

Members come checked for their shape. What is not built is refused, and never ignored: alarms on expressions, and
percentiles.

Source: Amazon CloudWatch API Reference; the public service model, 2010-08-01.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from quaymaster.console.alerts.alert_book import AlertBook
from quaymaster.core.alerts.alerts import Alert, PastChange, State
from quaymaster.core.alerts.dimensions import dimensions_of, subject_of
from quaymaster.core.alerts.messages import alert_arn
from quaymaster.core.monitoring.queue_statistics import NAMESPACE
from quaymaster.core.values.errors import CallerError, InvalidParameterValue, LimitExceeded, ResourceNotFound
from quaymaster.core.values.unreadable import UNREADABLE
from quaymaster.protocol.cloudwatch.errors import CloudWatchError
from quaymaster.protocol.rpc.monitoring_calls import MonitoringCall

PAGE: Final = 50
PAGE_MAX: Final = 100
NAMES_MAX: Final = 100
UNSUPPORTED: Final = (
    "ExtendedStatistic",
    "EvaluateLowSampleCountPercentile",
    "Metrics",
    "ThresholdMetricId",
    "EvaluationCriteria",
    "EvaluationInterval",
    "EvaluationWindow",
    "WarmUpConfiguration",
    "ActionConfiguration",
)

Members = Mapping[str, Any]
Answer = dict[str, Any]
_Item = TypeVar("_Item")


class CloudWatchAlarms:
    """Answers the operations; `operations` has them by name."""

    def __init__(self, book: AlertBook) -> None:
        self._book = book
        self._operations: dict[str, Callable[[MonitoringCall, Members], Awaitable[Answer]]] = {
            "PutMetricAlarm": self._put,
            "DescribeAlarms": self._describe,
            "DescribeAlarmsForMetric": self._describe_for_metric,
            "DescribeAlarmHistory": self._describe_history,
            "DeleteAlarms": self._delete,
            "SetAlarmState": self._set_state,
            "EnableAlarmActions": self._enable,
            "DisableAlarmActions": self._disable,
            "ListTagsForResource": self._list_tags,
            "TagResource": self._tag,
            "UntagResource": self._untag,
        }

    @property
    def operations(self) -> frozenset[str]:
        """The names of the operations that are answered here."""
        return frozenset(self._operations)

    async def answer(self, call: MonitoringCall) -> Answer:
        """Return the output of an operation; CloudWatchError, NotNow."""
        try:
            return await self._operations[call.operation](call, call.given)
        except CloudWatchError:
            raise
        except LimitExceeded as error:
            raise CloudWatchError("LimitExceededFault", error.message) from None
        except ResourceNotFound as error:
            if call.operation in _OF_RESOURCES:
                raise CloudWatchError("ResourceNotFoundException", error.message) from None
            raise CloudWatchError("ResourceNotFound", error.message) from None
        except CallerError as error:
            raise CloudWatchError("ValidationException", error.message) from None

    async def _put(self, call: MonitoringCall, given: Members) -> Answer:
        for member in UNSUPPORTED:
            if given.get(member):
                raise CloudWatchError("ValidationException", f"{member} is not supported.")
        for member in ("MetricName", "Namespace", "Statistic", "Period", "Threshold", *_ALWAYS):
            if given.get(member) is None:
                raise CloudWatchError(
                    "MissingRequiredParameterException", f"The parameter {member} is required."
                )
        if given["Namespace"] != NAMESPACE:
            raise CloudWatchError(
                "InvalidParameterValueException", f"The namespace of all metrics here is {NAMESPACE}."
            )
        subject, pattern = subject_of(_dimensions(given))
        periods = int(given["EvaluationPeriods"])
        await self._book.put(
            Alert(
                call.account,
                given["AlarmName"],
                subject,
                pattern,
                given["MetricName"],
                given["Statistic"],
                int(given["Period"]),
                _one_of(given, "ComparisonOperator", _COMPARISONS),
                float(given["Threshold"]),
                periods,
                int(given.get("DatapointsToAlarm") or periods),
                _one_of(given, "TreatMissingData", _TREATMENTS, "missing"),
                tuple(given.get("AlarmActions") or ()),
                tuple(given.get("OKActions") or ()),
                tuple(given.get("InsufficientDataActions") or ()),
                bool(given.get("ActionsEnabled", True)),
                given.get("AlarmDescription") or "",
                _tags(given),
                given.get("Unit") or "",
            )
        )
        return {}

    async def _describe(self, call: MonitoringCall, given: Members) -> Answer:
        names, prefix = given.get("AlarmNames"), given.get("AlarmNamePrefix")
        if names and prefix:
            raise CloudWatchError(
                "InvalidParameterCombinationException", "AlarmNames and AlarmNamePrefix exclude each other."
            )
        if given.get("ChildrenOfAlarmName") or given.get("ParentsOfAlarmName"):
            return {"MetricAlarms": [], "CompositeAlarms": []}  # there are no composite alarms
        kinds = given.get("AlarmTypes") or ["MetricAlarm"]
        state, action = given.get("StateValue"), given.get("ActionPrefix") or ""
        wanted = None if not names else frozenset(names)
        found = [
            alert
            for alert in self._book.rows.alerts.of_account(call.account)
            if "MetricAlarm" in kinds
            and (wanted is None or alert.name in wanted)
            and alert.name.startswith(prefix or "")
            and (not state or self._book.rows.state(alert).state == state)
            and (not action or any(arn.startswith(action) for arn in alert.all_actions))
        ]
        page, token = _page(found, given, lambda alert: alert.name)
        return _with_token(
            {"MetricAlarms": [self._described(call, alert) for alert in page], "CompositeAlarms": []}, token
        )

    async def _describe_for_metric(self, call: MonitoringCall, given: Members) -> Answer:
        dimensions = _dimensions(given)
        found = [
            alert
            for alert in self._book.rows.alerts.of_account(call.account)
            if alert.metric == given.get("MetricName")
            and given.get("Namespace") == NAMESPACE
            and dimensions_of(alert) == dimensions
            and given.get("Statistic") in (None, alert.statistic)
            and given.get("Period") in (None, alert.period_s)
            and not given.get("ExtendedStatistic")
        ]
        return {"MetricAlarms": [self._described(call, alert) for alert in found]}

    async def _describe_history(self, call: MonitoringCall, given: Members) -> Answer:
        name = given.get("AlarmName")
        alerts = (
            self._book.rows.alerts.of_account(call.account)
            if not name
            else [alert for alert in [self._book.rows.alerts.get(call.account, name)] if alert is not None]
        )
        kind, start_s, end_s = given.get("HistoryItemType"), given.get("StartDate"), given.get("EndDate")
        items: list[tuple[Alert, PastChange]] = []
        for alert in alerts:
            for change in (await self._book.history(call.account, alert.name)).changes:
                is_within = (start_s is None or change.at_ms >= start_s * 1_000) and (
                    end_s is None or change.at_ms <= end_s * 1_000
                )
                if is_within and kind in (None, change.kind):
                    items.append((alert, change))
        is_newest_first = given.get("ScanBy") != "TimestampAscending"
        items.sort(key=lambda item: (item[1].at_ms, item[0].name), reverse=is_newest_first)
        numbered = list(enumerate(items))
        page, token = _page(numbered, given, lambda item: f"{item[0]:08d}")
        return _with_token(
            {
                "AlarmHistoryItems": [
                    {
                        "AlarmName": alert.name,
                        "AlarmType": "MetricAlarm",
                        "Timestamp": change.at_ms / 1_000,
                        "HistoryItemType": change.kind,
                        "HistorySummary": change.summary,
                        "HistoryData": change.data,
                    }
                    for _, (alert, change) in page
                ]
            },
            token,
        )

    async def _delete(self, call: MonitoringCall, given: Members) -> Answer:
        await self._book.delete(call.account, _names(given))
        return {}

    async def _set_state(self, call: MonitoringCall, given: Members) -> Answer:
        state = _one_of(given, "StateValue", _STATES)
        data = given.get("StateReasonData") or ""
        if data and not _is_json(data):
            raise CloudWatchError("InvalidFormatFault", "StateReasonData was not valid JSON")
        await self._book.set_state(call.account, given["AlarmName"], state, given["StateReason"], data)
        return {}

    async def _enable(self, call: MonitoringCall, given: Members) -> Answer:
        await self._book.enable(call.account, _names(given), is_enabled=True)
        return {}

    async def _disable(self, call: MonitoringCall, given: Members) -> Answer:
        await self._book.enable(call.account, _names(given), is_enabled=False)
        return {}

    async def _list_tags(self, call: MonitoringCall, given: Members) -> Answer:
        tags = self._book.alert(call.account, _named(call, given)).tags
        return {"Tags": [{"Key": key, "Value": value} for key, value in sorted(tags.items())]}

    async def _tag(self, call: MonitoringCall, given: Members) -> Answer:
        await self._book.tag(call.account, _named(call, given), _tags(given))
        return {}

    async def _untag(self, call: MonitoringCall, given: Members) -> Answer:
        await self._book.untag(call.account, _named(call, given), given["TagKeys"])
        return {}

    def _described(self, call: MonitoringCall, alert: Alert) -> dict[str, Any]:
        status = self._book.rows.state(alert)
        described: dict[str, Any] = {
            "AlarmName": alert.name,
            "AlarmArn": alert_arn(call.region, alert.account_id, alert.name),
            "AlarmConfigurationUpdatedTimestamp": alert.updated_ms / 1_000,
            "ActionsEnabled": alert.is_enabled,
            "OKActions": list(alert.ok_actions),
            "AlarmActions": list(alert.alarm_actions),
            "InsufficientDataActions": list(alert.insufficient_data_actions),
            "StateValue": status.state,
            "StateReason": status.reason,
            "StateUpdatedTimestamp": status.changed_ms / 1_000,
            "StateTransitionedTimestamp": status.changed_ms / 1_000,
            "MetricName": alert.metric,
            "Namespace": NAMESPACE,
            "Statistic": alert.statistic,
            "Dimensions": [{"Name": name, "Value": value} for name, value in dimensions_of(alert).items()],
            "Period": alert.period_s,
            "EvaluationPeriods": alert.periods,
            "DatapointsToAlarm": alert.breaching,
            "Threshold": alert.threshold,
            "ComparisonOperator": alert.comparison,
            "TreatMissingData": alert.missing_data,
        }
        if alert.description:
            described["AlarmDescription"] = alert.description
        if alert.unit:
            described["Unit"] = alert.unit
        if status.reason_data:
            described["StateReasonData"] = status.reason_data
        return described


_ALWAYS: Final = ("AlarmName", "EvaluationPeriods", "ComparisonOperator")
_OF_RESOURCES: Final = frozenset({"ListTagsForResource", "TagResource", "UntagResource"})
_STATES: Final[tuple[State, ...]] = ("OK", "ALARM", "INSUFFICIENT_DATA")
_TREATMENTS: Final = ("missing", "ignore", "breaching", "notBreaching")
_COMPARISONS: Final = (
    "GreaterThanOrEqualToThreshold",
    "GreaterThanThreshold",
    "LessThanThreshold",
    "LessThanOrEqualToThreshold",
)


def _one_of(given: Members, member: str, allowed: Sequence[str], default: str = "") -> Any:
    value = given.get(member) or default
    if value not in allowed:
        raise InvalidParameterValue.of(member, value, f"Must be one of {', '.join(allowed)}.")
    return value


def _dimensions(given: Members) -> dict[str, str]:
    return {one["Name"]: one["Value"] for one in given.get("Dimensions") or ()}


def _tags(given: Members) -> dict[str, str]:
    return {one["Key"]: one["Value"] for one in given.get("Tags") or ()}


def _names(given: Members) -> list[str]:
    names: list[str] = list(given.get("AlarmNames") or ())
    if len(names) > NAMES_MAX:
        raise InvalidParameterValue(f"At most {NAMES_MAX} alarms are named at once.")
    return names


def _named(call: MonitoringCall, given: Members) -> str:
    """Return the alert that an ARN names."""
    arn: str = given["ResourceARN"]
    prefix = alert_arn(call.region, call.account, "")
    if not arn.startswith(prefix):
        raise CloudWatchError("InvalidParameterValueException", f"The ARN must begin with {prefix}.")
    return arn.removeprefix(prefix)


def _page(
    items: Sequence[_Item], given: Members, name_of: Callable[[_Item], str]
) -> tuple[Sequence[_Item], str | None]:
    """Return the items behind the token, and the next token; `name_of` grows."""
    count = int(given.get("MaxRecords") or PAGE)
    if not 1 <= count <= PAGE_MAX:
        raise InvalidParameterValue.of("MaxRecords", count, f"Must be between 1 and {PAGE_MAX}.")
    after = _read_token(given.get("NextToken"))
    left = [item for item in items if after is None or name_of(item) > after]
    page = left[:count]
    return page, _token(name_of(page[-1])) if len(left) > count else None


def _token(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _read_token(token: str | None) -> str | None:
    if not token:
        return None
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise CloudWatchError("InvalidNextToken", "The token is none that was given here.") from None


def _with_token(answer: Answer, token: str | None) -> Answer:
    return answer if token is None else {**answer, "NextToken": token}


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except UNREADABLE:
        return False
    return True
