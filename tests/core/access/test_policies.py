"""Which texts are policies: all others are refused, with the value and the limit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quaymaster.core.access.documents import DEPTH_MAX
from quaymaster.core.access.errors import (
    PolicyElementIsUnknown,
    PolicyElementsConflict,
    PolicyError,
    PolicyIsNoJSON,
    PolicyIsTooDeep,
    PolicyIsTooLarge,
    PolicyLacks,
    PolicyRepeats,
    PolicyValueIsWrong,
)
from quaymaster.core.access.keys import ALWAYS, SOMETIMES, Presence, parse_key, presence_of
from quaymaster.core.access.kinds import PolicyKind
from quaymaster.core.access.permissions import PERMISSION_NAMES, Permission
from quaymaster.core.access.policies import check_queue_policy_size, compile_policy

from .support import OTHER, document, policy, statement

STATEMENT = json.dumps(statement())


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", PolicyIsNoJSON, "at character 0"),
        ("[]", PolicyIsNoJSON, "another value"),
        ("{", PolicyIsNoJSON, "at character 1"),
        ('{"Id":NaN}', PolicyIsNoJSON, "NaN"),
        ('{"Id":"\\ud800"}', PolicyIsNoJSON, "surrogate"),
        ('{"Id":"[[\\"{' + "[" * 40 + '"}', PolicyLacks, "Statement"),
        ('{"Id":' + "[" * DEPTH_MAX + "]" * DEPTH_MAX + "}", PolicyIsTooDeep, "more than 32"),
        ('{"Id":"a","Id":"b"}', PolicyRepeats, 'JSON name "Id" twice'),
        ('{"Statement":[' + STATEMENT.replace("{", '{"Effect":"Deny",', 1) + "]}", PolicyRepeats, "Effect"),
        (document(statement(Sid="a"), statement(Sid="a")), PolicyRepeats, 'Sid "a" twice'),
        (document(statement(), Extra=1), PolicyElementIsUnknown, 'A policy has no element "Extra"'),
        (document(statement(), Version="2012-10-18"), PolicyValueIsWrong, 'Version is "2012-10-18"'),
        (document(statement(), Version=None), PolicyValueIsWrong, "Version is null"),
        (document(statement(), Id=5), PolicyValueIsWrong, "Id is"),
        ('{"Version":"2012-10-17"}', PolicyLacks, "Statement"),
        (document(), PolicyLacks, "Statement"),
        (document("x"), PolicyValueIsWrong, "Statement"),
    ],
)
def test_a_text_that_is_no_policy_is_refused(text: str, error: type[PolicyError], words: str) -> None:
    with pytest.raises(error, match=words):
        compile_policy(text)


@pytest.mark.parametrize(
    ("elements", "error"),
    [
        ({"Extra": "x"}, PolicyElementIsUnknown),
        ({"effect": "Allow"}, PolicyElementIsUnknown),
        ({"Sid": ["a"]}, PolicyValueIsWrong),
        ({"Effect": "allow"}, PolicyValueIsWrong),
        ({"Effect": None}, PolicyValueIsWrong),
        ({"Action": None}, PolicyLacks),
        ({"NotAction": "sqs:*"}, PolicyElementsConflict),
        ({"Action": []}, PolicyValueIsWrong),
        ({"Action": ""}, PolicyValueIsWrong),
        ({"Action": [5]}, PolicyValueIsWrong),
        ({"Action": "SendMessage"}, PolicyValueIsWrong),
        ({"Action": "sns:Publish"}, PolicyValueIsWrong),
        ({"Action": "s*s:SendMessage"}, PolicyValueIsWrong),
        ({"Action": "sqs:Fly"}, PolicyValueIsWrong),
        ({"Action": "sqs:Fly*"}, PolicyValueIsWrong),
        ({"Action": "sqs:FetchMessages"}, PolicyValueIsWrong),
        ({"Resource": "jobs"}, PolicyValueIsWrong),
        ({"Resource": "arn:aws:sns:*:*:topic"}, PolicyValueIsWrong),
        ({"Resource": "arn:aws"}, None),
        ({"Resource": "arn:aws:s*s:*:*:*"}, PolicyValueIsWrong),
        ({"Resource": "arn:azure:sqs:*:*:*"}, PolicyValueIsWrong),
        ({"Resource": "*", "NotResource": "*"}, PolicyElementsConflict),
        ({"Principal": None}, PolicyLacks),
        ({"NotPrincipal": "*"}, PolicyElementsConflict),
        ({"Principal": None, "NotPrincipal": {"AWS": OTHER}}, PolicyValueIsWrong),
        ({"Principal": OTHER}, PolicyValueIsWrong),
        ({"Principal": {}}, PolicyLacks),
        ({"Principal": {"AWS": []}}, PolicyValueIsWrong),
        ({"Principal": {"AWS": 111122223333}}, PolicyValueIsWrong),
        ({"Principal": {"AWS": "11112222333"}}, PolicyValueIsWrong),
        ({"Principal": {"AWS": f"{OTHER}:root"}}, PolicyValueIsWrong),
        ({"Principal": {"AWS": f"arn:aws:iam::{OTHER}"}}, PolicyValueIsWrong),
        ({"Principal": {"AWS": f"arn:aws:iam::{OTHER}:*"}}, PolicyValueIsWrong),
        ({"Principal": {"AWS": f"arn:aws:iam::{OTHER}:user/*"}}, PolicyValueIsWrong),
        ({"Principal": {"AWS": f"arn:aws:iam::{OTHER}:user/a*/b"}}, PolicyValueIsWrong),
        ({"Principal": {"AWS": f"arn:aws:sts::{OTHER}:assumed-role/r/*"}}, PolicyValueIsWrong),
        ({"Principal": {"Service": "*"}}, PolicyValueIsWrong),
        ({"Principal": {"Federated": "accounts.google.com"}}, PolicyElementIsUnknown),
        ({"Principal": {"CanonicalUser": "79a59df900b949e55d96a1e698fbaced"}}, PolicyElementIsUnknown),
        ({"Condition": []}, PolicyValueIsWrong),
        ({"Sid": ""}, None),
        ({"Resource": "*", "Sid": "any text", "Condition": {}}, None),
    ],
)
def test_a_statement_is_refused_unless_all_of_it_can_be_evaluated(
    elements: dict[str, Any], error: type[PolicyError] | None
) -> None:
    text = document(statement(**elements))

    if error is None:
        compile_policy(text)
        return
    with pytest.raises(error):
        compile_policy(text)


def test_statements_without_sids_are_told_apart_by_nothing() -> None:
    compile_policy(document(statement(Sid=""), statement(Sid=""), statement()))
    compile_policy('{"Statement":' + STATEMENT + "}")


@pytest.mark.parametrize(
    ("elements", "is_right"),
    [
        ({"Resource": "*"}, True),
        ({"Resource": "*", "Action": ["sts:AssumeRole", "cloudwatch:*", "quaymaster:List*"]}, True),
        ({"Resource": "*", "Action": "sts:Fly"}, False),
        ({"Resource": "*", "Action": "quaymaster:Fly"}, False),
        ({"Resource": "arn:aws:iam::111111111111:role/reader", "Action": "sts:AssumeRole"}, True),
        ({"Resource": "arn:aws:sts::*:*"}, True),
        ({}, False),
        ({"Resource": "*", "Principal": "*"}, False),
        ({"Resource": "*", "NotPrincipal": "*"}, False),
        ({"Resource": "*", "Action": "s3:*"}, False),
    ],
)
def test_a_policy_of_an_identity_names_no_principals_and_its_resources(
    elements: dict[str, Any], is_right: bool
) -> None:
    text = document({"Effect": "Allow", "Action": "*", **elements})

    if is_right:
        compile_policy(text, PolicyKind.IDENTITY)
        return
    with pytest.raises(PolicyError):
        compile_policy(text, PolicyKind.IDENTITY)


@pytest.mark.parametrize(
    ("largest", "too_large", "words"),
    [
        (document(statement(Sid="x" * 8_073)), document(statement(Sid="x" * 8_074)), "8193 bytes; the limit is 8192"),
        (document(*[statement()] * 20), document(*[statement()] * 21), "21 statements; the limit is 20"),
        (
            document(statement(Principal={"AWS": [OTHER] * 49, "Service": "sns"})),
            document(statement(Principal={"AWS": [OTHER] * 50, "Service": "sns"})),
            "51 principals; the limit is 50",
        ),
        (
            document(statement(Condition={"Bool": {f"aws:k{n}": "true" for n in range(10)}})),
            document(statement(Condition={"Bool": {f"aws:k{n}": "true" for n in range(11)}})),
            "11 conditions; the limit is 10",
        ),
    ],
)  # fmt: skip
def test_a_queue_has_a_policy_of_limited_size(largest: str, too_large: str, words: str) -> None:
    check_queue_policy_size(largest, compile_policy(largest))
    with pytest.raises(PolicyIsTooLarge, match=words):
        check_queue_policy_size(too_large, compile_policy(too_large))


def test_long_values_are_cut_off_in_messages() -> None:
    with pytest.raises(PolicyValueIsWrong) as raised:
        compile_policy(document(statement(Action="x" * 1_000)))

    assert len(str(raised.value)) < 200


def test_keys_are_told_apart_by_whether_requests_have_them() -> None:
    assert {presence_of(key) for key in ALWAYS} == {Presence.ALWAYS}
    assert {presence_of(key) for key in SOMETIMES} == {Presence.SOMETIMES}
    assert presence_of(parse_key("aws:SourceArn")) is Presence.NEVER


def test_policies_are_equal_that_say_the_same() -> None:
    text = document(statement(Condition={"Bool": {"aws:SecureTransport": "true"}}))

    assert compile_policy(text) == compile_policy(text.replace(":", " : ", 1))
    assert compile_policy(text) != policy(statement())


def test_every_permission_can_be_given() -> None:
    given = policy(statement(Action=[f"sqs:{permission}" for permission in Permission]))

    assert all(given.statements[0].concerns(name) for name in PERMISSION_NAMES.values())


ISSUER_ARN = f"arn:aws:iam::{OTHER}:oidc-provider/tokens.example.com"

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(
        ["*", "Allow", "Deny", "sqs:*", OTHER, "arn:aws:sqs:*", "sts:*", ISSUER_ARN, "2012-10-17",
         "${aws:username}", "${"]
    ),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["Statement", "Effect", "Principal", "NotPrincipal", "Action", "NotAction", "Resource", "Condition",
             "Sid", "AWS", "Service", "Federated", "StringLike", "ForAnyValue:DateEquals", "Null", "aws:SourceIp",
             "tokens.example.com:sub", "x"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip


def reason(text: str, kind: PolicyKind) -> str:
    """Return why a text is no policy of a kind, or that it is one."""
    try:
        compile_policy(text, kind)
    except PolicyError as error:
        return str(error)
    return "It is one."


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.text('{}[]":,\\us', max_size=200) | values.map(json.dumps))
@example("[" * 8_000)
@example('{"Statement":' + "9" * 5_000 + "}")
@example('{"a":"' + "\\" * 4_000)
def test_any_text_is_a_policy_or_refused_with_a_reason(text: str) -> None:
    for kind in PolicyKind:
        assert reason(text, kind).endswith(".")


@settings(max_examples=300, deadline=None)
@given(values, st.sampled_from(PolicyKind))
def test_any_statement_is_compiled_or_refused_with_a_reason(value: Any, kind: PolicyKind) -> None:
    whole = WHOLE[kind]
    for element in (
        "Principal",
        "NotPrincipal",
        "Action",
        "NotAction",
        "Resource",
        "NotResource",
        "Condition",
    ):
        other = element.removeprefix("Not") if element.startswith("Not") else f"Not{element}"
        kept = {name: each for name, each in whole.items() if name != other}
        for effect in ("Allow", "Deny"):
            text = document({**kept, "Effect": effect, element: value})
            assert len(reason(text, kind)) < 400
    assert len(reason(document(value), kind)) < 400


WHOLE: dict[PolicyKind, dict[str, Any]] = {
    PolicyKind.QUEUE: {"Principal": "*", "Action": "sqs:SendMessage"},
    PolicyKind.IDENTITY: {"Action": "sts:AssumeRole", "Resource": "*"},
    PolicyKind.TRUST: {"Principal": "*", "Action": "sts:AssumeRole"},
}
"""What a statement of each kind has."""


@pytest.mark.parametrize("kind", PolicyKind)
def test_a_whole_statement_is_compiled(kind: PolicyKind) -> None:
    assert reason(document({"Effect": "Allow", **WHOLE[kind]}), kind) == "It is one."
