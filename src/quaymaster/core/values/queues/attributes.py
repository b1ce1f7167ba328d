"""The attributes of queues, in one table: `ATTRIBUTES`. Nothing else in the program lists their names.

    caller's text ──values.parse──▶ the one spelling that is kept and shown ──read──▶ number, flag, policy

To add one that callers set, add an entry, and a property to QueueDefinition if something acts on it. What callers may
not combine is in `attribute_rules`. The entries stand in the order in which GetQueueAttributes returns defaults.

Source of names, defaults and limits: Amazon SQS API Reference, CreateQueue and SetQueueAttributes. Wrong values of the
service's own attributes are refused in its words, which name no limits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Flag, IntEnum, auto
from functools import cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from quaymaster.core.access.errors import PolicyError
from quaymaster.core.access.policies import (
    QUEUE_POLICY_BYTES_MAX,
    QUEUE_POLICY_STATEMENTS_MAX,
    PolicyInForce,
    check_queue_policy_size,
    compile_policy,
    read_policy,
)
from quaymaster.core.values.errors import CallerError, InvalidAttributeName, InvalidAttributeValue
from quaymaster.core.values.queues.policies import (
    RedriveAllowPolicy,
    RedrivePolicy,
    parse_redrive_allow_policy,
    parse_redrive_policy,
)
from quaymaster.core.values.queues.push_rules import (
    BACKOFF_S_MAX,
    PUSH_HEADERS_MAX,
    parse_endpoint_text,
    parse_headers_text,
    parse_retry_policy_text,
    read_retry_policy,
)
from quaymaster.core.values.queues.queue_names import is_group_name

T = TypeVar("T")

VISIBILITY_TIMEOUT_S_MAX: Final = 43_200
DELAY_S_MAX: Final = 900
MESSAGE_BYTES_MAX: Final = 1_048_576
RETENTION_S_MAX: Final = 1_209_600
LOG_RETENTION_S_MAX: Final = 315_360_000
"""Ten years."""
RETENTION_BYTES_MAX: Final = 10**15
PINS_MAX: Final = 10
PARTITIONS_MOST: Final = 64
"""The highest PartitionsMax."""
PUSH_PREFIX: Final = "Push"
"""What the names of attributes begin with that say how a queue is pushed."""
KEY_ID_CHARS_MAX: Final = 2_048
ED25519: Final = "Ed25519"
"""The PushSigning by which receivers hold no secret."""
PEERS: Final = "Peers"
"""The ReplicationMode of queues whose partitions are equal."""
LOG: Final = "Log"
"""The RetentionMode of queues whose messages stay when they are consumed."""
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_INTEGER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


class Durability(IntEnum):
    """What an acknowledged send has survived: nothing, the process's end on a majority, loss of power."""

    MEMORY = 0
    ASYNC = 1
    SYNC = 2


class DeliveryGuarantee(IntEnum):
    """How often a message is delivered, and whose deliveries may finish it."""

    AT_MOST_ONCE = 0
    AT_LEAST_ONCE = 1
    EXACTLY_ONCE = 2


GUARANTEES: Final[Mapping[str, DeliveryGuarantee]] = {
    "AtMostOnce": DeliveryGuarantee.AT_MOST_ONCE,
    "AtLeastOnce": DeliveryGuarantee.AT_LEAST_ONCE,
    "ExactlyOnce": DeliveryGuarantee.EXACTLY_ONCE,
}
"""By the texts that callers say."""


class QueueKinds(Flag):
    """Kinds of queues. Each queue is standard or FIFO, and may be of the others as well.

    A consumer group has the attributes of its log, and none of its own.
    """

    STANDARD = auto()
    FIFO = auto()
    LOG = auto()
    """It is log-retained."""
    KMS = auto()
    """It has a KmsMasterKeyId."""
    EXACTLY_ONCE = auto()
    """Its DeliveryGuarantee is ExactlyOnce."""


_ALL: Final = QueueKinds.STANDARD | QueueKinds.FIFO


