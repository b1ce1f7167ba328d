"""Each failure in each wire form, as the service sends it and as clients read it."""

from __future__ import annotations

import inspect
import json

import botocore.loaders
import botocore.model
import botocore.parsers
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.sqs_model import MODEL, json_service, query_service
from quaymaster.core.values import errors, sts_errors
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.protocol.sqs.errors import WIRE_ERRORS, batch_error_entry, render_error, wire_error
from quaymaster.protocol.sqs.response import Response, WireForm

_CLASSES = [
    cls
    for module in (errors, sts_errors)
    for _, cls in inspect.getmembers(module, inspect.isclass)
    if issubclass(cls, CallerError | NotNow) and cls not in (CallerError, NotNow, sts_errors.STSError)
]


def _with_message(cls: type[CallerError | NotNow], message: str) -> CallerError | NotNow:
    error = cls.__new__(cls)
    error.message = message
    return error


def _parse_with_botocore(response: Response, form: WireForm) -> dict[str, object]:
    headers = {name.decode().lower(): value.decode() for name, value in response.headers}
    raw = {"status_code": response.status, "headers": headers, "body": response.body}
    if form is WireForm.JSON:
        service = json_service()
        parser = botocore.parsers.JSONParser()
    else:
        service = query_service()
        parser = botocore.parsers.QueryParser()
    parsed = parser.parse(raw, service.operation_model("SendMessage").output_shape)
    return dict(parsed)


def test_every_error_has_a_row() -> None:
    assert set(_CLASSES) == set(WIRE_ERRORS)


def test_every_error_of_the_model_has_its_type_in_the_table() -> None:
    modelled = {name for name, shape in MODEL["shapes"].items() if shape.get("exception")}

    types = {row.json_type for row in WIRE_ERRORS.values() if row.json_type.startswith("com.amazonaws.sqs#")}

    assert types == {f"com.amazonaws.sqs#{name}" for name in modelled}


def test_every_error_of_the_sts_model_has_its_code_and_status_in_the_table() -> None:
    model = botocore.loaders.Loader().load_service_model("sts", "service-2")
    codes = {row.code: row.status for row in WIRE_ERRORS.values()}
    needed = {
        "MalformedPolicyDocument",
        "PackedPolicyTooLarge",
        "ExpiredTokenException",
        "InvalidIdentityToken",
    }
    needed |= {"IDPRejectedClaim", "IDPCommunicationError"}

    modelled = {
        shape["error"]["code"]: shape["error"]["httpStatusCode"]
        for shape in model["shapes"].values()
        if shape.get("exception")
    }

    assert needed <= modelled.keys()
    assert {code: codes[code] for code in needed} == {code: modelled[code] for code in needed}


