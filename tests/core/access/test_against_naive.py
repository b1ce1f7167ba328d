"""The compiled policies decide as a naive evaluator does, which interprets the documents."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.core.access.arns import split_arn
from quaymaster.core.access.decisions import Decision, decide
from quaymaster.core.access.operators import OPERATORS
from quaymaster.core.access.policies import compile_policy
from quaymaster.core.access.principals import Requester
from quaymaster.core.access.statements import AccessRequest, PolicyKind

from .naive import judge
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
def statements(draw: st.DrawFn, kind: PolicyKind) -> dict[str, Any]:
    effect = draw(st.sampled_from(["Allow", "Allow", "Deny"]))
    element = draw(st.sampled_from(["Action", "Action", "NotAction"]))
    made: dict[str, Any] = {
        "Effect": effect,
        element: draw(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=2)),
    }
    if kind is PolicyKind.QUEUE:
        negated = effect == "Deny" and draw(st.booleans())
        names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))
        made["NotPrincipal" if negated else "Principal"] = {"AWS": names, "Service": "sns.amazonaws.com"}
    if kind is PolicyKind.IDENTITY or draw(st.booleans()):
        element = draw(st.sampled_from(["Resource", "Resource", "NotResource"]))
        made[element] = draw(st.lists(st.sampled_from(RESOURCES), min_size=1, max_size=2))
    for condition in draw(st.lists(conditions(), max_size=2)):
        made.setdefault("Condition", {}).update(condition)
    return made


@st.composite
def policies(draw: st.DrawFn, kind: PolicyKind) -> str:
    made = {"Statement": draw(st.lists(statements(kind), min_size=1, max_size=3))}
    version = draw(st.sampled_from([None, "2008-10-17", "2012-10-17", "2012-10-17"]))
    return json.dumps(made if version is None else {"Version": version, **made})


contexts = st.fixed_dictionaries(
    {},
    optional={
        key: st.lists(st.sampled_from(values), min_size=1, max_size=2).map(tuple)
        for key, values in CONTEXT.items()
    },
)


@settings(max_examples=200, deadline=None)
@given(
    queue_policy=st.none() | policies(PolicyKind.QUEUE),
    identity_policies=st.lists(policies(PolicyKind.IDENTITY), max_size=2),
    session_policy=st.none() | st.none() | policies(PolicyKind.IDENTITY),
    requester=st.sampled_from(REQUESTERS),
    action=st.sampled_from(["sqs:sendmessage", "sqs:receivemessage"]),
    context=contexts,
)
def test_compiled_policies_decide_as_the_naive_evaluator_does(
    queue_policy: str | None,
    identity_policies: list[str],
    session_policy: str | None,
    requester: Requester,
    action: str,
    context: dict[str, tuple[str, ...]],
) -> None:
    request = AccessRequest(requester, action, split_arn(QUEUE), OWNER, finder(context))

    decision = decide(
        request,
        None if queue_policy is None else compile_policy(queue_policy, unique_ids=UNIQUE_IDS),
        [compile_policy(each, PolicyKind.IDENTITY) for each in identity_policies],
        None if session_policy is None else compile_policy(session_policy, PolicyKind.IDENTITY),
    )

    who = {"kind": requester.kind, "account": requester.account_id}
    who |= {"id": requester.unique_id, "session": requester.session}
    expected = judge(
        *(queue_policy, identity_policies, session_policy),
        who=who,
        owner=OWNER,
        action=action,
        resource=QUEUE,
        context=context,
        ids=UNIQUE_IDS,
    )
    denials = {Decision.DENIED_BY_QUEUE, Decision.DENIED_BY_IDENTITY, Decision.DENIED_BY_SESSION}
    said = "allowed" if decision is Decision.ALLOWED else "denied" if decision in denials else "refused"
    assert said == expected
