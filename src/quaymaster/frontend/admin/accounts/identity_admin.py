"""What operators do with users and roles: routes of the admin API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from quaymaster.core.access.policies import PolicyInForce, UnreadablePolicy
from quaymaster.core.values.errors import CallerError, ResourceNotFound
from quaymaster.frontend.admin.accounts.account_admin import AccountService, last_uses
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute
from quaymaster.frontend.callers.key_uses import KeyUses
from quaymaster.protocol.admin import identities as shapes

Kind = Literal["user", "role"]
View = shapes.UserView | shapes.RoleView


class IdentityRow(Protocol):
    """What users and roles have in common as metadata keeps them."""

    @property
    def account_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def policies(self) -> dict[str, str]: ...


class RoleRow(IdentityRow, Protocol):
    """A role as metadata keeps it."""

    @property
    def trust_policy(self) -> str: ...
    @property
    def session_max_s(self) -> int: ...
    @property
    def trusted_ids(self) -> dict[str, str]: ...


class Identity(Protocol):
    """A user, or what a role has in common with one."""

    @property
    def row(self) -> IdentityRow: ...
    @property
    def unique_id(self) -> str: ...
    @property
    def full_name(self) -> str: ...
    @property
    def arn(self) -> str: ...
    @property
    def policies(self) -> tuple[PolicyInForce, ...]: ...


@runtime_checkable
class Role(Identity, Protocol):
    """A role with its policies."""

    @property
    def row(self) -> RoleRow: ...
    @property
    def trust_policy(self) -> PolicyInForce: ...


class IdentityService(Protocol):
    """The part of the metadata service that owns users and roles. Errors are those of `core.errors`."""

    def user(self, account_id: str, name: str) -> Identity | None: ...

    def role(self, account_id: str, name: str) -> Role | None: ...

    def find(self, kind: Kind, account_id: str, name: str) -> Identity | None: ...

    def list_page(self, kind: Kind, account_id: str, after: str, count_max: int) -> Sequence[Identity]: ...

    async def create_user(self, account_id: str, name: str, path: str = "/") -> Identity: ...

    async def create_role(
        self,
        account_id: str,
        name: str,
        trust_policy: str,
        *,
        path: str = "/",
        session_max_s: int = 3_600,
    ) -> Role: ...

    async def update_role(
        self, account_id: str, name: str, *, trust_policy: str | None = None, session_max_s: int | None = None
    ) -> Role: ...

    async def put_policy(
        self, kind: Kind, account_id: str, name: str, policy_name: str, text: str
    ) -> Identity: ...

    async def delete_policy(self, kind: Kind, account_id: str, name: str, policy_name: str) -> Identity: ...

    async def revoke_sessions(self, kind: Kind, account_id: str, name: str) -> Identity: ...

    async def set_password(self, account_id: str, name: str, hashed: str) -> Identity: ...

    async def delete(self, kind: Kind, account_id: str, name: str) -> Identity: ...

    def stale_names(self, policy: PolicyInForce | None, bound: Mapping[str, str]) -> list[str]: ...


class IdentityAdmin:
    """Answers requests about users and roles."""

    def __init__(
        self, identities: IdentityService, accounts: AccountService, key_uses: KeyUses | None
    ) -> None:
        self._key_uses = key_uses
        self._identities = identities
        self._accounts = accounts

    def routes(self) -> dict[str, AdminRoute]:
        """Return what answers each operation."""
        user, role = partial(self._stored_name, "user"), partial(self._stored_name, "role")
        return {
            "ListUsers": AdminRoute(self._list_users),
            "CreateUser": AdminRoute(self._create_user),
            "GetUser": AdminRoute(self._show_user, user),
            "DeleteUser": AdminRoute(partial(self._delete, "user"), user),
            "PutUserPolicy": AdminRoute(partial(self._put_policy, "user"), user),
            "DeleteUserPolicy": AdminRoute(partial(self._delete_policy, "user"), user),
            "RevokeUserSessions": AdminRoute(partial(self._revoke_sessions, "user"), user),
            "ListRoles": AdminRoute(self._list_roles),
            "CreateRole": AdminRoute(self._create_role),
            "GetRole": AdminRoute(self._show_role, role),
            "UpdateRole": AdminRoute(self._update_role, role),
            "DeleteRole": AdminRoute(partial(self._delete, "role"), role),
            "PutRolePolicy": AdminRoute(partial(self._put_policy, "role"), role),
            "DeleteRolePolicy": AdminRoute(partial(self._delete_policy, "role"), role),
            "RevokeRoleSessions": AdminRoute(partial(self._revoke_sessions, "role"), role),
        }

    def _stored_name(self, kind: Kind, call: AdminCall, given: shapes.UserRequest) -> str:
        identity = self._identities.find(kind, call.owner, given.name)
        return given.name if identity is None else identity.row.name

    # Both

    async def _list_users(self, call: AdminCall, given: shapes.ListIdentitiesRequest) -> shapes.UserList:
        users, token = self._page("user", call, given)
        return shapes.UserList(users=users, next_token=token)

    async def _list_roles(self, call: AdminCall, given: shapes.ListIdentitiesRequest) -> shapes.RoleList:
        roles, token = self._page("role", call, given)
        return shapes.RoleList(roles=roles, next_token=token)

    def _page(
        self, kind: Kind, call: AdminCall, given: shapes.ListIdentitiesRequest
    ) -> tuple[list[shapes.IdentityEntry], str | None]:
        found = self._identities.list_page(kind, call.owner, given.next_token, given.limit + 1)
        rows = [shapes.IdentityEntry(**_entry(identity)) for identity in found[: given.limit]]
        return rows, rows[-1].name if len(found) > given.limit else None

    async def _delete(self, kind: Kind, call: AdminCall, given: shapes.UserRequest) -> shapes.DeletedIdentity:
        identity = await self._identities.delete(kind, call.owner, given.name)
        if kind == "user":
            await self._accounts.drop_keys_of_deleted_users()
        return shapes.DeletedIdentity(account_id=identity.row.account_id, name=identity.row.name)

    async def _put_policy(self, kind: Kind, call: AdminCall, given: shapes.PutPolicyRequest) -> View:
        return _view(
            await self._identities.put_policy(kind, call.owner, given.name, given.policy_name, given.policy)
        )

    async def _delete_policy(self, kind: Kind, call: AdminCall, given: shapes.DeletePolicyRequest) -> View:
        return _view(await self._identities.delete_policy(kind, call.owner, given.name, given.policy_name))

    async def _revoke_sessions(self, kind: Kind, call: AdminCall, given: shapes.UserRequest) -> View:
        return _view(await self._identities.revoke_sessions(kind, call.owner, given.name))

    # Users

    async def _create_user(self, call: AdminCall, given: shapes.CreateUserRequest) -> shapes.NewUser:
        account_id = call.owner
        user = await self._identities.create_user(account_id, given.name, given.path)
        if not given.key:
            return shapes.NewUser(**_with_policies(user))
        try:
            key = await self._accounts.create_access_key(account_id, "default", user=user.row.name)
        except CallerError:
            # Whoever is refused may ask again, once there is room for the key.
            await self._identities.delete("user", account_id, user.row.name)
            raise
        return shapes.NewUser(
            **_with_policies(user), access_key_id=key.access_key_id, secret_access_key=key.secret
        )

    async def _show_user(self, call: AdminCall, given: shapes.UserRequest) -> shapes.UserWithKeys:
        account_id = call.owner
        user = self._identities.user(account_id, given.name)
        if user is None:
            raise ResourceNotFound(f"The account {account_id} has no user {given.name}.")
        keys = self._accounts.list_user_keys(account_id, given.name)
        used = await last_uses(self._key_uses, [key.access_key_id for key in keys])
        listed = [
            shapes.UserKey(
                access_key_id=key.access_key_id,
                enabled=key.is_enabled,
                last_used_ms=used(key.access_key_id),
            )
            for key in keys
        ]
        return shapes.UserWithKeys(**_with_policies(user), keys=listed)

    # Roles

    async def _create_role(self, call: AdminCall, given: shapes.CreateRoleRequest) -> shapes.RoleView:
        role = await self._identities.create_role(
            call.owner, given.name, given.trust_policy, path=given.path, session_max_s=given.session_max_s
        )
        return _role_view(role)

    async def _show_role(self, call: AdminCall, given: shapes.RoleRequest) -> shapes.RoleView:
        account_id = call.owner
        role = self._identities.role(account_id, given.name)
        if role is None:
            raise ResourceNotFound(f"The account {account_id} has no role {given.name}.")
        stale = self._identities.stale_names(role.trust_policy, role.row.trusted_ids)
        return msgspec.structs.replace(_role_view(role), stale=stale)

    async def _update_role(self, call: AdminCall, given: shapes.UpdateRoleRequest) -> shapes.RoleView:
        role = await self._identities.update_role(
            call.owner, given.name, trust_policy=given.trust_policy, session_max_s=given.session_max_s
        )
        return _role_view(role)


def _entry(identity: Identity) -> dict[str, Any]:
    row = identity.row
    return {
        "account_id": row.account_id,
        "name": row.name,
        "path": row.path,
        "id": identity.unique_id,
        "arn": identity.arn,
        "created_ms": row.created_ms,
    }


def _with_policies(identity: Identity) -> dict[str, Any]:
    return {**_entry(identity), "policies": identity.row.policies, "problems": _problems(identity)}


def _view(identity: Identity) -> View:
    """Return a user or role with its policies; of a role, its trust policy, too."""
    return _role_view(identity) if isinstance(identity, Role) else shapes.UserView(**_with_policies(identity))


def _role_view(role: Role) -> shapes.RoleView:
    members = _with_policies(role)
    if isinstance(role.trust_policy, UnreadablePolicy):
        members["problems"]["trust policy"] = str(role.trust_policy.why)
    return shapes.RoleView(
        **members, trust_policy=role.row.trust_policy, session_max_s=role.row.session_max_s
    )


def _problems(identity: Identity) -> dict[str, str]:
    """Return why each stored policy that does not compile does not."""
    names = zip(identity.row.policies, identity.policies, strict=True)
    return {name: str(policy.why) for name, policy in names if isinstance(policy, UnreadablePolicy)}
