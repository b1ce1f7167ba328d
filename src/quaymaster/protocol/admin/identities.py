"""Requests and answers of the admin API about users, roles, and issuers of web identities."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from quaymaster.core.access.operations import Operation
from quaymaster.protocol.admin.accounts import LastUse
from quaymaster.protocol.admin.members import (
    AdminAnswer,
    AdminRequest,
    Change,
    Limit,
    NextToken,
    Nothing,
    OfAccount,
    PathName,
    PolicyText,
)
from quaymaster.protocol.admin.operation import NOT_THERE, row

IdentityName = Annotated[
    str,
    Meta(min_length=1, max_length=64, description="Letters, digits and `_+=,.@-`; compared without case."),
]
IdentityPath = Annotated[str, Meta(max_length=512, description="Path in the ARN, such as `/staff/`.")]
SessionMax = Annotated[
    int, Meta(ge=3_600, le=43_200, description="Longest time of its sessions, in seconds.")
]
Policies = Annotated[dict[str, str], Meta(description="Identity policies by their names, as text.")]
Problems = Annotated[dict[str, str], Meta(description="Why stored policies cannot be evaluated, by name.")]
StaleNames = Annotated[
    list[str], Meta(description="Names in the policy that others have now than when it was set.")
]


class ListIdentitiesRequest(OfAccount, frozen=True, kw_only=True):
    limit: Limit = 1_000
    next_token: NextToken = ""


class IdentityEntry(AdminAnswer, frozen=True, kw_only=True):
    """A user or role without its policies."""

    account_id: str
    name: str
    path: str
    id: str
    arn: str
    created_ms: int


class UserList(AdminAnswer, frozen=True, kw_only=True):
    users: list[IdentityEntry]
    next_token: str | None


class RoleList(AdminAnswer, frozen=True, kw_only=True):
    roles: list[IdentityEntry]
    next_token: str | None


class UserRequest(OfAccount, frozen=True, kw_only=True):
    name: PathName


class RoleRequest(OfAccount, frozen=True, kw_only=True):
    name: PathName


class CreateUserRequest(OfAccount, frozen=True, kw_only=True):
    name: IdentityName
    path: IdentityPath = "/"
    key: Annotated[bool, Meta(description="Make a first key, too.")] = True


class UserView(Change, frozen=True, kw_only=True):
    """A user with its policies."""

    account_id: str
    name: str
    path: str
    id: str
    arn: str
    created_ms: int
    policies: Policies
    problems: Problems


class NewUser(UserView, frozen=True, kw_only=True):
    """A new user, with its first key, whose secret is shown only now."""

    access_key_id: str | UnsetType = UNSET
    secret_access_key: str | UnsetType = UNSET


class UserKey(AdminAnswer, frozen=True, kw_only=True):
    access_key_id: str
    enabled: bool
    last_used_ms: LastUse | UnsetType = UNSET


class UserWithKeys(UserView, frozen=True, kw_only=True):
    keys: list[UserKey]


class DeletedIdentity(Change, frozen=True, kw_only=True):
    account_id: str
    name: str
    deleted: Literal[True] = True


class PutPolicyRequest(OfAccount, frozen=True, kw_only=True):
    name: PathName
    policy_name: Annotated[str, Meta(min_length=1, max_length=128)]
    policy: PolicyText


class DeletePolicyRequest(OfAccount, frozen=True, kw_only=True):
    name: PathName
    policy_name: Annotated[str, Meta(min_length=1, max_length=128)]


class CreateRoleRequest(OfAccount, frozen=True, kw_only=True):
    name: IdentityName
    trust_policy: PolicyText
    path: IdentityPath = "/"
    session_max_s: SessionMax = 3_600


class UpdateRoleRequest(OfAccount, frozen=True, kw_only=True):
    name: PathName
    trust_policy: PolicyText | None = None
    session_max_s: SessionMax | None = None


class RoleView(Change, frozen=True, kw_only=True):
    """A role with its policies."""

    account_id: str
    name: str
    path: str
    id: str
    arn: str
    created_ms: int
    trust_policy: str
    session_max_s: int
    policies: Policies
    problems: Problems
    stale: StaleNames | UnsetType = UNSET


# Web identities


class IssuerView(Change, frozen=True, kw_only=True):
    """An issuer of web identity tokens."""

    name: str
    issuer: str
    audiences: list[str]
    key_count: int | None
    keys_url: str | None
    changed_ms: int


class IssuerList(AdminAnswer, frozen=True, kw_only=True):
    issuers: list[IssuerView]


class SetIssuerRequest(AdminRequest, frozen=True, kw_only=True):
    issuer: Annotated[str, Meta(description="URL of the issuer.")]
    audiences: list[str]
    keys: Annotated[str, Meta(description="A JSON Web Key Set as text.")] = ""
    keys_url: Annotated[
        str, Meta(description="Where its keys are; without `keys` and this, by discovery.")
    ] = ""


class IssuerRequest(AdminRequest, frozen=True, kw_only=True):
    name: Annotated[
        str, Meta(pattern="^[!-~]{1,512}$", max_length=512, description="The issuer without `https://`.")
    ]


class DeletedIssuer(Change, frozen=True, kw_only=True):
    name: str
    deleted: Literal[True] = True


IDENTITIES_OPERATIONS: Final = (
    row(
        "GET",
        "users",
        Operation.LIST_USERS,
        ListIdentitiesRequest,
        UserList,
        "Lists users by name, without policies.",
        who="owner",
    ),
    row(
        "POST",
        "users",
        Operation.CREATE_USER,
        CreateUserRequest,
        NewUser,
        "Makes a user and its first key, whose secret is shown only now.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "GET",
        "users/{name}",
        Operation.GET_USER,
        UserRequest,
        UserWithKeys,
        "Shows a user with its keys and policies.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "DELETE",
        "users/{name}",
        Operation.DELETE_USER,
        UserRequest,
        DeletedIdentity,
        "Deletes a user for good, with its keys.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "POST",
        "users/{name}/policy",
        Operation.PUT_USER_POLICY,
        PutPolicyRequest,
        UserView,
        "Gives a user a policy, in place of the one of this name.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "DELETE",
        "users/{name}/policy",
        Operation.DELETE_USER_POLICY,
        DeletePolicyRequest,
        UserView,
        "Takes a policy from a user.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "POST",
        "users/{name}/revoke-sessions",
        Operation.REVOKE_USER_SESSIONS,
        UserRequest,
        UserView,
        "Refuses a user's temporary credentials, those of the console too.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "GET",
        "roles",
        Operation.LIST_ROLES,
        ListIdentitiesRequest,
        RoleList,
        "Lists roles by name, without policies.",
        who="owner",
    ),
    row(
        "POST",
        "roles",
        Operation.CREATE_ROLE,
        CreateRoleRequest,
        RoleView,
        "Makes a role.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "GET",
        "roles/{name}",
        Operation.GET_ROLE,
        RoleRequest,
        RoleView,
        "Shows a role with its policies.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "POST",
        "roles/{name}",
        Operation.UPDATE_ROLE,
        UpdateRoleRequest,
        RoleView,
        "Changes who may assume a role, or for how long; present sessions stay.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "DELETE",
        "roles/{name}",
        Operation.DELETE_ROLE,
        RoleRequest,
        DeletedIdentity,
        "Deletes a role for good; its sessions are refused.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "POST",
        "roles/{name}/policy",
        Operation.PUT_ROLE_POLICY,
        PutPolicyRequest,
        RoleView,
        "Gives a role a policy, in place of the one of this name.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "DELETE",
        "roles/{name}/policy",
        Operation.DELETE_ROLE_POLICY,
        DeletePolicyRequest,
        RoleView,
        "Takes a policy from a role.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "POST",
        "roles/{name}/revoke-sessions",
        Operation.REVOKE_ROLE_SESSIONS,
        RoleRequest,
        RoleView,
        "Refuses the credentials that were given for a role.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "GET",
        "oidc",
        Operation.LIST_OIDC_ISSUERS,
        Nothing,
        IssuerList,
        "Lists issuers of web identity tokens by name.",
    ),
    row(
        "POST",
        "oidc",
        Operation.SET_OIDC_ISSUER,
        SetIssuerRequest,
        IssuerView,
        "Sets an issuer, in place of the one with this URL.",
    ),
    row(
        "DELETE",
        "oidc/{name}",
        Operation.DELETE_OIDC_ISSUER,
        IssuerRequest,
        DeletedIssuer,
        "Refuses an issuer's tokens from now on.",
        errors=NOT_THERE,
    ),
)
