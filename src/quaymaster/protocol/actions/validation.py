"""What every request must satisfy before anything is done for it: one function per action that has rules.

Messages have rules of their own in `message_rules`, permissions in `permission_rules`, queue attributes in
`core/values/queues/attribute_rules`. The functions return what the request means where that is more than its fields
(times in milliseconds, defaults filled in).

Source: Amazon SQS API Reference, the parameters of each action; wordings as the service sends them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from quaymaster.core.values.errors import (
    BATCH_ENTRIES_MAX,
    BatchEntryIdsNotDistinct,
    CallerError,
    EmptyBatchRequest,
    InvalidAttributeName,
    InvalidBatchEntryId,
    InvalidParameterValue,
    MissingParameter,
    TooManyEntriesInBatchRequest,
)
from quaymaster.core.values.queues.attributes import ATTRIBUTES, VISIBILITY_TIMEOUT_S_MAX
from quaymaster.core.values.queues.queue_names import QueueArn, parse_queue_arn
from quaymaster.protocol.actions.log_shapes import (
    CommitOffsetsRequest,
    FetchMessagesRequest,
    FindOffsetsRequest,
)
from quaymaster.protocol.actions.message_rules import AttributeFilter, check_id
from quaymaster.protocol.logs.log_columns import COLUMNS
from quaymaster.protocol.sqs.shapes import (
    CancelMessageMoveTaskRequest,
    ChangeMessageVisibilityBatchRequestEntry,
    DeleteMessageBatchRequestEntry,
    ListMessageMoveTasksRequest,
    ReceiveMessageRequest,
    SendMessageBatchRequestEntry,
    StartMessageMoveTaskRequest,
)
from quaymaster.protocol.sqs.task_handles import parse_task_handle

WAIT_S_MAX = 20
RECEIVE_MESSAGES_MAX = 10
LIST_RESULTS_MAX = 1_000
MOVE_TASK_RESULTS_MAX = 10
MOVE_RATE_MAX = 500
OFFSET_MAX = (1 << 63) - 1
FETCH_BYTES_DEFAULT = 4 << 20
FETCH_BYTES_MAX = 8 << 20
FETCH_FORMATS = ("columns", "arrow")
TAGS_MAX = 50
TAG_KEY_CHARS_MAX = 128
TAG_VALUE_CHARS_MAX = 256

_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_TAG_CHARACTERS = re.compile(r"[\w\s.:/=+\-@]*")

SYSTEM_ATTRIBUTE_NAMES = frozenset(
    {
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
        "SequenceNumber",
        "MessageDeduplicationId",
        "MessageGroupId",
        "AWSTraceHeader",
        "DeadLetterQueueSourceArn",
    }
)
"""Those that SQS has. `All` means these, so that no SDK gets a name that its model does not have."""
OWN_SYSTEM_ATTRIBUTE_NAMES = frozenset({"OriginMessageId"})
"""Those that SQS does not have: returned only to those who ask for them by name."""

AnyEntry = (
    SendMessageBatchRequestEntry | DeleteMessageBatchRequestEntry | ChangeMessageVisibilityBatchRequestEntry
)


# Batches


def check_batch_entries(entries: Sequence[AnyEntry], entry_name: str) -> None:
    """Raise what is wrong with a batch as a whole. `entry_name` is what the model calls its entries."""
    count = len(entries)
    if not count:
        raise EmptyBatchRequest(entry_name)
    if count > BATCH_ENTRIES_MAX:
        raise TooManyEntriesInBatchRequest(count)
    seen: set[str] = set()
    matches = _ENTRY_ID.fullmatch
    for entry in entries:
        entry_id = entry.Id
        if matches(entry_id) is None:
            raise InvalidBatchEntryId
        seen.add(entry_id)
    if len(seen) != count:
        ids = [entry.Id for entry in entries]
        raise BatchEntryIdsNotDistinct(
            next(entry_id for n, entry_id in enumerate(ids) if entry_id in ids[:n])
        )


# Receiving and visibility


class ReceiveRequest(msgspec.Struct, frozen=True, gc=False):
    """What a ReceiveMessage asks for. None: the queue's own value."""

    count_max: int
    visibility_timeout_ms: int | None
    wait_ms: int | None
    system_attributes: frozenset[str]
    message_attributes: AttributeFilter
    attempt_id: str | None


