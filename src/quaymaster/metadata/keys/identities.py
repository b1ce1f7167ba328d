"""Users and roles that can be changed: each is one row, and each change one transaction.

    create ──▶ there ──policies, sessions revoked──▶ there ──delete──▶ gone; a new one of its name has another id

Policies are compiled before they are stored: one that cannot be evaluated is refused. A role's trust policy is bound to
the users and roles that it names as they are when it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from quaymaster.coordination.interface import (
    TRANSACTION_OPERATIONS_MAX,
    Compare,
    Put,
    RevisionMismatch,
)
from quaymaster.core.access.errors import PolicyError
from quaymaster.core.access.kinds import PolicyKind
from quaymaster.core.access.policies import (
    IDENTITY_POLICY_BYTES_MAX,
    TRUST_POLICY_BYTES_MAX,
    CompiledPolicy,
    PolicyInForce,
    check_policy_bytes,
    compile_policy,
)
from quaymaster.core.values.errors import (
    InvalidParameterValue,
    LimitExceeded,
    Overloaded,
    ResourceNotFound,
)
from quaymaster.core.values.formats import FRONT_DOOR, CellFormat
from quaymaster.metadata.keys.known_accounts import KnownAccounts
from quaymaster.metadata.keys.known_identities import (
    Identity,
    IdentityKind,
    IdentityTable,
    KnownIdentities,
    Role,
    User,
    suffix_of,
)
from quaymaster.metadata.keys.name_binding import BoundNames, NameBinding, NoSuchIdentity
from quaymaster.metadata.keys.random_ids import random_generation, random_id
from quaymaster.metadata.store.authorization_floor import raised_floor
from quaymaster.metadata.store.mirror import Mirror
from quaymaster.metadata.store.quotas import Quotas
from quaymaster.metadata.store.rows import RoleRow, UserRow, encode_row

POLICIES_MAX: Final = 10
ROLE_SESSION_MIN_S: Final = 3_600
ROLE_SESSION_MAX_S: Final = 43_200
ATTEMPTS_MAX: Final = 16
"""So often a change is tried that others get ahead of."""
_NAME: Final = re.compile(r"[A-Za-z0-9_+=,.@-]{1,64}", re.ASCII)
_POLICY_NAME: Final = re.compile(r"[A-Za-z0-9_+=,.@-]{1,128}", re.ASCII)
_PATH: Final = re.compile(r"/(?:[!-.0-~]+/)*", re.ASCII)
_PATH_CHARS_MAX: Final = 512


class Identities:
    """The users and roles of accounts. Raises ResourceNotFound for those that do not exist.

    Every change raises UnsupportedOperation in a cell of an older format, and Overloaded where others change the same
    all the time.
    """

    def __init__(
        self,
        known: KnownIdentities,
        accounts: KnownAccounts,
        mirror: Mirror,
        now_ms: Callable[[], int],
        *,
        quotas: Quotas | None = None,
        cell_format: CellFormat | None = None,
    ) -> None:
        self.known = known
        self.user = known.users.find
        self.role = known.roles.find
        self._accounts = accounts
        self._of_deleted: set[str] = set()
        """Accounts that were deleted while users or roles of theirs are left."""
        accounts.listeners.append(self._note_account)
        for table in (known.users, known.roles):
            table.listeners.append(self._note_identity)
        self._mirror = mirror
        self._binding = NameBinding(mirror, accounts, known)
        self._now_ms = now_ms
        self._quotas = quotas or Quotas()
        self._cell_format = cell_format or CellFormat()

    def find(self, kind: IdentityKind, account_id: str, name: str) -> User | Role | None:
        """Return a user or role by its name; None where there is none."""
        return self.known.of_kind(kind).find(account_id, name)

    def list_page(
        self, kind: IdentityKind, account_id: str, after: str, count_max: int
    ) -> Sequence[User | Role]:
        """Return users or roles of an account in order of their names: the first behind `after`, so many at most."""
        return self.known.of_kind(kind).list_page(account_id, after, count_max)

    # Users

    async def create_user(self, account_id: str, name: str, path: str = "/") -> User:
        """Make a user, without policies: it may do nothing yet. InvalidParameterValue, LimitExceeded."""
        _check_name("UserName", name, path)
        users = self.known.users
        for _ in range(ATTEMPTS_MAX):
            account = self._check_new(users, account_id, name, "UserName")
            self._check_room(users, account_id, "users", "account_users_max", self._quotas.account_users_max)
            row = UserRow(account_id, name, random_id("AIDA", 17), self._now_ms(), path)
            with suppress(RevisionMismatch):
                return await self._put(users, User(row), [account, _absent(users, row)])
        raise Overloaded

    # Roles

    async def create_role(
        self,
        account_id: str,
        name: str,
        trust_policy: str,
        *,
        path: str = "/",
        session_max_s: int = ROLE_SESSION_MIN_S,
    ) -> Role:
        """Make a role, without policies. InvalidParameterValue, LimitExceeded."""
        _check_name("RoleName", name, path)
        _check_session_max(session_max_s)
        self._check_format()
        roles = self.known.roles
        for _ in range(ATTEMPTS_MAX):
            trusted = await self._bind(trust_policy)
            account = self._check_new(roles, account_id, name, "RoleName")
            self._check_room(roles, account_id, "roles", "account_roles_max", self._quotas.account_roles_max)
            row = RoleRow(
                account_id,
                name,
                random_id("AROA", 17),
                self._now_ms(),
                trust_policy,
                path,
                session_max_s,
                trusted.ids,
            )
            with suppress(RevisionMismatch):
                unchanged = [account, _absent(roles, row), *trusted.unchanged]
                return await self._put(roles, Role(row), unchanged)
        raise Overloaded

    async def update_role(
        self, account_id: str, name: str, *, trust_policy: str | None = None, session_max_s: int | None = None
    ) -> Role:
        """Change who may assume a role, and for how long at most. Sessions there are go on."""
        changes: dict[str, Any] = {}
        if session_max_s is not None:
            _check_session_max(session_max_s)
            changes["session_max_s"] = session_max_s
        roles = self.known.roles
        if trust_policy is None:
            return await self._change(roles, account_id, name, _set(changes))
        for _ in range(ATTEMPTS_MAX):
            trusted = await self._bind(trust_policy)
            bound = changes | {"trust_policy": trust_policy, "trusted_ids": trusted.ids}
            changed = await self._try_change(roles, account_id, name, _set(bound), trusted.unchanged)
            if changed is not None:
                return changed
        raise Overloaded

    # Both

    async def put_policy(
        self, kind: IdentityKind, account_id: str, name: str, policy_name: str, text: str
    ) -> User | Role:
        """Give a user or role an identity policy, in place of the one with this name; InvalidParameterValue."""
        _check_policy(policy_name, text)
        return await self._change_of(
            kind, account_id, name, lambda row: {"policies": _with(row.policies, policy_name, text)}
        )

    async def delete_policy(
        self, kind: IdentityKind, account_id: str, name: str, policy_name: str
    ) -> User | Role:
        """Take an identity policy from a user or role."""
        return await self._change_of(
            kind, account_id, name, lambda row: {"policies": _without(row.policies, policy_name)}
        )

    async def revoke_sessions(self, kind: IdentityKind, account_id: str, name: str) -> User | Role:
        """Refuse all temporary credentials that a user has, or that were given for a role, until now."""
        # Not one more than before: a store that went back would give that number twice.
        generation = random_generation()
        return await self._change_of(kind, account_id, name, _set({"sessions_generation": generation}))

    async def set_password(self, account_id: str, name: str, hashed: str) -> User:
        """Give a user a password, of which this is the hash; empty: none. Its temporary credentials are refused."""
        generation = random_generation()
        return await self._change(
            self.known.users, account_id, name, _set({"password": hashed, "sessions_generation": generation})
        )

    async def delete(self, kind: IdentityKind, account_id: str, name: str) -> User | Role:
        """Delete a user or role; its sessions, and a user's keys, are refused from then on."""
        table, suffix = self.known.of_kind(kind), suffix_of(account_id, name)
        for _ in range(ATTEMPTS_MAX):
            unchanged = table.rows.compare(suffix)
            identity: User | Role = self._existing(table, account_id, name)
            with suppress(RevisionMismatch):
                await self._mirror.transact(
                    [unchanged], raised_floor(self._cell_format), [table.prefix + suffix]
                )
                return identity
        raise Overloaded

    def stale_names(self, policy: PolicyInForce | None, bound: Mapping[str, str]) -> list[str]:
        """Return the names in a policy that others have now than when it was written and bound to ids."""
        if not isinstance(policy, CompiledPolicy):
            return []
        return [arn for arn, now in self.known.unique_ids(policy.identities).items() if bound.get(arn) != now]

    async def drop_those_of_deleted_accounts(self) -> None:
        """Delete the users and roles that are left of accounts that were deleted."""
        for account_id in tuple(self._of_deleted):
            for table in (self.known.users, self.known.roles):
                while page := table.list_page(account_id, "", TRANSACTION_OPERATIONS_MAX):
                    keys = [table.prefix + suffix_of(account_id, each.row.name) for each in page]
                    await self._mirror.transact([], deletes=keys)
            self._of_deleted.discard(account_id)

    def _note_account(self, account_id: str) -> None:
        if self._accounts.is_deleted(account_id) and (
            self.known.users.count(account_id) or self.known.roles.count(account_id)
        ):
            self._of_deleted.add(account_id)

    def _note_identity(self, suffix: str) -> None:
        self._note_account(suffix.partition("/")[0])

    # How

    def _check_new(
        self, table: IdentityTable[User] | IdentityTable[Role], account_id: str, name: str, parameter: str
    ) -> Compare:
        """Return the condition that the account stays as it is; raise where the name cannot be given."""
        self._check_format()
        account = self._accounts.account(account_id)
        if account is None:
            raise ResourceNotFound(f"The account {account_id} does not exist.")
        if table.known(account_id, name) is not None:
            raise InvalidParameterValue.of(
                parameter, name, "Already exists; names are compared without case."
            )
        return self._accounts.rows.compare(account_id)

    def _check_room(
        self,
        table: IdentityTable[User] | IdentityTable[Role],
        account_id: str,
        what: str,
        setting: str,
        count_max: int,
    ) -> None:
        if table.count(account_id) >= count_max:
            raise LimitExceeded(f"An account may have {count_max} {what} ({setting}).")

    async def _put(
        self,
        table: IdentityTable[Identity],
        identity: Identity,
        compares: list[Compare],
        raised: Sequence[Put] = (),
    ) -> Identity:
        """Store an identity; `raised`: the floor, unless it is a new one, which takes nothing away."""
        row = identity.row
        key = table.prefix + suffix_of(row.account_id, row.name)
        await self._mirror.transact(compares, [Put(key, encode_row(row)), *raised])
        return identity

    async def _change_of(
        self,
        kind: IdentityKind,
        account_id: str,
        name: str,
        change: Callable[[UserRow | RoleRow], Mapping[str, Any]],
    ) -> User | Role:
        changed: User | Role = await self._change(self.known.of_kind(kind), account_id, name, change)
        return changed

    async def _change(
        self,
        table: IdentityTable[Identity],
        account_id: str,
        name: str,
        change: Callable[[UserRow | RoleRow], Mapping[str, Any]],
    ) -> Identity:
        """Store the fields that `change` returns for the row as it is."""
        for _ in range(ATTEMPTS_MAX):
            changed = await self._try_change(table, account_id, name, change)
            if changed is not None:
                return changed
        raise Overloaded

    async def _try_change(
        self,
        table: IdentityTable[Identity],
        account_id: str,
        name: str,
        change: Callable[[UserRow | RoleRow], Mapping[str, Any]],
        others: Sequence[Compare] = (),
    ) -> Identity | None:
        """Store it if the row, and `others`, are as they were; else return None."""
        unchanged = table.rows.compare(suffix_of(account_id, name))
        identity = self._existing(table, account_id, name)
        changed = type(identity)(msgspec.structs.replace(identity.row, **change(identity.row)))
        with suppress(RevisionMismatch):
            return await self._put(table, changed, [unchanged, *others], raised_floor(self._cell_format))
        return None

    def _existing(self, table: IdentityTable[Identity], account_id: str, name: str) -> Identity:
        self._check_format()
        identity = table.find(account_id, name)
        if identity is None:
            raise ResourceNotFound(f"The account {account_id} has no {table.noun} {name}.")
        return identity

    async def _bind(self, trust_policy: str) -> BoundNames:
        """Bind the users and roles that a trust policy names; InvalidParameterValue."""
        try:
            check_policy_bytes(trust_policy, TRUST_POLICY_BYTES_MAX)
            named = compile_policy(trust_policy, PolicyKind.TRUST).identities
            return await self._binding.bind(named)
        except (PolicyError, NoSuchIdentity) as error:
            raise _wrong_policy("trust policy", str(error)) from None

    def _check_format(self) -> None:
        self._cell_format.require(FRONT_DOOR, "There are users and roles")


