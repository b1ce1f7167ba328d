"""Commands on transactions: staged messages that become visible together, or never."""

from __future__ import annotations

import msgspec

from quaymaster.core.values.commands.messages import NewMessage


class StageMessages(msgspec.Struct, gc=False, array_like=True, tag=26):
    """Bring messages to a transaction; no one sees them before it commits. Idempotent by `first_index`.

    A transaction is (sink, batch). `stage` is one writer's part of it, and `first_index` which of the stage's messages
    the first one is: those that are there already are not stored again. The messages have no retry hashes.

    `commit`: the stage ends with these messages, and is sent at once as the whole transaction. `deduplicate` false:
    their deduplication ids are noted by the commit, and not looked for.
    """

    queue_id: int
    partition: int
    sink: str
    batch: int
    stage: str
    first_index: int
    messages: list[NewMessage]
    commit: bool = False
    deduplicate: bool = True


class StagedOutcome(msgspec.Struct, gc=False, array_like=True, tag=26):
    """How many messages the stage has. `is_committed`: this batch or a later one was, and nothing was stored.

    With StageMessages.commit the count is that of the committed batch, 0 where it is a later one's. `was_sent`: this
    command committed it, and so many of its messages were duplicates. Programs that do not know `commit` leave it
    false.
    """

    count: int
    is_committed: bool = False
    was_sent: bool = False
    duplicates: int = 0


class StageCount(msgspec.Struct, gc=False, array_like=True, frozen=True):
    """A stage, and how many messages it must have."""

    name: str
    count: int


class CommitTransaction(msgspec.Struct, gc=False, array_like=True, tag=27):
    """Send what was staged in these stages, in this order and all at once; the rest is dropped."""

    queue_id: int
    partition: int
    sink: str
    batch: int
    stages: list[StageCount]


class CommittedOutcome(msgspec.Struct, gc=False, array_like=True, tag=27):
    """How many messages the transaction has brought; so many of them were duplicates, and got no number.

    `was_committed`: it was so before this was asked, or asked again. Of a batch before the sink's last one it is not
    known how many messages there were: 0.
    """

    messages: int
    was_committed: bool = False
    duplicates: int = 0


class AbortTransaction(msgspec.Struct, gc=False, array_like=True, tag=28):
    """Drop what was staged for a transaction."""

    queue_id: int
    partition: int
    sink: str
    batch: int


class AbortedOutcome(msgspec.Struct, gc=False, array_like=True, tag=28):
    """Whether nothing of the transaction is sent, nor ever will be: false when it was committed."""

    is_aborted: bool
