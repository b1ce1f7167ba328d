"""What callers may say of a queue's attributes together: with which queue, with which others, and when.

What they may say of each alone is in the table (`attributes`). Attributes are kept as callers set them, in one
spelling; the defaults of the rest are not kept.

Source: Amazon SQS API Reference, CreateQueue and SetQueueAttributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from quaymaster.core.values.errors import InvalidAttributeName, InvalidAttributeValue
from quaymaster.core.values.formats import DELIVERY, CellFormat
from quaymaster.core.values.queues.attributes import (
    ATTRIBUTES,
    DEDUPLICATION_SCOPE,
    DEDUPLICATION_WINDOW,
    DELIVERY_GUARANTEE,
    DURABILITY,
    FIFO_QUEUE,
    FIFO_THROUGHPUT_LIMIT,
    KMS_KEY,
    KMS_REUSE,
    LOG,
    PUSH_BATCH_SIZE,
    PUSH_ENDPOINT,
    PUSH_FORMAT,
    PUSH_HEADERS,
    PUSH_PREFIX,
    REDRIVE_POLICY,
    REPLICATION_MODE,
    RETENTION_MODE,
    SETTABLE,
    SQS_SSE,
    DeliveryGuarantee,
    Durability,
    QueueKinds,
    kinds_of,
)
from quaymaster.core.values.queues.policies import invalid_redrive_policy
from quaymaster.core.values.queues.push_rules import (
    MASKED,
    check_headers_stay,
    masked_headers,
    shown_endpoint,
)
from quaymaster.core.values.queues.queue_names import QueueArn, check_queue_name, is_fifo_name

PUSHED: Final = "Queues can be pushed"
"""What waits for the upgrade of a cell."""


def create_attributes(queue: QueueArn, given: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of the new queue `queue`, whose name is checked too.

    Raises InvalidParameterValue, InvalidAttributeName or InvalidAttributeValue.
    """
    wants_fifo = FIFO_QUEUE.name in given and FIFO_QUEUE.read(
        FIFO_QUEUE.parse(given[FIFO_QUEUE.name], is_log=False)
    )
    check_queue_name(queue.name, fifo=wants_fifo)
    return _change(queue, {}, given)


