"""What can be said of a queue: its attributes, their values, defaults and limits, and which exclude each
other.

Values stay the strings they are on the wire, in one canonical spelling, beside the numbers the rest of the
system works with. Attributes of our own are accepted like the service's; what they may one day mean but do
not yet is refused by name.

Source: Amazon SQS API Reference, CreateQueue and SetQueueAttributes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Self

import msgspec

from quaymaster.core.values.errors import InvalidAttributeName, InvalidAttributeValue
from quaymaster.core.values.policies import (
    RedriveAllowPolicy,
    RedrivePolicy,
    invalid_redrive_policy,
    parse_policy,
    parse_redrive_allow_policy,
    parse_redrive_policy,
)
from quaymaster.core.values.queue_names import QueueArn, check_queue_name, is_fifo_name, is_group_name

MESSAGE_BYTES_MAX = 1_048_576
_KEY_ID_CHARS_MAX = 2_048
_INTEGER = re.compile(r"[0-9]{1,18}", re.ASCII)

# Name: smallest, largest, default.
_NUMBERS: dict[str, tuple[int, int, int]] = {
    "DelaySeconds": (0, 900, 0),
    "MaximumMessageSize": (1_024, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX),
    "MessageRetentionPeriod": (60, 1_209_600, 345_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20, 0),
    "VisibilityTimeout": (0, 43_200, 30),
}
_KMS_REUSE = "KmsDataKeyReusePeriodSeconds"
_KMS_REUSE_LIMITS = (60, 86_400, 300)
_KMS_REUSE_DEFAULT = str(_KMS_REUSE_LIMITS[2])
LOG_RETENTION_S_MAX = 315_360_000
"""Ten years."""
RETENTION_BYTES_MAX = 10**15
# Smallest, largest, unit.
_LOG_LIMITS: dict[str, tuple[int, int, str]] = {
    "MessageRetentionPeriod": (60, LOG_RETENTION_S_MAX, "seconds"),
    "RetentionBytes": (0, RETENTION_BYTES_MAX, "bytes"),
}
_LIMITS: dict[str, tuple[int, int, int]] = {
    **_NUMBERS,
    _KMS_REUSE: _KMS_REUSE_LIMITS,
}
_OF_LOGS = ("RetentionBytes", "GroupStart", "RetentionPins", "LegalHold")
PINS_MAX = 10

_DEFAULTS = {name: str(limits[2]) for name, limits in _NUMBERS.items()} | {"SqsManagedSseEnabled": "true"}
_FIFO_DEFAULTS = {
    "FifoQueue": "true",
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}

# An empty value takes these away.
_REMOVABLE = frozenset(
    {"KmsMasterKeyId", "Policy", "RedriveAllowPolicy", "RedrivePolicy", "PushEndpoint", "RetentionPins"}
)

_CHOICES: dict[str, tuple[str, ...]] = {
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
# Ours: the values each can have, and those that are refused until they are built.
_OUR_CHOICES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Durability": (("Memory", "Async", "Sync"), ()),
    "ReplicationMode": (("Leader",), ("Peers",)),
    "DeliveryGuarantee": (("AtLeastOnce",), ("AtMostOnce", "ExactlyOnce")),
    "RetentionMode": (("Delete", "Log"), ()),
    "GroupStart": (("earliest", "latest"), ()),
}
_OUR_DEFAULTS = {
    "Durability": "Sync",
    "ReplicationMode": "Leader",
    "DeliveryGuarantee": "AtLeastOnce",
    "RetentionMode": "Delete",
    "RetentionBytes": "0",
    "GroupStart": "earliest",
    "LegalHold": "false",
}

COMPUTED_NAMES = frozenset(
    {
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesDelayed",
        "ApproximateNumberOfMessagesNotVisible",
        "CreatedTimestamp",
        "LastModifiedTimestamp",
        "QueueArn",
    }
)
"""Attributes that can be read but not set; the front end knows their values."""


class QueueAttributes(msgspec.Struct, frozen=True):
    """The attributes of one queue. `values` has every one that is set or has a default, as the service spells
    it.

    Attributes of our own are in `values` only where somebody set them. Times are in milliseconds.
    """

    values: dict[str, str]
    is_fifo: bool
    delay_ms: int
    message_bytes_max: int
    retention_ms: int
    receive_wait_ms: int
    visibility_timeout_ms: int
    content_based_deduplication: bool
    deduplicates_by_group: bool
    throughput_is_per_group: bool
    redrive_policy: RedrivePolicy | None
    redrive_allow_policy: RedriveAllowPolicy | None
    is_encrypted: bool
    durability: str
    is_log: bool

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Self:
        """Build from canonical values: those of another QueueAttributes, kept somewhere in between."""
        redrive = values.get("RedrivePolicy")
        redrive_allow = values.get("RedriveAllowPolicy")
        return cls(
            values=dict(values),
            is_fifo=values.get("FifoQueue") == "true",
            delay_ms=int(values["DelaySeconds"]) * 1000,
            message_bytes_max=int(values["MaximumMessageSize"]),
            retention_ms=int(values["MessageRetentionPeriod"]) * 1000,
            receive_wait_ms=int(values["ReceiveMessageWaitTimeSeconds"]) * 1000,
            visibility_timeout_ms=int(values["VisibilityTimeout"]) * 1000,
            content_based_deduplication=values.get("ContentBasedDeduplication") == "true",
            deduplicates_by_group=values.get("DeduplicationScope") == "messageGroup",
            throughput_is_per_group=values.get("FifoThroughputLimit") == "perMessageGroupId",
            redrive_policy=None if redrive is None else parse_redrive_policy(redrive),
            redrive_allow_policy=None if redrive_allow is None else parse_redrive_allow_policy(redrive_allow),
            is_encrypted=values["SqsManagedSseEnabled"] == "true" or "KmsMasterKeyId" in values,
            durability=values.get("Durability", _OUR_DEFAULTS["Durability"]),
            is_log=values.get("RetentionMode") == "Log",
        )


def create_attributes(queue: QueueArn, given: Mapping[str, str] | None) -> QueueAttributes:
    """Return the attributes of the new queue `queue`, whose name is checked too.

    Raises InvalidParameterValue, InvalidAttributeName or InvalidAttributeValue.
    """
    given = given or {}
    fifo = is_fifo_name(queue.name)
    wants_fifo = _wants_fifo(given)
    check_queue_name(queue.name, fifo=wants_fifo)
    values = dict(_DEFAULTS)
    if fifo:
        values |= _FIFO_DEFAULTS
    return _change(queue, values, given)


def change_attributes(queue: QueueArn, current: QueueAttributes, given: Mapping[str, str]) -> QueueAttributes:
    """Return the attributes of `queue` after SetQueueAttributes. Raises as `create_attributes` does."""
    changed = _change(queue, dict(current.values), given)
    if changed.is_log != current.is_log:
        raise InvalidAttributeValue.of(
            "RetentionMode", "It is given when a queue is created and cannot be changed."
        )
    return changed


def first_difference(
    queue: QueueArn, existing: QueueAttributes, given: Mapping[str, str] | None
) -> str | None:
    """Return the attribute in which a repeated CreateQueue asks for another queue than exists, or None.

    Only attributes that are given count. Raises as `create_attributes` does.
    """
    asked = create_attributes(queue, given)
    for name in given or {}:
        default = _OUR_DEFAULTS.get(name)
        if asked.values.get(name, default) != existing.values.get(name, default):
            return name
    return None


def check_attribute_names(names: Iterable[str] | None) -> frozenset[str] | None:
    """Return the attributes GetQueueAttributes asks for, None for all of them.

    Raises InvalidAttributeName.
    """
    asked = frozenset(names or ())
    for name in asked:
        if name != "All" and name not in COMPUTED_NAMES and not is_attribute_name(name):
            raise InvalidAttributeName.unknown(name)
    return None if "All" in asked else asked


def is_attribute_name(name: str) -> bool:
    """Return whether this is the name of an attribute that can be set on some queue."""
    return name in _PARSERS


def _wants_fifo(given: Mapping[str, str]) -> bool:
    value = given.get("FifoQueue")
    return value is not None and _parse_boolean("FifoQueue", value) == "true"


def _change(queue: QueueArn, values: dict[str, str], given: Mapping[str, str]) -> QueueAttributes:
    fifo = is_fifo_name(queue.name)
    is_log = given.get("RetentionMode", values.get("RetentionMode")) == "Log"
    parsers = _LOG_PARSERS if is_log else _PARSERS
    for name, text in given.items():
        parse = parsers.get(name)
        if parse is None:
            raise InvalidAttributeName.unknown(name)
        if not fifo and name in _FIFO_DEFAULTS:
            raise _not_without_fifo(name)
        if text == "" and name in _REMOVABLE:
            values.pop(name, None)
            continue
        values[name] = parse(name, text)
    if fifo and values["FifoQueue"] != "true":
        raise InvalidAttributeValue.of("FifoQueue", "Modifying queue type is not supported.")
    if values.get("FifoThroughputLimit") == "perMessageGroupId" and values["DeduplicationScope"] == "queue":
        raise InvalidAttributeValue(
            "The perMessageGroupId value is allowed only when the value for DeduplicationScope is "
            "messageGroup."
        )
    _settle_encryption(values, given)
    _check_retention(values, given)
    attributes = QueueAttributes.of(values)
    if "RedrivePolicy" in given and attributes.redrive_policy is not None:
        _check_dead_letter_queue(queue, attributes.redrive_policy, given["RedrivePolicy"])
    return attributes


def _check_retention(values: Mapping[str, str], given: Mapping[str, str]) -> None:
    if values.get("RetentionMode") == "Log":
        return
    for name in _OF_LOGS:
        if name in given:
            raise InvalidAttributeValue.of(name, "Only a queue with RetentionMode=Log has it.")


def _not_without_fifo(name: str) -> InvalidAttributeName:
    if name in ("DeduplicationScope", "FifoThroughputLimit"):
        return InvalidAttributeName(f"You can specify the {name} only when FifoQueue is set to true.")
    return InvalidAttributeName.unknown(name)


def _settle_encryption(values: dict[str, str], given: Mapping[str, str]) -> None:
    """Let a key of the queue's own switch the service's off; to ask for both is an error."""
    if "KmsMasterKeyId" not in values:
        is_leftover = "KmsMasterKeyId" in given and _KMS_REUSE not in given
        if is_leftover or values.get(_KMS_REUSE) == _KMS_REUSE_DEFAULT:
            values.pop(_KMS_REUSE, None)
        return
    if given.get("SqsManagedSseEnabled") is not None and values["SqsManagedSseEnabled"] == "true":
        raise InvalidAttributeName(
            "You can use one type of server-side encryption (SSE) at one time. "
            "You can either enable KMS SSE or SQS SSE."
        )
    values["SqsManagedSseEnabled"] = "false"
    values.setdefault(_KMS_REUSE, _KMS_REUSE_DEFAULT)


def _check_dead_letter_queue(queue: QueueArn, policy: RedrivePolicy, text: str) -> None:
    target = policy.target
    if (target.region, target.account_id) != (queue.region, queue.account_id):
        raise invalid_redrive_policy(text, "Dead-letter target owner should be same as the source.")
    if is_fifo_name(target.name) != is_fifo_name(queue.name):
        raise invalid_redrive_policy(text, "Dead-letter queue must be same type of queue as the source.")


# One attribute. What is wrong with the service's own is told in its words, which name no limits.


def _parse_boolean(name: str, text: str) -> str:
    value = text.lower()
    if value not in ("true", "false"):
        raise InvalidAttributeValue.of(name)
    return value


def _parse_our_boolean(name: str, text: str) -> str:
    value = text.lower()
    if value not in ("true", "false"):
        raise InvalidAttributeValue.of(name, "It must be true or false.")
    return value


def _parse_number(name: str, text: str) -> str:
    smallest, largest, _ = _LIMITS[name]
    if _INTEGER.fullmatch(text) is None or not smallest <= int(text) <= largest:
        raise InvalidAttributeValue.of(name)
    return str(int(text))


def _parse_log_number(name: str, text: str) -> str:
    smallest, largest, unit = _LOG_LIMITS[name]
    if _INTEGER.fullmatch(text) is None or not smallest <= int(text) <= largest:
        raise InvalidAttributeValue.of(
            name, f"It must be a whole number of {unit} between {smallest} and {largest}."
        )
    return str(int(text))


def _parse_choice(name: str, text: str) -> str:
    if text not in _CHOICES[name]:
        raise InvalidAttributeValue.of(name)
    return text


def _parse_our_choice(name: str, text: str) -> str:
    accepted, later = _OUR_CHOICES[name]
    if text in later:
        raise InvalidAttributeValue.of(name, f"{text} is not supported yet.")
    if text not in accepted:
        raise InvalidAttributeValue.of(name, f"It must be {' or '.join(accepted)}.")
    return text


def _parse_key_id(name: str, text: str) -> str:
    if len(text) > _KEY_ID_CHARS_MAX or not text.isascii() or not text.isprintable():
        raise InvalidAttributeValue.of(name)
    return text


def _refuse(name: str, text: str) -> str:
    raise InvalidAttributeValue.of(name, f"{name} is not supported yet.")


def _parse_pins(name: str, text: str) -> str:
    """Names of consumer groups, in the order given."""
    groups = [group.strip() for group in text.split(",")]
    if len(groups) > PINS_MAX:
        raise InvalidAttributeValue.of(name, f"It names at most {PINS_MAX} consumer groups.")
    for group in groups:
        if not is_group_name(group):
            raise InvalidAttributeValue.of(
                name, "It names consumer groups, with commas in between: 1-80 letters, digits, - and _ each."
            )
    return ",".join(dict.fromkeys(groups))


def _check_policy(name: str, text: str) -> str:
    parse_policy(text)
    return text


_PARSERS: dict[str, Callable[[str, str], str]] = {
    **dict.fromkeys(_LIMITS, _parse_number),
    **dict.fromkeys(_CHOICES, _parse_choice),
    **dict.fromkeys(_OUR_CHOICES, _parse_our_choice),
    "ContentBasedDeduplication": _parse_boolean,
    "FifoQueue": _parse_boolean,
    "KmsMasterKeyId": _parse_key_id,
    "LegalHold": _parse_our_boolean,
    "Policy": _check_policy,
    "PushEndpoint": _refuse,
    "RedriveAllowPolicy": lambda name, text: str(parse_redrive_allow_policy(text)),
    "RedrivePolicy": lambda name, text: str(parse_redrive_policy(text)),
    "RetentionBytes": _parse_log_number,
    "RetentionPins": _parse_pins,
    "SqsManagedSseEnabled": _parse_boolean,
}
_LOG_PARSERS = {**_PARSERS, **dict.fromkeys(_LOG_LIMITS, _parse_log_number)}
