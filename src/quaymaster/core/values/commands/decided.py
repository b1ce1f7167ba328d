"""What the core decides before bodies are read, and what a leader asks of itself."""

from __future__ import annotations

import msgspec

from quaymaster.core.values.commands.claims import ClaimOutcome
from quaymaster.core.values.commands.messages import SendResult
from quaymaster.core.values.queues.queue_definitions import QueueDefinition


class ExpireMessages(msgspec.Struct, gc=False):
    """Delete what is older than the queue keeps messages. The broker asks this of itself."""

    queue_id: int
    partition: int


class WriteBarrier(msgspec.Struct, gc=False):
    """Write a record that changes nothing: once it is committed, no other led the journal since it was asked for."""


class Taken(msgspec.Struct, gc=False):
    """A message taken from the order: what its delivery says, and the offset of the record that has its body."""

    sequence: int
    delivery_count: int
    first_receive_ms: int
    sent_ms: int
    offset: int


class DeadLetter(msgspec.Struct, gc=False):
    """A message on its way to another queue: its body is to be read and a MoveMessage proposed.

    `target_queue_id` is 0 while it is not known where that queue is.
    """

    queue_id: int
    partition: int
    sequence: int
    offset: int
    target_queue_id: int


class TakenOutcome(msgspec.Struct, gc=False):
    """What a Receive or TakeForMove took, before bodies are read.

    `unfinished`: the scan stopped at its bound, and asking again at once may find more. `is_to_consume`: the messages
    are set aside, and are delivered only once they are gone (`Consume`). `is_held`: nothing is there to be taken, but
    messages of groups of which older partitions may have some; a Watch is answered so, too.
    """

    epoch: int
    taken: list[Taken]
    dead_letters: list[DeadLetter]
    unfinished: bool
    is_to_consume: bool = False
    is_held: bool = False


class Consume(msgspec.Struct, gc=False):
    """Delete messages that a receive took, whose bodies are read (AtMostOnce). The broker asks this of itself."""

    queue_id: int
    partition: int
    sequences: list[int]


class Consumed(msgspec.Struct, gc=False):
    """The messages that were there still, and are gone now: only they are delivered."""

    sequences: list[int]


class Duplicate(msgspec.Struct, gc=False):
    """A message that was stored before; its ids are in the record at `offset`, of the partition with this key.

    Which number a message has that was staged, its partition knows (`core/partition/staged_messages`).
    """

    offset: int
    partition_key: int


class SentOutcome(msgspec.Struct, gc=False):
    """What a Send decided, before the ids of duplicates are read."""

    results: list[SendResult | Duplicate]


class SentElsewhere(msgspec.Struct, gc=False):
    """What a Send to a sealed partition decided, before the ids of duplicates are read; None: not stored here."""

    definition: QueueDefinition
    results: list[SendResult | Duplicate | None]


class ClaimedOutcome(msgspec.Struct, gc=False):
    """What a Claim decided, and the dead letters that it met."""

    outcome: ClaimOutcome
    dead_letters: list[DeadLetter]


class PeekedOffsets(msgspec.Struct, gc=False):
    """What a Peek found, before bodies are read: messages, their states, and where to go on (0: none left)."""

    messages: list[Taken]
    states: list[str]
    next_sequence: int


class FetchedOffsets(msgspec.Struct, gc=False):
    """What a Fetch found, before bodies are read: one entry of each list per message."""

    sequences: list[int]
    sent_ms: list[int]
    offsets: list[int]
    next_sequence: int
    earliest: int
    end: int
    bytes_max: int
    places_from: int | None = None
    """Of a claim: the place of the first in it; None: a partition is read, by sequence numbers."""
