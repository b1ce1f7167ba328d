"""Messages as the event that AWS Lambda gives to functions that consume a queue: `{"Records": [...]}`.

    {"messageId": "...", "receiptHandle": "...", "body": "...", "md5OfBody": "...", "attributes": {...},
     "messageAttributes": {"NAME": {"dataType": "String", "stringValue": "...", ...}},
     "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:...", "awsRegion": "..."}

`attributes` also has OriginMessageId, which SQS does not have.

Source: AWS Lambda Developer Guide, "Using Lambda with Amazon SQS".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from quaymaster.core.push.calls import PushedMessage

EVENT_SOURCE: Final = "aws:sqs"
ORIGIN_ID: Final = "OriginMessageId"
_REGION_AT: Final = 3
"""The region's place in an ARN, between colons."""

_encode = msgspec.json.Encoder().encode


def lambda_event(messages: Sequence[PushedMessage], source_arn: str) -> bytes:
    """Return the event of some messages of a queue."""
    region = source_arn.split(":")[_REGION_AT]
    return _encode({"Records": [_record(message, source_arn, region) for message in messages]})


def _record(message: PushedMessage, source_arn: str, region: str) -> dict[str, Any]:
    record = {
        "messageId": message.message_id,
        "receiptHandle": message.receipt_handle,
        "body": message.body,
        "attributes": {**message.system, ORIGIN_ID: message.origin_id},
        "messageAttributes": {
            name: {
                "binaryValue" if isinstance(value, bytes) else "stringValue": value,
                "stringListValues": [],
                "binaryListValues": [],
                "dataType": data_type,
            }
            for name, data_type, value in message.attributes
        },
        "md5OfBody": message.body_md5,
        "eventSource": EVENT_SOURCE,
        "eventSourceARN": source_arn,
        "awsRegion": region,
    }
    if message.attributes_md5 is not None:
        record["md5OfMessageAttributes"] = message.attributes_md5
    return record
