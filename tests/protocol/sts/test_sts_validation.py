"""What STS takes: its limits and its wordings."""

from __future__ import annotations

import json
import random

import pytest

from quaymaster.core.values.sts_errors import MalformedPolicyDocument, PackedPolicyTooLarge, ValidationError
from quaymaster.protocol.sts.shapes import (
    AssumeRoleRequest,
    AssumeRoleWithWebIdentityRequest,
    GetSessionTokenRequest,
)
from quaymaster.protocol.sts.validation import (
    RoleAsked,
    check_assume_role,
    check_duration_of_role,
    check_session_token,
    check_web_identity,
    session_seconds,
)
from quaymaster.protocol.tokens.session_tokens import unpack_policy

ARN = "arn:aws:iam::111122223333:role/ops/worker"
POLICY = '{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"sqs:*","Resource":"*"}}'


def assume(**changed: object) -> RoleAsked:
    given = {"RoleArn": ARN, "RoleSessionName": "one", **changed}
    return check_assume_role(AssumeRoleRequest(**given))  # type: ignore[arg-type]


def refusal(**changed: object) -> str:
    with pytest.raises(ValidationError) as refused:
        assume(**changed)
    return refused.value.message


def test_a_request_for_a_role_says_which_and_for_how_long() -> None:
    assert assume() == RoleAsked(ARN, "111122223333", "ops/worker", "worker", "one", 3_600)
    assert assume(DurationSeconds=900).duration_s == 900
    assert assume(DurationSeconds=43_200).duration_s == 43_200
    assert assume(ExternalId="a:b/c").external_id == "a:b/c"
    assert assume(RoleArn="arn:aws-cn:iam::111122223333:role/worker").path_name == "worker"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"RoleArn": ""}, "Value null at 'roleArn' failed to satisfy constraint: Member must not be null"),
        ({"RoleArn": "arn:aws:iam::1:role"}, "length greater than or equal to 20"),
        ({"RoleArn": ARN + "x" * 2_048}, "length less than or equal to 2048"),
        (
            {"RoleArn": "arn:aws:iam::111122223333:user/worker"},
            "arn:aws:iam::111122223333:user/worker is invalid",
        ),
        ({"RoleArn": "arn:aws:iam::111122223333:role/"}, "is invalid"),
        ({"RoleArn": "arn:aws:iam::11112222333:role/worker"}, "is invalid"),
        ({"RoleSessionName": ""}, "Value null at 'roleSessionName'"),
        ({"RoleSessionName": "a"}, "length greater than or equal to 2"),
        ({"RoleSessionName": "a" * 65}, "length less than or equal to 64"),
        ({"RoleSessionName": "a b"}, "satisfy regular expression pattern"),
        ({"RoleSessionName": "\u00e9\u00e9"}, "satisfy regular expression pattern"),
        ({"DurationSeconds": 899}, "Value '899' at 'durationSeconds' failed to satisfy constraint"),
        ({"DurationSeconds": 43_201}, "value less than or equal to 43200"),
        ({"ExternalId": "a"}, "length greater than or equal to 2"),
        ({"ExternalId": "a" * 1_225}, "length less than or equal to 1224"),
        ({"ExternalId": "a b"}, "satisfy regular expression pattern"),
        ({"Policy": ""}, "length greater than or equal to 1"),
        ({"Policy": POLICY + " " * 2_048}, "length less than or equal to 2048"),
        ({"Policy": POLICY + "\u0100"}, "satisfy regular expression pattern"),
    ],
)
def test_a_value_that_a_parameter_cannot_have_is_named_with_its_limit(
    changed: dict[str, object], message: str
) -> None:
    assert message in refusal(**changed)


def test_a_session_policy_is_compiled_and_packed() -> None:
    asked = assume(Policy=POLICY)

    assert asked.policy is not None
    assert asked.policy.document == json.loads(POLICY)
    assert unpack_policy(asked.packed_policy) == POLICY


@pytest.mark.parametrize("text", ["{}", "no JSON", POLICY.replace("}}", ',"Principal":"*"}}'), "\u00ff"])
def test_a_session_policy_that_does_not_compile_is_malformed(text: str) -> None:
    with pytest.raises(MalformedPolicyDocument):
        assume(Policy=text)


def test_a_session_policy_that_packs_badly_is_too_large() -> None:
    noise = "".join(random.Random(1).choices([chr(one) for one in range(0xA1, 0x100)], k=1_900))
    policy = POLICY.replace('"Version"', f'"Id":"{noise}","Version"')

    with pytest.raises(PackedPolicyTooLarge, match=r"1\d\d% of the allowed size"):
        assume(Policy=policy)


def test_a_web_identity_needs_its_token_which_no_message_shows() -> None:
    given = AssumeRoleWithWebIdentityRequest(ARN, "one", "a.b.c")
    assert check_web_identity(given).session == "one"
    for token, message in (
        ("", "null at 'webIdentityToken'"),
        ("abc", "between 4"),
        ("x" * 20_001, "and 20000"),
    ):
        with pytest.raises(ValidationError) as refused:
            check_web_identity(AssumeRoleWithWebIdentityRequest(ARN, "one", token))
        assert message in refused.value.message
        assert not token or token not in refused.value.message


@pytest.mark.parametrize(
    ("asked", "good"), [(None, True), (900, True), (129_600, True), (899, False), (129_601, False)]
)
def test_credentials_of_a_caller_last_from_15_minutes_to_36_hours(asked: int | None, *, good: bool) -> None:
    given = GetSessionTokenRequest(asked)
    if good:
        assert check_session_token(given) == asked
    else:
        with pytest.raises(ValidationError):
            check_session_token(given)


def test_credentials_of_root_last_an_hour_at_most() -> None:
    assert [session_seconds(asked, is_root=False) for asked in (None, 900, 129_600)] == [43_200, 900, 129_600]
    assert [session_seconds(asked, is_root=True) for asked in (None, 900, 129_600)] == [3_600, 900, 3_600]


def test_a_role_and_a_session_that_asks_bound_how_long_a_session_lasts() -> None:
    check_duration_of_role(7_200, role_s_max=7_200, is_chained=False)
    check_duration_of_role(3_600, role_s_max=7_200, is_chained=True)
    with pytest.raises(ValidationError, match="MaxSessionDuration"):
        check_duration_of_role(7_201, role_s_max=7_200, is_chained=False)
    with pytest.raises(ValidationError, match="role chaining"):
        check_duration_of_role(3_601, role_s_max=7_200, is_chained=True)
