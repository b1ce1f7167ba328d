"""Trust policies: which of them can be evaluated, and who may assume a role."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from quaymaster.core.access.decisions import Decision, decide_role
from quaymaster.core.access.errors import (
    PolicyElementIsUnknown,
    PolicyError,
    PolicyIsTooLarge,
    PolicyLacks,
    PolicyValueIsWrong,
)
from quaymaster.core.access.keys import OF_ROLES, Presence, parse_key, presence_of
from quaymaster.core.access.kinds import PolicyKind
from quaymaster.core.access.policies import (
    CompiledPolicy,
    UnreadablePolicy,
    check_policy_bytes,
    compile_policy,
    read_policy,
)
from quaymaster.core.access.principals import Requester
from quaymaster.core.access.statements import AccessRequest

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
    ROOT,
    UNIQUE_IDS,
    WORKER_ARN,
    document,
    finder,
    of_identity,
)

ISSUER = "tokens.example.com/pods"
ISSUER_ARN = f"arn:aws:iam::{OWNER}:oidc-provider/{ISSUER}"
POD = Requester("", "web identity", name=ISSUER, session="system:worker")
ROLE = ("arn", "aws", "iam", "", OWNER, "role/reader")
MAY_ASSUME = of_identity({"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": "*"})
MAY_NOT_ASSUME = of_identity({"Effect": "Deny", "Action": "sts:AssumeRole", "Resource": "*"})
MAY_SEND = of_identity({"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": "*"})


def trust(*statements: dict[str, Any]) -> CompiledPolicy:
    """Return a trust policy."""
    whole = [{"Effect": "Allow", "Action": "sts:AssumeRole", **each} for each in statements]
    return compile_policy(document(*whole), PolicyKind.TRUST, UNIQUE_IDS)


def of_tokens(**conditions: Any) -> dict[str, Any]:
    """Return a statement that trusts tokens of the issuer."""
    return {
        "Principal": {"Federated": ISSUER_ARN},
        "Action": "sts:AssumeRoleWithWebIdentity",
        "Condition": conditions or {"StringEquals": {f"{ISSUER}:sub": "system:worker"}},
    }


def assuming(requester: Requester, action: str = "AssumeRole", **values: str) -> AccessRequest:
    """Return a request for credentials of the role `reader`; condition keys are given with `__` for `:`."""
    find = finder({key.replace("__", ":"): value for key, value in values.items()})
    return AccessRequest(requester, f"sts:{action.lower()}", ROLE, OWNER, find)


def may(request: AccessRequest, policy: CompiledPolicy, *own: CompiledPolicy) -> bool:
    return decide_role(request, policy, own) is Decision.ALLOWED


@pytest.mark.parametrize(
    ("elements", "error"),
    [
        ({"Principal": "*", "Resource": "*"}, PolicyElementIsUnknown),
        ({"Principal": "*", "NotResource": "*"}, PolicyElementIsUnknown),
        ({}, PolicyLacks),
        ({"Principal": "*", "Action": "sqs:SendMessage"}, PolicyValueIsWrong),
        ({"Principal": "*", "Action": "sts:Fly"}, PolicyValueIsWrong),
        ({"NotPrincipal": "*"}, PolicyValueIsWrong),
        ({"Principal": {"Federated": "tokens.example.com"}}, PolicyValueIsWrong),
        ({"Principal": {"Federated": f"arn:aws:iam::{OWNER}:saml-provider/x"}}, PolicyValueIsWrong),
        ({"Principal": {"Federated": ISSUER_ARN}}, PolicyLacks),
        ({"Principal": "*", "Condition": {"StringEquals": {"sqs:x": "1"}}}, PolicyValueIsWrong),
        ({"Principal": "*", "Condition": {"StringEquals": {"sts:x": "1"}}}, PolicyValueIsWrong),
        (
            {"Principal": "*", "Condition": {"StringEquals": {"x" * 250 + ".org:sub": "1"}}},
            PolicyValueIsWrong,
        ),
    ],
)
def test_a_trust_policy_that_cannot_be_evaluated_is_refused(
    elements: dict[str, Any], error: type[PolicyError]
) -> None:
    with pytest.raises(error):
        trust(elements)


@pytest.mark.parametrize(
    "conditions",
    [
        {"StringNotEquals": {f"{ISSUER}:sub": "x"}},
        {"StringEqualsIfExists": {f"{ISSUER}:sub": "x"}},
        {"ForAllValues:StringEquals": {f"{ISSUER}:sub": "x"}},
        {"Null": {f"{ISSUER}:sub": "false"}},
        {"StringEquals": {f"{ISSUER}:aud": "x"}},
    ],
)
def test_tokens_are_trusted_only_where_their_subject_is_compared(conditions: dict[str, Any]) -> None:
    with pytest.raises(PolicyLacks, match="ISSUER:sub"):
        trust(of_tokens(**conditions))

    trust(of_tokens(StringLike={f"{ISSUER}:sub": "system:*"}))
    trust({**of_tokens(**conditions), "Effect": "Deny"})


def test_queues_trust_no_issuers_and_know_no_keys_of_roles() -> None:
    with pytest.raises(PolicyElementIsUnknown):
        compile_policy(document({"Effect": "Allow", **of_tokens(), "Action": "sqs:SendMessage"}))
    for key in (*OF_ROLES, f"{ISSUER}:sub"):
        assert parse_key(key.upper(), PolicyKind.TRUST) == key
        assert presence_of(key) is Presence.SOMETIMES
        for kind in (PolicyKind.QUEUE, PolicyKind.IDENTITY):
            with pytest.raises(PolicyValueIsWrong):
                parse_key(key, kind)


def test_a_token_is_trusted_by_the_issuer_that_its_account_names() -> None:
    others = f"arn:aws:iam::{OTHER}:oidc-provider/{ISSUER}"
    asked = {f"{ISSUER}:sub": "system:worker"}
    request = AccessRequest(POD, "sts:assumerolewithwebidentity", ROLE, OWNER, finder(asked), can_cross=True)

    assert may(request, trust(of_tokens()))
    assert not may(request, trust({**of_tokens(), "Principal": {"Federated": others}}))
    assert not may(request, trust({"Principal": "*", "Action": "sts:*"}))
    assert not may(request, trust({"Principal": {"AWS": ["*", OWNER]}, "Action": "sts:*"}))
    stranger = AccessRequest(POD, request.action, ROLE, OWNER, finder({f"{ISSUER}:sub": "other"}))
    assert not may(stranger, trust(of_tokens()))
    assert POD.arn == f"{ISSUER}:system:worker"
    assert POD.principal_arn == POD.arn


def test_not_principal_spares_the_issuers_that_it_lists() -> None:
    asked = finder({f"{ISSUER}:sub": "system:worker"})
    request = AccessRequest(POD, "sts:assumerolewithwebidentity", ROLE, OWNER, asked)
    denial = {"Effect": "Deny", "Action": "sts:*"}

    assert may(request, trust(of_tokens(), {**denial, "NotPrincipal": {"Federated": ISSUER_ARN}}))
    assert not may(request, trust(of_tokens(), {**denial, "NotPrincipal": {"AWS": "*"}}))


@pytest.mark.parametrize("requester", [ROOT, OTHERS_ROOT])
def test_root_keys_assume_no_role(requester: Requester) -> None:
    policy = trust({"Principal": "*"}, {"Principal": {"AWS": [OWNER, OTHER]}})

    assert decide_role(assuming(requester), policy) is Decision.NO_QUEUE_POLICY


@pytest.mark.parametrize(
    ("requester", "names"),
    [(ADA, ADA_ARN), (NIGHT, WORKER_ARN), (NIGHT, NIGHT_ARN)],
)
def test_whom_a_trust_policy_of_its_account_names_needs_no_policy_of_its_own(
    requester: Requester, names: str
) -> None:
    assert may(assuming(requester), trust({"Principal": {"AWS": names}}))


@pytest.mark.parametrize(
    ("requester", "names"),
    [
        (ADA, OWNER),
        (ADA, f"arn:aws:iam::{OWNER}:root"),
        (ADA, "*"),
        (NIGHT, "*"),
        (NIGHT, OWNER),
        (BOB, OTHER),
        (BOB, BOB_ARN),
        (BOB, "*"),
        (OTHERS_NIGHT, OTHERS_WORKER_ARN),
        (OTHERS_NIGHT, OTHERS_NIGHT_ARN),
    ],
)
def test_all_others_need_a_policy_of_their_own_too(requester: Requester, names: str) -> None:
    policy = trust({"Principal": {"AWS": names}})

    assert decide_role(assuming(requester), policy) is Decision.NO_IDENTITY_POLICY
    assert not may(assuming(requester), policy, MAY_SEND)
    assert may(assuming(requester), policy, MAY_SEND, MAY_ASSUME)


@pytest.mark.parametrize("names", [["*", ADA_ARN], [OWNER, ADA_ARN], [ADA_ARN, BOB_ARN]])
def test_who_is_named_next_to_all_others_needs_no_policy_of_its_own(names: list[str]) -> None:
    policy = trust({"Principal": {"AWS": names}})

    assert may(assuming(ADA), policy)
    assert may(assuming(ADA), trust({"Principal": "*"}, {"Principal": {"AWS": ADA_ARN}}))


@pytest.mark.parametrize("requester", [ADA, NIGHT, BOB, OTHERS_NIGHT])
def test_own_policies_without_trust_are_not_enough(requester: Requester) -> None:
    elsewhere = trust({"Principal": {"AWS": "arn:aws:iam::333333333333:root"}})

    assert decide_role(assuming(requester), elsewhere, [MAY_ASSUME]) is Decision.NO_QUEUE_POLICY


def test_denials_win() -> None:
    allowing = trust({"Principal": {"AWS": ADA_ARN}})
    denying = trust({"Principal": {"AWS": ADA_ARN}}, {"Principal": "*", "Effect": "Deny"})
    request = assuming(ADA)

    assert decide_role(request, denying, [MAY_ASSUME]) is Decision.DENIED_BY_QUEUE
    assert decide_role(request, allowing, [MAY_ASSUME, MAY_NOT_ASSUME]) is Decision.DENIED_BY_IDENTITY
    assert decide_role(request, allowing, (), MAY_NOT_ASSUME) is Decision.DENIED_BY_SESSION
    assert decide_role(request, allowing, (), MAY_SEND) is Decision.NO_SESSION_POLICY
    assert decide_role(request, allowing, (), MAY_ASSUME) is Decision.ALLOWED


def test_every_pair_of_trust_and_own_policy_is_decided_by_the_rule() -> None:
    trusts = {"nothing": BOB_ARN, "by account": OWNER, "by all": "*", "by name": ADA_ARN}
    owns = {"none": [], "allow": [MAY_ASSUME], "deny": [MAY_NOT_ASSUME], "both": [MAY_ASSUME, MAY_NOT_ASSUME]}

    for (trusted, name), (own, policies) in itertools.product(trusts.items(), owns.items()):
        decision = decide_role(assuming(ADA), trust({"Principal": {"AWS": name}}), policies)

        expected = own not in ("deny", "both") and (
            trusted == "by name" or (trusted in ("by account", "by all") and own == "allow")
        )
        assert (decision is Decision.ALLOWED) == expected, (trusted, own)


def test_an_external_id_can_be_asked_for() -> None:
    policy = trust({"Principal": {"AWS": OTHER}, "Condition": {"StringEquals": {"sts:ExternalId": "7"}}})

    assert may(assuming(BOB, sts__externalid="7"), policy, MAY_ASSUME)
    assert not may(assuming(BOB, sts__externalid="8"), policy, MAY_ASSUME)
    assert not may(assuming(BOB), policy, MAY_ASSUME)


def test_a_trust_policy_that_does_not_compile_trusts_nobody() -> None:
    unreadable = read_policy("{", PolicyKind.TRUST)

    assert isinstance(unreadable, UnreadablePolicy)
    assert decide_role(assuming(ADA), unreadable, [MAY_ASSUME]) is Decision.DENIED_BY_QUEUE
    assert decide_role(assuming(ROOT), unreadable) is Decision.NO_QUEUE_POLICY


def test_a_policy_is_as_large_as_its_bytes() -> None:
    check_policy_bytes("ä" * 3_072, 6_144)
    with pytest.raises(PolicyIsTooLarge, match="6145 bytes; the limit is 6144"):
        check_policy_bytes("ä" * 3_072 + "a", 6_144)


def test_identities_of_one_policy_are_bound_when_it_is_compiled() -> None:
    text = json.dumps({"Statement": {"Effect": "Allow", "Principal": {"AWS": ADA_ARN}, "Action": "sts:*"}})

    bound = read_policy(text, PolicyKind.TRUST, {ADA_ARN: "AIDAADA"})
    unbound = read_policy(text, PolicyKind.TRUST)

    assert decide_role(assuming(ADA), bound) is Decision.ALLOWED
    assert decide_role(assuming(ADA), unbound) is Decision.NO_QUEUE_POLICY
