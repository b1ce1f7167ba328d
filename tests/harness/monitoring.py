"""What processes tell of themselves: their metrics; and a request of CloudWatch, whatever comes of it."""

from __future__ import annotations

from contextlib import suppress
from urllib.request import ProxyHandler, build_opener

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from .process import Environment, QuaymasterProcess
from .running_cell import RoleProcess
from .waiting import PATIENCE_S


def families_of(process: QuaymasterProcess | RoleProcess) -> list[Metric]:
    """Return the metrics of the admin port."""
    address = f"http://127.0.0.1:{process.admin_port}/metrics"
    with build_opener(ProxyHandler({})).open(address, timeout=PATIENCE_S) as answer:
        return list(text_string_to_metric_families(answer.read().decode()))


def scrape(process: QuaymasterProcess | RoleProcess) -> dict[str, float]:
    """Return the sum of the samples of each metric, a histogram's by its count."""
    values: dict[str, float] = {}
    for family in families_of(process):
        for sample in family.samples:
            name = sample.name.removesuffix("_count") if family.type == "histogram" else sample.name
            values[name] = values.get(name, 0.0) + sample.value
    return values


def ask_for_metrics(environment: Environment) -> None:
    """List metrics once; there may be no console that answers."""
    client = boto3.session.Session().client(
        "cloudwatch",
        endpoint_url=environment.endpoint_url,
        region_name=environment.region,
        aws_access_key_id=environment.access_key_id,
        aws_secret_access_key=environment.secret_access_key,
        config=Config(retries={"total_max_attempts": 1, "mode": "standard"}),
    )
    with suppress(ClientError):
        client.list_metrics()
