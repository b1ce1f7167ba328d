"""What a notification says: SNS's alarm JSON, and the same for people to read."""

from __future__ import annotations

import json
from typing import Any, Final

from quaymaster.core.alerts.alerts import SYMBOLS, Alert, Notification
from quaymaster.core.alerts.dimensions import dimensions_of
from quaymaster.core.alerts.times import iso_time
from quaymaster.core.monitoring.queue_statistics import NAMESPACE

_STATISTICS: Final = {
    "SampleCount": "SAMPLE_COUNT",
    "Average": "AVERAGE",
    "Sum": "SUM",
    "Minimum": "MINIMUM",
    "Maximum": "MAXIMUM",
}


def alert_arn(region: str, account_id: str, name: str) -> str:
    """Return the ARN of an alert."""
    return f"arn:aws:cloudwatch:{region}:{account_id}:alarm:{name}"


def alarm_message(alert: Alert, notification: Notification, region: str) -> dict[str, Any]:
    """Return what SNS's subscribers get of an alarm, with `TransitionId` besides."""
    return {
        "AlarmName": alert.name,
        "AlarmDescription": alert.description or None,
        "AWSAccountId": alert.account_id,
        "AlarmConfigurationUpdatedTimestamp": iso_time(alert.updated_ms),
        "NewStateValue": notification.new_state,
        "NewStateReason": notification.reason,
        "StateChangeTime": iso_time(notification.at_ms),
        "Region": region,
        "AlarmArn": alert_arn(region, alert.account_id, alert.name),
        "OldStateValue": notification.old_state,
        "OKActions": list(alert.ok_actions),
        "AlarmActions": list(alert.alarm_actions),
        "InsufficientDataActions": list(alert.insufficient_data_actions),
        "Trigger": {
            "MetricName": alert.metric,
            "Namespace": NAMESPACE,
            "StatisticType": "Statistic",
            "Statistic": _STATISTICS[alert.statistic],
            "Unit": alert.unit or None,
            "Dimensions": [{"name": name, "value": value} for name, value in dimensions_of(alert).items()],
            "Period": alert.period_s,
            "EvaluationPeriods": alert.periods,
            "DatapointsToAlarm": alert.breaching,
            "ComparisonOperator": alert.comparison,
            "Threshold": alert.threshold,
            "TreatMissingData": alert.missing_data,
            "EvaluateLowSampleCountPercentile": "",
        },
        "TransitionId": notification.id,
    }


def message_json(alert: Alert, notification: Notification, region: str) -> str:
    """Return `alarm_message` as JSON."""
    return json.dumps(alarm_message(alert, notification, region), ensure_ascii=False)


def message_subject(alert: Alert, notification: Notification) -> str:
    """Return a mail's subject: one line, whatever the alert is called."""
    name = "".join(letter if letter.isprintable() else "?" for letter in alert.name)
    return f"{notification.new_state}: {name}"


def message_text(alert: Alert, notification: Notification, region: str) -> str:
    """Return a mail's text."""
    return "\n".join(
        [
            f"{alert.name} is {notification.new_state} (it was {notification.old_state}).",
            "",
            f"Why:       {notification.reason}",
            f"Since:     {iso_time(notification.at_ms)}",
            f"Queues:    {alert.subject_text}",
            f"Rule:      {alert.metric} {alert.statistic} {SYMBOLS[alert.comparison]} {alert.threshold:.15g}, "
            f"{alert.breaching} of {alert.periods} periods of {alert.period_s} s",
            f"Account:   {alert.account_id}",
            f"Alert:     {alert_arn(region, alert.account_id, alert.name)}",
            f"Id:        {notification.id}",
            *(["", alert.description] if alert.description else []),
            "",
        ]
    )
