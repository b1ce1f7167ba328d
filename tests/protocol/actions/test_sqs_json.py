"""AWS JSON 1.0, read as the service reads it and written so that botocore reads it back."""

from __future__ import annotations

import json
from typing import Any

import botocore.parsers
import botocore.serialize
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.sqs_model import any_text, as_parameters, json_service, shapes
from quaymaster.core.values.errors import (
    CallerError,
    InvalidParameterValue,
    MalformedInput,
    MissingParameter,
    QueueDoesNotExist,
)
from quaymaster.protocol.actions import sqs_json
from quaymaster.protocol.actions.log_shapes import FindOffsetsRequest
from quaymaster.protocol.actions.table import ACTIONS, SQS_ACTIONS
from quaymaster.protocol.sqs.shapes import (
    MessageAttributeValue,
    SendMessageBatchResult,
    SendMessageRequest,
    SetQueueAttributesRequest,
)

_SERVICE = json_service()
_SEND = SQS_ACTIONS["SendMessage"]
_BATCH = SQS_ACTIONS["SendMessageBatch"]


def _decode(value: Any, action: str = "SendMessage") -> Any:
    return sqs_json.decode_request(SQS_ACTIONS[action], json.dumps(value).encode())


def test_the_target_names_the_action() -> None:
    assert sqs_json.named_action(b"AmazonSQS.SendMessage") is _SEND


def test_the_actions_on_logs_are_targets_of_their_own() -> None:
    action = sqs_json.named_action(b"Quaymaster.FindOffsets")

    assert action is ACTIONS["FindOffsets"]
    assert sqs_json.decode_request(action, b'{"QueueUrl": "u", "Timestamp": 5}') == FindOffsetsRequest("u", 5)
    assert sqs_json.named_action(b"AmazonSQS.FindOffsets") is None


@pytest.mark.parametrize("target", [b"", b"SendMessage", b"AmazonSQS.Fly", b"amazonsqs.SendMessage", b"\xff"])
def test_an_unknown_target_is_an_unknown_operation(target: bytes) -> None:
    assert sqs_json.named_action(target) is None


@pytest.mark.parametrize("name", sorted(SQS_ACTIONS))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_botocore_sends_is_what_was_meant(name: str, data: st.DataObject) -> None:
    action = SQS_ACTIONS[name]
    value = data.draw(shapes(action.input))
    serializer = botocore.serialize.JSONSerializer()

    request = serializer.serialize_to_request(as_parameters(value), _SERVICE.operation_model(name))

    assert sqs_json.named_action(request["headers"]["X-Amz-Target"].encode()) is action
    assert sqs_json.decode_request(action, request["body"]) == value


@pytest.mark.parametrize("name", sorted(name for name, action in SQS_ACTIONS.items() if action.output))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_botocore_reads_what_was_answered(name: str, data: st.DataObject) -> None:
    output = SQS_ACTIONS[name].output
    assert output is not None
    value = data.draw(shapes(output))

    body = sqs_json.encode_response(value)
    raw = {"status_code": 200, "headers": {}, "body": body}
    parsed = botocore.parsers.JSONParser().parse(raw, _SERVICE.operation_model(name).output_shape)

    del parsed["ResponseMetadata"]
    assert parsed == as_parameters(value)


def test_an_action_without_output_answers_with_nothing() -> None:
    assert sqs_json.encode_response(None) == b""


def test_empty_lists_are_left_out_of_an_answer() -> None:
    assert sqs_json.encode_response(SendMessageBatchResult()) == b"{}"


@pytest.mark.parametrize("body", [b"", b"  ", b"{}", b'{"MaxResults":null}'])
def test_an_empty_body_is_an_input_without_members(body: bytes) -> None:
    decoded = sqs_json.decode_request(SQS_ACTIONS["ListQueues"], body)

    assert decoded == SQS_ACTIONS["ListQueues"].input()


def test_unknown_members_are_ignored() -> None:
    request = _decode({"QueueUrl": "q", "MessageBody": "hi", "Colour": {"deep": [1, 2]}})

    assert request == SendMessageRequest("q", "hi")


def test_a_null_is_an_absent_member() -> None:
    request = _decode(
        {
            "QueueUrl": "q",
            "MessageBody": "hi",
            "DelaySeconds": None,
            "MessageAttributes": {"a": None, "b": {"DataType": "String", "StringValue": None}},
        }
    )

    assert request == SendMessageRequest("q", "hi", None, {"b": MessageAttributeValue("String")})


def test_a_whole_number_may_have_a_fraction_of_zero() -> None:
    assert _decode({"QueueUrl": "q", "MessageBody": "hi", "DelaySeconds": 5.0}).DelaySeconds == 5


def test_a_null_beside_it_does_not_change_a_number() -> None:
    request = _decode({"QueueUrl": "q", "AttributeNames": [None], "WaitTimeSeconds": 5}, "ReceiveMessage")

    assert request.WaitTimeSeconds == 5


def test_nulls_in_a_list_are_ignored() -> None:
    request = _decode({"QueueUrl": "q", "AttributeNames": ["All", None]}, "GetQueueAttributes")

    assert request.AttributeNames == ["All"]


