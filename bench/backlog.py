"""Many queued messages: what they cost in memory, whether receives stay quick, how long a restart takes.

    python -m bench.backlog [--depth 10000000] [--peer-depth 1000000] [--cases plain,delayed] [--out FILE]

For each case the server is started anew. A receive (10 messages, then a DeleteMessageBatch) is measured on a queue
that holds only what is measured, then with the backlog beside it, then again after `kill -9` and a restart. Peers
hold their messages in memory: they get the plain case only, as many messages as they take in the given time, and
nothing is left to restart with.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import load, machine, processes, servers
from bench.compare import RESULTS, Record, figures_of, names, settle, temporary_folder, warm_up, write
from bench.load import Load
from bench.requests import call
from bench.work import BATCH, Fields, Receive, Send, no_fields

BODY_BYTES = 256
CONNECTIONS = 32
FEW = 100_000
"""Messages in the almost empty queue, and those that can be received beside a backlog that cannot."""
FILL_RATE_MIN = 2_000
"""Messages a second below which filling is given up."""
DELAY_S = 900
TENANTS = 1_000
SAMPLE_CALLS = 100
SECONDS = 3.0
WARM_UP_S_MIN = 5.0
"""Servers that need less are warm after the first round."""


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of backlog. `fields` are those of the backlog's messages, `few_fields` those of what is received.

    `few_beside`: the backlog itself cannot be received, so `FEW` other messages are sent behind it. `block`: one
    message is received first and kept in flight, and its group with it. `quiet` begins the group names whose share in
    the first messages received says how fair the queue is.
    """

    label: str
    attributes: dict[str, str] = field(default_factory=dict)
    fields: Callable[[int], Fields] = lambda depth: no_fields
    few_fields: Fields = no_fields
    few_beside: bool = False
    block: bool = False
    quiet: str = ""


FIFO = {"FifoQueue": "true", "VisibilityTimeout": "3600"}


def _group(name: Callable[[int], int], prefix: bytes) -> Fields:
    def fields(number: int) -> bytes:
        return b',"MessageGroupId":"%b-%d","MessageDeduplicationId":"%b-%d"' % (
            *(prefix, name(number)),
            *(prefix, number),
        )

    return fields


def _tenant(name: Callable[[int], int], prefix: bytes) -> Fields:
    return lambda number: b',"MessageGroupId":"%b-%d"' % (prefix, name(number))


