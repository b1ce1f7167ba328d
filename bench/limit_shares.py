"""One limit over the front ends of a real cell, while the load moves between them: how far the sum strays from it.

    python -m bench.limit_shares [--rates 50,200] [--seconds 60] [--front-ends 3]

Clients offer twice the limit, in an open loop. Every two seconds they are at other front ends: at one, at two, at all
of them, evenly or not. What is let through is noted when its answer comes, and counted in all windows of 10 seconds
that begin a second or more after the load does. The goal is the limit, within 5 %.

The load comes as through a trusted proxy, so that front ends hold no connection back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import uvloop

from bench.clusters import Cell
from bench.requests import Endpoint, Signer, call

OFFERED = 2.0
"""Times the limit."""
MOVES_S = 2.0
WEIGHTS = ((1, 0, 0), (0, 1, 0), (1, 1, 1), (0, 0, 1), (3, 1, 0), (1, 0, 3), (0, 1, 1))
"""How the load is spread over three front ends, one after the other; over more or fewer in the same way."""
WINDOW_S = 10.0
WINDOW_STEP_S = 0.05
FIRST_S = 1.0
CONNECTIONS = 8
STEP_S = 0.005
KNOWN_S = 30.0
"""A limit is known everywhere after 5 seconds; so long is waited for it at most."""


class Answers(asyncio.Protocol):
    """A connection that notes when which answers came."""

    def __init__(self, passed_s: list[float], statuses: Counter[bytes]) -> None:
        self._passed_s = passed_s
        self._statuses = statuses

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now_s = time.monotonic()
        for piece in data.split(b"HTTP/1.1 ")[1:]:
            self._statuses[piece[:3]] += 1
            if piece.startswith(b"200"):
                self._passed_s.append(now_s)


class Client:
    """The clients of one front end."""

    def __init__(self, endpoint: Endpoint, url: str) -> None:
        self._endpoint = endpoint
        self._signer = Signer(endpoint)
        self._body = json.dumps({"QueueUrl": url, "MessageBody": "x"}).encode()
        self._connections: list[Answers] = []
        self._asked = 0
        self.passed_s: list[float] = []
        self.statuses: Counter[bytes] = Counter()

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(CONNECTIONS):
            _, connection = await loop.create_connection(
                lambda: Answers(self.passed_s, self.statuses), self._endpoint.host, self._endpoint.port
            )
            self._connections.append(connection)

    def ask(self) -> None:
        self._asked += 1
        request = self._signer.request(b"SendMessage", self._body)
        self._connections[self._asked % CONNECTIONS].transport.write(request)

    def close(self) -> None:
        for connection in self._connections:
            connection.transport.close()


async def offer(clients: Sequence[Client], per_s: float, seconds: float) -> float:
    """Offer requests for so long, at front ends that change; return when that began."""
    for client in clients:
        await client.connect()
    began_s = time.monotonic()
    due = [0.0] * len(clients)
    last_s = began_s
    while (now_s := time.monotonic()) - began_s < seconds:
        weights = WEIGHTS[int((now_s - began_s) / MOVES_S) % len(WEIGHTS)]
        parts = [weights[number % len(weights)] for number in range(len(clients))]
        for number, client in enumerate(clients):
            due[number] += (now_s - last_s) * per_s * parts[number] / max(1, sum(parts))
            while due[number] >= 1:
                due[number] -= 1
                client.ask()
        last_s = now_s
        await asyncio.sleep(STEP_S)
    for client in clients:
        client.close()
    return began_s


def strays(passed_s: Sequence[float], first_s: float, last_s: float, limit: float) -> list[float]:
    """Return of each window by which part of the limit it strays from it. `passed_s` is sorted."""
    found: list[float] = []
    begin_s = first_s
    while begin_s + WINDOW_S <= last_s:
        count = bisect_left(passed_s, begin_s + WINDOW_S) - bisect_left(passed_s, begin_s)
        found.append(count / (limit * WINDOW_S) - 1)
        begin_s += WINDOW_STEP_S
    return found


def set_limit(cell: Cell, per_s: float) -> None:
    """Limit how many messages the account sends in a second, and return when all front ends know that."""
    data = cell.folder / "frontend-1"
    account_id = json.loads((data / "client.json").read_text())["account_id"]
    program = str(Path(sys.executable).with_name("quaymaster"))
    options = ["--account", account_id, "--action", "SendMessage", "--requests", f"{per_s:g}"]
    subprocess.run(
        [program, "limit", "set", *options, "--data", str(data)], check=True, stdout=subprocess.DEVNULL
    )
    until_s = time.monotonic() + KNOWN_S
    for endpoint in cell.endpoints:
        url = call(endpoint, "GetQueueUrl", {"QueueName": "jobs"})["QueueUrl"]
        asked = {"QueueUrl": url, "AttributeNames": ["EffectiveLimits"]}
        while f'"Requests": {per_s:g}' not in str(call(endpoint, "GetQueueAttributes", asked)):
            assert time.monotonic() < until_s, "a limit that was set is known everywhere"
            time.sleep(0.1)


def measure(cell: Cell, url: str, per_s: float, seconds: float) -> None:
    """Measure one limit, and print what came of it."""
    set_limit(cell, per_s)
    clients = [Client(endpoint, url) for endpoint in cell.endpoints]
    began_s = uvloop.run(offer(clients, OFFERED * per_s, seconds))
    passed_s = sorted(moment for client in clients for moment in client.passed_s)
    found = sorted(strays(passed_s, began_s + FIRST_S, began_s + seconds, per_s))
    longest_s = max(after - before for before, after in pairwise(passed_s))
    parts = "/".join(f"{len(client.passed_s) / len(passed_s):.0%}" for client in clients)
    statuses = sum((client.statuses for client in clients), Counter())
    told = ", ".join(f"{count:,} x {status.decode()}" for status, count in sorted(statuses.items()))
    print(
        f"limit {per_s:g}/s: {len(found):,} windows of {WINDOW_S:g} s, {found[0]:+.1%} to {found[-1]:+.1%} of it, "
        f"median {found[len(found) // 2]:+.1%}; {sum(abs(one) <= 0.05 for one in found) / len(found):.1%} within 5 %; "
        f"front ends {parts}; {told}; longest without any {longest_s:.2f} s; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="50,200")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--front-ends", type=int, default=3)
    given = parser.parse_args()
    os.environ["QUAYMASTER_TRUSTED_PROXIES"] = "127.0.0.1"
    print(f"machine load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="quaymaster-bench-") as folder,
        Cell(Path(folder), front_ends=given.front_ends) as cell,
    ):
        url = cell.create_queue("jobs")
        for rate in given.rates.split(","):
            measure(cell, url, float(rate), given.seconds)


if __name__ == "__main__":
    main()