def test_binary_values_are_read_member_by_member_too() -> None:
    value = {"DataType": "Binary", "BinaryValue": "AAE=", "StringValue": None, "BinaryListValues": ["AA=="]}

    request = _decode(
        {"QueueUrl": "q", "MessageBody": "hi", "DelaySeconds": 1.0, "MessageAttributes": {"a": value}}
    )

    assert request.MessageAttributes == {
        "a": MessageAttributeValue("Binary", None, b"\x00\x01", None, [b"\x00"])
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"MessageBody": 7}, "NUMBER_VALUE can not be converted to a String"),
        ({"MessageBody": 7.5}, "DECIMAL_VALUE can not be converted to a String"),
        ({"MessageBody": True}, "TRUE_VALUE can not be converted to a String"),
        ({"MessageBody": False}, "FALSE_VALUE can not be converted to a String"),
        ({"MessageBody": {}}, "Start of structure or map found where not expected."),
        ({"MessageBody": []}, "Start of list found where not expected."),
        ({"DelaySeconds": "5"}, "STRING_VALUE can not be converted to an Integer"),
        ({"DelaySeconds": 5.5}, "DECIMAL_VALUE can not be converted to an Integer"),
        ({"DelaySeconds": True}, "TRUE_VALUE can not be converted to an Integer"),
        ({"MessageAttributes": []}, "Start of list found where not expected."),
        ({"MessageAttributes": {"a": "b"}}, "STRING_VALUE can not be converted to a Structure"),
        (
            {"MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": 1}}},
            "NUMBER_VALUE can not be converted to a Blob",
        ),
        (
            {"MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": "%"}}},
            "A binary value is not valid base64.",
        ),
        (
            {"MessageAttributes": {"a": {"DataType": "String", "StringListValues": "b"}}},
            "STRING_VALUE can not be converted to a List",
        ),
    ],
)
def test_a_member_of_another_type_is_refused(value: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedInput) as raised:
        _decode({"QueueUrl": "q", "MessageBody": "hi"} | value)

    assert raised.value.message == message


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"\xff",
        b'{"QueueUrl":"\xff"}',
        b'{"QueueUrl":"\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"QueueUrl":"q","MessageBody":"m","DelaySeconds":' + b"9" * 5_000 + b"}",
        b"1e999",
    ],
)
def test_a_body_that_is_not_a_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedInput):
        sqs_json.decode_request(_SEND, body)


def test_a_missing_member_is_named() -> None:
    with pytest.raises(MissingParameter) as raised:
        _decode({"QueueUrl": "q"})

    assert raised.value.message == "The request must contain the parameter MessageBody."


def test_a_missing_member_of_a_batch_entry_is_named_with_its_place() -> None:
    entries = [{"Id": "a", "MessageBody": "1"}, {"MessageBody": "2"}]

    with pytest.raises(MissingParameter) as raised:
        _decode({"QueueUrl": "q", "Entries": entries}, "SendMessageBatch")

    assert raised.value.message == "The request must contain the parameter SendMessageBatchRequestEntry.2.Id."


def test_a_missing_queue_url_is_a_queue_that_does_not_exist() -> None:
    with pytest.raises(QueueDoesNotExist):
        _decode({"MessageBody": "hi"})


@pytest.mark.parametrize("action", ["CreateQueue", "GetQueueUrl"])
def test_a_missing_queue_name_is_an_invalid_one(action: str) -> None:
    with pytest.raises(InvalidParameterValue) as raised:
        _decode({}, action)

    assert (
        raised.value.message == "Value for parameter QueueName is invalid. Reason: Must specify a queue name."
    )


def test_a_missing_list_or_map_is_an_empty_one() -> None:
    batch = _decode({"QueueUrl": "q"}, "SendMessageBatch")
    attributes = _decode({"QueueUrl": "q"}, "SetQueueAttributes")

    assert batch.Entries == []
    assert attributes == SetQueueAttributesRequest("q", {})


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(SQS_ACTIONS)), st.data())
def test_members_of_any_type_give_an_input_or_an_error_of_the_caller(name: str, data: st.DataObject) -> None:
    action = SQS_ACTIONS[name]
    members = {field.name: _json_values for field in msgspec.structs.fields(action.input)}
    value = data.draw(st.fixed_dictionaries({}, optional=members))

    try:
        decoded = sqs_json.decode_request(action, json.dumps(value).encode())
    except CallerError:
        return
    assert isinstance(decoded, action.input)


@given(st.sampled_from(sorted(SQS_ACTIONS)), st.binary(max_size=200))
def test_any_bytes_give_an_input_or_an_error_of_the_caller(name: str, body: bytes) -> None:
    try:
        sqs_json.decode_request(SQS_ACTIONS[name], body)
    except CallerError:
        return


def test_a_large_body_of_nothing_useful_is_read_once() -> None:
    body = json.dumps({"QueueUrl": "q", "Entries": [{"Id": str(n)} for n in range(50_000)]}).encode()

    with pytest.raises(MissingParameter):
        sqs_json.decode_request(_BATCH, body)
