"""What workers cost: CPU time of the whole server per message, of one process on one core and of N workers on N cores.

    python -m bench workers [--workers 2] [--seconds 3] [--rounds 3] [--connections 32] [--body 256]

Both servers have as many queues as there are workers, and both get the same load, in turns, each queue from a driver of
its own. The CPU time of the drivers is not in it. Where the machine has fewer cores than workers and one for the load,
rates say nothing: there the ratio of CPU times is what counts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from pathlib import Path

from bench import load, processes, servers
from bench.load import Load
from bench.work import BATCH, Receive, Send

LEAD_S = 0.5
IN_FLIGHT = 100_000
"""Received of each queue at most, in all rounds: no more than 120,000 may be in flight."""


def start(folder: Path, workers: int, queues: int) -> tuple[servers.Running, list[str]]:
    """Start a server with so many workers, each on a core of its own; return it with the URLs of its queues."""
    # Without the queue of usage each journal has as many queues.
    settings = {"QUAYMASTER_WORKERS": str(workers), "QUAYMASTER_USAGE": "false"}
    os.environ.update(settings)
    server = servers.Running(servers.SERVERS["quaymaster"], folder / f"workers-{workers}")
    for name in settings:
        del os.environ[name]
    cores = sorted(os.sched_getaffinity(0) | set(range(os.cpu_count() or 1)))
    if workers > 1:
        for number, pid in enumerate(processes.tree_of(server.pid)[1:]):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {cores[number % len(cores)]})
    return server, [server.create_queue(f"bench-{number}") for number in range(queues)]


def measure(
    side: tuple[servers.Running, list[str]], what: str, workers: int, plan: argparse.Namespace
) -> float:
    """Make the load; print and return the server's CPU microseconds per message."""
    server, urls = side
    at = server.endpoint

    def work(number: int, drivers: int) -> Send | Receive:
        url = urls[number % len(urls)]
        if what == "ReceiveMessage of 10":
            return Receive(at, url, batch=BATCH, delete=False, messages_max=IN_FLIGHT // plan.rounds)
        return Send(at, url, body_bytes=plan.body, batch=1 if what == "SendMessage" else BATCH)

    driven = Load(at, plan.connections, plan.seconds, lead_s=LEAD_S, drivers=len(urls))
    result = load.run(driven, work, server.pid)
    messages = sum(tally.messages for tally in result.tallies.values())
    each_us = result.server_cpu_s / max(1, messages) * 1e6
    print(
        f"{workers} worker{'s' if workers > 1 else ' '}  {what:24s} {each_us:8.1f} us CPU a message  "
        f"{messages / result.seconds:9.0f} messages/s  failed {result.failures}",
        flush=True,
    )
    return each_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--body", type=int, default=256)
    plan = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="quaymaster-bench-", ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as stack,
    ):
        sides = {workers: start(Path(folder), workers, plan.workers) for workers in (1, plan.workers)}
        for server, _ in sides.values():
            stack.enter_context(server)
        for what in ("SendMessage", "SendMessageBatch of 10", "ReceiveMessage of 10"):
            sums = dict.fromkeys(sides, 0.0)
            for number in range(plan.rounds):
                for workers in list(sides)[:: 1 if number % 2 else -1]:  # in turns also who is first
                    sums[workers] += measure(sides[workers], what, workers, plan)
            print(
                f"{what}: CPU time with {plan.workers} workers / with 1: {sums[plan.workers] / sums[1]:.2f}"
            )
        print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
