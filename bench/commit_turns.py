"""The longest turn of a commit: CPU time of each slice, on the leader and where the journal is followed.

    python -m bench commit_turns [--messages 100000] [--kinds delays,fifo,duplicates,plain,log]

One member, no disk and no network: what is measured is the work on queues. `delays`: each message has one of 901
delays. `fifo`: each has a message group and a deduplication id of its own. `duplicates`: every other one is in the
transaction twice. `log`: a log with one consumer group, and delays.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from hashlib import blake2b

from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.replication.journal import JournalReplica
from quaymaster.core.replication.log_tail import LOG_START
from quaymaster.core.replication.replication import LogReplica
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.messages import NewMessage
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.commands.transactions import CommitTransaction, StageCount, StageMessages
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.messages import encode_message_head, join_payload
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition
from quaymaster.core.values.records import Batch, decode_header, iterate_rows

KINDS = ("delays", "fifo", "duplicates", "plain", "log")
STAGED_AT_ONCE = 1_000
QUEUE, GROUP = 1, 2


class Leader:
    """Leads a journal of its own; batches are durable at once."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.answers: list[object] = []
        self.now_ms = 1_000_000
        log = LogReplica("a", promised_epoch=0, start=LOG_START, positions=[], now_ms=0)
        self.replica = JournalReplica(
            log, QueueStates(MemoryChunks(), retry_window_ms=120_000), last_time_ms=0
        )
        self.replica.on_configuration(JournalConfiguration(1, "a", ("a",), (), False), 0)
        self.replica.take()
        self.replica.on_promise_durable(1)
        self.settle()

    def settle(self) -> None:
        while True:
            todo = self.replica.take(self.now_ms)
            self.batches += todo.batches
            self.answers += [answer for _, answer in todo.replies]
            if todo.batches:
                self.replica.on_durable(todo.batches[-1].next_offset)
            if todo.activate is not None:
                self.replica.on_activated(todo.activate)
            if not todo.batches and todo.activate is None:
                return

    def ask(self, command: Command) -> None:
        self.replica.propose(command, None, self.now_ms)
        self.settle()

    def commit(self, messages: int) -> list[float]:
        """Commit what is staged; return the CPU time of each turn, in ms."""
        counts = [StageCount("0", messages)]
        turns = [_ms_of(lambda: self.ask(CommitTransaction(QUEUE, 0, "sink", 1, counts)))]
        while self.replica.has_more:
            turns.append(_ms_of(self._do_slice))
        return turns

    def _do_slice(self) -> None:
        self.replica.do_slice(self.now_ms)
        self.settle()


def follow(batches: list[Batch]) -> list[float]:
    """Apply the records of batches; return the CPU time of each turn of the last one, in ms."""
    queues = QueueStates(MemoryChunks(), retry_window_ms=120_000)
    turns: list[float] = []
    for batch in batches:
        header = decode_header(batch.data)
        for row in iterate_rows(batch.data, header):
            payload = batch.data[row.position : row.position + row.length]
            turns = [_ms_of(lambda: queues.apply(row, payload, header.epoch))]  # noqa: B023
    while queues.unfinished:
        turns.append(_ms_of(lambda: next(iter(queues.unfinished.works.values())).step()))
        for family, work in list(queues.unfinished.works.items()):
            if work.is_done:
                del queues.unfinished.works[family]
    return turns


def measure(kind: str, messages: int) -> tuple[list[float], list[float]]:
    """Return the turns of a leader and of a follower, in ms."""
    leader = Leader()
    name = "queue.fifo" if kind in ("fifo", "duplicates") else "queue"
    attributes = {"FifoQueue": "true"} if kind in ("fifo", "duplicates") else {}
    if kind == "log":
        attributes = {"RetentionMode": "Log"}
    leader.ask(SetQueue(definition_of(QUEUE, name, attributes)))
    if kind == "log":
        leader.ask(SetQueue(definition_of(GROUP, "queue@group", {}, group_of=QUEUE)))
    for first in range(0, messages, STAGED_AT_ONCE):
        some = [_message(kind, number) for number in range(first, min(messages, first + STAGED_AT_ONCE))]
        leader.ask(StageMessages(QUEUE, 0, "sink", 1, "0", first, some))
    gc.collect()
    gc.freeze()
    return leader.commit(messages), follow(leader.batches)


def main() -> None:
    assert __doc__ is not None, "this module says how it is used"
    parser = argparse.ArgumentParser(
        prog="python -m bench commit_turns",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--kinds", default=",".join(KINDS))
    given = parser.parse_args()
    print(f"{'':<12} {'leader':>22}   {'follower':>22}")
    print(f"{'kind':<12} {'longest':>7} {'turns':>6} {'all':>7}   {'longest':>7} {'turns':>6} {'all':>7}")
    for kind in given.kinds.split(","):
        cells = [
            f"{max(turns):>7.1f} {len(turns):>6} {sum(turns):>7.0f}"
            for turns in measure(kind, given.messages)
        ]
        print(f"{kind:<12} {cells[0]}   {cells[1]}", flush=True)


def _ms_of(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return (time.process_time() - begun) * 1000


def _hash(number: int) -> bytes:
    return blake2b(number.to_bytes(8, "little"), digest_size=16).digest()


def _message(kind: str, number: int) -> NewMessage:
    group, dedup, delay_ms = 0, None, -1
    if kind in ("fifo", "duplicates"):
        group = int.from_bytes(_hash(number + 10**9)[:8], "little")
        dedup = _hash(number // 2 if kind == "duplicates" else number)
    elif kind in ("delays", "log"):
        delay_ms = number * 7_919 % 901 * 1_000
    message_id = number.to_bytes(16, "big")
    body = encode_message_head(message_id, 1, b"startid8", 1, number) + b"opaque"
    flags, payload = join_payload(group, dedup, None, body)
    return NewMessage(message_id, payload, flags, group=group, dedup=dedup, delay_ms=delay_ms)


def definition_of(
    queue_id: int, name: str, attributes: dict[str, str], *, group_of: int = 0
) -> QueueDefinition:
    """Return a queue with one partition."""
    return QueueDefinition(
        queue_id=queue_id,
        account_id="000000000000",
        name=name,
        state="active",
        revision=1,
        created_ms=0,
        modified_ms=0,
        attributes=attributes,
        tags={},
        data_key_id=1,
        partitions=one_partition(0),
        group_of=group_of,
    )
