"""Handles of message move tasks: base64 of {"taskId": "<uuid>", "sourceArn": "arn:aws:sqs:..."}."""

from __future__ import annotations

import base64
import binascii
import uuid
from typing import Final

import msgspec

from quaymaster.core.values.errors import InvalidParameterValue

_HANDLE_CHARS_MAX: Final = 1_024


class TaskHandle(msgspec.Struct, frozen=True):
    """What a task handle says."""

    taskId: str  # noqa: N815 -- the service's spelling
    sourceArn: str  # noqa: N815


_decode_handle = msgspec.json.Decoder(TaskHandle).decode


def render_task_handle(task_id: bytes, source_arn: str) -> str:
    """Return the handle of a task."""
    handle = TaskHandle(str(uuid.UUID(bytes=task_id)), source_arn)
    return base64.b64encode(msgspec.json.encode(handle)).decode()


def parse_task_handle(text: str) -> tuple[bytes, str]:
    """Return the task id (16 bytes) and the source's ARN; InvalidParameterValue for anything else."""
    try:
        if len(text) > _HANDLE_CHARS_MAX:
            raise ValueError(text)
        handle = _decode_handle(base64.b64decode(text, validate=True))
        return uuid.UUID(handle.taskId).bytes, handle.sourceArn
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise InvalidParameterValue("Value for parameter TaskHandle is invalid.") from None
