"""What a transaction may be: its names, and how much comes at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from quaymaster.core.values.errors import CallerError, InvalidParameterValue
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.protocol.actions import completion_rules, message_rules
from quaymaster.protocol.actions.message_rules import CheckedMessage
from quaymaster.protocol.actions.transaction_shapes import (
    AbortTransactionRequest,
    CommittedStage,
    CommitTransactionRequest,
    StagedMessageEntry,
    StageMessagesRequest,
)

STAGE_MESSAGES_MAX: Final = 1_000
"""So many messages come with one StageMessages."""
STAGE_BYTES_MAX: Final = 2 << 20
"""So many bytes of bodies and attributes: two of the largest messages."""
COMMITTED_STAGES_MAX: Final = 10_000
NUMBER_MAX: Final = (1 << 63) - 1

_SINK = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_STAGE = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


def check_transaction(
    request: StageMessagesRequest | CommitTransactionRequest | AbortTransactionRequest,
) -> None:
    """Raise InvalidParameterValue unless a transaction may have this sink and batch."""
    if _SINK.fullmatch(request.SinkId) is None:
        raise InvalidParameterValue.of(
            "SinkId", request.SinkId, "It must be 1 to 128 letters, digits and _ . : - characters."
        )
    _check_number("BatchId", request.BatchId)


def check_stage(request: StageMessagesRequest) -> None:
    """Raise InvalidParameterValue unless messages may be staged so; each of them is checked by `check_message`."""
    check_transaction(request)
    _check_stage_name(request.Stage)
    _check_number("FirstIndex", request.FirstIndex)
    if not 1 <= len(request.Messages) <= STAGE_MESSAGES_MAX:
        raise InvalidParameterValue(
            f"Messages must be 1 to {STAGE_MESSAGES_MAX}, not {len(request.Messages)}."
        )
    if request.Deduplicate is not None and not request.Commit:
        raise InvalidParameterValue.of(
            "Deduplicate",
            str(request.Deduplicate).lower(),
            "It needs Commit: messages are deduplicated then.",
        )


def check_message(number: int, message: StagedMessageEntry, queue: QueueDefinition) -> CheckedMessage:
    """Return a message that may be staged. Raises what a SendMessage would, and says which message it is."""
    try:
        if completion_rules.handle_of(message) is not None:
            raise InvalidParameterValue("What is staged completes no message.")
        return message_rules.check_send(message, queue)
    except CallerError as error:
        raise message_rules.telling_which(number, error) from None


def check_origin(number: int, message: StagedMessageEntry) -> bytes | None:
    """Return the id of origin that a message is to have, None for its own. Raises InvalidParameterValue."""
    given = message.OriginMessageId
    if given is None:
        return None
    if _UUID.fullmatch(given) is None:
        error = InvalidParameterValue.of("OriginMessageId", given, "It must be a UUID.")
        raise message_rules.telling_which(number, error)
    return bytes.fromhex(given.replace("-", ""))


def check_size(size_bytes: int) -> None:
    """Raise InvalidParameterValue for more bytes of messages than may come at once."""
    if size_bytes > STAGE_BYTES_MAX:
        raise InvalidParameterValue(
            f"Messages must be at most {STAGE_BYTES_MAX} bytes together, not {size_bytes}."
        )


def check_committed(request: CommitTransactionRequest) -> None:
    """Raise InvalidParameterValue unless a commit may name these stages."""
    check_transaction(request)
    _check_stages(request.Stages)


def _check_stages(stages: Sequence[CommittedStage]) -> None:
    if len(stages) > COMMITTED_STAGES_MAX:
        raise InvalidParameterValue(f"Stages must be at most {COMMITTED_STAGES_MAX}, not {len(stages)}.")
    seen: set[str] = set()
    for stage in stages:
        _check_stage_name(stage.Stage)
        _check_number("Count", stage.Count)
        if stage.Stage in seen:
            raise InvalidParameterValue.of("Stage", stage.Stage, "Each stage may be named once.")
        seen.add(stage.Stage)


def _check_stage_name(name: str) -> None:
    if _STAGE.fullmatch(name) is None:
        raise InvalidParameterValue.of(
            "Stage", name, "It must be 1 to 128 letters, digits and _ . : / - characters."
        )


def _check_number(name: str, value: int) -> None:
    if not 0 <= value <= NUMBER_MAX:
        raise InvalidParameterValue.of(name, value, f"It must be between 0 and {NUMBER_MAX}.")
