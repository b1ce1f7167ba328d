"""Errors of CloudWatch are read by botocore in each of its protocols, whichever service's they are."""

from __future__ import annotations

from typing import Any

import botocore.parsers
import pytest

from protocol.cloudwatch.cloudwatch_model import MODEL
from quaymaster.core.values.errors import (
    AccessDenied,
    CallerError,
    MissingAuthenticationToken,
    NotNow,
    QueueDoesNotExist,
    Unreachable,
)
from quaymaster.protocol.actions.error_replies import error_code, render_error
from quaymaster.protocol.cloudwatch.errors import CLOUDWATCH_ERRORS, CloudWatchError
from quaymaster.protocol.sqs.response import WireForm

FORMS = {
    "json": WireForm.CLOUDWATCH_JSON,
    "smithy-rpc-v2-cbor": WireForm.CLOUDWATCH_CBOR,
    "query": WireForm.CLOUDWATCH_QUERY,
}
each_protocol = pytest.mark.parametrize("protocol", FORMS)


def parsed(protocol: str, error: CallerError | NotNow) -> dict[str, Any]:
    response = render_error(error, FORMS[protocol], "5f")
    headers = {name.decode().lower(): value.decode() for name, value in response.headers}
    answer = {"status_code": response.status, "headers": headers, "body": response.body}
    parser = botocore.parsers.create_parser(protocol)
    return dict(parser.parse(answer, MODEL.operation_model("PutDashboard").output_shape))


@each_protocol
@pytest.mark.parametrize("name", CLOUDWATCH_ERRORS)
def test_error_is_read_with_code_message_and_request(protocol: str, name: str) -> None:
    error = CloudWatchError.told(name, "Nothing <of that> kind.", 400, {})

    read = parsed(protocol, error)

    assert read["Error"]["Code"] == CLOUDWATCH_ERRORS[name].code == error_code(error)
    assert read["Error"]["Message"] == "Nothing <of that> kind."
    assert read["ResponseMetadata"]["RequestId"] == "5f"


@each_protocol
@pytest.mark.parametrize(
    ("error", "code", "status", "fault"),
    [
        (AccessDenied("No."), "AccessDenied", 403, "Sender"),
        (Unreachable("No console."), "ServiceUnavailable", 503, "Receiver"),
        (CloudWatchError("InternalServiceFault", "Ours."), "InternalServiceError", 500, "Receiver"),
        (CloudWatchError.told("LaterFault", "New.", 502, {}), "LaterFault", 502, "Receiver"),
    ],
)
def test_error_says_whose_fault_it_is(
    protocol: str, error: CallerError | NotNow, code: str, status: int, fault: str
) -> None:
    read = parsed(protocol, error)

    assert (read["Error"]["Code"], read["Error"]["Type"]) == (code, fault)
    assert render_error(error, FORMS[protocol], "5f").status == status


def test_members_of_errors_are_in_json_and_cbor() -> None:
    error = CloudWatchError(
        "ResourceNotFoundException", "There is none.", ResourceType="alarm", ResourceId="a"
    )

    for form in (WireForm.CLOUDWATCH_JSON, WireForm.CLOUDWATCH_CBOR):
        body = render_error(error, form, "5f").body
        assert b"com.amazonaws.cloudwatch#ResourceNotFoundException" in body
        assert b"ResourceType" in body


def test_errors_that_all_services_have_are_named_as_such() -> None:
    body = render_error(AccessDenied("No \ud800."), WireForm.CLOUDWATCH_JSON, "5f").body

    assert body == b'{"__type":"com.amazon.coral.service#AccessDeniedException","message":"No ?."}'


def test_errors_of_scrapes_are_text_and_ask_for_a_password_where_there_is_none() -> None:
    refused = render_error(AccessDenied("No."), WireForm.METRICS, "5f")
    asked = render_error(MissingAuthenticationToken(), WireForm.METRICS, "5f")

    assert (refused.status, refused.body) == (403, b"AccessDenied: No.\n")
    assert asked.status == 401
    assert (b"WWW-Authenticate", b'Basic realm="metrics"') in asked.headers


def test_other_services_keep_their_errors() -> None:
    assert error_code(QueueDoesNotExist()) == "AWS.SimpleQueueService.NonExistentQueue"
    assert b"queue.amazonaws.com" in render_error(QueueDoesNotExist(), WireForm.QUERY, "5f").body
