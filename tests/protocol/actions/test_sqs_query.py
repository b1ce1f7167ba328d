"""AWS Query, read as the service reads it and written so that botocore reads it back."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

import botocore.parsers
import botocore.serialize
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.sqs_model import as_parameters, query_service, shapes, xml_text
from quaymaster.core.values.errors import (
    CallerError,
    InvalidAction,
    MalformedInput,
    MissingParameter,
    QueueDoesNotExist,
    UnknownOperation,
)
from quaymaster.protocol.actions import sqs_query
from quaymaster.protocol.actions.table import SQS_ACTIONS
from quaymaster.protocol.sqs.form_parameters import parse_parameters
from quaymaster.protocol.sqs.response import WireForm
from quaymaster.protocol.sqs.shapes import (
    CancelMessageMoveTaskResult,
    GetQueueAttributesResult,
    ListQueuesResult,
    ListQueueTagsResult,
    Message,
    MessageAttributeValue,
    ReceiveMessageResult,
    SendMessageBatchRequest,
    SendMessageBatchRequestEntry,
    SendMessageRequest,
    SendMessageResult,
    Shape,
)

_SERVICE = query_service()


def _decode(text: str, action: str, path_queue_url: str | None = "http://h/1/q") -> Any:
    parameters = parse_parameters(text.encode())
    return sqs_query.decode_request(SQS_ACTIONS[action], parameters, path_queue_url)


def _render(action: str, output: Shape | None, form: WireForm = WireForm.QUERY) -> bytes:
    return sqs_query.encode_response(SQS_ACTIONS[action], output, "request-1", form)


def _result(action: str, output: Shape | None) -> str:
    body = _render(action, output).decode()
    before = f'<?xml version="1.0"?><{action}Response xmlns="http://queue.amazonaws.com/doc/2012-11-05/">'
    after = f"<ResponseMetadata><RequestId>request-1</RequestId></ResponseMetadata></{action}Response>"
    assert body.startswith(before)
    assert body.endswith(after)
    return body[len(before) : -len(after)]


# Reading


@pytest.mark.parametrize("name", sorted(SQS_ACTIONS))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_botocore_sends_is_what_was_meant(name: str, data: st.DataObject) -> None:
    action = SQS_ACTIONS[name]
    value = data.draw(shapes(action.input))
    serializer = botocore.serialize.QuerySerializer()

    request = serializer.serialize_to_request(as_parameters(value), _SERVICE.operation_model(name))
    body = urllib.parse.urlencode(request["body"]).encode()
    parameters = parse_parameters(body)

    assert sqs_query.action_of(parameters) is action
    assert sqs_query.decode_request(action, parameters) == value


def test_no_action_is_unknown_and_a_wrong_one_invalid() -> None:
    for parameters in ({}, {"Action": ""}):
        with pytest.raises(UnknownOperation):
            sqs_query.action_of(parameters)
    with pytest.raises(InvalidAction) as raised:
        sqs_query.action_of({"Action": "Fly"})
    assert raised.value.message == "The action Fly is not valid for this endpoint."


def test_the_queue_is_that_of_the_path_unless_a_parameter_says_another() -> None:
    by_path = _decode("MessageBody=hi", "SendMessage")
    by_parameter = _decode("MessageBody=hi&QueueUrl=other", "SendMessage")

    assert by_path == SendMessageRequest("http://h/1/q", "hi")
    assert by_parameter.QueueUrl == "other"
    assert _decode("QueueName=n", "GetQueueUrl").QueueName == "n"
    with pytest.raises(QueueDoesNotExist):
        _decode("MessageBody=hi", "SendMessage", None)


def test_a_whole_message_is_read() -> None:
    request = _decode(
        "MessageBody=a%20b+c%26&DelaySeconds=5&MessageGroupId=g&MessageDeduplicationId=d"
        "&MessageAttribute.2.Name=n2&MessageAttribute.2.Value.DataType=Binary"
        "&MessageAttribute.2.Value.BinaryValue=AAE%3D"
        "&MessageAttribute.1.Name=n1&MessageAttribute.1.Value.DataType=String"
        "&MessageAttribute.1.Value.StringValue=v1"
        "&MessageSystemAttribute.1.Name=AWSTraceHeader&MessageSystemAttribute.1.Value.DataType=String"
        "&MessageSystemAttribute.1.Value.StringValue=Root=1",
        "SendMessage",
    )

    assert request == SendMessageRequest(
        "http://h/1/q",
        "a b c&",
        5,
        {
            "n1": MessageAttributeValue("String", "v1"),
            "n2": MessageAttributeValue("Binary", None, b"\x00\x01"),
        },
        {"AWSTraceHeader": MessageAttributeValue("String", "Root=1")},
        "d",
        "g",
    )


def test_entries_are_taken_in_the_order_of_their_numbers_which_may_have_gaps() -> None:
    request = _decode(
        "SendMessageBatchRequestEntry.10.Id=c&SendMessageBatchRequestEntry.10.MessageBody=3"
        "&SendMessageBatchRequestEntry.2.Id=b&SendMessageBatchRequestEntry.2.MessageBody=2"
        "&SendMessageBatchRequestEntry.1.Id=a&SendMessageBatchRequestEntry.1.MessageBody=1"
        "&SendMessageBatchRequestEntry.x.Id=ignored&SendMessageBatchRequestEntry.9999999999.Id=ignored"
        "&SendMessageBatchRequestEntry.\u0661.Id=ignored",
        "SendMessageBatch",
    )

    assert request == SendMessageBatchRequest(
        "http://h/1/q", [SendMessageBatchRequestEntry(i, b) for i, b in (("a", "1"), ("b", "2"), ("c", "3"))]
    )


def test_no_entries_are_an_empty_batch() -> None:
    assert _decode("", "SendMessageBatch").Entries == []
    assert _decode("SendMessageBatchRequestEntry=x", "DeleteMessageBatch").Entries == []
    assert _decode("DeleteMessageBatchRequestEntry=x", "DeleteMessageBatch").Entries == []


@pytest.mark.parametrize(
    ("text", "action", "member"),
    [
        ("AttributeNames=", "GetQueueAttributes", "AttributeNames"),
        ("Label=l&Actions=&AWSAccountIds=", "AddPermission", "Actions"),
        ("Label=l&Actions=&AWSAccountIds=", "AddPermission", "AWSAccountIds"),
        ("TagKeys=", "UntagQueue", "TagKeys"),
    ],
)
def test_a_list_without_a_number_and_a_value_is_empty(text: str, action: str, member: str) -> None:
    assert not getattr(_decode(text, action), member)


@pytest.mark.parametrize(
    "text",
    [
        "AttributeName.1=All&AttributeName.2=Policy",
        "AttributeName.member.1=All&AttributeName.member.2=Policy",
        "AttributeName.entry.1=All&AttributeName.entry.2=Policy",
        "AttributeNames.1=All&AttributeNames.2=Policy",
        "AttributeName.1.=All&AttributeName.2=Policy",
        "AttributeName=ignored&AttributeName.1=All&AttributeName.2=Policy",
        "AttributeName.1=All&AttributeName.2=Policy&AttributeName=ignored",
    ],
)
def test_a_list_may_be_numbered_in_several_ways(text: str) -> None:
    assert _decode(text, "GetQueueAttributes").AttributeNames == ["All", "Policy"]


def test_a_list_of_one_needs_no_number() -> None:
    assert _decode("AttributeName=All", "GetQueueAttributes").AttributeNames == ["All"]


@pytest.mark.parametrize(
    "text",
    [
        "Attribute.1.Name=DelaySeconds&Attribute.1.Value=5",
        "Attribute.Name=DelaySeconds&Attribute.Value=5",
        "Attribute.entry.1.key=DelaySeconds&Attribute.entry.1.value=5",
        "Attribute.1.Key=DelaySeconds&Attribute.1.Value=5&Attribute.2=ignored",
    ],
)
def test_a_map_may_be_written_in_several_ways(text: str) -> None:
    assert _decode(text, "SetQueueAttributes").Attributes == {"DelaySeconds": "5"}


def test_tags_have_keys() -> None:
    request = _decode("QueueName=q&Tag.1.Key=a&Tag.1.Value=1&Tag.2.Key=b&Tag.2.Value=", "CreateQueue")

    assert request.tags == {"a": "1", "b": ""}


@pytest.mark.parametrize(
    ("text", "action", "missing"),
    [
        ("", "SendMessage", "MessageBody"),
        ("Attribute.1.Value=5", "SetQueueAttributes", "Attribute.1.Name"),
        ("Attribute.1.Name=DelaySeconds", "SetQueueAttributes", "Attribute.1.Value"),
        (
            "SendMessageBatchRequestEntry.3.Id=a",
            "SendMessageBatch",
            "SendMessageBatchRequestEntry.3.MessageBody",
        ),
        ("ReceiptHandle=r&VisibilityTimeout=", "ChangeMessageVisibility", "VisibilityTimeout"),
        ("MessageBody.x=1", "SendMessage", "MessageBody"),
    ],
)
def test_what_is_missing_is_named(text: str, action: str, missing: str) -> None:
    with pytest.raises(MissingParameter) as raised:
        _decode(text, action)

    assert raised.value.message == f"The request must contain the parameter {missing}."


def test_an_attribute_without_a_value_is_left_to_validation() -> None:
    request = _decode("MessageBody=b&MessageAttribute.1.Name=a&MessageAttribute.1.Value=x", "SendMessage")

    assert request.MessageAttributes == {"a": MessageAttributeValue()}


@pytest.mark.parametrize(
    "text",
    [
        "MessageBody=b&DelaySeconds=soon",
        "MessageBody=b&DelaySeconds=1.0",
        "MessageBody=b&DelaySeconds=99999999999999999999",
        "MessageBody=b&DelaySeconds=\u0661",
        "MessageBody=b&MessageAttribute.1.Name=a&MessageAttribute.1.Value.BinaryValue=%25",
    ],
)
def test_a_value_of_another_type_is_refused(text: str) -> None:
    with pytest.raises(MalformedInput):
        _decode(text, "SendMessage")


def test_deep_names_are_not_followed_for_ever() -> None:
    assert _decode(f"MessageBody=b&{'a.' * 50_000}=1", "SendMessage") == SendMessageRequest(
        "http://h/1/q", "b"
    )


def test_a_value_below_nameless_levels_is_none() -> None:
    assert _decode("MessageBody=b&DelaySeconds..=5&MessageGroupId...=g", "SendMessage") == SendMessageRequest(
        "http://h/1/q", "b"
    )


_names = st.lists(
    st.sampled_from(
        ["Attribute", "Tag", "Name", "Value", "Key", "1", "2", "0", "x", "", "Entries", "QueueUrl"]
    )
    | st.sampled_from(["SendMessageBatchRequestEntry", "MessageAttribute", "Id", "MessageBody", "member"]),
    min_size=1,
    max_size=6,
).map(".".join)


@given(st.sampled_from(sorted(SQS_ACTIONS)), st.dictionaries(_names, st.text(max_size=4), max_size=12))
def test_names_in_any_order_give_an_input_or_an_error_of_the_caller(
    name: str, parameters: dict[str, str]
) -> None:
    try:
        decoded = sqs_query.decode_request(SQS_ACTIONS[name], parameters, "q")
    except CallerError:
        return
    assert isinstance(decoded, SQS_ACTIONS[name].input)
    written = msgspec.json.encode(decoded)
    assert msgspec.json.decode(written, type=type(decoded)) == decoded, "every member has its type"


# Rendering


@pytest.mark.parametrize("name", sorted(name for name, action in SQS_ACTIONS.items() if action.output))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_botocore_reads_what_was_answered(name: str, data: st.DataObject) -> None:
    output = SQS_ACTIONS[name].output
    assert output is not None
    value = data.draw(shapes(output, xml_text))

    raw = {"status_code": 200, "headers": {}, "body": _render(name, value)}
    parsed = botocore.parsers.QueryParser().parse(raw, _SERVICE.operation_model(name).output_shape)

    metadata = parsed.pop("ResponseMetadata")
    assert metadata["RequestId"] == "request-1"
    assert parsed == as_parameters(value)


def test_an_action_without_output_answers_with_its_request_id_only() -> None:
    assert _result("DeleteMessage", None) == ""


def test_an_empty_result_is_one_element() -> None:
    assert _result("ReceiveMessage", ReceiveMessageResult()) == "<ReceiveMessageResult/>"
    assert _result("ListQueues", ListQueuesResult()) == "<ListQueuesResult/>"


def test_a_message_is_rendered_as_the_service_renders_it() -> None:
    message = Message(
        "m",
        "r",
        "d",
        'a<b>&"\r\n',
        {"SenderId": "s"},
        "e",
        {"n": MessageAttributeValue("Binary", None, b"\x00\x01")},
    )

    assert _result("ReceiveMessage", ReceiveMessageResult([message])) == (
        "<ReceiveMessageResult><Message><MessageId>m</MessageId><ReceiptHandle>r</ReceiptHandle>"
        "<MD5OfBody>d</MD5OfBody><Body>a&lt;b&gt;&amp;&quot;&#xD;\n</Body>"
        "<Attribute><Name>SenderId</Name><Value>s</Value></Attribute>"
        "<MD5OfMessageAttributes>e</MD5OfMessageAttributes>"
        "<MessageAttribute><Name>n</Name><Value><DataType>Binary</DataType><BinaryValue>AAE=</BinaryValue>"
        "</Value></MessageAttribute></Message></ReceiveMessageResult>"
    )


def test_tags_are_rendered_with_keys() -> None:
    assert _result("ListQueueTags", ListQueueTagsResult({"a": "1"})) == (
        "<ListQueueTagsResult><Tag><Key>a</Key><Value>1</Value></Tag></ListQueueTagsResult>"
    )


# The older JSON


@pytest.mark.parametrize(
    ("action", "output", "result"),
    [
        (
            "SendMessage",
            SendMessageResult("5d41", None, None, "m"),
            {
                "MD5OfMessageBody": "5d41",
                "MD5OfMessageAttributes": None,
                "MD5OfMessageSystemAttributes": None,
                "MessageId": "m",
                "SequenceNumber": None,
            },
        ),
        ("ReceiveMessage", ReceiveMessageResult(), {"messages": None}),
        ("ListQueues", ListQueuesResult(["u"]), {"queueUrls": ["u"], "NextToken": None}),
        (
            "GetQueueAttributes",
            GetQueueAttributesResult({"DelaySeconds": "0"}),
            {"Attributes": [{"Name": "DelaySeconds", "Value": "0"}]},
        ),
        ("ListQueueTags", ListQueueTagsResult({"a": "1"}), {"Tags": [{"Key": "a", "Value": "1"}]}),
        ("CancelMessageMoveTask", CancelMessageMoveTaskResult(0), {"ApproximateNumberOfMessagesMoved": 0}),
    ],
)
def test_a_query_that_accepts_json_gets_the_older_json(action: str, output: Shape, result: Any) -> None:
    body = json.loads(_render(action, output, WireForm.QUERY_JSON))

    assert body == {
        f"{action}Response": {
            f"{action}Result": result,
            "ResponseMetadata": {"RequestId": "request-1"},
        }
    }


def test_messages_in_the_older_json_list_their_attributes_as_pairs() -> None:
    message = Message(Body="b", MessageAttributes={"n": MessageAttributeValue("String", "v")})

    body = json.loads(_render("ReceiveMessage", ReceiveMessageResult([message]), WireForm.QUERY_JSON))

    (received,) = body["ReceiveMessageResponse"]["ReceiveMessageResult"]["messages"]
    assert received["Body"] == "b"
    (pair,) = received["MessageAttributes"]
    assert pair["Name"] == "n"
    assert pair["Value"]["StringValue"] == "v"


def test_an_action_without_output_answers_in_the_older_json_too() -> None:
    body = json.loads(_render("PurgeQueue", None, WireForm.QUERY_JSON))

    assert body == {"PurgeQueueResponse": {"ResponseMetadata": {"RequestId": "request-1"}}}
