"""The redrive policies of a queue, which are JSON: where its dead letters go, and whose dead letters it takes.

    {"deadLetterTargetArn": "arn:aws:sqs:...", "maxReceiveCount": 5}                     RedrivePolicy
    {"redrivePermission": "byQueue", "sourceQueueArns": ["arn:aws:sqs:..."]}             RedriveAllowPolicy

Access policies are another matter: see `core/access`.

Source: Amazon SQS API Reference, SetQueueAttributes.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from quaymaster.core.values.errors import InvalidParameterValue
from quaymaster.core.values.queues.queue_names import QueueArn, parse_queue_arn

RECEIVE_COUNT_MAX: Final = 1_000
REDRIVE_SOURCES_MAX: Final = 10
_INTEGER = re.compile(r"[0-9]{1,18}", re.ASCII)


class RedrivePolicy(msgspec.Struct, frozen=True, gc=False):
    """Where a message goes that was received more than `receive_count_max` times."""

    target: QueueArn
    receive_count_max: int

    def __str__(self) -> str:
        return _json({"deadLetterTargetArn": str(self.target), "maxReceiveCount": self.receive_count_max})


class RedriveAllowPolicy(msgspec.Struct, frozen=True):
    """Whose dead-letter queue this queue may be: `allowAll`, `denyAll`, or `byQueue` of the ARNs `sources`."""

    permission: str = "allowAll"
    sources: tuple[str, ...] = ()

    def allows(self, source: QueueArn) -> bool:
        """Return whether the queue `source` may name this queue in its redrive policy."""
        return self.permission == "allowAll" or (self.permission == "byQueue" and str(source) in self.sources)

    def __str__(self) -> str:
        value: dict[str, Any] = {"redrivePermission": self.permission}
        if self.permission == "byQueue":
            value["sourceQueueArns"] = list(self.sources)
        return _json(value)


def parse_redrive_policy(text: str) -> RedrivePolicy:
    """Return the redrive policy that `text` (JSON) is. Raises InvalidParameterValue, saying what is wrong."""
    value = _object(text)
    if value is None:
        raise invalid_redrive_policy(text, "Redrive policy is not a valid JSON map.")
    for name in ("maxReceiveCount", "deadLetterTargetArn"):
        if name not in value:
            raise invalid_redrive_policy(
                text, f"Redrive policy does not contain mandatory attribute: {name}."
            )
    count = value["maxReceiveCount"]
    if isinstance(count, str) and _INTEGER.fullmatch(count) is not None:
        count = int(count)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= RECEIVE_COUNT_MAX:
        raise invalid_redrive_policy(
            text,
            f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to {RECEIVE_COUNT_MAX} "
            "both inclusive.",
        )
    arn = value["deadLetterTargetArn"]
    target = parse_queue_arn(arn) if isinstance(arn, str) else None
    if target is None:
        raise invalid_redrive_policy(text, "Invalid value for deadLetterTargetArn.")
    return RedrivePolicy(target, count)


def invalid_redrive_policy(text: str, reason: str) -> InvalidParameterValue:
    """Return the error for the redrive policy `text`. (That its target exists, only metadata knows.)"""
    return InvalidParameterValue.of("RedrivePolicy", text, reason)


def parse_redrive_allow_policy(text: str) -> RedriveAllowPolicy:
    """Return the redrive allow policy that `text` (JSON) is.

    Raises InvalidParameterValue, saying what is wrong.
    """
    value = _object(text)
    if value is None:
        raise _invalid_allow_policy(text, "Redrive allow policy is not a valid JSON map.")
    permission = value.get("redrivePermission")
    if permission not in ("allowAll", "denyAll", "byQueue"):
        raise _invalid_allow_policy(text, "redrivePermission must be one of allowAll, denyAll, byQueue.")
    sources = value.get("sourceQueueArns")
    if permission != "byQueue":
        if sources is not None:
            raise _invalid_allow_policy(
                text, "sourceQueueArns can be specified only when redrivePermission is byQueue."
            )
        return RedriveAllowPolicy(permission)
    if not isinstance(sources, list) or not 1 <= len(sources) <= REDRIVE_SOURCES_MAX:
        raise _invalid_allow_policy(
            text, f"sourceQueueArns must have between 1 and {REDRIVE_SOURCES_MAX} queue ARNs."
        )
    for source in sources:
        if not isinstance(source, str) or parse_queue_arn(source) is None:
            raise _invalid_allow_policy(text, "Invalid value for sourceQueueArns.")
    return RedriveAllowPolicy(permission, tuple(sources))


def _invalid_allow_policy(text: str, reason: str) -> InvalidParameterValue:
    return InvalidParameterValue.of("RedriveAllowPolicy", text, reason)


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _json(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
