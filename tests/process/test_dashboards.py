"""Each query of the dashboards has series, from a real Prometheus on a cell with load and a leader that was killed.

Grafana itself is not asked: no registry has its server. What it would send to Prometheus is.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.local_cluster import LocalCluster
from harness.programs import program_or_skip
from harness.waiting import PATIENCE_S, eventually

from quaymaster.cli.local.cluster import read_cluster

pytestmark = pytest.mark.slow

GRAFANA = Path(__file__).resolve().parents[2] / "deploy" / "grafana"
OF_A_CELL = [
    path for path in sorted(GRAFANA.glob("*.json")) if path.stem not in ("console", "customer", "pipeline")
]
"""A local cell has no console. The pipeline is another program, and its figures are a file."""
FAULTS = {
    "quaymaster_usage_records_dropped_total": "usage is dropped where a spool is full or damaged",
    'code=~"InternalFailure': "requests get errors of the server",
    'result=~"[^OC].*"': "calls fail only with the processes that are asked",
    "quaymaster_http_throttled_total": "requests are throttled by limits",
    "quaymaster_authentication_failures_total": "signatures are wrong",
    "quaymaster_broker_clock_skew_seconds": "managers tell of brokers that they heard for a while",
}
"""What may have no series in a cell whose faults were others."""


@contextmanager
def prometheus(directory: Path, targets: list[str]) -> Iterator[str]:
    """A Prometheus that scrapes these each second; give its URL."""
    program = program_or_skip("prometheus", "prometheus")
    directory.mkdir()
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "quaymaster", "static_configs": [{"targets": targets}]}],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    log = (directory / "log").open("w+")
    process = subprocess.Popen(
        [
            program,
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            "--web.listen-address=127.0.0.1:0",
        ],
        stderr=log,
        stdout=log,
    )
    try:
        yield eventually(lambda: _address(directory / "log"), "Prometheus listens")
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        log.close()


def _address(log: Path) -> str:
    for line in log.read_text().splitlines():
        if "Listening on" in line and "address=127" in line:
            return "http://" + line.partition("address=")[2].split()[0]
    return ""


def series(url: str, expression: str) -> list[Any]:
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=PATIENCE_S) as answer:
        found = json.load(answer)
    assert found["status"] == "success", found
    return list(found["data"]["result"])


def load(cluster: LocalCluster) -> None:
    sqs = cluster.client()
    queue = sqs.create_queue(QueueName=f"jobs-{time.monotonic_ns()}")["QueueUrl"]
    for number in range(20):
        sqs.send_message(QueueUrl=queue, MessageBody=str(number))
    for message in sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]:
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.get_queue_url(QueueName="missing")


def test_every_query_has_series_on_a_cell_after_load_and_a_leaders_death(tmp_path: Path) -> None:
    queries = {
        target["expr"]: f"{path.stem}: {panel['title']}"
        for path in OF_A_CELL
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", ())
    }
    with LocalCluster.started(tmp_path / "cluster") as cluster:
        targets = [
            f"127.0.0.1:{process.admin_port}"
            for process in read_cluster(cluster.directory).plan.processes
            if process.admin_port is not None and process.role != "etcd"
        ]
        with prometheus(tmp_path / "prometheus", targets) as url:
            load(cluster)
            cluster.run("kill", "broker-1")
            load(cluster)

            def missing() -> dict[str, str]:
                load(cluster)
                return {
                    where: expression
                    for expression, where in queries.items()
                    if not any(fault in expression for fault in FAULTS)
                    and not series(
                        url, expression.replace("$instance", ".+").replace("$__rate_interval", "1m")
                    )
                }

            deadline_s = time.monotonic() + PATIENCE_S
            while (left := missing()) and time.monotonic() < deadline_s:
                time.sleep(1)
            assert left == {}
