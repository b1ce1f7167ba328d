"""What a queue is: its identity, its attributes as the caller set them, and what they mean in numbers.

Metadata owns definitions and stores them; the journal gets each revision in a QUEUE_SET record. Both keep the
same bytes:

    version u8 · MessagePack array of the fields of `QueueDefinition`, in order

To change the format: append fields with defaults (older bytes then still decode) or raise DEFINITION_VERSION
and keep decoding the old one. Never reorder or reuse a field: the bytes are on disk.

What the attributes are called, and what they mean, is one table: `core/values/queues/attributes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, Literal, TypeVar

import msgspec

from quaymaster.core.access.policies import PolicyInForce, read_policy
from quaymaster.core.values.formats import UnknownFormat
from quaymaster.core.values.queues.attributes import (
    CONTENT_BASED_DEDUPLICATION,
    DEDUPLICATION_SCOPE,
    DEDUPLICATION_WINDOW,
    DELAY,
    DELIVERY_GUARANTEE,
    DURABILITY,
    FIFO_QUEUE,
    FIFO_THROUGHPUT_LIMIT,
    GROUP_START,
    KMS_KEY,
    KMS_REUSE,
    LEGAL_HOLD,
    LOG,
    MESSAGE_SIZE,
    PARTITIONS_MAX,
    POLICY,
    PUSH_BATCH_SIZE,
    PUSH_CONCURRENCY,
    PUSH_ENDPOINT,
    PUSH_FORMAT,
    PUSH_RETRY_POLICY,
    PUSH_TIMEOUT,
    RECEIVE_WAIT,
    REDRIVE_ALLOW_POLICY,
    REDRIVE_POLICY,
    REPLICATION_MODE,
    RETENTION,
    RETENTION_BYTES,
    RETENTION_MODE,
    RETENTION_PINS,
    SETTABLE,
    VISIBILITY_TIMEOUT,
    Attribute,
    DeliveryGuarantee,
    defaults_of,
    kinds_of,
)
from quaymaster.core.values.row_codec import RowCodec

DEFINITION_VERSION = 1

T = TypeVar("T")

KEY_MAX: Final = (1 << 64) - 1
"""Keys choose a message's partition; they are 64 bits."""
FIRST_SEQUENCE: Final = 1
"""Of the partitions that a queue is made with."""

QueueState = Literal["creating", "active", "deleting"]
PartitionState = Literal["new", "open", "closing", "closed", "drained"]
"""What a partition does with new messages, and with receives and deletes:

new      none, for front ends do not use it · nothing
open     takes those of its keys · yes
closing  is asked first about each message; once its seal is committed it takes none · yes
closed   none · yes
drained  none; it answers about moves and transactions of before · is not asked
"""


