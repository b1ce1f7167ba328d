"""What transactions have brought to a partition: messages that are not seen before their transaction commits.

    STAGE_BEGIN ──▶ STAGE, STAGE, …   in the journal, each at its place: stage number << 24 | index in the stage
         │
         ├── TRANSACTION_COMMIT: those of the stages it names get the next sequence numbers, all at once
         └── TRANSACTION_ABORT (asked for, or nothing came for `EXPIRES_MS`): they are gone

A transaction is (sink, batch). A sink commits its batches in order, so the last one committed says of every batch
whether it is new, however often somebody asks. A stage is one writer's part of a transaction, under a name of the
writer's choice: a commit says which stages count, and what a writer that failed left behind goes with the others.

Of an open stage there is, packed, all that a commit must know of its messages: 12 to 40 bytes for each. Of a committed
one there is a run: which sequence numbers its places became (`core/structures/committed_runs`). It stays until these
messages are gone, because a STAGE record does not say it, and takes some bytes however many messages it has.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from quaymaster.core.partition.staged_snapshots import EncodedStage, Parts, freeze
from quaymaster.core.structures.committed_runs import CommittedRuns, PackedRuns, RunsState
from quaymaster.core.values.formats import Versions

STAGED_MESSAGES: Final[Versions] = {1: 0, 3: 1}
"""Since which cell format there are transactions: 0 stands for not at all."""

EXPIRES_MS: Final = 3_600_000
"""A transaction to which nothing came for so long is given up."""
SINK_KEPT_MS: Final = 7 * 86_400_000
"""For so long after its last commit it is known which batches of a sink were committed."""
RUN_KEPT_MS: Final = 300_000
"""For so long a run stays though its messages are gone: the sender of a duplicate of one is told its number."""

TRANSACTION_MESSAGES_MAX: Final = 1_000_000
"""So many messages a transaction may have."""
SLOW_TRANSACTION_MESSAGES_MAX: Final = 100_000
"""So many on FIFO queues, and where messages have delays of their own: a commit takes up to ten microseconds for each,
in which the queue answers no one."""
OPEN_MESSAGES_MAX: Final = 2_000_000
"""So many messages may be staged in a partition and not committed."""
OPEN_STAGES_MAX: Final = 10_000
SINKS_MAX: Final = 100_000
RUNS_BYTES_MAX: Final = 64 << 20
"""So many bytes the runs of committed messages may take: 3 for each of a steady stream's, 32 at the very worst."""

INDEX_BITS: Final = 24
_INDEX_MASK: Final = (1 << INDEX_BITS) - 1
_SINKS_IN_PIECE: Final = 1_000
_NO_DEDUP: Final = bytes(16)
QUEUE_DELAY: Final = -1
"""In place of a delay: the message has none of its own."""

assert TRANSACTION_MESSAGES_MAX <= _INDEX_MASK, "a place has room for the index of each message"


def place_of(number: int, index: int) -> int:
    """Return the place of a message: its stage's number, and which it is there."""
    return number << INDEX_BITS | index


def stage_of(place: int) -> int:
    """Return the number of the stage that a place is in."""
    return place >> INDEX_BITS


class StagedMessage(NamedTuple):
    """A message of an open stage, and where its record is. `delay_ms` -1: the queue's."""

    place: int
    offset: int
    group: int
    dedup: bytes | None
    delay_ms: int
    payload_bytes: int


