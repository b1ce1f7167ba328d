"""A request of CloudWatch to a front end, whatever comes of it."""

from __future__ import annotations

from contextlib import suppress

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from .process import Environment


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
