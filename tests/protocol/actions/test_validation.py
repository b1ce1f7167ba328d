"""The rules of every action that is not about messages or queue attributes."""

from __future__ import annotations

import re

import pytest

from protocol.sqs_model import MODEL
from quaymaster.core.values.errors import (
    BatchEntryIdsNotDistinct,
    CallerError,
    EmptyBatchRequest,
    InvalidAttributeName,
    InvalidBatchEntryId,
    InvalidParameterValue,
    MissingParameter,
    TooManyEntriesInBatchRequest,
)
from quaymaster.core.values.queues.queue_names import QueueArn
from quaymaster.protocol.actions import validation
from quaymaster.protocol.actions.log_shapes import (
    CommitOffsetsRequest,
    FetchMessagesRequest,
    FindOffsetsRequest,
)
from quaymaster.protocol.logs.log_columns import COLUMNS
from quaymaster.protocol.sqs.shapes import (
    CancelMessageMoveTaskRequest,
    ChangeMessageVisibilityBatchRequestEntry,
    DeleteMessageBatchRequestEntry,
    ListMessageMoveTasksRequest,
    ReceiveMessageRequest,
    StartMessageMoveTaskRequest,
)
from quaymaster.protocol.sqs.task_handles import render_task_handle

_ARN = "arn:aws:sqs:eu-central-1:123456789012:dead"
_QUEUE = QueueArn("eu-central-1", "123456789012", "dead")


# Batches


def _check_ids(*ids: str) -> None:
    entries = [DeleteMessageBatchRequestEntry(entry_id, "r") for entry_id in ids]
    validation.check_batch_entries(entries, "DeleteMessageBatchRequestEntry")


def test_a_batch_has_one_to_ten_entries() -> None:
    _check_ids("a")
    _check_ids(*"abcdefghij")

    with pytest.raises(EmptyBatchRequest) as empty:
        _check_ids()
    assert empty.value.message == (
        "There should be at least one DeleteMessageBatchRequestEntry in the request."
    )
    with pytest.raises(TooManyEntriesInBatchRequest) as many:
        _check_ids(*["not an id"] * 20)
    assert many.value.message == "Maximum number of entries per request are 10. You have sent 20."


@pytest.mark.parametrize("entry_id", ["", "x" * 81, "invalid:id", "a b", "é", "a\n"])
def test_an_entry_id_is_short_and_plain(entry_id: str) -> None:
    with pytest.raises(InvalidBatchEntryId):
        _check_ids("a", entry_id)
    _check_ids("x" * 80, "A-b_9")


def test_entry_ids_are_distinct() -> None:
    with pytest.raises(BatchEntryIdsNotDistinct) as raised:
        _check_ids("a", "b", "c", "b", "a")

    assert raised.value.message == "Id b repeated."


# Receiving


def _receive(**members: object) -> validation.ReceiveRequest:
    return validation.check_receive(ReceiveMessageRequest("q", **members))  # type: ignore[arg-type]


def test_a_plain_receive_takes_one_message_and_leaves_times_to_the_queue() -> None:
    receive = _receive()

    assert receive.count_max == 1
    assert receive.visibility_timeout_ms is None
    assert receive.wait_ms is None
    assert receive.system_attributes == frozenset()
    assert receive.message_attributes.takes_nothing
    assert receive.attempt_id is None


def test_a_receive_says_what_it_wants_in_our_units() -> None:
    receive = _receive(
        MaxNumberOfMessages=10,
        VisibilityTimeout=43_200,
        WaitTimeSeconds=20,
        ReceiveRequestAttemptId="again",
        MessageAttributeNames=["All"],
    )

    assert receive.count_max == 10
    assert receive.visibility_timeout_ms == 43_200_000
    assert receive.wait_ms == 20_000
    assert receive.attempt_id == "again"
    assert receive.message_attributes.takes_all


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {"MaxNumberOfMessages": 11},
            "Value 11 for parameter MaxNumberOfMessages is invalid. "
            "Reason: Must be between 1 and 10, if provided.",
        ),
        (
            {"MaxNumberOfMessages": 0},
            "Value 0 for parameter MaxNumberOfMessages is invalid. "
            "Reason: Must be between 1 and 10, if provided.",
        ),
        (
            {"WaitTimeSeconds": 21},
            "Value 21 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided.",
        ),
        (
            {"WaitTimeSeconds": -1},
            "Value -1 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided.",
        ),
        (
            {"VisibilityTimeout": 43_201},
            "Value 43201 for parameter VisibilityTimeout is invalid. "
            "Reason: Must be >= 0 and <= 43200, if provided.",
        ),
        (
            {"ReceiveRequestAttemptId": "two words"},
            "Value two words for parameter ReceiveRequestAttemptId is invalid. Reason: ReceiveRequestAttemptId "
            "can only include alphanumeric and punctuation characters. 1 to 128 in length.",
        ),
    ],
)
def test_a_receive_has_limits(members: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidParameterValue) as raised:
        _receive(**members)

    assert raised.value.message == message


