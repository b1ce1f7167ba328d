"""`quaymaster queue push`: what it asks for, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness.command_line import PlayedServer, Run

SHOW = "GET /admin/v1/queues/orders/push"
SECRET = "GET /admin/v1/queues/orders/push/secret"
ROTATE = "POST /admin/v1/queues/orders/push/rotate"
TEST = "POST /admin/v1/queues/orders/push/test"
PUSH: dict[str, Any] = {
    "name": "orders",
    "endpoint": "https://example.com/orders?***",
    "state": "active",
    "format": "CloudEvents",
    "batch_size": 1,
    "concurrency_max": 10,
    "timeout_ms": 30_000,
    "backoff_min_ms": 10_000,
    "backoff_max_ms": 600_000,
    "signing": "HMAC",
    "headers": ["Authorization"],
    "secrets": 1,
}


def given(server: PlayedServer) -> dict[str, str]:
    """Return the attributes of the last SetQueueAttributes."""
    attributes: dict[str, str] = server.called("SetQueueAttributes")[-1]["Attributes"]
    return attributes


def test_an_endpoint_is_set_with_all_that_is_said_of_it(
    run: Run, data: Path, server: PlayedServer, tmp_path: Path
) -> None:
    headers = tmp_path / "headers.json"
    headers.write_text('{"Authorization": "Bearer s3cret"}')
    server.answers["GetQueueAttributes"] = {
        "Attributes": {"PushRetryPolicy": '{"minBackoffSeconds":10,"maxBackoffSeconds":600}'}
    }

    done = run(
        *("queue", "push", "set", "orders", "--endpoint", "https://example.com/orders"),
        *("--format", "Lambda", "--batch-size", 5, "--max-concurrency", 20, "--timeout", 10),
        *("--signing", "Ed25519"),
        *("--max-backoff", 60, "--headers-file", headers, "--data", data),
    )

    assert done.code == 0
    assert "s3cret" not in done.out + done.err
    assert "queue push show orders --secret" in done.err
    assert given(server) == {
        "PushEndpoint": "https://example.com/orders",
        "PushFormat": "Lambda",
        "PushBatchSize": "5",
        "PushMaxConcurrency": "20",
        "PushSigning": "Ed25519",
        "PushTimeoutSeconds": "10",
        "PushHeaders": '{"Authorization": "Bearer s3cret"}',
        "PushRetryPolicy": '{"minBackoffSeconds": 10, "maxBackoffSeconds": 60}',
    }


def test_pushing_is_switched_off_and_headers_are_taken_away(
    run: Run, data: Path, server: PlayedServer
) -> None:
    server.answers["GetQueueAttributes"] = {
        "Attributes": {"PushRetryPolicy": '{"minBackoffSeconds":10,"maxBackoffSeconds":600}'}
    }

    off = run("queue", "push", "set", "orders", "--off", "--data", data, "--json")
    assert given(server) == {"PushEndpoint": ""}
    bare = run("queue", "push", "set", "orders", "--no-headers", "--min-backoff", 1, "--data", data)

    assert off.code == bare.code == 0
    assert json.loads(off.out) == {"name": "orders", "set": ["PushEndpoint"]}
    assert given(server)["PushHeaders"] == ""


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--off", "--endpoint", "https://example.com"),
        ("--no-headers", "--headers-file", "x"),
        ("--headers-file", "nowhere.json"),
    ],
)
def test_what_is_not_clear_is_refused(
    run: Run, data: Path, server: PlayedServer, arguments: tuple[str, ...]
) -> None:
    assert run("queue", "push", "set", "orders", *arguments, "--data", data).code == 2


def test_pushing_is_shown(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers[SHOW] = PUSH

    table = run("queue", "push", "show", "orders", "--data", data)
    as_json = run("queue", "push", "show", "orders", "--data", data, "--json")

    assert table.code == as_json.code == 0
    assert "endpoint\thttps://example.com/orders?***" in table.out.splitlines()
    assert "back-off\t10 to 600 s" in table.out.splitlines()
    assert json.loads(as_json.out) == PUSH


def test_a_queue_that_is_not_pushed_says_so(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers[SHOW] = {**PUSH, "endpoint": None, "state": None, "headers": [], "secrets": 0}

    shown = run("queue", "push", "show", "orders", "--data", data)

    assert "endpoint\tnone: it is not pushed" in shown.out.splitlines()


@pytest.mark.parametrize("older", [None, "whsec_b"])
def test_the_secret_is_alone_on_standard_output(
    run: Run, data: Path, server: PlayedServer, older: str | None
) -> None:
    server.answers[SECRET] = {"name": "orders", "secret": "whsec_a", "older_secret": older}

    shown = run("queue", "push", "show", "orders", "--secret", "--data", data)
    as_json = run("queue", "push", "show", "orders", "--secret", "--data", data, "--json")

    assert shown.out == "whsec_a\n"
    assert ("whsec_b" in shown.err) == (older is not None)
    assert json.loads(as_json.out)["older_secret"] == older


def test_a_rotation_prints_the_new_secret(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers[ROTATE] = {"name": "orders", "secret": "whsec_new"}

    done = run("queue", "push", "rotate", "orders", "--data", data)
    as_json = run("queue", "push", "rotate", "orders", "--data", data, "--json")

    assert done.out == "whsec_new\n"
    assert json.loads(as_json.out)["secret"] == "whsec_new"


@pytest.mark.parametrize(("outcome", "code"), [("taken", 0), ("failed", 1), ("not called", 1)])
def test_a_test_ends_with_1_unless_the_endpoint_took_the_message(
    run: Run, data: Path, server: PlayedServer, outcome: str, code: int
) -> None:
    server.answers[TEST] = {"name": "orders", "state": "active", "outcome": outcome, "reason": "why"}

    done = run("queue", "push", "test", "orders", "--data", data)
    as_json = run("queue", "push", "test", "orders", "--data", data, "--json")

    assert done.code == as_json.code == code
    assert done.out == f"{outcome} (active): why\n"
    assert json.loads(as_json.out)["outcome"] == outcome
