"""A few `LogReplica`s in one thread: a network that is told what to do, disks that forget what was not fsynced.

Everything happens when the test says so; `settle` carries everything out until nothing more happens.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from quaymaster.core.replication.effects import (
    PersistPromise,
    ReadLog,
    Truncate,
    Write,
)
from quaymaster.core.replication.log_tail import LOG_START, Position
from quaymaster.core.replication.messages import Envelope
from quaymaster.core.replication.replication import LogReplica
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.records import Batch, Record, RecordType, encode_batch

STEPS_MAX = 10_000


@dataclass
class Store:
    """One replica's disk: batches written, how many of them are durable, and the promise."""

    batches: list[Batch] = field(default_factory=list)
    durable: int = 0
    promised_epoch: int = 0
    truncations: int = 0
    start: Position = LOG_START
    gone_below: int = 0

    @property
    def end(self) -> int:
        """Where the log ends."""
        return self.batches[-1].next_offset if self.batches else self.start.end

    def truncate(self, end: int) -> None:
        """Cut the log."""
        self.batches = [batch for batch in self.batches if batch.next_offset <= end]
        self.durable = min(self.durable, len(self.batches))

    def positions(self) -> list[Position]:
        """Where the batches end."""
        return [Position(batch.next_offset, batch.epoch, batch.chain) for batch in self.batches]


