"""boto3 as a client of the load: it signs, reads and retries by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import boto3
from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from harness.load import Address, Answer
from harness.process import Environment

ATTEMPTS_MAX = 4


class BotoClient:
    """An SQS client of boto3 for one worker. It uses one address until that fails for good, then the next."""

    def __init__(
        self, environment: Environment, addresses: Iterable[Address], *, timeout_s: float, first: int = 0
    ) -> None:
        config = Config(
            retries={"total_max_attempts": ATTEMPTS_MAX, "mode": "standard"},
            read_timeout=timeout_s,
            connect_timeout=timeout_s,
            max_pool_connections=1,
        )
        session = boto3.session.Session(
            aws_access_key_id=environment.access_key_id,
            aws_secret_access_key=environment.secret_access_key,
            region_name=environment.region,
        )
        self._clients = [
            session.client("sqs", endpoint_url=f"http://{host}:{port}", config=config)
            for host, port in addresses
        ]
        self._now = first

    def close(self) -> None:
        """Let connections go."""
        for client in self._clients:
            client.close()

    def call(
        self, action: str, fields: Mapping[str, Any], *, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> Answer:
        """Make one call, with the retries that boto3 makes; its own headers are sent, not those given."""
        client = self._clients[self._now % len(self._clients)]
        try:
            found = getattr(client, xform_name(action))(**fields)
        except ClientError as error:
            return _refused(error)
        except BotoCoreError:
            self._now += 1
            return Answer(0, {}, attempts=ATTEMPTS_MAX)
        return Answer(200, found, attempts=1 + found.pop("ResponseMetadata").get("RetryAttempts", 0))


def _refused(error: ClientError) -> Answer:
    status = int(error.response["ResponseMetadata"]["HTTPStatusCode"])
    message = f"{error.response['Error'].get('Code')}: {error.response['Error'].get('Message')}"
    attempts = 1 + int(error.response["ResponseMetadata"].get("RetryAttempts", 0))
    if status < 500 and attempts > 1:
        # An attempt before this one may have been carried out.
        return Answer(0, {"message": message}, attempts=attempts)
    return Answer(status, {"message": message}, attempts=attempts)
