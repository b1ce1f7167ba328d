"""What alerts may be, how they are kept, named and told."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from core.alerts.support import an_alert
from quaymaster.core.alerts.alerts import (
    HISTORY_MAX,
    Alert,
    AlertStatus,
    Destination,
    Notification,
    PastAlert,
    PastChange,
    UnknownAlertFormat,
    decode_alert_row,
    encode_alert_row,
    parse_row_name,
    row_name,
)
from quaymaster.core.alerts.dimensions import dimensions_of, subject_of
from quaymaster.core.alerts.messages import alarm_message, message_json, message_subject, message_text
from quaymaster.core.alerts.rules import (
    ACTIONS_MAX,
    DestinationName,
    check_alert,
    check_destination_name,
    check_mail_address,
    destination_arn,
    missing_destinations,
    parse_action,
)
from quaymaster.core.values.errors import InvalidParameterValue
from quaymaster.core.values.queues.queue_names import QueueArn

HOOK = "arn:aws:sns:us-east-1:000000000000:hook"
QUEUE = "arn:aws:sqs:us-east-1:000000000000:told"
TOLD = Notification("ab" * 16, HOOK, "OK", "ALARM", "it is old", 61_500)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"subject": "prefix", "pattern": "orders"},
        {"subject": "prefix", "pattern": ""},
        {"subject": "dead_letter_queues", "pattern": ""},
        {"period_s": 86_400, "periods": 7, "breaching": 1},
        {"period_s": 60, "periods": 1_440, "breaching": 1},
        {"alarm_actions": (HOOK, QUEUE), "tags": {"team": "billing"}},
        {"name": "dead letters / größer als 0"},
    ],
)
def test_an_alert_that_can_be_is_taken(changes: dict[str, Any]) -> None:
    check_alert(an_alert(**changes))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"name": ""}, "AlarmName"),
        ({"name": "x" * 256}, "AlarmName"),
        ({"name": "a\nb"}, "AlarmName"),
        ({"description": "x" * 1_025}, "AlarmDescription"),
        ({"metric": "CPUUtilization"}, "MetricName"),
        ({"statistic": "p99"}, "Statistic"),
        ({"metric": "SentMessageSize", "statistic": "Maximum"}, "Statistic"),
        ({"pattern": "a b"}, "QueueName"),
        ({"subject": "prefix", "pattern": "a*b"}, "QueueName"),
        ({"period_s": 30}, "Period"),
        ({"period_s": 90}, "Period"),
        ({"periods": 0}, "EvaluationPeriods"),
        ({"periods": 1_441}, "EvaluationPeriods"),
        ({"period_s": 3_600, "periods": 169}, "EvaluationPeriods"),
        ({"breaching": 0}, "DatapointsToAlarm"),
        ({"breaching": 4}, "DatapointsToAlarm"),
        ({"threshold": float("nan")}, "Threshold"),
        ({"threshold": float("inf")}, "Threshold"),
        ({"ok_actions": (HOOK,) * (ACTIONS_MAX + 1)}, "OKActions"),
        ({"alarm_actions": ("arn:aws:lambda:us-east-1:000000000000:function:f",)}, "Invalid action"),
        ({"tags": {f"k{number}": "" for number in range(51)}}, "Tags"),
        ({"tags": {"": "x"}}, "Tags"),
        ({"tags": {"aws:x": "x"}}, "Tags"),
        ({"tags": {"k": "x" * 257}}, "Tags"),
    ],
)
def test_an_alert_that_cannot_be_is_refused_by_the_name_of_its_parameter(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidParameterValue, match=named):
        check_alert(an_alert(**changes))


def test_an_action_is_a_queue_or_a_destination() -> None:
    assert parse_action(QUEUE) == QueueArn("us-east-1", "000000000000", "told")
    assert parse_action(HOOK) == DestinationName("000000000000", "hook")
    assert destination_arn("us-east-1", "000000000000", "hook") == HOOK
    for arn in ("hook", "arn:aws:sns:us-east-1:000000000000:a b", "arn:aws:sns::000000000000:hook"):
        with pytest.raises(InvalidParameterValue):
            parse_action(arn)


def test_destinations_of_an_alert_that_its_account_does_not_have_are_found() -> None:
    foreign = "arn:aws:sns:us-east-1:111111111111:hook"
    alert = an_alert(alarm_actions=(HOOK, QUEUE, foreign), ok_actions=(HOOK,))

    assert missing_destinations(alert, "000000000000", ["hook"]) == [foreign]
    assert missing_destinations(alert, "000000000000", []) == [HOOK, foreign]


def test_names_of_destinations_and_mail_addresses_are_checked() -> None:
    check_destination_name("on-call_1")
    check_mail_address("on.call+eu@example.com")
    for name in ("", "a b", "x" * 65):
        with pytest.raises(InvalidParameterValue):
            check_destination_name(name)
    for address in ("example.com", "a@b@c", "a b@c", "a@b\nBcc: c@d", "x" * 250 + "@a.de"):
        with pytest.raises(InvalidParameterValue):
            check_mail_address(address)


@pytest.mark.parametrize(
    ("subject", "pattern", "dimensions", "text"),
    [
        ("queue", "orders", {"QueueName": "orders"}, "orders"),
        ("prefix", "orders", {"QueueName": "orders*"}, "orders*"),
        ("dead_letter_queues", "", {"DeadLetterQueues": "*"}, "dead-letter queues"),
    ],
)
def test_the_subject_of_an_alert_is_a_dimension(
    subject: str, pattern: str, dimensions: dict[str, str], text: str
) -> None:
    alert = an_alert(subject=subject, pattern=pattern)

    assert dimensions_of(alert) == dimensions
    assert subject_of(dimensions) == (subject, pattern)
    assert alert.subject_text == text


@pytest.mark.parametrize(
    "dimensions", [{}, {"InstanceId": "i-1"}, {"QueueName": "a", "X": "b"}, {"DeadLetterQueues": "a"}]
)
def test_other_dimensions_are_refused(dimensions: dict[str, str]) -> None:
    with pytest.raises(InvalidParameterValue, match="QueueName"):
        subject_of(dimensions)


def test_rows_are_read_as_they_were_written() -> None:
    for row in (
        an_alert(tags={"a": "b"}),
        AlertStatus(outbox=(TOLD,)),
        Destination("0", "hook", "webhook", "x", "1", 2),
    ):
        assert decode_alert_row(encode_alert_row(row), type(row)) == row


def test_a_row_of_an_older_program_has_defaults_for_what_it_lacks() -> None:
    short = b"\x01" + msgspec.msgpack.encode(list(msgspec.structs.astuple(an_alert()))[:11])

    assert decode_alert_row(short, Alert) == an_alert(created_ms=0, updated_ms=0)


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x01", b"\x01\x90"])
def test_a_row_of_a_newer_program_or_a_damaged_one_is_refused(data: bytes) -> None:
    with pytest.raises(UnknownAlertFormat, match="Alert"):
        decode_alert_row(data, Alert)


def test_any_name_is_one_part_of_a_key() -> None:
    name = "dead letters / größer als 0"

    key = row_name("000000000000", name)

    assert key.count("/") == 1
    assert parse_row_name(key) == ("000000000000", name)


def test_a_past_has_the_newest_change_first_and_a_bound() -> None:
    past = PastAlert()
    for number in range(HISTORY_MAX + 2):
        past = past.with_change(PastChange(number, "StateUpdate", str(number)))

    assert len(past.changes) == HISTORY_MAX
    assert past.changes[0].at_ms == HISTORY_MAX + 1


def test_each_state_has_its_actions() -> None:
    alert = an_alert(alarm_actions=("a",), ok_actions=("o",), insufficient_data_actions=("i",))

    assert (alert.actions("ALARM"), alert.actions("OK"), alert.actions("INSUFFICIENT_DATA")) == (
        ("a",),
        ("o",),
        ("i",),
    )


def test_a_message_is_what_subscribers_of_sns_know() -> None:
    alert = an_alert(alarm_actions=(HOOK,), description="look at the workers", unit="Seconds")

    message = json.loads(message_json(alert, TOLD, "eu-west-1"))

    assert message == alarm_message(alert, TOLD, "eu-west-1")
    assert message["AlarmArn"] == "arn:aws:cloudwatch:eu-west-1:000000000000:alarm:orders-old"
    assert message["StateChangeTime"] == "1970-01-01T00:01:01.500+0000"
    assert (message["OldStateValue"], message["NewStateValue"]) == ("OK", "ALARM")
    assert message["Trigger"]["Dimensions"] == [{"name": "QueueName", "value": "orders"}]
    assert message["Trigger"]["Statistic"] == "MAXIMUM"
    assert message["TransitionId"] == TOLD.id


def test_a_mail_says_what_is_wrong_in_one_line_and_more_below() -> None:
    alert = an_alert(name="orders\u2028old", description="look at the workers")

    assert message_subject(alert, TOLD) == "ALARM: orders?old"
    text = message_text(alert, TOLD, "eu-west-1")
    assert "it is old" in text
    assert "look at the workers" in text
    assert "look" not in message_text(an_alert(), TOLD, "eu-west-1")
    assert (
        an_alert().condition_text == "ApproximateAgeOfOldestMessage Maximum > 300 for 3 of 3 periods of 60 s"
    )
