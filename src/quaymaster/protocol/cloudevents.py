"""Messages as CloudEvents, over HTTP: in binary mode, where the body is the event's data, and in JSON.

    ce-specversion: 1.0                                 {"specversion": "1.0",
    ce-id: 3c2e7d1f-...     the id the sender got        "id": "3c2e7d1f-...",
    ce-source: arn:aws:sqs:...                           "source": "arn:aws:sqs:...",
    ce-type: quaymaster.message                          "type": "quaymaster.message",
    ce-time: 2026-01-31T08:00:00.123Z                    "time": "2026-01-31T08:00:00.123Z",
    ce-partitionkey: its message group                   "partitionkey": "...",
    ce-deliverycount: 1                                  "deliverycount": 1,
    Content-Type: application/json                       "datacontenttype": "application/json",
    Quaymaster-Attribute-NAME: value                     "messageattributes": "{...}",
                                                         "data": {"order": 17}}
    {"order": 17}

A body that is a JSON object or array is data of that type; any other is text. Attributes of events are flat and have
names of a-z and 0-9, so in JSON the attributes of a message are one text: JSON, as SQS answers with it.

Source: CloudEvents 1.0.2: the specification, its JSON format, HTTP binding and partitioning extension.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import msgspec

from quaymaster.core.push.calls import PushedMessage

SPEC_VERSION: Final = "1.0"
EVENT_TYPE: Final = "quaymaster.message"
JSON_TYPE: Final = "application/json"
TEXT_TYPE: Final = "text/plain; charset=utf-8"
EVENT_TYPE_JSON: Final = "application/cloudevents+json"
BATCH_TYPE_JSON: Final = "application/cloudevents-batch+json"
ATTRIBUTE_PREFIX: Final = "Quaymaster-Attribute-"
_PRINTABLE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""What stays as it is in the value of a header: HTTP binding, 3.1.3.2."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_encode = msgspec.json.Encoder().encode


def binary_event(message: PushedMessage, source: str) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body that are an event in binary mode."""
    body = message.body.encode()
    headers = {
        "Content-Type": content_type_of(body),
        "ce-specversion": SPEC_VERSION,
        "ce-id": message.origin_id,
        "ce-source": _header_value(source),
        "ce-type": EVENT_TYPE,
        "ce-time": time_text(message.sent_ms),
        "ce-deliverycount": str(message.delivery_count),
    }
    if message.group_id is not None:
        headers["ce-partitionkey"] = _header_value(message.group_id)
    for name, _, value in message.attributes:
        text = base64.b64encode(value).decode() if isinstance(value, bytes) else value
        headers[ATTRIBUTE_PREFIX + quote(name, safe="")] = _header_value(text)
    return headers, body


def json_event(message: PushedMessage, source: str) -> bytes:
    """Return an event in JSON, which is of EVENT_TYPE_JSON."""
    return _encode(_event(message, source))


def json_batch(messages: Sequence[PushedMessage], source: str) -> bytes:
    """Return events in a JSON array, which is of BATCH_TYPE_JSON."""
    return _encode([_event(message, source) for message in messages])


def content_type_of(body: bytes) -> str:
    """Return the media type of a message's body."""
    if body.lstrip()[:1] not in (b"{", b"["):
        return TEXT_TYPE
    try:
        msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return TEXT_TYPE
    return JSON_TYPE


def time_text(time_ms: int) -> str:
    """Return a time as RFC 3339 writes it, in UTC."""
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _event(message: PushedMessage, source: str) -> dict[str, Any]:
    body = message.body.encode()
    content_type = content_type_of(body)
    event: dict[str, Any] = {
        "specversion": SPEC_VERSION,
        "id": message.origin_id,
        "source": source,
        "type": EVENT_TYPE,
        "time": time_text(message.sent_ms),
        "datacontenttype": content_type,
        "deliverycount": message.delivery_count,
    }
    if message.group_id is not None:
        event["partitionkey"] = message.group_id
    if message.attributes:
        event["messageattributes"] = _encode(_attributes(message)).decode()
    event["data"] = msgspec.Raw(body) if content_type == JSON_TYPE else message.body
    return event


def _attributes(message: PushedMessage) -> dict[str, dict[str, str | bytes]]:
    return {
        name: {"DataType": data_type, "BinaryValue" if isinstance(value, bytes) else "StringValue": value}
        for name, data_type, value in message.attributes
    }


def _header_value(text: str) -> str:
    return quote(text, safe=_PRINTABLE)
