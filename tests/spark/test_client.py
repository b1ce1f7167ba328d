"""The client: signed requests over one connection, repeated with back-off until a deadline."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_quaymaster.client import Bounds, Client, Patience
from pyspark_quaymaster.credentials import Endpoint, find_endpoint
from pyspark_quaymaster.errors import OptionIsInvalid, RequestRefused, ServerIsUnavailable

from .fake_server import FakeServer, Refusal, fake_server


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        yield running


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.endpoint, Patience(5.0, 5.0), sleep=lambda seconds: None) as made:
        yield made


class Failures:
    """Fails the first calls, each in its way."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    def __call__(self, action: str, fields: dict[str, Any]) -> None:
        if self._errors:
            raise self._errors.pop(0)


def test_requests_are_signed_and_share_a_connection(server: FakeServer, client: Client) -> None:
    made = server.make("orders", 3, 0)

    for _ in range(5):
        log = client.describe_log(server.url("orders"))

    assert log.queue_id == str(made.queue_id)
    assert log.partitions == {0: Bounds(0, 3), 1: Bounds(0, 0)}
    assert server.connections == 1


def test_a_wrong_key_is_refused_at_once(server: FakeServer) -> None:
    endpoint = Endpoint(server.endpoint.url, "us-east-1", "AKIAFAKE", "another secret")

    with Client(endpoint) as client, pytest.raises(RequestRefused, match="SignatureDoesNotMatch"):
        client.describe_log(server.url("orders"))


def test_all_pages_of_queues_are_read(server: FakeServer, client: Client) -> None:
    for name in "abcde":
        server.make(name)

    assert client.queue_urls() == [server.url(name) for name in "abcde"]


@pytest.mark.parametrize(
    "error",
    [
        Refusal(503, "ServiceUnavailable"),
        Refusal(403, "RequestThrottled", {"Retry-After": "1"}),
        ConnectionError(),
    ],
)
def test_what_may_pass_is_tried_again_with_the_same_invocation_id(
    server: FakeServer, client: Client, error: Exception
) -> None:
    server.make("orders", 1)
    server.before = Failures(error, error)

    client.send_batch(server.url("orders"), [{"Id": "0", "MessageBody": "x"}])

    assert len({invocation for invocation, _ in server.invocations}) == 1
    assert [attempt for _, attempt in server.invocations] == ["attempt=1", "attempt=2", "attempt=3"]
    assert len(server.sent["orders"]) == 1


def test_the_servers_word_on_when_to_come_back_is_kept(server: FakeServer) -> None:
    server.make("orders", 1)
    server.before = Failures(Refusal(403, "RequestThrottled", {"Retry-After": "2"}))
    slept: list[float] = []

    with Client(server.endpoint, Patience(5.0, 5.0), sleep=slept.append) as client:
        client.describe_log(server.url("orders"))

    assert slept == [2.0]


def test_a_server_that_stays_away_is_given_up_at_the_deadline(server: FakeServer) -> None:
    server.before = Failures(*[Refusal(503, "ServiceUnavailable")] * 1_000)
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    client = Client(server.endpoint, Patience(5.0, 30.0), now_s=lambda: now_s, sleep=sleep)
    with (
        client,
        pytest.raises(
            ServerIsUnavailable, match=r"DescribeLog of orders at .* in 30 s .* ServiceUnavailable"
        ),
    ):
        client.describe_log(server.url("orders"))

    assert 20 < now_s <= 30


def test_a_refusal_is_not_repeated(server: FakeServer, client: Client) -> None:
    with pytest.raises(RequestRefused) as caught:
        client.describe_log(server.url("none"))

    assert (caught.value.code, caught.value.status) == ("QueueDoesNotExist", 400)
    assert len(server.calls) == 1


def test_a_refusal_names_the_queue_also_after_it_went_from_a_task_to_the_driver(
    server: FakeServer, client: Client
) -> None:
    asked: dict[str, Callable[[], object]] = {
        "GetQueueUrl of none: ": lambda: client.queue_url("none"),
        "DescribeLog of none: ": lambda: client.describe_log(server.url("none")),
        "FindOffsets of none@g: ": lambda: client.find_offsets(server.url("none@g"), 0),
    }

    for start, ask in asked.items():
        with pytest.raises(RequestRefused) as caught:
            ask()
        assert str(caught.value).startswith(f"{start}QueueDoesNotExist (400): ")
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_refusal_about_no_queue_names_none(server: FakeServer, client: Client) -> None:
    server.before = Failures(Refusal(400, "AccessDenied"))

    with pytest.raises(RequestRefused, match=r"^ListQueues: AccessDenied \(400\)"):
        client.queue_urls()


# Where the server is, and whose key


FILES = {
    "credentials": "[default]\naws_access_key_id = AKFILE\naws_secret_access_key = filesecret\n"
    "[other]\naws_access_key_id = AKOTHER\naws_secret_access_key = othersecret\naws_session_token = token\n",
    "config": "[default]\nregion = eu-file-1\nendpoint_url = http://file:1\n[profile other]\nregion = eu-other-1\n"
    "endpoint_url = http://other:1\n",
}


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment with AWS files."""
    (tmp_path / ".aws").mkdir()
    for name, text in FILES.items():
        (tmp_path / ".aws" / name).write_text(text)
    return {"HOME": str(tmp_path)}


def test_options_win_over_the_environment_and_that_over_files(home: dict[str, str]) -> None:
    environment = {
        **home,
        "AWS_ENDPOINT_URL": "http://environment:1",
        "AWS_REGION": "eu-environment-1",
        "AWS_ACCESS_KEY_ID": "AKENV",
        "AWS_SECRET_ACCESS_KEY": "envsecret",
    }
    options = {"endpointurl": "http://option:1/", "region": "r", "accesskeyid": "AK", "secretaccesskey": "s"}

    assert find_endpoint(options, environment) == Endpoint("http://option:1", "r", "AK", "s")
    assert find_endpoint({}, environment) == Endpoint(
        "http://environment:1", "eu-environment-1", "AKENV", "envsecret"
    )
    assert find_endpoint({}, home) == Endpoint("http://file:1", "eu-file-1", "AKFILE", "filesecret")
    assert find_endpoint({}, {**home, "AWS_PROFILE": "other"}) == Endpoint(
        "http://other:1", "eu-other-1", "AKOTHER", "othersecret", "token"
    )


def test_the_sqs_endpoint_wins_over_that_of_all_services() -> None:
    environment = {"AWS_ENDPOINT_URL": "http://all:1", "AWS_ENDPOINT_URL_SQS": "http://sqs:1"}

    assert find_endpoint({"accesskeyid": "AK", "secretaccesskey": "s"}, environment).url == "http://sqs:1"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "no server is given"),
        ({"endpointurl": "localhost:9324"}, "endpointUrl must be http"),
        ({"endpointurl": "http://h:1"}, "no access key is given"),
        ({"endpointurl": "http://h:1", "accesskeyid": "AK"}, "both its id and its secret"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionIsInvalid, match=complaint):
        find_endpoint(options, {"HOME": str(tmp_path)})


def test_secrets_are_not_shown() -> None:
    shown = repr(Endpoint("http://h:1", "r", "AK", "a secret", "a token"))

    assert "secret" not in shown.replace("secret_access_key", "")
    assert "token" not in shown
