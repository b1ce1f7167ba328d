"""Queues of several partitions, and answers of brokers that a test makes up."""

from __future__ import annotations

from msgspec.structs import replace

from quaymaster.core.values.commands.messages import Delivery, NewMessage, ReceiveOutcome, SendResult
from quaymaster.core.values.queues.queue_definitions import (
    KEY_MAX,
    PartitionPlacement,
    PartitionState,
    QueueDefinition,
)

HALF = KEY_MAX // 2
EVERY = (0, KEY_MAX)
LOW, HIGH = (0, HALF), (HALF + 1, KEY_MAX)
FIFO = {"FifoQueue": "true", "DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}


def entry(
    number: int, state: PartitionState = "open", keys: tuple[int, int] = EVERY, **counts: int
) -> PartitionPlacement:
    """Return a partition in the journal of its number."""
    return replace(PartitionPlacement(number, number, state, *keys), **counts)


def queue(*entries: PartitionPlacement, version: int = 2, is_fifo: bool = False) -> QueueDefinition:
    """Return a queue with this table."""
    return QueueDefinition(
        7,
        "000000000000",
        "q.fifo" if is_fifo else "q",
        "active",
        version,
        0,
        0,
        FIFO if is_fifo else {},
        {},
        0,
        entries,
        table_version=version,
        next_partition=max(one.number for one in entries) + 1,
    )


def message(key: int = 0, *, name: int = 0, may_be_retry: bool = True, has_retry: bool = True) -> NewMessage:
    """Return a message of a key, which is its group, too; `name` makes it another one."""
    head = key.to_bytes(8, "big")
    return NewMessage(
        head + name.to_bytes(8, "big"),
        b"",
        group=key,
        retry=head + bytes(8) if has_retry else None,
        may_be_retry=may_be_retry,
    )


def result(sequence: int, *, duplicate: bool = False) -> SendResult:
    """Return where a message stands."""
    return SendResult(sequence, b"", duplicate)


def delivered(*sequences: int) -> ReceiveOutcome:
    """Return messages as a broker hands them out."""
    return ReceiveOutcome(3, [Delivery(sequence, 1, 0, 0, 0, 0, b"") for sequence in sequences])