class Stage:
    """One writer's part of an open transaction. Columns that none of its messages needs are empty."""

    __slots__ = (
        "_starts",
        "count",
        "counts",
        "dedups",
        "delays",
        "groups",
        "name",
        "number",
        "offsets",
        "sizes",
    )

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.count = 0
        self.offsets = array("Q")
        self.counts = array("I")
        """Its records, as runs of consecutive offsets."""
        self._starts = array("I")
        """Which of the messages each run begins with."""
        self.groups = array("Q")
        self.dedups = bytearray()
        self.delays = array("i")
        self.sizes = array("I")

    def add(self, offset: int, group: int, dedup: bytes | None, delay_ms: int, payload_bytes: int) -> None:
        """A message was staged."""
        count = self.count
        if self.offsets and self.offsets[-1] + self.counts[-1] == offset:
            self.counts[-1] += 1
        else:
            self.offsets.append(offset)
            self.counts.append(1)
            self._starts.append(count)
        if group or self.groups:
            self.groups.frombytes(bytes(8 * (count - len(self.groups))))
            self.groups.append(group)
        if dedup is not None or self.dedups:
            self.dedups += bytes(16 * count - len(self.dedups)) + (dedup or _NO_DEDUP)
        if delay_ms != QUEUE_DELAY or self.delays:
            self.delays.extend([QUEUE_DELAY] * (count - len(self.delays)))
            self.delays.append(delay_ms)
        self.sizes.append(payload_bytes)
        self.count = count + 1

    def load(
        self,
        count: int,
        offsets: bytes,
        counts: bytes,
        groups: bytes,
        dedups: bytes,
        delays: bytes,
        sizes: bytes,
    ) -> None:
        """Take the columns from a snapshot."""
        self.count = count
        self.offsets.frombytes(offsets)
        self.counts.frombytes(counts)
        self.groups.frombytes(groups)
        self.dedups += dedups
        self.delays.frombytes(delays)
        self.sizes.frombytes(sizes)
        self._starts.extend(accumulate(self.counts[:-1], initial=0))

    def messages(self, start: int = 0, stop: int | None = None) -> Iterator[StagedMessage]:
        """Yield its messages from one index on up to another, in the order they came."""
        groups, dedups, delays, sizes = self.groups, self.dedups, self.delays, self.sizes
        index, place = start, place_of(self.number, 0)
        for first, count in self.offset_runs(start, self.count if stop is None else stop):
            for offset in range(first, first + count):
                dedup = bytes(dedups[16 * index : 16 * index + 16]) if dedups else _NO_DEDUP
                yield StagedMessage(
                    place + index,
                    offset,
                    groups[index] if groups else 0,
                    dedup if dedup != _NO_DEDUP else None,
                    delays[index] if delays else QUEUE_DELAY,
                    sizes[index],
                )
                index += 1

    def offset_runs(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield first offset and length of each run of consecutive records, for the messages of [start, stop)."""
        at = bisect_right(self._starts, start) - 1
        while start < stop:
            skipped = start - self._starts[at]
            count = min(self.counts[at] - skipped, stop - start)
            yield self.offsets[at] + skipped, count
            start += count
            at += 1

    def count_offset_runs(self, start: int, stop: int) -> int:
        """Return how many runs `offset_runs` yields."""
        return bisect_left(self._starts, stop) - bisect_right(self._starts, start) + 1

    def dedups_of(self, start: int, stop: int) -> bytes | None:
        """Return the deduplication hashes of [start, stop), one behind the other; None where one has none."""
        if not self.dedups:
            return None
        dedups = bytes(self.dedups[16 * start : 16 * stop])
        return dedups if _NO_DEDUP not in dedups else None

    def deduplicated(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield index and deduplication hash of each message of [start, stop) that has one, in the order they came."""
        if self.dedups:
            dedups = bytes(self.dedups[16 * start : 16 * stop])
            for index in range(start, stop):
                dedup = dedups[16 * (index - start) : 16 * (index - start) + 16]
                if dedup != _NO_DEDUP:
                    yield index, dedup


class Transaction:
    """An open transaction: when something came to it last, its stages by name, and how many messages they have."""

    __slots__ = ("batch", "count", "sink", "stages", "touched_ms")

    def __init__(self, sink: str, batch: int, touched_ms: int) -> None:
        self.sink = sink
        self.batch = batch
        self.touched_ms = touched_ms
        self.stages: dict[str, Stage] = {}
        self.count = 0


class Sink(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The last batch that a sink committed, how many messages that had, and when."""

    name: str
    batch: int
    messages: int
    committed_ms: int


class _Open(msgspec.Struct, array_like=True, tag=1):
    """Open transactions without their stages, and the number that the next stage gets."""

    next_number: int
    transactions: list[tuple[str, int, int]]


class _Sinks(msgspec.Struct, array_like=True, tag=3):
    sinks: list[Sink]


class StagedMessages:
    """The transactions of one partition."""

    __slots__ = ("_open_stages", "messages", "next_number", "open", "runs", "sinks")

    def __init__(self) -> None:
        self.open: dict[tuple[str, int], Transaction] = {}
        self.sinks: dict[str, Sink] = {}
        """In the order of their last commits."""
        self.runs = CommittedRuns()
        self.next_number = 1
        """The number that the next stage gets. None is given twice."""
        self.messages = 0
        """How many messages are staged and not committed."""
        self._open_stages: dict[int, tuple[Transaction, Stage]] = {}

    # Questions

    @property
    def open_stages(self) -> int:
        """How many stages are open."""
        return len(self._open_stages)

    def find(self, sink: str, batch: int) -> Transaction | None:
        """Return an open transaction."""
        return self.open.get((sink, batch))

    def committed(self, sink: str, batch: int) -> Sink | None:
        """Return the last commit of a sink if it was of this batch or a later one: then this one is not new."""
        known = self.sinks.get(sink)
        return known if known is not None and batch <= known.batch else None

    def expired(self, now_ms: int, since_ms: int = 0) -> list[Transaction]:
        """Return open transactions to which nothing came for long; time before `since_ms` does not count."""
        return [
            found for found in self.open.values() if max(found.touched_ms, since_ms) + EXPIRES_MS <= now_ms
        ]

    def is_open(self, place: int) -> bool:
        """Tell whether a message is part of an open transaction."""
        return stage_of(place) in self._open_stages

    # Applying records

    def begin_stage(self, sink: str, batch: int, number: int, name: str, time_ms: int) -> None:
        """A writer begins its part of a transaction."""
        transaction = self.open.get((sink, batch))
        if transaction is None:
            transaction = self.open[sink, batch] = Transaction(sink, batch, time_ms)
        stage = transaction.stages[name] = Stage(number, name)
        transaction.touched_ms = time_ms
        self._open_stages[number] = transaction, stage
        self.next_number = number + 1

    def add(
        self,
        place: int,
        offset: int,
        time_ms: int,
        *,
        group: int,
        dedup: bytes | None,
        delay_ms: int,
        payload_bytes: int,
    ) -> None:
        """A message was staged."""
        transaction, stage = self._open_stages[stage_of(place)]
        assert place == place_of(stage.number, stage.count), (
            f"place {place & _INDEX_MASK} staged where {stage.count} is next"
        )
        stage.add(offset, group, dedup, delay_ms, payload_bytes)
        transaction.count += 1
        transaction.touched_ms = time_ms
        self.messages += 1

    def stage(self, number: int) -> Stage:
        """Return an open stage."""
        return self._open_stages[number][1]

    def commit(self, sink: str, batch: int, messages: int, time_ms: int) -> None:
        """A transaction is committed, and what its messages became is in `runs`. Earlier ones of the sink never are."""
        for known, earlier in [key for key in self.open if key[0] == sink and key[1] <= batch]:
            self.drop(known, earlier)
        self.sinks.pop(sink, None)
        self.sinks[sink] = Sink(sink, batch, messages, time_ms)

    def drop(self, sink: str, batch: int) -> None:
        """An open transaction, or what is left of it, is gone."""
        transaction = self.open.pop((sink, batch))
        self.messages -= transaction.count
        for stage in transaction.stages.values():
            del self._open_stages[stage.number]

    def forget(self, head: int, now_ms: int) -> None:
        """Forget what can no longer be asked for: of messages below `head`, and of sinks long silent."""
        self.forget_runs(head, now_ms)
        while self.sinks and (sink := next(iter(self.sinks.values()))).committed_ms + SINK_KEPT_MS <= now_ms:
            del self.sinks[sink.name]

    def forget_runs(self, head: int, now_ms: int) -> None:
        """Forget what messages below `head` became."""
        self.runs.drop(head, now_ms - RUN_KEPT_MS)

    # Snapshots

    def pieces(self) -> Iterator[bytes | Parts]:
        """Return everything as it is now, for a snapshot, in pieces. What is large is copied and packed later."""
        open_ = list(self.open.values())
        head = _Open(self.next_number, [(each.sink, each.batch, each.touched_ms) for each in open_])
        stages = [freeze(each.sink, each.batch, stage) for each in open_ for stage in each.stages.values()]
        return self._packed(head, stages, list(self.sinks.values()), self.runs.state())

    @staticmethod
    def _packed(
        head: _Open, stages: list[Parts], sinks: list[Sink], runs: Iterator[PackedRuns | RunsState]
    ) -> Iterator[bytes | Parts]:
        yield _encode(head)
        yield from stages
        for at in range(0, len(sinks), _SINKS_IN_PIECE):
            yield _encode(_Sinks(sinks[at : at + _SINKS_IN_PIECE]))
        for piece in runs:
            yield _encode(piece)

    @classmethod
    def of_pieces(cls, pieces: Iterable[bytes | memoryview]) -> StagedMessages:
        """Rebuild the transactions from `pieces`, each whole."""
        staged = cls()
        for piece in pieces:
            state = _decode(piece)
            if type(state) is _Open:
                staged.next_number = state.next_number
                for sink, batch, touched_ms in state.transactions:
                    staged.open[sink, batch] = Transaction(sink, batch, touched_ms)
            elif type(state) is EncodedStage:
                staged._load_stage(state)
            elif type(state) is _Sinks:
                staged.sinks.update((sink.name, sink) for sink in state.sinks)
            else:
                staged.runs.load(state)
        return staged

    def _load_stage(self, state: EncodedStage) -> None:
        stage = Stage(state.number, state.name)
        stage.load(
            state.count,
            state.offsets,
            state.counts,
            state.groups,
            state.dedups,
            state.delays,
            state.sizes,
        )
        transaction = self.open[state.sink, state.batch]
        transaction.stages[stage.name] = stage
        transaction.count += stage.count
        self.messages += stage.count
        self._open_stages[stage.number] = transaction, stage

    def content(self) -> list[object]:
        """Return what a hash of the state is taken of."""
        return [
            self.next_number,
            [
                (
                    found.sink,
                    found.batch,
                    found.touched_ms,
                    [(stage.number, stage.name, list(stage.messages())) for stage in found.stages.values()],
                )
                for _, found in sorted(self.open.items())
            ],
            sorted((sink.name, sink.batch, sink.messages, sink.committed_ms) for sink in self.sinks.values()),
            self.runs.content(),
        ]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Open | EncodedStage | _Sinks | PackedRuns | RunsState).decode
