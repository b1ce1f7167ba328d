"""Signed clients while strangers attack the ports of a real server: what it costs them, and what the server keeps.

    python -m process.strangers [--seconds 10] [--kinds chunks,idle] [--json FILE]     (with tests/ on the path)

Each attack is measured in turns with none, so that what else the machine does touches both alike:

    quiet ──▶ attack ──▶ quiet ──▶ attack ──▶ ...
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from harness.attackers import BY_PROXY, KINDS, MIB, attacking
from harness.load import SQSConnection
from harness.process import QuaymasterProcess, free_port
from harness.proxied import edge_settings

from quaymaster.cli.shared.client import AdminClient
from quaymaster.cli.shared.connection import find_connection

CLIENTS = 4
TURNS = 4
BODY = "m" * 300_000
"""As large as what was refused for minutes."""
CONNECTIONS = {
    "idle": 2_000,
    "whole-bodies": 4,
    "preflights": 100,
    "pipelined-agents": 100,
    "web-identities": 60,
}
CONNECTIONS_ELSE = 20
SETTLE_S = 0.5
NICENESS = 19
"""Of attackers, where it is measured: what they need of this machine they would have on their own."""


class Figures(msgspec.Struct):
    """What signed clients and the server had in one kind of time."""

    latencies_ms: list[float] = []
    statuses: Counter[int] = msgspec.field(default_factory=Counter)
    refusals: list[str] = []
    """What signed clients were told in place of an answer."""
    resident_max: int = 0
    pause_cpu_ms: float = 0.0
    """Most processor time for which the event loop was held at once."""
    server_cpu_s: float = 0.0

    def percentile(self, percent: float) -> float:
        """Return a percentile of the latencies, in ms."""
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    seconds: float = 0.0

    @property
    def cpu_share(self) -> float:
        """Part of one processor that the server used."""
        return self.server_cpu_s / self.seconds

    @contextmanager
    def counting_cpu(self, pid: int) -> Iterator[None]:
        """Count what the server used while the block ran."""
        began_s, used_s = time.monotonic(), cpu_s(pid)
        yield
        self.seconds += time.monotonic() - began_s
        self.server_cpu_s += cpu_s(pid) - used_s


class Result(msgspec.Struct):
    """One attack, next to the times without it."""

    kind: str
    quiet: Figures
    attacked: Figures

    def ratio(self, percent: float) -> float:
        """Return how many times longer a percentile of signed requests took under attack."""
        return self.attacked.percentile(percent) / self.quiet.percentile(percent)

    def line(self) -> str:
        """Return it as one line for people."""
        quiet, attacked = self.quiet, self.attacked
        return (
            f"{self.kind:15} p50 {quiet.percentile(50):7.1f} -> {attacked.percentile(50):7.1f} ms   "
            f"p99 {quiet.percentile(99):7.1f} -> {attacked.percentile(99):7.1f} ms ({self.ratio(99):.1f} times)   "
            f"server cpu {quiet.cpu_share:.0%} -> {attacked.cpu_share:.0%}   "
            f"loop held {quiet.pause_cpu_ms:.0f} -> {attacked.pause_cpu_ms:.0f} ms   "
            f"{attacked.resident_max / MIB:.0f} MiB   {dict(attacked.statuses)} {attacked.refusals[:3]}"
        )


class Signed:
    """Signed clients that send and receive, each on a connection of its own that it opens anew now and then."""

    def __init__(self, process: QuaymasterProcess) -> None:
        self._environment = process.env()
        self._port = process.listen_port
        self._pid = process.pid
        self._into = Figures()
        self._is_ending = False
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(CLIENTS)]
        self._threads.append(threading.Thread(target=self._watch))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run them while the block runs."""
        connection = SQSConnection(self._environment, self._port)
        for number in range(CLIENTS):
            assert connection.call("CreateQueue", {"QueueName": f"q{number}"}).status == 200
        connection.close()
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._is_ending = True
            for thread in self._threads:
                thread.join()

    def count_into(self, figures: Figures) -> None:
        """Count what begins from now on there."""
        self._into = figures

    def _run(self, number: int) -> None:
        connection = SQSConnection(self._environment, self._port)
        url = f"{self._environment.endpoint_url}/{self._environment.account_id}/q{number}"
        asked = 0
        while not self._is_ending:
            asked += 1
            if asked % 20 == 0:
                connection.close()
            if asked % 10 == 0:
                answer = self._timed(connection, "SendMessage", {"QueueUrl": url, "MessageBody": BODY})
            elif asked % 2:
                answer = self._timed(connection, "SendMessage", {"QueueUrl": url, "MessageBody": "m"})
            else:
                answer = self._timed(
                    connection, "ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10}
                )
            for message in answer.get("Messages") or []:
                self._timed(
                    connection, "DeleteMessage", {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
                )
            time.sleep(0.002)
        connection.close()

    def _timed(
        self, connection: SQSConnection, action: str, fields: dict[str, object]
    ) -> dict[str, list[dict[str, str]]]:
        into = self._into
        began = time.perf_counter()
        answer = connection.call(action, fields)
        into.latencies_ms.append((time.perf_counter() - began) * 1000)
        into.statuses[answer.status] += 1
        if answer.status != 200:
            into.refusals.append(f"{action}: {answer.status} {answer.message}")
        return answer.fields

    def _watch(self) -> None:
        while not self._is_ending:
            into = self._into
            into.resident_max = max(into.resident_max, resident_bytes(self._pid))
            time.sleep(0.05)


def resident_bytes(pid: int) -> int:
    """Return the memory that a process has."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("every process has memory")


def cpu_s(pid: int) -> float:
    """Return the processor time that a process used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pause_cpu_ms(process: QuaymasterProcess, seconds: float) -> float:
    """Return the most processor time for which the event loop was held at once in these last seconds."""
    with AdminClient(find_connection(process.data, None)) as admin:
        pauses = admin.call("GetPauses")["pauses"]
    return max((pause["cpu_ms"] for pause in pauses if pause["ago_s"] <= seconds), default=0.0)


def measure(
    process: QuaymasterProcess, kinds: list[str], *, seconds: float, turns: int = TURNS, niceness: int = 0
) -> list[Result]:
    """Measure each kind of attack on the ports it is for, `seconds` of it and of quiet each, by so nice attackers."""
    results = []
    signed = Signed(process)
    key_id = process.env().access_key_id
    with signed.running():
        for kind in kinds:
            result = Result(kind, Figures(), Figures())
            ports = [process.listen_port, process.admin_port]
            if kind in BY_PROXY:
                ports = [int(process.settings["edge_listen"].rpartition(":")[2])]
            connections = CONNECTIONS.get(kind, CONNECTIONS_ELSE)
            for _ in range(turns):
                signed.count_into(result.quiet)
                with result.quiet.counting_cpu(process.pid):
                    time.sleep(seconds / turns)
                signed.count_into(Figures())
                result.quiet.pause_cpu_ms = max(
                    result.quiet.pause_cpu_ms, pause_cpu_ms(process, seconds / turns)
                )
                with ExitStack() as stack:
                    for port in ports:
                        stack.enter_context(
                            attacking(kind, port, key_id, connections // len(ports), niceness=niceness)
                        )
                    time.sleep(SETTLE_S)
                    signed.count_into(result.attacked)
                    with result.attacked.counting_cpu(process.pid):
                        time.sleep(seconds / turns)
                    signed.count_into(Figures())
                    result.attacked.pause_cpu_ms = max(
                        result.attacked.pause_cpu_ms, pause_cpu_ms(process, seconds / turns)
                    )
            results.append(result)
    return results


def attacked_settings() -> dict[str, str]:
    """Return settings that open whatever may be attacked."""
    return {"oidc_issuers": "true", **edge_settings(free_port())}


def main() -> None:
    """Measure, and print what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack")
    parser.add_argument("--kinds", default=",".join(KINDS | BY_PROXY), help="attacks, separated by commas")
    parser.add_argument("--json", type=Path, help="write all figures here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        process = QuaymasterProcess(Path(directory) / "data", settings=attacked_settings())
        process.start()
        processors = sorted(os.sched_getaffinity(0))
        if (
            len(processors) > 1
        ):  # the server has one for itself; attackers have what signed clients leave of the others
            os.sched_setaffinity(process.pid, processors[:1])
            os.sched_setaffinity(0, processors[1:])
        try:
            results = measure(process, given.kinds.split(","), seconds=given.seconds, niceness=NICENESS)
        finally:
            process.stop()
    for result in results:
        print(result.line())
    if given.json is not None:
        given.json.write_text(json.dumps(msgspec.to_builtins(results)))


if __name__ == "__main__":
    main()
