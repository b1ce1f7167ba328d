"""Each act of management has one event, with who and from where, also of a server that is killed right after it."""

from __future__ import annotations

import shutil
from contextlib import closing, suppress
from pathlib import Path

from harness.process import ProcessFailed, QuaymasterProcess

from quaymaster.coordination.noted_acts import user_here
from quaymaster.protocol.usage.usage_records import UsageRecord

from .support import Client, refused_start, running
from .test_stores_that_went_back import command
from .test_usage import read_usage

START_KILLED_AFTER_S = (0.5, 0.8, 1.1)
KILLED_AFTER = {"CreateQueue", "StartMessageMoveTask", "DeleteQueue"}
"""A refused one among them. After the others the server runs on: they are in one block with one of these."""


def acts_of(process: QuaymasterProcess) -> list[UsageRecord]:
    """Return the changes in the usage queue, each once: a block may be shipped again after a crash."""
    found = {
        (record.front_end, record.incarnation, record.sequence): record
        for block in read_usage(process)
        for record in block.records()
        if record.category == "management" and not record.read_only
    }
    return [found[identity] for identity in sorted(found)]


def test_what_was_answered_has_its_event_although_the_server_is_killed_at_once(tmp_path: Path) -> None:
    process = QuaymasterProcess(tmp_path / "data", settings={"usage_sync_ms": "60000"})
    with running(process):
        arn = f"arn:aws:sqs:us-east-1:{process.env().account_id}:orders"
        acts: list[tuple[str, str | None, dict[str, object]]] = [
            ("CreateQueue", None, {"QueueName": "orders"}),
            ("SetQueueAttributes", "orders", {"Attributes": {"VisibilityTimeout": "7"}}),
            ("TagQueue", "orders", {"Tags": {"team": "shop"}}),
            ("UntagQueue", "orders", {"TagKeys": ["team"]}),
            ("AddPermission", "orders", {"Label": "l", "AWSAccountIds": ["111122223333"], "Actions": ["*"]}),
            ("RemovePermission", "orders", {"Label": "l"}),
            ("PurgeQueue", "orders", {}),
            ("StartMessageMoveTask", None, {"SourceArn": arn}),
            ("CancelMessageMoveTask", None, {"TaskHandle": "none"}),
            ("DeleteQueue", "orders", {}),
        ]
        statuses = []
        for action, queue, fields in acts:
            with closing(Client(process)) as client:
                statuses.append(client.call(action, queue, **fields).status)
            if action in KILLED_AFTER:
                process.kill9()
                process.start()
        done = command("account", "create", "other", "--data", str(process.data))
        assert done.returncode == 0, done
        process.kill9()
        process.start()

        found = acts_of(process)
        key = process.env().access_key_id

    assert [record.action for record in found] == [*(action for action, _, _ in acts), "CreateAccount"]
    assert [record.http_status for record in found] == [*statuses, 200]
    assert {(record.source_ip, record.access_key_id) for record in found} == {("127.0.0.1", key)}
    assert statuses.count(200) >= 6


def test_a_forced_start_has_one_event_however_often_the_start_is_killed(tmp_path: Path) -> None:
    process = QuaymasterProcess(tmp_path / "data")
    with running(process):
        with closing(Client(process)) as client:
            client.create("first")
        process.stop()
    shutil.rmtree(process.data / "journals")
    refused_start(process)
    assert command("force-start", "--data", str(process.data), "--yes").returncode == 0

    for timeout_s in START_KILLED_AFTER_S:
        with suppress(ProcessFailed):
            process.start(timeout_s)
            process.kill9()
    with running(process):
        found = [record for record in acts_of(process) if record.action == "ForceStart"]

    assert [record.principal_id for record in found] == [user_here()]
    assert found[0].source_ip == user_here().partition("@")[2]
    assert str(process.data) in found[0].request_params


def test_a_restore_is_the_first_event_of_what_was_restored(tmp_path: Path) -> None:
    process = QuaymasterProcess(tmp_path / "data")
    with running(process):
        with closing(Client(process)) as client:
            client.create("first")
        done = command("backup", str(tmp_path / "backup"), "--data", str(process.data))
        assert done.returncode == 0, done
        keys = str(process.data / "keys")
        process.stop()

    restored = QuaymasterProcess(tmp_path / "restored")
    done = command("restore", str(tmp_path / "backup"), "--data", str(restored.data), "--keys", keys)
    assert done.returncode == 0, done
    with running(restored):
        restored.restart()
        found = [record for record in acts_of(restored) if record.action == "RestoreBackup"]

    assert len(found) == 1
    assert str(tmp_path / "backup") in found[0].request_params
