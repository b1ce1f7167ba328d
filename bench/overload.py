"""What the server does when ten times as much is asked as it can bear, beside its peak in the same run.

    python -m bench.overload [--seconds 4] [--peak-connections 32] [--only NAME] [--json FILE]

The server is on one core, the load on the other; SendMessage of 256 bytes, `Sync`. A scenario is:

    peak ──▶ load, its first second apart ──▶ peak's connections again: how long until all is as before ──▶ peak
              └─ accepted and refused a second, how long each took, RAM

`closed` connections ask again at once, whatever they were told; `polite` ones wait for what Retry-After says;
`pipelined` ones have many requests under way; `open` is a fixed rate of arrivals, ten times the peak, each on a
connection that is free (an arrival that finds none is counted as not sent).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import resource
import shutil
import tempfile
import time
from array import array
from collections import deque
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, cast

import uvloop

from bench import processes, servers
from bench.requests import Endpoint, Signer

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
RETRY_AFTER = re.compile(rb"retry-after: *(\d+)", re.IGNORECASE)
RECOVERY_LIMIT_S = 10.0
RECOVERY_WINDOW_S = 0.1
ONSET_S = 1.0
"""What is measured of the load begins after it."""
CONNECT_AT_ONCE = 200


class Scenario(NamedTuple):
    """How the server is overloaded."""

    name: str
    connections: int
    depth: int = 1
    """Requests under way on one connection."""
    is_polite: bool = False
    rate_of_peak: float = 0.0
    """Arrivals a second, as a multiple of the peak; 0 for a closed loop."""
    body_bytes: int = 256


SCENARIOS = (
    Scenario("closed 320", 320),
    Scenario("closed 3,000", 3_000),
    Scenario("polite 3,000", 3_000, is_polite=True),
    Scenario("polite 9,000", 9_000, is_polite=True),
    Scenario("pipelined 320 x 10", 320, depth=10),
    Scenario("open 10 x", 3_000, rate_of_peak=10.0),
    Scenario("64 KiB 3,000", 3_000, is_polite=True, body_bytes=65_536),
)


class Asking:
    """Makes the requests, each signed when it is sent."""

    def __init__(self, endpoint: Endpoint, queue_url: str, body_bytes: int) -> None:
        self.endpoint = endpoint
        self._request = Signer(endpoint).request
        self._body = json.dumps({"QueueUrl": queue_url, "MessageBody": "x" * body_bytes}).encode()
        self._digest = sha256(self._body).hexdigest().encode()

    def next(self) -> bytes:
        """Return the bytes of a request."""
        return self._request(b"SendMessage", self._body, self._digest)


class Tally:
    """What came of the requests of one phase. Latencies are seconds."""

    def __init__(self) -> None:
        self.accepted = array("d")
        self.refused = array("d")
        self.failed: dict[bytes, int] = {}
        self.lost = 0
        """Connections that ended."""
        self.unsent = 0

    def take(self, status: bytes, took_s: float) -> None:
        """Note one answer."""
        if status == b"200":
            self.accepted.append(took_s)
        elif status in (b"403", b"503", b"429"):
            self.refused.append(took_s)
        else:
            self.failed[status] = self.failed.get(status, 0) + 1


class Client(asyncio.Protocol):
    """One connection with up to `depth` requests under way; answers come in the order of the requests."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._buffer = b""
        self._sent: deque[float] = deque()
        self._is_closed = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self, count: int) -> None:
        """Send so many requests in one write."""
        if self._is_closed:
            return
        now = time.perf_counter()
        self._sent.extend([now] * count)
        self.transport.write(self._load.requests(count))

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        now = time.perf_counter()
        answered, pause_s = 0, 0.0
        while (end := buffer.find(b"\r\n\r\n")) >= 0:
            found = LENGTH.search(buffer, 0, end)
            whole = end + 4 + (int(found[1]) if found else 0)
            if len(buffer) < whole:
                break
            status = buffer[9:12]
            if status != b"200" and (hint := RETRY_AFTER.search(buffer, 0, end)):
                pause_s = max(pause_s, float(hint[1]))
            buffer = buffer[whole:]
            self._load.tally.take(status, now - self._sent.popleft())
            answered += 1
        self._buffer = buffer
        if answered:
            self._load.on_answered(self, answered, pause_s)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closed = True
        self._load.on_lost(self)