class Values(NamedTuple):
    """The texts that an attribute accepts, in words, and what makes the one spelling of them.

    `parse` takes the attribute's name and the text. It raises InvalidAttributeValue or InvalidParameterValue.
    """

    words: str
    parse: Callable[[str, str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute(Generic[T]):
    """An attribute that callers set.

    `read` gives the meaning of a text that was parsed, and of the default. Of numbers it checks no limits, for they may
    have been others when the text was stored. `default` is in force in `queues` that have no value; empty: there is
    none, and GetQueueAttributes does not return it. `elsewhere` makes the error for other queues; None: those may have
    it, too.

    `fixed`: why it cannot be changed after the creation. `is_removable`: an empty text takes it away. `is_ours`: SQS
    does not have it, so GetQueueAttributes returns it with All only where somebody set it.
    """

    name: str
    meaning: str
    values: Values
    values_of_log: Values | None = None
    read: Callable[[str], T]
    default: str = ""
    queues: QueueKinds = _ALL
    elsewhere: Callable[[str], CallerError] | None = None
    fixed: str = ""
    is_removable: bool = False
    is_ours: bool = False

    def parse(self, text: str, *, is_log: bool) -> str:
        """Return the spelling of `text` that is kept. Raises InvalidAttributeValue or InvalidParameterValue."""
        values = self.values_of_log if is_log and self.values_of_log is not None else self.values
        return values.parse(self.name, text)

    def of(self, attributes: Mapping[str, str]) -> T:
        """Return what it is where it is one of `attributes`, else what its default is."""
        return self.read(attributes.get(self.name) or self.default)


class QueueFacts(msgspec.Struct, frozen=True, gc=False):
    """What attributes are computed from. The counts are of messages."""

    arn: str
    created_ms: int
    modified_ms: int
    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    limits: str = ""
    """Those that hold for who asks, as JSON."""
    push_state: str = ""
    push_allowed_rate: str = ""
    push_public_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedAttribute:
    """An attribute that can be read and not set.

    `is_count`: the broker must be asked for it. `is_ours`: SQS does not have it, so All does not ask for it.
    """

    name: str
    meaning: str
    render: Callable[[QueueFacts], str]
    is_count: bool = False
    is_ours: bool = False


# What values can be


def _number(least: int, most: int) -> Values:
    def parse(name: str, text: str) -> str:
        if _INTEGER.fullmatch(text) is None or not least <= int(text) <= most:
            raise InvalidAttributeValue.of(name)
        return str(int(text))

    return Values(f"{least:,}-{most:,}", parse)


def _our_number(least: int, most: int, unit: str) -> Values:
    def parse(name: str, text: str) -> str:
        if _INTEGER.fullmatch(text) is None or not least <= int(text) <= most:
            raise InvalidAttributeValue.of(
                name, f"It must be a whole number of {unit} between {least} and {most}."
            )
        return str(int(text))

    return Values(f"{least:,}-{most:,}", parse)


def _choice(*accepted: str) -> Values:
    def parse(name: str, text: str) -> str:
        if text not in accepted:
            raise InvalidAttributeValue.of(name)
        return text

    return Values(_listed(accepted), parse)


def _our_choice(*accepted: str) -> Values:
    def parse(name: str, text: str) -> str:
        if text not in accepted:
            raise InvalidAttributeValue.of(name, f"It must be {' or '.join(accepted)}.")
        return text

    return Values(_listed(accepted), parse)


def _listed(texts: tuple[str, ...]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def _boolean(reason: str = "") -> Values:
    def parse(name: str, text: str) -> str:
        value = text.lower()
        if value not in ("true", "false"):
            raise InvalidAttributeValue.of(name, reason)
        return value

    return Values(_listed(("true", "false")), parse)


def _parse_key_id(name: str, text: str) -> str:
    if len(text) > KEY_ID_CHARS_MAX or not text.isascii() or not text.isprintable():
        raise InvalidAttributeValue.of(name)
    return text


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


def _parse_policy(name: str, text: str) -> str:
    try:
        check_queue_policy_size(text, compile_policy(text))
    except PolicyError as error:
        raise InvalidAttributeValue.of(name, str(error)) from error
    return text


# What they mean


def _seconds_as_ms(text: str) -> int:
    return int(text) * 1_000


def _is_true(text: str) -> bool:
    return text == "true"


def _is_peers(text: str) -> bool:
    return text == PEERS


def _read_durability(text: str) -> int:
    return int(Durability[text.upper()])


def _read_guarantee(text: str) -> int:
    return int(GUARANTEES[text])


def _read_pins(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _read_policy(text: str) -> PolicyInForce | None:
    # Its size is not checked: AddPermission may have made it longer than a caller may.
    return read_policy(text) if text else None


def _read_redrive_policy(text: str) -> RedrivePolicy | None:
    return parse_redrive_policy(text) if text else None


def _read_redrive_allow_policy(text: str) -> RedriveAllowPolicy:
    return parse_redrive_allow_policy(text) if text else RedriveAllowPolicy()


# Where they are not


def _only_with_fifo(name: str) -> CallerError:
    return InvalidAttributeName(f"You can specify the {name} only when FifoQueue is set to true.")


def _only_of_logs(name: str) -> CallerError:
    return InvalidAttributeValue.of(name, "Only a queue with RetentionMode=Log has it.")


# The table

VISIBILITY_TIMEOUT: Final = Attribute(
    name="VisibilityTimeout",
    meaning="seconds for which a receive hides a message, if the receive names no other",
    values=_number(0, VISIBILITY_TIMEOUT_S_MAX),
    read=_seconds_as_ms,
    default="30",
)
DELAY: Final = Attribute(
    name="DelaySeconds",
    meaning="seconds until a message is visible, if the send names no other",
    values=_number(0, DELAY_S_MAX),
    read=_seconds_as_ms,
    default="0",
)
MESSAGE_SIZE: Final = Attribute(
    name="MaximumMessageSize",
    meaning="bytes of a message",
    values=_number(1_024, MESSAGE_BYTES_MAX),
    read=int,
    default=str(MESSAGE_BYTES_MAX),
)
RETENTION: Final = Attribute(
    name="MessageRetentionPeriod",
    meaning="seconds after which a message that was not deleted goes",
    values=_number(60, RETENTION_S_MAX),
    values_of_log=_our_number(60, LOG_RETENTION_S_MAX, "seconds"),
    read=_seconds_as_ms,
    default="345600",
)
RECEIVE_WAIT: Final = Attribute(
    name="ReceiveMessageWaitTimeSeconds",
    meaning="seconds that a receive waits for a message, if it names no other",
    values=_number(0, 20),
    read=_seconds_as_ms,
    default="0",
)
SQS_SSE: Final = Attribute(
    name="SqsManagedSseEnabled",
    meaning="kept and shown; messages are encrypted in any case. `false` with a `KmsMasterKeyId`",
    values=_boolean(),
    read=_is_true,
    default="true",
)
REPLICATION_MODE: Final = Attribute(
    name="ReplicationMode",
    meaning="`Peers`: a send goes to any of several equal partitions, and never waits for a failover",
    values=_our_choice("Leader", PEERS),
    read=_is_peers,
    default="Leader",
    fixed="It is given when a queue is created and cannot be changed.",
    is_ours=True,
)
PARTITIONS_MAX: Final = Attribute(
    name="PartitionsMax",
    meaning="into how many open partitions the queue may be split; 1: it is never split",
    values=_our_number(1, PARTITIONS_MOST, "partitions"),
    read=int,
    default="16",
    is_ours=True,
)
DURABILITY: Final = Attribute(
    name="Durability",
    meaning="what an acknowledged send has survived: nothing; the end of the process; loss of power",
    values=_our_choice("Memory", "Async", "Sync"),
    read=_read_durability,
    default="Sync",
    is_ours=True,
)
DELIVERY_GUARANTEE: Final = Attribute(
    name="DeliveryGuarantee",
    meaning="what is promised of deliveries, see [guarantees](../guides/guarantees.md)",
    values=_our_choice("AtLeastOnce", "AtMostOnce", "ExactlyOnce"),
    read=_read_guarantee,
    default="AtLeastOnce",
    is_ours=True,
)
DEDUPLICATION_WINDOW: Final = Attribute(
    name="DeduplicationWindowSeconds",
    meaning="for how long a deduplication id stands for the message that it was first sent with; above 300 the ids are "
    "stored with their messages, up to `dedup_ids_max`",
    values=_our_number(300, 86_400, "seconds"),
    read=_seconds_as_ms,
    default="300",
    queues=QueueKinds.FIFO | QueueKinds.EXACTLY_ONCE,
    is_ours=True,
)
RETENTION_MODE: Final = Attribute(
    name="RetentionMode",
    meaning="`Log`: messages stay when they are consumed, see [log-retained queues](api.md#log-retained-queues)",
    values=_our_choice("Delete", LOG),
    read=str,
    default="Delete",
    fixed="It is given when a queue is created and cannot be changed.",
    is_ours=True,
)
FIFO_QUEUE: Final = Attribute(
    name="FifoQueue",
    meaning="says again what the suffix `.fifo` of the name says",
    values=_boolean(),
    read=_is_true,
    queues=QueueKinds.FIFO,
    elsewhere=InvalidAttributeName.unknown,
    fixed="Modifying queue type is not supported.",
)
CONTENT_BASED_DEDUPLICATION: Final = Attribute(
    name="ContentBasedDeduplication",
    meaning="a message without a deduplication id has the hash of its body",
    values=_boolean(),
    read=_is_true,
    default="false",
    queues=QueueKinds.FIFO,
    elsewhere=InvalidAttributeName.unknown,
)
DEDUPLICATION_SCOPE: Final = Attribute(
    name="DeduplicationScope",
    meaning="where two messages with one deduplication id are the same message",
    values=_choice("queue", "messageGroup"),
    read=str,
    default="queue",
    queues=QueueKinds.FIFO,
    elsewhere=_only_with_fifo,
)
FIFO_THROUGHPUT_LIMIT: Final = Attribute(
    name="FifoThroughputLimit",
    meaning="kept and shown; nothing is throttled. `perMessageGroupId` needs the `DeduplicationScope` `messageGroup`",
    values=_choice("perQueue", "perMessageGroupId"),
    read=str,
    default="perQueue",
    queues=QueueKinds.FIFO,
    elsewhere=_only_with_fifo,
)
RETENTION_BYTES: Final = Attribute(
    name="RetentionBytes",
    meaning="bytes of messages that are kept, and up to 8 MiB or 4,096 messages more; 0: no limit",
    values=_our_number(0, RETENTION_BYTES_MAX, "bytes"),
    read=int,
    default="0",
    queues=QueueKinds.LOG,
    elsewhere=_only_of_logs,
    is_ours=True,
)
GROUP_START: Final = Attribute(
    name="GroupStart",
    meaning="where a consumer group starts that a receive makes",
    values=_our_choice(EARLIEST, LATEST),
    read=str,
    default=EARLIEST,
    queues=QueueKinds.LOG,
    elsewhere=_only_of_logs,
    is_ours=True,
)
RETENTION_PINS: Final = Attribute(
    name="RetentionPins",
    meaning="messages that one of these groups has not consumed stay, whatever their age and the log's size; a group "
    "that does not exist has consumed nothing",
    values=Values(f"up to {PINS_MAX} names of consumer groups, with commas in between", _parse_pins),
    read=_read_pins,
    queues=QueueKinds.LOG,
    elsewhere=_only_of_logs,
    is_removable=True,
    is_ours=True,
)
LEGAL_HOLD: Final = Attribute(
    name="LegalHold",
    meaning="`true`: no message goes by age or size, and PurgeQueue and DeleteQueue are UnsupportedOperation",
    values=_boolean("It must be true or false."),
    read=_is_true,
    default="false",
    queues=QueueKinds.LOG,
    elsewhere=_only_of_logs,
    is_ours=True,
)
KMS_KEY: Final = Attribute(
    name="KmsMasterKeyId",
    meaning="the key that messages depend on, by id, ARN or alias, where `kms` is on; else kept and shown. It is not "
    "checked when it is set",
    values=Values(f"up to {KEY_ID_CHARS_MAX:,} printable ASCII characters", _parse_key_id),
    read=str,
    is_removable=True,
)
KMS_REUSE: Final = Attribute(
    name="KmsDataKeyReusePeriodSeconds",
    meaning="how long a data key is used before the key service is asked again",
    values=_number(60, 86_400),
    read=int,
    default="300",
    queues=QueueKinds.KMS,
)
POLICY: Final = Attribute(
    name="Policy",
    meaning="the access policy: who may do what with the queue",
    values=Values(
        f"JSON of up to {QUEUE_POLICY_BYTES_MAX:,} bytes and {QUEUE_POLICY_STATEMENTS_MAX} statements",
        _parse_policy,
    ),
    read=_read_policy,
    is_removable=True,
)
REDRIVE_POLICY: Final = Attribute(
    name="RedrivePolicy",
    meaning="where messages go that were received too often",
    values=Values(
        "JSON with `deadLetterTargetArn` and `maxReceiveCount`",
        lambda name, text: str(parse_redrive_policy(text)),
    ),
    read=_read_redrive_policy,
    is_removable=True,
)
REDRIVE_ALLOW_POLICY: Final = Attribute(
    name="RedriveAllowPolicy",
    meaning="which queues may name this one as their dead-letter queue; all of them when nothing was said",
    values=Values(
        "JSON with `redrivePermission` and `sourceQueueArns`",
        lambda name, text: str(parse_redrive_allow_policy(text)),
    ),
    read=_read_redrive_allow_policy,
    is_removable=True,
)
PUSH_ENDPOINT: Final = Attribute(
    name="PushEndpoint",
    meaning="where messages are pushed to. Plain http is for `outbound_networks` alone. "
    "Logs and audit events do not have its query",
    values=Values("an https URL", parse_endpoint_text),
    read=str,
    is_removable=True,
    is_ours=True,
)
PUSH_FORMAT: Final = Attribute(
    name="PushFormat",
    meaning="what a call looks like: a CloudEvent in binary mode; a CloudEvent in JSON, or an array of them; an event "
    "of AWS Lambda",
    values=_our_choice("CloudEvents", "CloudEventsJson", "Lambda"),
    read=str,
    default="CloudEvents",
    is_ours=True,
)
PUSH_BATCH_SIZE: Final = Attribute(
    name="PushBatchSize",
    meaning="messages that a call has at most; 1 with the `PushFormat` `CloudEvents`",
    values=_our_number(1, 10, "messages"),
    read=int,
    default="1",
    is_ours=True,
)
PUSH_CONCURRENCY: Final = Attribute(
    name="PushMaxConcurrency",
    meaning="calls that are under way at once, at most",
    values=_our_number(1, 1_000, "calls"),
    read=int,
    default="10",
    is_ours=True,
)
PUSH_TIMEOUT: Final = Attribute(
    name="PushTimeoutSeconds",
    meaning="seconds that the endpoint has for its answer; its messages are hidden for 5 s more",
    values=_our_number(1, 900, "seconds"),
    read=_seconds_as_ms,
    default="30",
    is_ours=True,
)
PUSH_RETRY_POLICY: Final = Attribute(
    name="PushRetryPolicy",
    meaning="for how long a message is hidden that was not taken; each time twice as long, up to the maximum",
    values=Values(
        f"JSON with `minBackoffSeconds` and `maxBackoffSeconds`, 1-{BACKOFF_S_MAX:,} each",
        parse_retry_policy_text,
    ),
    read=read_retry_policy,
    default='{"minBackoffSeconds":10,"maxBackoffSeconds":600}',
    is_ours=True,
)
PUSH_SIGNING: Final = Attribute(
    name="PushSigning",
    meaning="how calls are signed, by the rules of Standard Webhooks: with a secret that receivers have as well, or "
    "with a private key, of which they have the public one",
    values=_our_choice("HMAC", ED25519),
    read=str,
    default="HMAC",
    is_ours=True,
)
PUSH_HEADERS: Final = Attribute(
    name="PushHeaders",
    meaning="headers for each call, such as credentials. They are shown as `***`, and are for one host: another "
    "`PushEndpoint` needs them given again",
    values=Values(f"JSON of up to {PUSH_HEADERS_MAX} headers by name", parse_headers_text),
    read=str,
    is_removable=True,
    is_ours=True,
)
VISIBLE_MESSAGES: Final = ComputedAttribute(
    name="ApproximateNumberOfMessages",
    meaning="visible messages; exact",
    render=lambda facts: str(facts.visible),
    is_count=True,
)
MESSAGES_IN_FLIGHT: Final = ComputedAttribute(
    name="ApproximateNumberOfMessagesNotVisible",
    meaning="messages in flight; exact",
    render=lambda facts: str(facts.in_flight),
    is_count=True,
)
DELAYED_MESSAGES: Final = ComputedAttribute(
    name="ApproximateNumberOfMessagesDelayed",
    meaning="delayed messages; exact",
    render=lambda facts: str(facts.delayed),
    is_count=True,
)
QUEUE_ARN: Final = ComputedAttribute(
    name="QueueArn",
    meaning="the queue's ARN",
    render=lambda facts: facts.arn,
)
CREATED: Final = ComputedAttribute(
    name="CreatedTimestamp",
    meaning="when the queue was created, in seconds since 1970",
    render=lambda facts: str(facts.created_ms // 1_000),
)
LAST_MODIFIED: Final = ComputedAttribute(
    name="LastModifiedTimestamp",
    meaning="when its attributes were last set, in seconds since 1970",
    render=lambda facts: str(facts.modified_ms // 1_000),
)
EFFECTIVE_LIMITS: Final = ComputedAttribute(
    name="EffectiveLimits",
    meaning="requests and bytes a second that are the limits of whoever asks: JSON, see [limits](../guides/limits.md); "
    "only by its name",
    render=lambda facts: facts.limits,
    is_ours=True,
)
PUSH_STATE: Final = ComputedAttribute(
    name="PushState",
    meaning="how calls to the `PushEndpoint` go: `verifying`, `active`, `unreachable`, `gone` or `refused`; only where "
    "there is an endpoint",
    render=lambda facts: facts.push_state,
    is_ours=True,
)
PUSH_ALLOWED_RATE: Final = ComputedAttribute(
    name="PushAllowedRate",
    meaning="how many calls a minute the endpoint allows, as it said in the handshake; only where it named a number",
    render=lambda facts: facts.push_allowed_rate,
    is_ours=True,
)
PUSH_PUBLIC_KEY: Final = ComputedAttribute(
    name="PushPublicKey",
    meaning="by which receivers verify calls: `whpk_` and base64; only where there is an endpoint and `PushSigning` is "
    "`Ed25519`",
    render=lambda facts: facts.push_public_key,
    is_ours=True,
)

_ALL_ABOVE: Final = tuple(vars().values())
COMPUTED: Final[Mapping[str, ComputedAttribute]] = {
    entry.name: entry for entry in _ALL_ABOVE if isinstance(entry, ComputedAttribute)
}
SETTABLE: Final[Mapping[str, Attribute[Any]]] = {
    entry.name: entry for entry in _ALL_ABOVE if isinstance(entry, Attribute)
}
ATTRIBUTES: Final[Mapping[str, Attribute[Any] | ComputedAttribute]] = {**COMPUTED, **SETTABLE}
"""Every attribute above by its name."""


@cache
def defaults_of(queues: QueueKinds) -> Mapping[str, str]:
    """Return the attributes that queues of these kinds have when nothing was said, as they are spelled."""
    defaults = {
        name: attribute.default
        for name, attribute in SETTABLE.items()
        if attribute.default and attribute.queues & queues
    }
    if QueueKinds.KMS in queues:
        defaults[SQS_SSE.name] = "false"  # a queue's own key switches the service's off
    return defaults


def kinds_of(attributes: Mapping[str, str]) -> QueueKinds:
    """Return what kinds of queue one with these attributes is."""
    kinds = QueueKinds.FIFO if FIFO_QUEUE.of(attributes) else QueueKinds.STANDARD
    if RETENTION_MODE.of(attributes) == LOG:
        kinds |= QueueKinds.LOG
    if KMS_KEY.name in attributes:
        kinds |= QueueKinds.KMS
    if DELIVERY_GUARANTEE.of(attributes) == DeliveryGuarantee.EXACTLY_ONCE:
        kinds |= QueueKinds.EXACTLY_ONCE
    return kinds
