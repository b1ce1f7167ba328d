"""`quaymaster import` on the command line: what it refuses, and what people decide."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.command_line import ACCESS_KEY_ID, SECRET, PlayedServer, Result, Run

from quaymaster.cli.imports.ledger import Known, Ledger
from quaymaster.core.partition.staged_messages import SINK_KEPT_MS

IDENTITY = b"i" * 16
ARN = "arn:aws:sqs:eu-west-1:111122223333:orders"
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "eu-test-1"}


@pytest.fixture
def there() -> Iterator[PlayedServer]:
    """A service with one queue, `orders`."""
    played = PlayedServer()
    played.answers["ListQueues"] = {"QueueUrls": [played.queue_url("orders")]}
    played.answers["GetQueueAttributes"] = {"Attributes": {"QueueArn": ARN, "DelaySeconds": "7"}}
    try:
        yield played
    finally:
        played.stop()


@pytest.fixture
def imported(run: Run, data: Path, there: PlayedServer) -> Any:
    def call(*arguments: str) -> Result:
        return run("import", "--from", there.url, "--data", data, *arguments, environment=KEYS)

    return call


@pytest.fixture
def state(tmp_path: Path, there: PlayedServer, server: PlayedServer) -> Any:
    """Open the state file as an import between the two would."""
    return lambda: Ledger(tmp_path / "quaymaster-import.sqlite", source=there.url, target=server.url)


def leave_a_batch(state: Any, begun_ms: int) -> None:
    with state() as ledger:
        ledger.begin("orders", "sink", [IDENTITY], ["m-17"], begun_ms)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_batch_that_is_left_is_settled_before_anything_is_received(
    imported: Any, state: Any, there: PlayedServer, server: PlayedServer
) -> None:
    leave_a_batch(state, now_ms())
    server.answers["CommitTransaction"] = {"Committed": 1}

    done = imported("--json")

    assert done.code == 0, done
    (closed,) = server.called("CommitTransaction")
    assert (closed["SinkId"], closed["Stages"]) == ("sink", [])
    with state() as ledger:
        assert ledger.claim(IDENTITY) is Known.COMMITTED


@pytest.mark.parametrize(("settle", "known"), [("committed", Known.COMMITTED), ("not", Known.NEW)])
def test_after_7_days_people_decide_what_became_of_a_batch(
    imported: Any, state: Any, there: PlayedServer, server: PlayedServer, settle: str, known: Known
) -> None:
    leave_a_batch(state, now_ms() - SINK_KEPT_MS)

    refused = imported()
    decided = imported("--settle", settle)

    assert refused.code == 1
    assert "m-17" in refused.err
    assert decided.code == 0, decided
    assert server.called("CommitTransaction") == []
    with state() as ledger:
        assert ledger.claim(IDENTITY) is known


def test_a_dry_run_tells_differences_and_changes_nothing(
    imported: Any, there: PlayedServer, server: PlayedServer
) -> None:
    server.answers["GetQueueAttributes"] = {"Attributes": {"DelaySeconds": "0"}}

    shown = imported("--dry-run")

    assert shown.code == 0, shown
    assert shown.out == "orders\tdiffers\tDelaySeconds\t7\t0\t\n"
    assert "nothing was changed" in shown.err
    asked = {call.what for call in (*there.calls, *server.calls)}
    assert asked <= {"ListQueues", "GetQueueUrl", "GetQueueAttributes", "ListQueueTags"}


def test_what_is_refused_stops_the_import_until_it_is_left_out(
    imported: Any, there: PlayedServer, server: PlayedServer
) -> None:
    attributes = {"QueueArn": ARN, "Policy": "no policy"}
    there.answers["GetQueueAttributes"] = {"Attributes": attributes}

    refused = imported("--definitions-only")
    assert refused.code == 1
    assert "orders: Policy (refused)" in refused.err

    made = imported("--definitions-only", "--leave-out", "--json")
    assert made.code == 0, made
    assert json.loads(made.out)["unchanged"] == ["orders"]


def test_queues_that_are_here_change_only_when_that_is_asked_for(
    imported: Any, there: PlayedServer, server: PlayedServer
) -> None:
    server.answers["GetQueueAttributes"] = {"Attributes": {"DelaySeconds": "0"}}
    there.answers["ListQueueTags"] = {"Tags": {"team": "x"}}

    left = imported("--definitions-only")
    assert left.out == "orders\tunchanged\n"
    assert "DelaySeconds is 7 there and 0 here" in left.err
    assert server.called("SetQueueAttributes") == []

    updated = imported("--definitions-only", "--update")
    assert updated.out == "orders\tupdated\n"
    assert [each["Attributes"] for each in server.called("SetQueueAttributes")] == [{"DelaySeconds": "7"}]
    assert [each["Tags"] for each in server.called("TagQueue")] == [{"team": "x"}]


def test_messages_of_a_log_are_not_imported(imported: Any, there: PlayedServer, server: PlayedServer) -> None:
    there.answers["GetQueueAttributes"] = {"Attributes": {"QueueArn": ARN, "RetentionMode": "Log"}}

    done = imported()

    assert done.code == 0, done
    assert "orders: a log keeps its messages" in done.err
    assert there.called("ReceiveMessage") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--settle", "maybe"), "--settle is committed or not"), (("--from", "sqs://"), "names no region")],
)
def test_wrong_usage_is_told(imported: Any, arguments: tuple[str, ...], said: str) -> None:
    refused = imported(*arguments)

    assert refused.code == 2
    assert said in refused.err


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_service_is_not_imported_into_itself_whatever_it_is_called(
    run: Run, data: Path, server: PlayedServer, host: str
) -> None:
    url = server.url.replace("127.0.0.1", host)

    refused = run("import", "--from", url, "--data", data, environment=KEYS)

    assert refused.code == 2
    assert "the same service" in refused.err
