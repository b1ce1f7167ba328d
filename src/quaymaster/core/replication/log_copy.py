"""One replica's copy of a log: what of it is written, durable, compared and committed, and what its host is to do."""

from __future__ import annotations

from collections.abc import Iterable

from quaymaster.core.replication.effects import Effects, PersistPromise, Truncate, Write
from quaymaster.core.replication.log_tail import LogTail, Position
from quaymaster.core.replication.messages import Envelope, Message, Promise
from quaymaster.core.replication.queue_time import QueueTime
from quaymaster.core.structures.shared_bytes import SharedBytes
from quaymaster.core.values.records import Batch, follows_chain


class LogCopy:
    """A copy of a log, and the promises of its replica. `node` is the replica's member name."""

    def __init__(
        self,
        node: str,
        *,
        promised_epoch: int,
        start: Position,
        positions: Iterable[Position],
        now_ms: int,
        tail_memory: SharedBytes,
        time: QueueTime | None,
    ) -> None:
        self.node = node
        self.promised_epoch = promised_epoch
        self.tail = LogTail(start, positions, memory=tail_memory)
        self.commit = start.end
        self.durable_end = self.tail.end.end
        self.written_end = self.durable_end
        self.verified_end = 0
        """Up to where the log was compared with that of the epoch's leader."""
        self.accepted: list[Batch] = []
        """Batches taken from a leader since the owner last emptied this."""
        self.truncations = 0
        """How many Truncates were asked for."""
        self.truncated_to: int | None = None
        """Where the log was cut since the owner last reset this."""
        self.time = time or QueueTime(0, now_ms)
        self._now_ms = now_ms
        self._effects = Effects([], [], [], None, [])
        """For the host, since it last took them."""

    @property
    def end(self) -> Position:
        """Where the log ends, written or about to be."""
        return self.tail.end

    def say(self, member: str, message: Message) -> None:
        """Have the host send a message to another replica."""
        self._effects.messages.append(Envelope(self.node, member, message))

    def promise(self, epoch: int) -> Promise:
        """Return what a promise of this replica says, as of now."""
        now_ms = self._now_ms
        return Promise(
            epoch, self.end.epoch, self.end.end, self.time.told_ms(now_ms), self.time.wall_at(now_ms)
        )

    def persist_promise(self, epoch: int) -> None:
        """Have the host make durable the log as it is now, then a promise."""
        self._effects.operations.append(PersistPromise(epoch))

    def write(self, batch: Batch, *, tell_written: bool) -> None:
        """Put a leader's own batch at the log's end."""
        self.tail.append(batch)
        operations = self._effects.operations
        last = operations[-1] if operations else None
        if isinstance(last, Write):
            last.batches.append(batch)
            if tell_written and not last.tell_written:
                operations[-1] = Write(last.batches, True)
        else:
            operations.append(Write([batch], tell_written))

    def take_in(self, batches: list[Batch]) -> int:
        """Compare batches with the log, cut it at the first that differs, append the rest; return where they end."""
        end = 0
        new: list[Batch] = []
        for batch in batches:
            end = batch.next_offset
            if end <= self.commit:
                continue
            if not new and batch.base_offset < self.end.end:
                position = self.tail.position_at(end)
                if position is not None and position.chain == batch.chain:
                    continue
                self._truncate(batch.base_offset)
            self.tail.append(batch)
            new.append(batch)
        if new:
            self._effects.operations.append(Write(new))
            self.accepted += new
        return end

    def continues(self, start: int, batch: Batch) -> bool:
        """Tell whether a fetched batch continues the chain of the own log; who gave it knew only from where."""
        position = self.tail.position_at(start)
        assert position is not None, "a tail is fetched from where a batch ends"
        return follows_chain(batch, position.chain)

    def _truncate(self, end: int) -> None:
        assert end >= self.commit, f"the log would be cut to {end}, below its commit index {self.commit}"
        assert end >= self.verified_end, (
            f"the log would be cut to {end}, below {self.verified_end}, acknowledged"
        )
        self.tail.truncate(end)
        self.truncations += 1
        self._effects.operations.append(Truncate(end))
        self.durable_end = min(self.durable_end, end)
        self.written_end = min(self.written_end, end)
        self.accepted = [batch for batch in self.accepted if batch.next_offset <= end]
        self.truncated_to = end if self.truncated_to is None else min(self.truncated_to, end)
