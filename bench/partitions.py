"""Queues that are split, merged and moved under a steady load, and one with equal partitions whose broker is killed.

    python -m bench partitions [--messages 200000] [--rate 1000] [--batch 10] [--seconds 10] [--kinds standard,fifo]
                               [--rounds 1] [--kills 3] [--silences 2] [--closing-seconds 15]

    changes   a queue with so many messages on a cell (etcd, three brokers, manager, metadata node, front end), sends at
              a steady rate from a process of its own (open loop, none is tried again):

                  seconds ──▶ command ──▶ open ──▶ sealed ──▶ seconds, parents closing ──▶ all closed ──▶ next
                  "before"    └──── "during", and 1 s more ───┘ "after"

    kills     a queue with ReplicationMode=Peers and a plain one under sends at once, one message each; the broker that
              leads the journal of the plain queue and of a partition of the other is killed (SIGKILL: its connections
              end), or falls silent (SIGSTOP: nothing ends, nothing is answered; it is killed afterwards)

All is real: processes, journals with fsync, signed requests over loopback. One thing is shortened: parents are asked
for ids for `--closing-seconds` and not for five minutes, or a merge would have to wait so long for the split before it.
Cell and load share the cores of one machine: figures are to be compared with those before the change, in the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import load, machine, servers
from bench.clusters import Cell
from bench.load import NS_PER_S, Load
from bench.markdown import number, table
from bench.steady import Seen, Stream, seen
from bench.work import BATCH, Fields, Send, no_fields
from quaymaster.cli.shared.client import AdminClient
from quaymaster.cli.shared.connection import read_client_file

RESULTS = servers.ROOT / "bench" / "results"
BODY_BYTES = 256
INTO = 4
LEAD_S = 2.0
"""A load runs for so long before anything counts."""
SETTLED_S = 1.0
"""Counted as "during" after the seal: until then front ends learn of it."""
LOOK_S = 0.05
FILL_CONNECTIONS = 32
ROUND_NUMBERS = 1 << 40
"""Each load's messages have numbers of their own, so that none is a duplicate."""
BEFORE_KILL_S = 4.0
AFTER_KILL_S = 6.0
CHANGES = {"split": "SplitQueue", "merge": "MergeQueue", "move": "MoveQueue"}
BY_GROUP = {
    "FifoQueue": "true",
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}

PAUSE_MS = 50.0
OPEN_S = 2.0
CLOSING_MS = 2.0
LEADER_SHARE = 0.25
PEERS_MS = 1_000.0

