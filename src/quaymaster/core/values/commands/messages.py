"""Commands on the messages of a queue: send, receive, delete, hide, count."""

from __future__ import annotations

import msgspec

from quaymaster.core.values.commands.partitions import ANY_TABLE
from quaymaster.core.values.queues.queue_definitions import QueueDefinition

RECEIPT_HANDLE_PLACEHOLDER = "{receipt_handle}"
"""Partitions know receipts, not handles: where an error quotes the handle, it has this in its place."""
QUEUE_DEFAULT = -1
"""Stands for "what the queue says" in `delay_ms` and `visibility_timeout_ms`."""
ALL_PARTITIONS = -1
"""Stands for every partition of the queue that the asked journal has."""


class NewMessage(msgspec.Struct, gc=False, array_like=True):
    """A message to store: `payload` is the bytes of the SEND record, prefix included (`core/values/messages`).

    `flags` are the record's flags and say which parts the prefix has. `group` is the 64-bit hash of the message
    group id (0: none). `dedup` and `retry` are 16-byte hashes: the deduplication id in its scope (FIFO), and the
    SDK invocation with the content it carried. `may_be_retry` is false when the SDK said that this is its first
    attempt: then the retry hash is remembered, but looked up only where a repeat may have come before it.
    """

    message_id: bytes
    payload: bytes
    flags: int = 0
    delay_ms: int = QUEUE_DEFAULT
    group: int = 0
    dedup: bytes | None = None
    retry: bytes | None = None
    may_be_retry: bool = True
    size_bytes: int = 0
    """Of body and attributes, as its sender counts them; 0: not told."""


class Send(msgspec.Struct, gc=False, array_like=True, tag=1):
    """Store 1-10 messages; each gets its own sequence number, or is found to be a duplicate of a stored one.

    A partition that is sealed finds duplicates, and answers for the others with `Elsewhere`.

    `fails_fast` is for who carries it: it does not wait for a leader, and is not repeated when its outcome is unknown.
    """

    queue_id: int
    partition: int
    messages: list[NewMessage]
    fails_fast: bool = False


class SendResult(msgspec.Struct, gc=False, array_like=True):
    """Where a message stands: its own ids, or those of the message it duplicates."""

    sequence: int
    message_id: bytes
    duplicate: bool = False


class SendOutcome(msgspec.Struct, gc=False, array_like=True, tag=1):
    """One result for each message of the Send, in order.

    `errors`, if there are any: for each message None, or why it was not stored. Brokers store all of a Send or none.
    """

    results: list[SendResult]
    errors: list[Exception | None] = []


class Receive(msgspec.Struct, gc=False, array_like=True, tag=2):
    """Hand out up to `count_max` visible messages, each hidden for `visibility_timeout_ms` (-1: the queue's).

    With `wait_ms` above 0 an empty receive is parked for that long, or until a message is visible.
    `attempt` is the 16-byte hash of a ReceiveRequestAttemptId (FIFO), or None; with `only_attempt` nothing but what the
    attempt was handed before is handed out. `attempt_id` is the id itself, for who is told that it is no longer good.

    `table_version`: the caller's partition table. Where the journal has a newer one, and the partition nothing to hand
    out, the answer is `Elsewhere`, at once: a front end that only receives learns of new partitions so.

    `fails_fast` as in Send; and a partition that has only groups which older ones may have says so at once, by NotNow.

    `is_part`: one of several by which a request looks into several partitions: that it finds nothing is not counted.
    `empty_before`: so many such requests have ended without messages since the front end last said so.

    `takes_for_good`: the queue is AtMostOnce. Who carries it does not ask again when the outcome is unknown, for what
    the first attempt took is gone.
    """

    queue_id: int
    partition: int
    count_max: int
    visibility_timeout_ms: int = QUEUE_DEFAULT
    wait_ms: int = 0
    attempt: bytes | None = None
    table_version: int = ANY_TABLE
    only_attempt: bool = False
    fails_fast: bool = False
    is_part: bool = False
    empty_before: int = 0
    takes_for_good: bool = False
    attempt_id: str = ""


class Delivery(msgspec.Struct, gc=False, array_like=True):
    """One handing of a message to one consumer. `record_type` and `flags` say how `payload` is laid out."""

    sequence: int
    delivery_count: int
    first_receive_ms: int
    sent_ms: int
    record_type: int
    flags: int
    payload: bytes