class PartitionPlacement(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition in a queue's table: the journal that holds it whole, and the keys of its messages.

    Journal, keys and first sequence never change. `sends` and `deletions` are its counts for good, once it is drained.
    `is_given_up`: it is drained because an operator said that its journal is lost; what it had is not known.
    """

    number: int
    journal_id: int
    state: PartitionState = "open"
    first_key: int = 0
    last_key: int = KEY_MAX
    first_sequence: int = FIRST_SEQUENCE
    sends: int = 0
    deletions: int = 0
    is_given_up: bool = False


def _value_of(attribute: Attribute[T]) -> cached_property[T]:
    """Return a property of queue definitions: what an attribute in force means, worked out once."""

    def value(definition: QueueDefinition) -> T:
        return attribute.of(definition.attributes)

    return cached_property(value)


class QueueDefinition(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """A queue as metadata knows it.

    `queue_id` is 64 bits and never reused. `revision` starts at 1 and grows with each change of attributes.
    `attributes` holds only what the caller set, as SQS spells it; `attribute()` and the properties fill in the
    defaults. The properties are what attributes in force mean. They are computed once per definition and are plain
    look-ups afterwards; they give what collections of garbage need not look at, because a server may have 100,000 of
    these.

    A consumer group of a log-retained queue is a queue of its own: its name is `<log>@<group>`, `group_of` the log's id
    (0: it is no group). What it behaves like is said by its log's attributes: see `group_definition`.

    `policy_ids` has the ids of the users and roles that the policy names, by ARN, as they were when it was written.

    `partitions` is the partition table, oldest first (`core/values/partition_tables`). `table_version` counts its
    changes; `next_partition` is the number that the next new partition gets. `left_journals` had partitions that are
    not listed any more, and are still to be told so; `removed_sends` and `removed_deletions` are the counts of those.
    `given_up` says why the last change of the table was given up, for people; "": it was not.

    `has_keyed_ids`: deduplication ids are hashed with a key of the queue. It is so from the creation on or not at all:
    two front ends that hashed one id in two ways would store its message twice.
    """

    queue_id: int
    account_id: str
    name: str
    state: QueueState
    revision: int
    created_ms: int
    modified_ms: int
    attributes: dict[str, str]
    tags: dict[str, str]
    data_key_id: int
    partitions: tuple[PartitionPlacement, ...]
    group_of: int = 0
    has_keyed_ids: bool = False
    policy_ids: dict[str, str] = {}
    table_version: int = 1
    next_partition: int = 1
    left_journals: tuple[int, ...] = ()
    removed_sends: int = 0
    removed_deletions: int = 0
    given_up: str = ""

    def attribute(self, name: str) -> str | None:
        """Return the value in force, default included; None when the queue has no such attribute."""
        value = self.attributes.get(name)
        return self._defaults.get(name) if value is None else value

    def all_attributes(self) -> dict[str, str]:
        """Return every attribute in force that describes the queue, SQS's and our own, defaults included."""
        return {**self._defaults, **self.attributes}

    @property
    def _defaults(self) -> Mapping[str, str]:
        return defaults_of(kinds_of(self.attributes))

    is_fifo = _value_of(FIFO_QUEUE)
    visibility_timeout_ms = _value_of(VISIBILITY_TIMEOUT)
    delay_ms = _value_of(DELAY)
    retention_ms = _value_of(RETENTION)
    receive_wait_ms = _value_of(RECEIVE_WAIT)
    message_bytes_max = _value_of(MESSAGE_SIZE)
    content_based_dedup = _value_of(CONTENT_BASED_DEDUPLICATION)
    dedup_scope = _value_of(DEDUPLICATION_SCOPE)
    dedup_window_ms = _value_of(DEDUPLICATION_WINDOW)
    redrive_policy = _value_of(REDRIVE_POLICY)
    redrive_allow_policy = _value_of(REDRIVE_ALLOW_POLICY)
    kms_master_key_id = _value_of(KMS_KEY)
    kms_reuse_s = _value_of(KMS_REUSE)
    durability = _value_of(DURABILITY)
    """One of `Durability`, as a plain number."""
    delivery_guarantee = _value_of(DELIVERY_GUARANTEE)
    """One of `DeliveryGuarantee`, as a plain number."""
    retention_mode = _value_of(RETENTION_MODE)
    retention_bytes = _value_of(RETENTION_BYTES)
    retention_pins = _value_of(RETENTION_PINS)
    has_legal_hold = _value_of(LEGAL_HOLD)
    group_start = _value_of(GROUP_START)
    partitions_max = _value_of(PARTITIONS_MAX)
    has_peers = _value_of(REPLICATION_MODE)
    """Whether any of its partitions takes any message."""
    push_endpoint = _value_of(PUSH_ENDPOINT)
    """Where messages are pushed to; empty: they are not."""
    push_format = _value_of(PUSH_FORMAT)
    push_batch_size = _value_of(PUSH_BATCH_SIZE)
    push_concurrency_max = _value_of(PUSH_CONCURRENCY)
    push_timeout_ms = _value_of(PUSH_TIMEOUT)
    push_retry_policy = _value_of(PUSH_RETRY_POLICY)

    @cached_property
    def policy(self) -> PolicyInForce | None:
        """The access policy, compiled; None where there is none."""
        text = self.attributes.get(POLICY.name)
        # Its size is not checked: AddPermission may have made it longer than a caller may.
        return read_policy(text, unique_ids=self.policy_ids) if text else None

    @cached_property
    def is_at_most_once(self) -> bool:
        """Whether a receive takes its messages out of the queue."""
        return self.delivery_guarantee == DeliveryGuarantee.AT_MOST_ONCE

    @cached_property
    def is_exactly_once(self) -> bool:
        """Whether only the newest delivery of a message may finish it, and is told whether it did."""
        return self.delivery_guarantee == DeliveryGuarantee.EXACTLY_ONCE

    @cached_property
    def has_dedup_ids(self) -> bool:
        """Whether messages may be sent with deduplication ids."""
        return self.is_fifo or self.is_exactly_once

    @cached_property
    def dedup_scope_is_group(self) -> bool:
        return self.dedup_scope == "messageGroup"

    @property
    def is_split_by_group(self) -> bool:
        """Whether messages of different groups have nothing to do with each other, so that partitions can have some."""
        is_by_group = FIFO_THROUGHPUT_LIMIT.of(self.attributes) == "perMessageGroupId"
        return is_by_group and self.dedup_scope_is_group

    @cached_property
    def is_log(self) -> bool:
        """Whether messages stay when they are consumed, by groups that are queues of their own."""
        return self.retention_mode == LOG and not self.group_of

    @cached_property
    def keeps_all(self) -> bool:
        """Whether messages neither leave the queue nor come from other ones: a log, or one of its groups."""
        return self.is_log or self.group_of != 0


class UnknownDefinitionFormat(UnknownFormat):
    """The bytes are not a queue definition this program can read."""


_codec = RowCodec(
    QueueDefinition, "a queue definition", version=DEFINITION_VERSION, error=UnknownDefinitionFormat
)
encode_queue_definition = _codec.encode
"""Returns the bytes that metadata and journal store."""
decode_queue_definition = _codec.decode
"""Reads what `encode_queue_definition` wrote; UnknownDefinitionFormat names the version or the damage."""


def differing_attribute(definition: QueueDefinition, asked: Mapping[str, str]) -> str | None:
    """Return the first attribute of `asked` that the queue has another value for, or None.

    `asked` is spelled as attributes are kept; empty is one that the queue is not to have. Attributes that it leaves out
    are not compared; those the queue never set count with their defaults.
    """
    for name, text in asked.items():
        current = definition.attribute(name) or ""
        if current == text:
            continue
        read = SETTABLE[name].read
        if not current or not text or read(current) != read(text):
            return name
    return None


def replace_definition(definition: QueueDefinition, **changes: Any) -> QueueDefinition:
    """Return a copy with some fields changed; computed properties start afresh."""
    return msgspec.structs.replace(definition, **changes)


def group_definition(group: QueueDefinition, log: QueueDefinition) -> QueueDefinition:
    """Return a consumer group with what its log says of it: attributes and partitions, as of the log's revision."""
    return replace_definition(
        group,
        attributes=log.attributes,
        revision=log.revision,
        modified_ms=log.modified_ms,
        data_key_id=log.data_key_id,
        partitions=log.partitions,
        policy_ids=log.policy_ids,
        table_version=log.table_version,
        next_partition=log.next_partition,
    )


def one_partition(journal_id: int = 0) -> tuple[PartitionPlacement, ...]:
    """Return the partitions of a queue that is not split."""
    return (PartitionPlacement(0, journal_id),)
