"""What operators do to a real cell, past its front ends, is in the audit chain of one of them, each act once."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from harness.load import SQSConnection
from harness.process import Environment
from harness.running_cell import RunningCell
from harness.waiting import eventually

from quaymaster.protocol.usage.usage_blocks import decode_block, parse_block_text
from quaymaster.protocol.usage.usage_records import UsageRecord

WANTED = ["DrainBroker", "ActivateBroker", "AcceptClock", "CreateBackup"]


class UsageQueue:
    """The acts in the usage queue so far, by front end, incarnation and sequence."""

    def __init__(self, described: Path, port: int) -> None:
        fields = json.loads(described.read_text())
        self._url = fields["queue_url"]
        environment = Environment(
            fields["endpoint_url"],
            fields["region"],
            fields["account_id"],
            fields["access_key_id"],
            fields["secret_access_key"],
        )
        self._connection = SQSConnection(environment, port)
        self._acts: dict[tuple[str, int, int], UsageRecord] = {}

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def acts(self) -> list[UsageRecord]:
        """Return what there is by now, in order."""
        given = {"QueueUrl": self._url, "MaxNumberOfMessages": 10, "VisibilityTimeout": 3_600}
        for message in self._connection.call("ReceiveMessage", given).fields.get("Messages") or []:
            for record in decode_block(parse_block_text(message["Body"])).records():
                if record.request_id.startswith("act-"):
                    self._acts[record.front_end, record.incarnation, record.sequence] = record
        return [self._acts[identity] for identity in sorted(self._acts)]


def test_what_operators_do_to_a_cell_is_in_the_chain_of_a_front_end_once(tmp_path: Path) -> None:
    roles = {"broker": 1, "manager": 1, "metadata": 1, "frontend": 2}
    with RunningCell.started(tmp_path, roles, settings={"replicas": "1"}) as cell:
        operator = cell["manager-1"]
        for arguments in (
            ("broker", "drain", "broker-1", "--no-wait"),
            ("broker", "activate", "broker-1"),
            ("clock", "accept", "--cell"),
            ("cell", "backup", str(tmp_path / "copy")),
        ):
            done = operator.command(*arguments)
            assert done.returncode == 0, done.stderr + cell.logs()

        front_end = cell["frontend-1"]
        described = front_end.data / "keys" / "pipeline.json"
        eventually(described.exists)
        with closing(UsageQueue(described, front_end.port)) as queue:
            eventually(lambda: len(queue.acts()) >= len(WANTED), cell.logs())
            front_end.kill9()
            front_end.start()
            cell["frontend-2"].stop()
            found = queue.acts()

    assert [record.action for record in sorted(found, key=time_of)] == WANTED
    drained, activated, accepted, _ = sorted(found, key=time_of)
    for record in (drained, activated, accepted):
        assert "/operator/" in record.principal_id
        assert record.source_ip.startswith("127.0.0.1")
    assert json.loads(drained.request_params)["broker"] == "broker-1"


def time_of(record: UsageRecord) -> int:
    return int(json.loads(record.request_params)["time_ms"])