class ReceiveOutcome(msgspec.Struct, gc=False, array_like=True, tag=2):
    """The deliveries (an empty list is normal), and the epoch and partition that go into their receipt handles.

    `partition` -1: the one that was asked.
    """

    epoch: int
    deliveries: list[Delivery]
    partition: int = -1


class Watch(msgspec.Struct, gc=False, array_like=True, tag=32):
    """Wait for up to `wait_ms` until a Receive would find something, and take nothing.

    `table_version` and `empty_before` as in Receive.
    """

    queue_id: int
    partition: int
    wait_ms: int
    table_version: int = ANY_TABLE
    empty_before: int = 0


class WatchOutcome(msgspec.Struct, gc=False, array_like=True, tag=32):
    """Whether a Receive would find something now."""

    has_messages: bool


class Elsewhere(msgspec.Struct, gc=False, array_like=True, tag=33):
    """The journal has this definition, whose partition table says where to go on.

    Of a Send to a sealed partition `results` has an entry for each message: where the one is that it duplicates, or
    None: it is not stored here and never will be. The answer waits for commit, for a seal may be discarded until then.
    """

    definition: QueueDefinition
    results: list[SendResult | None] = []


class Receipt(msgspec.Struct, gc=False, array_like=True, frozen=True):
    """The part of a receipt handle that a partition judges: which delivery of which message."""

    sequence: int
    epoch: int
    delivery_count: int


class Delete(msgspec.Struct, gc=False, array_like=True, tag=3):
    """Delete 1-10 messages by their receipts."""

    queue_id: int
    partition: int
    receipts: list[Receipt]


class ChangeVisibility(msgspec.Struct, gc=False, array_like=True, tag=4):
    """Hide 1-10 messages for a new timeout, counted from now; 0 makes one visible at once."""

    queue_id: int
    partition: int
    receipts: list[Receipt]
    visibility_timeouts_ms: list[int]


class EntriesOutcome(msgspec.Struct, gc=False, array_like=True, tag=3):
    """For each entry of a Delete or ChangeVisibility: None when done, else the caller's error.

    `gone`: of the entries of a Delete that are done, how many named a message that was gone already.
    """

    errors: list[Exception | None]
    gone: int = 0


class Purge(msgspec.Struct, gc=False, array_like=True, tag=5):
    """Delete every message that was sent before this, keep the queue."""

    queue_id: int
    partition: int = ALL_PARTITIONS


class Done(msgspec.Struct, gc=False, array_like=True, tag=4):
    """It is so, and durable."""


class CountMessages(msgspec.Struct, gc=False, array_like=True, tag=8):
    """Ask for the queue's counts; promises nothing and never waits."""

    queue_id: int
    partition: int = ALL_PARTITIONS


class QueueCounts(msgspec.Struct, gc=False, array_like=True, tag=5):
    """How many messages are in which state; exact at rest. `noisy_groups`: tenants held back for fairness.

    `oldest_sent_ms` is 0 when the queue is empty. `sends` and `deletions` are messages that producers stored and
    consumers deleted since there is the queue; where `counted_from` is not 0, from that offset of the journal on.
    """

    visible: int
    in_flight: int
    delayed: int
    oldest_sent_ms: int = 0
    noisy_groups: int = 0
    sends: int = 0
    deletions: int = 0
    counted_from: int = 0


class Peek(msgspec.Struct, gc=False, array_like=True, tag=9):
    """Show up to `count_max` messages from `from_sequence` on, whatever their state, and change nothing."""

    queue_id: int
    partition: int
    from_sequence: int
    count_max: int


class PeekedMessage(msgspec.Struct, gc=False, array_like=True):
    """A message as it lies in the queue; `state` is visible, in_flight or delayed."""

    sequence: int
    state: str
    delivery_count: int
    first_receive_ms: int
    sent_ms: int
    record_type: int
    flags: int
    payload: bytes


class PeekOutcome(msgspec.Struct, gc=False, array_like=True, tag=6):
    """The messages found, and the sequence number to go on from (0: none left)."""

    messages: list[PeekedMessage]
    next_sequence: int