def test_system_attributes_are_those_of_the_model() -> None:
    names = set(MODEL["shapes"]["MessageSystemAttributeName"]["enum"]) - {"All"}

    assert names == validation.SYSTEM_ATTRIBUTE_NAMES
    assert _receive(AttributeNames=["All"]).system_attributes == names
    assert _receive(MessageSystemAttributeNames=["All", "SenderId"]).system_attributes == names


def test_the_id_of_origin_is_for_those_who_name_it() -> None:
    by_name = _receive(AttributeNames=["OriginMessageId"]).system_attributes
    with_all = _receive(MessageSystemAttributeNames=["All", "OriginMessageId"]).system_attributes

    assert by_name == {"OriginMessageId"}
    assert with_all == validation.SYSTEM_ATTRIBUTE_NAMES | {"OriginMessageId"}
    assert "OriginMessageId" not in _receive(AttributeNames=["All"]).system_attributes


def test_system_attributes_may_be_named_in_both_parameters() -> None:
    receive = _receive(
        AttributeNames=["SenderId", "Policy", "QueueArn"], MessageSystemAttributeNames=["SentTimestamp"]
    )

    assert receive.system_attributes == {"SenderId", "SentTimestamp"}
    with pytest.raises(InvalidAttributeName) as raised:
        _receive(AttributeNames=["Colour"])
    assert raised.value.message == "Unknown Attribute Colour."


# Visibility


def test_a_visibility_timeout_is_up_to_twelve_hours() -> None:
    assert validation.check_visibility_timeout(0) == 0
    assert validation.check_visibility_timeout(43_200) == 43_200_000
    for timeout_s in (-1, 43_201):
        with pytest.raises(InvalidParameterValue):
            validation.check_visibility_timeout(timeout_s)


def test_an_entry_with_a_wrong_timeout_fails_alone() -> None:
    def check(timeout_s: int | None) -> int | CallerError:
        return validation.check_change_entry(ChangeMessageVisibilityBatchRequestEntry("a", "r", timeout_s))

    assert check(30) == 30_000
    assert isinstance(check(None), MissingParameter)
    assert isinstance(check(43_201), InvalidParameterValue)


# Lists


def test_a_list_has_up_to_a_thousand_results_and_pages_only_when_asked() -> None:
    assert validation.check_list_results(None, None) == 1_000
    assert validation.check_list_results(1, None) == 1
    assert validation.check_list_results(1_000, "token") == 1_000
    for results_max in (0, 1_001):
        with pytest.raises(InvalidParameterValue):
            validation.check_list_results(results_max, None)
    with pytest.raises(InvalidParameterValue):
        validation.check_list_results(None, "token")


# Tags


def test_tags_have_keys_and_values_of_these_characters() -> None:
    validation.check_tags("q", {"k" * 128: "v" * 256, "a b_.:/=+-@é": "", "K1": "x y"})


@pytest.mark.parametrize(
    "tags",
    [
        {"": "v"},
        {"k" * 129: "v"},
        {"k": "v" * 257},
        {"k!": "v"},
        {"k": "v!"},
        {"aws:k": "v"},
        {"AWS:k": "v"},
        {f"k{n}": "v" for n in range(51)},
    ],
)
def test_other_tags_are_refused(tags: dict[str, str]) -> None:
    with pytest.raises(InvalidParameterValue):
        validation.check_tags("q", tags)


def test_a_queue_has_at_most_fifty_tags_with_those_it_had() -> None:
    existing = [f"k{n}" for n in range(50)]

    validation.check_tags("q", {"k0": "new"}, existing)
    with pytest.raises(InvalidParameterValue) as raised:
        validation.check_tags("q", {"more": "v"}, existing)
    assert raised.value.message == "Too many tags added for queue q."


def test_tags_must_be_given() -> None:
    with pytest.raises(MissingParameter):
        validation.check_tags("q", {})


@pytest.mark.parametrize("keys", [[], [""], ["team", ""], ["x" * 129]])
def test_keys_of_tags_to_take_away_must_be_given_and_have_a_length_that_keys_can_have(
    keys: list[str],
) -> None:
    with pytest.raises(
        InvalidParameterValue, match=r"^Tag keys must be between 1 and 128 characters in length\.$"
    ):
        validation.check_tag_keys(keys)
    validation.check_tag_keys(["anything", "x" * 128])


# Moving messages


def test_a_move_names_its_queues_and_its_rate() -> None:
    back = validation.check_start_move(StartMessageMoveTaskRequest(_ARN))
    elsewhere = validation.check_start_move(StartMessageMoveTaskRequest(_ARN, _ARN, 500))

    assert back == validation.Move(_QUEUE)
    assert elsewhere == validation.Move(_QUEUE, _QUEUE)


