"""What `make run` and `make run-pipeline` start, next to each other: a server, and its usage pipeline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import boto3
from harness.waiting import PATIENCE_S

from quaymaster.cli.host.doctor import OK, check_permissions

ROOT = Path(__file__).parents[2]
WAIT_S = PATIENCE_S


def test_usage_of_what_was_done_appears_and_a_signal_ends_each(tmp_path: Path) -> None:
    data = tmp_path / "data"
    # The listening addresses are picked by the system, so that nobody else's are in the way.
    serve: list[str | Path] = ["serve", "--data", data, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    running: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str | Path) -> None:
        with (tmp_path / "run.log").open("ab") as log:
            running.append(
                subprocess.Popen(
                    [ROOT / ".venv/bin/quaymaster", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    try:
        start(*serve)
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
        start("pipeline", "run", "--data", data)
        _until(lambda: _sends(data) == 5)
        private = check_permissions(data)
    finally:
        for process in reversed(running):
            process.send_signal(signal.SIGTERM)
        try:
            codes = [process.wait(PATIENCE_S) for process in running]
            # Spark's JVM ends a moment after who started it.
            _until(lambda: not any(_group(process.pid) for process in running))
        finally:
            for process in running:
                for pid in _group(process.pid):
                    os.kill(pid, signal.SIGKILL)

    log = (tmp_path / "run.log").read_text()
    assert codes == [0, 0], log
    assert "Traceback" not in log
    assert private.result == OK, private.found


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
