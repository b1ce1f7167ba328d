"""Commands on queues and their partitions: definitions, what a sealed partition still knows, marks, data keys."""

from __future__ import annotations

import msgspec

from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_marks import QueueIdentity, QueueMarks

ANY_TABLE = -1
"""Stands for "I do not go by a partition table": a caller that says so is never told of another one."""


class SetQueue(msgspec.Struct, gc=False, array_like=True, tag=6):
    """Make a journal know a queue, or a newer revision of it; idempotent by revision and version of the table.

    QueueIdTaken: it has another queue under this id. QueueRevisionTaken: it has a later revision, or other
    attributes of this one. `Elsewhere`: it has a later table, or other partitions of this one, and changes nothing.

    `journal_id` None: that of the first partition.
    """

    definition: QueueDefinition
    journal_id: int | None = None


class ForgetQueue(msgspec.Struct, gc=False, array_like=True, tag=7):
    """Forget a queue and every message in it; idempotent.

    `identity`: QueueIdTaken if the journal has another queue under this id; None: whichever it has. `journal_id` None:
    that of the first partition.
    """

    queue_id: int
    identity: QueueIdentity | None = None
    journal_id: int | None = None


class AskPartition(msgspec.Struct, gc=False, array_like=True, tag=34):
    """Ask how far a partition is on its way to be drained; the answer waits for commit."""

    queue_id: int
    partition: int


class PartitionOutcome(msgspec.Struct, gc=False, array_like=True, tag=34):
    """The state of a partition, all of it committed. Times are the journal's own.

    `sealed_for_ms`: how long ago it was sealed; None: it is not. `is_empty`: it has no message, none on its way to
    another journal, no running task and no open transaction; sealed, it stays so. `outputs`: how many messages that
    completions have sent from it, or from consumer groups of it, have not arrived.
    """

    sealed_for_ms: int | None
    is_empty: bool
    messages: int
    sends: int
    deletions: int
    table_version: int
    outputs: int = 0


class AskGroups(msgspec.Struct, gc=False, array_like=True, tag=35):
    """Ask a sealed partition of a FIFO queue which of these groups it has no message of any more.

    `groups`: 64-bit hashes, packed little-endian. Asked by the leader of a younger partition; the answer waits for
    commit. With `wait_ms` above 0 it waits for that long until there is one.
    """

    queue_id: int
    partition: int
    groups: bytes
    wait_ms: int = 0


class GroupsOutcome(msgspec.Struct, gc=False, array_like=True, tag=35):
    """Those it has no message of, and never will. `is_sealed` false: nothing can be said yet."""

    gone: bytes
    is_sealed: bool = True


class AskIds(msgspec.Struct, gc=False, array_like=True, tag=36):
    """Ask a sealed partition which deduplication ids it may know; the answer waits for commit."""

    queue_id: int
    partition: int


class IdsOutcome(msgspec.Struct, gc=False, array_like=True, tag=36):
    """The first bits of each id that a sealed partition knows, or will ever know (`core/structures/ids/recent_ids`).

    `tops`: a roaring bitmap in its portable form. `is_known` false: nothing can be said yet.
    """

    tops: bytes
    is_known: bool = True


class AskMarks(msgspec.Struct, gc=False, array_like=True, tag=31):
    """Ask a journal which ids it ever saw. Only who leads it now can answer: the answer waits for a commit."""

    journal_id: int
    queue_id: int = 0
    """Of no queue: it is asked of the journal itself."""


class MarksOutcome(msgspec.Struct, gc=False, array_like=True, tag=31):
    """The highest ones: none that is given from now on may be lower."""

    marks: QueueMarks


class ListDataKeys(msgspec.Struct, gc=False, array_like=True, tag=29):
    """Ask which data keys a journal's segments name, in order, from the first behind `after` on."""

    journal_id: int
    after: int = 0


class DataKeysOutcome(msgspec.Struct, gc=False, array_like=True, tag=29):
    """Data keys, in order. `next_after` 0: these are the last; else where to go on.

    `is_whole` false: not all segments could be looked at in time; ask again, and what was done need not be done twice.
    """

    key_ids: list[int]
    next_after: int = 0
    is_whole: bool = True
