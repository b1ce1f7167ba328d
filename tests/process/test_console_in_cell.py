"""A console of a cell, with TLS between all processes: front ends find it, and it knows the queues of all brokers."""

import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import boto3
from harness.running_cell import CELL, RunningCell
from harness.waiting import eventually

from quaymaster.cli.shared.client import AdminClient
from quaymaster.cli.shared.connection import find_connection
from quaymaster.net.certificates import CertificateAuthority


def client_of(cell: RunningCell, service: str) -> Any:
    known = cell.environment()
    return boto3.client(
        service,
        endpoint_url=known.endpoint_url,
        region_name=known.region,
        aws_access_key_id=known.access_key_id,
        aws_secret_access_key=known.secret_access_key,
    )


def test_a_console_of_a_cell_answers_front_ends_and_knows_all_queues(tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca", CELL, days=10)

    def tls(name: str, role: str) -> Path:
        directory = authority.directory / "nodes" / name
        return directory if directory.exists() else authority.issue(name, [role], days=5).path

    roles = {"broker": 1, "metadata": 1, "manager": 1, "frontend": 1, "console": 1}
    with RunningCell.started(tmp_path, roles, settings={"replicas": "1"}, tls=tls) as cell:
        sqs, cloudwatch = client_of(cell, "sqs"), client_of(cell, "cloudwatch")
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        for number in range(3):
            sqs.send_message(QueueUrl=url, MessageBody=f"order {number}")
        console = cell["console-1"]

        def knows() -> bool:
            with urlopen(f"http://127.0.0.1:{console.admin_port}/metrics/queues", timeout=60) as answer:
                return b'queue="orders",state="visible"} 3' in answer.read()

        eventually(knows)
        names = {one["MetricName"] for one in cloudwatch.list_metrics(Namespace="AWS/SQS")["Metrics"]}
        assert "NumberOfMessagesSent" in names
        with urlopen(f"http://127.0.0.1:{console.port}/sign-in", timeout=60) as answer:
            assert answer.status == 200

        def sent() -> float:
            now_s = time.time()
            points = cloudwatch.get_metric_statistics(
                Namespace="AWS/SQS",
                MetricName="NumberOfMessagesSent",
                Dimensions=[{"Name": "QueueName", "Value": "orders"}],
                StartTime=now_s - 600,
                EndTime=now_s + 60,
                Period=60,
                Statistics=["Sum"],
            )["Datapoints"]
            return float(sum(point["Sum"] for point in points))

        with AdminClient(find_connection(cell["frontend-1"].data, None)) as admin:

            def knows_processes() -> bool:
                processes = admin.call("GetCell")["processes"]
                names = {
                    one["name"] for one in processes if None not in (one["cpu"], one["memory"], one["disk"])
                }
                return names == {f"{role}-1" for role in roles}

            eventually(knows_processes)
            eventually(lambda: admin.call("ListDecisions")["decisions"])
            decided = {one["decision"].split()[0] for one in admin.call("ListDecisions")["decisions"]}
            assert "CreateJournal" in decided

        eventually(lambda: sent() >= 3)
        assert sent() == 3
        console.stop()
