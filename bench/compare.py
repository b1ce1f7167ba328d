"""The same load on every server, one after another: throughput, latency, CPU time, memory; and the machine's limits.

    python -m bench.compare [--servers quaymaster,goaws] [--workloads send,batch] [--seconds 3] [--out FILE]

Each server is started anew for each message size, on a core of its own, and warmed up; each workload has a queue of
its own. Before each server a bare responder is measured in the same way: on a shared machine the same work costs
more or less from one minute to the next, and figures compare best as multiples of that.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import histogram, load, machine, processes, servers
from bench.load import Load, Result, Work
from bench.requests import Endpoint
from bench.work import BATCH, Cycle, Receive, Send

RESULTS = servers.ROOT / "bench" / "results"
SHARES = (0.5, 0.99, 0.999)
LEAD_S = 0.5
SETTLE_S = 10.0
FILL_CONNECTIONS = 32
FILL_BYTES_MAX = 256 << 20
WARM_UP_CONNECTIONS = 16
BARE_CONNECTIONS = 32
HEADLINE_CONNECTIONS = 32
DEEP = 100_000
"""Messages a queue holds before receives without deletes: a standard queue has at most 120,000 in flight."""
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked. `counts` is the kind of request whose messages went all the way.

    `fill` is how many messages the queue holds before, as far as they can be sent in `fill_s`. `half_of` makes it
    an open loop at half the rate that the named workload reached with as many connections.
    """

    label: str
    counts: str
    make: Callable[[Endpoint, str, int, int], Work]
    fill: int = 0
    fill_s: float = 5.0
    half_of: str | None = None


WORKLOADS = {
    "send": Workload("SendMessage", "send", lambda at, url, body, _: Send(at, url, body_bytes=body)),
    "batch": Workload(
        "SendMessageBatch of 10",
        "send",
        lambda at, url, body, _: Send(at, url, body_bytes=body, batch=BATCH),
    ),
    "receive": Workload(
        "ReceiveMessage and DeleteMessage",
        "delete",
        lambda at, url, body, _: Receive(at, url),
        fill=40_000,
    ),
    "mixed": Workload(
        "send, receive, delete in turn",
        "delete",
        lambda at, url, body, _: Cycle(at, url, body_bytes=body),
    ),
    "deep": Workload(
        "ReceiveMessage of 10 from a deep queue",
        "receive",
        lambda at, url, body, depth: Receive(at, url, batch=BATCH, delete=False, messages_max=depth),
        fill=DEEP,
        fill_s=20.0,
    ),
    "half": Workload(
        "SendMessage at half load",
        "send",
        lambda at, url, body, _: Send(at, url, body_bytes=body),
        half_of="send",
    ),
}
HEADLINE = ("send", "batch", "deep", "half")
GRID = ("send", "batch", "receive", "mixed")
GRID_CONNECTIONS = (1, 64)
BODIES = (256, 65_536)


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure, and for how long each; with `requests_max`, until so many requests were sent."""

    servers: tuple[str, ...] = tuple(servers.SERVERS)
    workloads: tuple[str, ...] = tuple(WORKLOADS)
    bodies: tuple[int, ...] = BODIES
    connections: tuple[int, ...] = GRID_CONNECTIONS
    seconds: float = 3.0
    lead_s: float = LEAD_S
    drivers: int = 1
    fill: int | None = None
    requests_max: int | None = None
    warm_up_s: float | None = None
    bare_s: float = 2.0


def cases(options: Options, body_bytes: int) -> Iterable[tuple[str, int]]:
    """Yield (workload, connections): the headline's with small messages, then the grid."""
    if body_bytes == BODIES[0]:
        yield from ((name, HEADLINE_CONNECTIONS) for name in HEADLINE if name in options.workloads)
    for connections in options.connections:
        yield from ((name, connections) for name in GRID if name in options.workloads)


def run(
    options: Options,
    tell: Callable[[str], None] = print,
    save: Callable[[Record], None] = lambda record: None,
) -> Record:
    """Measure everything; return the record that is written as JSON, and save it after each server."""
    record: Record = {
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine.describe(),
        "seconds": options.seconds,
        "limits": {"fdatasync": [machine.measure_fdatasync(size) for size in (4096, 65_536)]},
        "servers": {},
        "figures": [],
    }
    for name in options.servers:
        server = servers.SERVERS[name]
        about: Record = {"label": server.label, "version": server.version, "keeps": server.keeps}
        record["servers"][name] = about
        try:
            server.obtain()
            for body_bytes in options.bodies:
                with temporary_folder() as folder:
                    figures = measure_server(server, Path(folder), body_bytes, options, tell)
                record["figures"] += figures
        except servers.Unavailable as error:
            about["unavailable"] = str(error)
            tell(f"{server.label}: not measured: {error}")
        save(record)
    return record


