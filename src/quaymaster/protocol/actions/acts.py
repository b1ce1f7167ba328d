"""The table of what operators do: acts that leave a record, beside the actions of clients.

An act comes over the admin API, or past every front end, noted in the store (`coordination/noted_acts`) or left in a
data directory (`coordination/left_acts`).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from quaymaster.protocol.actions.table import ACTIONS

Way = Literal["admin", "noted"]

OTHER_ACT: Final = "OtherAct"
"""An act that a newer program noted; what it calls it is in what was asked."""


class OperatorAct(NamedTuple):
    """One kind of act. `usage_op` names it in records for ever; `is_change` false: it only looks at something."""

    name: str
    usage_op: int
    ways: tuple[Way, ...]
    is_change: bool = True


ACTS: Final = {
    act.name: act
    for act in (
        OperatorAct("CreateConsumerGroup", 31, ("admin",)),
        OperatorAct("ResetConsumerGroup", 32, ("admin",)),
        OperatorAct("SetConsumerGroupOffset", 33, ("admin",)),
        OperatorAct("CreateAccount", 34, ("admin",)),
        OperatorAct("CreateAccessKey", 35, ("admin",)),
        OperatorAct("EnableAccessKey", 36, ("admin",)),
        OperatorAct("DisableAccessKey", 37, ("admin",)),
        OperatorAct("RotateAccessKey", 38, ("admin",)),
        OperatorAct("DeleteAccessKey", 39, ("admin",)),
        OperatorAct("CreateSession", 40, ("admin",)),
        OperatorAct("RotateMasterKey", 41, ("admin",)),
        OperatorAct("RotateReceiptKey", 42, ("admin",)),
        OperatorAct("AcceptClock", 43, ("admin", "noted")),
        OperatorAct("SealFrontEnd", 44, ("admin",)),
        OperatorAct("CreateBackup", 45, ("admin", "noted")),
        OperatorAct("ListAccessKeys", 46, ("admin",), is_change=False),
        OperatorAct("PeekMessages", 47, ("admin",), is_change=False),
        OperatorAct("ActivateBroker", 48, ("noted",)),
        OperatorAct("DrainBroker", 49, ("noted",)),
        OperatorAct("ForceRecover", 50, ("noted",)),
        OperatorAct("ForceStart", 51, ("noted",)),
        OperatorAct("ForceStore", 52, ("noted",)),
        OperatorAct("RestoreBackup", 53, ("noted",)),
        OperatorAct("DeclareQueues", 54, ("noted",)),
        OperatorAct("StopBroker", 55, ("noted",)),
        OperatorAct("UpgradeCell", 56, ("noted",)),
        OperatorAct(OTHER_ACT, 57, ("noted",)),
        OperatorAct("DisableAccount", 58, ("admin",)),
        OperatorAct("EnableAccount", 59, ("admin",)),
        OperatorAct("DeleteAccount", 60, ("admin",)),
        OperatorAct("RemoveQueuePolicy", 61, ("admin",)),
        OperatorAct("CreateUser", 62, ("admin",)),
        OperatorAct("PutUserPolicy", 63, ("admin",)),
        OperatorAct("DeleteUserPolicy", 64, ("admin",)),
        OperatorAct("RevokeUserSessions", 65, ("admin",)),
        OperatorAct("DeleteUser", 66, ("admin",)),
        OperatorAct("CreateRole", 67, ("admin",)),
        OperatorAct("UpdateRole", 68, ("admin",)),
        OperatorAct("PutRolePolicy", 69, ("admin",)),
        OperatorAct("DeleteRolePolicy", 70, ("admin",)),
        OperatorAct("RevokeRoleSessions", 71, ("admin",)),
        OperatorAct("DeleteRole", 72, ("admin",)),
        OperatorAct("RotateSessionKey", 77, ("admin",)),
        OperatorAct("SetOIDCIssuer", 78, ("admin",)),
        OperatorAct("DeleteOIDCIssuer", 79, ("admin",)),
        OperatorAct("CreateKMSKey", 80, ("admin",)),
        OperatorAct("EnableKMSKey", 81, ("admin",)),
        OperatorAct("DisableKMSKey", 82, ("admin",)),
        OperatorAct("ScheduleKMSKeyDeletion", 83, ("admin",)),
        OperatorAct("CancelKMSKeyDeletion", 84, ("admin",)),
        OperatorAct("SetKMSAlias", 85, ("admin",)),
        OperatorAct("DeleteKMSAlias", 86, ("admin",)),
        OperatorAct("SetLimit", 87, ("admin",)),
        OperatorAct("RemoveLimit", 88, ("admin",)),
        OperatorAct("DeleteKMSKey", 89, ("noted",)),
        OperatorAct("DrainEdge", 90, ("noted",)),
        OperatorAct("ReloadEdge", 91, ("noted",)),
        OperatorAct("SplitQueue", 92, ("admin",)),
        OperatorAct("MergeQueue", 93, ("admin",)),
        OperatorAct("MoveQueue", 94, ("admin",)),
        OperatorAct("CancelQueueChange", 95, ("admin",)),
        OperatorAct("RevokeOwnSessions", 115, ("admin",)),
        OperatorAct("SignIn", 116, ("admin",)),
        OperatorAct("CreateSignInLink", 117, ("admin",)),
        OperatorAct("SetUserPassword", 118, ("admin",)),
        OperatorAct("DeleteUserPassword", 119, ("admin",)),
        OperatorAct("CreateDestination", 120, ("admin",)),
        OperatorAct("DeleteDestination", 121, ("admin",)),
        OperatorAct("TestDestination", 122, ("admin",)),
        OperatorAct("GetDestinationSecret", 123, ("admin",), is_change=False),
        OperatorAct("RotatePushSecret", 131, ("admin",)),
        OperatorAct("TestPush", 132, ("admin",)),
        OperatorAct("GetPushSecret", 133, ("admin",), is_change=False),
        OperatorAct("GiveUpPartition", 135, ("admin",)),
    )
}
"""By name. A new one gets the next number that neither an act nor an action has."""

_OF_DASHBOARDS: Final = {
    action.name
    for action in ACTIONS.values()
    if action.operation is not None and action.operation.resource == "dashboard" and action.is_change
}
ADMIN_ACTIONS: Final = frozenset({"DeleteQueue"} | _OF_DASHBOARDS)
"""What clients do as well: an action, also when operators ask for it."""
ADMIN_CHANGES: Final = ADMIN_ACTIONS | {
    act.name for act in ACTS.values() if "admin" in act.ways and act.is_change
}
"""What operators change over the admin API."""
ADMIN_LOOKS: Final = frozenset(act.name for act in ACTS.values() if not act.is_change)
"""What they only look at, and leaves a record all the same."""
NOTED_CHANGES: Final = frozenset(act.name for act in ACTS.values() if "noted" in act.ways)
"""What operators change past every front end."""

assert not {act.usage_op for act in ACTS.values()} & {action.usage_op for action in ACTIONS.values()}, (
    "no act has the number of an action"
)