@pytest.mark.parametrize(
    "request_",
    [
        StartMessageMoveTaskRequest("dummy"),
        StartMessageMoveTaskRequest(_ARN, "dummy"),
        StartMessageMoveTaskRequest(_ARN, None, 0),
        StartMessageMoveTaskRequest(_ARN, None, 501),
    ],
)
def test_other_moves_are_refused(request_: StartMessageMoveTaskRequest) -> None:
    with pytest.raises(InvalidParameterValue):
        validation.check_start_move(request_)


def test_a_task_is_cancelled_by_its_handle() -> None:
    handles = [render_task_handle(b"0123456789abcdef", arn) for arn in (_ARN, "no arn")]

    known, of_no_queue = (
        validation.check_cancel_move(CancelMessageMoveTaskRequest(handle)) for handle in handles
    )

    assert known == validation.Move(_QUEUE, task_id=b"0123456789abcdef")
    assert of_no_queue.source is None


def test_one_to_ten_moves_are_listed() -> None:
    assert validation.check_list_moves(ListMessageMoveTasksRequest(_ARN)) == validation.Move(
        _QUEUE, tasks_max=1
    )
    assert validation.check_list_moves(ListMessageMoveTasksRequest(_ARN, 10)) == validation.Move(
        _QUEUE, tasks_max=10
    )
    with pytest.raises(InvalidParameterValue):
        validation.check_list_moves(ListMessageMoveTasksRequest(_ARN, 11))
    with pytest.raises(MissingParameter):
        validation.check_list_moves(ListMessageMoveTasksRequest(""))


# Logs


def test_a_fetch_has_all_columns_and_a_few_mebibytes_when_nothing_was_said() -> None:
    found = validation.check_fetch(FetchMessagesRequest("u", 0, 5, 9))

    assert (found.from_offset, found.to_offset, found.bytes_max) == (5, 9, validation.FETCH_BYTES_DEFAULT)
    assert found.columns == tuple(COLUMNS)
    assert not found.is_arrow


def test_a_fetch_has_the_columns_and_the_form_that_were_asked_for() -> None:
    times = validation.check_fetch(FetchMessagesRequest("u", 0, 5, 5, 1, ["offset", "timestamp"], "arrow"))
    ids = validation.check_fetch(FetchMessagesRequest("u", 0, 5, 5, Columns=["message_id"], Format="columns"))

    assert times.columns == ("offset", "timestamp")
    assert (times.is_arrow, times.bytes_max) == (True, 1)
    assert (ids.is_arrow, ids.columns) == (False, ("message_id",))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            FetchMessagesRequest("u", 0, -1, 5),
            "Value -1 for parameter FromOffset is invalid. Reason: It must be",
        ),
        (FetchMessagesRequest("u", 0, 1, 1 << 63), "for parameter ToOffset is invalid."),
        (FetchMessagesRequest("u", 0, 5, 4), "It must not be below FromOffset, which is 5."),
        (
            FetchMessagesRequest("u", 0, 5, 9, 0),
            "MaxBytes is invalid. Reason: It must be between 1 and 8388608.",
        ),
        (FetchMessagesRequest("u", 0, 5, 9, (8 << 20) + 1), "MaxBytes"),
        (FetchMessagesRequest("u", 0, 5, 9, Columns=[]), "It must name at least one column."),
        (FetchMessagesRequest("u", 0, 5, 9, Columns=["body"]), "The columns are queue, partition, offset,"),
        (FetchMessagesRequest("u", 0, 5, 9, Columns=["key", "key"]), "Each column may be named once."),
        (FetchMessagesRequest("u", 0, 5, 9, Format="csv"), "It must be one of columns, arrow."),
    ],
)
def test_other_fetches_are_refused(request_: FetchMessagesRequest, message: str) -> None:
    with pytest.raises(InvalidParameterValue, match=re.escape(message)):
        validation.check_fetch(request_)


def test_a_reader_of_a_group_has_a_name_that_a_tag_can_have() -> None:
    for reader, take in ((None, None), (None, False), ("r", None), ("a-Z_0.9:x" * 14, True)):
        validation.check_reader(CommitOffsetsRequest("u", [], reader, take))
    for reader, take, message in (
        (None, True, "It needs a Reader"),
        ("", True, "It must be 1 to 128 letters"),
        ("r" * 129, None, "It must be 1 to 128 letters"),
        ("a b", None, "It must be 1 to 128 letters"),
    ):
        with pytest.raises(InvalidParameterValue, match=message):
            validation.check_reader(CommitOffsetsRequest("u", [], reader, take))


def test_a_time_is_one_that_a_message_can_have() -> None:
    assert validation.check_find_offsets(FindOffsetsRequest("u", 0)) == 0
    for wrong in (-1, 1 << 62):
        with pytest.raises(InvalidParameterValue):
            validation.check_find_offsets(FindOffsetsRequest("u", wrong))


def test_an_offset_is_a_whole_number_of_63_bits() -> None:
    validation.check_offset(0)
    validation.check_offset(validation.OFFSET_MAX)
    for wrong in (-1, validation.OFFSET_MAX + 1):
        with pytest.raises(InvalidParameterValue):
            validation.check_offset(wrong)
