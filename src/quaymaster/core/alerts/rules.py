"""What an alert and a destination may be. All errors are InvalidParameterValue.

Source: Amazon CloudWatch API Reference, PutMetricAlarm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from quaymaster.core.alerts.alerts import Alert
from quaymaster.core.monitoring.queue_statistics import METRICS, STATISTICS, has_statistic
from quaymaster.core.values.errors import InvalidParameterValue
from quaymaster.core.values.queues.queue_names import QueueArn, is_queue_name, parse_queue_arn

NAME_CHARS_MAX: Final = 255
DESCRIPTION_CHARS_MAX: Final = 1_024
ACTIONS_MAX: Final = 5
TAGS_MAX: Final = 50
TAG_KEY_CHARS_MAX: Final = 128
TAG_VALUE_CHARS_MAX: Final = 256
PERIOD_S: Final = 60
"""Periods are multiples of it."""
LONG_PERIOD_S: Final = 3_600
DAY_S: Final = 86_400
WEEK_S: Final = 7 * DAY_S
DESTINATIONS_PER_ACCOUNT_MAX: Final = 100
MAIL_CHARS_MAX: Final = 254

_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,255}")
_PREFIX = re.compile(r"[A-Za-z0-9_-]{0,80}", re.ASCII)
_DESTINATION = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_MAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*", re.ASCII)
_REGION = re.compile(r"[a-z0-9-]+", re.ASCII)


class DestinationName(NamedTuple):
    """A destination by its name, as an ARN of SNS says it."""

    account_id: str
    name: str


Action = QueueArn | DestinationName


def check_alert(alert: Alert) -> None:
    """Raise InvalidParameterValue for an alert that cannot be."""
    if not _NAME.fullmatch(alert.name):
        raise _wrong("AlarmName", f"1 to {NAME_CHARS_MAX} characters without control characters")
    if len(alert.description) > DESCRIPTION_CHARS_MAX:
        raise _wrong("AlarmDescription", f"at most {DESCRIPTION_CHARS_MAX} characters")
    if alert.metric not in METRICS:
        raise _wrong("MetricName", "one of " + ", ".join(sorted(METRICS)))
    if alert.statistic not in STATISTICS:
        raise _wrong("Statistic", "one of " + ", ".join(STATISTICS))
    if not has_statistic(METRICS[alert.metric], alert.statistic):
        raise _wrong("Statistic", f"one that {alert.metric} has: SampleCount, Average, Sum")
    _check_subject(alert)
    _check_times(alert)
    if not math.isfinite(alert.threshold):
        raise _wrong("Threshold", "a number")
    for name, actions in (
        ("AlarmActions", alert.alarm_actions),
        ("OKActions", alert.ok_actions),
        ("InsufficientDataActions", alert.insufficient_data_actions),
    ):
        if len(actions) > ACTIONS_MAX:
            raise _wrong(name, f"at most {ACTIONS_MAX}")
        for arn in actions:
            parse_action(arn)
    check_tags(alert.tags)


def _check_subject(alert: Alert) -> None:
    if alert.subject == "queue" and not is_queue_name(alert.pattern):
        raise _wrong("QueueName", "the name of a queue, or a prefix of names with * behind it")
    if alert.subject == "prefix" and not _PREFIX.fullmatch(alert.pattern):
        raise _wrong("QueueName", "a prefix of queue names with * behind it")


def _check_times(alert: Alert) -> None:
    if alert.period_s < PERIOD_S or alert.period_s % PERIOD_S:
        raise _wrong("Period", "a multiple of 60 seconds")
    if alert.periods < 1:
        raise _wrong("EvaluationPeriods", "at least 1")
    longest_s = WEEK_S if alert.period_s >= LONG_PERIOD_S else DAY_S
    if alert.periods * alert.period_s > longest_s:
        raise InvalidParameterValue(
            f"Metrics cannot be checked across more than {longest_s // DAY_S} day(s) (EvaluationPeriods * Period must "
            f"be <= {longest_s})."
        )
    if not 1 <= alert.breaching <= alert.periods:
        raise _wrong("DatapointsToAlarm", "at least 1 and at most EvaluationPeriods")


def check_tags(tags: Mapping[str, str]) -> None:
    """Raise InvalidParameterValue for tags that cannot be."""
    if len(tags) > TAGS_MAX:
        raise _wrong("Tags", f"at most {TAGS_MAX}")
    for key, value in tags.items():
        if not 1 <= len(key) <= TAG_KEY_CHARS_MAX or key.lower().startswith("aws:"):
            raise _wrong("Tags", f"keys of 1 to {TAG_KEY_CHARS_MAX} characters that do not begin with aws:")
        if len(value) > TAG_VALUE_CHARS_MAX:
            raise _wrong("Tags", f"values of at most {TAG_VALUE_CHARS_MAX} characters")


def parse_action(arn: str) -> Action:
    """Return what an action names: a queue, or a destination."""
    queue = parse_queue_arn(arn)
    if queue is not None:
        return queue
    match arn.split(":"):
        case ["arn", "aws" | "aws-cn" | "aws-us-gov", "sns", region, account_id, name] if _REGION.fullmatch(
            region
        ) and _DESTINATION.fullmatch(name):
            return DestinationName(account_id, name)
    raise InvalidParameterValue(
        f"Invalid action {arn}: an action is the ARN of a queue, or arn:aws:sns:REGION:ACCOUNT:NAME with the name of "
        "a destination."
    )


def destination_arn(region: str, account_id: str, name: str) -> str:
    """Return the ARN by which actions name a destination."""
    return f"arn:aws:sns:{region}:{account_id}:{name}"


def check_destination_name(name: str) -> None:
    """Raise InvalidParameterValue for a name that no destination has."""
    if not _DESTINATION.fullmatch(name):
        raise InvalidParameterValue.of("name", name, "Must be 1 to 64 letters, digits, - and _.")


def check_mail_address(address: str) -> None:
    """Raise InvalidParameterValue for what is no mail address; of those that are, the quoted forms are refused."""
    if len(address) > MAIL_CHARS_MAX or not _MAIL.fullmatch(address):
        raise InvalidParameterValue.of("target", address, "Must be a mail address.")


def missing_destinations(alert: Alert, account_id: str, names: Iterable[str]) -> list[str]:
    """Return the actions that name no destination of the account; queues may come and go."""
    known = frozenset(names)
    actions = dict.fromkeys(alert.all_actions)
    missing = []
    for arn in actions:
        action = parse_action(arn)
        if isinstance(action, DestinationName) and (
            action.account_id != account_id or action.name not in known
        ):
            missing.append(arn)
    return missing


def _wrong(parameter: str, allowed: str) -> InvalidParameterValue:
    return InvalidParameterValue(f"The value for parameter {parameter} is invalid: it must be {allowed}.")
