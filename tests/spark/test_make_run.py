"""`make run`: a server with its usage pipeline beside, which end together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import boto3
from harness.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
WAIT_S = PATIENCE_S


def test_usage_of_what_was_done_appears_and_one_signal_ends_server_and_pipeline(tmp_path: Path) -> None:
    data = tmp_path / "data"
    # The listening addresses are picked by the system, so that nobody else's are in the way.
    command = ["scripts/run", "--data", str(data), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    with (tmp_path / "run.log").open("wb") as log:
        running = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        _until(lambda: (data / "client.json").exists())
        fields = json.loads((data / "client.json").read_text())
        client = boto3.client(
            "sqs",
            endpoint_url=fields["endpoint_url"],
            region_name=fields["region"],
            aws_access_key_id=fields["access_key_id"],
            aws_secret_access_key=fields["secret_access_key"],
        )
        url = client.create_queue(QueueName="orders")["QueueUrl"]
        for number in range(5):
            client.send_message(QueueUrl=url, MessageBody=str(number))
        _until(lambda: _sends(data) == 5)
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            code = running.wait(60)
            _until(lambda: not _group(running.pid))  # Spark's JVM ends a moment after who started it
        finally:
            for pid in _group(running.pid):
                os.kill(pid, signal.SIGKILL)

    assert code == 0, (tmp_path / "run.log").read_text()


def _group(leader: int) -> list[int]:
    """Return the processes of a process group."""
    found = subprocess.run(["pgrep", "-g", str(leader)], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def _sends(data: Path) -> int:
    answered = subprocess.run(
        [ROOT / ".venv/bin/quaymaster", "usage", "--data", data, "--json"], capture_output=True, check=True
    )
    lines = json.loads(answered.stdout)
    return sum(
        line["messages"] for line in lines if line["action"] == "SendMessage" and line["queue"] == "orders"
    )


def _until(holds: object) -> None:
    assert callable(holds)
    limit = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(1)
