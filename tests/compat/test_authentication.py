"""Who may ask: signatures in headers and in presigned queries, and open mode."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from botocore import auth
from botocore.credentials import Credentials
from harness.process import QuaymasterProcess
from harness.sqs import FORM_TYPE, JSON_TYPE, Endpoint, HTTPAnswer, endpoint_of

from .conftest import StartServer
from .support import receive_one, refused, send

WRONG_SIGNATURE = ("SignatureDoesNotMatch", "InvalidSignatureException")
LIST_QUEUES = {"Content-Type": JSON_TYPE, "X-Amz-Target": "AmazonSQS.ListQueues"}


@contextmanager
def clock_moved_by(seconds: int) -> Iterator[None]:
    """Sign as a client does whose clock is wrong by so many seconds."""
    wrong = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    # botocore's name for "now" differs between its versions.
    name = "get_current_datetime" if hasattr(auth, "get_current_datetime") else "datetime"
    if name == "get_current_datetime":
        replacement: Any = mock.Mock(return_value=wrong.replace(tzinfo=None))
    else:
        replacement = mock.Mock(wraps=datetime)
        replacement.datetime = mock.Mock(wraps=datetime.datetime)
        replacement.datetime.utcnow = mock.Mock(return_value=wrong.replace(tzinfo=None))
    with mock.patch.object(auth, name, replacement):
        yield


def is_refused(answer: HTTPAnswer, *codes: str) -> None:
    assert answer.status == 403, answer.text
    assert answer.error_code in codes, answer.text


# -- headers ----------------------------------------------------------------------------------------------


def test_signed_request_is_taken(server: Endpoint) -> None:
    assert server.json_call("ListQueues").status == 200
    assert server.query_call("ListQueues").status == 200


def test_wrong_secret_is_refused(server: Endpoint) -> None:
    wrong = Credentials(server.access_key_id, "wrong-secret")

    with refused(WRONG_SIGNATURE, status=403):
        server.client(secret_access_key="wrong-secret").list_queues()
    is_refused(
        server.signed("GET", "/?Action=ListQueues&Version=2012-11-05", credentials=wrong),
        "SignatureDoesNotMatch",
    )


def test_unknown_key_is_refused(server: Endpoint) -> None:
    unknown = Credentials("AKIAUNKNOWNUNKNOWN00", server.secret_access_key)

    with refused(("InvalidClientTokenId", "UnrecognizedClientException"), status=403):
        server.client(access_key_id="AKIAUNKNOWNUNKNOWN00").list_queues()
    is_refused(
        server.signed("GET", "/?Action=ListQueues&Version=2012-11-05", credentials=unknown),
        "InvalidClientTokenId",
    )


def test_request_without_a_signature_is_refused(server: Endpoint) -> None:
    codes = ("MissingAuthenticationToken", "MissingAuthenticationTokenException")

    is_refused(server.send("POST", "/", headers=LIST_QUEUES, body=b"{}"), *codes)
    is_refused(server.send("GET", "/?Action=ListQueues&Version=2012-11-05"), *codes)
    is_refused(
        server.send("POST", "/", headers={"Content-Type": FORM_TYPE}, body=b"Action=ListQueues"), *codes
    )


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer token",
        "Basic dXNlcjpwYXNz",
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 Credential=, SignedHeaders=, Signature=",
        "AWS4-HMAC-SHA256 Credential=a/b/c/d, SignedHeaders=host, Signature=00",
        "AWS4-HMAC-SHA256 " + "x" * 4000,
    ],
    ids=["empty", "bearer", "basic", "name only", "empty parts", "short scope", "long"],
)
def test_authorization_that_is_no_signature_is_refused(server: Endpoint, value: str) -> None:
    answer = server.send("POST", "/", headers={**LIST_QUEUES, "Authorization": value}, body=b"{}")

    assert answer.status in {400, 403}
    assert answer.error_code in {
        "IncompleteSignature",
        "IncompleteSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "InvalidClientTokenId",
        *WRONG_SIGNATURE,
    }


def test_body_changed_after_signing_is_refused(server: Endpoint) -> None:
    headers = server.sign("POST", "/", headers=LIST_QUEUES, body=b'{"QueueNamePrefix": "mine"}')

    is_refused(
        server.send("POST", "/", headers=headers, body=b'{"QueueNamePrefix": "your"}'), *WRONG_SIGNATURE
    )


def test_signed_header_changed_after_signing_is_refused(server: Endpoint) -> None:
    headers = server.sign("POST", "/", headers=LIST_QUEUES, body=b"{}")

    headers["X-Amz-Target"] = "AmazonSQS.CreateQueue"

    is_refused(server.send("POST", "/", headers=headers, body=b"{}"), *WRONG_SIGNATURE)


def test_path_and_query_changed_after_signing_are_refused(server: Endpoint, queue: str) -> None:
    path = queue.removeprefix(server.url)
    headers = server.sign("GET", f"{path}?Action=GetQueueAttributes")

    is_refused(server.send("GET", f"{path}?Action=PurgeQueue", headers=headers), *WRONG_SIGNATURE)
    is_refused(server.send("GET", "/?Action=GetQueueAttributes", headers=headers), *WRONG_SIGNATURE)


def test_signature_for_another_service_is_refused(server: Endpoint) -> None:
    answer = server.signed("POST", "/", headers=LIST_QUEUES, body=b"{}", service="sns")

    is_refused(answer, *WRONG_SIGNATURE)


@pytest.mark.parametrize("seconds", [-840, 840])
def test_clock_may_be_wrong_by_less_than_15_minutes(server: Endpoint, seconds: int) -> None:
    with clock_moved_by(seconds):
        answer = server.json_call("ListQueues")

    assert answer.status == 200, answer.text


@pytest.mark.parametrize("seconds", [-1000, 1000])
def test_clock_wrong_by_more_than_15_minutes_is_refused(server: Endpoint, seconds: int) -> None:
    with clock_moved_by(seconds):
        answer = server.json_call("ListQueues")

    assert answer.status in {400, 403}
    assert answer.error_code in {*WRONG_SIGNATURE, "RequestExpired", "RequestTimeTooSkewed"}


def test_unknown_session_token_is_refused(server: Endpoint) -> None:
    with refused(
        ("InvalidClientTokenId", "UnrecognizedClientException", "InvalidSecurity", "ExpiredToken"), status=403
    ):
        server.client(session_token="made-up").list_queues()


def test_unsigned_payload_is_taken_when_the_header_says_so(server: Endpoint, queue: str) -> None:
    body = f'{{"QueueUrl": "{queue}", "MessageBody": "m"}}'.encode()
    headers = {
        "Content-Type": JSON_TYPE,
        "X-Amz-Target": "AmazonSQS.SendMessage",
        "X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD",
    }

    answer = server.signed("POST", "/", headers=headers, body=body)

    assert answer.status == 200, answer.text


def test_wrong_content_digest_is_refused(server: Endpoint) -> None:
    headers = server.sign("POST", "/", headers={**LIST_QUEUES, "X-Amz-Content-SHA256": "0" * 64}, body=b"{}")

    assert server.send("POST", "/", headers=headers, body=b"{}").status in {400, 403}


def test_headers_may_have_spaces_and_any_case(server: Endpoint) -> None:
    headers = server.sign("POST", "/", headers=LIST_QUEUES, body=b"{}")

    answer = server.send(
        "POST", "/", headers={name.upper(): f"  {value} " for name, value in headers.items()}, body=b"{}"
    )

    assert answer.status == 200, answer.text


def test_refused_request_changes_nothing(server: Endpoint, sqs: Any, queue: str) -> None:
    send(sqs, queue, "m")

    with refused(WRONG_SIGNATURE, status=403):
        server.client(secret_access_key="wrong").purge_queue(QueueUrl=queue)

    assert receive_one(sqs, queue)["Body"] == "m"


# -- presigned --------------------------------------------------------------------------------------------


def test_presigned_get_is_taken(server: Endpoint, queue: str) -> None:
    path = server.presigned_path(
        "SendMessage", {"MessageBody": "a b+c/ü"}, path=queue.removeprefix(server.url)
    )

    sent = server.send("GET", path)

    assert sent.status == 200, sent.text
    assert sent.value("SendMessageResult/MessageId")


def test_presigned_post_is_taken(server: Endpoint) -> None:
    path = server.presigned_path("ListQueues", {}, method="POST")

    assert server.send("POST", path).status == 200


def test_presigned_get_with_a_changed_parameter_is_refused(server: Endpoint, queue: str) -> None:
    path = server.presigned_path("SendMessage", {"MessageBody": "mine"}, path=queue.removeprefix(server.url))

    is_refused(server.send("GET", path.replace("=mine", "=your")), *WRONG_SIGNATURE)


def test_presigned_get_with_a_wrong_secret_is_refused(server: Endpoint) -> None:
    path = server.presigned_path("ListQueues", {}, credentials=Credentials(server.access_key_id, "wrong"))

    is_refused(server.send("GET", path), *WRONG_SIGNATURE)


def test_presigned_get_is_taken_while_it_lasts_and_not_after(server: Endpoint) -> None:
    with clock_moved_by(-100):
        lasting = server.presigned_path("ListQueues", {}, expires_s=3600)
        expired = server.presigned_path("ListQueues", {}, expires_s=60)

    assert server.send("GET", lasting).status == 200
    answer = server.send("GET", expired)
    assert answer.status in {400, 403}
    assert answer.error_code in {*WRONG_SIGNATURE, "RequestExpired", "AccessDenied"}


@pytest.mark.parametrize("expires_s", [-1, 604801])
def test_presigned_get_lasts_at_most_7_days(server: Endpoint, expires_s: int) -> None:
    path = server.presigned_path("ListQueues", {}, expires_s=expires_s)

    assert server.send("GET", path).status in {400, 403}


# -- open mode --------------------------------------------------------------------------------------------


def test_open_mode_takes_any_credentials_and_none(start_server: StartServer) -> None:
    server = start_server(authentication="open")

    sqs = server.client(access_key_id="test", secret_access_key="test", session_token="test")
    url = sqs.create_queue(QueueName="open")["QueueUrl"]
    unsigned = server.send("GET", f"/{server.account_id}/open?Action=SendMessage&MessageBody=m")
    in_json = server.send("POST", "/", headers=LIST_QUEUES, body=b"{}")

    assert url == server.queue_url("open")
    assert unsigned.status == 200, unsigned.text
    assert receive_one(sqs, url)["Body"] == "m"
    assert in_json.json == {"QueueUrls": [url]}


def test_account_of_the_first_key_is_a_setting(start_server: StartServer) -> None:
    server = start_server(account_id="123456789012")

    url = server.client().create_queue(QueueName="mine")["QueueUrl"]

    assert server.account_id == "123456789012"
    assert url == f"{server.url}/123456789012/mine"


def test_keys_stay_the_same_over_a_restart(start_process: Any) -> None:
    process: QuaymasterProcess = start_process()
    before = process.env()

    process.restart()

    assert process.env() == before


def test_secret_is_not_in_the_log(start_process: Any) -> None:
    process: QuaymasterProcess = start_process(log_level="debug")
    server = endpoint_of(process)

    server.client().create_queue(QueueName="quiet")
    process.stop()

    # The first start prints how to use its key; what follows in the log must not repeat the secret.
    assert process.log().count(server.secret_access_key) <= 1
