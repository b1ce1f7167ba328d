"""Requests and answers of the admin API that any caller may ask for: about itself, and about this API."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from quaymaster.protocol.admin.members import AccountId, AdminAnswer, AdminRequest, Change, Nothing
from quaymaster.protocol.admin.operation import AdminOperation

SESSIONS_MAX: Final = 1_000
"""Sessions of one question, as many as a console has live pages. To open a token takes 10 us, once."""
PERMISSIONS_MAX: Final = 1_000
"""Permissions of one question. To ask policies for one takes 10 us."""


class CallerView(AdminAnswer, frozen=True, kw_only=True):
    """Who asks."""

    account_id: str
    arn: str
    name: Annotated[str, Meta(description="For people to read: the user, the role's session, or `root`.")]
    access_key_id: str
    is_root: bool
    is_operator: Annotated[bool, Meta(description="It is of the default account.")]
    is_read_only: Annotated[bool, Meta(description="A session policy lets it only look.")]


class RevokedSessions(Change, frozen=True, kw_only=True):
    """The caller is signed out everywhere: its own credentials too, if they are temporary."""

    account_id: str
    arn: str


class NamedSession(AdminRequest, frozen=True, kw_only=True):
    """A session that somebody has."""

    access_key_id: Annotated[str, Meta(max_length=128)]
    session_token: Annotated[str, Meta(max_length=8_192)]


class FindRevokedRequest(AdminRequest, frozen=True, kw_only=True):
    sessions: Annotated[list[NamedSession], Meta(max_length=SESSIONS_MAX)]


class RevokedList(AdminAnswer, frozen=True, kw_only=True):
    revoked: Annotated[list[str], Meta(description="Access key ids of the sessions that have ended.")]


class NamedPermission(AdminRequest, frozen=True, kw_only=True):
    """An action on something of an account."""

    action: Annotated[
        str,
        Meta(
            pattern="^(sqs|cloudwatch|quaymaster):[A-Za-z]{1,64}$",
            max_length=80,
            description="As policies name it: `sqs:GetQueueAttributes`.",
        ),
    ]
    account_id: AccountId
    name: Annotated[
        str,
        Meta(
            max_length=512,
            description="The last part of the resource's ARN: a queue's name, `alarm:NAME`; empty: the account's all.",
        ),
    ] = ""


class CheckPermissionsRequest(AdminRequest, frozen=True, kw_only=True):
    permissions: Annotated[list[NamedPermission], Meta(max_length=PERMISSIONS_MAX)]


class CheckedPermissions(AdminAnswer, frozen=True, kw_only=True):
    """What the server would say to requests of the caller from its address, at this moment."""

    is_root: Annotated[bool, Meta(description="No policy of the caller limits it.")]
    refusals: Annotated[
        list[str | None],
        Meta(description="For each permission what a refusal would say; null: the caller has it."),
    ]


def _own(
    name: str,
    method: Literal["GET", "POST"],
    path: str,
    request: type[AdminRequest],
    answer: Any,
    says: str,
    *,
    is_change: bool = False,
) -> AdminOperation:
    return AdminOperation(
        name=name,
        method=method,
        path=path,
        request=request,
        answer=answer,
        says=says,
        permission=None,
        who="owner",
        is_change=is_change,
    )


OWN_OPERATIONS: Final = (
    _own("GetDocument", "GET", "openapi.json", Nothing, dict[str, Any], "Returns this API as OpenAPI 3.1."),
    _own("GetCaller", "GET", "me", Nothing, CallerView, "Says who asks."),
    _own(
        "RevokeOwnSessions",
        "POST",
        "me/revoke-sessions",
        Nothing,
        RevokedSessions,
        "Signs the caller out everywhere: refuses all temporary credentials of the user, or of the root key.",
        is_change=True,
    ),
    _own(
        "FindRevokedSessions",
        "POST",
        "sessions/revoked",
        FindRevokedRequest,
        RevokedList,
        "Says which of the given sessions have ended: revoked, expired, or none of this server.",
    ),
    _own(
        "CheckPermissions",
        "POST",
        "me/permissions",
        CheckPermissionsRequest,
        CheckedPermissions,
        "Says which of the given permissions the caller has. Users of the default account are told of what they may "
        "do as operators, at the admin port.",
    ),
)
