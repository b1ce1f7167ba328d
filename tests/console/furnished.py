"""A site with queues, a cell and alerts as a real one has them, for pages that are looked at."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from console.fake_site import CUSTOMERS, NOW_MS, OPERATORS, FakeSite
from quaymaster.console.site import (
    AlertNow,
    CellDecision,
    CellFollower,
    CellJournal,
    CellNow,
    CellProcess,
    Chart,
    Overview,
    Problem,
    QueueNow,
    Series,
)

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
SCRIPT = '<script>window.planted = 1</script><img src=x onerror="window.planted = 1">'
POLICY = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"AWS": ["111111111111", "arn:aws:iam::222222222222:role/shipping"]},
                "Action": ["sqs:SendMessage", "sqs:GetQueueUrl"],
                "Resource": "arn:aws:sqs:us-east-1:000000000000:orders",
                "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}},
            },
            {"Effect": "Deny", "Principal": "*", "Action": "sqs:PurgeQueue"},
        ],
    },
    indent=2,
)


def furnished_site() -> FakeSite:
    """Return a site with something on each page."""
    site = FakeSite()
    site.listed = [
        _queue("orders", 48_213, 1_240, 310, age_ms=2 * MINUTE_MS, sent=410, received=402.5),
        _queue("orders-dlq", 12, 0, 0, age_ms=3 * 24 * HOUR_MS, dead_letters_of=1),
        _queue("payments.fifo", 2_310, 96, 0, age_ms=41_000, sent=87.2, received=88, is_fifo=True),
        _queue("emails", 0, 3, 0, age_ms=0, sent=4.2, received=4.1),
        _queue(
            "clickstream", 1_902_114, 5_120, 0, age_ms=26 * HOUR_MS, sent=2_210, received=1_830, is_log=True
        ),
        _queue("thumbnails", 640, 64, 12_000, age_ms=9_000, sent=33, received=29.4),
        _queue("invoices", 77, 2, 0, age_ms=95_000, sent=0.4, received=0.3, at_ms=NOW_MS - 74_000),
        QueueNow(OPERATORS, "new-queue", "q-new"),
        _queue("webhooks", 5_118, 210, 40, age_ms=11_000, sent=61, received=64, account=CUSTOMERS),
        _queue("search-index", 431, 30, 0, age_ms=3_000, sent=12.5, received=12.4, account=CUSTOMERS),
    ]
    site.overviews = Overview(
        NOW_MS,
        (
            Problem("critical", "JournalLeaderless", "Journal 3 has no leader.", NOW_MS - 40_000, "/cell"),
            Problem(
                "warning", "orders-old", "orders: age 320 s > 300 s", NOW_MS - 9 * MINUTE_MS, "/alerts", True
            ),
        ),
        (
            Chart(
                "Messages per second",
                (_wave("sent", "Count/Second", 410, 60), _wave("received", "Count/Second", 400, 70, shift=2)),
            ),
            Chart("Errors per second", (_wave("errors", "Count/Second", 0.4, 0.4),)),
            Chart(
                "Time of a request",
                (_wave("p99", "Seconds", 0.012, 0.004), _wave("p50", "Seconds", 0.003, 0.001)),
            ),
        ),
    )
    site.series = [
        _wave("ApproximateNumberOfMessagesVisible", "Count", 42_000, 9_000),
        _wave("ApproximateNumberOfMessagesNotVisible", "Count", 1_200, 240, shift=3),
        _wave("ApproximateNumberOfMessagesDelayed", "Count", 300, 80, shift=5),
        _wave("ApproximateAgeOfOldestMessage", "Seconds", 140, 60, gap=range(30, 36)),
        _wave("NumberOfMessagesSent", "Count", 24_600, 3_000),
        _wave("NumberOfMessagesReceived", "Count", 24_100, 3_300, shift=2),
        _wave("NumberOfMessagesDeleted", "Count", 24_000, 3_300, shift=3),
        _wave("NumberOfEmptyReceives", "Count", 12, 10, shift=1),
    ]
    site.cell_now = _cell()
    site.processes["broker", "b1"] = [
        Chart("Processor, of one core", [_wave("used", "Percent", 40, 20, shift=1)]),
        Chart("Memory", [_wave("used", "Bytes", 2e9, 1e8, shift=2)]),
    ]
    site.alerts_now = [
        AlertNow(
            OPERATORS,
            "orders-old",
            "ALARM",
            NOW_MS - 9 * MINUTE_MS,
            "orders",
            "ApproximateAgeOfOldestMessage Maximum > 300 for 3 of 5 periods of 60 s",
            "3 of the last 5 values breached: 320, 311, 304.",
        ),
        AlertNow(
            OPERATORS,
            "any-dead-letter",
            "OK",
            NOW_MS - 30 * HOUR_MS,
            "dead-letter queues",
            "ApproximateNumberOfMessagesVisible Maximum > 0 for 1 of 1 periods of 60 s",
            "No value breached.",
        ),
        AlertNow(
            OPERATORS,
            "JournalLeaderless",
            "INSUFFICIENT_DATA",
            None,
            "cell",
            "journals without leader > 0",
            "",
            True,
        ),
    ]
    _answer_messages(site)
    _answer_alerts_and_dashboards(site)
    _answer_accounts_and_reports(site)
    return site


def _queue(
    name: str,
    visible: int,
    in_flight: int,
    delayed: int,
    *,
    age_ms: int,
    sent: float = 0.0,
    received: float = 0.0,
    account: str = OPERATORS,
    at_ms: int = NOW_MS - 1_200,
    dead_letters_of: int = 0,
    is_fifo: bool = False,
    is_log: bool = False,
) -> QueueNow:
    oldest = NOW_MS - age_ms if age_ms else 0
    return QueueNow(
        account,
        name,
        f"{account}-{name}".replace(".", "-"),
        is_fifo,
        is_log,
        dead_letters_of,
        at_ms,
        visible,
        in_flight,
        delayed,
        None,
        oldest,
        sent,
        received,
        received,
    )


def _wave(
    label: str, unit: str, mean: float, swing: float, *, shift: int = 0, gap: range = range(0)
) -> Series:
    times = [NOW_MS - (60 - number) * MINUTE_MS for number in range(60)]
    values = [
        None
        if number in gap
        else max(
            0.0, mean + swing * (math.sin((number + shift) / 7) + 0.35 * math.sin((number + shift) * 1.9))
        )
        for number in range(60)
    ]
    return Series(label, unit, times, values)


def _cell() -> CellNow:
    processes = [
        CellProcess(
            *(f"b{number}", "broker", zone, True, NOW_MS - 900, cpu, disk, leads),
            *(cpu / 2, cpu * 4e9, NOW_MS - 4_000),
        )
        for number, zone, cpu, disk, leads in (
            (1, "a", 0.42, 0.38, ("0", "3")),
            (2, "b", 0.31, 0.36, ("1",)),
            (3, "c", 0.05, 0.91, ("2",)),
        )
    ]
    processes += [
        CellProcess("f1", "front end", "a", True, NOW_MS - 900, 0.55, None, ()),
        CellProcess("f2", "front end", "b", False, NOW_MS - 91_000, None, None, ()),
    ]
    journals = [
        CellJournal("0", "b1", 12, NOW_MS, (CellFollower("b2", 0), CellFollower("b3", 4))),
        CellJournal("1", "b2", 9, NOW_MS, (CellFollower("b1", 0), CellFollower("b3", 12_400))),
        CellJournal(
            *("3", None, 17, NOW_MS - 40_000),
            (CellFollower("b2", 0), CellFollower("b3", None)),
            last_leader="b1",
        ),
    ]
    decisions = [
        CellDecision(
            NOW_MS - 5 * MINUTE_MS, "Transfer journal 3 from b2 to b1", "b1 is its home and caught up"
        ),
        CellDecision(NOW_MS - 9 * MINUTE_MS, "Prepare journal 3 on b2", "b1 did not answer for 3 s"),
    ]
    return CellNow("eu1", processes, journals, decisions)


def _answer_messages(site: FakeSite) -> None:
    """Have the API answer as a small SQS: what is deleted is gone, and a peek changes nothing."""
    bodies = ['{"id": 7, "total": 1290, "items": [{"sku": "A-1", "count": 2}]}', "plain text", SCRIPT]
    messages = [
        {
            "message_id": f"00000000-0000-4000-8000-{number:012}",
            "sequence": 811 + number,
            "state": "visible",
            "delivery_count": number,
            "first_receive_ms": None,
            "sent_ms": NOW_MS - 125_000 + number,
            "body": body,
            "attributes": {"trace": {"type": "String", "value": "abc-1"}},
            "sender_id": OPERATORS,
            "group_id": None,
            "dedup_id": None,
            "trace_header": None,
            "dead_letter_source_arn": None,
        }
        for number, body in enumerate(bodies)
    ]
    attributes = {
        "VisibilityTimeout": "45",
        "MessageRetentionPeriod": "345600",
        "QueueArn": "arn:aws:sqs:us-east-1:000000000000:orders-dlq",
        "RedrivePolicy": '{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:orders-dlq","maxReceiveCount":5}',
    }
    tasks: list[dict[str, Any]] = [
        {
            "TaskHandle": "handle",
            "Status": "RUNNING",
            "SourceArn": attributes["QueueArn"],
            "ApproximateNumberOfMessagesToMove": 12,
            "ApproximateNumberOfMessagesMoved": 7,
            "StartedTimestamp": NOW_MS - 4_000,
        }
    ]

    def peek(_: Mapping[str, Any]) -> Any:
        return {"name": "orders", "messages": messages, "next_sequence": 0}

    def receive(given: Mapping[str, Any]) -> Any:
        return {
            "Messages": [
                {
                    "MessageId": one["message_id"],
                    "ReceiptHandle": f"handle-{one['sequence']}",
                    "Body": one["body"],
                    "Attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": str(one["sent_ms"])},
                }
                for one in messages[: given["MaxNumberOfMessages"]]
            ]
        }

    def delete(given: Mapping[str, Any]) -> Any:
        messages[:] = [one for one in messages if f"handle-{one['sequence']}" != given["ReceiptHandle"]]
        return {}

    def set_attributes(given: Mapping[str, Any]) -> Any:
        attributes.update(given["Attributes"])
        return {}

    def begin_task(given: Mapping[str, Any]) -> Any:
        tasks.insert(0, {**tasks[0], "StartedTimestamp": NOW_MS, "ApproximateNumberOfMessagesMoved": 0})
        return {"TaskHandle": "new"}

    def cancel_task(_: Mapping[str, Any]) -> Any:
        tasks[0]["Status"] = "CANCELLED"
        return {}

    group = {
        "group": "reports",
        "lag": 1_204,
        "in_flight": 20,
        "partitions": [{"partition": 0, "start": 0, "end": 1_902_114, "offset": 1_900_910}],
    }
    site.api.answers["GET /admin/v1/queues/clickstream/groups"] = lambda _: {"groups": [group]}
    for name in ("orders", "orders-dlq", "payments.fifo", "webhooks", "clickstream"):
        site.api.answers[f"GET /admin/v1/queues/{name}/messages"] = peek
        site.api.answers[f"GET /admin/v1/queues/{name}/policy"] = lambda _: {
            "policy": POLICY,
            "problem": None,
        }
    site.api.answers.update(
        {
            "ReceiveMessage": receive,
            "DeleteMessage": delete,
            "GetQueueAttributes": lambda _: {"Attributes": dict(attributes)},
            "SetQueueAttributes": set_attributes,
            "ListDeadLetterSourceQueues": lambda _: {"queueUrls": ["http://localhost/000000000000/orders"]},
            "ListMessageMoveTasks": lambda _: {"Results": tasks},
            "StartMessageMoveTask": begin_task,
            "CancelMessageMoveTask": cancel_task,
        }
    )


def _answer_alerts_and_dashboards(site: FakeSite) -> None:
    alarm = {
        "AlarmName": "orders-old",
        "StateValue": "ALARM",
        "StateReason": "3 of the last 5 values breached: 320, 311, 304.",
        "MetricName": "ApproximateAgeOfOldestMessage",
        "Statistic": "Maximum",
        "ComparisonOperator": "GreaterThanThreshold",
        "Threshold": 300.0,
        "Period": 60,
        "EvaluationPeriods": 5,
        "DatapointsToAlarm": 3,
        "Dimensions": [{"Name": "QueueName", "Value": "orders"}],
        "AlarmActions": ["arn:aws:sns:us-east-1:000000000000:ops"],
        "ActionsEnabled": True,
    }
    history = [
        {
            "Timestamp": NOW_MS / 1_000 - 540,
            "HistoryItemType": "StateUpdate",
            "HistorySummary": "Alarm updated from OK to ALARM",
        },
        {
            "Timestamp": NOW_MS / 1_000 - 538,
            "HistoryItemType": "Action",
            "HistorySummary": "Delivered to ops",
        },
    ]
    metric = {
        "stat": "Sum",
        "period": 300,
        "metrics": [["AWS/SQS", "NumberOfMessagesSent", "QueueName", "orders"]],
    }
    metric["metrics"].append(["...", "payments.fifo"])  # type: ignore[attr-defined]
    body = json.dumps(
        {
            "widgets": [
                {"type": "metric", "x": 0, "y": 0, "width": 12, "properties": {"title": "Sent", **metric}},
                {"type": "text", "x": 0, "y": 6, "properties": {"markdown": SCRIPT}},
            ]
        }
    )
    times = [NOW_MS / 1_000 - 300 * number for number in range(36, 0, -1)]

    def metric_data(given: Mapping[str, Any]) -> Any:
        return {
            "MetricDataResults": [
                {
                    "Id": query["Id"],
                    "Timestamps": times,
                    "Values": [900 + 200 * math.sin(at / 900 + number) for at in times],
                }
                for number, query in enumerate(given["MetricDataQueries"])
            ]
        }

    destinations = [
        {
            "name": "ops",
            "kind": "webhook",
            "target": "https://hooks.example.com/ops",
            "arn": "arn:aws:sns:us-east-1:000000000000:ops",
            "confirmed_ms": NOW_MS,
        },
        {"name": "ada", "kind": "email", "target": "ada@example.com", "confirmed_ms": None},
    ]
    site.api.answers.update(
        {
            "DescribeAlarms": lambda _: {"MetricAlarms": [alarm]},
            "DescribeAlarmHistory": lambda _: {"AlarmHistoryItems": history},
            "ListDashboards": lambda _: {
                "DashboardEntries": [{"DashboardName": "shop", "LastModified": NOW_MS / 1_000}]
            },
            "GetDashboard": lambda _: {"DashboardName": "shop", "DashboardBody": body},
            "GetMetricData": metric_data,
            "GET /admin/v1/destinations": lambda _: {"destinations": destinations},
        }
    )


def _answer_accounts_and_reports(site: FakeSite) -> None:
    policy = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"sqs:*","Resource":"*"}]}'
    user = {
        "account_id": OPERATORS,
        "name": "ada",
        "arn": f"arn:aws:iam::{OPERATORS}:user/ada",
        "created_ms": NOW_MS - 90 * 24 * HOUR_MS,
        "policies": {"everything": policy},
        "problems": {},
        "keys": [{"access_key_id": "AKIAADA", "enabled": True}],
    }
    keys = [
        {
            "access_key_id": "AKIAROOT",
            "account_id": OPERATORS,
            "name": "first",
            "user": None,
            "enabled": True,
            "created_ms": NOW_MS - 90 * 24 * HOUR_MS,
            "last_used_ms": NOW_MS - 2 * HOUR_MS,
        },
        {
            "access_key_id": "AKIAADA",
            "account_id": OPERATORS,
            "name": "",
            "user": "ada",
            "enabled": False,
            "created_ms": NOW_MS - 9 * 24 * HOUR_MS,
            "last_used_ms": None,
        },
    ]
    accounts = [
        {
            "account_id": OPERATORS,
            "name": "operators",
            "created_ms": NOW_MS - 99 * 24 * HOUR_MS,
            "state": "enabled",
        },
        {
            "account_id": CUSTOMERS,
            "name": "shop",
            "created_ms": NOW_MS - 40 * 24 * HOUR_MS,
            "state": "disabled",
        },
    ]
    usage = [
        {
            "day": f"2026-11-{day:02}",
            "account_id": OPERATORS,
            "queue": "orders",
            "action": action,
            "requests": 100_000 * day,
            "messages": 250_000 * day,
            "bytes": 2**20 * day * 40,
            "errors": day % 3,
            "cost": f"0.{day}25",
        }
        for day in range(17, 13, -1)
        for action in ("SendMessage", "ReceiveMessage")
    ]
    events = [
        {
            "time": f"2026-11-18T0{9 - number}:06:40.123Z",
            "account_id": OPERATORS,
            "principal": f"arn:aws:iam::{OPERATORS}:user/ada",
            "action": action,
            "queue": "orders",
            "address": "10.0.0.7",
            "error": error,
        }
        for number, (action, error) in enumerate(
            (("PurgeQueue", ""), ("DeleteQueue", "AccessDenied"), ("PeekMessages", ""))
        )
    ]
    new_key = {
        "access_key_id": "AKIANEW",
        "secret_access_key": "new-secret",
        "name": "new",
        "account_id": CUSTOMERS,
    }
    site.api.answers.update(
        {
            "GET /admin/v1/users": lambda _: {"users": [user]},
            "GET /admin/v1/users/ada": lambda _: user,
            "POST /admin/v1/users": lambda _: new_key,
            "GET /admin/v1/keys": lambda _: {"keys": keys},
            "POST /admin/v1/keys": lambda _: new_key,
            "POST /admin/v1/keys/AKIAROOT/rotate": lambda _: new_key,
            "GET /admin/v1/accounts": lambda _: {"accounts": accounts, "next_token": None},
            "POST /admin/v1/accounts": lambda _: new_key,
            "GET /admin/v1/usage": lambda _: {"rows": usage, "has_more": True, "currency": "EUR"},
            "GET /admin/v1/audit": lambda _: {"events": events, "has_more": True},
        }
    )
