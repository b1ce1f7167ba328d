"""Commands on numbered moves: messages that leave a journal for another one."""

from __future__ import annotations

import msgspec

from quaymaster.core.values.commands.messages import QUEUE_DEFAULT
from quaymaster.core.values.queues.queue_definitions import QueueDefinition


class MoveMessage(msgspec.Struct, gc=False):
    """Put a message that was taken for it into another queue. The broker asks this of itself.

    `payload` is the source record's, with its `record_type` and `flags`. `new_message_id` None: it keeps its own
    (a dead letter); else it starts afresh, with this id and the present time (a redrive). With `payload` None
    the message could not be read: it goes back to where it was.

    It goes to the partition that takes messages of its group or, in a standard queue, of its own key: by `target` or by
    what the journal knows of the queue, whichever is newer. Into another journal it begins to leave, with a number of
    its own. `target` None: only the journal's definition counts.
    """

    queue_id: int
    partition: int
    sequence: int
    target_queue_id: int
    record_type: int
    flags: int
    payload: bytes | None
    source_arn: str | None
    new_message_id: bytes | None = None
    task_id: bytes | None = None
    target: QueueDefinition | None = None


class MoveBegun(msgspec.Struct, gc=False):
    """The message is leaving, as this number among those that leave for its target. Once committed, it may be sent."""

    target_key: int
    number: int


class MovedMessage(msgspec.Struct, gc=False, array_like=True):
    """A message that comes from another journal, by its number. `payload` is a MOVE record's, without the head.

    `payload` None: it is withdrawn. `is_redrive`: it starts afresh, at the present time. `is_output`: it arrives as a
    Send, with the delay of one; the other times and counts mean nothing.
    """

    number: int
    payload: bytes | None = None
    flags: int = 0
    sent_ms: int = 0
    delivery_count: int = 0
    first_receive_ms: int = 0
    is_redrive: bool = False
    is_output: bool = False
    delay_ms: int = QUEUE_DEFAULT


class MoveIn(msgspec.Struct, gc=False, array_like=True, tag=13):
    """Take 1 or more messages that leave a partition, in the order of their numbers; idempotent.

    All numbers below the first are settled. The broker that leads the source asks this, with the target's queue.
    """

    queue_id: int
    partition: int
    source_queue_id: int
    source_partition: int
    messages: list[MovedMessage]


class MoveInOutcome(msgspec.Struct, gc=False, array_like=True, tag=8):
    """All were taken, now or before, but for those `withdrawn`, which never will be; none when the queue `is_gone`.

    `is_sealed`: those withdrawn now are so because the partition takes no messages any more; by the table of
    `definition` they go to another one.

    `duplicates`: outputs that were found to be stored before, by their deduplication ids. They count as taken.
    """

    withdrawn: list[int]
    is_gone: bool = False
    is_sealed: bool = False
    definition: QueueDefinition | None = None
    duplicates: list[int] = []


class EndMoves(msgspec.Struct, gc=False):
    """The target has decided on these numbers. The broker asks this of itself.

    With `elsewhere` the target is sealed: all other moves to it go on to partitions that this table names.
    """

    queue_id: int
    partition: int
    target_key: int
    taken: list[int]
    withdrawn: list[int]
    elsewhere: QueueDefinition | None = None


class MovesGoOn(msgspec.Struct, gc=False):
    """Moves that have other targets, and new numbers, now."""

    begun: list[MoveBegun]
