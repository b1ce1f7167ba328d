"""Our cell beside RabbitMQ's quorum queues and NATS JetStream: three nodes each, all on one machine.

    python -m bench cell [--clusters cell,rabbitmq] [--seconds 10] [--kills 10] [--peer-kills 3] [--publish]

All clusters run while their loads take turns, so that other work on the machine falls on all of them; then each alone
again under strace for the fsyncs, and for kills of the leader. Servers and clients share all cores. Each load has
publishers and consumers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import cell_gap, cell_load, cell_report, clusters, histogram, machine, report, servers
from bench.cell_gap import Gap
from bench.cell_load import Measured, Side
from bench.clusters import NATS, Cell, Cluster, RabbitMQ

RESULTS = servers.ROOT / "bench" / "results"
BODY_BYTES = 256
LEAD_S = 2.0
TRACED_S = 3.0
SETTLE_S = 2.0
PEER_CONNECTIONS = 8
UNCONFIRMED = 100
SHARES = (0.5, 0.99, 0.999)
Tell = Callable[[str], None]
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A load: how its sides are made for a cluster that runs, on a new queue."""

    name: str
    label: str
    sides: Callable[[Any], Sequence[Side]]


@dataclass(frozen=True, slots=True)
class Contender:
    """A cluster that can be measured."""

    name: str
    label: str
    keeps: str
    version: Callable[[], str]
    start: Callable[[Path, Path | None], Cluster]
    cases: tuple[Case, ...]
    kill: Callable[[Any, int, Tell], list[Gap]]


def _of_cell(connections: int, batch: int) -> Callable[[Cell], Sequence[Side]]:
    """Return the sides on a new queue. A message is sent with one request, and received and deleted with two."""

    def sides(cell: Cell) -> Sequence[Side]:
        url = cell.create_queue(f"load-{connections}-{batch}-{time.monotonic_ns()}")
        at = cell.endpoint
        return [
            cell_load.sqs_sender(at, url, connections=connections, batch=batch, body_bytes=BODY_BYTES),
            cell_load.sqs_consumer(at, url, connections=2 * connections, batch=10),
        ]

    return sides


def _of_rabbitmq(cluster: RabbitMQ) -> Sequence[Side]:
    cell_load.rabbitmq_declare(cluster.ports[0])
    return [
        cell_load.rabbitmq_publisher(
            cluster.ports, connections=PEER_CONNECTIONS, unconfirmed=UNCONFIRMED, body_bytes=BODY_BYTES
        ),
        cell_load.rabbitmq_consumer(cluster.ports, connections=PEER_CONNECTIONS),
    ]


def _of_nats(cluster: NATS) -> Sequence[Side]:
    cell_load.nats_declare(cluster.urls)
    return [
        cell_load.nats_publisher(
            cluster.urls, connections=PEER_CONNECTIONS, unconfirmed=UNCONFIRMED, body_bytes=BODY_BYTES
        ),
        cell_load.nats_consumer(cluster.urls, connections=PEER_CONNECTIONS),
    ]


def _nats_gaps(cluster: NATS, kills: int, tell: Tell) -> list[Gap]:
    cell_load.nats_declare(cluster.urls)
    return cell_gap.of_nats(cluster, kills, tell)


