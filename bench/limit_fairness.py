"""A tenant that asks for 100 times its limit: what another tenant notices, and what each refusal costs the server.

    python -m bench.limit_fairness [--seconds 4] [--rounds 3] [--connections 64] [--new]

The quiet tenant sends 50 messages a second. The loud one has a limit of 50 requests a second and offers 5,000, from a
process of its own (`limit_load`) that waits for no answer. It comes as through a trusted proxy, so that the server
holds none of its connections back; with `--new` each request has a new connection, as of a client that evades that.
Rounds without and with it alternate: on a shared machine only ratios within one run count.

CPU per refusal is the CPU time of the server's process in rounds with the loud tenant, less that in those without,
divided by its requests: read, refused, counted as usage, answered; the few that are let through count as well. The
same load on a responder that only parses requests (`bare`) says what a Python server pays at least.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench import servers
from bench.log_reads import cpu_s
from bench.processes import LOAD_CORE, pin
from bench.requests import Endpoint, call
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, sign

LIMIT = 50
OFFERED = 100 * LIMIT
QUIET_PER_S = 50
TARGET = b"AmazonSQS.SendMessage"


class Tenant(NamedTuple):
    """An account with a queue."""

    endpoint: Endpoint
    account_id: str

    def request(self, number: int) -> bytes:
        """Return a signed send."""
        endpoint = self.endpoint
        host = f"{endpoint.host}:{endpoint.port}"
        url = f"http://{host}/{self.account_id}/bench"
        body = json.dumps({"QueueUrl": url, "MessageBody": f"message {number}"}).encode()
        headers = [
            (b"host", host.encode()),
            (b"x-amz-target", TARGET),
            (b"content-type", b"application/x-amz-json-1.0"),
        ]
        signed = sign(
            UnsignedRequest(b"POST", b"/", b"", headers, body),
            Signer(endpoint.access_key_id, endpoint.secret_access_key, endpoint.region),
            now_ms=time.time_ns() // 1_000_000,
        )
        lines = [b"POST / HTTP/1.1", *(name + b": " + value for name, value in signed)]
        return b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", b""]) + body


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """Send a request; return the status of its answer."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length.split(b":")[1]))
    return int(head.split(b" ", 2)[1])


async def send_quietly(tenant: Tenant, seconds: float) -> list[float]:
    """Send for so long; return the latencies of what was taken, in ms."""
    latencies_ms: list[float] = []
    reader, writer = await asyncio.open_connection(tenant.endpoint.host, tenant.endpoint.port)
    until_s = time.monotonic() + seconds
    number = 0
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        if await exchange(reader, writer, tenant.request(number)) == 200:
            latencies_ms.append((time.monotonic() - began_s) * 1000)
        number += 1
        await asyncio.sleep(max(0.0, began_s + 1 / QUIET_PER_S - time.monotonic()))
    writer.close()
    return latencies_ms


def start_load(endpoint: Endpoint, request: Path, given: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start the loud tenant's process. It gives way to the quiet one's, whose core it shares."""
    command = [
        "nice",
        "-n",
        "15",
        sys.executable,
        "-m",
        "bench.limit_load",
        endpoint.host,
        str(endpoint.port),
        str(OFFERED),
    ]
    command += [str(given.seconds), str(given.connections), str(request), *(["--new"] if given.new else [])]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def counts_of(load: subprocess.Popen[bytes]) -> dict[str, int]:
    """Return what came of its requests, once it has ended."""
    printed, _ = load.communicate()
    counts: dict[str, int] = json.loads(printed)
    return counts


def operate(folder: Path, *arguments: str) -> Any:
    """Run a command of the operator; return its JSON."""
    command = [str(Path(sys.executable).parent / "quaymaster"), *arguments, "--json"]
    command += ["--data", str(folder / "data")]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def make_tenant(server: servers.Running, name: str) -> Tenant:
    """Create an account with a queue."""
    made = operate(server.folder, "account", "create", name)
    keys = {name: made[name] for name in ("access_key_id", "secret_access_key")}
    endpoint = Endpoint(server.endpoint.host, server.endpoint.port, **keys, region=server.endpoint.region)
    call(endpoint, "CreateQueue", {"QueueName": "bench"})
    return Tenant(endpoint, made["account_id"])


def p99(latencies_ms: list[float]) -> float:
    """Return the latency that one in a hundred exceeds."""
    return statistics.quantiles(latencies_ms, n=100)[98]


def bare_us(folder: Path, request: Path, given: argparse.Namespace) -> float:
    """Return the CPU time that a responder which only parses pays for a request of the same load."""
    with servers.Running(servers.BARE, folder) as bare:
        began_s = cpu_s(bare.pid)
        counts = counts_of(start_load(bare.endpoint, request, given))
        return (cpu_s(bare.pid) - began_s) / max(1, counts["let_through"]) * 1e6


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--new", action="store_true", help="a new connection for each request")
    given = parser.parse_args()
    pin(LOAD_CORE)  # servers have the other one
    os.environ["QUAYMASTER_TRUSTED_PROXIES"] = "" if given.new else "127.0.0.1"
    print(f"machine load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="quaymaster-bench-") as folder,
        servers.Running(servers.SERVERS["quaymaster"], Path(folder)) as server,
    ):
        quiet, loud = make_tenant(server, "quiet"), make_tenant(server, "loud")
        operate(server.folder, "limit", "set", "--account", loud.account_id, "--requests", str(LIMIT))
        file = Path(folder) / "request"
        file.write_bytes(loud.request(0))
        alone: list[float] = []
        together: list[float] = []
        quiet_s = both_s = 0.0
        asked = 0
        for _ in range(given.rounds):
            began_s = cpu_s(server.pid)
            alone += asyncio.run(send_quietly(quiet, given.seconds))
            between_s = cpu_s(server.pid)
            load = start_load(loud.endpoint, file, given)
            together += asyncio.run(send_quietly(quiet, given.seconds))
            counts = counts_of(load)
            quiet_s += between_s - began_s
            both_s += cpu_s(server.pid) - between_s
            asked += counts["let_through"] + counts["refused"]
            rates = ", ".join(f"{number / given.seconds:,.0f}/s {name}" for name, number in counts.items())
            print(f"loud tenant: {rates}", flush=True)
        print(
            f"quiet tenant: p99 {p99(alone):.1f} ms alone, {p99(together):.1f} ms with the loud one next to it"
        )
        print(
            f"ratio {p99(together) / p99(alone):.2f}; medians {statistics.median(together):.1f} and", end=" "
        )
        print(f"{statistics.median(alone):.1f} ms")
        print(
            f"CPU of the server for a request of the loud tenant: {(both_s - quiet_s) / asked * 1e6:.0f} us"
        )
        print(f"of a bare responder: {bare_us(Path(folder) / 'bare', file, given):.0f} us")


if __name__ == "__main__":
    main()
