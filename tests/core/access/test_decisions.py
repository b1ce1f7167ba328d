"""Who is allowed what: requesters and the policies of queue, identity and session, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from quaymaster.core.access.decisions import Decision, decide, refusal_text, rule
from quaymaster.core.access.policies import Outcome, UnreadablePolicy, compile_policy, read_policy
from quaymaster.core.access.principals import Requester

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
    WORKER_ARN,
    asking,
    document,
    of_identity,
    policy,
    statement,
)

MAY = of_identity(statement(Principal=None, Resource="*"))
MAY_NOT = of_identity(statement(Principal=None, Resource="*", Effect="Deny"))
MAY_ELSE = of_identity(statement(Principal=None, Resource="*", Action="sqs:ReceiveMessage"))

ALLOWED = Decision.ALLOWED
NO_QUEUE, NO_IDENTITY = Decision.NO_QUEUE_POLICY, Decision.NO_IDENTITY_POLICY
DENIED = Decision.DENIED_BY_QUEUE


def aws(*names: str) -> dict[str, list[str]]:
    return {"AWS": list(names)}


@pytest.mark.parametrize(
    ("principal", "allowed"),
    [
        ("*", {ROOT, ADA, NIGHT, OTHERS_ROOT}),
        (aws("*"), {ROOT, ADA, NIGHT, OTHERS_ROOT}),
        (aws(OWNER), {ROOT}),
        (aws(OTHER), {ROOT, OTHERS_ROOT}),
        (aws(f"arn:aws:iam::{OTHER}:root"), {ROOT, OTHERS_ROOT}),
        (aws(THIRD), {ROOT}),
        (aws(ADA_ARN), {ROOT, ADA}),
        (aws(WORKER_ARN), {ROOT, NIGHT}),
        (aws(NIGHT_ARN), {ROOT, NIGHT}),
        (aws(f"arn:aws:sts::{OWNER}:assumed-role/worker/day"), {ROOT}),
        (aws(f"arn:aws:iam::{OWNER}:user/unknown", OTHER), {ROOT, OTHERS_ROOT}),
        ({"Service": ["sns.amazonaws.com", "s3.amazonaws.com"]}, {ROOT}),
        ({"Service": "sns.amazonaws.com", "AWS": OTHER}, {ROOT, OTHERS_ROOT}),
    ],
)
def test_a_queue_policy_allows_those_it_names(principal: Any, allowed: set[Requester]) -> None:
    queue_policy = policy(statement(Principal=principal))

    assert {
        each for each in (ROOT, ADA, NIGHT, OTHERS_ROOT) if decide(asking(each), queue_policy) is ALLOWED
    } == allowed


@pytest.mark.parametrize("name", [OTHER, BOB_ARN, OTHERS_WORKER_ARN, OTHERS_NIGHT_ARN])
def test_identities_of_other_accounts_need_a_policy_of_their_own_too(name: str) -> None:
    queue_policy = policy(statement(Principal=aws(name)))
    named = {OTHER: {BOB, OTHERS_NIGHT}, BOB_ARN: {BOB}}.get(name, {OTHERS_NIGHT})

    for each in (BOB, OTHERS_NIGHT):
        decisions = [decide(asking(each), queue_policy, own) for own in ([], [MAY_ELSE], [MAY])]

        assert decisions == ([NO_IDENTITY, NO_IDENTITY, ALLOWED] if each in named else [NO_QUEUE] * 3)


@pytest.mark.parametrize(
    ("listed", "spared"),
    [
        ([OTHER], {OTHERS_ROOT}),
        ([OTHER, BOB_ARN], {OTHERS_ROOT, BOB}),
        ([BOB_ARN], set()),
        ([OTHER, OTHERS_WORKER_ARN], {OTHERS_ROOT}),
        ([OTHER, OTHERS_NIGHT_ARN], {OTHERS_ROOT}),
        ([OTHER, OTHERS_WORKER_ARN, OTHERS_NIGHT_ARN], {OTHERS_ROOT, OTHERS_NIGHT}),
        (["*"], {ROOT, OTHERS_ROOT, BOB, OTHERS_NIGHT}),
        ([OWNER], {ROOT}),
        ([THIRD], set()),
    ],
)
def test_not_principal_spares_those_whose_layers_are_all_listed(
    listed: list[str], spared: set[Requester]
) -> None:
    queue_policy = policy(
        statement(), statement(Effect="Deny", Principal=None, NotPrincipal=aws(*listed), Action="sqs:*")
    )

    decisions = {
        each: decide(asking(each), queue_policy, [MAY]) for each in (ROOT, OTHERS_ROOT, BOB, OTHERS_NIGHT)
    }

    assert {each for each, decision in decisions.items() if decision is ALLOWED} == spared
    assert set(decisions.values()) <= {ALLOWED, DENIED}


@pytest.mark.parametrize(
    ("requester", "queue_principal", "identity", "session", "decision"),
    [
        (ROOT, None, [], None, ALLOWED),
        (ADA, None, [], None, NO_IDENTITY),
        (ADA, None, [MAY], None, ALLOWED),
        (ADA, None, [MAY, MAY_NOT], None, Decision.DENIED_BY_IDENTITY),
        (ADA, None, [MAY_ELSE], None, NO_IDENTITY),
        (NIGHT, None, [MAY], None, ALLOWED),
        (NIGHT, None, [MAY], MAY, ALLOWED),
        (NIGHT, None, [MAY], MAY_ELSE, Decision.NO_SESSION_POLICY),
        (NIGHT, None, [MAY], MAY_NOT, Decision.DENIED_BY_SESSION),
        (NIGHT, WORKER_ARN, [], None, ALLOWED),
        (NIGHT, WORKER_ARN, [], MAY_ELSE, Decision.NO_SESSION_POLICY),
        (NIGHT, NIGHT_ARN, [], MAY_ELSE, ALLOWED),
        (NIGHT, "*", [], MAY_ELSE, ALLOWED),
        (NIGHT, OWNER, [], None, NO_IDENTITY),
        (OTHERS_ROOT, None, [], None, NO_QUEUE),
        (OTHERS_ROOT, OTHER, [], None, ALLOWED),
        (OTHERS_NIGHT, OTHERS_WORKER_ARN, [MAY], MAY, ALLOWED),
        (OTHERS_NIGHT, OTHERS_NIGHT_ARN, [MAY], MAY_ELSE, Decision.NO_SESSION_POLICY),
    ],
)
def test_policies_of_queue_identity_and_session_decide_together(
    requester: Requester, queue_principal: str | None, identity: Any, session: Any, decision: Decision
) -> None:
    queue_policy = None if queue_principal is None else policy(statement(Principal=aws(queue_principal)))

    assert decide(asking(requester), queue_policy, identity, session) is decision


@pytest.mark.parametrize("requester", [ROOT, ADA, OTHERS_ROOT])
def test_a_deny_wins_over_every_allow(requester: Requester) -> None:
    statements = [statement(), statement(Effect="Deny")]

    for pair in (statements, statements[::-1]):
        assert decide(asking(requester), policy(*pair), [MAY]) is DENIED
        assert decide(asking(requester, "ReceiveMessage"), policy(*pair)) is not DENIED


def test_some_actions_are_never_allowed_to_other_accounts() -> None:
    queue_policy = policy(statement(Action="*"))

    assert decide(asking(OTHERS_ROOT, "DeleteQueue", can_cross=False), queue_policy) is NO_QUEUE
    assert decide(asking(ADA, "DeleteQueue", can_cross=False), queue_policy) is ALLOWED


@pytest.mark.parametrize(
    ("elements", "matches"),
    [
        ({"Action": "SQS:sendMESSAGE"}, True),
        ({"Action": "sqs:*"}, True),
        ({"Action": "*"}, True),
        ({"Action": ["sqs:PurgeQueue", "sqs:Send*"]}, True),
        ({"Action": "sqs:SendMessag?"}, True),
        ({"Action": "sqs:SendMessageBatch"}, False),
        ({"Action": "sqs:*Batch"}, False),
        ({"Action": None, "NotAction": "sqs:SendMessage"}, False),
        ({"Action": None, "NotAction": "sqs:SendMessageBatch"}, True),
        ({"Resource": "*"}, True),
        ({"Resource": QUEUE}, True),
        ({"Resource": f"arn:aws:sqs:*:{OWNER}:j?bs"}, True),
        ({"Resource": "arn:*:sqs"}, True),
        ({"Resource": f"arn:aws:sqs:us-east-1:{OTHER}:jobs"}, False),
        ({"Resource": "arn:aws:sqs:*:jobs"}, False),
        ({"NotResource": QUEUE}, False),
        ({"NotResource": f"arn:aws:sqs:us-east-1:{OWNER}:other"}, True),
    ],
)
def test_a_statement_is_about_its_actions_and_resources(elements: dict[str, Any], matches: bool) -> None:
    assert decide(asking(), policy(statement(**elements))) is (ALLOWED if matches else NO_QUEUE)


def test_a_variable_in_a_resource_is_the_value_of_the_request() -> None:
    queue_policy = policy(statement(Resource="arn:aws:sqs:*:*:${aws:username}"))

    assert not rule(asking(), queue_policy).is_fixed
    assert decide(asking(username="jobs"), queue_policy) is ALLOWED
    assert decide(asking(username="*"), queue_policy) is NO_QUEUE
    assert decide(asking(), queue_policy) is NO_QUEUE


def test_conditions_that_do_not_hold_leave_a_statement_out() -> None:
    queue_policy = policy(statement(Condition={"StringEquals": {"aws:UserAgent": "ada"}}))

    assert not rule(asking(), queue_policy).is_fixed
    assert decide(asking(useragent="ada"), queue_policy) is ALLOWED
    assert decide(asking(), queue_policy) is NO_QUEUE
    assert rule(asking(), policy(statement())).is_fixed


def test_only_conditions_of_statements_that_may_apply_are_asked() -> None:
    condition = {"Bool": {"aws:SecureTransport": "true"}}
    queue_policy = policy(
        statement(Principal=aws(THIRD), Condition=condition),
        statement(Action="sqs:DeleteMessage", Effect="Deny", Condition=condition),
        statement(Resource="arn:aws:sqs:*:*:others-*", Condition=condition),
        statement(),
    )

    ruling = rule(asking(), queue_policy)

    assert ruling.is_fixed
    assert ruling.decide(asking().find) is ALLOWED


def test_a_ruling_is_asked_with_the_keys_of_each_request() -> None:
    over_tls = {"Bool": {"aws:SecureTransport": "true"}}
    ruling = rule(
        asking(BOB),
        policy(statement(), statement(Effect="Deny", Condition={"Bool": {"aws:SecureTransport": "false"}})),
        [of_identity(statement(Principal=None, Resource="*", Condition=over_tls))],
    )

    assert ruling.decide(asking(securetransport="true").find) is ALLOWED
    assert ruling.decide(asking(securetransport="false").find) is DENIED
    assert ruling.decide(asking().find) is Decision.NO_IDENTITY_POLICY


def test_a_stored_policy_that_does_not_compile_denies_all_but_the_owners_root() -> None:
    broken = read_policy('{"Statement":[]}')

    assert isinstance(broken, UnreadablePolicy)
    assert decide(asking(ROOT), broken) is ALLOWED
    for each in (ADA, OTHERS_ROOT, BOB):
        assert decide(asking(each), broken, [MAY]) is DENIED
    assert read_policy(document(statement())).outcome(asking()) is Outcome.ALLOWS


def test_actions_that_are_no_permission_of_queues_are_in_no_policy() -> None:
    assert policy(statement(Action="*")).outcome(asking(action="Fly")) is Outcome.NOTHING


def test_a_policy_tells_which_identities_it_names() -> None:
    named = policy(statement(Principal=aws(BOB_ARN, OTHER, NIGHT_ARN)), statement())

    assert named.identities == (BOB_ARN, NIGHT_ARN)
    assert compile_policy(document(statement())).identities == ()
    assert MAY.identities == ()


@pytest.mark.parametrize(
    ("requester", "queue_policy", "words"),
    [
        (
            OTHERS_ROOT,
            None,
            f"User: arn:aws:iam::{OTHER}:root is not authorized to perform: sqs:sendmessage on resource: {QUEUE} "
            "because no resource-based policy allows the sqs:sendmessage action",
        ),
        (
            ADA,
            None,
            f"User: {ADA_ARN} is not authorized to perform: sqs:sendmessage on resource: {QUEUE} "
            "because no identity-based policy allows the sqs:sendmessage action",
        ),
        (
            NIGHT,
            policy(statement(Effect="Deny")),
            f"User: {NIGHT_ARN} is not authorized to perform: sqs:sendmessage on resource: {QUEUE} "
            "with an explicit deny in a resource-based policy",
        ),
    ],
)
def test_a_refusal_says_who_asked_what_and_which_policy_decided(
    requester: Requester, queue_policy: Any, words: str
) -> None:
    request = asking(requester)

    assert refusal_text(request, decide(request, queue_policy)) == words


def test_a_sessions_principal_is_its_role() -> None:
    assert OTHERS_NIGHT.arn == OTHERS_NIGHT_ARN
    assert OTHERS_NIGHT.principal_arn == OTHERS_WORKER_ARN
    assert (ADA.principal_arn, ROOT.principal_arn) == (ADA_ARN, f"arn:aws:iam::{OWNER}:root")
