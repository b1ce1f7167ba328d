"""One real server for all tests of this folder, and clients of it.

`COMPAT_ENDPOINT_URL` (with `COMPAT_ACCOUNT_ID`, `COMPAT_ACCESS_KEY_ID`, `COMPAT_SECRET_ACCESS_KEY`) runs the
same tests against a server that is already there; tests that need a server of their own are skipped then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest
from botocore.exceptions import ClientError
from harness.process import QuaymasterProcess
from harness.sqs import Endpoint, HTTPAnswer, endpoint_of
from harness.waiting import PATIENCE_S, eventually

from .support import cloudwatch_of, unique

StartServer = Callable[..., Endpoint]
MakeQueue = Callable[..., str]

_running: list[QuaymasterProcess] = []


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show the server's log under a failed test."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed and item.path.parent == Path(__file__).parent:
        for process in _running:
            report.sections.append(
                (f"log of the server on port {process.listen_port}", process.log()[-6000:])
            )


def long_polls() -> int | None:
    """Return how many receives wait at the servers of these tests; None where a server is not of these tests."""
    return sum(_long_polls_of(process) for process in _running) if _running else None


def _long_polls_of(process: QuaymasterProcess) -> int:
    with build_opener(ProxyHandler({})).open(f"{process.admin_url}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith("quaymaster_long_polls "))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The shared server: signed requests, no waiting after purge and delete."""
    given = os.environ.get("COMPAT_ENDPOINT_URL")
    if given:
        yield Endpoint(
            given,
            os.environ.get("COMPAT_REGION", "us-east-1"),
            os.environ.get("COMPAT_ACCOUNT_ID", "000000000000"),
            os.environ["COMPAT_ACCESS_KEY_ID"],
            os.environ["COMPAT_SECRET_ACCESS_KEY"],
        )
        return
    process = QuaymasterProcess(
        tmp_path_factory.mktemp("compat") / "data",
        settings={"authentication": "signed", "purge_interval_s": "0", "queue_name_reuse_s": "0"},
    )
    yield from _served_by(process)


@pytest.fixture(scope="session")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A server whose console answers, with a queue `orders` that has five messages."""
    process = QuaymasterProcess(
        tmp_path_factory.mktemp("cloudwatch") / "data",
        settings={"authentication": "signed", "console": "on", "console_listen": "127.0.0.1:0"},
    )
    with contextmanager(_served_by)(process) as endpoint:
        client = endpoint.client()
        queue = client.create_queue(QueueName="orders")["QueueUrl"]
        for number in range(5):
            client.send_message(QueueUrl=queue, MessageBody=str(number))
        eventually(lambda: _has_metrics(endpoint))
        yield endpoint


def _has_metrics(endpoint: Endpoint) -> bool:
    """Tell whether the console answers, and has heard of the queue."""
    try:
        return bool(cloudwatch_of(endpoint).list_metrics(Namespace="AWS/SQS")["Metrics"])
    except ClientError as error:
        if error.response["Error"]["Code"] != "ServiceUnavailable":
            raise
        return False


def _served_by(process: QuaymasterProcess) -> Iterator[Endpoint]:
    process.start()
    _running.append(process)
    try:
        yield endpoint_of(process)
    finally:
        _running.remove(process)
        process.stop()


@pytest.fixture(scope="session")
def server_with_waits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A shared server that waits after purge and delete, as SQS does."""
    if os.environ.get("COMPAT_ENDPOINT_URL"):
        pytest.skip("needs a server of its own")
    process = QuaymasterProcess(
        tmp_path_factory.mktemp("compat-waits") / "data", settings={"authentication": "signed"}
    )
    yield from _served_by(process)


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[..., QuaymasterProcess]]:
    """Start servers of this test's own; keyword arguments are settings, `None` leaves the default."""
    if os.environ.get("COMPAT_ENDPOINT_URL"):
        pytest.skip("needs a server of its own")
    started: list[QuaymasterProcess] = []

    def start(**settings: str) -> QuaymasterProcess:
        process = QuaymasterProcess(tmp_path / f"data-{len(started)}", settings=settings)
        process.start()
        started.append(process)
        _running.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            _running.remove(process)
        for process in started:
            process.stop()


@pytest.fixture
def start_server(start_process: Callable[..., QuaymasterProcess]) -> StartServer:
    """Like `start_process`, for tests that only need the endpoint."""

    def start(**settings: str) -> Endpoint:
        return endpoint_of(start_process(**settings))

    return start


@pytest.fixture(scope="session")
def sqs(server: Endpoint) -> Any:
    """A boto3 client, which speaks AWS JSON."""
    return server.client()


@pytest.fixture(scope="session")
def loose_sqs(server: Endpoint) -> Any:
    """A boto3 client that sends what it is given, right or wrong."""
    return server.client(check_parameters=False)


@pytest.fixture(scope="session")
def query_call(server: Endpoint) -> Callable[..., HTTPAnswer]:
    """`query_call(action, params, method="POST"|"GET", path="/")`: a signed request in the Query form."""
    return server.query_call


@pytest.fixture
def make_queue(sqs: Any) -> Iterator[MakeQueue]:
    """Create standard queues; keyword arguments are attributes. They are deleted after the test."""
    urls: list[str] = []

    def make(**attributes: str) -> str:
        url: str = sqs.create_queue(QueueName=unique(), Attributes=attributes)["QueueUrl"]
        urls.append(url)
        return url

    yield make
    _delete_queues(sqs, urls)


@pytest.fixture
def make_fifo_queue(sqs: Any) -> Iterator[MakeQueue]:
    """Create FIFO queues; keyword arguments are attributes. They are deleted after the test."""
    urls: list[str] = []

    def make(**attributes: str) -> str:
        url: str = sqs.create_queue(
            QueueName=unique(fifo=True), Attributes={"FifoQueue": "true", **attributes}
        )["QueueUrl"]
        urls.append(url)
        return url

    yield make
    _delete_queues(sqs, urls)


@pytest.fixture
def queue(make_queue: MakeQueue) -> str:
    """The URL of a standard queue with default attributes."""
    return make_queue()


@pytest.fixture
def fifo_queue(make_fifo_queue: MakeQueue) -> str:
    """The URL of a FIFO queue with default attributes."""
    return make_fifo_queue()


def _delete_queues(sqs: Any, urls: list[str]) -> None:
    for url in urls:
        try:
            sqs.delete_queue(QueueUrl=url)
        except sqs.exceptions.QueueDoesNotExist:
            continue  # the test deleted it itself