@pytest.mark.parametrize(
    ("cls", "json_type", "code", "status"),
    [
        (errors.QueueDoesNotExist, "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400),
        (errors.QueueNameExists, "QueueNameExists", "QueueAlreadyExists", 400),
        (
            errors.QueueDeletedRecently,
            "QueueDeletedRecently",
            "AWS.SimpleQueueService.QueueDeletedRecently",
            400,
        ),
        (
            errors.PurgeQueueInProgress,
            "PurgeQueueInProgress",
            "AWS.SimpleQueueService.PurgeQueueInProgress",
            403,
        ),
        (errors.OverLimit, "OverLimit", "OverLimit", 403),
        (errors.RequestThrottled, "RequestThrottled", "RequestThrottled", 403),
        (errors.InvalidSecurity, "InvalidSecurity", "InvalidSecurity", 403),
        (errors.InvalidAddress, "InvalidAddress", "InvalidAddress", 404),
        (errors.ReceiptHandleIsInvalid, "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404),
        (errors.ResourceNotFound, "ResourceNotFoundException", "ResourceNotFoundException", 404),
        (errors.KmsOptInRequired, "KmsOptInRequired", "KMS.OptInRequired", 403),
        (errors.KmsDisabled, "KmsDisabled", "KMS.DisabledException", 400),
        (errors.InvalidMessageContents, "InvalidMessageContents", "InvalidMessageContents", 400),
        (errors.MessageNotInflight, "MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight", 400),
    ],
)
def test_modelled_errors_have_the_codes_of_the_service(
    cls: type[CallerError], json_type: str, code: str, status: int
) -> None:
    row = WIRE_ERRORS[cls]

    assert (row.json_type, row.code, row.status) == (f"com.amazonaws.sqs#{json_type}", code, status)


# Without an action a query's answer has no code: that is a test of its own.
@pytest.mark.parametrize(
    ("cls", "form"),
    [
        (cls, form)
        for cls in _CLASSES
        for form in (WireForm.JSON, WireForm.QUERY)
        if (cls, form)
        not in ((errors.UnknownOperation, WireForm.QUERY), (errors.MalformedInput, WireForm.JSON))
    ],
)
def test_clients_read_code_message_and_request_id(cls: type[CallerError | NotNow], form: WireForm) -> None:
    row = WIRE_ERRORS[cls]

    response = render_error(_with_message(cls, "why <it> & \x00 failed"), form, "request-1")
    parsed = _parse_with_botocore(response, form)

    assert parsed["ResponseMetadata"]["RequestId"] == "request-1"  # type: ignore[index]
    error = parsed["Error"]
    assert isinstance(error, dict)
    if form is WireForm.JSON:
        assert error["Message"] == "why <it> & \x00 failed"
        assert error["Code"] == row.code, "taken from x-amzn-query-error"
        assert error["Type"] == row.fault
        assert json.loads(response.body)["__type"] == row.json_type
    else:
        assert error == {
            "Code": row.code,
            "Message": "why <it> & \ufffd failed",
            "Type": row.fault,
            "Detail": None,
        }
    assert response.status == row.status


def test_what_a_reader_of_a_log_needs_to_go_on_is_in_the_error() -> None:
    gone = render_error(errors.OffsetOutOfRange(4, 5, 9), WireForm.JSON, "r")
    damaged = render_error(errors.MessageUnreadable(4), WireForm.JSON, "r")

    assert json.loads(gone.body) == {
        "__type": "com.quaymaster#OffsetOutOfRange",
        "message": "Offset 4 is out of range: EarliestOffset is 5 and NextOffset 9.",
        "EarliestOffset": 5,
        "NextOffset": 9,
    }
    assert json.loads(damaged.body)["Offset"] == 4


def test_the_stage_that_is_missing_is_in_the_error() -> None:
    missing = render_error(errors.StageNotFound("part/0", 3, 0), WireForm.JSON, "r")

    assert missing.status == 400
    assert json.loads(missing.body) == {
        "__type": "com.quaymaster#StageNotFound",
        "message": "Stage part/0 does not exist: nothing was staged, or it has expired.",
        "Stage": "part/0",
    }


def test_a_json_body_that_cannot_be_parsed_has_no_query_error_code() -> None:
    response = render_error(errors.MalformedInput("why"), WireForm.JSON, "r")

    assert response.status == 400
    assert json.loads(response.body)["__type"].endswith("#SerializationException")
    assert not [name for name, _ in response.headers if name.lower() == b"x-amzn-query-error"]


def test_a_query_without_an_action_gets_404_and_nothing_but_the_name() -> None:
    for form in (WireForm.QUERY, WireForm.QUERY_JSON):
        response = render_error(errors.UnknownOperation(), form, "r")

        assert response.status == 404
        assert response.body == b"<UnknownOperationException/>\n"
        assert (b"Content-Type", b"text/xml") in response.headers


def test_a_missing_queue_is_worded_differently_in_the_query_form() -> None:
    as_json = render_error(errors.QueueDoesNotExist(), WireForm.JSON, "r")
    as_xml = render_error(errors.QueueDoesNotExist(), WireForm.QUERY, "r")

    assert json.loads(as_json.body)["message"] == "The specified queue does not exist."
    assert b"<Message>The specified queue does not exist for this wsdl version.</Message>" in as_xml.body
    assert as_xml.body.startswith(b'<?xml version="1.0"?><ErrorResponse xmlns="http://queue.amazonaws.com/')


def test_an_error_of_a_query_that_accepts_json_is_json() -> None:
    response = render_error(errors.MissingParameter("MessageBody"), WireForm.QUERY_JSON, "r-1")

    assert json.loads(response.body) == {
        "Error": {
            "Code": "MissingParameter",
            "Message": "The request must contain the parameter MessageBody.",
            "Type": "Sender",
        },
        "RequestId": "r-1",
    }
    assert (b"Content-Type", b"application/json") in response.headers


def test_a_class_without_a_row_has_that_of_its_family() -> None:
    class Odd(CallerError):
        pass

    class OddPurge(errors.PurgeQueueInProgress):
        pass

    class Later(NotNow):
        pass

    assert wire_error(Odd("x")).status == 500
    assert wire_error(OddPurge("q")).status == 403
    assert wire_error(Later()).code == "ServiceUnavailable"


def test_a_batch_entry_fails_with_code_message_and_whose_fault() -> None:
    sender = batch_error_entry("a", errors.ReceiptHandleIsInvalid("x"))
    receiver = batch_error_entry("b", errors.TooFewReplicas())

    assert (sender.Id, sender.SenderFault, sender.Code) == ("a", True, "ReceiptHandleIsInvalid")
    assert sender.Message == 'The input receipt handle "x" is not a valid receipt handle.'
    assert (receiver.Id, receiver.SenderFault, receiver.Code) == ("b", False, "ServiceUnavailable")


@given(st.text(), st.sampled_from(list(WireForm)))
def test_any_message_can_be_sent(message: str, form: WireForm) -> None:
    response = render_error(errors.InvalidParameterValue(message), form, "r")

    response.body.decode()
    if form is not WireForm.JSON:
        return
    assert json.loads(response.body)["message"] == message.encode("utf-8", "replace").decode()
