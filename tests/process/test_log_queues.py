"""Log-retained queues of a real server that is killed: each group goes on where it was, and the log has everything."""

from __future__ import annotations

from pathlib import Path

from harness.process import QuaymasterProcess

from .support import Client, bodies, running

PART = 40


def take_some(client: Client, queue: str, count: int) -> list[str]:
    """Receive and delete so many messages at least; return their bodies."""
    taken: list[str] = []
    while len(taken) < count:
        answer = client.call("ReceiveMessage", queue, MaxNumberOfMessages=10, WaitTimeSeconds=5)
        assert answer.status == 200, answer
        messages = answer.fields.get("Messages") or []
        taken += [message["Body"] for message in messages]
        entries = [
            {"Id": str(index), "ReceiptHandle": message["ReceiptHandle"]}
            for index, message in enumerate(messages)
        ]
        if entries:
            assert client.call("DeleteMessageBatch", queue, Entries=entries).status == 200
    return taken


def test_groups_go_on_where_they_were_when_the_server_was_killed(tmp_path: Path) -> None:
    # Snapshots often, so that log and groups are in them as of different moments.
    process = QuaymasterProcess(tmp_path / "data", settings={"snapshot_records": "20"})
    with running(process):
        client = Client(process)
        client.create("log", RetentionMode="Log")
        every = bodies(3 * PART)
        taken: list[str] = []
        for part in range(3):
            client.send("log", every[part * PART : (part + 1) * PART])
            taken += take_some(client, "log@a", PART // 2)
            client.close()
            process.kill9()
            process.restart()
            client = Client(process)

        rest = client.take_all("log@a")

        assert sorted([*taken, *rest]) == sorted(every)
        assert client.take_all("log@b") == client.take_all("log") == sorted(every)
        client.close()
