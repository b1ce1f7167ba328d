"""Forms of queue attributes, made from the server's own table of them: names, meanings, limits, defaults."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from starlette.datastructures import FormData

from quaymaster.console.site import APIError
from quaymaster.core.values.queues.attributes import ATTRIBUTES, PUSH_PREFIX, Attribute

_CHOICE: Final = re.compile(r"`([A-Za-z]+)`")
_NAMED: Final = re.compile(r"[A-Z][A-Za-z]+")
ELSEWHERE: Final = frozenset(
    (
        "Policy",
        "FifoQueue",
        *(name for name in ATTRIBUTES if name.startswith(PUSH_PREFIX)),
    )
)
"""Attributes with a page or form of their own."""


class AttributeField(NamedTuple):
    """An attribute in a form. `choices`: empty where it is typed in; `is_fixed`: only a new queue takes it."""

    name: str
    meaning: str
    words: str
    default: str
    choices: tuple[str, ...]
    is_number: bool
    is_long: bool
    is_fixed: bool
    is_fifo: bool
    is_log: bool


class FieldGroup(NamedTuple):
    """Fields that belong together."""

    title: str
    names: tuple[str, ...]


GROUPS: Final = (
    FieldGroup(
        "Messages",
        (
            "VisibilityTimeout",
            "MessageRetentionPeriod",
            "DelaySeconds",
            "ReceiveMessageWaitTimeSeconds",
            "MaximumMessageSize",
        ),
    ),
    FieldGroup("Dead letters", ("RedrivePolicy", "RedriveAllowPolicy")),
    FieldGroup("FIFO", ("ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit")),
    FieldGroup("Log", ("RetentionBytes", "GroupStart", "RetentionPins", "LegalHold")),
    FieldGroup("Encryption", ("SqsManagedSseEnabled", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds")),
    FieldGroup(
        "Guarantees and partitions",
        (
            "DeliveryGuarantee",
            "DeduplicationWindowSeconds",
            "Durability",
            "PartitionsMax",
            "ReplicationMode",
            "RetentionMode",
        ),
    ),
)
GROUPS_OF_NEW: Final = tuple(group for group in GROUPS if group.title not in ("FIFO", "Log"))


def _field(attribute: Attribute[Any]) -> AttributeField:
    words = attribute.values.words
    kinds = str(attribute.queues)
    choices = tuple(_CHOICE.findall(words)) if words.startswith("`") else ()
    return AttributeField(
        attribute.name,
        attribute.meaning.replace("`", "").partition(", see [")[0],
        words.replace("`", ""),
        attribute.default,
        choices,
        words[:1].isdigit(),
        words.startswith("JSON"),
        bool(attribute.fixed),
        kinds.endswith("FIFO") and "STANDARD" not in kinds,
        kinds.endswith("LOG"),
    )


_FIELDS: Final = {
    attribute.name: _field(attribute)
    for attribute in ATTRIBUTES.values()
    if isinstance(attribute, Attribute) and attribute.name not in ELSEWHERE
}


PUSH_FIELDS: Final = {
    attribute.name: _field(attribute)
    for attribute in ATTRIBUTES.values()
    if isinstance(attribute, Attribute) and attribute.name.startswith(PUSH_PREFIX)
}
"""Those of a queue's page about pushing."""


def fields_of(
    given: Mapping[str, str], fields: Mapping[str, AttributeField] = _FIELDS
) -> dict[str, tuple[AttributeField, str]]:
    """Return all fields with their values: those given, else the defaults."""
    return {name: (field, given.get(name, field.default)) for name, field in fields.items()}


def given_attributes(
    form: FormData, present: Mapping[str, str], fields: Mapping[str, AttributeField] = _FIELDS
) -> dict[str, str]:
    """Return the attributes of a form that are others than the present ones, or than the defaults."""
    changed = {}
    for name, field in fields.items():
        value = form.get(name)
        if isinstance(value, str) and value.strip() != present.get(name, field.default):
            changed[name] = value.strip()
    return changed


def refused_field(error: APIError, names: Iterable[str]) -> dict[str, str]:
    """Return the API's message at the form field that it is about; at "" where it names none.

    Raises the error again where it is no refusal: the form is not what is wrong.

    SQS names the parameter in its message only, such as `Invalid value for the parameter VisibilityTimeout.`
    """
    if error.is_failure:
        raise error
    known = set(names)
    field = error.field if error.field in known else None
    if field is None:
        field = next((word for word in _NAMED.findall(error.message) if word in known), "")
    return {field: error.message}
