"""The compiled policies decide as a naive evaluator does, which interprets the documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations_with_replacement, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.core.access.arns import split_arn
from quaymaster.core.access.conditions import parse_conditions
from quaymaster.core.access.decisions import Decision, decide, decide_role
from quaymaster.core.access.documents import parse_document
from quaymaster.core.access.kinds import PolicyKind
from quaymaster.core.access.operators import OPERATORS
from quaymaster.core.access.policies import CompiledPolicy, compile_policy
from quaymaster.core.access.principals import Requester
from quaymaster.core.access.statements import AccessRequest

from .naive import as_text, holds, judge, judge_role, many
from .support import (
    ADA,
    ADA_ARN,
    BOB,
    BOB_ARN,
    NIGHT,
    NIGHT_ARN,
    OTHER,
    OTHERS_NIGHT,
    OTHERS_NIGHT_ARN,
    OTHERS_ROOT,
    OTHERS_WORKER_ARN,
    OWNER,
    QUEUE,
    ROOT,
    THIRD,
    UNIQUE_IDS,
    WORKER_ARN,
    finder,
)

pytestmark = pytest.mark.uncovered

REQUESTERS = [ROOT, ADA, NIGHT, OTHERS_ROOT, BOB, OTHERS_NIGHT]
NAMES = ["*", OWNER, OTHER, THIRD, f"arn:aws:iam::{OTHER}:root", ADA_ARN, WORKER_ARN, NIGHT_ARN, BOB_ARN]
NAMES += [OTHERS_WORKER_ARN, OTHERS_NIGHT_ARN, f"arn:aws:iam::{OTHER}:user/unknown"]
ACTIONS = [
    "sqs:SendMessage",
    "SQS:*",
    "sqs:send*",
    "sqs:?e*Message",
    "*",
    "sqs:ReceiveMessage",
    "sqs:PurgeQueue",
]
ROLE = f"arn:aws:iam::{OWNER}:role/reader"
ISSUER = "tokens.example.com"
POD = Requester("", "web identity", name=ISSUER, session="pod")
TRUSTED = [
    *NAMES,
    f"arn:aws:iam::{OWNER}:oidc-provider/{ISSUER}",
    f"arn:aws:iam::{OTHER}:oidc-provider/{ISSUER}",
]
ROLE_ACTIONS = [
    "sts:AssumeRole",
    "sts:*",
    "sts:assumerole?ith*",
    "*",
    "sts:AssumeRoleWithWebIdentity",
    "sts:Get*",
]
RESOURCES = ["*", QUEUE, f"arn:aws:sqs:*:{OWNER}:j*s", "arn:aws:sqs", f"arn:aws:sqs:us-east-1:{OWNER}:other"]
RESOURCES += ["arn:aws:sqs:*:${aws:PrincipalAccount}:*", "arn:aws:sqs:*:*:${aws:username}"]
KEYS = [
    "aws:UserAgent",
    "aws:SourceIp",
    "aws:EpochTime",
    "aws:CurrentTime",
    "aws:PrincipalArn",
    "aws:username",
]
KEYS += ["aws:SourceArn", "aws:SecureTransport"]
VALUES: dict[str, list[Any]] = {
    "String": ["", "*", "a*", "?da", "A*b", "${aws:username}*", "${*}x", "x${aws:userid}", "true", "jobs"],
    "Numeric": ["1", "1790000000", "-2.5", "1e3"[:1], 7],
    "Date": ["2026-01-02T03:04:05Z", "2026-01-02", "1767322800", "2026-01-02T03:04:05+01:00"],
    "Bool": ["true", "False", True],
    "Binary": ["YWRh", "YQ=="],
    "Ip": ["10.0.0.0/8", "10.1.2.3", "2001:db8::/32", "::/0"],
    "Arn": ["arn:aws:iam::*:role/*", "arn:aws:iam::222222222222:*", "arn:*:sqs:*:*:a:b?", WORKER_ARN],
    "Null": ["true", "false"],
}
GIVEN = {
    "String": ["ada", "*x", "A-b", "a*a", "AIDAADA", "xAIDAADA", "AAB", "a*"],
    "Numeric": ["1.0", "-3", "x", "1790000000.5"],
    "Date": ["2026-01-02T02:04:05Z", "2026-01-01", "0", "x"],
    "Bool": ["TRUE", "x"],
    "Binary": ["YWRi"],
    "Ip": ["10.200.0.1", "2001:db8::5", "192.0.2.1", "x"],
    "Arn": [OTHERS_WORKER_ARN, "arn:aws:sqs:a:b:a:bc", "arn:aws:iam::222222222222:root", "x"],
    "Null": ["x"],
}
"""What requests may have, apart from what policies say."""
CONTEXT = {
    "aws:useragent": ["ada", "*x", "A-b", "true", "YWRh", "", "AAb", "*"],
    "aws:sourceip": ["10.1.2.3", "192.0.2.1", "2001:db8::1", "1"],
    "aws:epochtime": ["1767322800", "1790000000", "1"],
    "aws:currenttime": ["2026-01-02T03:04:05Z", "2026-01-02T00:00:00Z"],
    "aws:principalarn": [WORKER_ARN, OTHERS_WORKER_ARN, "arn:aws:sqs:a:b:a:bc"],
    "aws:username": ["ada", "j*s", "jobs", "J*"],
    "aws:userid": ["AIDAADA", "*"],
    "aws:principalaccount": [OWNER, OTHER],
    "aws:securetransport": ["true", "false"],
}


@st.composite
def conditions(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from([*OPERATORS, "Null"]))
    kind = next(kind for kind in VALUES if kind in name)
    values = draw(st.lists(st.sampled_from(VALUES[kind]), min_size=1, max_size=3))
    if name != "Null":
        name = draw(st.sampled_from(["", "", "ForAllValues:", "ForAnyValue:"])) + name
        name += draw(st.sampled_from(["", "", "IfExists"]))
    return {name: {draw(st.sampled_from(KEYS)): values[0] if len(values) == 1 else values}}


@st.composite
def statements(draw: st.DrawFn, kind: PolicyKind, actions: Sequence[str] = ACTIONS) -> dict[str, Any]:
    effect = draw(st.sampled_from(["Allow", "Allow", "Deny"]))
    element = draw(st.sampled_from(["Action", "Action", "NotAction"]))
    made: dict[str, Any] = {
        "Effect": effect,
        element: draw(st.lists(st.sampled_from(actions), min_size=1, max_size=2)),
    }
    if kind is PolicyKind.TRUST:
        negated = effect == "Deny" and draw(st.booleans())
        made["NotPrincipal" if negated else "Principal"] = trusting(
            draw(st.lists(st.sampled_from(TRUSTED), min_size=1, max_size=4))
        )
    if kind is PolicyKind.QUEUE:
        negated = effect == "Deny" and draw(st.booleans())
        names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))
        made["NotPrincipal" if negated else "Principal"] = {"AWS": names, "Service": "sns.amazonaws.com"}
    if kind is PolicyKind.IDENTITY or (kind is PolicyKind.QUEUE and draw(st.booleans())):
        element = draw(st.sampled_from(["Resource", "Resource", "NotResource"]))
        resources = RESOURCES if actions is ACTIONS else [*RESOURCES, ROLE, f"arn:aws:iam::{OWNER}:role/r*"]
        made[element] = draw(st.lists(st.sampled_from(resources), min_size=1, max_size=2))
    for condition in draw(st.lists(conditions(), max_size=2)):
        made.setdefault("Condition", {}).update(condition)
    if "Federated" in made.get("Principal", {}) and effect == "Allow":
        # Such a statement must compare the subject.
        made.setdefault("Condition", {})["StringEquals"] = {f"{ISSUER}:sub": ["pod", "other"]}
    return made


def trusting(names: list[str]) -> dict[str, list[str]]:
    """Return whom a trust policy names."""
    issuers = [name for name in names if "oidc-provider" in name]
    others = [name for name in names if "oidc-provider" not in name]
    return ({"AWS": others} if others else {}) | ({"Federated": issuers} if issuers else {})


@st.composite
def policies(draw: st.DrawFn, kind: PolicyKind, actions: Sequence[str] = ACTIONS) -> str:
    made = {"Statement": draw(st.lists(statements(kind, actions), min_size=1, max_size=3))}
    version = draw(st.sampled_from([None, "2008-10-17", "2012-10-17", "2012-10-17"]))
    return json.dumps(made if version is None else {"Version": version, **made})


contexts = st.fixed_dictionaries(
    {},
    optional={
        key: st.lists(st.sampled_from(values), min_size=1, max_size=2).map(tuple)
        for key, values in CONTEXT.items()
    },
)


def check(
    requester: Requester,
    queue_policy: str | None,
    identity_policies: Sequence[str] = (),
    session_policy: str | None = None,
    *,
    action: str = "sqs:sendmessage",
    context: Mapping[str, tuple[str, ...]] | None = None,
    can_cross: bool = True,
) -> None:
    """Assert that both evaluators decide alike."""
    values = context or {}
    request = AccessRequest(requester, action, split_arn(QUEUE), OWNER, finder(values), can_cross)

    decision = decide(
        request,
        None if queue_policy is None else compiled(queue_policy, PolicyKind.QUEUE),
        [compiled(each, PolicyKind.IDENTITY) for each in identity_policies],
        None if session_policy is None else compiled(session_policy, PolicyKind.IDENTITY),
    )

    expected = judge(
        *(queue_policy, list(identity_policies), session_policy),
        who=who_is(requester),
        owner=OWNER,
        action=action,
        resource=QUEUE,
        context=values,
        ids=UNIQUE_IDS,
        can_cross=can_cross,
    )
    assert in_short(decision) == expected, (requester, queue_policy, identity_policies, session_policy)


def check_role(
    requester: Requester,
    trust_policy: str,
    identity_policies: Sequence[str] = (),
    session_policy: str | None = None,
    *,
    action: str = "sts:assumerole",
    context: Mapping[str, tuple[str, ...]] | None = None,
) -> None:
    """Assert that both evaluators decide alike who may assume a role."""
    values = context or {}
    request = AccessRequest(requester, action, split_arn(ROLE), OWNER, finder(values))

    decision = decide_role(
        request,
        compiled(trust_policy, PolicyKind.TRUST),
        [compiled(each, PolicyKind.IDENTITY) for each in identity_policies],
        None if session_policy is None else compiled(session_policy, PolicyKind.IDENTITY),
    )

    expected = judge_role(
        *(trust_policy, list(identity_policies), session_policy),
        who=who_is(requester),
        owner=OWNER,
        action=action,
        resource=ROLE,
        context=values,
        ids=UNIQUE_IDS,
    )
    assert in_short(decision) == expected, (requester, trust_policy, identity_policies, session_policy)


def who_is(requester: Requester) -> dict[str, str]:
    who = {"kind": requester.kind, "account": requester.account_id, "issuer": requester.name}
    return who | {"id": requester.unique_id, "session": requester.session}


def in_short(decision: Decision) -> str:
    denials = {Decision.DENIED_BY_QUEUE, Decision.DENIED_BY_IDENTITY, Decision.DENIED_BY_SESSION}
    return "allowed" if decision is Decision.ALLOWED else "denied" if decision in denials else "refused"


@cache
def compiled(text: str, kind: PolicyKind) -> CompiledPolicy:
    return compile_policy(text, kind, UNIQUE_IDS)


def test_every_pair_of_names_decides_alike_for_every_requester() -> None:
    own = {
        effect: json.dumps({"Statement": {"Effect": effect, "Action": "sqs:*", "Resource": "*"}})
        for effect in ("Allow", "Deny")
    }
    other = json.dumps({"Statement": {"Effect": "Allow", "Action": "sqs:PurgeQueue", "Resource": "*"}})
    all_may = {"Effect": "Allow", "Principal": "*", "Action": "*"}
    for pair in combinations_with_replacement(NAMES, 2):
        names = {"AWS": list(pair)}
        queue_policies = [
            json.dumps({"Statement": statements})
            for statements in (
                {"Effect": "Allow", "Principal": names, "Action": "sqs:Send*"},
                [all_may, {"Effect": "Deny", "Principal": names, "Action": "sqs:*"}],
                [all_may, {"Effect": "Deny", "NotPrincipal": names, "Action": "sqs:*"}],
            )
        ]
        for queue_policy, requester in product(queue_policies, REQUESTERS):
            for identity, session in product(
                ([], [own["Allow"]], [own["Allow"], own["Deny"]]), (None, own["Allow"], other, own["Deny"])
            ):
                check(requester, queue_policy, identity, session)


@settings(max_examples=800, deadline=None)
@given(condition=conditions(), given_values=st.data(), is_new=st.booleans())
def test_a_condition_holds_alike(
    condition: dict[str, Any], given_values: st.DataObject, is_new: bool
) -> None:
    ((name, keys),) = condition.items()
    ((key, values),) = keys.items()
    kind = next(kind for kind in VALUES if kind in name)
    likely = [each for each in VALUES[kind] if isinstance(each, str)] + GIVEN[kind]
    drawn = given_values.draw(st.lists(st.sampled_from(likely), max_size=2))
    others = given_values.draw(contexts)
    context = {**others, key.lower(): tuple(drawn)}
    written = parse_document(json.dumps({name: {key: values}}))

    (parsed,) = parse_conditions(written, has_variables=is_new)

    wanted = [as_text(value) for value in many(values)]
    assert parsed.holds(finder(context)) == holds(name, wanted, tuple(drawn), context, is_new)


@settings(max_examples=200, deadline=None)
@given(
    queue_policy=st.none() | policies(PolicyKind.QUEUE),
    identity_policies=st.lists(policies(PolicyKind.IDENTITY), max_size=2),
    session_policy=st.none() | st.none() | policies(PolicyKind.IDENTITY),
    requester=st.sampled_from(REQUESTERS),
    action=st.sampled_from(["sqs:sendmessage", "sqs:receivemessage"]),
    context=contexts,
    can_cross=st.sampled_from([True, True, False]),
)
def test_policies_of_all_kinds_decide_alike(
    queue_policy: str | None,
    identity_policies: list[str],
    session_policy: str | None,
    requester: Requester,
    action: str,
    context: dict[str, tuple[str, ...]],
    can_cross: bool,
) -> None:
    check(
        *(requester, queue_policy, identity_policies, session_policy),
        action=action,
        context=context,
        can_cross=can_cross,
    )


def test_every_pair_of_trusted_names_decides_alike_for_every_requester() -> None:
    own = {
        effect: json.dumps({"Statement": {"Effect": effect, "Action": "sts:*", "Resource": "*"}})
        for effect in ("Allow", "Deny")
    }
    other = json.dumps({"Statement": {"Effect": "Allow", "Action": "sts:Get*", "Resource": "*"}})
    subject = {"StringEquals": {f"{ISSUER}:sub": "pod"}}
    all_may = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "*"}
    context = {f"{ISSUER}:sub": ("pod",)}
    for pair in combinations_with_replacement(TRUSTED, 2):
        names = trusting(list(pair))
        allowing = {"Effect": "Allow", "Principal": names, "Action": "sts:*"}
        if "Federated" in names:
            allowing["Condition"] = subject
        trust_policies = [
            json.dumps({"Statement": statements})
            for statements in (
                allowing,
                [all_may, {"Effect": "Deny", "Principal": names, "Action": "sts:*"}],
                [all_may, {"Effect": "Deny", "NotPrincipal": names, "Action": "sts:*"}],
            )
        ]
        for trust_policy, requester in product(trust_policies, [*REQUESTERS, POD]):
            for identity, session in product(
                ([], [own["Allow"]], [own["Allow"], own["Deny"]]), (None, own["Allow"], other)
            ):
                check_role(requester, trust_policy, identity, session, context=context)


@settings(max_examples=120, deadline=None)
@given(
    trust_policy=policies(PolicyKind.TRUST, ROLE_ACTIONS),
    identity_policies=st.lists(policies(PolicyKind.IDENTITY, ROLE_ACTIONS), max_size=2),
    session_policy=st.none() | st.none() | policies(PolicyKind.IDENTITY, ROLE_ACTIONS),
    requester=st.sampled_from([*REQUESTERS, POD]),
    action=st.sampled_from(["sts:assumerole", "sts:assumerolewithwebidentity"]),
    context=contexts,
    subject=st.sampled_from([(), ("pod",), ("stranger",)]),
)
def test_trust_policies_decide_alike(
    trust_policy: str,
    identity_policies: list[str],
    session_policy: str | None,
    requester: Requester,
    action: str,
    context: dict[str, tuple[str, ...]],
    subject: tuple[str, ...],
) -> None:
    values = {**context, f"{ISSUER}:sub": subject}

    check_role(requester, trust_policy, identity_policies, session_policy, action=action, context=values)
