"""What a queue is: its identity, its attributes as the caller set them, and what they mean in numbers.

Metadata owns definitions and stores them; the journal gets each revision in a QUEUE_SET record. Both keep the
same bytes:

    version u8 · MessagePack array of the fields of `QueueDefinition`, in order

To change the format: append fields with defaults (older bytes then still decode) or raise DEFINITION_VERSION
and keep decoding the old one. Never reorder or reuse a field: the bytes are on disk.

Source of names, defaults and units: Amazon SQS API Reference, SetQueueAttributes; those SQS does not have
(`ReplicationMode`, `Durability`, `DeliveryGuarantee`, `RetentionMode`, `RetentionBytes`, `GroupStart`, `RetentionPins`,
`LegalHold`) are ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal

import msgspec

from quaymaster.core.values.formats import UnknownFormat
from quaymaster.core.values.policies import (
    RedriveAllowPolicy,
    RedrivePolicy,
    parse_redrive_allow_policy,
    parse_redrive_policy,
)

DEFINITION_VERSION = 1

QueueState = Literal["creating", "active", "deleting"]

STANDARD_DEFAULTS: Mapping[str, str] = {
    "VisibilityTimeout": "30",
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "true",
}
"""What a queue has when nothing was said, as GetQueueAttributes gives it."""

FIFO_DEFAULTS: Mapping[str, str] = {
    "FifoQueue": "true",
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}
"""What a FIFO queue has besides."""

OWN_DEFAULTS: Mapping[str, str] = {
    "ReplicationMode": "Leader",
    "Durability": "Sync",
    "DeliveryGuarantee": "AtLeastOnce",
    "RetentionMode": "Delete",
}
"""Attributes that SQS does not have."""

LOG_DEFAULTS: Mapping[str, str] = {
    "RetentionBytes": "0",
    "GroupStart": "earliest",
    "LegalHold": "false",
}
"""What a log-retained queue has besides."""

KMS_REUSE_PERIOD = "KmsDataKeyReusePeriodSeconds"
_KMS_DEFAULTS: Mapping[str, str] = {KMS_REUSE_PERIOD: "300"}
_JSON_ATTRIBUTES = frozenset({"Policy", "RedrivePolicy", "RedriveAllowPolicy"})
_BOOLEAN_ATTRIBUTES = frozenset({"FifoQueue", "ContentBasedDeduplication", "SqsManagedSseEnabled"})


class Durability(IntEnum):
    """What an acknowledged send has survived: nothing, the process's end on a majority, loss of power."""

    MEMORY = 0
    ASYNC = 1
    SYNC = 2


