"""What operators do with users and roles: routes of the admin API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

from quaymaster.core.access.operations import Operation
from quaymaster.core.access.policies import PolicyInForce, UnreadablePolicy
from quaymaster.core.values.errors import (
    CallerError,
    InvalidParameterValue,
    MissingParameter,
    ResourceNotFound,
)
from quaymaster.frontend.admin.account_admin import AccountService, last_uses
from quaymaster.frontend.admin.admin_calls import PAGE_MAX, AdminCall, AdminRoute, Handler
from quaymaster.frontend.key_uses import KeyUses

Kind = Literal["user", "role"]


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

    def routes(self) -> dict[tuple[str, ...], AdminRoute]:
        """Return what answers each request, as `Admin` has them."""
        name_of_user, name_of_role = partial(self._stored_name, "user"), partial(self._stored_name, "role")
        return {
            ("GET", "users"): AdminRoute(self._of("user", self._list), looks_at=Operation.LIST_USERS),
            ("POST", "users"): AdminRoute(self._create_user, "CreateUser"),
            ("GET", "users", "*"): AdminRoute(
                self._show_user, looks_at=Operation.GET_USER, stored_name=name_of_user
            ),
            ("DELETE", "users", "*"): AdminRoute(
                self._of("user", self._delete), "DeleteUser", stored_name=name_of_user
            ),
            ("POST", "users", "*", "policy"): AdminRoute(
                self._of("user", self._put_policy), "PutUserPolicy", stored_name=name_of_user
            ),
            ("DELETE", "users", "*", "policy"): AdminRoute(
                self._of("user", self._delete_policy), "DeleteUserPolicy", stored_name=name_of_user
            ),
            ("POST", "users", "*", "revoke-sessions"): AdminRoute(
                self._of("user", self._revoke_sessions), "RevokeUserSessions", stored_name=name_of_user
            ),
            ("GET", "roles"): AdminRoute(self._of("role", self._list), looks_at=Operation.LIST_ROLES),
            ("POST", "roles"): AdminRoute(self._create_role, "CreateRole"),
            ("GET", "roles", "*"): AdminRoute(
                self._show_role, looks_at=Operation.GET_ROLE, stored_name=name_of_role
            ),
            ("POST", "roles", "*"): AdminRoute(self._update_role, "UpdateRole", stored_name=name_of_role),
            ("DELETE", "roles", "*"): AdminRoute(
                self._of("role", self._delete), "DeleteRole", stored_name=name_of_role
            ),
            ("POST", "roles", "*", "policy"): AdminRoute(
                self._of("role", self._put_policy), "PutRolePolicy", stored_name=name_of_role
            ),
            ("DELETE", "roles", "*", "policy"): AdminRoute(
                self._of("role", self._delete_policy), "DeleteRolePolicy", stored_name=name_of_role
            ),
            ("POST", "roles", "*", "revoke-sessions"): AdminRoute(
                self._of("role", self._revoke_sessions), "RevokeRoleSessions", stored_name=name_of_role
            ),
        }

    @staticmethod
    def _of(kind: Kind, handler: Callable[[Kind, AdminCall], Awaitable[Mapping[str, Any]]]) -> Handler:
        return partial(handler, kind)

    def _stored_name(self, kind: Kind, call: AdminCall) -> str:
        identity = self._identities.find(kind, call.owner, call.name)
        return call.name if identity is None else identity.row.name

    # Both

    async def _list(self, kind: Kind, call: AdminCall) -> Mapping[str, Any]:
        limit = call.number("limit", PAGE_MAX, largest=PAGE_MAX)
        after = call.query.get("next_token", "")
        found = self._identities.list_page(kind, call.owner, after, limit + 1)
        return _page(f"{kind}s", [_short_row(identity) for identity in found], limit)

    async def _delete(self, kind: Kind, call: AdminCall) -> Mapping[str, Any]:
        identity = await self._identities.delete(kind, call.owner, call.name)
        if kind == "user":
            await self._accounts.drop_keys_of_deleted_users()
        return {"account_id": identity.row.account_id, "name": identity.row.name, "deleted": True}

    async def _put_policy(self, kind: Kind, call: AdminCall) -> Mapping[str, Any]:
        name, text = call.text("policy_name"), call.text("policy")
        return _row(await self._identities.put_policy(kind, call.owner, call.name, name, text))

    async def _delete_policy(self, kind: Kind, call: AdminCall) -> Mapping[str, Any]:
        return _row(await self._identities.delete_policy(kind, call.owner, call.name, _policy_of(call)))

    async def _revoke_sessions(self, kind: Kind, call: AdminCall) -> Mapping[str, Any]:
        return _row(await self._identities.revoke_sessions(kind, call.owner, call.name))

    # Users

    async def _create_user(self, call: AdminCall) -> Mapping[str, Any]:
        account_id = call.owner
        has_key = call.fields.get("key", True)
        if not isinstance(has_key, bool):
            raise InvalidParameterValue.of("key", has_key, "Must be true or false.")
        user = await self._identities.create_user(account_id, call.text("name"), call.text("path", "/"))
        if not has_key:
            return _row(user)
        try:
            key = await self._accounts.create_access_key(account_id, "default", user=user.row.name)
        except CallerError:
            # Whoever is refused may ask again, once there is room for the key.
            await self._identities.delete("user", account_id, user.row.name)
            raise
        return {
            **_row(user),
            "access_key_id": key.access_key_id,
            "secret_access_key": key.secret,
        }

    async def _show_user(self, call: AdminCall) -> Mapping[str, Any]:
        account_id = call.owner
        user = self._identities.user(account_id, call.name)
        if user is None:
            raise ResourceNotFound(f"The account {account_id} has no user {call.name}.")
        keys = self._accounts.list_user_keys(account_id, call.name)
        used = await last_uses(self._key_uses, [key.access_key_id for key in keys])
        listed = [
            {"access_key_id": key.access_key_id, "enabled": key.is_enabled} | used(key.access_key_id)
            for key in keys
        ]
        return {**_row(user), "keys": listed}

    # Roles

    async def _create_role(self, call: AdminCall) -> Mapping[str, Any]:
        role = await self._identities.create_role(
            call.owner,
            call.text("name"),
            call.text("trust_policy"),
            path=call.text("path", "/"),
            session_max_s=call.integer("session_max_s", 3_600),
        )
        return _row(role)

    async def _show_role(self, call: AdminCall) -> Mapping[str, Any]:
        account_id = call.owner
        role = self._identities.role(account_id, call.name)
        if role is None:
            raise ResourceNotFound(f"The account {account_id} has no role {call.name}.")
        stale = self._identities.stale_names(role.trust_policy, role.row.trusted_ids)
        return {**_row(role), "stale": stale}

    async def _update_role(self, call: AdminCall) -> Mapping[str, Any]:
        fields = call.fields
        role = await self._identities.update_role(
            call.owner,
            call.name,
            trust_policy=call.text("trust_policy") if "trust_policy" in fields else None,
            session_max_s=call.integer("session_max_s") if "session_max_s" in fields else None,
        )
        return _row(role)


def _policy_of(call: AdminCall) -> str:
    name = call.query.get("policy_name")
    if not name:
        raise MissingParameter("policy_name")
    return name


def _page(noun: str, rows: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    return {noun: rows[:limit], "next_token": rows[limit - 1]["name"] if len(rows) > limit else None}


def _short_row(identity: Identity) -> dict[str, Any]:
    row = identity.row
    return {
        "account_id": row.account_id,
        "name": row.name,
        "path": row.path,
        "id": identity.unique_id,
        "arn": identity.arn,
        "created_ms": row.created_ms,
    }


def _row(identity: Identity) -> dict[str, Any]:
    """Return a user or role with its policies; of a role, its trust policy, too."""
    shown, problems = _short_row(identity), _problems(identity)
    if isinstance(identity, Role):
        shown |= {"trust_policy": identity.row.trust_policy, "session_max_s": identity.row.session_max_s}
        if isinstance(identity.trust_policy, UnreadablePolicy):
            problems["trust policy"] = str(identity.trust_policy.why)
    return {**shown, "policies": identity.row.policies, "problems": problems}


def _problems(identity: Identity) -> dict[str, str]:
    """Return why each stored policy that does not compile does not."""
    names = zip(identity.row.policies, identity.policies, strict=True)
    return {name: str(policy.why) for name, policy in names if isinstance(policy, UnreadablePolicy)}
