"""What a request costs the whole server: CPU time of its process per request, beside a bare responder's.

    python -m bench.serve_cost [--seconds 3] [--connections 32] [--body 256] [--usage | --guarantees] [--rounds 5]

Starts the server on a new data directory (Sync, encryption and signatures on) on one core and drives it from the
other with signed requests, each with an invocation id of its own; then does the same to a bare responder (uvloop,
httptools, one fixed answer). Shared machines are noisy: the ratio of CPU times in one run is what counts, the rate
is beside it. With `--usage` only SendMessage is measured, at two servers in turns of which one records usage. With
`--guarantees` a message's whole life is: sent, received and, where that is not its end, deleted, in turns in queues of
each DeliveryGuarantee.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import tempfile
from pathlib import Path

from bench import load, servers
from bench.load import Load, MakeWork
from bench.work import BATCH, Cycle, Receive, Send

IN_FLIGHT = 100_000
"""Received at most: a standard queue has no more than 120,000 in flight."""
LEAD_S = 0.3


def measure(server: servers.Running, plan: Load, name: str, make_work: MakeWork, messages: int = 1) -> float:
    """Make the load; print and return the server's CPU microseconds per request."""
    result = load.run(plan, make_work, server.pid)
    each_us = result.server_cpu_s / max(1, result.requests) * 1e6
    print(
        f"{name:32s} {each_us:8.1f} us CPU a request  {each_us / messages:7.1f} a message  "
        f"{result.requests / result.seconds:9.0f} requests/s  failed {result.failures}",
        flush=True,
    )
    return each_us


def measure_usage(folder: Path, connections: int, seconds: float, body_bytes: int, rounds: int) -> float:
    """Print and return by how much recording usage raises the CPU time of a send, over all rounds together.

    A round alone says little: what a send costs differs by a quarter from one second to the next. Many short rounds
    in turns let both sides see the same seconds.
    """
    with contextlib.ExitStack() as stack:
        sides = []
        for is_on in (False, True):
            os.environ["QUAYMASTER_USAGE"] = str(is_on).lower()
            server = servers.Running(servers.SERVERS["quaymaster"], folder / f"usage-{is_on}")
            sides.append((stack.enter_context(server), server.create_queue("bench")))
        del os.environ["QUAYMASTER_USAGE"]

        def cost(side: tuple[servers.Running, str], name: str) -> float:
            server, url = side
            plan = Load(server.endpoint, connections, seconds, lead_s=LEAD_S)
            return measure(server, plan, name, lambda *_: Send(server.endpoint, url, body_bytes=body_bytes))

        ratios: list[float] = []
        sums = [0.0, 0.0]
        for number in range(rounds):
            # In turns also who is first: a machine's clock and neighbours drift.
            order = (0, 1) if number % 2 else (1, 0)
            costs = {which: cost(sides[which], ("without usage", "with usage")[which]) for which in order}
            ratios.append(costs[1] / costs[0])
            sums = [whole + costs[which] for which, whole in enumerate(sums)]
    ratio = sums[1] / sums[0]
    off_by = statistics.stdev(ratios) / math.sqrt(rounds) if rounds > 1 else math.inf
    print(
        f"CPU time of a send with usage records / without: {ratio:.3f} of the sums, standard error {off_by:.3f}; "
        f"median of pairs {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}); "
        f"load average {os.getloadavg()[0]:.1f}"
    )
    return ratio


def measure_guarantees(
    folder: Path, connections: int, seconds: float, body_bytes: int, rounds: int
) -> dict[str, float]:
    """Print the CPU time of a message's life under each guarantee, and return it as parts of that of AtLeastOnce."""
    sums = dict.fromkeys(("AtLeastOnce", "AtMostOnce", "ExactlyOnce"), 0.0)
    ratios: dict[str, list[float]] = {guarantee: [] for guarantee in sums}
    with servers.Running(servers.SERVERS["quaymaster"], folder / "guarantees") as server:
        urls = {
            guarantee: server.create_queue(guarantee, {"DeliveryGuarantee": guarantee}) for guarantee in sums
        }

        def cost(guarantee: str) -> float:
            plan = Load(server.endpoint, connections, seconds, lead_s=LEAD_S)
            is_deleted = guarantee != "AtMostOnce"

            def make_work(*_: int) -> Cycle:
                return Cycle(server.endpoint, urls[guarantee], body_bytes=body_bytes, delete=is_deleted)

            result = load.run(plan, make_work, server.pid)
            each_us = result.server_cpu_s / max(1, result.messages("receive")) * 1e6
            lives = result.messages("receive") / result.seconds
            print(
                f"{guarantee:12s} {each_us:8.1f} us CPU a message's life  {lives:7.0f} lives/s  "
                f"failed {result.failures}",
                flush=True,
            )
            return each_us

        for number in range(rounds):
            # In turns also who is first: a machine's clock and neighbours drift.
            order = [*sums][number % 3 :] + [*sums][: number % 3]
            costs = {guarantee: cost(guarantee) for guarantee in order}
            for guarantee, each_us in costs.items():
                sums[guarantee] += each_us
                ratios[guarantee].append(each_us / costs["AtLeastOnce"])
    found = {guarantee: whole / sums["AtLeastOnce"] for guarantee, whole in sums.items()}
    for guarantee, part in found.items():
        print(
            f"{guarantee} / AtLeastOnce: {part:.3f} of the sums; median of rounds "
            f"{statistics.median(ratios[guarantee]):.3f} ({min(ratios[guarantee]):.3f} to "
            f"{max(ratios[guarantee]):.3f}); load average {os.getloadavg()[0]:.1f}"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--body", type=int, default=256)
    parser.add_argument("--usage", action="store_true", help="what usage records cost")
    parser.add_argument("--guarantees", action="store_true", help="what a message's life costs under each")
    parser.add_argument("--rounds", type=int, default=5, help="of --usage and --guarantees")
    arguments = parser.parse_args()
    body = arguments.body
    with tempfile.TemporaryDirectory(prefix="quaymaster-bench-", ignore_cleanup_errors=True) as folder:
        directory = Path(folder)
        if arguments.usage:
            measure_usage(directory, arguments.connections, arguments.seconds, body, arguments.rounds)
            return
        if arguments.guarantees:
            measure_guarantees(directory, arguments.connections, arguments.seconds, body, arguments.rounds)
            return
        with servers.Running(servers.SERVERS["quaymaster"], directory / "server") as server:
            at = server.endpoint
            url = server.create_queue("bench")
            plan = Load(at, arguments.connections, arguments.seconds, lead_s=LEAD_S)
            sent = measure(server, plan, "SendMessage", lambda *_: Send(at, url, body_bytes=body))
            batched = measure(
                *(server, plan, "SendMessageBatch of 10"),
                lambda *_: Send(at, url, body_bytes=body, batch=BATCH),
                BATCH,
            )
            received = measure(
                *(server, plan, "ReceiveMessage of 10"),
                lambda *_: Receive(at, url, batch=BATCH, delete=False, messages_max=IN_FLIGHT),
                BATCH,
            )
        with servers.Running(servers.BARE, directory / "bare") as bare:
            at = bare.endpoint
            plan = Load(at, arguments.connections, arguments.seconds, lead_s=LEAD_S)
            floor = measure(bare, plan, "bare responder", lambda *_: Send(at, url, body_bytes=body))
        print(
            f"ratio to the bare responder: SendMessage {floor / sent:.2f}  a message in a batch "
            f"{floor / (batched / BATCH):.2f}  ReceiveMessage of 10 {floor / received:.2f}"
        )


if __name__ == "__main__":
    main()
