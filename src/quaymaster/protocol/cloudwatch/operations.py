"""CloudWatch's operations: their members, which resources they are about, and whether they change anything.

    alarm       arn:aws:cloudwatch:REGION:ACCOUNT:alarm:NAME
    dashboard   arn:aws:cloudwatch::ACCOUNT:dashboard/NAME
    all         *: metrics are no resources

`protocol/actions/table` has an action for each of them, which says all that actions of any service have.

Source: AWS Service Authorization Reference, "Actions, resources, and condition keys for Amazon CloudWatch".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from quaymaster.protocol.cloudwatch import members
from quaymaster.protocol.cloudwatch.kinds import Structure
from quaymaster.protocol.sqs.shapes import Shape

ResourceKind = Literal["all", "alarm", "dashboard", "arn"]
"""Of which kind an operation's resources are; `arn`: its input names one by its ARN, of either kind."""

Arn = tuple[str, ...]
"""An ARN's segments."""

CLOUDWATCH: Final = "cloudwatch"
"""The service, as permissions and ARNs name it. Signatures call it `monitoring`."""
TAGS: Final = "Tags"
"""The member by which an input gives tags to a resource."""
ARN_SEGMENTS: Final = 6
INPUT_BYTES_MAX: Final = 256 * 1024
DASHBOARD_BYTES_MAX: Final = 512 * 1024
_EVERY: Final = "*"


class MonitoringInput(Shape, frozen=True):
    """An operation's input, in plain values."""

    members: Mapping[str, Any]


class Operation(NamedTuple):
    """One operation. `usage_op` is its number in tables of usage: never changed, never given again.

    `named_by`: the member that names its resources; without it, or in its absence, all of their kind are meant.
    """

    usage_op: int
    name: str
    input: Structure
    output: Structure | None = None
    resource: ResourceKind = "all"
    named_by: str = ""
    read_only: bool = False
    bytes_max: int = INPUT_BYTES_MAX
    """How long its input may be, in any form."""
    permission: str = ""
    """What it takes, where that is not called as itself."""

    @property
    def asks_for(self) -> str:
        """The permission that it takes."""
        return self.permission or self.name

    def resources(self, given: Mapping[str, Any], region: str, account_id: str) -> list[Arn]:
        """Return the resources that an input is about, of an account in a region."""
        named = given.get(self.named_by)
        names: list[str] = named if isinstance(named, list) else [named or _EVERY]
        if self.resource == "arn":
            return [tuple(names[0].split(":", ARN_SEGMENTS - 1))]
        of_account = ("arn", "aws", CLOUDWATCH, region, account_id)
        if self.resource == "alarm":
            return [(*of_account, f"alarm:{name}") for name in names or [_EVERY]]
        if self.resource == "dashboard":
            # Dashboards are of no region.
            return [
                ("arn", "aws", CLOUDWATCH, "", account_id, f"dashboard/{name}") for name in names or [_EVERY]
            ]
        return [(*of_account, _EVERY)]


OPERATIONS: Final = (
    Operation(96, "ListMetrics", members.LIST_METRICS_INPUT, members.LIST_METRICS_OUTPUT, read_only=True),
    Operation(97, "GetMetricData", members.METRIC_DATA_INPUT, members.METRIC_DATA_OUTPUT, read_only=True),
    Operation(
        *(98, "GetMetricStatistics"),
        members.METRIC_STATISTICS_INPUT,
        members.METRIC_STATISTICS_OUTPUT,
        read_only=True,
    ),
    Operation(*(99, "PutMetricAlarm"), members.METRIC_ALARM_INPUT, resource="alarm", named_by="AlarmName"),
    Operation(
        *(100, "DescribeAlarms"),
        members.DESCRIBE_ALARMS_INPUT,
        members.DESCRIBE_ALARMS_OUTPUT,
        resource="alarm",
        named_by="AlarmNames",
        read_only=True,
    ),
    Operation(
        *(101, "DescribeAlarmsForMetric"),
        members.ALARMS_FOR_METRIC_INPUT,
        members.ALARMS_FOR_METRIC_OUTPUT,
        read_only=True,
    ),
    Operation(
        *(102, "DescribeAlarmHistory"),
        members.ALARM_HISTORY_INPUT,
        members.ALARM_HISTORY_OUTPUT,
        resource="alarm",
        named_by="AlarmName",
        read_only=True,
    ),
    Operation(103, "DeleteAlarms", members.ALARM_NAMES_INPUT, resource="alarm", named_by="AlarmNames"),
    Operation(104, "SetAlarmState", members.ALARM_STATE_INPUT, resource="alarm", named_by="AlarmName"),
    Operation(105, "EnableAlarmActions", members.ALARM_NAMES_INPUT, resource="alarm", named_by="AlarmNames"),
    Operation(106, "DisableAlarmActions", members.ALARM_NAMES_INPUT, resource="alarm", named_by="AlarmNames"),
    Operation(107, "TagResource", members.TAG_INPUT, members.EMPTY, resource="arn", named_by="ResourceARN"),
    Operation(
        *(108, "UntagResource"), members.UNTAG_INPUT, members.EMPTY, resource="arn", named_by="ResourceARN"
    ),
    Operation(
        *(109, "ListTagsForResource"),
        members.LIST_TAGS_INPUT,
        members.LIST_TAGS_OUTPUT,
        resource="arn",
        named_by="ResourceARN",
        read_only=True,
    ),
    Operation(
        *(110, "PutDashboard"),
        members.PUT_DASHBOARD_INPUT,
        members.PUT_DASHBOARD_OUTPUT,
        resource="dashboard",
        named_by="DashboardName",
        bytes_max=DASHBOARD_BYTES_MAX,
    ),
    Operation(
        *(111, "GetDashboard"),
        members.DASHBOARD_INPUT,
        members.DASHBOARD_OUTPUT,
        resource="dashboard",
        named_by="DashboardName",
        read_only=True,
    ),
    Operation(
        *(112, "ListDashboards"),
        members.LIST_DASHBOARDS_INPUT,
        members.LIST_DASHBOARDS_OUTPUT,
        read_only=True,
    ),
    Operation(
        *(113, "DeleteDashboards"),
        members.DASHBOARD_NAMES_INPUT,
        members.EMPTY,
        resource="dashboard",
        named_by="DashboardNames",
    ),
)
"""All that there are here. CloudWatch has others, for metrics of one's own, composite alarms, streams and more."""
SCRAPE: Final = Operation(
    114, "ScrapeMetrics", members.EMPTY, members.SCRAPE_OUTPUT, read_only=True, permission="GetMetricData"
)
"""What CloudWatch does not have: all metrics of an account, as Prometheus reads them."""