def change_attributes(
    queue: QueueArn, current: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """Return the attributes of `queue` after SetQueueAttributes. Raises as `create_attributes` does."""
    changed = _change(queue, current, given)
    for name, attribute in SETTABLE.items():
        if attribute.fixed and attribute.of(changed) != attribute.of(current):
            raise InvalidAttributeValue.of(name, attribute.fixed)
    if _is_at_most_once(changed) != _is_at_most_once(current):
        raise InvalidAttributeValue.of(
            DELIVERY_GUARANTEE.name, "AtMostOnce is given when a queue is created and cannot be changed."
        )
    return changed


def require_delivery(attributes: Mapping[str, str], cell_format: CellFormat) -> None:
    """Raise UnsupportedOperation where the cell does not know yet what a queue with these attributes promises."""
    if DELIVERY_GUARANTEE.of(attributes) != DeliveryGuarantee.AT_LEAST_ONCE:
        cell_format.require(DELIVERY, "Queues can have another DeliveryGuarantee than AtLeastOnce")
    if says_push(attributes):
        cell_format.require(DELIVERY, PUSHED)
    if DEDUPLICATION_WINDOW.of(attributes) != DEDUPLICATION_WINDOW.read(DEDUPLICATION_WINDOW.default):
        cell_format.require(DELIVERY, "Queues can have another DeduplicationWindowSeconds than 300")


def spelled(attributes: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return what was `given` in the spelling of the `attributes` made of it; empty what was taken away."""
    return {name: attributes.get(name, "") for name in given}


def says_push(given: Mapping[str, str]) -> bool:
    """Return whether something is said of pushing: older programs do not know what."""
    return any(name.startswith(PUSH_PREFIX) for name in given)


def with_masked_headers(given: Mapping[str, str]) -> dict[str, str]:
    """Return attributes for those who must not see headers. Raises InvalidAttributeValue."""
    text = given.get(PUSH_HEADERS.name, "")
    return {**given, PUSH_HEADERS.name: masked_headers(PUSH_HEADERS.name, text)} if text else dict(given)


def shown_attributes(given: Mapping[str, str]) -> dict[str, str]:
    """Return attributes as a caller said them, without what is secret of them: for logs and audit events."""
    shown = dict(given)
    if PUSH_ENDPOINT.name in shown:
        shown[PUSH_ENDPOINT.name] = shown_endpoint(shown[PUSH_ENDPOINT.name])
    if shown.get(PUSH_HEADERS.name):
        shown[PUSH_HEADERS.name] = MASKED
    return shown


def check_attribute_names(names: Iterable[str] | None) -> frozenset[str] | None:
    """Return the attributes GetQueueAttributes asks for, None for all of them. Raises InvalidAttributeName."""
    asked = frozenset(names or ())
    for name in asked:
        if name != "All" and name not in ATTRIBUTES:
            raise InvalidAttributeName.unknown(name)
    return None if "All" in asked else asked


def _change(queue: QueueArn, current: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    is_fifo = is_fifo_name(queue.name)
    is_log = RETENTION_MODE.of({**current, **given}) == LOG
    values = dict(current)
    for name, text in given.items():
        attribute = SETTABLE.get(name)
        if attribute is None:
            raise InvalidAttributeName.unknown(name)
        if attribute.queues == QueueKinds.FIFO and attribute.elsewhere is not None and not is_fifo:
            raise attribute.elsewhere(name)
        if text == "" and attribute.is_removable:
            values.pop(name, None)
        else:
            values[name] = attribute.parse(text, is_log=is_log)
    if is_fifo and not FIFO_QUEUE.of(values):
        raise InvalidAttributeValue.of(FIFO_QUEUE.name, FIFO_QUEUE.fixed)
    _check_throughput(values)
    _settle_encryption(values, given)
    _check_log(values, given)
    if REPLICATION_MODE.of(values) and is_fifo:
        raise InvalidAttributeValue.of(REPLICATION_MODE.name, "Only a standard queue has equal partitions.")
    _check_guarantee(values, given)
    _settle_window(values, given)
    _check_dead_letter_queue(queue, values, given)
    _settle_push(current, values, given)
    return values


def _check_throughput(values: Mapping[str, str]) -> None:
    if (
        FIFO_THROUGHPUT_LIMIT.of(values) == "perMessageGroupId"
        and DEDUPLICATION_SCOPE.of(values) != "messageGroup"
    ):
        raise InvalidAttributeValue(
            "The perMessageGroupId value is allowed only when the value for DeduplicationScope is "
            "messageGroup."
        )


def _settle_encryption(values: dict[str, str], given: Mapping[str, str]) -> None:
    """Let a key of the queue's own switch the service's off; to ask for both is an error."""
    if KMS_KEY.name not in values:
        is_leftover = KMS_KEY.name in given and KMS_REUSE.name not in given
        if is_leftover or values.get(KMS_REUSE.name) == KMS_REUSE.default:
            values.pop(KMS_REUSE.name, None)
        return
    if SQS_SSE.name in given and SQS_SSE.of(values):
        raise InvalidAttributeName(
            "You can use one type of server-side encryption (SSE) at one time. "
            "You can either enable KMS SSE or SQS SSE."
        )
    values[SQS_SSE.name] = "false"
    values.setdefault(KMS_REUSE.name, KMS_REUSE.default)


def _settle_push(current: Mapping[str, str], values: dict[str, str], given: Mapping[str, str]) -> None:
    if PUSH_FORMAT.of(values) == "CloudEvents" and PUSH_BATCH_SIZE.of(values) != 1:
        raise InvalidAttributeValue.of(
            PUSH_BATCH_SIZE.name, "With PushFormat=CloudEvents a call has one message: choose another format."
        )
    if PUSH_ENDPOINT.name not in values and not given.get(PUSH_HEADERS.name):
        values.pop(PUSH_HEADERS.name, None)  # they were for its host
    check_headers_stay(
        PUSH_HEADERS.name, PUSH_ENDPOINT.name, current, values, given.get(PUSH_HEADERS.name, "")
    )


def _check_log(values: Mapping[str, str], given: Mapping[str, str]) -> None:
    if RETENTION_MODE.of(values) == LOG:
        return
    for name, attribute in SETTABLE.items():
        if attribute.queues == QueueKinds.LOG and attribute.elsewhere is not None and name in given:
            raise attribute.elsewhere(name)


def _is_at_most_once(values: Mapping[str, str]) -> bool:
    return DELIVERY_GUARANTEE.of(values) == DeliveryGuarantee.AT_MOST_ONCE


def _check_guarantee(values: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Refuse what a guarantee cannot hold with; the error names what was given."""
    if _is_at_most_once(values) and REDRIVE_POLICY.of(values) is not None:
        name = REDRIVE_POLICY.name if REDRIVE_POLICY.name in given else DELIVERY_GUARANTEE.name
        raise InvalidAttributeValue.of(
            name, "A queue with DeliveryGuarantee=AtMostOnce has no dead letters: what is received is gone."
        )
    if DELIVERY_GUARANTEE.of(values) == DeliveryGuarantee.EXACTLY_ONCE:
        if DURABILITY.of(values) != Durability.SYNC:
            name = DURABILITY.name if DURABILITY.name in given else DELIVERY_GUARANTEE.name
            raise InvalidAttributeValue.of(
                name, "A queue with DeliveryGuarantee=ExactlyOnce has Durability=Sync."
            )
        if REPLICATION_MODE.of(values):
            raise InvalidAttributeValue.of(
                DELIVERY_GUARANTEE.name,
                "A queue with ReplicationMode=Peers may store a message twice: it cannot be ExactlyOnce.",
            )


def _settle_window(values: dict[str, str], given: Mapping[str, str]) -> None:
    """Let only queues with deduplication ids have a window for them; who switches those off switches it off, too."""
    if DEDUPLICATION_WINDOW.name not in values or DEDUPLICATION_WINDOW.queues & kinds_of(values):
        return
    if DEDUPLICATION_WINDOW.name in given:
        raise InvalidAttributeName(
            f"You can specify the {DEDUPLICATION_WINDOW.name} only when FifoQueue is set to true or "
            "DeliveryGuarantee is set to ExactlyOnce."
        )
    del values[DEDUPLICATION_WINDOW.name]


def _check_dead_letter_queue(queue: QueueArn, values: Mapping[str, str], given: Mapping[str, str]) -> None:
    text = given.get(REDRIVE_POLICY.name)
    policy = REDRIVE_POLICY.of(values)
    if text is None or policy is None:
        return
    target = policy.target
    if (target.region, target.account_id) != (queue.region, queue.account_id):
        raise invalid_redrive_policy(text, "Dead-letter target owner should be same as the source.")
    if is_fifo_name(target.name) != is_fifo_name(queue.name):
        raise invalid_redrive_policy(text, "Dead-letter queue must be same type of queue as the source.")