CASES = {
    "plain": Case("standard queue"),
    "delayed": Case(
        "standard queue, all delayed",
        fields=lambda depth: lambda number: b',"DelaySeconds":%d' % DELAY_S,
        few_beside=True,
    ),
    "blocked": Case(
        "FIFO queue, all in one blocked group",
        FIFO,
        fields=lambda depth: _group(lambda number: 0, b"blocked"),
        few_fields=_group(lambda number: number % TENANTS, b"free"),
        few_beside=True,
        block=True,
    ),
    "groups": Case(
        "FIFO queue, ten messages a group",
        FIFO,
        fields=lambda depth: _group(lambda number: number % max(1, depth // 10), b"group"),
        few_fields=_group(lambda number: number % max(1, FEW // 10), b"few"),
    ),
    "noisy": Case(
        "fair queue, all of one tenant",
        fields=lambda depth: _tenant(lambda number: 0, b"noisy"),
        few_fields=_tenant(lambda number: number % TENANTS, b"quiet"),
        few_beside=True,
        quiet="quiet",
    ),
}


def run(
    depth: int,
    peer_depth: int,
    cases: tuple[str, ...],
    chosen: tuple[str, ...],
    fill_s: float,
    tell: Callable[[str], None] = print,
    save: Callable[[Record], None] = lambda record: None,
    few: int = FEW,
) -> Record:
    """Measure each case on Quaymaster, the plain one on its peers; return the record that is written as JSON.

    It is saved after each case.
    """
    record: Record = {
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine.describe(),
        "body_bytes": BODY_BYTES,
        "figures": [],
    }
    for server in servers.SERVERS.values():
        for name, case in CASES.items():
            asked = depth if server.is_durable else peer_depth
            skipped = server.name not in chosen or name not in cases
            if skipped or not asked or not (server.is_durable or name == "plain"):
                continue
            base: Record = {"server": server.name, "case": name, "label": case.label, "asked": asked}
            tell(f"{server.label}: {case.label}, {asked:,} messages")
            try:
                with temporary_folder() as folder:
                    base |= measure(
                        server, Path(folder), case, asked, fill_s if not server.is_durable else 0, few, tell
                    )
            except (servers.Unavailable, OSError, RuntimeError) as error:
                base["failure"] = f"{type(error).__name__}: {error}"[:600]
                tell(f"  failed: {base['failure']}")
            record["figures"].append(base)
            save(record)
    return record


def measure(
    server: servers.Server,
    folder: Path,
    case: Case,
    depth: int,
    fill_s: float,
    few: int,
    tell: Callable[[str], None],
) -> Record:
    """Return the figures of one case. `fill_s` bounds the filling, 0 leaves it to take its time."""
    figures: Record = {}
    with servers.Running(server, folder / "server") as running:
        url = running.create_queue("few.fifo" if "FifoQueue" in case.attributes else "few", case.attributes)
        # A server that never received a message has yet to load and to compile; the second round counts.
        few_s = fill_s / 2
        if server.warm_up_s > WARM_UP_S_MIN:
            warm_up(running, server.warm_up_s)
        for turn in range(2):
            # Ids are used once: what is sent under one again is a duplicate.
            send(running, url, few, case.few_fields, few_s, start=turn * few)
            settle(running)
            figures["few"] = receive(running, url, few)
        tell(f"  few messages: {line_of(figures['few'])}")
        settle(running)
        before_bytes = processes.memory_bytes(running.pid, "VmRSS")
        url = running.create_queue("deep.fifo" if "FifoQueue" in case.attributes else "deep", case.attributes)
        if case.block:
            send(running, url, 1, case.fields(depth))
            call(running.endpoint, "ReceiveMessage", {"QueueUrl": url})
        started = time.monotonic()
        figures["depth"] = send(running, url, depth, case.fields(depth), fill_s, start=1)
        figures["fill_s"] = round(time.monotonic() - started, 1)
        settle(running)
        figures["growth_bytes"] = processes.memory_bytes(running.pid, "VmRSS") - before_bytes
        figures["peak_bytes"] = processes.memory_bytes(running.pid)
        figures["disk_bytes"] = bytes_below(running.folder)
        tell(
            f"  {figures['depth']:,} messages in {figures['fill_s']} s, "
            f"memory +{figures['growth_bytes'] / (1 << 20):.0f} MiB, disk {figures['disk_bytes'] >> 20} MiB"
        )
        figures["delayed"] = count_of(running, url, "ApproximateNumberOfMessagesDelayed")
        if case.few_beside:
            send(running, url, few, case.few_fields)
            settle(running)
        if case.quiet:
            figures["quiet_share"] = share_of(running, url, case.quiet)
        figures["deep"] = receive(running, url, few)
        tell(f"  at depth:     {line_of(figures['deep'])}")
        if server.is_durable:
            figures["restart_s"] = round(running.restart_after_kill(), 2)
            figures["ready_bytes"] = processes.memory_bytes(running.pid, "VmRSS")
            settle(running)
            send(running, url, few if case.few_beside else 1, case.few_fields, start=10 * few)
            figures["after"] = receive(running, url, few)
            tell(f"  restart in {figures['restart_s']} s; then {line_of(figures['after'])}")
    return figures


def send(
    running: servers.Running, url: str, messages: int, fields: Fields, seconds: float = 0, start: int = 0
) -> int:
    """Send so many messages, `seconds` long at most (0: as long as it takes); return how many were taken."""
    at = running.endpoint
    batch = min(BATCH, messages)
    plan = Load(
        at, CONNECTIONS, seconds or max(60.0, messages / FILL_RATE_MIN), requests_max=messages // batch
    )
    result = load.run(
        plan, lambda *_: Send(at, url, body_bytes=BODY_BYTES, batch=batch, fields=fields, start=start)
    )
    if result.failures:
        raise RuntimeError(f"{result.failures} sends failed: {result.failure}")
    return result.messages("send")


def receive(running: servers.Running, url: str, messages: int) -> Record:
    """Receive and delete ten at a time until so many messages came, or for SECONDS."""
    at = running.endpoint
    plan = Load(at, CONNECTIONS, SECONDS)
    result = load.run(
        plan, lambda *_: Receive(at, url, batch=BATCH, messages_max=messages * 9 // 10), running.pid
    )
    return figures_of(result, "delete")


def count_of(running: servers.Running, url: str, name: str) -> int:
    """Return one of the counts that a queue's attributes give."""
    found = call(running.endpoint, "GetQueueAttributes", {"QueueUrl": url, "AttributeNames": [name]})
    return int((found.get("Attributes") or {}).get(name, 0))


def share_of(running: servers.Running, url: str, prefix: str) -> float:
    """Return the share of messages from groups that begin so, among the first that are received."""
    groups: list[str] = []
    fields = {"QueueUrl": url, "MaxNumberOfMessages": BATCH, "AttributeNames": ["MessageGroupId"]}
    for _ in range(SAMPLE_CALLS):
        messages = call(running.endpoint, "ReceiveMessage", fields).get("Messages", [])
        groups += [message["Attributes"]["MessageGroupId"] for message in messages]
    return round(sum(group.startswith(prefix) for group in groups) / max(1, len(groups)), 3)


def bytes_below(folder: Path) -> int:
    """Return the size of all files in a folder, as far as they are on disk."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(parent, name)).st_blocks * 512
            except OSError:
                continue
    return total


def line_of(figures: Record) -> str:
    times = figures["latency_ms"].get("receive", {"p50": None, "p99": None})
    return (
        f"{figures['messages_per_s']:,.0f} received and deleted a second, "
        f"{figures['cpu_s_per_million_messages']} CPU s a million, receive p50 {times['p50']} p99 {times['p99']} ms"
        + (f", failed {figures['failures']}: {figures['failure'][:100]!r}" if figures["failures"] else "")
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the backlog."""
    parser.add_argument("--depth", type=int, default=1_000_000, help="messages queued in Quaymaster")
    parser.add_argument("--peer-depth", type=int, default=200_000, help="messages queued in each peer")
    parser.add_argument("--fill-seconds", type=float, default=60.0, help="at most, for a peer")
    parser.add_argument("--cases", type=names, default=tuple(CASES), metavar="NAME,...")


def run_given(given: argparse.Namespace, tell: Callable[[str], None], path: Path) -> None:
    """Run what the options say; the record is written to `path`."""
    chosen = (given.depth, given.peer_depth, given.cases, given.servers, given.fill_seconds)
    run(*chosen, tell, lambda record: write(record, path))


def check_names(parser: argparse.ArgumentParser, given: Any) -> None:
    """End with a message when a case is named that is not there."""
    unknown = set(given.cases) - set(CASES)
    if unknown:
        parser.error(f"--cases: there are {', '.join(CASES)}, not {', '.join(sorted(unknown))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--servers", type=names, default=tuple(servers.SERVERS), metavar="NAME,...")
    parser.add_argument("--out", type=Path, default=RESULTS / "backlog.json")
    given = parser.parse_args()
    check_names(parser, given)
    run_given(given, lambda line: print(line, flush=True), given.out)


if __name__ == "__main__":
    main()
