"""STS's Query form, as its clients write and read it."""

from __future__ import annotations

import contextlib
from typing import Any

import botocore.loaders
import botocore.model
import botocore.parsers
import botocore.serialize
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.values.errors import CallerError, InvalidAction, QueueDoesNotExist, UnknownOperation
from quaymaster.core.values.sts_errors import MalformedPolicyDocument, ValidationError
from quaymaster.protocol.actions import sts_query
from quaymaster.protocol.actions.table import SQS_ACTIONS, STS_ACTIONS
from quaymaster.protocol.sqs.errors import render_error
from quaymaster.protocol.sqs.response import WireForm
from quaymaster.protocol.sts import shapes

MODEL = botocore.model.ServiceModel(botocore.loaders.Loader().load_service_model("sts", "service-2"), "sts")
ROLE = {"RoleArn": "arn:aws:iam::111122223333:role/worker", "RoleSessionName": "one"}


def written(action: str, given: dict[str, Any]) -> dict[str, str]:
    """Return the parameters that botocore makes of an action's input."""
    serializer = botocore.serialize.create_serializer("query")
    return {
        name: str(value)
        for name, value in serializer.serialize_to_request(given, MODEL.operation_model(action))[
            "body"
        ].items()
    }


def read(action: str, body: bytes) -> dict[str, Any]:
    """Return what botocore reads in an answer."""
    parser = botocore.parsers.QueryParser()
    shape = MODEL.operation_model(action).output_shape
    return dict(parser.parse({"status_code": 200, "headers": {}, "body": body}, shape))


@pytest.mark.parametrize(
    ("action", "given"),
    [
        ("GetCallerIdentity", {}),
        ("GetSessionToken", {}),
        ("GetSessionToken", {"DurationSeconds": 900}),
        ("AssumeRole", ROLE),
        ("AssumeRole", {**ROLE, "Policy": "{}", "DurationSeconds": 901, "ExternalId": "id"}),
        ("AssumeRoleWithWebIdentity", {**ROLE, "WebIdentityToken": "a.b.c", "Policy": "{}"}),
    ],
)
def test_what_a_client_writes_is_read(action: str, given: dict[str, Any]) -> None:
    parameters = written(action, given)

    found = sts_query.action_of(parameters)

    assert found is STS_ACTIONS[action]
    assert sts_query.decode_request(found, parameters) == found.input(**given)


def test_parameters_of_a_presigned_url_are_not_the_actions() -> None:
    action = STS_ACTIONS["GetCallerIdentity"]
    given = {
        "Action": action.name,
        "Version": "2011-06-15",
        "X-Amz-Signature": "1",
        "X-Amz-Security-Token": "2",
    }

    assert sts_query.decode_request(action, given) == shapes.GetCallerIdentityRequest()


@pytest.mark.parametrize(
    ("action", "given"),
    [
        ("AssumeRole", {**ROLE, "Tags": [{"Key": "a", "Value": "b"}]}),
        ("AssumeRole", {**ROLE, "PolicyArns": [{"arn": "arn:aws:iam::aws:policy/ReadOnlyAccess"}]}),
        ("AssumeRole", {**ROLE, "TransitiveTagKeys": ["a"]}),
        ("AssumeRole", {**ROLE, "SourceIdentity": "me"}),
        (
            "AssumeRole",
            {**ROLE, "ProvidedContexts": [{"ProviderArn": "a" * 20, "ContextAssertion": "a" * 4}]},
        ),
        ("AssumeRole", {**ROLE, "SerialNumber": "123456789", "TokenCode": "123456"}),
        ("AssumeRoleWithWebIdentity", {**ROLE, "WebIdentityToken": "a.b.c", "ProviderId": "www.example.com"}),
        ("GetSessionToken", {"SerialNumber": "123456789"}),
        ("GetSessionToken", {"TokenCode": "123456"}),
    ],
)
def test_what_is_not_supported_is_refused_and_never_ignored(action: str, given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="is not supported by"):
        sts_query.decode_request(STS_ACTIONS[action], written(action, given))


@pytest.mark.parametrize("text", ["", "nine", "1e3", "9" * 10])
def test_a_number_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="durationSeconds"):
        sts_query.decode_request(STS_ACTIONS["GetSessionToken"], {"DurationSeconds": text})


