"""Alerts end to end: a real server with its console, and what is told when a queue fills."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

import boto3
import pytest
from botocore.exceptions import ClientError
from harness.mail_server import MailPost, mail_server
from harness.process import Environment, QuaymasterProcess, free_port
from harness.waiting import PATIENCE_S, eventually
from harness.webhooks import WebhookReceiver
from standardwebhooks import Webhook

REGION = "us-east-1"
ACCOUNT = "000000000000"


@pytest.fixture
def post() -> Iterator[MailPost]:
    """Take mails on a loop of another thread."""
    loop = asyncio.new_event_loop()
    ready: list[MailPost] = []
    ends = asyncio.Event()

    async def serve() -> None:
        async with mail_server() as found:
            ready.append(found)
            await ends.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        yield eventually(lambda: ready)[0]
    finally:
        loop.call_soon_threadsafe(ends.set)
        thread.join()
        loop.close()


class Commands:
    """Runs `quaymaster alert` with the key in a data directory."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def __call__(self, *words: str) -> Any:
        command = [sys.executable, "-m", "quaymaster.cli.main", "alert", *words]
        done = subprocess.run(
            [*command, "--data", str(self._data), "--json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def confirm(post: MailPost) -> None:
    """Open the link of the mail that came first, and press the button."""
    text = eventually(lambda: post.mails)[0].text
    link = next(line for line in text.splitlines() if line.startswith("http"))
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    page = browser.open(link, timeout=PATIENCE_S).read().decode()
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', page))
    place = link.partition("?")[0]
    origin = place.removesuffix("/alerts/confirm")
    request = Request(place, urlencode(fields).encode(), {"Origin": origin})
    assert "Alerts for mail come here" in browser.open(request, timeout=PATIENCE_S).read().decode()


def hook_arn(name: str) -> str:
    """Return the ARN of a destination."""
    return f"arn:aws:sns:{REGION}:{ACCOUNT}:{name}"


@contextmanager
def serving(data: Path, **settings: str) -> Iterator[QuaymasterProcess]:
    """Run a server with a console."""
    process = QuaymasterProcess(data, settings={"console": "on", "console_listen": "127.0.0.1:0", **settings})
    process.start()
    try:
        yield process
    finally:
        process.stop()


def clients(environment: Environment) -> tuple[Any, Any]:
    """Return boto3's clients for SQS and CloudWatch."""
    given = {
        "region_name": REGION,
        "endpoint_url": environment.endpoint_url,
        "aws_access_key_id": environment.access_key_id,
        "aws_secret_access_key": environment.secret_access_key,
    }
    return boto3.client("sqs", **given), boto3.client("cloudwatch", **given)


def answers(cloudwatch: Any) -> bool:
    """Tell whether a console answers."""
    try:
        cloudwatch.describe_alarms()
    except ClientError:
        return False
    return True


def alarm(name: str, *actions: str) -> dict[str, Any]:
    """Return an alarm that fires with the first message in orders."""
    return {
        "AlarmName": name,
        "Namespace": "AWS/SQS",
        "MetricName": "ApproximateNumberOfMessagesVisible",
        "Dimensions": [{"Name": "QueueName", "Value": "orders"}],
        "Statistic": "Maximum",
        "Period": 60,
        "EvaluationPeriods": 1,
        "Threshold": 1.0,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "AlarmActions": list(actions),
    }


@pytest.mark.slow
def test_a_queue_that_fills_is_told_to_a_queue_a_webhook_an_address_and_alertmanager(
    tmp_path: Path, receiver: WebhookReceiver, post: MailPost
) -> None:
    settings = {
        "alertmanager_url": f"{receiver.url}/am",
        "smtp_url": f"smtp://127.0.0.1:{post.port}?from=alerts@example.org",
        "console_listen": f"127.0.0.1:{free_port()}",
    }
    with serving(tmp_path / "data", **settings) as process:
        sqs, cloudwatch = clients(process.env())
        orders = sqs.create_queue(QueueName="orders")["QueueUrl"]
        told = sqs.create_queue(QueueName="told")["QueueUrl"]
        sqs.create_queue(QueueName="foreign")
        run = Commands(process.data)
        eventually(lambda: answers(cloudwatch))  # the console comes after its server
        run("destination", "add", "hook", "--kind", "webhook", "--target", f"{receiver.url}/hook")
        run("destination", "add", "mail", "--kind", "email", "--target", "on-call@example.com")
        confirm(post)
        secret = run("destination", "secret", "hook")["secret"]
        actions = [f"arn:aws:sqs:{REGION}:{ACCOUNT}:told", hook_arn("hook"), hook_arn("mail")]
        cloudwatch.put_metric_alarm(**alarm("orders-wait", *actions))

        sqs.send_message(QueueUrl=orders, MessageBody="hello")

        got = eventually(lambda: sqs.receive_message(QueueUrl=told, WaitTimeSeconds=5).get("Messages"))
        assert len(got) == 1
        body = json.loads(got[0]["Body"])
        assert (body["AlarmName"], body["NewStateValue"]) == ("orders-wait", "ALARM")
        [told_hook] = eventually(lambda: [told for told in receiver.posts if told.path == "/hook"])
        verified = Webhook(secret).verify(told_hook.body, told_hook.headers)
        assert verified["TransitionId"] == body["TransitionId"]
        mail = eventually(lambda: post.mails[1:])[0]
        assert mail.message["Subject"] == "ALARM: orders-wait"
        [found] = cloudwatch.describe_alarms()["MetricAlarms"]
        assert found["StateValue"] == "ALARM"

        def names() -> set[str]:
            posted = [json.loads(told.body) for told in receiver.posts if told.path == "/am/api/v2/alerts"]
            return {alert["labels"]["alertname"] for alerts in posted for alert in alerts}

        eventually(lambda: {"QuaymasterWatchdog", "orders-wait"} <= names())


def test_a_webhook_at_a_private_address_or_at_the_server_itself_is_never_called(
    tmp_path: Path, receiver: WebhookReceiver
) -> None:
    with serving(tmp_path / "data", outbound_networks="10.0.0.0/8") as process:
        _, cloudwatch = clients(process.env())
        run = Commands(process.data)
        eventually(lambda: answers(cloudwatch))
        run("destination", "add", "private", "--kind", "webhook", "--target", receiver.url)
        assert run("destination", "test", "private")["outcome"] == "failed"
    with serving(tmp_path / "other", outbound_networks="127.0.0.0/8") as process:
        _, cloudwatch = clients(process.env())
        run = Commands(process.data)
        eventually(lambda: answers(cloudwatch))
        run(
            "destination", "add", "own", "--kind", "webhook", "--target", f"{process.admin_url}/admin/v1/keys"
        )
        run("destination", "add", "other", "--kind", "webhook", "--target", f"{receiver.url}/hook")
        assert run("destination", "test", "own")["outcome"] == "failed"
        assert run("destination", "test", "other")["outcome"] == "delivered"

    assert [told.path for told in receiver.posts] == ["/hook"]


def test_commands_make_list_test_and_delete_alerts(tmp_path: Path, receiver: WebhookReceiver) -> None:
    with serving(tmp_path / "data") as process:
        _, cloudwatch = clients(process.env())
        run = Commands(process.data)
        eventually(lambda: answers(cloudwatch))
        run("destination", "add", "hook", "--kind", "webhook", "--target", f"{receiver.url}/hook")
        run("create", "old", "--queue", "orders", "--to", "hook", "--breaching", "3")
        run("create", "dead", "--dead-letter-queues", "--if", ">=", "--threshold", "1")

        assert [alarm["AlarmName"] for alarm in run("list")["alerts"]] == ["dead", "old"]
        run("test", "old")
        eventually(lambda: [told for told in receiver.posts if told.path == "/hook"])
        eventually(lambda: run("history", "old")["history"][0]["HistoryItemType"] == "Action")
        assert [one["name"] for one in run("destination", "list")["destinations"]] == ["hook"]
        run("delete", "old", "dead")
        run("destination", "remove", "hook")
        assert run("list") == {"alerts": []}
        assert run("destination", "list") == {"destinations": []}
