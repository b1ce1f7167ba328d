"""CloudWatch of a real server with its console: boto3 in each of its protocols, and the AWS CLI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.model import ServiceModel
from harness.process import QuaymasterProcess
from harness.sqs import Endpoint
from harness.waiting import eventually

from .support import LOOPBACK_ONLY, unique

pytestmark = pytest.mark.timeout(600)  # the history of a minute can be read after its end

PROTOCOLS = ("json", "smithy-rpc-v2-cbor", "query")
DASHBOARD = json.dumps(
    {
        "widgets": [
            {
                "type": "metric",
                "properties": {
                    "metrics": [["AWS/SQS", "NumberOfMessagesSent", "QueueName", "orders"]],
                    "region": "us-east-1",
                },
            }
        ]
    }
)


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A server whose console answers, with a queue that has messages."""
    process = QuaymasterProcess(
        tmp_path_factory.mktemp("cloudwatch") / "data",
        settings={"authentication": "signed", "console": "on", "console_listen": "127.0.0.1:0"},
    )
    process.start()
    try:
        env = process.env()
        endpoint = Endpoint(
            process.endpoint_url, env.region, env.account_id, env.access_key_id, env.secret_access_key
        )
        sqs = client_of(endpoint, "sqs")
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        for number in range(5):
            sqs.send_message(QueueUrl=url, MessageBody=str(number))
        eventually(lambda: is_listed(endpoint))
        yield endpoint
    finally:
        process.stop()


def client_of(endpoint: Endpoint, service: str = "cloudwatch") -> Any:
    return boto3.client(
        service,
        endpoint_url=endpoint.url,
        region_name=endpoint.region,
        aws_access_key_id=endpoint.access_key_id,
        aws_secret_access_key=endpoint.secret_access_key,
        config=Config(retries={"total_max_attempts": 3, "mode": "standard"}),
    )


def is_listed(endpoint: Endpoint) -> bool:
    """Tell whether the console has heard of the queue."""
    try:
        return bool(client_of(endpoint).list_metrics(Namespace="AWS/SQS")["Metrics"])
    except ClientError as error:
        if error.response["Error"]["Code"] != "ServiceUnavailable":
            raise
        return False


@pytest.fixture(params=PROTOCOLS)
def cloudwatch(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, monitored: Endpoint
) -> Iterator[Any]:
    """A client that speaks one of the protocols; by itself boto3 takes JSON."""
    monkeypatch.setattr(ServiceModel, "resolved_protocol", request.param)
    client = client_of(monitored)
    yield client
    client.close()


def test_metrics_of_a_queue_are_listed(cloudwatch: Any) -> None:
    dimensions = [{"Name": "QueueName", "Value": "orders"}]

    pages = cloudwatch.get_paginator("list_metrics").paginate(Namespace="AWS/SQS", Dimensions=dimensions)
    metrics = [metric for page in pages for metric in page["Metrics"]]

    assert {"NumberOfMessagesSent", "ApproximateNumberOfMessagesVisible"} <= {
        metric["MetricName"] for metric in metrics
    }
    assert all(metric["Dimensions"] == dimensions for metric in metrics)


def test_sent_messages_are_counted_in_the_minute_they_were_sent_in(cloudwatch: Any) -> None:
    def sent() -> float:
        now = datetime.now(UTC)
        answer = cloudwatch.get_metric_data(
            MetricDataQueries=[
                {
                    "Id": "sent",
                    "MetricStat": {
                        "Metric": {
                            "Namespace": "AWS/SQS",
                            "MetricName": "NumberOfMessagesSent",
                            "Dimensions": [{"Name": "QueueName", "Value": "orders"}],
                        },
                        "Period": 60,
                        "Stat": "Sum",
                    },
                }
            ],
            StartTime=now - timedelta(minutes=30),
            EndTime=now + timedelta(minutes=1),
        )
        (result,) = answer["MetricDataResults"]
        return float(sum(result["Values"]))

    eventually(lambda: sent() == 5, interval_s=1)


def test_what_keda_asks_is_answered(cloudwatch: Any) -> None:
    query = 'SELECT MAX("ApproximateNumberOfMessagesVisible") FROM "AWS/SQS" WHERE QueueName = \'orders\''

    def visible() -> list[float]:
        now = datetime.now(UTC)
        answer = cloudwatch.get_metric_data(
            MetricDataQueries=[{"Id": "q1", "Expression": query, "Period": 60}],
            StartTime=now - timedelta(minutes=30),
            EndTime=now + timedelta(minutes=1),
            ScanBy="TimestampDescending",
        )
        return list(answer["MetricDataResults"][0]["Values"])

    eventually(lambda: visible()[:1] == [5.0], interval_s=1)


def test_dashboards_are_kept(cloudwatch: Any) -> None:
    name = unique("board")

    assert (
        cloudwatch.put_dashboard(DashboardName=name, DashboardBody=DASHBOARD)["DashboardValidationMessages"]
        == []
    )
    kept = cloudwatch.get_dashboard(DashboardName=name)
    assert json.loads(kept["DashboardBody"]) == json.loads(DASHBOARD)
    assert name in [
        entry["DashboardName"]
        for entry in cloudwatch.list_dashboards(DashboardNamePrefix=name)["DashboardEntries"]
    ]
    cloudwatch.delete_dashboards(DashboardNames=[name])
    with pytest.raises(ClientError) as gone:
        cloudwatch.get_dashboard(DashboardName=name)
    assert gone.value.response["Error"]["Code"] == "ResourceNotFound"


def test_wrong_requests_are_refused_by_the_console_and_before(cloudwatch: Any) -> None:
    now = datetime.now(UTC)
    given = {
        "Namespace": "AWS/SQS",
        "MetricName": "NumberOfMessagesSent",
        "StartTime": now,
        "EndTime": now - timedelta(hours=1),
        "Period": 60,
        "Statistics": ["Sum"],
    }
    for wrong, codes in (
        (given, {"InvalidParameterValue"}),
        ({**given, "Unit": "Bananas"}, {"ValidationError"}),
    ):
        with pytest.raises(ClientError) as refused:
            cloudwatch.get_metric_statistics(**wrong)
        assert refused.value.response["Error"]["Code"] in codes


def test_the_aws_cli_lists_metrics(monitored: Endpoint) -> None:
    environment = {
        **LOOPBACK_ONLY,
        "PATH": os.environ["PATH"],
        "AWS_ENDPOINT_URL_CLOUDWATCH": monitored.url,
        "AWS_DEFAULT_REGION": monitored.region,
        "AWS_ACCESS_KEY_ID": monitored.access_key_id,
        "AWS_SECRET_ACCESS_KEY": monitored.secret_access_key,
    }
    aws = Path(sys.executable).parent / "aws"
    command = [sys.executable, str(aws), "cloudwatch", "list-metrics", "--namespace", "AWS/SQS"]

    done = subprocess.run(
        [*command, "--dimensions", "Name=QueueName,Value=orders", "--output", "json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["Metrics"]