_PEER_LOAD = f"{PEER_CONNECTIONS} publishers, {UNCONFIRMED} unconfirmed each"
CONTENDERS = {
    one.name: one
    for one in (
        Contender(
            "cell",
            "Quaymaster cell",
            "fsynced by two of three before the answer; encrypted; signatures checked",
            lambda: "this tree",
            Cell,
            (
                Case("batch", "batches of 10 on 32 connections", _of_cell(32, 10)),
                Case("batch_80", "batches of 10 on 80 connections", _of_cell(80, 10)),
                Case("single", "single sends on 32 connections", _of_cell(32, 1)),
            ),
            cell_gap.of_cell,
        ),
        Contender(
            "rabbitmq",
            "RabbitMQ quorum queue",
            "fsynced by two of three before the confirm",
            clusters.rabbitmq_version,
            RabbitMQ,
            (Case("publish", _PEER_LOAD, _of_rabbitmq),),
            cell_gap.of_rabbitmq,
        ),
        Contender(
            "nats_always",
            "NATS R3, `sync_interval: always`",
            "fsynced by two of three before the answer",
            lambda: clusters.NATS_VERSION,
            NATS,
            (Case("publish", _PEER_LOAD, _of_nats),),
            _nats_gaps,
        ),
        Contender(
            "nats",
            "NATS R3, default",
            "in memory of two of three; fsynced every two minutes",
            lambda: clusters.NATS_VERSION,
            lambda folder, traces: NATS(folder, traces, sync=None),
            (Case("publish", _PEER_LOAD, _of_nats),),
            _nats_gaps,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured, and how long."""

    clusters: tuple[str, ...] = tuple(CONTENDERS)
    seconds: float = 10.0
    rounds: int = 1
    kills: int = 10
    peer_kills: int = 3
    directory: Path | None = None


def run(options: Options, tell: Tell) -> Record:
    """Measure the clusters one after another; return the record."""
    record: Record = {
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine.describe(),
        "seconds": options.seconds,
        "body_bytes": BODY_BYTES,
        "clusters": {},
        "figures": [],
        "gaps": [],
    }
    contenders = [CONTENDERS[name] for name in options.clusters]
    for one in contenders:
        record["clusters"][one.name] = {"label": one.label, "keeps": one.keeps}
    with tempfile.TemporaryDirectory(prefix="quaymaster-bench-", dir=options.directory) as folder:
        _load_in_turn(contenders, Path(folder), options, record, tell)
        for one in contenders:
            if "unavailable" not in record["clusters"][one.name]:
                tell(one.label)
                _count_fsyncs(one, Path(folder) / f"{one.name}-traced", record, tell)
                _kill_leaders(one, Path(folder) / f"{one.name}-kills", options, record, tell)
    return record


def _load_in_turn(
    contenders: Sequence[Contender], folder: Path, options: Options, record: Record, tell: Tell
) -> None:
    with contextlib.ExitStack() as stack:
        running: list[tuple[Contender, Cluster]] = []
        for one in contenders:
            about = record["clusters"][one.name]
            try:
                about["version"] = one.version()
                running.append((one, stack.enter_context(one.start(folder / one.name, None))))
            except servers.Unavailable as error:
                about["unavailable"] = str(error)
                tell(f"{one.label}: {error}")
        for number in range(options.rounds):
            for one, cluster in running:
                for case in one.cases:
                    time.sleep(SETTLE_S)
                    sides = case.sides(cluster)
                    measured = cell_load.measure(cluster, sides, lead_s=LEAD_S, seconds=options.seconds)
                    record["figures"].append(figure_of(one, cluster, case, number, measured))
                    tell(f"{one.label}, {case.label}: {_in_short(record['figures'][-1])}")


def _count_fsyncs(contender: Contender, folder: Path, record: Record, tell: Tell) -> None:
    if shutil.which("strace") is None:
        tell("  no fsyncs are counted: `strace` is not installed")
        return
    traces = folder / "traces"
    traces.mkdir(parents=True)
    with contender.start(folder, traces) as cluster:
        for case in contender.cases:
            time.sleep(SETTLE_S)
            measured = cell_load.measure(cluster, case.sides(cluster), lead_s=LEAD_S, seconds=TRACED_S)
            assert measured.fsyncs is not None, "the cluster is traced"
            for figure in record["figures"]:
                if (figure["cluster"], figure["case"]) == (contender.name, case.name):
                    figure["fsyncs_per_message"] = measured.fsyncs / max(1, through(measured))
                    figure["traced_messages_per_s"] = through(measured) / measured.seconds
            tell(f"  {case.label}: {measured.fsyncs} fsyncs for {through(measured)} messages")


def _kill_leaders(contender: Contender, folder: Path, options: Options, record: Record, tell: Tell) -> None:
    kills = options.kills if contender.name == "cell" else options.peer_kills
    if kills:
        with contender.start(folder, None) as cluster:
            gaps = contender.kill(cluster, kills, tell)
        record["gaps"] += [{"cluster": contender.name, **asdict(gap)} for gap in gaps]


def through(measured: Measured) -> int:
    """Return how many messages went all the way: the side that did less decides."""
    return min(measured.sent.messages, measured.consumed.messages)


def figure_of(contender: Contender, cluster: Cluster, case: Case, number: int, measured: Measured) -> Record:
    """Return one load's figures."""
    messages = through(measured)
    roles: dict[str, float] = {}
    for name, used_s in measured.used_cpu_s.items():
        role = cluster.nodes[name].role
        roles[role] = roles.get(role, 0.0) + used_s
    cpu_s = sum(roles.values())
    shares = histogram.percentiles_ms(measured.sent.latencies, SHARES)
    return {
        "cluster": contender.name,
        "case": case.name,
        "label": case.label,
        "round": number,
        "seconds": measured.seconds,
        "sent_per_s": measured.sent.messages / measured.seconds,
        "consumed_per_s": measured.consumed.messages / measured.seconds,
        "messages_per_s": messages / measured.seconds,
        "send_ms": dict(zip(("p50", "p99", "p99.9"), shares, strict=True)),
        "cpu_s_per_million": cpu_s * 1e6 / messages if messages else None,
        "cpu_share_by_role": {role: used_s / cpu_s if cpu_s else 0.0 for role, used_s in roles.items()},
        "server_cores": cpu_s / measured.seconds,
        "client_cores": (measured.sent.cpu_s + measured.consumed.cpu_s) / measured.seconds,
        "device_bytes_per_message": (
            measured.device_bytes / messages if messages and measured.device_bytes is not None else None
        ),
        "load_average": os.getloadavg()[0],
        "failures": measured.sent.failures + measured.consumed.failures,
        "failure": measured.sent.failure or measured.consumed.failure,
    }


def _in_short(figure: Record) -> str:
    p99 = figure["send_ms"]["p99"]
    return (
        f"{figure['sent_per_s']:,.0f}/s sent, {figure['consumed_per_s']:,.0f}/s consumed, "
        f"p99 {p99 if p99 is None else round(p99)} ms, "
        f"{figure['cpu_s_per_million'] or 0:.0f} CPU s a million, "
        f"{figure['server_cores']:.2f} + {figure['client_cores']:.2f} cores, {figure['failures']} failures "
        f"{figure['failure'][:200]}"
    )


def main() -> None:
    """Measure what the command line asks for; write and publish the record."""
    usual = Options()
    parser = argparse.ArgumentParser(prog="bench cell", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clusters", type=lambda text: tuple(text.split(",")), default=tuple(CONTENDERS))
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="counted part of each load")
    parser.add_argument("--rounds", type=int, default=usual.rounds, help="how often each load is measured")
    parser.add_argument("--kills", type=int, default=usual.kills, help="of our leader")
    parser.add_argument("--peer-kills", type=int, default=usual.peer_kills, help="of each peer's leader")
    parser.add_argument("--directory", type=Path, help="where the clusters' data is (default: $TMPDIR)")
    parser.add_argument("--out", type=Path, default=RESULTS / "cell.json")
    parser.add_argument("--publish", action="store_true", help="make docs/benchmarks.md from the record")
    given = parser.parse_args()
    unknown = set(given.clusters) - set(CONTENDERS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(CONTENDERS)}")
    options = Options(
        given.clusters, given.seconds, given.rounds, given.kills, given.peer_kills, given.directory
    )
    record = run(options, lambda line: print(line, flush=True))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(cell_report.cell_tables(record), cell_report.cell_gaps(record), sep="\n\n")
    if given.publish:
        shutil.copy(given.out, report.FOLDER / "cell.json")
        report.main()
        print(f"published: {report.PAGE}")


if __name__ == "__main__":
    main()
