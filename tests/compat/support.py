"""Small words the compatibility tests are written with."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from harness.sqs import Endpoint
from harness.waiting import PATIENCE_S

T = TypeVar("T")

# A client that misses its endpoint would ask the real service. No child of these tests can: whatever is not
# on loopback goes to a proxy that is not there, and no credentials are looked for on the network.
LOOPBACK_ONLY = {
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def unique(prefix: str = "queue", *, fifo: bool = False) -> str:
    """Return a queue name nobody used before."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}{'.fifo' if fifo else ''}"


@contextmanager
def refused(
    code: str | tuple[str, ...],
    *,
    status: int | None = 400,
    shape: str | None = None,
    message: str | None = None,
    containing: str | None = None,
) -> Iterator[None]:
    """Expect that boto3 raises an error with this code, HTTP status, JSON shape and message.

    Several codes are given where the real service is known to use one or the other.
    """
    with pytest.raises(ClientError) as caught:
        yield
    response = caught.value.response
    error = response["Error"]
    assert error["Code"] in ((code,) if isinstance(code, str) else code), response
    assert status is None or response["ResponseMetadata"]["HTTPStatusCode"] == status, response
    if shape is not None:
        assert error.get("QueryErrorCode", error["Code"]) == shape, response
    if message is not None:
        assert error["Message"] == message
    if containing is not None:
        assert containing in error["Message"]


def bodies(response: Mapping[str, Any]) -> list[str]:
    """Return the bodies of a ReceiveMessage answer in their order; empty when it has none."""
    return [message["Body"] for message in response.get("Messages", [])]


def send(sqs: Any, url: str, *bodies: str, **more: Any) -> list[Any]:
    """Send messages one by one, so that their order is fixed; returns the answers."""
    return [sqs.send_message(QueueUrl=url, MessageBody=body, **more) for body in bodies]


def send_to_groups(sqs: Any, url: str, *messages: str) -> None:
    """Send to a FIFO queue bodies like `a1`, whose first letter is also their group."""
    for body in messages:
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=body[0], MessageDeduplicationId=body)


def receive_one(sqs: Any, url: str, *, wait_s: int = 20, **more: Any) -> Any:
    """Return the next message; fails when none comes within `wait_s`."""
    response = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=wait_s, **more)
    assert response.get("Messages"), "no message came"
    return response["Messages"][0]


def receive_all(sqs: Any, url: str, count: int, *, timeout_s: float = PATIENCE_S, **more: Any) -> list[Any]:
    """Return `count` messages received in one or several calls; fails when fewer come in time."""
    messages: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while len(messages) < count:
        assert time.monotonic() < deadline, f"only {len(messages)} of {count} messages came"
        response = sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=min(10, count - len(messages)), WaitTimeSeconds=2, **more
        )
        messages += response.get("Messages", [])
    return messages


def receive_none(sqs: Any, url: str, **more: Any) -> None:
    """Assert that a short poll finds nothing."""
    assert bodies(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, **more)) == []


def delete(sqs: Any, url: str, *messages: Any) -> None:
    for message in messages:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def hide(sqs: Any, url: str, message: Any, seconds: int) -> None:
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=seconds
    )


def attributes_of(sqs: Any, url: str, *names: str) -> dict[str, str]:
    """Return the named queue attributes, all when none is named; empty when there are none."""
    response = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(names) or ["All"])
    attributes: dict[str, str] = response.get("Attributes", {})
    return attributes


def counts_of(sqs: Any, url: str) -> tuple[int, int, int]:
    """Return how many messages are visible, in flight and delayed."""
    attributes = attributes_of(
        sqs,
        url,
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    )
    return (
        int(attributes["ApproximateNumberOfMessages"]),
        int(attributes["ApproximateNumberOfMessagesNotVisible"]),
        int(attributes["ApproximateNumberOfMessagesDelayed"]),
    )


class Background:
    """A call running in a thread of its own; `result` waits for it and re-raises what it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def result(self, timeout_s: float = PATIENCE_S) -> Any:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"still running after {timeout_s:g} s"
        if self._error is not None:
            raise self._error
        return self._result


def in_parallel(calls: Iterable[Callable[[], T]], *, timeout_s: float = PATIENCE_S) -> list[T]:
    """Run the calls at the same time and return their results in order."""
    running = [Background(call) for call in calls]
    return [background.result(timeout_s) for background in running]


def cloudwatch_of(endpoint: Endpoint) -> Any:
    """Return a client of boto3 for a server's metrics, alarms and dashboards."""
    return boto3.client(
        "cloudwatch",
        endpoint_url=endpoint.url,
        region_name=endpoint.region,
        aws_access_key_id=endpoint.access_key_id,
        aws_secret_access_key=endpoint.secret_access_key,
        config=Config(retries={"total_max_attempts": 3, "mode": "standard"}),
    )