def _set(fields: Mapping[str, Any]) -> Callable[[UserRow | RoleRow], Mapping[str, Any]]:
    """Return a change that is the same whatever the row is."""
    return lambda _: fields


def _absent(table: IdentityTable[User] | IdentityTable[Role], row: UserRow | RoleRow) -> Compare:
    return Compare(table.prefix + suffix_of(row.account_id, row.name), 0)


def _check_name(parameter: str, name: str, path: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise InvalidParameterValue.of(
            parameter, name[:64], "Must be 1 to 64 letters, digits and characters of _+=,.@- each."
        )
    if len(path) > _PATH_CHARS_MAX or _PATH.fullmatch(path) is None:
        raise InvalidParameterValue.of(
            "Path", path[:64], f"Must begin and end with /, and have at most {_PATH_CHARS_MAX} characters."
        )


def _check_policy(name: str, text: str) -> None:
    if _POLICY_NAME.fullmatch(name) is None:
        raise InvalidParameterValue.of(
            "PolicyName", name[:64], "Must be 1 to 128 letters, digits and characters of _+=,.@- each."
        )
    try:
        check_policy_bytes(text, IDENTITY_POLICY_BYTES_MAX)
        compile_policy(text, PolicyKind.IDENTITY)
    except PolicyError as error:
        raise _wrong_policy(name, str(error)) from None


def _wrong_policy(name: str, why: str) -> InvalidParameterValue:
    return InvalidParameterValue.of("PolicyDocument", name, why)


def _check_session_max(session_max_s: int) -> None:
    if not ROLE_SESSION_MIN_S <= session_max_s <= ROLE_SESSION_MAX_S:
        raise InvalidParameterValue.of(
            "MaxSessionDuration",
            session_max_s,
            f"Must be between {ROLE_SESSION_MIN_S} and {ROLE_SESSION_MAX_S} seconds.",
        )


def _with(policies: dict[str, str], name: str, text: str) -> dict[str, str]:
    changed = {**policies, name: text}
    if len(changed) > POLICIES_MAX:
        raise LimitExceeded(f"A user or role may have {POLICIES_MAX} policies.")
    return changed


def _without(policies: dict[str, str], name: str) -> dict[str, str]:
    if name not in policies:
        raise ResourceNotFound(f"There is no policy {name}.")
    return {known: text for known, text in policies.items() if known != name}
