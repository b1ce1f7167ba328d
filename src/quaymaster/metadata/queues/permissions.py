"""AddPermission and RemovePermission: statements of a queue's Policy, written as the service writes them.

Source: Amazon SQS API Reference, AddPermission; the JSON's layout as GetQueueAttributes returns it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from quaymaster.core.access.errors import PolicyError
from quaymaster.core.access.policies import (
    QUEUE_POLICY_STATEMENTS_MAX,
    UnreadablePolicy,
    compile_policy,
    read_policy,
)
from quaymaster.core.values.errors import InvalidAttributeValue, InvalidParameterValue, OverLimit
from quaymaster.core.values.queues.attributes import POLICY
from quaymaster.metadata.keys.name_binding import BoundNames, NameBinding, NoSuchIdentity
from quaymaster.protocol.actions.permission_rules import check_statement, unknown_action
from quaymaster.protocol.actions.table import GRANTABLE

_POLICY_VERSION: Final = "2008-10-17"


def add_permission(
    policy: str | None, *, queue_arn: str, label: str, account_ids: Sequence[str], actions: Sequence[str]
) -> str:
    """Return the policy with one more statement.

    Raises:
        InvalidParameterValue, MissingParameter, OverLimit: it cannot have that.
        InvalidAttributeValue: the policy cannot be evaluated.
    """
    check_statement(label, account_ids, actions)
    for action in actions:
        if action != "*" and action not in GRANTABLE:
            raise unknown_action(action)
    document = _parse(policy, queue_arn)
    statements = document["Statement"]
    if any(statement.get("Sid") == label for statement in statements):
        raise InvalidParameterValue.of("Label", label, "Already exists.")
    if len(statements) >= QUEUE_POLICY_STATEMENTS_MAX:
        raise OverLimit(f"A policy may have at most {QUEUE_POLICY_STATEMENTS_MAX} statements.")
    statements.append(
        {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": _one_or_list([f"arn:aws:iam::{account}:root" for account in account_ids])},
            "Action": _one_or_list([f"SQS:{action}" for action in actions]),
            "Resource": queue_arn,
        }
    )
    return _written(document)


def remove_permission(policy: str | None, *, queue_arn: str, label: str) -> str:
    """Return the policy without the statement of this label, empty text when none is left."""
    document = _parse(policy, queue_arn)
    statements = document["Statement"]
    kept = [statement for statement in statements if statement.get("Sid") != label]
    if len(kept) == len(statements):
        raise InvalidParameterValue.of("Label", label, "can't find label.")
    if not kept:
        return ""
    document["Statement"] = kept
    return _written(document)


async def bind_policy(binding: NameBinding, policy: str) -> BoundNames:
    """Bind the users and roles that a policy names; InvalidAttributeValue if an account here has no such."""
    try:
        return await binding.bind(compile_policy(policy).identities)
    except NoSuchIdentity as error:
        raise InvalidAttributeValue.of(POLICY.name, str(error)) from None


def kept_bindings(policy: str, bound: Mapping[str, str]) -> dict[str, str]:
    """Return the bindings that stay when statements without users and roles come, or some go."""
    if not (policy and bound):
        return {}
    in_force = read_policy(policy)
    if isinstance(in_force, UnreadablePolicy):
        return dict(bound)
    return {arn: bound[arn] for arn in in_force.identities if arn in bound}


def _written(document: dict[str, Any]) -> str:
    """Return a policy's text; InvalidAttributeValue if it cannot be evaluated, for what was stored before cannot."""
    text = json.dumps(document, separators=(",", ":"))
    try:
        compile_policy(text)
    except PolicyError as error:
        raise InvalidAttributeValue.of(POLICY.name, str(error)) from error
    return text


def _parse(policy: str | None, queue_arn: str) -> dict[str, Any]:
    if not policy:
        return {"Version": _POLICY_VERSION, "Id": f"{queue_arn}/SQSDefaultPolicy", "Statement": []}
    document: dict[str, Any] = json.loads(policy)
    statements = document.get("Statement", [])
    document["Statement"] = statements if isinstance(statements, list) else [statements]
    return document


def _one_or_list(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values