# Most receives ask for the same few sets of names.
_NO_NAMES: frozenset[str] = frozenset()
_NO_FILTER = AttributeFilter(None)


def check_receive(request: ReceiveMessageRequest) -> ReceiveRequest:
    """Return what `request` asks for. Raises InvalidParameterValue or InvalidAttributeName.

    An attempt id is checked on any queue; on a standard one it means nothing.
    """
    count = request.MaxNumberOfMessages
    if count is None:
        count = 1
    elif not 1 <= count <= RECEIVE_MESSAGES_MAX:
        raise _not_between("MaxNumberOfMessages", count, 1, RECEIVE_MESSAGES_MAX)
    wait_s = request.WaitTimeSeconds
    if wait_s is not None and not 0 <= wait_s <= WAIT_S_MAX:
        raise _not_within("WaitTimeSeconds", wait_s, WAIT_S_MAX)
    timeout_s = request.VisibilityTimeout
    if timeout_s is not None:
        check_visibility_timeout(timeout_s)
    attempt_id = request.ReceiveRequestAttemptId
    if attempt_id is not None:
        check_id("ReceiveRequestAttemptId", attempt_id)
    names = _NO_NAMES
    if request.AttributeNames or request.MessageSystemAttributeNames:
        names = _system_attributes(request)
    attribute_names = request.MessageAttributeNames
    return ReceiveRequest(
        count,
        None if timeout_s is None else timeout_s * 1000,
        None if wait_s is None else wait_s * 1000,
        names,
        AttributeFilter(attribute_names) if attribute_names else _NO_FILTER,
        attempt_id,
    )


def _system_attributes(request: ReceiveMessageRequest) -> frozenset[str]:
    asked = frozenset(request.AttributeNames or ()) | frozenset(request.MessageSystemAttributeNames or ())
    own = asked & OWN_SYSTEM_ATTRIBUTE_NAMES
    if "All" in asked:
        return SYSTEM_ATTRIBUTE_NAMES | own
    for name in asked - SYSTEM_ATTRIBUTE_NAMES - own:
        # The older parameter is typed as names of queue attributes, so those are let through, without effect.
        if name not in ATTRIBUTES:
            raise InvalidAttributeName.unknown(name)
    return asked & SYSTEM_ATTRIBUTE_NAMES | own


def check_visibility_timeout(timeout_s: int) -> int:
    """Return a visibility timeout in milliseconds. Raises InvalidParameterValue."""
    if not 0 <= timeout_s <= VISIBILITY_TIMEOUT_S_MAX:
        raise _not_within("VisibilityTimeout", timeout_s, VISIBILITY_TIMEOUT_S_MAX)
    return timeout_s * 1000


def check_change_entry(entry: ChangeMessageVisibilityBatchRequestEntry) -> int | CallerError:
    """Return the visibility timeout of a batch entry in milliseconds, or why the entry fails."""
    if entry.VisibilityTimeout is None:
        return MissingParameter("VisibilityTimeout")
    try:
        return check_visibility_timeout(entry.VisibilityTimeout)
    except InvalidParameterValue as error:
        return error


# Lists


def check_list_results(results_max: int | None, next_token: str | None) -> int:
    """Return how many results a list may have. A token without MaxResults is refused, as the service does."""
    if results_max is None:
        if next_token:
            raise InvalidParameterValue(
                "MaxResults is a mandatory parameter when you provide a value for NextToken."
            )
        return LIST_RESULTS_MAX
    if not 1 <= results_max <= LIST_RESULTS_MAX:
        raise _not_between("MaxResults", results_max, 1, LIST_RESULTS_MAX)
    return results_max


