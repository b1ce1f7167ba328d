"""Commands on completions: a message is deleted together with the sending of others."""

from __future__ import annotations

import msgspec

from quaymaster.core.values.commands.messages import QUEUE_DEFAULT, Receipt
from quaymaster.core.values.commands.moves import MoveBegun


class Output(msgspec.Struct, gc=False, array_like=True):
    """A message that a completion sends: `payload` and `flags` are those of a SEND record (`core/values/messages`).

    It is for a partition of a queue in some journal, by the table of who asks. `key` is what chose the partition there:
    where the table has changed meanwhile, it chooses again. `delay_ms` as in NewMessage.
    """

    queue_id: int
    partition: int
    journal_id: int
    key: int
    arn: str
    payload: bytes
    flags: int = 0
    delay_ms: int = QUEUE_DEFAULT


class Complete(msgspec.Struct, gc=False, array_like=True, tag=45):
    """Delete 1-10 messages by their receipts and send 1-100 others, as one act: both, or nothing.

    `digest` is a 64-bit hash, not 0, of the receipts and of all that is sent. The same receipts and digest again within
    5 minutes are answered as the first time.
    """

    queue_id: int
    partition: int
    receipts: list[Receipt]
    outputs: list[Output]
    digest: int


class CompleteOutcome(msgspec.Struct, gc=False, array_like=True, tag=45):
    """For each receipt None, or why it is not good: then nothing was done. `was_done`: it was done before."""

    errors: list[Exception | None]
    was_done: bool = False


class CompletionDecided(msgspec.Struct, gc=False):
    """What a Complete decided, and the outputs that may be sent once that is committed, for each target."""

    outcome: CompleteOutcome
    begun: list[MoveBegun] = []
