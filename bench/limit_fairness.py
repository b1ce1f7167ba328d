"""A tenant that asks for 100 times its limit, and what another tenant notices: p99 of sends, beside the same without.

    python -m bench.limit_fairness [--seconds 4] [--rounds 3] [--connections 64]

The quiet tenant sends 50 messages a second. The loud one has a limit of 50 requests a second and offers 5,000, on
connections that ask again at once; those that come back too early are held, so not all of that reaches the server.
Rounds with and without it alternate: on a shared machine only the ratio within one run counts. What a refusal costs is
in `allow_cost`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench import servers
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


class Round(NamedTuple):
    """What one round saw."""

    latencies_ms: list[float]
    let_through: int
    refused: int


async def run_round(quiet: Tenant, loud: Tenant | None, connections: int, seconds: float) -> Round:
    """Let the tenants send for so long."""
    until_s = time.monotonic() + seconds
    latencies_ms: list[float] = []
    statuses = {200: 0, 403: 0}

    async def send_quietly(tenant: Tenant) -> None:
        reader, writer = await asyncio.open_connection(tenant.endpoint.host, tenant.endpoint.port)
        number = 0
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            if await exchange(reader, writer, tenant.request(number)) == 200:
                latencies_ms.append((time.monotonic() - began_s) * 1000)
            number += 1
            await asyncio.sleep(max(0.0, began_s + 1 / QUIET_PER_S - time.monotonic()))
        writer.close()

    async def send_loudly(tenant: Tenant, number: int) -> None:
        reader, writer = await asyncio.open_connection(tenant.endpoint.host, tenant.endpoint.port)
        request = tenant.request(number)
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            statuses[await exchange(reader, writer, request)] += 1
            await asyncio.sleep(max(0.0, began_s + connections / OFFERED - time.monotonic()))
        writer.close()

    tasks = [send_quietly(quiet)]
    if loud is not None:
        tasks += [send_loudly(loud, number) for number in range(connections)]
    await asyncio.gather(*tasks)
    return Round(latencies_ms, statuses[200], statuses[403])


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


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=64)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="quaymaster-bench-") as folder,
        servers.Running(servers.SERVERS["quaymaster"], Path(folder)) as server,
    ):
        quiet, loud = make_tenant(server, "quiet"), make_tenant(server, "loud")
        operate(server.folder, "limit", "set", "--account", loud.account_id, "--requests", str(LIMIT))
        alone: list[float] = []
        together: list[float] = []
        for _ in range(given.rounds):
            alone += asyncio.run(run_round(quiet, None, 0, given.seconds)).latencies_ms
            result = asyncio.run(run_round(quiet, loud, given.connections, given.seconds))
            together += result.latencies_ms
            print(f"loud tenant: {result.let_through} let through, {result.refused} refused", flush=True)
        ratio = p99(together) / p99(alone)
        print(
            f"quiet tenant: p99 {p99(alone):.1f} ms alone, {p99(together):.1f} ms beside the loud one: {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
