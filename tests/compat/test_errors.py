"""Errors as they are on the wire, in both forms, and requests that are no requests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.sqs import FORM_TYPE, JSON_TYPE, Endpoint, HTTPAnswer

from .support import send, unique

COMMON = "com.amazon.coral.service#"
MODELLED = "com.amazonaws.sqs#"


def assert_json_error(answer: HTTPAnswer, *, status: int, kind: str, code: str, message: str | None) -> None:
    """Assert every part of an error in the JSON form."""
    assert answer.status == status, answer.text
    assert answer.headers["content-type"] == JSON_TYPE
    assert answer.headers["x-amzn-query-error"] == f"{code};Sender"
    assert answer.headers["x-amzn-requestid"]
    assert answer.json["__type"] == kind
    if message is not None:
        assert answer.error_message == message


def assert_query_error(answer: HTTPAnswer, *, status: int, code: str, message: str | None) -> None:
    """Assert every part of an error in the Query form."""
    assert answer.status == status, answer.text
    assert answer.headers["content-type"].startswith("text/xml")
    assert answer.headers["x-amzn-requestid"] == answer.value("RequestId")
    root = answer.xml
    assert root.tag == "ErrorResponse"
    assert "http://queue.amazonaws.com/doc/2012-11-05/" in answer.text
    assert root.findtext("Error/Type") == "Sender"
    assert root.findtext("Error/Code") == code
    assert root.find("Error/Detail") is not None
    if message is not None:
        assert root.findtext("Error/Message") == message


# action, parameters in JSON, parameters in Query, status, JSON type, code, message
CASES: list[Any] = [
    pytest.param(
        "ReceiveMessage",
        {"MaxNumberOfMessages": 11},
        {"MaxNumberOfMessages": "11"},
        400,
        f"{COMMON}InvalidParameterValueException",
        "InvalidParameterValue",
        "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided.",
        id="invalid parameter",
    ),
    pytest.param(
        "SendMessage",
        {},
        {},
        400,
        f"{COMMON}MissingRequiredParameterException",
        "MissingParameter",
        "The request must contain the parameter MessageBody.",
        id="missing parameter",
    ),
    pytest.param(
        "SendMessage",
        {"MessageBody": "\x01"},
        {"MessageBody": "\x01"},
        400,
        f"{MODELLED}InvalidMessageContents",
        "InvalidMessageContents",
        None,
        id="invalid characters",
    ),
    pytest.param(
        "DeleteMessage",
        {"ReceiptHandle": "garbage"},
        {"ReceiptHandle": "garbage"},
        404,
        f"{MODELLED}ReceiptHandleIsInvalid",
        "ReceiptHandleIsInvalid",
        'The input receipt handle "garbage" is not a valid receipt handle.',
        id="garbage handle",
    ),
    pytest.param(
        "GetQueueAttributes",
        {"AttributeNames": ["Foobar"]},
        {"AttributeName.1": "Foobar"},
        400,
        f"{MODELLED}InvalidAttributeName",
        "InvalidAttributeName",
        "Unknown Attribute Foobar.",
        id="unknown attribute",
    ),
    pytest.param(
        "SetQueueAttributes",
        {"Attributes": {"DelaySeconds": "901"}},
        {"Attribute.1.Name": "DelaySeconds", "Attribute.1.Value": "901"},
        400,
        f"{MODELLED}InvalidAttributeValue",
        "InvalidAttributeValue",
        "Invalid value for the parameter DelaySeconds.",
        id="wrong attribute",
    ),
    pytest.param(
        "SendMessageBatch",
        {"Entries": [{"Id": "a:b", "MessageBody": "m"}]},
        {"SendMessageBatchRequestEntry.1.Id": "a:b", "SendMessageBatchRequestEntry.1.MessageBody": "m"},
        400,
        f"{MODELLED}InvalidBatchEntryId",
        "AWS.SimpleQueueService.InvalidBatchEntryId",
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
        "It can be at most 80 letters long.",
        id="wrong entry id",
    ),
]


@pytest.mark.parametrize(("action", "params", "form", "status", "kind", "code", "message"), CASES)
def test_error_has_its_shape_in_both_forms(
    server: Endpoint,
    queue: str,
    action: str,
    params: dict[str, Any],
    form: dict[str, str],
    status: int,
    kind: str,
    code: str,
    message: str | None,
) -> None:
    in_json = server.json_call(action, {"QueueUrl": queue, **params})
    in_query = server.query_call(action, {"QueueUrl": queue, **form})

    assert_json_error(in_json, status=status, kind=kind, code=code, message=message)
    assert_query_error(in_query, status=status, code=code, message=message)


def test_missing_queue_is_worded_differently_in_the_two_forms(server: Endpoint) -> None:
    name = unique()
    code = "AWS.SimpleQueueService.NonExistentQueue"

    assert_json_error(
        server.json_call("GetQueueUrl", {"QueueName": name}),
        status=400,
        kind=f"{MODELLED}QueueDoesNotExist",
        code=code,
        message="The specified queue does not exist.",
    )
    for answer in (
        server.query_call("GetQueueUrl", {"QueueName": name}),
        server.query_call("PurgeQueue", path=f"/{server.account_id}/{name}"),
    ):
        assert_query_error(
            answer,
            status=400,
            code=code,
            message="The specified queue does not exist for this wsdl version.",
        )


def test_a_request_without_a_queue_url_names_no_queue_that_exists(server: Endpoint) -> None:
    answer = server.json_call("PurgeQueue")

    assert (answer.status, answer.error_code) == (400, "AWS.SimpleQueueService.NonExistentQueue")
    assert answer.error_message == "The specified queue does not exist."


@pytest.mark.parametrize(
    "url", ["", "http://", "http://127.0.0.1/", "not a url/at/all", "http://127.0.0.1/000000000000/"]
)
def test_queue_url_that_names_no_queue_is_refused(server: Endpoint, url: str) -> None:
    answer = server.json_call("PurgeQueue", {"QueueUrl": url})

    assert answer.status in {400, 404}, answer.text
    assert answer.error_code in {
        "AWS.SimpleQueueService.NonExistentQueue",
        "InvalidAddress",
        "InvalidParameterValue",
        "MissingParameter",
    }


# -- requests that are no requests ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'"text"', b"\xff\xfe", b"{'QueueName': 1}", b'{"QueueName": ', b"nul"],
    ids=["open", "list", "text", "no utf-8", "quotes", "cut off", "word"],
)
def test_json_that_cannot_be_read_is_refused(server: Endpoint, body: bytes) -> None:
    answer = server.json_call("GetQueueUrl", body=body)

    assert answer.status == 400
    assert answer.json["__type"] == f"{COMMON}SerializationException"


@pytest.mark.parametrize(
    "params",
    [
        {"QueueName": 7},
        {"QueueName": ["a"]},
        {"QueueName": {"a": "b"}},
    ],
    ids=str,
)
def test_json_of_another_type_is_refused(server: Endpoint, params: dict[str, Any]) -> None:
    answer = server.json_call("GetQueueUrl", params)

    assert answer.status == 400
    assert answer.json["__type"] == f"{COMMON}SerializationException"


def test_deeply_nested_json_is_refused_and_harms_nobody(server: Endpoint, sqs: Any, queue: str) -> None:
    answer = server.json_call("GetQueueUrl", body=b'{"QueueName": ' + b"[" * 100_000)

    assert answer.status == 400
    send(sqs, queue, "still there")


def test_members_that_sqs_does_not_know_are_ignored(server: Endpoint, queue: str) -> None:
    answer = server.json_call("SendMessage", {"QueueUrl": queue, "MessageBody": "m", "Colour": "blue"})

    assert answer.status == 200


def test_null_is_as_if_left_out(server: Endpoint, queue: str) -> None:
    answer = server.json_call("SendMessage", {"QueueUrl": queue, "MessageBody": "m", "DelaySeconds": None})

    assert answer.status == 200


def test_unknown_json_action_is_refused(server: Endpoint) -> None:
    answer = server.json_call("FlyAway")

    assert answer.status in {400, 404}
    assert answer.json["__type"] == f"{COMMON}UnknownOperationException"


def test_json_target_of_another_service_is_refused(server: Endpoint) -> None:
    answer = server.json_call("ListQueues", headers={"X-Amz-Target": "DynamoDB_20120810.ListTables"})

    assert answer.status in {400, 404}
    assert answer.json["__type"] == f"{COMMON}UnknownOperationException"


def test_unknown_query_action_is_refused_by_name(server: Endpoint, queue: str) -> None:
    for path in ("/", queue.removeprefix(server.url)):
        for method in ("GET", "POST"):
            assert_query_error(
                server.query_call("FooBar", method=method, path=path),
                status=400,
                code="InvalidAction",
                message="The action FooBar is not valid for this endpoint.",
            )


@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_actions_on_no_queue_are_refused_at_the_url_of_a_queue(
    server: Endpoint, queue: str, action: str, method: str
) -> None:
    answer = server.query_call(
        action, {"QueueName": unique()}, method=method, path=queue.removeprefix(server.url)
    )

    assert_query_error(
        answer,
        status=400,
        code="InvalidAction",
        message=f"The action {action} is not valid for this endpoint.",
    )


@pytest.mark.parametrize("headers", [{}, {"Accept": "application/json"}])
def test_request_without_an_action_is_an_unknown_operation(
    server: Endpoint, queue: str, headers: dict[str, str]
) -> None:
    for path in ("/", queue.removeprefix(server.url)):
        answer = server.query_call(None, method="GET", path=path, headers=headers)

        assert answer.status == 404
        assert "<UnknownOperationException" in answer.text


@pytest.mark.parametrize(
    "form",
    [
        {"MaxNumberOfMessages": "many"},
        {"MaxNumberOfMessages": "1.5"},
        {"MaxNumberOfMessages": "99999999999999999999"},
        {"VisibilityTimeout": "x"},
    ],
    ids=str,
)
def test_number_that_is_none_is_refused_in_the_query_form(
    server: Endpoint, queue: str, form: dict[str, str]
) -> None:
    answer = server.query_call("ReceiveMessage", {"QueueUrl": queue, **form})

    assert answer.status == 400
    assert answer.value("Error/Type") == "Sender"
    assert answer.error_code in {"InvalidParameterValue", "MalformedInput"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"&&&",
        b"=",
        b"Action",
        b"Action=%",
        b"Action=%zz",
        b"Action=%ff%fe",
        b"\x00\xff\xfe",
        b"a" * 5000,
    ],
    ids=["empty", "signs", "no name", "no value", "percent", "no hex", "no utf-8", "bytes", "long"],
)
def test_form_that_cannot_be_read_is_refused(server: Endpoint, body: bytes) -> None:
    answer = server.signed("POST", "/", headers={"Content-Type": FORM_TYPE}, body=body)

    assert 400 <= answer.status < 500, answer.text


def test_list_members_of_a_form_need_no_gapless_numbers(server: Endpoint, queue: str) -> None:
    answer = server.query_call(
        "GetQueueAttributes",
        {"QueueUrl": queue, "AttributeName.3": "DelaySeconds", "AttributeName.7": "VisibilityTimeout"},
    )

    assert answer.pairs("GetQueueAttributesResult/Attribute") == {
        "DelaySeconds": "0",
        "VisibilityTimeout": "30",
    }


def test_huge_number_of_a_list_member_costs_nothing(server: Endpoint, queue: str) -> None:
    answer = server.query_call(
        "GetQueueAttributes", {"QueueUrl": queue, "AttributeName.999999999": "DelaySeconds"}
    )

    assert answer.status in {200, 400}


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
def test_other_methods_are_refused(server: Endpoint, method: str) -> None:
    assert 400 <= server.signed(method, "/").status < 500


def test_body_over_the_limit_is_refused_and_not_read(server: Endpoint) -> None:
    body = json.dumps({"QueueUrl": "x", "MessageBody": "x"}).encode()
    headers = server.sign(
        "POST", "/", headers={"Content-Type": JSON_TYPE, "X-Amz-Target": "AmazonSQS.SendMessage"}, body=body
    )

    answer = server.send("POST", "/", headers={**headers, "Content-Length": str(2**40)})

    assert answer.status == 413


def test_errors_of_the_service_tell_no_inner_secrets(server: Endpoint) -> None:
    answer = server.json_call("GetQueueUrl", body=b"{")

    assert "Traceback" not in answer.text
    assert ".py" not in answer.text


def test_each_answer_has_a_request_id_of_its_own(server: Endpoint) -> None:
    ids = {server.json_call("ListQueues").headers["x-amzn-requestid"] for _ in range(3)}

    assert len(ids) == 3


# -- browsers ---------------------------------------------------------------------------------------------


def test_preflight_of_a_browser_is_answered_without_a_signature(server: Endpoint) -> None:
    answer = server.send(
        "OPTIONS",
        "/",
        headers={
            "Origin": "https://example.com",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-amz-date,x-amz-target",
        },
    )

    assert answer.status in {200, 204}
    assert answer.headers["access-control-allow-origin"] in {"*", "https://example.com"}
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"].lower()
    for name in ("authorization", "content-type", "x-amz-date", "x-amz-target"):
        assert name in allowed or allowed == "*"


def test_answers_and_errors_can_be_read_by_a_browser(server: Endpoint) -> None:
    origin = {"Origin": "https://example.com"}

    for answer in (
        server.json_call("ListQueues", unsigned_headers=origin),
        server.json_call("GetQueueUrl", {"QueueName": unique()}, unsigned_headers=origin),
    ):
        assert answer.headers["access-control-allow-origin"] in {"*", "https://example.com"}
        assert "x-amzn-requestid" in answer.headers["access-control-expose-headers"].lower()
