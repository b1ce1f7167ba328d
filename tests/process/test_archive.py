"""The archive on the real server: what is in files goes from the log, the rest stays, and all is replayed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.process import QuaymasterProcess
from harness.sqs import endpoint_of
from harness.waiting import PATIENCE_S

from quaymaster_pipeline.archive.tables import MESSAGES
from quaymaster_pipeline.warehouse.tables import Warehouse

BODY_BYTES = 900_000
SENT_FIRST, MESSAGES_SENT = 10, 12
WAIT_S = PATIENCE_S


def test_a_log_is_archived_shrinks_only_then_and_is_replayed_whole(tmp_path: Path) -> None:
    process = QuaymasterProcess(tmp_path / "data", settings={"authentication": "signed"})
    process.start()
    try:
        client: Any = endpoint_of(process).client()
        # A byte is kept, and what is in front of it up to 8 MiB: the first messages should be gone at once.
        attributes = {"RetentionMode": "Log", "RetentionBytes": "1", "RetentionPins": "archive"}
        url = client.create_queue(QueueName="events", Attributes=attributes)["QueueUrl"]
        bodies = [f"{number:>{BODY_BYTES}}" for number in range(MESSAGES_SENT)]
        archive = ("archive", "run", "--data", str(process.data), "--once", "--json")

        kept = []
        for part in (bodies[:SENT_FIRST], bodies[SENT_FIRST:]):
            for body in part:
                client.send_message(QueueUrl=url, MessageBody=body)
            kept.append(run(*archive, "--close-after", "0", "--after", "1"))
        assert [one["messages"] for one in kept] == [SENT_FIRST, MESSAGES_SENT - SENT_FIRST]
        assert {one["expiring"] for one in kept} == {0}
        status = ("archive", "status", "--data", str(process.data), "--json")
        assert run(*status)[0]["archived"] == sum(one["archived"] for one in kept)
        assert counts(client, url) == MESSAGES_SENT

        let_go = (*archive, "--after", "0", "--grace", "0")
        deleted: list[int] = []

        def is_deleted() -> bool:
            deleted.append(run(*let_go)["deleted"])  # a fast broker has done it before the job looks
            return sum(deleted) > 0

        wait_for(is_deleted)
        assert counts(client, url) < MESSAGES_SENT
        assert run(*status)[0]["deleted"] == sum(deleted) == 1

        rows = Warehouse(process.data / "warehouse").table(MESSAGES).read(["offset", "value"]).to_pylist()
        found = {row["offset"]: row["value"].decode() for row in rows}
        assert found == {number + 1: body for number, body in enumerate(bodies)}

        again = client.create_queue(QueueName="again")["QueueUrl"]
        replay = (
            "archive",
            "replay",
            "--data",
            str(process.data),
            "--from",
            "events",
            "--queue",
            "again",
            "--json",
        )
        assert run(*replay, "--dry-run", "--filter", "body~[13579]$")["matched"] == MESSAGES_SENT // 2
        assert counts(client, again) == 0
        for _ in range(2):  # the second time it is done
            assert run(*replay)["matched"] == MESSAGES_SENT
        assert counts(client, again) == MESSAGES_SENT
        sources = set()
        while messages := client.receive_message(QueueUrl=again, MessageAttributeNames=["All"]).get(
            "Messages"
        ):
            sources |= {one["MessageAttributes"]["replay.source"]["StringValue"] for one in messages}
        assert sources == {f"events/0/{offset}" for offset in range(1, MESSAGES_SENT + 1)}
    finally:
        process.stop()


def run(*arguments: str) -> Any:
    """Run a command, and return what it prints as JSON."""
    command = [sys.executable, "-m", "quaymaster.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def counts(client: Any, url: str) -> int:
    found = client.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    return int(found["Attributes"]["ApproximateNumberOfMessages"])


def wait_for(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.5)