class Partition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One slice of a queue and the journal that holds it whole."""

    number: int
    journal_id: int


class QueueDefinition(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """A queue as metadata knows it.

    `queue_id` is 64 bits and never reused. `revision` starts at 1 and grows with each change of attributes.
    `attributes` holds only what the caller set, as SQS spells it; `attribute()` and the properties fill in
    the defaults. The properties are computed once per definition and are plain look-ups afterwards; they give what
    collections of garbage need not look at, because a server may have 100,000 of these.

    A consumer group of a log-retained queue is a queue of its own: its name is `<log>@<group>`, `group_of` the log's id
    (0: it is no group). What it behaves like is said by its log's attributes: see `group_definition`.

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
    partitions: tuple[Partition, ...]
    group_of: int = 0
    has_keyed_ids: bool = False

    def attribute(self, name: str) -> str | None:
        """Return the value in force, default included; None when the queue has no such attribute."""
        value = self.attributes.get(name)
        return self._defaults.get(name) if value is None else value

    def all_attributes(self) -> dict[str, str]:
        """Return every attribute in force that describes the queue, SQS's and our own, defaults included."""
        return {**self._defaults, **self.attributes}

    @cached_property
    def _defaults(self) -> dict[str, str]:
        defaults = {**STANDARD_DEFAULTS, **OWN_DEFAULTS}
        if self.is_fifo:
            defaults.update(FIFO_DEFAULTS)
        if self.attributes.get("RetentionMode") == "Log":
            defaults.update(LOG_DEFAULTS)
        if "KmsMasterKeyId" in self.attributes:
            defaults.update(_KMS_DEFAULTS)
            defaults["SqsManagedSseEnabled"] = "false"
        return defaults

    def _seconds_as_ms(self, name: str) -> int:
        return int(self.attributes.get(name) or STANDARD_DEFAULTS[name]) * 1000

    @cached_property
    def is_fifo(self) -> bool:
        return self.attributes.get("FifoQueue", "").lower() == "true"

    @cached_property
    def is_log(self) -> bool:
        """Whether messages stay when they are consumed, by groups that are queues of their own."""
        return self.attributes.get("RetentionMode") == "Log" and not self.group_of

    @cached_property
    def keeps_all(self) -> bool:
        """Whether messages neither leave the queue nor come from other ones: a log, or one of its groups."""
        return self.is_log or self.group_of != 0

    @cached_property
    def retention_bytes(self) -> int:
        """So many bytes of messages a log keeps; 0: there is no limit."""
        return int(self.attributes.get("RetentionBytes") or LOG_DEFAULTS["RetentionBytes"])

    @cached_property
    def retention_pins(self) -> tuple[str, ...]:
        """The consumer groups for which a log keeps what they have not consumed, beyond age and size."""
        text = self.attributes.get("RetentionPins")
        return tuple(text.split(",")) if text else ()

    @cached_property
    def has_legal_hold(self) -> bool:
        """Whether nothing of a log may go, whatever its age and size."""
        return self.attributes.get("LegalHold") == "true"

    @cached_property
    def visibility_timeout_ms(self) -> int:
        return self._seconds_as_ms("VisibilityTimeout")

    @cached_property
    def delay_ms(self) -> int:
        return self._seconds_as_ms("DelaySeconds")

    @cached_property
    def retention_ms(self) -> int:
        return self._seconds_as_ms("MessageRetentionPeriod")

    @cached_property
    def receive_wait_ms(self) -> int:
        return self._seconds_as_ms("ReceiveMessageWaitTimeSeconds")

    @cached_property
    def message_bytes_max(self) -> int:
        return int(self.attributes.get("MaximumMessageSize") or STANDARD_DEFAULTS["MaximumMessageSize"])

    @cached_property
    def content_based_dedup(self) -> bool:
        return self.is_fifo and self.attributes.get("ContentBasedDeduplication", "").lower() == "true"

    @cached_property
    def dedup_scope_is_group(self) -> bool:
        return self.is_fifo and self.attributes.get("DeduplicationScope") == "messageGroup"

    @cached_property
    def high_throughput_fifo(self) -> bool:
        return self.is_fifo and self.attributes.get("FifoThroughputLimit") == "perMessageGroupId"

    @cached_property
    def redrive_policy(self) -> RedrivePolicy | None:
        """Where messages go that are received too often; None without a dead-letter queue."""
        text = self.attributes.get("RedrivePolicy")
        return parse_redrive_policy(text) if text else None

    @cached_property
    def redrive_allow_policy(self) -> RedriveAllowPolicy:
        """Who may use this queue as a dead-letter queue; everybody when nothing was said."""
        text = self.attributes.get("RedriveAllowPolicy")
        return parse_redrive_allow_policy(text) if text else RedriveAllowPolicy()

    @cached_property
    def durability(self) -> int:
        """One of `Durability`, as a plain number."""
        return int(Durability[(self.attributes.get("Durability") or OWN_DEFAULTS["Durability"]).upper()])


class UnknownDefinitionFormat(UnknownFormat):
    """The bytes are not a queue definition this program can read."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(QueueDefinition)
_VERSION_BYTE = bytes([DEFINITION_VERSION])


def encode_queue_definition(definition: QueueDefinition) -> bytes:
    """Return the bytes metadata and journal store."""
    return _VERSION_BYTE + _encoder.encode(definition)


def decode_queue_definition(data: bytes | memoryview) -> QueueDefinition:
    """Read what `encode_queue_definition` wrote; UnknownDefinitionFormat names the version or the damage."""
    if not data:
        raise UnknownDefinitionFormat("a queue definition cannot be empty")
    if data[0] != DEFINITION_VERSION:
        raise UnknownDefinitionFormat(
            f"queue definition version {data[0]} is not known; this program reads version {DEFINITION_VERSION}. "
            "Start the version of Quaymaster that wrote it"
        )
    try:
        return _decoder.decode(memoryview(data)[1:])
    except msgspec.MsgspecError as error:
        raise UnknownDefinitionFormat(f"not a queue definition: {error}") from error


# Comparing attributes


def normalize_attribute(name: str, value: str) -> object:
    """Return a value that is equal for two spellings of one meaning (JSON layout, "30" and "030", "True")."""
    if name in _JSON_ATTRIBUTES:
        return _normalize_json(name, value)
    if name in _BOOLEAN_ATTRIBUTES:
        return value.lower()
    return int(value) if value.isascii() and value.isdigit() else value


def _normalize_json(name: str, value: str) -> object:
    try:
        parsed: Any = json.loads(value)
    except ValueError:
        return value
    if name == "RedrivePolicy" and isinstance(parsed, dict) and "maxReceiveCount" in parsed:
        parsed["maxReceiveCount"] = str(parsed["maxReceiveCount"])
    return parsed


def first_difference(definition: QueueDefinition, requested: Mapping[str, str]) -> str | None:
    """Return the first attribute of `requested` that the queue has another value for, or None.

    Attributes the request leaves out are not compared; those the queue never set count with their defaults.
    """
    for name, value in requested.items():
        current = definition.attribute(name) or ""
        if current != value and normalize_attribute(name, current) != normalize_attribute(name, value):
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
    )


def one_partition(journal_id: int = 0) -> tuple[Partition, ...]:
    """Return the partitions of a queue that is not split."""
    return (Partition(0, journal_id),)
