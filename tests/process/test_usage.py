"""The usage feed of the real server: kill -9 loses at most what was not fsynced, doubles nothing, hides nothing."""

from __future__ import annotations

import json
import stat
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

from harness.forked_programs import run_program
from harness.load import SQSConnection
from harness.process import Environment, QuaymasterProcess
from harness.short_paths import short_directory

from process.support import Client, running
from quaymaster.cli.host.doctor import OK, check_permissions
from quaymaster.protocol.usage.usage_blocks import UsageBlock, decode_block, parse_block_text

KILLS = 3
SYNC_MS = 100
UNSYNCED_S = 6.0
"""Far more than the fsync interval: machines that run tests are slow now and then."""


def read_usage(process: QuaymasterProcess) -> list[UsageBlock]:
    """Receive all blocks of the usage queue."""
    return [decode_block(block) for block in read_blocks(process)]


def read_blocks(process: QuaymasterProcess) -> list[bytes]:
    """Receive all blocks of the usage queue, with the pipeline's own credentials."""
    described = json.loads((process.data / "keys" / "pipeline.json").read_text())
    environment = Environment(
        described["endpoint_url"],
        described["region"],
        described["account_id"],
        described["access_key_id"],
        described["secret_access_key"],
    )
    connection = SQSConnection(environment, process.listen_port)
    blocks: list[bytes] = []
    empty = 0
    while empty < 3:
        given = {"QueueUrl": described["queue_url"], "MaxNumberOfMessages": 10, "WaitTimeSeconds": 1}
        answer = connection.call("ReceiveMessage", {**given, "VisibilityTimeout": 600})
        assert answer.status == 200, answer
        messages = answer.fields.get("Messages") or []
        empty = 0 if messages else empty + 1
        blocks += [parse_block_text(message["Body"]) for message in messages]
    connection.close()
    return blocks


def check_incarnations(blocks: list[UsageBlock]) -> dict[int, int]:
    """Check that each incarnation's blocks lie end to end, once each, and end with a seal; return rows of each."""
    rows: dict[int, int] = {}
    for incarnation in sorted({block.header.incarnation for block in blocks}):
        headers = sorted(
            (block.header for block in blocks if block.header.incarnation == incarnation),
            key=lambda header: (header.seq_lo, header.seq_hi, header.seal is not None),
        )
        end = 0
        for header in headers:
            assert header.seq_lo == end, f"{incarnation} has a gap or an overlap at {end}: {header}"
            assert header.dropped is None
            end = header.seq_hi
        seals = [header.seal for header in headers if header.seal is not None]
        assert len(seals) == 1
        assert seals[0].end_sequence == end
        rows[incarnation] = sum(header.rows for header in headers)
    return rows


def test_killed_again_and_again_it_loses_little_and_doubles_nothing(tmp_path: Path) -> None:
    settings = {"usage_sync_ms": str(SYNC_MS)}
    process = QuaymasterProcess(tmp_path / "data", settings=settings)
    random = Random(11)
    surely_recorded = answered = 0
    with running(process):
        client = Client(process)
        client.create("orders")
        client.close()
        for _ in range(KILLS):
            client = Client(process)
            times: list[float] = []
            end_s = time.monotonic() + UNSYNCED_S + random.uniform(0.5, 2)
            while time.monotonic() < end_s:
                assert client.call("SendMessage", "orders", MessageBody="x" * 10).status == 200
                times.append(time.monotonic())
                time.sleep(0.01)
            process.kill9()
            killed_s = time.monotonic()
            client.close()
            answered += len(times)
            surely_recorded += sum(at < killed_s - UNSYNCED_S for at in times)
            process.start()
        process.restart()

        blocks = read_usage(process)

    last = max(block.header.incarnation for block in blocks)
    rows = check_incarnations([block for block in blocks if block.header.incarnation != last])
    assert len(rows) == KILLS + 1
    sends = [record for block in blocks for record in block.records() if record.action == "SendMessage"]
    assert surely_recorded <= len(sends) <= answered
    assert surely_recorded > 0
    assert all(count == 1 for count in Counter(record.request_id for record in sends).values())
    assert sum(record.payload_bytes for record in sends) == 10 * len(sends)
    reasons = Counter(block.header.seal.reason for block in blocks if block.header.seal)
    assert reasons == {"crashed": KILLS, "stopped": 1}


def test_what_is_done_by_the_command_line_is_in_the_chain_with_who_did_it(tmp_path: Path) -> None:
    process = QuaymasterProcess(tmp_path / "data")

    def do(*arguments: str) -> None:
        run_program([*arguments, "--data", str(process.data)]).check_returncode()

    with running(process):
        do("queue", "create", "orders")
        do("account", "create", "other")
        do("key", "create", "--name", "robot")
        do("queue", "delete", "orders", "--confirm", "orders")
        process.restart()

        acts = [
            record
            for block in read_usage(process)
            for record in block.records()
            if record.category == "management" and not record.read_only
        ]

    assert [record.action for record in acts] == [
        *("CreateQueue", "CreateAccount", "CreateAccessKey", "DeleteQueue"),
    ]
    assert [record.protocol for record in acts] == ["json", "admin", "admin", "admin"]
    assert {(record.source_ip, record.access_key_id) for record in acts} == {
        ("127.0.0.1", process.env().access_key_id)
    }


def test_a_server_that_does_not_record_makes_neither_queue_nor_key(tmp_path: Path) -> None:
    process = QuaymasterProcess(tmp_path / "data", settings={"usage": "false"})
    with running(process):
        client = Client(process)
        answer = client.call("GetQueueUrl", QueueName="quaymaster-usage")
        client.close()

    assert answer.status == 400
    assert not (tmp_path / "data" / "usage").exists()
    assert not (tmp_path / "data" / "keys" / "pipeline.json").exists()


def modes_below(data: Path) -> dict[Path, int]:
    """Return the mode of each file and directory; blocks of usage that are sent meanwhile are gone."""
    found = {}
    for path in (data, *data.rglob("*")):
        with suppress(FileNotFoundError):
            found[path] = path.stat().st_mode
    return found


def test_all_that_a_server_writes_is_for_its_owner_alone() -> None:
    with short_directory() as directory, running(process := QuaymasterProcess(directory / "data")):
        read_usage(process)
        process.restart()
        permissions = check_permissions(process.data).result
        found = modes_below(process.data)

    names = {path.name for path in found}
    assert {"pipeline.json", "client.json", "front_end", "shipped", "metadata.sqlite"} <= names
    # The group may use the socket for proxies, where it can come into its directory.
    assert [path for path, mode in found.items() if mode & 0o077] == [process.data / "run" / "edge.sock"]
    assert stat.S_IMODE(found[process.data / "run"]) == 0o700
    assert permissions == OK