Tell = Callable[[str], None]
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured. `rate` is messages a second; that of killed brokers a tenth of it, for each of both queues."""

    messages: int = 200_000
    rate: float = 1_000.0
    batch: int = BATCH
    seconds: float = 10.0
    closing_s: int = 15
    kinds: tuple[str, ...] = ("standard", "fifo")
    groups: int = 1_000
    rounds: int = 1
    kills: int = 3
    silences: int = 2
    directory: Path | None = None


def run(options: Options, tell: Tell) -> Record:
    """Measure changes, then kills, each on a cell of its own; return the record."""
    record: Record = {
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine.describe(),
        "options": {name: value for name, value in asdict(options).items() if name != "directory"},
        "body_bytes": BODY_BYTES,
        "changes": [],
        "kills": [],
    }
    settings = {"partition_closing_s": options.closing_s}
    with tempfile.TemporaryDirectory(prefix="quaymaster-bench-", dir=options.directory) as folder:
        if options.kinds and options.rounds:
            with Cell(Path(folder) / "changes", settings=settings) as cell:
                for kind in options.kinds:
                    record["changes"] += _Changed(cell, kind, options, tell).measure()
        if options.kills or options.silences:
            with Cell(Path(folder) / "kills") as cell:
                record["kills"] += measure_kills(cell, options, tell)
    record["goals"] = goals_of(record)
    return record


# Changes


class _Changed:
    """A queue that is changed under load."""

    def __init__(self, cell: Cell, kind: str, options: Options, tell: Tell) -> None:
        self._cell = cell
        self._kind = kind
        self._options = options
        self._tell = tell
        is_fifo = kind == "fifo"
        self._name = f"changed-{kind}" + (".fifo" if is_fifo else "")
        self._fields: Fields = _in_groups(options.groups) if is_fifo else no_fields
        self._url = cell.create_queue(self._name, **(BY_GROUP if is_fifo else {}))
        self._admin = AdminClient(read_client_file(cell.folder / "frontend-1"))

    def measure(self) -> list[Record]:
        """Fill the queue, and change it again and again."""
        with self._admin:
            self._fill()
            found: list[Record] = []
            for round_number in range(self._options.rounds):
                for change in CHANGES:
                    # A queue is changed again once none of its partitions is new or closing.
                    self._cell.wait_until(self._is_at_rest, f"{self._name} is at rest")
                    found.append({"round": round_number, **self._under_load(change, len(found) + 1)})
                    self._tell(_in_short(found[-1]))
            return found

    def _fill(self) -> None:
        messages, began_s = self._options.messages, time.monotonic()
        plan = Load(self._cell.endpoint, FILL_CONNECTIONS, 3_600.0, requests_max=-(-messages // BATCH))
        filled = load.run(
            plan,
            lambda *_: Send(
                self._cell.endpoint, self._url, body_bytes=BODY_BYTES, batch=BATCH, fields=self._fields
            ),
        )
        assert not filled.failures, f"filling {self._name} failed: {filled.failure}"
        self._tell(f"{self._name}: {messages:,} messages in {time.monotonic() - began_s:.0f} s")

    def _under_load(self, change: str, load_number: int) -> Record:
        """Change the queue while messages are sent, and return the figures."""
        options, cell = self._options, self._cell
        fields = {"into": INTO} if change == "split" else {}
        parents = [row for row in self._partitions() if row["state"] == "open"]
        leader = cell.leader_of(parents[0]["journal"])
        stream = Stream(
            cell.endpoint,
            self._url,
            messages_per_s=options.rate,
            batch=options.batch,
            body_bytes=BODY_BYTES,
            fields=self._fields,
            first_number=load_number * ROUND_NUMBERS,
        )
        marks, cpu = [], []

        def mark() -> None:
            marks.append(time.monotonic_ns())
            cpu.append(cell.used_cpu_s())

        with stream:
            time.sleep(LEAD_S)
            mark()
            time.sleep(options.seconds)
            mark()
            began = self._admin.call(CHANGES[change], name=self._name, **fields)
            open_s, sealed_s = self._wait(began["parents"], began["children"], marks[1])
            time.sleep(SETTLED_S)
            mark()
            time.sleep(options.seconds)
            mark()
            rows = self._partitions()
            load_average = os.getloadavg()[0]
            stopped = stream.stop()
        spans = {
            name: seen(stopped.requests, marks[at], marks[at + 1], options.batch)
            for at, name in enumerate(("before", "during", "after"))
        }
        shares = [
            {
                name: (cpu[at + 1][name] - cpu[at][name]) / (marks[at + 1] - marks[at]) * NS_PER_S
                for name in cpu[at]
            }
            for at in (0, 2)
        ]
        children = [row for row in rows if row["number"] in began["children"]]
        leaders = {cell.leader_of(row["journal"]) for row in (*parents, *children)}
        return {
            "kind": self._kind,
            "change": change,
            "depth": sum(row["messages"] or 0 for row in rows),
            **{name: asdict(span) for name, span in spans.items()},
            "open_s": open_s,
            "sealed_s": sealed_s,
            "are_closing": all(
                row["state"] == "closing" for row in rows if row["number"] in began["parents"]
            ),
            "journals": [[row["journal"] for row in parents], [row["journal"] for row in children]],
            "leader": leader,
            "leader_cores": [share[leader] for share in shares] if leader and len(parents) == 1 else None,
            "follower_cores": _follower_cores(shares, leaders) if len(parents) == 1 else None,
            "server_cores": [sum(share.values()) for share in shares],
            "late": stopped.late,
            "driver_share": stopped.driver_share,
            "failure": stopped.failure,
            "load_average": load_average,
        }

    def _wait(self, parents: Sequence[int], children: Sequence[int], began_ns: int) -> tuple[float, float]:
        """Return after how many seconds the new partitions were open, and the old ones sealed."""
        open_s: list[float] = []

        def is_sealed() -> bool:
            rows = {row["number"]: row for row in self._partitions()}
            assert all(child in rows for child in children), "the change was given up"
            if not open_s and all(rows[child]["state"] != "new" for child in children):
                open_s.append((time.monotonic_ns() - began_ns) / NS_PER_S)
            return bool(open_s) and all(
                parent not in rows or rows[parent]["sealed_for_ms"] is not None for parent in parents
            )

        self._cell.wait_until(is_sealed, f"{self._name} is changed", interval_s=LOOK_S)
        return open_s[0], (time.monotonic_ns() - began_ns) / NS_PER_S

    def _is_at_rest(self) -> bool:
        return all(row["state"] not in ("new", "closing") for row in self._partitions())

    def _partitions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._admin.call("ListPartitions", name=self._name)["partitions"]
        return found


def _in_groups(groups: int) -> Fields:
    """Return what is said about a FIFO message: groups in turn, an id of its own."""

    def fields(number: int) -> bytes:
        return b',"MessageGroupId":"group-%d","MessageDeduplicationId":"%d"' % (number % groups, number)

    return fields


def _follower_cores(shares: Sequence[Mapping[str, float]], leaders: set[str | None]) -> list[float] | None:
    """Return the CPU of a broker that only followed, before and after; None when all brokers led."""
    followers = [name for name in shares[0] if name.startswith("broker-") and name not in leaders]
    return [share[followers[0]] for share in shares] if followers else None


# Kills


def measure_kills(cell: Cell, options: Options, tell: Tell) -> list[Record]:
    """Kill brokers under sends to a queue with equal partitions and to a plain one; return what both saw."""
    names = {"peers": "equal", "plain": "plain"}
    urls = {
        "peers": cell.create_queue(names["peers"], ReplicationMode="Peers"),
        "plain": cell.create_queue(names["plain"]),
    }
    found: list[Record] = []
    for how in ["killed"] * options.kills + ["silent"] * options.silences:
        cell.wait_until(lambda: _is_spread(cell), "each broker leads a journal")
        with AdminClient(read_client_file(cell.folder / "frontend-1")) as admin:
            journals = {
                queue: [row["journal"] for row in admin.call("ListPartitions", name=name)["partitions"]]
                for queue, name in names.items()
            }
        with contextlib.ExitStack() as stack:
            streams = {
                queue: stack.enter_context(
                    Stream(
                        cell.endpoint, url, messages_per_s=options.rate / 10, batch=1, body_bytes=BODY_BYTES
                    )
                )
                for queue, url in urls.items()
            }
            time.sleep(LEAD_S)
            began_ns = time.monotonic_ns()
            time.sleep(BEFORE_KILL_S)
            victim = cell.leader_of(journals["plain"][0])
            assert victim is not None, "a queue that takes messages has a leader"
            led = [journal for journal in journals["peers"] if cell.leader_of(journal) == victim]
            killed_ns = time.monotonic_ns()
            if how == "killed":
                cell.kill(victim)
            else:
                cell.pause(victim)
            time.sleep(AFTER_KILL_S)
            ended_ns = time.monotonic_ns()
            load_average = os.getloadavg()[0]
            stopped = {queue: stream.stop() for queue, stream in streams.items()}
        # A request that was under way at the kill was due shortly before it.
        around_ns = killed_ns - NS_PER_S
        found.append(
            {
                "how": how,
                "victim": victim,
                "journals": journals,
                "led_of_peers": led,
                "load_average": load_average,
                **{
                    queue: {
                        "before": asdict(seen(all_of.requests, began_ns, around_ns, 1)),
                        "around": asdict(seen(all_of.requests, around_ns, ended_ns, 1)),
                        "failure": all_of.failure,
                    }
                    for queue, all_of in stopped.items()
                },
            }
        )
        tell(
            f"{victim} {how}: "
            + "; ".join(
                f"{queue}: {found[-1][queue]['around']['failed']} failed, longest "
                f"{found[-1][queue]['around']['longest_ms']:.0f} ms (before: "
                f"{found[-1][queue]['before']['longest_ms']:.0f})"
                for queue in urls
            )
        )
        if how == "silent":
            cell.kill(victim)
        cell.launch(victim)
    return found


def _is_spread(cell: Cell) -> bool:
    """Tell whether all replicas are there and each broker leads a journal."""
    brokers = [name for name, node in cell.nodes.items() if node.role == "broker"]
    return cell.is_whole() and all(cell.sample(name, "quaymaster_journal_leading") for name in brokers)


# What came of it


def goals_of(record: Record) -> list[Record]:
    """Return each goal with what was found: the worst of all changes and kills."""
    changes = record["changes"]
    kills = [kill for kill in record["kills"] if kill["how"] == "killed"]
    goals: list[Record] = []

    def add(name: str, goal: float, found: Sequence[float]) -> None:
        if found:
            goals.append({"name": name, "goal": goal, "found": max(found), "met": max(found) <= goal})

    spans = [change[name] for change in changes for name in ("before", "during", "after")]
    add("failed sends under changes", 0, [span["failed"] for span in spans])
    add("p99 of a send during a change, ms", PAUSE_MS, [change["during"]["p99_ms"] for change in changes])
    add("longest send during a change, ms", PAUSE_MS, [change["during"]["longest_ms"] for change in changes])
    add("open after, s", OPEN_S, [change["open_s"] for change in changes])
    # After a split a batch is several commands, closing or not: only a move leaves as many partitions as there were.
    add(
        "FIFO send while closing: p50 more than before a move, ms",
        CLOSING_MS,
        [
            change["after"]["p50_ms"] - change["before"]["p50_ms"]
            for change in changes
            if (change["kind"], change["change"]) == ("fifo", "move")
        ],
    )
    add(
        "CPU of the old leader after a move, of that before",
        LEADER_SHARE,
        [change["leader_cores"][1] / change["leader_cores"][0] for change in changes if _is_move(change)],
    )
    add(
        "the same without what a follower uses",
        LEADER_SHARE,
        [share for change in changes if _is_move(change) and (share := net_share(change)) is not None],
    )
    add("Peers: failed sends around kills", 0, [kill["peers"]["around"]["failed"] for kill in kills])
    add("Peers: longest send, ms", PEERS_MS, [kill["peers"]["around"]["longest_ms"] for kill in kills])
    return goals


def _is_move(change: Record) -> bool:
    return change["change"] == "move" and bool(change["leader_cores"]) and change["leader_cores"][0] > 0


def net_share(change: Record) -> float | None:
    """Return which part of its CPU the parent's leader still uses, apart from what each follower uses as well.

    None when no broker followed only.
    """
    if not change["leader_cores"] or not change["follower_cores"]:
        return None
    before, after = (
        leader - follower
        for leader, follower in zip(change["leader_cores"], change["follower_cores"], strict=True)
    )
    return max(0.0, after / before) if before > 0 else None


def tables_of(record: Record) -> str:
    """Return the record as Markdown."""
    about, options = record["machine"], record["options"]
    head = (
        f"{record['made']}: {about['processor']}, {about['cores']} cores, {about['memory_gib']} GiB, "
        f"{about['system']}, CPython {about['python']}; {options['messages']:,} messages of {record['body_bytes']} "
        f"bytes, then {options['rate']:,.0f} a second in batches of {options['batch']}."
    )
    parts = [head]
    if record["changes"]:
        parts.append(_changes_table(record["changes"]))
    if record["kills"]:
        parts.append(_kills_table(record["kills"]))
    rows = [
        [one["name"], number(one["goal"]), number(one["found"]), "yes" if one["met"] else "**no**"]
        for one in record["goals"]
    ]
    parts.append(table(["Goal", "at most", "worst found", "met"], rows))
    return "\n\n".join(parts)


def _changes_table(changes: Sequence[Record]) -> str:
    rows = []
    for change in changes:
        spans = [change[name] for name in ("before", "during", "after")]
        cores = change["leader_cores"]
        net = net_share(change)
        rows.append(
            [
                f"{change['kind']}: {change['change']}",
                _arrows(span["requests"] for span in spans),
                str(sum(span["failed"] for span in spans)),
                _arrows(span["p50_ms"] for span in spans),
                _arrows(span["p99_ms"] for span in spans),
                _arrows(span["longest_ms"] for span in spans),
                f"{_ratio(spans[1]['p99_ms'], spans[0]['p99_ms'])}, {_ratio(spans[2]['p50_ms'], spans[0]['p50_ms'])}",
                f"{change['open_s']:.2f}, {change['sealed_s']:.2f}",
                "-" if cores is None else f"{cores[1] / cores[0]:.2f}" if cores[0] else "-",
                "-" if net is None else f"{net:.2f}",
                f"{change['load_average']:.1f}",
            ]
        )
    head = [
        *("Change", "requests before, during, after", "failed", "p50 ms", "p99 ms", "longest ms"),
        *("p99 during ÷ before, p50 after ÷ before", "open, sealed after s"),
        *("old leader's CPU ÷ before", "the same without following", "load average"),
    ]
    return table(head, rows)


def _kills_table(kills: Sequence[Record]) -> str:
    rows = []
    for how, (label, queue) in itertools.product(
        ("killed", "silent"), (("equal partitions", "peers"), ("one partition", "plain"))
    ):
        sides = [kill[queue] for kill in kills if kill["how"] == how]
        if not sides:
            continue
        longest = [side["around"]["longest_ms"] for side in sides]
        rows.append(
            [
                f"broker {how}: {label}",
                str(len(sides)),
                str(sum(side["around"]["requests"] for side in sides)),
                str(sum(side["around"]["failed"] for side in sides)),
                f"{number(statistics.median(longest))}, {number(max(longest))}",
                number(max(side["before"]["longest_ms"] for side in sides)),
                number(max(side["around"]["silence_ms"] for side in sides)),
                f"{max(kill['load_average'] for kill in kills if kill['how'] == how):.1f}",
            ]
        )
    head = [
        *("Queue", "times", "sends from 1 s before to 6 s after", "failed", "longest ms: median, most"),
        *("longest before, ms", "longest without any answer, ms", "load average"),
    ]
    return table(head, rows)


def _arrows(values: Any) -> str:
    return ", ".join(number(value) for value in values)


def _ratio(value: float, to: float) -> str:
    return f"{value / to:.2f}" if to else "-"


def _in_short(change: Record) -> str:
    spans: list[Seen] = [Seen(**change[name]) for name in ("before", "during", "after")]
    return (
        f"{change['kind']} {change['change']}: failed {sum(span.failed for span in spans)}, p50 "
        f"{_arrows(span.p50_ms for span in spans)} ms, p99 {_arrows(span.p99_ms for span in spans)} ms, longest "
        f"{_arrows(span.longest_ms for span in spans)} ms, open after {change['open_s']:.2f} s, sealed after "
        f"{change['sealed_s']:.2f} s, load {change['load_average']:.1f} {change['failure'][:300]}"
    )


def main() -> None:
    """Measure what the command line asks for, and write the record."""
    usual = Options()
    parser = argparse.ArgumentParser(prog="bench partitions", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--messages", type=int, default=usual.messages, help="in each queue, up to 10 million"
    )
    parser.add_argument("--rate", type=float, default=usual.rate, help="messages sent a second")
    parser.add_argument("--batch", type=int, default=usual.batch, help="messages of a request: 1 to 10")
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="counted before and after")
    parser.add_argument("--closing-seconds", type=int, default=usual.closing_s)
    parser.add_argument("--kinds", type=lambda text: tuple(text.split(",")), default=usual.kinds)
    parser.add_argument("--groups", type=int, default=usual.groups, help="of the FIFO queue")
    parser.add_argument("--rounds", type=int, default=usual.rounds, help="of all changes; 0: none")
    parser.add_argument("--kills", type=int, default=usual.kills, help="of brokers; 0: none")
    parser.add_argument("--silences", type=int, default=usual.silences, help="of brokers; 0: none")
    parser.add_argument("--directory", type=Path, help="where the cells' data is (default: $TMPDIR)")
    parser.add_argument("--out", type=Path, default=RESULTS / "partitions.json")
    given = parser.parse_args()
    if given.closing_seconds < given.seconds + SETTLED_S:
        parser.error("parents must be closing for as long as is counted after a change")
    options = Options(
        messages=given.messages,
        rate=given.rate,
        batch=given.batch,
        seconds=given.seconds,
        closing_s=given.closing_seconds,
        kinds=given.kinds,
        groups=given.groups,
        rounds=given.rounds,
        kills=given.kills,
        silences=given.silences,
        directory=given.directory,
    )
    record = run(options, lambda line: print(line, flush=True))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(tables_of(record))


if __name__ == "__main__":
    main()