# Tags


def check_tags(queue_name: str, tags: Mapping[str, str], existing: Iterable[str] = ()) -> None:
    """Raise what is wrong with `tags`, to be added to a queue with the keys `existing`."""
    if not tags:
        raise MissingParameter("Tags")
    for key, value in tags.items():
        check_tag_key(key)
        if len(value) > TAG_VALUE_CHARS_MAX or _TAG_CHARACTERS.fullmatch(value) is None:
            raise InvalidParameterValue(
                f"Tag value '{value}' is invalid: it can have up to {TAG_VALUE_CHARS_MAX} letters, digits, "
                "white space and _ . : / = + - @."
            )
    if len(tags.keys() | set(existing)) > TAGS_MAX:
        raise InvalidParameterValue(f"Too many tags added for queue {queue_name}.")


def check_tag_keys(keys: Sequence[str]) -> None:
    """Raise what is wrong with the keys of tags to be taken away."""
    if not keys or not all(1 <= len(key) <= TAG_KEY_CHARS_MAX for key in keys):
        raise InvalidParameterValue(
            f"Tag keys must be between 1 and {TAG_KEY_CHARS_MAX} characters in length."
        )


def check_tag_key(key: str) -> None:
    """Raise InvalidParameterValue unless a tag may have this key."""
    if not 1 <= len(key) <= TAG_KEY_CHARS_MAX or _TAG_CHARACTERS.fullmatch(key) is None:
        raise InvalidParameterValue(
            f"Tag key '{key}' is invalid: it must have between 1 and {TAG_KEY_CHARS_MAX} letters, digits, "
            "white space and _ . : / = + - @."
        )
    if key.lower().startswith("aws:"):
        raise InvalidParameterValue(f"Tag key '{key}' is invalid: keys that start with 'aws:' are reserved.")


# Moving messages


class Move(msgspec.Struct, frozen=True):
    """What an action on message move tasks asks for. No destination: every message goes back to where it came from.

    `source` is None for the handle of a task of no queue that there can be.
    """

    source: QueueArn | None
    destination: QueueArn | None = None
    tasks_max: int = 1
    task_id: bytes = b""


def check_start_move(request: StartMessageMoveTaskRequest) -> Move:
    """Return what `request` asks for. Raises InvalidParameterValue, MissingParameter."""
    source = check_arn("SourceArn", request.SourceArn)
    destination = request.DestinationArn
    rate = request.MaxNumberOfMessagesPerSecond
    if rate is not None and not 1 <= rate <= MOVE_RATE_MAX:
        raise _not_between("MaxNumberOfMessagesPerSecond", rate, 1, MOVE_RATE_MAX)
    return Move(source, None if destination is None else check_arn("DestinationArn", destination))


def check_cancel_move(request: CancelMessageMoveTaskRequest) -> Move:
    """Return what `request` asks for. Raises InvalidParameterValue."""
    task_id, source = parse_task_handle(request.TaskHandle)
    return Move(parse_queue_arn(source), task_id=task_id)


def check_list_moves(request: ListMessageMoveTasksRequest) -> Move:
    """Return what `request` asks for. Raises InvalidParameterValue, MissingParameter."""
    source = check_arn("SourceArn", request.SourceArn)
    count = request.MaxResults
    if count is None:
        return Move(source)
    if not 1 <= count <= MOVE_TASK_RESULTS_MAX:
        raise _not_between("MaxResults", count, 1, MOVE_TASK_RESULTS_MAX)
    return Move(source, tasks_max=count)


def check_arn(parameter: str, text: str) -> QueueArn:
    """Return a queue's ARN taken apart. Raises MissingParameter when it is empty, InvalidParameterValue."""
    if not text:
        raise MissingParameter(parameter)
    arn = parse_queue_arn(text)
    if arn is None:
        raise InvalidParameterValue.of(parameter, text, "It is not the ARN of a queue.")
    return arn


