"""AddPermission and RemovePermission: statements of a queue's Policy, written as the service writes them.

Source: Amazon SQS API Reference, AddPermission; the JSON's layout as GetQueueAttributes returns it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from quaymaster.core.values.errors import InvalidParameterValue, MissingParameter, OverLimit
from quaymaster.core.values.policies import POLICY_STATEMENTS_MAX
from quaymaster.core.values.queue_names import is_account_id
from quaymaster.protocol.actions.table import GRANTABLE, SQS_ACTIONS

ACTIONS_MAX: Final = 7
_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_POLICY_VERSION: Final = "2008-10-17"


def add_permission(
    policy: str | None, *, queue_arn: str, label: str, account_ids: Sequence[str], actions: Sequence[str]
) -> str:
    """Return the policy with one more statement; InvalidParameterValue, MissingParameter or OverLimit."""
    _check_label(label)
    _check_accounts(account_ids)
    _check_actions(actions)
    document = _parse(policy, queue_arn)
    statements = document["Statement"]
    if any(statement.get("Sid") == label for statement in statements):
        raise InvalidParameterValue.of("Label", label, "Already exists.")
    if len(statements) >= POLICY_STATEMENTS_MAX:
        raise OverLimit(f"A policy may have at most {POLICY_STATEMENTS_MAX} statements.")
    statements.append(
        {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": _one_or_list([f"arn:aws:iam::{account}:root" for account in account_ids])},
            "Action": _one_or_list([f"SQS:{action}" for action in actions]),
            "Resource": queue_arn,
        }
    )
    return json.dumps(document, separators=(",", ":"))


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
    return json.dumps(document, separators=(",", ":"))


def _parse(policy: str | None, queue_arn: str) -> dict[str, Any]:
    if not policy:
        return {"Version": _POLICY_VERSION, "Id": f"{queue_arn}/SQSDefaultPolicy", "Statement": []}
    document: dict[str, Any] = json.loads(policy)
    statements = document.get("Statement", [])
    document["Statement"] = statements if isinstance(statements, list) else [statements]
    return document


def _check_label(label: str) -> None:
    if not label:
        raise MissingParameter("Label")
    if _LABEL.fullmatch(label) is None:
        raise InvalidParameterValue.of(
            "Label",
            label,
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length.",
        )


def _check_accounts(account_ids: Sequence[str]) -> None:
    if not account_ids:
        raise MissingParameter("PrincipalId")
    if not all(is_account_id(account_id) for account_id in account_ids):
        raise InvalidParameterValue.of("PrincipalId", f"[{', '.join(account_ids)}]", "Unable to verify.")


def _check_actions(actions: Sequence[str]) -> None:
    if not actions:
        raise MissingParameter("Actions")
    if len(actions) > ACTIONS_MAX:
        raise OverLimit.actions(len(actions), ACTIONS_MAX)
    for action in actions:
        if action == "*" or action in GRANTABLE:
            continue
        declared = SQS_ACTIONS.get(action)
        if declared is not None and declared.owner_only:
            raise InvalidParameterValue.of(
                "ActionName", f"SQS:{action}", "Only the queue owner is allowed to invoke this action."
            )
        raise InvalidParameterValue.of(
            "ActionName",
            f"SQS:{action}",
            "Please refer to the appropriate WSDL for a list of valid actions.",
        )


def _one_or_list(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values
