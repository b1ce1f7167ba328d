"""The permissions that policies give and take: on queues under SQS's names, on roles under those of STS, on metrics,
alarms and dashboards under those of CloudWatch.

The table of actions says which of them each action asks for; operations of operators are in `operations`.

A batch asks for the permission of its single action, as SQS does. So the names of batches are known, and match nothing.

Source: Amazon SQS Developer Guide, "Amazon SQS API permissions: Actions and resource reference"; AWS Service
Authorization Reference, "Actions defined by AWS Security Token Service" and "... by Amazon CloudWatch".
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Permission(StrEnum):
    """What a policy can allow or deny on a queue."""

    ADD_PERMISSION = "AddPermission"
    CANCEL_MESSAGE_MOVE_TASK = "CancelMessageMoveTask"
    CHANGE_MESSAGE_VISIBILITY = "ChangeMessageVisibility"
    CREATE_QUEUE = "CreateQueue"
    DELETE_MESSAGE = "DeleteMessage"
    DELETE_QUEUE = "DeleteQueue"
    GET_QUEUE_ATTRIBUTES = "GetQueueAttributes"
    GET_QUEUE_URL = "GetQueueUrl"
    LIST_DEAD_LETTER_SOURCE_QUEUES = "ListDeadLetterSourceQueues"
    LIST_MESSAGE_MOVE_TASKS = "ListMessageMoveTasks"
    LIST_QUEUES = "ListQueues"
    LIST_QUEUE_TAGS = "ListQueueTags"
    PURGE_QUEUE = "PurgeQueue"
    RECEIVE_MESSAGE = "ReceiveMessage"
    REMOVE_PERMISSION = "RemovePermission"
    SEND_MESSAGE = "SendMessage"
    SET_QUEUE_ATTRIBUTES = "SetQueueAttributes"
    START_MESSAGE_MOVE_TASK = "StartMessageMoveTask"
    TAG_QUEUE = "TagQueue"
    UNTAG_QUEUE = "UntagQueue"


class RolePermission(StrEnum):
    """What a policy can allow or deny on a role, or of temporary credentials."""

    ASSUME_ROLE = "AssumeRole"
    ASSUME_ROLE_WITH_WEB_IDENTITY = "AssumeRoleWithWebIdentity"
    GET_CALLER_IDENTITY = "GetCallerIdentity"
    GET_SESSION_TOKEN = "GetSessionToken"  # noqa: S105 -- an action


class MonitoringPermission(StrEnum):
    """What a policy can allow or deny on metrics, alarms and dashboards: operations of CloudWatch."""

    DELETE_ALARMS = "DeleteAlarms"
    DELETE_DASHBOARDS = "DeleteDashboards"
    DESCRIBE_ALARM_HISTORY = "DescribeAlarmHistory"
    DESCRIBE_ALARMS = "DescribeAlarms"
    DESCRIBE_ALARMS_FOR_METRIC = "DescribeAlarmsForMetric"
    DISABLE_ALARM_ACTIONS = "DisableAlarmActions"
    ENABLE_ALARM_ACTIONS = "EnableAlarmActions"
    GET_DASHBOARD = "GetDashboard"
    GET_METRIC_DATA = "GetMetricData"
    GET_METRIC_STATISTICS = "GetMetricStatistics"
    LIST_DASHBOARDS = "ListDashboards"
    LIST_METRICS = "ListMetrics"
    LIST_TAGS_FOR_RESOURCE = "ListTagsForResource"
    PUT_DASHBOARD = "PutDashboard"
    PUT_METRIC_ALARM = "PutMetricAlarm"
    SET_ALARM_STATE = "SetAlarmState"
    TAG_RESOURCE = "TagResource"
    UNTAG_RESOURCE = "UntagResource"


SERVICE: Final = "sqs"
PERMISSION_NAMES: Final = {permission: f"{SERVICE}:{permission.lower()}" for permission in Permission}
"""Each as decisions and answers name it."""
ROLE_SERVICE: Final = "sts"
ROLE_PERMISSION_NAMES: Final = {each: f"{ROLE_SERVICE}:{each.lower()}" for each in RolePermission}
MONITORING_SERVICE: Final = "cloudwatch"
MONITORING_PERMISSION_NAMES: Final = {
    each: f"{MONITORING_SERVICE}:{each.lower()}" for each in MonitoringPermission
}
NEVER_ASKED: Final = frozenset(
    ROLE_PERMISSION_NAMES[each]
    for each in (RolePermission.GET_CALLER_IDENTITY, RolePermission.GET_SESSION_TOKEN)
)
"""Actions that every valid credential, or every long-lived one, may carry out whatever policies say, as in STS."""
BATCH_NAMES: Final = frozenset(
    f"{SERVICE}:{single.lower()}batch"
    for single in (Permission.SEND_MESSAGE, Permission.DELETE_MESSAGE, Permission.CHANGE_MESSAGE_VISIBILITY)
)
