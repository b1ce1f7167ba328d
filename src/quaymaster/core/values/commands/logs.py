"""Commands on logs: consumer groups, reading by offset, bounds."""

from __future__ import annotations

import msgspec

from quaymaster.core.values.commands.messages import ALL_PARTITIONS


class ResetGroup(msgspec.Struct, gc=False, array_like=True, tag=17):
    """Let a consumer group begin again at `start` (`core/partition/consumer_groups`), with nothing in flight."""

    queue_id: int
    start: str
    partition: int = ALL_PARTITIONS


class SetGroupOffset(msgspec.Struct, gc=False, array_like=True, tag=18):
    """All messages of a consumer group below a sequence number are consumed; it goes no way back."""

    queue_id: int
    partition: int
    sequence: int


class Fetch(msgspec.Struct, gc=False, array_like=True, tag=20):
    """Read the messages of [from_sequence, to_sequence) in order, whatever their state, and change nothing.

    As many as fit into `bytes_max`, but one if there is one. It is asked again from `next_sequence` on. Without
    `with_messages` only sequence numbers and times come back, and no body is read.
    """

    queue_id: int
    partition: int
    from_sequence: int
    to_sequence: int
    bytes_max: int
    with_messages: bool = True


class FetchOutcome(msgspec.Struct, gc=False, array_like=True, tag=20):
    """The messages, column by column, and where to go on; `earliest` and `end` are those of `LogBoundsOutcome`.

    A message is as `core/values/messages` has it, in its move wrapper if it was moved, without the record's prefix.
    """

    sequences: list[int]
    sent_ms: list[int]
    messages: list[bytes]
    next_sequence: int
    earliest: int
    end: int


class LogBounds(msgspec.Struct, gc=False, array_like=True, tag=21):
    """Ask what can be read of a partition."""

    queue_id: int
    partition: int


class LogBoundsOutcome(msgspec.Struct, gc=False, array_like=True, tag=21):
    """The first sequence number that is kept, and the one behind the last committed message."""

    earliest: int
    end: int


class FindOffset(msgspec.Struct, gc=False, array_like=True, tag=22):
    """Ask for the first message that was sent at `time_ms` or later."""

    queue_id: int
    partition: int
    time_ms: int


class FoundOffset(msgspec.Struct, gc=False, array_like=True, tag=22):
    """Its sequence number, or the end of what is committed."""

    sequence: int
