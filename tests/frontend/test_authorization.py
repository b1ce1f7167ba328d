"""Which calls are allowed on a queue, by its policy and the keys of the request, and what is remembered of it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from quaymaster.core.access.decisions import Ruling, rule
from quaymaster.core.access.keys import ALWAYS, SOMETIMES
from quaymaster.core.values.errors import AccessDenied
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition
from quaymaster.frontend.access import authorization as module
from quaymaster.frontend.access.authorization import Authorization
from quaymaster.frontend.callers.principal import Principal
from quaymaster.frontend.callers.request_keys import HEADER_BYTES_MAX, RequestKeys
from quaymaster.protocol.actions.table import ACTIONS, SQS_ACTIONS
from quaymaster.protocol.sqs.internal_queues import INTERNAL_ACCOUNT, USAGE_QUEUE

OWNER, OTHER = "111111111111", "222222222222"
NOW_MS = 1_790_000_000_123
ALLOW = {"Effect": "Allow", "Principal": {"AWS": OTHER}, "Action": "sqs:SendMessage"}
DENY = {"Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage"}


def queue(*statements: Any, name: str = "jobs", account_id: str = OWNER, **fields: Any) -> QueueDefinition:
    attributes = {"Policy": json.dumps({"Statement": statements})} if statements else {}
    return QueueDefinition(
        *(1, account_id, name, "active", 1, 0, 0, attributes, {}, 1, one_partition()), **fields
    )


def call_by(account_id: str, action: str = "SendMessage", **request: Any) -> Any:
    headers = {name.encode(): value.encode() for name, value in request.pop("headers", {}).items()}
    return SimpleNamespace(
        action=ACTIONS[action],
        principal=Principal.of_root(account_id, "key", "sender"),
        request=SimpleNamespace(peer=request.get("peer", "10.1.2.3"), header=headers.get),
    )


def judge(*, is_full: bool = True) -> Authorization:
    return Authorization(region="us-east-1", is_full=is_full, now_ms=lambda: NOW_MS)


@pytest.mark.parametrize(
    ("statements", "account_id", "refusal"),
    [
        ([], OWNER, None),
        ([], OTHER, "because no resource-based policy allows the sqs:sendmessage action"),
        ([ALLOW], OTHER, None),
        ([ALLOW], "333333333333", "because no resource-based policy allows"),
        ([ALLOW, DENY], OTHER, "with an explicit deny in a resource-based policy"),
        ([DENY], OWNER, "with an explicit deny in a resource-based policy"),
        ([{"Effect": "Perhaps"}], OWNER, None),
        ([{"Effect": "Perhaps"}], OTHER, "with an explicit deny"),
    ],
)
def test_a_queues_policy_says_who_may_use_it(statements: Any, account_id: str, refusal: str | None) -> None:
    authorization, definition = judge(), queue(*statements)
    call = call_by(account_id)

    for _ in range(2):
        if refusal is None:
            authorization.authorize(call, definition, "jobs")
            continue
        with pytest.raises(AccessDenied, match=refusal) as raised:
            authorization.authorize(call, definition, "jobs")
        assert str(raised.value).startswith(
            f"User: arn:aws:iam::{account_id}:root is not authorized to perform: sqs:sendmessage on resource: "
            f"arn:aws:sqs:us-east-1:{OWNER}:jobs "
        )


@pytest.mark.parametrize("action", ["SendMessageBatch", "StageMessages", "CommitTransaction"])
def test_other_ways_to_send_take_the_permission_to_send(action: str) -> None:
    judge().authorize(call_by(OTHER, action), queue(ALLOW), "jobs")
    with pytest.raises(AccessDenied):
        judge().authorize(call_by(OTHER, action), queue({**ALLOW, "Action": "sqs:SendMessageBatch"}), "jobs")


def test_an_action_takes_all_its_permissions() -> None:
    for denied in ACTIONS["StartMessageMoveTask"].permissions:
        definition = queue({**DENY, "Action": f"sqs:{denied}"})

        with pytest.raises(AccessDenied, match=f"sqs:{denied.lower()} on resource"):
            judge().authorize(call_by(OWNER, "StartMessageMoveTask"), definition, "jobs")


@pytest.mark.parametrize("action", [name for name, action in SQS_ACTIONS.items() if action.owner_only])
def test_actions_of_the_owner_are_allowed_to_no_other_account(action: str) -> None:
    definition = queue({**ALLOW, "Action": "*"})

    with pytest.raises(AccessDenied, match="no resource-based policy"):
        judge().authorize(call_by(OTHER, action), definition, "jobs")
    judge().authorize(call_by(OWNER, action), definition, "jobs")


def test_with_owner_only_no_policy_is_asked() -> None:
    authorization = judge(is_full=False)

    authorization.authorize(call_by(OWNER), queue(DENY), "jobs")
    with pytest.raises(AccessDenied, match=r"Access to the resource the-url is denied\."):
        authorization.authorize(call_by(OTHER), queue(ALLOW), "the-url")


def test_a_consumer_group_is_authorized_as_its_log() -> None:
    resource = f"arn:aws:sqs:us-east-1:{OWNER}:log"
    group = queue({**ALLOW, "Resource": resource}, name="log@readers", group_of=1)

    judge().authorize(call_by(OTHER), group, "log@readers")


def test_the_servers_own_queue_is_written_by_nobody() -> None:
    own = queue(name=USAGE_QUEUE, account_id=INTERNAL_ACCOUNT)

    with pytest.raises(AccessDenied, match="written by the server alone"):
        judge().authorize(call_by(INTERNAL_ACCOUNT), own, USAGE_QUEUE)
    with pytest.raises(AccessDenied, match="written by the server alone"):
        judge().authorize_destination(call_by(INTERNAL_ACCOUNT, "StartMessageMoveTask"), own)
    judge().authorize(call_by(INTERNAL_ACCOUNT, "ReceiveMessage"), own, USAGE_QUEUE)


def test_conditions_are_asked_at_each_call() -> None:
    definition = queue({**ALLOW, "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}})
    authorization, call = judge(), call_by(OTHER)

    for _ in range(2):
        authorization.authorize(call, definition, "jobs")
    call.request.peer = "11.0.0.1"
    with pytest.raises(AccessDenied):
        authorization.authorize(call, definition, "jobs")
    call.request.peer = "::ffff:10.9.9.9"
    authorization.authorize(call, definition, "jobs")


def test_decisions_are_remembered_by_the_objects_that_they_rest_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ruled = []

    def rule_counted(*given: Any) -> Ruling:
        ruled.append(given)
        return rule(*given)

    monkeypatch.setattr(module, "rule", rule_counted)
    monkeypatch.setattr(module, "DECISIONS_REMEMBERED_MAX", 2)
    authorization, call, definition = judge(), call_by(OTHER), queue(ALLOW)

    for _ in range(3):
        authorization.authorize(call, definition, "jobs")
    assert len(ruled) == 1
    authorization.authorize(call, queue(ALLOW), "jobs")
    assert len(ruled) == 2
    authorization.authorize(call, queue(ALLOW, name="other"), "other")
    authorization.authorize(call, definition, "jobs")
    assert len(ruled) == 4


def test_a_request_has_all_keys_that_are_always_there_and_others_where_they_exist() -> None:
    def keys_of(
        headers: dict[str, str] | None = None, *, peer: str = "2001:db8::1", is_tls: bool = False
    ) -> dict[str, tuple[str, ...]]:
        request = call_by(OTHER, headers=headers or {}, peer=peer).request
        request.is_tls = is_tls
        keys = RequestKeys(request, Principal.of_root(OTHER, "key", "sender"), OWNER, "eu-1", NOW_MS)
        return {
            key: found for key in sorted(ALWAYS | SOMETIMES | {"aws:sourcearn"}) if (found := keys.find(key))
        }

    always = {
        "aws:currenttime": ("2026-09-21T14:13:20Z",),
        "aws:epochtime": ("1790000000",),
        "aws:principalaccount": (OTHER,),
        "aws:principalarn": (f"arn:aws:iam::{OTHER}:root",),
        "aws:principaltype": ("Account",),
        "aws:requestedregion": ("eu-1",),
        "aws:resourceaccount": (OWNER,),
        "aws:securetransport": ("false",),
        "aws:sourceip": ("2001:db8::1",),
        "aws:userid": (OTHER,),
    }
    assert keys_of() == always
    assert always.keys() == ALWAYS
    assert keys_of({"user-agent": "Boto3/1", "referer": "r"}) == {
        **always,
        "aws:useragent": ("Boto3/1",),
        "aws:referer": ("r",),
    }
    assert keys_of({"referer": "r" * (HEADER_BYTES_MAX + 1)}) == always
    assert "aws:sourceip" not in keys_of(peer="")
    assert keys_of(is_tls=True) == {**always, "aws:securetransport": ("true",)}
