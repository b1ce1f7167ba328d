"""Runs `quaymaster local` as somebody at a terminal would, on a directory and ports of its own.

with LocalCluster.started(tmp_path / "cluster") as cluster:
    ...  # cluster.client(), cluster.status(), cluster.run("kill", "broker-1")

Whatever was started ends with the `with`, by process id.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import boto3
from botocore.config import Config

from .etcd import etcd_or_skip
from .waiting import PATIENCE_S

COMMAND_TIMEOUT_S = PATIENCE_S
POLL_INTERVAL_S = 0.1
LOG_TAIL_BYTES = 2_000


class LocalCluster:
    """A cluster in a directory; `credentials` are what `up` printed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.credentials: dict[str, str] = {}

    @classmethod
    @contextmanager
    def started(cls, directory: Path, *arguments: str) -> Iterator[Self]:
        """Give a cluster that serves requests, and kill what is left of it in the end."""
        etcd_or_skip()
        cluster = cls(directory)
        try:
            cluster.up(*arguments)
            yield cluster
        finally:
            cluster.kill_all()

    def up(self, *arguments: str) -> None:
        """Start it, for the first time or again."""
        self.credentials = json.loads(self.run("up", "--detach", "--json", *arguments))

    def run(self, command: str, *arguments: str) -> str:
        """Run a subcommand that must succeed, and return what it printed."""
        done = subprocess.run(
            self.command(command, *arguments),
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            env=environment(),
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}\n{self.log()}"
        return done.stdout

    def command(self, command: str, *arguments: str) -> list[str]:
        """Return the command line of a subcommand."""
        program = str(Path(sys.executable).parent / "quaymaster")
        return [program, "local", command, *arguments, "--data", str(self.directory)]

    def status(self) -> dict[str, Any]:
        """Return what `status --json` prints."""
        found: dict[str, Any] = json.loads(self.run("status", "--json"))
        return found

    def client(self) -> Any:
        """Return a client of the endpoint that tries again as SDKs do."""
        return boto3.client(
            "sqs",
            endpoint_url=self.credentials["endpoint_url"],
            region_name=self.credentials["region"],
            aws_access_key_id=self.credentials["access_key_id"],
            aws_secret_access_key=self.credentials["secret_access_key"],
            config=Config(retries={"mode": "standard", "total_max_attempts": 8}, read_timeout=30),
        )

    def pids(self) -> list[int]:
        """Return every process of this machine that was started for this directory, whoever noted it."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if any(str(self.directory).encode() in word for word in words):
                    found.append(int(path.parent.name))
        return found

    def kill_all(self) -> None:
        """End whatever is left."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + COMMAND_TIMEOUT_S
        while self.pids():
            assert time.monotonic() < deadline, "processes outlive SIGKILL"
            time.sleep(POLL_INTERVAL_S)

    def log(self) -> str:
        """Return the end of what each process printed."""
        logs = sorted((self.directory / "logs").glob("*.log"))
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-LOG_TAIL_BYTES:]}" for path in logs
        )


def environment() -> dict[str, str]:
    """Return an environment without settings and keys of whoever runs the tests, and no console but where asked."""
    tools = "QUAYMASTER_TOOLS"
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == tools or not name.startswith(("QUAYMASTER_", "AWS_"))
    }
    return {**kept, "QUAYMASTER_CONSOLE": "off"}
