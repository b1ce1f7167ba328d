"""CloudWatch of a real server with its console, asked by boto3, the AWS CLI, Go, Java, JavaScript and as KEDA does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest
from botocore.exceptions import ClientError
from botocore.model import ServiceModel
from harness.sqs import Endpoint
from harness.waiting import eventually
from prometheus_client.parser import text_string_to_metric_families

from quaymaster.protocol.sqs.metrics_password import metrics_password

from .foreign import Outcomes, build, cached, fetch_or_skip, program_or_skip, run_scenarios
from .support import LOOPBACK_ONLY, cloudwatch_of, unique

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


@pytest.fixture(params=PROTOCOLS)
def cloudwatch(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, monitored: Endpoint
) -> Iterator[Any]:
    """A client that speaks one of the protocols; by itself boto3 takes JSON."""
    monkeypatch.setattr(ServiceModel, "resolved_protocol", request.param)
    client = cloudwatch_of(monitored)
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


def test_alarms_are_kept_with_their_tags_and_history(cloudwatch: Any) -> None:
    name = unique("alarm")
    cloudwatch.put_metric_alarm(
        AlarmName=name,
        AlarmDescription="Old messages <in orders>",
        Namespace="AWS/SQS",
        MetricName="ApproximateAgeOfOldestMessage",
        Dimensions=[{"Name": "QueueName", "Value": "orders"}],
        Statistic="Maximum",
        Period=60,
        EvaluationPeriods=3,
        Threshold=300.5,
        ComparisonOperator="GreaterThanThreshold",
        TreatMissingData="notBreaching",
        Tags=[{"Key": "team", "Value": "a"}],
    )

    (alarm,) = cloudwatch.describe_alarms(AlarmNames=[name])["MetricAlarms"]
    assert (alarm["Threshold"], alarm["AlarmDescription"]) == (300.5, "Old messages <in orders>")
    assert isinstance(alarm["StateUpdatedTimestamp"], datetime)
    assert cloudwatch.list_tags_for_resource(ResourceARN=alarm["AlarmArn"])["Tags"] == [
        {"Key": "team", "Value": "a"}
    ]
    cloudwatch.set_alarm_state(AlarmName=name, StateValue="ALARM", StateReason="a test")
    history = cloudwatch.describe_alarm_history(AlarmName=name, HistoryItemType="StateUpdate")
    assert history["AlarmHistoryItems"]
    cloudwatch.disable_alarm_actions(AlarmNames=[name])
    assert not cloudwatch.describe_alarms(AlarmNames=[name])["MetricAlarms"][0]["ActionsEnabled"]
    cloudwatch.delete_alarms(AlarmNames=[name])
    assert cloudwatch.describe_alarms(AlarmNames=[name])["MetricAlarms"] == []


def test_prometheus_scrapes_with_its_password(monitored: Endpoint) -> None:
    def scraped(password: str) -> str:
        text = f"{monitored.access_key_id}:{password}".encode()
        request = Request(f"{monitored.url}/monitoring/metrics")
        request.add_header("Authorization", f"Basic {b64encode(text).decode()}")
        with build_opener(ProxyHandler({})).open(request) as answer:
            return str(answer.read().decode())

    def values() -> dict[str, float]:
        text = scraped(metrics_password(monitored.secret_access_key))
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.labels["queue"] == "orders" and sample.labels.get("state", "visible") == "visible"
        }

    eventually(lambda: values().get("quaymaster_queue_messages") == 5)
    assert values()["quaymaster_queue_sent_total"] == 5
    with pytest.raises(HTTPError) as refused:
        scraped(metrics_password("wrong"))
    with refused.value as answer:  # has the connection, which would be closed whenever it is collected
        assert answer.code == 403


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


GO = Path(__file__).parent / "go_cloudwatch"
JAVASCRIPT = Path(__file__).parent / "javascript_cloudwatch"
JAVASCRIPT_SCENARIOS = (
    "speaks JSON by itself, and CBOR",
    "lists the metrics of a queue",
    "reads statistics with their times",
    "reads statistics in CBOR",
    "learns that a dashboard does not exist",
    "is refused with a wrong secret",
)
JAVA = Path(__file__).parent / "java_cloudwatch"
JAVA_SCENARIOS = (
    "speaks CBOR",
    "lists the metrics of a queue",
    "reads statistics with their times",
    "learns that a dashboard does not exist",
    "is refused with a wrong secret",
)
GO_SCENARIOS = (
    "speaks CBOR",
    "lists the metrics of a queue",
    "reads statistics with their times",
    "scales by KEDA's query",
    "scales by KEDA's dimensions",
    "catches an error of the service by its class",
    "keeps a dashboard",
    "is refused with a wrong secret",
)


@pytest.fixture(scope="module")
def go_outcomes(monitored: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    go = program_or_skip("go")
    environment = {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}

    def make(directory: Path) -> None:
        lock_is_wrong = ("SECURITY ERROR", "missing go.sum entry", "updates to go.mod needed")
        fetch_or_skip([go, "mod", "download"], GO, environment, faults=lock_is_wrong)
        binary = str(directory / "client")
        build([go, "build", "-mod=readonly", "-buildvcs=false", "-o", binary, "."], GO, environment)

    version = build([go, "version"], GO, environment)
    program = cached(
        "go-cloudwatch", [*(GO / name for name in ("main.go", "go.mod", "go.sum")), version], make
    )
    return _run([str(program / "client")], monitored, tmp_path_factory.mktemp("go-cloudwatch"))


@pytest.fixture(scope="module")
def javascript_outcomes(monitored: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    node, npm = program_or_skip("node"), program_or_skip("npm")
    files = [JAVASCRIPT / name for name in ("package.json", "package-lock.json", ".npmrc")]

    def install(directory: Path) -> None:
        for file in files:
            shutil.copy(file, directory)
        fetch_or_skip([npm, "ci", "--ignore-scripts"], directory, faults=("EUSAGE", "EINTEGRITY"))

    version = build([node, "--version"], JAVASCRIPT)
    packages = cached("javascript-cloudwatch", [*files, version], install) / "node_modules"
    # Node looks for packages next to the program.
    directory = tmp_path_factory.mktemp("javascript-cloudwatch")
    shutil.copy(JAVASCRIPT / "main.mjs", directory)
    (directory / "node_modules").symlink_to(packages)
    return _run([node, "main.mjs"], monitored, directory)


@pytest.fixture(scope="module")
def java_outcomes(monitored: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    java, javac, mvn = program_or_skip("java"), program_or_skip("javac"), program_or_skip("mvn")
    sources = [
        Path(__file__).parent / "java/src/main/java/quaymaster/Report.java",
        JAVA / "src/main/java/quaymaster/Metrics.java",
    ]

    def make(directory: Path) -> None:
        copy = [mvn, "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={directory / 'lib'}"]
        fetch_or_skip(copy, JAVA, faults=("Non-parseable POM", "is missing"))
        strict = ["-Xlint:all,-processing", "-Werror"]
        build([javac, *strict, "-cp", "lib/*", "-d", "classes", *map(str, sources)], directory)

    version = build([javac, "-version"], JAVA)
    folder = cached("java-cloudwatch", [JAVA / "pom.xml", *sources, version], make)
    classpath = os.pathsep.join([f"{folder}/classes", f"{folder}/lib/*"])
    command = [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classpath, "quaymaster.Metrics"]
    return _run(command, monitored, tmp_path_factory.mktemp("java-cloudwatch"))


def _run(command: list[str], server: Endpoint, directory: Path) -> Outcomes:
    return run_scenarios(command, server, directory, {"AWS_ENDPOINT_URL_CLOUDWATCH": server.url})


@pytest.mark.parametrize("scenario", GO_SCENARIOS)
def test_go_sdk(go_outcomes: Outcomes, scenario: str) -> None:
    go_outcomes.check(scenario)


@pytest.mark.parametrize("scenario", JAVASCRIPT_SCENARIOS)
def test_javascript_sdk(javascript_outcomes: Outcomes, scenario: str) -> None:
    javascript_outcomes.check(scenario)


@pytest.mark.parametrize("scenario", JAVA_SCENARIOS)
def test_java_sdk(java_outcomes: Outcomes, scenario: str) -> None:
    java_outcomes.check(scenario)


def test_every_scenario_of_the_programs_is_a_test(
    go_outcomes: Outcomes, javascript_outcomes: Outcomes, java_outcomes: Outcomes
) -> None:
    assert java_outcomes.scenarios == set(JAVA_SCENARIOS)
    assert go_outcomes.scenarios == set(GO_SCENARIOS)
    assert javascript_outcomes.scenarios == set(JAVASCRIPT_SCENARIOS)