def measure_server(
    server: servers.Server, folder: Path, body_bytes: int, options: Options, tell: Callable[[str], None]
) -> list[Record]:
    """Return the figures of one server with messages of one size."""
    bare_us = measure_bare(folder, options)
    tell(f"{server.label}, {body_bytes} B (bare responder: {bare_us:.1f} us of CPU a request)")
    figures: list[Record] = []
    rates: dict[tuple[str, int], float] = {}
    with servers.Running(server, folder / "server") as running:
        start_bytes = processes.memory_bytes(running.pid)
        warm_up(running, server.warm_up_s if options.warm_up_s is None else options.warm_up_s)
        for name, connections in cases(options, body_bytes):
            workload = WORKLOADS[name]
            rate = None
            if workload.half_of is not None:
                rate = rates.get((workload.half_of, connections), 0.0) / 2
                if not rate:
                    continue
            figure = {
                "server": server.name,
                "workload": name,
                "body_bytes": body_bytes,
                "connections": connections,
                "bare_cpu_us": bare_us,
                "start_bytes": start_bytes,
                **measure(running, workload, f"{name}-{connections}", body_bytes, connections, options, rate),
            }
            rates[name, connections] = figure["requests_per_s"]
            figures.append(figure)
            tell("  " + line_of(figure))
    return figures


