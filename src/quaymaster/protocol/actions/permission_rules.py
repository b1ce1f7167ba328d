"""What a permission may be that the owner of a queue adds to its policy, and its label.

Source: Amazon SQS API Reference, AddPermission and RemovePermission; wordings as the service sends them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from quaymaster.core.values.errors import InvalidParameterValue, MissingParameter, OverLimit
from quaymaster.core.values.queues.queue_names import is_account_id
from quaymaster.protocol.actions.table import SQS_ACTIONS
from quaymaster.protocol.sqs.shapes import AddPermissionRequest

PERMISSION_ACTIONS_MAX = 7

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)


def check_permission(request: AddPermissionRequest) -> None:
    """Raise what is wrong with a permission, apart from its label being taken."""
    check_statement(request.Label, request.AWSAccountIds, request.Actions)


def check_statement(label: str, account_ids: Sequence[str], actions: Sequence[str]) -> None:
    """Raise what is wrong with the label of a permission, with its accounts or its actions."""
    check_label(label)
    if not actions:
        raise MissingParameter("Actions")
    if not account_ids:
        raise _unverified("")
    if len(actions) > PERMISSION_ACTIONS_MAX:
        raise OverLimit.actions(len(actions), PERMISSION_ACTIONS_MAX)
    for action in actions:
        declared = SQS_ACTIONS.get(action)
        if declared is not None and declared.owner_only:
            raise InvalidParameterValue.of(
                "ActionName", f"SQS:{action}", "Only the queue owner is allowed to invoke this action."
            )
        if declared is None and action != "*":
            raise unknown_action(action)
    for account_id in account_ids:
        if not is_account_id(account_id):
            raise _unverified(account_id)


def _unverified(account_id: str) -> InvalidParameterValue:
    return InvalidParameterValue.of("PrincipalId", f"[{account_id}]", "Unable to verify.")


def unknown_action(action: str) -> InvalidParameterValue:
    """Return the error for an action that no permission can be for."""
    return InvalidParameterValue.of(
        "ActionName", f"SQS:{action}", "Please refer to the appropriate WSDL for a list of valid actions."
    )


def check_label(label: str) -> None:
    """Raise unless a permission may have this label."""
    if not label:
        raise MissingParameter("Label")
    if _LABEL.fullmatch(label) is None:
        raise InvalidParameterValue.of(
            "Label",
            label,
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length.",
        )