def _not_between(parameter: str, value: int, smallest: int, largest: int) -> InvalidParameterValue:
    return InvalidParameterValue.of(
        parameter, value, f"Must be between {smallest} and {largest}, if provided."
    )


def _not_within(parameter: str, value: int, largest: int) -> InvalidParameterValue:
    return InvalidParameterValue.of(parameter, value, f"Must be >= 0 and <= {largest}, if provided.")


# Logs


class FetchLog(msgspec.Struct, frozen=True, gc=False):
    """What a FetchMessages asks for, by offsets; or a ReadClaim, by places in the claim."""

    from_offset: int
    to_offset: int
    bytes_max: int
    columns: tuple[str, ...]
    is_arrow: bool


def check_fetch(request: FetchMessagesRequest) -> FetchLog:
    """Return what `request` asks for. Raises InvalidParameterValue."""
    for name, offset in (("FromOffset", request.FromOffset), ("ToOffset", request.ToOffset)):
        check_range(name, offset, 0, OFFSET_MAX)
    if request.ToOffset < request.FromOffset:
        raise InvalidParameterValue.of(
            "ToOffset", request.ToOffset, f"It must not be below FromOffset, which is {request.FromOffset}."
        )
    return check_columns(request, request.FromOffset, request.ToOffset)


class _InColumns(Protocol):
    """A request for messages in columns."""

    @property
    def MaxBytes(self) -> int | None: ...  # noqa: N802
    @property
    def Columns(self) -> list[str] | None: ...  # noqa: N802
    @property
    def Format(self) -> str | None: ...  # noqa: N802


def check_columns(request: _InColumns, start: int, stop: int) -> FetchLog:
    """Return a request for messages [start, stop) in columns. Raises InvalidParameterValue."""
    bytes_max = FETCH_BYTES_DEFAULT if request.MaxBytes is None else request.MaxBytes
    check_range("MaxBytes", bytes_max, 1, FETCH_BYTES_MAX)
    given = tuple(COLUMNS) if request.Columns is None else tuple(request.Columns)
    if not given:
        raise InvalidParameterValue.of("Columns", "[]", "It must name at least one column.")
    for number, name in enumerate(given):
        if name not in COLUMNS:
            known = ", ".join(COLUMNS)
            raise InvalidParameterValue.of("Columns", name, f"The columns are {known}.")
        if name in given[:number]:
            raise InvalidParameterValue.of("Columns", name, "Each column may be named once.")
    form = FETCH_FORMATS[0] if request.Format is None else request.Format
    if form not in FETCH_FORMATS:
        raise InvalidParameterValue.of("Format", form, f"It must be one of {', '.join(FETCH_FORMATS)}.")
    return FetchLog(start, stop, bytes_max, given, form == "arrow")


def check_offset(offset: int) -> None:
    """Raise InvalidParameterValue unless a message may have this offset."""
    check_range("Offset", offset, 0, OFFSET_MAX)


def check_reader(request: CommitOffsetsRequest) -> None:
    """Raise InvalidParameterValue unless a commit may name its reader so."""
    if request.Reader is None:
        if request.Take:
            raise InvalidParameterValue.of("Take", "true", "It needs a Reader: who is to have the group.")
    else:
        check_name("Reader", request.Reader)


def check_name(parameter: str, name: str) -> None:
    """Raise InvalidParameterValue unless a reader, a consumer or an owner may be called so."""
    if _NAME.fullmatch(name) is None:
        raise InvalidParameterValue.of(
            parameter, name, "It must be 1 to 128 letters, digits and _ . : - characters."
        )


def check_find_offsets(request: FindOffsetsRequest) -> int:
    """Return the time that `request` asks for. Raises InvalidParameterValue."""
    check_range("Timestamp", request.Timestamp, 0, OFFSET_MAX // 1_000)
    return request.Timestamp


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Raise InvalidParameterValue for a number outside of a range, which it names."""
    if not least <= value <= most:
        raise InvalidParameterValue.of(name, value, f"It must be between {least} and {most}.")
