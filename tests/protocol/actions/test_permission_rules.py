"""What a permission may be."""

from __future__ import annotations

import pytest

from quaymaster.core.values.errors import CallerError, InvalidParameterValue, MissingParameter, OverLimit
from quaymaster.protocol.actions.permission_rules import check_permission
from quaymaster.protocol.actions.table import SQS_ACTIONS, Action
from quaymaster.protocol.sqs.shapes import AddPermissionRequest


def _permission(
    label: str = "label", accounts: list[str] | None = None, actions: list[str] | None = None
) -> AddPermissionRequest:
    return AddPermissionRequest(
        "q",
        label,
        ["123456789012"] if accounts is None else accounts,
        ["SendMessage"] if actions is None else actions,
    )


def test_a_permission_names_accounts_and_actions() -> None:
    check_permission(_permission("A-b_9" * 16, actions=["SendMessage", "*"]))


@pytest.mark.parametrize("action", SQS_ACTIONS.values(), ids=list(SQS_ACTIONS))
def test_a_permission_can_be_given_for_each_action_that_is_not_the_owners(action: Action) -> None:
    permission = _permission(actions=[action.name])

    if not action.owner_only:
        check_permission(permission)
        return
    with pytest.raises(InvalidParameterValue, match="Only the queue owner"):
        check_permission(permission)


@pytest.mark.parametrize(
    ("permission", "error", "message"),
    [
        (_permission(""), MissingParameter, "The request must contain the parameter Label."),
        (
            _permission("a b"),
            InvalidParameterValue,
            "Value a b for parameter Label is invalid. Reason: Can only include alphanumeric characters, "
            "hyphens, or underscores. 1 to 80 in length.",
        ),
        (
            _permission(accounts=[]),
            InvalidParameterValue,
            "Value [] for parameter PrincipalId is invalid. Reason: Unable to verify.",
        ),
        (_permission(actions=[]), MissingParameter, "The request must contain the parameter Actions."),
        (
            _permission(accounts=["123"]),
            InvalidParameterValue,
            "Value [123] for parameter PrincipalId is invalid. Reason: Unable to verify.",
        ),
        (
            _permission(actions=["Fly"]),
            InvalidParameterValue,
            "Value SQS:Fly for parameter ActionName is invalid. "
            "Reason: Please refer to the appropriate WSDL for a list of valid actions.",
        ),
        (
            _permission(actions=["CreateQueue"]),
            InvalidParameterValue,
            "Value SQS:CreateQueue for parameter ActionName is invalid. "
            "Reason: Only the queue owner is allowed to invoke this action.",
        ),
        (
            _permission(actions=["SendMessage"] * 8),
            OverLimit,
            "8 Actions were found, maximum allowed is 7.",
        ),
    ],
)
def test_other_permissions_are_refused(
    permission: AddPermissionRequest, error: type[CallerError], message: str
) -> None:
    with pytest.raises(error) as raised:
        check_permission(permission)

    assert raised.value.message == message