def test_actions_are_those_of_sts_in_its_version() -> None:
    with pytest.raises(UnknownOperation):
        sts_query.action_of({"Version": "2011-06-15"})
    for name, version in (
        ("GetFederationToken", "2011-06-15"),
        ("SendMessage", "2011-06-15"),
        ("GetCallerIdentity", "2012-11-05"),
    ):
        with pytest.raises(InvalidAction):
            sts_query.action_of({"Action": name, "Version": version})
    with pytest.raises(InvalidAction):
        sts_query.action_of({"Action": "GetCallerIdentity"})
    assert not SQS_ACTIONS.keys() & STS_ACTIONS.keys()


@given(st.data())
def test_any_parameters_are_taken_or_refused_in_words(data: st.DataObject) -> None:
    action = data.draw(st.sampled_from(sorted(STS_ACTIONS.values(), key=lambda action: action.name)))
    names = st.sampled_from([*action.input.__struct_fields__, "Tags.member.1.Key", "X-Amz-Date", ""])
    values = st.text(max_size=40) | st.sampled_from(
        [*ROLE.values(), "{}", "3600", "-1", '{"Statement":[]}', "[" * 99]
    )
    parameters = data.draw(st.dictionaries(names, values))

    with contextlib.suppress(CallerError):
        given_input = sts_query.decode_request(action, parameters)
        if action.check is not None:
            action.check(given_input)


def test_a_client_reads_the_answers() -> None:
    credentials = shapes.Credentials("ASIA", "s<&>", "token", "2030-01-02T03:04:05Z")
    role = shapes.AssumedRoleUser("AROA:one", "arn:aws:sts::1:assumed-role/worker/one")
    answers = {
        "GetCallerIdentity": shapes.GetCallerIdentityResult("1", "2", "arn"),
        "GetSessionToken": shapes.GetSessionTokenResult(credentials),
        "AssumeRole": shapes.AssumeRoleResult(credentials, role, 7),
        "AssumeRoleWithWebIdentity": shapes.AssumeRoleWithWebIdentityResult(
            credentials, "me", role, "https://issuer", "sts.amazonaws.com"
        ),
    }
    for action, output in answers.items():
        parsed = read(action, sts_query.encode_response(STS_ACTIONS[action], output, "the-id"))
        assert parsed.pop("ResponseMetadata")["RequestId"] == "the-id"
        if "Credentials" in parsed:
            moment = parsed["Credentials"].pop("Expiration")
            assert moment.isoformat() == "2030-01-02T03:04:05+00:00"
            assert parsed.pop("Credentials") == {
                "AccessKeyId": "ASIA",
                "SecretAccessKey": "s<&>",
                "SessionToken": "token",
            }
        if "AssumedRoleUser" in parsed:
            user = {"AssumedRoleId": "AROA:one", "Arn": "arn:aws:sts::1:assumed-role/worker/one"}
            assert parsed.pop("AssumedRoleUser") == user
        rest = {
            "GetCallerIdentity": {"UserId": "1", "Account": "2", "Arn": "arn"},
            "GetSessionToken": {},
            "AssumeRole": {"PackedPolicySize": 7},
            "AssumeRoleWithWebIdentity": {
                "SubjectFromWebIdentityToken": "me",
                "Provider": "https://issuer",
                "Audience": "sts.amazonaws.com",
            },
        }
        assert parsed == rest[action]


def test_a_client_reads_the_errors() -> None:
    for error, code, status in (
        (MalformedPolicyDocument("no <JSON>"), "MalformedPolicyDocument", 400),
        (ValidationError("wrong"), "ValidationError", 400),
        (QueueDoesNotExist(), "AWS.SimpleQueueService.NonExistentQueue", 400),
    ):
        response = render_error(error, WireForm.STS, "the-id")
        raw = {"status_code": response.status, "headers": {}, "body": response.body}
        parsed = botocore.parsers.QueryParser().parse(raw, MODEL.operation_model("AssumeRole").output_shape)
        assert b"https://sts.amazonaws.com/doc/2011-06-15/" in response.body
        assert response.status == status
        assert parsed["Error"]["Code"] == code
        assert parsed["Error"]["Type"] == "Sender"
        assert parsed["ResponseMetadata"]["RequestId"] == "the-id"
