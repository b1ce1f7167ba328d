"""What the replicas of one journal say to each other. Every message carries the sender's epoch.

    elect ──Prepare──▶ members, old and new       elect ◀──Promise── (or nothing, or Stale)
    elect ──Fetch──▶ the best of them             elect ◀──Tail──
    leader ──Append──▶ followers, learners        leader ◀──Appended, Mismatch, Stale──
    leader ──Resign──▶ members

Who sent a message, to whom, and of which journal it is, travels beside it (`Envelope`). Batches are passed on as the
bytes they have on disk; the process that takes them from a connection checks their CRCs first.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from quaymaster.core.values.records import Batch


class DiskPressure(IntEnum):
    """What a replica's disk has room for. LOW: sends are to be refused. RESERVE: only the reserve is left, for what
    makes room: deletes and receives. NONE: nothing more is taken."""

    PLENTY = 0
    LOW = 1
    RESERVE = 2
    NONE = 3


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Promise to refuse epochs below this one, and say how far your log reaches."""

    epoch: int


class Promise(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The promise is durable, and so is the whole log: it ends at `end`, with a batch of `last_epoch`.

    `time_ms`: the queue time, if it is known; `wall_ms`: the wall clock. 0 stands for unknown, as in older programs'.
    """

    epoch: int
    last_epoch: int
    end: int
    time_ms: int = 0
    wall_ms: int = 0


class FetchBatches(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Give me your log from `start` on: where mine ends, or where what is committed does, on which we agree."""

    epoch: int
    start: int


class Tail(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A part of the log from `start` on; none at its end. `is_gone`: compacted, there is only a copy to be had."""

    epoch: int
    start: int
    batches: list[Batch]
    is_gone: bool = False


class Append(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Write these behind the batch that ends at `previous_end` with `previous_chain`. Empty: a heartbeat.

    `commit` is the leader's commit index. `sent_ms` is the leader's clock, to be sent back. `tell_received`:
    answer once when they are written, before they are durable. `sends_refused`: the leader takes no sends for want of
    room, so what comes from now on is worth the reserve. `has_lease`: a majority answers the leader; without that it is
    followed, and no one waits for it. `time_ms`: the queue time, 0 if it is not known.
    """

    epoch: int
    previous_end: int
    previous_chain: int
    batches: list[Batch]
    commit: int
    sent_ms: int
    tell_received: bool = False
    sends_refused: bool = False
    has_lease: bool = True
    time_ms: int = 0


class Appended(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """My log is the leader's up to `received_end`, as far as it is written, and durable up to `durable_end`.

    Who has no room takes no batches, and says so with `room`. `wall_ms`: its wall clock, 0 if that is unknown.
    """

    epoch: int
    received_end: int
    durable_end: int
    sent_ms: int
    room: DiskPressure = DiskPressure.PLENTY
    wall_ms: int = 0


class Mismatch(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """I have no such batch. My log ends at `end` with `chain`; up to `commit` it is surely yours."""

    epoch: int
    end: int
    chain: int
    commit: int


class Stale(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """I promised `epoch`, which is higher than yours."""

    epoch: int


class Resign(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The leader of this epoch leads no longer: promise to the first that asks, at once."""

    epoch: int


Message = Prepare | Promise | FetchBatches | Tail | Append | Appended | Mismatch | Stale | Resign


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A message on its way. Members are named `node@storage_id`, so a re-formatted disk gets no votes of another."""

    sender: str
    receiver: str
    message: Message
