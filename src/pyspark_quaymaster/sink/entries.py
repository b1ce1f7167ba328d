"""Rows as messages: what Spark gives a task, as the server takes it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_quaymaster.errors import OptionIsInvalid, QuaymasterError

if TYPE_CHECKING:
    import pyarrow as pa


# Columns of the source that a message has once it is in a queue.
QUEUES_OWN = ("partition", "offset", "timestamp", "message_id", "sender_id", "system_attributes", "md5_body")


class MessageIsRefused(QuaymasterError):
    """The server did not take a message, and would not take it later either."""


class OutgoingRow(NamedTuple):
    """One message to send; `queue` is None where the option says it, `size` is its bytes as SQS counts them."""

    queue: str | None
    entry: dict[str, Any]
    size: int


def rows_of(iterator: Iterator[pa.RecordBatch]) -> Iterator[OutgoingRow]:
    """Yield the rows of some batches as messages.

    Raises OptionIsInvalid for a row that is no message: without a body, with one that is no text, with an attribute
    without a type, or with what only a message in a queue has.
    """
    for batch in iterator:
        for name in QUEUES_OWN:
            if name in batch.schema.names and batch.column(name).null_count < batch.num_rows:
                raise OptionIsInvalid(
                    f"column {name} is what the queue gives a message, and a row has a value in it: name the columns "
                    "to send, as in select('value', 'key') or INSERT INTO view (value, key)"
                )
        columns = [
            batch.column(name).to_pylist() if name in batch.schema.names else repeat(None)
            for name in ("queue", "value", "key", "dedup_id", "attributes", "delay_seconds")
        ]
        for _, (queue, *fields) in zip(range(batch.num_rows), zip(*columns, strict=False), strict=True):
            yield OutgoingRow(queue, *_entry(*fields))


def _entry(
    value: bytes | str | None,
    key: str | None,
    dedup_id: str | None,
    attributes: list[tuple[str, Any]] | None,
    delay_seconds: int | None,
) -> tuple[dict[str, Any], int]:
    if value is None:
        raise OptionIsInvalid("a row's value is null; a message has a body")
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            raise OptionIsInvalid(
                "a row's value is no UTF-8; SQS bodies are text: send base64(value), or an attribute of type Binary"
            ) from None
        size = len(value)
    else:
        text, size = value, len(value) if value.isascii() else len(value.encode())
    entry: dict[str, Any] = {"MessageBody": text}
    if key is not None:
        entry["MessageGroupId"] = key
    if dedup_id is not None:
        entry["MessageDeduplicationId"] = dedup_id
    if delay_seconds is not None:
        entry["DelaySeconds"] = delay_seconds
    if attributes:
        entry["MessageAttributes"] = {}
        for name, attribute in attributes:
            given, attribute_bytes = _attribute(name, attribute)
            entry["MessageAttributes"][name] = given
            size += len(name.encode()) + attribute_bytes
    return entry, size


def _attribute(name: str, attribute: Any) -> tuple[dict[str, str], int]:
    """Return an attribute as SQS has it, and the bytes of its type and value. A plain text has the type String."""
    if isinstance(attribute, str):
        return {"DataType": "String", "StringValue": attribute}, 6 + len(attribute.encode())
    kind = None if attribute is None else attribute["type"]
    if not kind:
        raise OptionIsInvalid(f"attribute {name} has no type: it is String, Number or Binary")
    if kind.partition(".")[0] == "Binary":
        binary = attribute["binary_value"] or b""
        return {"DataType": kind, "BinaryValue": base64.b64encode(binary).decode()}, len(kind) + len(binary)
    text = attribute["string_value"] or ""
    return {"DataType": kind, "StringValue": text}, len(kind.encode()) + len(text.encode())
