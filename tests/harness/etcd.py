"""Runs real etcd members on free loopback ports; they always end with the `with`, by process id.

with EtcdCluster.started(tmp_path, members=3) as etcd:
    ...  # etcd.endpoints, etcd.kill(etcd.leader()), etcd.start(0), etcd.pause(1), etcd.resume(1)

Where there is no etcd, and Debian's cannot be had, the test is skipped with the reason (`scripts/etcd`).
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Self

import pytest

from quaymaster.cli.local.etcd import EtcdMember, etcd_command, find_etcd, is_etcd_ready
from quaymaster.coordination.stores.etcd import EtcdCoordination
from quaymaster.coordination.stores.etcd_gateway import EtcdAccess

from .process import free_port
from .waiting import PATIENCE_S

HEARTBEAT_MS = 50
ELECTION_MS = 500
LEASE_TTL_MIN_MS = 1_000
"""What etcd makes of shorter ones with these timings."""
START_TIMEOUT_S = PATIENCE_S
POLL_INTERVAL_S = 0.02
FETCH_TIMEOUT_S = 180
ROOT = Path(__file__).resolve().parents[2]


@cache
def _program() -> Path | str:
    """Return the path of etcd, or why there is none."""
    if found := find_etcd():
        return found
    try:
        done = subprocess.run(
            [ROOT / "scripts" / "etcd"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return Path(done.stdout.strip()) if done.returncode == 0 else done.stderr.strip()


def etcd_or_skip() -> Path:
    """Return the path of an etcd; the test is skipped, with the reason, where none can be had."""
    program = _program()
    if isinstance(program, str):
        pytest.skip(program)
    return program


class EtcdCluster:
    """One to three members, each a process with its own directory; ports and data stay the same over restarts."""

    def __init__(
        self,
        directory: Path,
        members: int = 1,
        *,
        arguments: Sequence[str] = (),
        context: ssl.SSLContext | None = None,
    ) -> None:
        """`arguments` are added to the command line; with `context` clients speak TLS."""
        scheme = "http" if context is None else "https"
        self.members = [
            EtcdMember(f"etcd-{number}", free_port(), free_port(), directory / f"etcd-{number}", scheme)
            for number in range(members)
        ]
        self._arguments = list(arguments)
        self._context = context
        self._program = etcd_or_skip()
        self._directory = directory
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    @classmethod
    @contextmanager
    def started(
        cls,
        directory: Path,
        members: int = 1,
        *,
        arguments: Sequence[str] = (),
        context: ssl.SSLContext | None = None,
    ) -> Iterator[Self]:
        """Give a cluster that answers, and stop it in the end."""
        cluster = cls(directory, members, arguments=arguments, context=context)
        try:
            for number in range(members):
                cluster.launch(number)
            cluster.wait_until_ready()
            yield cluster
        finally:
            cluster.stop()

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    def store(self, root: str) -> EtcdCoordination:
        """Return a store whose calls wait for a slow etcd: next to other work its disk may take seconds for a write.

        Tests of what a late answer does make their own, with a time-out of their own.
        """
        timeout_ms = int(PATIENCE_S * 1000)
        return EtcdCoordination(EtcdAccess(self.endpoints), root=root, timeout_ms=timeout_ms)

    def launch(self, number: int) -> None:
        """Start a member and return at once."""
        assert number not in self._children, f"member {number} runs"
        command = etcd_command(
            self._program,
            self.members[number],
            self.members,
            heartbeat_ms=HEARTBEAT_MS,
            election_ms=ELECTION_MS,
        )
        command += self._arguments
        with (self._directory / f"etcd-{number}.log").open("ab") as log:
            self._children[number] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def start(self, number: int) -> None:
        """Start a member that was killed, and return when it takes part again."""
        self.launch(number)
        self.wait_until_ready()

    def kill(self, number: int) -> None:
        """End a member as a crash does."""
        child = self._children.pop(number)
        child.kill()
        child.wait()

    def is_running(self, number: int) -> bool:
        """Tell whether a member's process has not ended."""
        return number in self._children and self._children[number].poll() is None

    def pause(self, number: int) -> None:
        """Stop a member's clock: it keeps its connections and answers nothing."""
        child = self._children[number]
        child.send_signal(signal.SIGSTOP)
        # Until it has stopped it may answer: a signal is not there as soon as it is sent.
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self, number: int) -> None:
        self._children[number].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for number in list(self._children):
            self.kill(number)

    def leader(self) -> int:
        """Return the number of the member that leads, once there is one."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            for number in self._children:
                status = self.status(number)
                if status and status.get("leader") == status["header"]["member_id"]:
                    return number
            time.sleep(POLL_INTERVAL_S)
        raise AssertionError(f"no leader within {START_TIMEOUT_S:g} s\n{self.log()}")

    def wait_until_ready(self) -> None:
        """Return when every running member has a leader."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not all(is_etcd_ready(self.members[number], self._context) for number in self._children):
            for number, child in self._children.items():
                assert child.poll() is None, f"member {number} ended with {child.returncode}\n{self.log()}"
            assert time.monotonic() < deadline, f"not ready within {START_TIMEOUT_S:g} s\n{self.log()}"
            time.sleep(POLL_INTERVAL_S)

    def post(
        self, path: str, request: dict[str, Any], number: int = 0, token: str | None = None
    ) -> dict[str, Any]:
        """Call one member's gateway, as an operator's tool would. Not over TLS."""
        connection = http.client.HTTPConnection("127.0.0.1", self.members[number].client_port, timeout=10)
        try:
            headers = {"Authorization": token} if token else {}
            connection.request("POST", path, json.dumps(request), headers)
            reply = connection.getresponse()
            body = reply.read()
            assert reply.status == 200, body
            answer: dict[str, Any] = json.loads(body)
            return answer
        finally:
            connection.close()

    def log(self) -> str:
        """Return the end of what the members printed."""
        logs = sorted(self._directory.glob("etcd-*.log"))
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-2000:]}" for path in logs)

    def status(self, number: int) -> dict[str, Any] | None:
        """Return what a member knows of its cluster (`leader`, `header.member_id`); None when it is silent."""
        try:
            return self.post("/v3/maintenance/status", {}, number)
        except (OSError, http.client.HTTPException, ValueError, AssertionError):
            return None