class LogCluster:
    """Replicas by name, one configuration, messages that wait in `net` until they are delivered."""

    def __init__(self, *names: str) -> None:
        self.now_ms = 10_000
        self.stores = {name: Store() for name in names}
        self.replicas: dict[str, LogReplica] = {}
        self.net: deque[Envelope] = deque()
        self.configuration = JournalConfiguration(0, "", tuple(names), tuple(names), True)
        self.copies: list[str] = []
        self.cut: set[tuple[str, str]] = set()
        self.keeps_activation = False
        self.is_slow = False
        self.values = 0
        for name in names:
            self.start(name)

    # What happens to a replica

    def start(self, name: str) -> LogReplica:
        """Start a replica from its disk."""
        store = self.stores.setdefault(name, Store())
        replica = LogReplica(
            name,
            promised_epoch=store.promised_epoch,
            start=store.start,
            positions=store.positions(),
            now_ms=self.now_ms,
        )
        self.replicas[name] = replica
        return replica

    def crash(self, name: str, *, keep: int | None = None) -> None:
        """Stop a replica; of what was not fsynced `keep` batches stay."""
        store = self.stores[name]
        del self.replicas[name]
        store.batches = store.batches[: store.durable if keep is None else max(keep, store.durable)]
        store.durable = len(store.batches)
        store.truncations = 0

    def appoint(
        self, leader: str, *, members: tuple[str, ...] | None = None, epoch: int | None = None
    ) -> None:
        """Put the next epoch's configuration into coordination, and tell the leader."""
        known = self.configuration
        self.configuration = JournalConfiguration(
            epoch or known.epoch + 1,
            leader,
            members or known.members,
            known.members if known.activated else known.previous_members,
            False,
        )
        if leader in self.replicas:
            self.replicas[leader].on_configuration(self.configuration, self.now_ms)

    def learn(self, *names: str) -> None:
        """Let the leader feed learners."""
        self.configuration = msgspec.structs.replace(self.configuration, learners=names)
        self.leader.on_configuration(self.configuration, self.now_ms)

    @property
    def leader(self) -> LogReplica:
        """The replica that leads the newest epoch."""
        (found,) = [
            replica
            for replica in self.replicas.values()
            if replica.role == "leading" and replica.epoch == self.configuration.epoch
        ]
        return found

    def propose(self, replica: LogReplica, *, tell_received: bool = False, count: int = 1) -> int:
        """Append a batch as the leader would; return where it ends."""
        self.values += 1
        records = [
            Record(RecordType.SEND, 0, 1, 0, self.values, self.now_ms, 0, b"%d" % self.values)
            for _ in range(count)
        ]
        return self._append(replica, records, tell_received)

    def _append(self, replica: LogReplica, records: list[Record], tell_received: bool = False) -> int:
        batch = encode_batch(
            records,
            epoch=replica.epoch,
            base_offset=replica.end.end,
            time_ms=self.now_ms,
            floor=0,
            previous_chain=replica.end.chain,
        )
        replica.append(batch, tell_received=tell_received)
        return batch.next_offset

    # What carries on

    def carry_out(self, name: str) -> bool:
        """Do what a replica asks for; false when it asks for nothing."""
        replica, store = self.replicas[name], self.stores[name]
        if replica.wants_barrier:
            self._append(replica, [Record(RecordType.BARRIER, 0, 0, 0, 0, self.now_ms, 0, b"")])
        effects = replica.take()
        for operation in effects.operations:
            if isinstance(operation, Write):
                for batch in operation.batches:
                    assert batch.base_offset == store.end, "batches are written one behind the other"
                    store.batches.append(batch)
                replica.on_written(store.end, truncations=store.truncations)
                if not self.is_slow:
                    self.fsync(name)
            elif isinstance(operation, Truncate):
                store.truncate(operation.end)
                store.truncations += 1
            elif isinstance(operation, PersistPromise):
                self.fsync(name)
                store.promised_epoch = operation.epoch
                replica.on_promise_durable(operation.epoch)
        for read in effects.reads:
            self._read(replica, store, read)
        self.copies += effects.copies
        self.net.extend(effects.messages)
        if effects.activate is not None and not self.keeps_activation:
            self.activate(name, effects.activate)
        return bool(effects.operations or effects.messages or effects.reads or effects.activate is not None)

    def fsync(self, name: str) -> None:
        """Make what a replica wrote durable, and tell it."""
        store = self.stores[name]
        store.durable = len(store.batches)
        self.replicas[name].on_durable(store.end, truncations=store.truncations)

    def activate(self, name: str, epoch: int) -> None:
        """Mark the configuration as activated, as the leader's host does by compare-and-swap."""
        if self.configuration.epoch == epoch:
            self.configuration = msgspec.structs.replace(
                self.configuration, activated=True, previous_members=self.configuration.members
            )
            self.replicas[name].on_activated(epoch)
        else:
            self.replicas[name].on_configuration(self.configuration, self.now_ms)

    def _read(self, replica: LogReplica, store: Store, read: ReadLog) -> None:
        chains = {store.start.end: store.start.chain} | {p.end: p.chain for p in store.positions()}
        batches = [batch for batch in store.batches if batch.base_offset >= read.start][:3]
        replica.on_read(
            read.member,
            read.start,
            chains.get(read.start),
            batches,
            is_gone=read.start < store.gone_below,
            truncations=store.truncations,
        )

    def deliver(self) -> bool:
        """Deliver the oldest message; false when there is none."""
        if not self.net:
            return False
        envelope = self.net.popleft()
        if envelope.receiver in self.replicas and (envelope.sender, envelope.receiver) not in self.cut:
            self.replicas[envelope.receiver].on_message(envelope.sender, envelope.message, self.now_ms)
        return True

    def settle(self) -> None:
        """Carry out and deliver until nothing happens."""
        for _ in range(STEPS_MAX):
            busy = [self.carry_out(name) for name in list(self.replicas)]
            if not self.deliver() and not any(busy):
                return
        raise AssertionError("the replicas never come to rest")

    def pass_time(self, ms: int, *, step_ms: int = 50) -> None:
        """Let time pass, in steps, and everything settle in each."""
        for _ in range(0, ms, step_ms):
            self.now_ms += step_ms
            for replica in list(self.replicas.values()):
                replica.on_tick(self.now_ms)
            self.settle()

    def log_of(self, name: str) -> list[tuple[int, int]]:
        """Return epoch and chain of each batch a replica has."""
        return [(batch.epoch, batch.chain) for batch in self.stores[name].batches]
