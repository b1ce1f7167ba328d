"""Claims: rows per second and CPU time of a batch that is claimed, read and settled, and the longest turn of each step.

    python -m bench claims [--messages 50000] [--batch 10000] [--rounds 3]

First the work on queues alone, without disk or network: CPU time of the longest turn of claiming, of holding again what
has lapsed, and of settling one claim of 50,000 messages. Everything else on a journal waits for such a turn. Then a
server of its own: a plain queue is consumed in batches as Spark's source does (bodies of 1 KiB, all columns, into Arrow
record batches). CPU is that of server and reader together, without the sends.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import servers
from bench.commit_turns import Leader, definition_of
from bench.log_reads import Connection, cpu_s
from bench.requests import Endpoint
from quaymaster.core.structures.orders.claims import MESSAGES_MAX
from quaymaster.core.values.commands.claims import Claim, ClaimOutcome, Settle
from quaymaster.core.values.commands.decided import ClaimedOutcome
from quaymaster.core.values.commands.messages import CountMessages, NewMessage, Send
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.messages import encode_message_head, join_payload
from quaymaster.protocol.logs.log_arrow import to_record_batch
from quaymaster.protocol.logs.log_columns import parse_block

BODY = json.dumps({"text": "x" * 1_000})
SENT_AT_ONCE = 10
CLAIMED_AT_ONCE = 1_000
HELD_MS = 300_000


def fill(endpoint: Endpoint, url: str, messages: int) -> None:
    """Send so many messages."""
    connection = Connection(endpoint)
    for _ in range(messages // SENT_AT_ONCE):
        entries = [{"Id": str(number), "MessageBody": BODY} for number in range(SENT_AT_ONCE)]
        connection.call("AmazonSQS.SendMessageBatch", {"QueueUrl": url, "Entries": entries})
    connection.close()


def consume(endpoint: Endpoint, url: str, batch: int, spent: dict[str, float], pid: int) -> int:
    """Claim, read and settle until the queue is empty; add the CPU time of each step. Return how many rows came."""
    connection = Connection(endpoint)
    of_all = {"QueueUrl": url, "Partition": 0, "Consumer": "bench"}
    rows = claim_id = 0

    def timed(step: str, action: str, **fields: Any) -> tuple[Any, bytes]:
        before = cpu_s(pid) + time.process_time()
        answer = connection.call(f"Quaymaster.{action}", {**of_all, **fields})
        spent[step] = spent.get(step, 0.0) + cpu_s(pid) + time.process_time() - before
        return answer

    while True:
        claim_id += 1
        owned = {"Owner": "bench", "ClaimId": claim_id}
        known = 0
        while known < batch:
            wanted = {"MaxNumberOfMessages": min(CLAIMED_AT_ONCE, batch - known), "Known": known}
            answer = json.loads(timed("claim", "ClaimMessages", **owned, **wanted)[1])
            known = answer["Count"]
            if not answer["Claimed"]:
                break
        if not known:
            connection.close()
            return rows
        place = 0
        while place < known:
            headers, body = timed("read", "ReadClaim", ClaimId=claim_id, From=place, To=known)
            before = time.process_time()
            rows += to_record_batch(parse_block(body)).num_rows
            spent["read"] += time.process_time() - before
            place = int(headers["x-quaymaster-next-offset"])
        timed("settle", "SettleClaims", **owned)


def measure_server(messages: int, batch: int, rounds: int) -> None:
    """Print what a row costs a server and its reader, in the best of the rounds."""
    best: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="quaymaster-bench-", ignore_cleanup_errors=True) as name,
        servers.Running(servers.SERVERS["quaymaster"], Path(name) / "server") as server,
    ):
        for number in range(rounds):
            url = server.create_queue(f"orders-{number}")
            fill(server.endpoint, url, messages)
            spent: dict[str, float] = {}
            began_s = time.monotonic()
            rows = consume(server.endpoint, url, batch, spent, server.pid)
            took_s = time.monotonic() - began_s
            found = {step: cpu / rows for step, cpu in spent.items()}
            found |= {"all": sum(found.values()), "took": took_s / rows}
            best = {step: min(cost, best.get(step, cost)) for step, cost in found.items()}
    print(f"{1 / best['took']:11,.0f} rows/s, {1 / best['all']:,.0f} a second of CPU", flush=True)
    for step in ("claim", "read", "settle", "all"):
        print(f"{step:8s} {best[step] * 1e6:6.2f} us CPU a row", flush=True)


class Claiming(Leader):
    """Leads a journal, and tells how long each turn of a command took, in CPU time."""

    def timed(self, command: Command) -> tuple[object, list[float]]:
        """Return the answer to a command, and its turns in seconds."""
        self.answers.clear()
        turns = [self._time(lambda: self.ask(command))]
        while self.replica.has_more:
            turns.append(self._time(lambda: self.replica.do_slice(self.now_ms)))
            self.settle()
        return self.answers[-1], turns

    def is_behind(self) -> bool:
        """Whether messages of a claim are still to come back."""
        return self.replica.queues.partition(1, 0).is_behind(self.now_ms)

    @staticmethod
    def _time(work: Callable[[], object]) -> float:
        began_s = time.process_time()
        work()
        return time.process_time() - began_s


def message_of(number: int, *, group: int) -> NewMessage:
    """Return a small message, in a group if there is one."""
    message_id = number.to_bytes(16, "big")
    body = encode_message_head(message_id, 1, b"startid8", 1, number) + b"opaque"
    flags, payload = join_payload(group, None, None, body)
    return NewMessage(message_id, payload, flags, -1, group)


def measure_turns(*, is_fifo: bool) -> None:
    """Print the longest turn of each step of one claim of as many messages as there may be, or as it gets."""
    leader = Claiming()
    fifo = {"FifoQueue": "true"} if is_fifo else {}
    leader.ask(SetQueue(definition_of(1, "queue.fifo" if is_fifo else "queue", fifo)))
    for first in range(0, MESSAGES_MAX, SENT_AT_ONCE):
        numbers = range(first, first + SENT_AT_ONCE)
        leader.ask(Send(1, 0, [message_of(number, group=number + 1 if is_fifo else 0) for number in numbers]))
    gc.collect()
    gc.freeze()
    known, longest_s, total_s = 0, 0.0, 0.0
    while True:
        answer, turns = leader.timed(Claim(1, 0, "bench", "a", 1, CLAIMED_AT_ONCE, known, HELD_MS))
        longest_s, total_s = max(longest_s, *turns), total_s + sum(turns)
        assert isinstance(answer, ClaimedOutcome | ClaimOutcome), "a Claim is answered by its outcome"
        claimed = answer.outcome if isinstance(answer, ClaimedOutcome) else answer
        if claimed.count == known:
            break
        known = claimed.count
    kind = "fifo" if is_fifo else "standard"
    show = _shower(kind, known)
    show("claimed", longest_s, total_s)
    leader.now_ms += HELD_MS + 100
    turns = []
    while leader.is_behind():
        turns += leader.timed(CountMessages(1))[1]
        leader.now_ms += 1
    show("lapsed", max(turns), sum(turns))
    hold: Command = Claim(1, 0, "bench", "a", 1, 0, 0, HELD_MS)
    for what, command in (
        ("held again", hold),
        ("held on", hold),
        ("settled", Settle(1, 0, "bench", "a", 1)),
    ):
        turns = leader.timed(command)[1]
        show(what, max(turns), sum(turns))


def _shower(kind: str, rows: int) -> Callable[[str, float, float], None]:
    def show(what: str, longest_s: float, total_s: float) -> None:
        print(
            f"{kind:9s} {rows:6d} {what:11s} longest turn {longest_s * 1e3:6.2f} ms, "
            f"{total_s * 1e6 / rows:5.2f} us a message",
            flush=True,
        )

    return show


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench claims", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    measure_turns(is_fifo=False)
    measure_turns(is_fifo=True)
    measure_server(arguments.messages, arguments.batch, arguments.rounds)


if __name__ == "__main__":
    main()
