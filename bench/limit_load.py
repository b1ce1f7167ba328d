"""The loud tenant of `limit_fairness`, as a process of its own: offers requests at a rate, whatever comes of them.

    python -m bench.limit_load HOST PORT RATE SECONDS CONNECTIONS REQUEST-FILE [--new]

An open loop: each 5 ms what is due is written to the connections in turn, without waiting for answers. With `--new`
each request has a connection of its own, which is closed after its answer. Prints how many were offered, let through
(200), refused (403), and how many connections ended without an answer, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import cast

import uvloop

STEP_S = 0.005
UNANSWERED_MAX = 20_000
"""More are not written: the server does not answer at this rate."""
CONNECTING_MAX = 200


class Counts:
    """What came of the requests."""

    def __init__(self) -> None:
        self.offered = 0
        self.let_through = 0
        self.refused = 0
        self.lost = 0

    @property
    def unanswered(self) -> int:
        return self.offered - self.let_through - self.refused - self.lost


class Loud(asyncio.Protocol):
    """A connection that counts answers by their first line."""

    def __init__(self, counts: Counts, request: bytes = b"") -> None:
        self.counts = counts
        self.request = request
        self.waiting = 0
        self.is_open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.request:
            self.ask(self.request)

    def ask(self, request: bytes) -> None:
        self.waiting += 1
        self.counts.offered += 1
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        passed, refused = data.count(b"HTTP/1.1 200"), data.count(b"HTTP/1.1 403")
        self.counts.let_through += passed
        self.counts.refused += refused
        self.waiting -= passed + refused
        if self.request and not self.waiting:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self.counts.lost += self.waiting
        self.waiting = 0


async def offer(given: argparse.Namespace) -> Counts:
    """Offer requests for so long."""
    loop, counts, request = asyncio.get_running_loop(), Counts(), given.request.read_bytes()
    connecting: set[asyncio.Task[object]] = set()

    def connect(first: bytes = b"") -> asyncio.Task[object]:
        made = loop.create_connection(lambda: Loud(counts, first), given.host, given.port)
        return loop.create_task(made)

    links: list[Loud] = []
    if not given.new:
        links = [(await connect())[1] for _ in range(given.connections)]  # type: ignore[index]
    began_s = time.monotonic()
    sent = 0
    while (passed_s := time.monotonic() - began_s) < given.seconds:
        due = int(passed_s * given.rate) - sent
        sent += due
        for number in range(due):
            if counts.unanswered >= UNANSWERED_MAX:
                break
            if given.new:
                if len(connecting) < CONNECTING_MAX:
                    task = connect(request)
                    connecting.add(task)
                    task.add_done_callback(connecting.discard)
            else:
                link = links[(sent + number) % len(links)]
                if link.is_open:
                    link.ask(request)
        await asyncio.sleep(STEP_S)
    return counts


def main() -> None:
    """Run the load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("rate", type=float)
    parser.add_argument("seconds", type=float)
    parser.add_argument("connections", type=int)
    parser.add_argument("request", type=Path)
    parser.add_argument("--new", action="store_true")
    counts = uvloop.run(offer(parser.parse_args()))
    print(json.dumps(vars(counts)))


if __name__ == "__main__":
    main()