def measure(
    running: servers.Running,
    workload: Workload,
    queue_name: str,
    body_bytes: int,
    connections: int,
    options: Options,
    rate: float | None = None,
) -> Record:
    """Return the figures of one workload on a queue of its own."""
    at = running.endpoint
    url = running.create_queue(queue_name)
    most = FILL_BYTES_MAX // body_bytes if options.fill is None else options.fill
    wanted = min(workload.fill, most)
    depth = fill(running, url, wanted, body_bytes, workload.fill_s)
    settle(running)
    # What is received in the lead is not there afterwards.
    plan = Load(
        at,
        connections,
        options.seconds,
        lead_s=options.lead_s if depth >= wanted else 0.0,
        rate=rate,
        requests_max=options.requests_max,
        drivers=options.drivers,
    )
    result = load.run(
        plan,
        lambda number, of: workload.make(at, url, body_bytes, max(1, depth // of)),
        running.pid,
    )
    settle(running)
    running.delete_queue(url)
    return {"depth": depth, "rate": rate, **figures_of(result, workload.counts)}


def figures_of(result: Result, counts: str) -> Record:
    """Return a result as JSON: rates a second, times in milliseconds, CPU in seconds."""
    requests, messages = result.requests, result.messages(counts)
    every = array("Q", bytes(8 * histogram.BUCKETS))
    for tally in result.tallies.values():
        for bucket, count in enumerate(tally.latencies):
            every[bucket] += count
    latencies = {kind: tally.latencies for kind, tally in result.tallies.items() if tally.requests}
    return {
        "seconds": round(result.seconds, 3),
        "requests": requests,
        "requests_per_s": round(requests / result.seconds, 1),
        "messages": messages,
        "messages_per_s": round(messages / result.seconds, 1),
        "latency_ms": {
            kind: dict(zip(("p50", "p99", "p99.9"), rounded(counters), strict=True))
            for kind, counters in {**latencies, "all": every}.items()
        },
        "server_cpu_s": round(result.server_cpu_s, 3),
        "cpu_us_per_request": round(result.server_cpu_s / requests * 1e6, 1) if requests else None,
        "cpu_s_per_million_messages": round(result.server_cpu_s / messages * 1e6, 1) if messages else None,
        "peak_bytes": result.server_bytes_peak,
        "driver_share": round(result.driver_share, 2),
        "failures": result.failures,
        "failure": result.failure[:400],
        "late": result.late,
    }


def rounded(counters: Sequence[int]) -> list[float | None]:
    return [
        None if value is None else round(value, 3) for value in histogram.percentiles_ms(counters, SHARES)
    ]


def fill(running: servers.Running, url: str, messages: int, body_bytes: int, seconds: float) -> int:
    """Send so many messages as fast as the server takes them, for `seconds` at most; return how many it took."""
    if messages < 1:
        return 0
    batch = max(1, min(BATCH, (192 << 10) // body_bytes))
    plan = Load(running.endpoint, FILL_CONNECTIONS, seconds, requests_max=-(-messages // batch))
    return load.run(
        plan, lambda *_: Send(running.endpoint, url, body_bytes=body_bytes, batch=batch)
    ).messages("send")


def warm_up(running: servers.Running, seconds: float) -> None:
    """Let a server run everything often before the first figure."""
    url = running.create_queue("warm-up")
    at = running.endpoint
    for make in (
        lambda *_: Send(at, url, body_bytes=256, batch=BATCH),
        lambda *_: Receive(at, url, batch=BATCH),
        lambda *_: Cycle(at, url, body_bytes=256),
    ):
        load.run(Load(at, WARM_UP_CONNECTIONS, seconds / 3), make)
    settle(running)
    running.delete_queue(url)


def settle(running: servers.Running) -> None:
    """Wait until the server has done what was asked of it: requests that were given up still cost it."""

    def is_idle() -> bool:
        before_s = processes.cpu_s(running.pid)
        time.sleep(0.2)
        return processes.cpu_s(running.pid) - before_s <= 0.02

    processes.wait_until(is_idle, SETTLE_S)


def measure_bare(folder: Path, options: Options) -> float:
    """Return the CPU microseconds of a bare responder's request: the least HTTP costs here and now."""
    with servers.Running(servers.BARE, folder / "bare") as bare:
        at = bare.endpoint
        plan = Load(at, BARE_CONNECTIONS, options.bare_s, lead_s=0.2)
        result = load.run(plan, lambda *_: Send(at, "http://127.0.0.1/0/q", body_bytes=256), bare.pid)
    return round(result.server_cpu_s / max(1, result.requests) * 1e6, 2)


def line_of(figure: Record) -> str:
    """Return a figure as one line for people who watch."""
    shown = figure["latency_ms"]["all"]
    times = " ".join(f"{name} {value if value is not None else '-'}" for name, value in shown.items())
    cpu = figure["cpu_s_per_million_messages"]
    notes = f"  failed {figure['failures']}: {figure['failure'][:80]!r}" if figure["failures"] else ""
    return (
        f"{figure['workload']:8} {figure['connections']:3} connections  {figure['messages_per_s']:10.0f} msg/s"
        f"  {times} ms  {cpu if cpu is not None else '-'} CPU s a million"
        f"  {figure['peak_bytes'] >> 20} MiB{notes}"
    )


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a new directory that is removed at the end, whatever is in it."""
    return tempfile.TemporaryDirectory(prefix="quaymaster-bench-", ignore_cleanup_errors=True)


def write(record: Record, path: Path) -> None:
    """Write a record as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)


def names(text: str) -> tuple[str, ...]:
    """Return what an option lists, separated by commas."""
    return tuple(name for name in text.split(",") if name)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose what is measured."""
    parser.add_argument("--servers", type=names, default=tuple(servers.SERVERS), metavar="NAME,...")
    parser.add_argument("--workloads", type=names, default=tuple(WORKLOADS), metavar="NAME,...")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each figure")
    parser.add_argument("--drivers", type=int, default=1, help="processes that make the load")


def check_names(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """End with a message when an option names what is not there."""
    for what, known in (("servers", servers.SERVERS), ("workloads", WORKLOADS)):
        unknown = set(getattr(given, what)) - set(known)
        if unknown:
            parser.error(f"--{what}: there are {', '.join(known)}, not {', '.join(sorted(unknown))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--bodies", type=lambda text: tuple(map(int, names(text))), default=BODIES)
    parser.add_argument(
        "--connections", type=lambda text: tuple(map(int, names(text))), default=GRID_CONNECTIONS
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "compare.json")
    given = parser.parse_args()
    check_names(parser, given)
    options = Options(
        given.servers, given.workloads, given.bodies, given.connections, given.seconds, given.drivers
    )
    run(options, lambda line: print(line, flush=True), lambda record: write(record, given.out))


if __name__ == "__main__":
    main()