class Load:
    """Connections that ask for the same thing again and again until the time is up."""

    def __init__(self, asking: Asking, scenario: Scenario, rate: float = 0.0) -> None:
        self.tally = Tally()
        self._asking = asking
        self._scenario = scenario
        self._rate = rate
        self._until = 0.0
        self._clients: list[Client] = []
        self._free: deque[Client] = deque()

    def requests(self, count: int) -> bytes:
        """Return the bytes of the next requests."""
        return b"".join([self._asking.next() for _ in range(count)])

    async def connect(self) -> None:
        """Open all connections."""
        loop = asyncio.get_running_loop()
        endpoint = self._asking.endpoint
        left = self._scenario.connections
        while left:
            batch = min(left, CONNECT_AT_ONCE)
            opened = await asyncio.gather(
                *(
                    loop.create_connection(lambda: Client(self), endpoint.host, endpoint.port)
                    for _ in range(batch)
                )
            )
            self._clients += [client for _, client in opened]
            left -= batch

    async def run(self, seconds: float) -> float:
        """Ask for so long; return how long it was."""
        started = time.perf_counter()
        self._until = started + seconds
        if self._rate:
            self._free.extend(self._clients)
            await self._arrive(started)
        else:
            for client in self._clients:
                client.send(self._scenario.depth)
            await asyncio.sleep(seconds)
        return time.perf_counter() - started

    async def _arrive(self, started: float) -> None:
        arrived = 0
        while (now := time.perf_counter()) < self._until:
            due = int((now - started) * self._rate) - arrived
            arrived += due
            sending = min(due, len(self._free))
            for _ in range(sending):
                self._free.popleft().send(1)
            self.tally.unsent += due - sending
            await asyncio.sleep(0.001)

    def on_answered(self, client: Client, answered: int, pause_s: float) -> None:
        """Ask again, or not."""
        if self._rate:
            self._free.append(client)
        elif self._scenario.is_polite and pause_s:
            asyncio.get_running_loop().call_later(pause_s, self._again, client, answered)
        else:
            self._again(client, answered)

    def on_lost(self, client: Client) -> None:
        """A connection ended."""
        if time.perf_counter() < self._until:
            self.tally.lost += 1

    def _again(self, client: Client, count: int) -> None:
        if time.perf_counter() < self._until:
            client.send(count)

    def close(self) -> None:
        """Close all connections."""
        self._until = 0.0
        for client in self._clients:
            client.transport.abort()


class Outcome(NamedTuple):
    """What one scenario showed. Times are milliseconds, rates a second."""

    name: str
    peak: float
    accepted: float
    of_peak: float
    of_peak_by_cpu: float
    """The same for each second of the server's CPU time, since others use the machine."""
    accepted_p50_ms: float
    accepted_p99_ms: float
    refused: float
    refused_p50_ms: float
    refused_p99_ms: float
    other: int
    """Answers of other kinds, and connections that ended."""
    onset_max_ms: float
    """The longest that anybody waited in the first second."""
    unsent: int
    rss_mib_before: float
    rss_mib_max: float
    recovery_s: float
    server_cpu: float
    """Cores used under the load."""

    def row(self) -> str:
        """Return the row of the table."""
        return (
            f"| {self.name} | {self.peak:,.0f} | {self.accepted:,.0f} | {self.of_peak:.0%} | {self.of_peak_by_cpu:.0%} "
            f"| {self.accepted_p50_ms:.0f} / {self.accepted_p99_ms:.0f} | {self.refused:,.0f} "
            f"| {self.refused_p50_ms:.0f} / {self.refused_p99_ms:.0f} | {self.onset_max_ms:.0f} | {self.other} "
            f"| {self.rss_mib_before:.0f} → {self.rss_mib_max:.0f} | {self.recovery_s:.1f} |"
        )


COLUMNS = (
    *("Load", "Peak/s", "Accepted/s", "of peak", "a CPU second", "p50 / p99 ms", "Refused/s", "p50 / p99 ms"),
    *("Onset max ms", "Other", "RAM MiB", "Recovered after s"),
)
HEADING = "| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|"


class Peak(NamedTuple):
    """What few connections get: answers a second, and a second of the server's CPU time."""

    rate: float
    rate_a_cpu_s: float
    p99_ms: float


async def find_peak(asking: Asking, pid: int, calm: Scenario, seconds: float) -> Peak:
    """Ask with few connections in a closed loop."""
    load = Load(asking, calm)
    await load.connect()
    await load.run(min(1.0, seconds / 2))
    load.tally = Tally()
    cpu_s = processes.cpu_s(pid)
    took = await load.run(seconds)
    cpu_s = processes.cpu_s(pid) - cpu_s
    load.close()
    accepted = load.tally.accepted
    return Peak(len(accepted) / took, len(accepted) / max(cpu_s, 0.01), percentile(accepted, 0.99))


async def measure(
    asking: Asking, pid: int, scenario: Scenario, peak_connections: int, seconds: float
) -> Outcome:
    """Run one scenario."""
    calm = Scenario("peak", peak_connections)
    before = rss_mib(pid)
    peaks = [await find_peak(asking, pid, calm, seconds)]
    load = Load(asking, scenario, scenario.rate_of_peak * peaks[0].rate)
    await load.connect()
    highest = [before]
    watching = asyncio.create_task(watch(pid, highest))
    running = asyncio.create_task(load.run(ONSET_S + seconds))
    await asyncio.sleep(ONSET_S)
    onset, load.tally = load.tally, Tally()
    started, cpu_s = time.perf_counter(), processes.cpu_s(pid)
    await running
    took, cpu_s = time.perf_counter() - started, processes.cpu_s(pid) - cpu_s
    tally, load.tally = load.tally, Tally()
    recovery_s = await recover(asking, calm, peaks[0].p99_ms)
    watching.cancel()
    load.close()
    # Others use the machine: the peak is the mean of one before and one after.
    peaks.append(await find_peak(asking, pid, calm, seconds))
    peak = sum(one.rate for one in peaks) / len(peaks)
    peak_a_cpu_s = sum(one.rate_a_cpu_s for one in peaks) / len(peaks)
    accepted = len(tally.accepted) / took
    return Outcome(
        name=scenario.name,
        peak=peak,
        accepted=accepted,
        of_peak=accepted / peak,
        of_peak_by_cpu=len(tally.accepted) / max(cpu_s, 0.01) / peak_a_cpu_s,
        accepted_p50_ms=percentile(tally.accepted, 0.5),
        accepted_p99_ms=percentile(tally.accepted, 0.99),
        refused=len(tally.refused) / took,
        refused_p50_ms=percentile(tally.refused, 0.5),
        refused_p99_ms=percentile(tally.refused, 0.99),
        other=sum(tally.failed.values()) + tally.lost,
        onset_max_ms=max((*onset.accepted, *onset.refused), default=0.0) * 1000,
        unsent=tally.unsent,
        rss_mib_before=before,
        rss_mib_max=max(highest),
        recovery_s=recovery_s,
        server_cpu=cpu_s / took,
    )


async def recover(asking: Asking, calm: Scenario, usual_ms: float) -> float:
    """Ask as before the load, at once; return when it is as before: nothing refused, most answered in usual time."""
    started = time.perf_counter()
    load = Load(asking, calm)
    await load.connect()
    running = asyncio.create_task(load.run(RECOVERY_LIMIT_S))
    found = RECOVERY_LIMIT_S
    while time.perf_counter() - started < RECOVERY_LIMIT_S:
        load.tally = Tally()
        await asyncio.sleep(RECOVERY_WINDOW_S)
        tally = load.tally
        if tally.accepted and not tally.refused and percentile(tally.accepted, 0.5) <= usual_ms:
            found = time.perf_counter() - started
            break
    running.cancel()
    load.close()
    return found


async def watch(pid: int, highest: list[float]) -> None:
    """Note the server's memory again and again."""
    while True:
        highest.append(rss_mib(pid))
        await asyncio.sleep(0.1)


def rss_mib(pid: int) -> float:
    """Return the memory that the server's process takes."""
    return processes.memory_bytes(pid, "VmRSS") / (1 << 20)


def percentile(seconds: array[float], share: float) -> float:
    """Return a percentile in milliseconds; 0 without any."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000 if ordered else 0.0


def main() -> None:
    """Measure every scenario, each on a server of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--peak-connections", type=int, default=32)
    parser.add_argument("--only", help="part of the name of the scenarios to run")
    parser.add_argument(
        "--directory", type=Path, help="where the data goes; in memory, no other's disk disturbs"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    processes.pin(processes.LOAD_CORE)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    outcomes: list[dict[str, Any]] = []
    print(HEADING, flush=True)
    for scenario in SCENARIOS:
        if arguments.only and arguments.only not in scenario.name:
            continue
        directory = Path(tempfile.mkdtemp(prefix="quaymaster-bench-", dir=arguments.directory))
        try:
            with servers.Running(servers.SERVERS["quaymaster"], directory) as server:
                asking = Asking(server.endpoint, server.create_queue("bench"), scenario.body_bytes)
                outcome = uvloop.run(
                    measure(asking, server.pid, scenario, arguments.peak_connections, arguments.seconds)
                )
            print(outcome.row(), flush=True)
            outcomes.append(outcome._asdict())
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(outcomes, indent=1) + "\n")


if __name__ == "__main__":
    main()
