"""The users and roles of accounts, as the mirror has their rows: found by name, their policies compiled when asked for.

    arn:aws:iam::ACCOUNT:user/path/name     ─▶ /users/ACCOUNT/name      the path must be the user's
    arn:aws:iam::ACCOUNT:role/path/name     ─▶ /roles/ACCOUNT/name
    arn:aws:sts::ACCOUNT:assumed-role/name/session ─▶ the role

Names are compared without case, as IAM does; ARNs with it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

from quaymaster.coordination.interface import Compare
from quaymaster.core.access.kinds import PolicyKind
from quaymaster.core.access.policies import PolicyInForce, read_policy
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.rows import ROLES, USERS, RoleRow, UserRow, row_decoder

IDENTITIES_PAGE_MAX: Final = 1_000
IdentityKind = Literal["user", "role"]

Row = TypeVar("Row", bound=UserRow | RoleRow)


class StoredIdentity(Generic[Row]):
    """A user or role with its policies. A change of the row makes another object."""

    noun: ClassVar[IdentityKind]

    def __init__(self, row: Row) -> None:
        self.row: Row = row

    @property
    def full_name(self) -> str:
        """The name with its path, as in the ARN."""
        return self.row.path[1:] + self.row.name

    @property
    def arn(self) -> str:
        """The ARN that policies name."""
        return f"arn:aws:iam::{self.row.account_id}:{self.noun}/{self.full_name}"

    @cached_property
    def policies(self) -> tuple[PolicyInForce, ...]:
        """The identity policies in force."""
        return tuple(read_policy(text, PolicyKind.IDENTITY) for text in self.row.policies.values())


class User(StoredIdentity[UserRow]):
    """A user of an account."""

    noun = "user"

    @property
    def unique_id(self) -> str:
        """The id that no other user ever has."""
        return self.row.user_id


class Role(StoredIdentity[RoleRow]):
    """A role of an account."""

    noun = "role"

    @property
    def unique_id(self) -> str:
        """The id that no other role ever has."""
        return self.row.role_id

    @cached_property
    def trust_policy(self) -> PolicyInForce:
        """The trust policy in force: it says who may assume the role."""
        return read_policy(self.row.trust_policy, PolicyKind.TRUST, self.row.trusted_ids)


Identity = TypeVar("Identity", User, Role)


class IdentityTable(Generic[Identity]):
    """The identities of one kind. `on_missing` is asked for those that are not in memory."""

    def __init__(self, mirror: Mirror, prefix: str, noun: str, decode: Callable[[bytes], Identity]) -> None:
        self.prefix = prefix
        self.noun = noun
        self.rows: MirrorTable[Identity] = mirror.table(prefix, decode, self._on_change)
        self.on_missing: Callable[[str], None] = lambda key: None
        self.listeners: list[Callable[[str], None]] = []
        """Hear of each row that changed, by its account and name."""
        self._names: dict[str, list[str]] = {}
        """Of each account, in lower case, in order."""

    def find(self, account_id: str, name: str) -> Identity | None:
        """Return an identity by its name; None where there is none. What `on_missing` raises passes."""
        suffix = suffix_of(account_id, name)
        found = self.rows.get(suffix)
        if found is None:
            self.on_missing(self.prefix + suffix)
        return found

    def known(self, account_id: str, name: str) -> Identity | None:
        """Return an identity that is in memory."""
        return self.rows.get(suffix_of(account_id, name))

    def count(self, account_id: str) -> int:
        """Return how many an account has."""
        return len(self._names.get(account_id, ()))

    def list_page(self, account_id: str, after: str, count_max: int) -> list[Identity]:
        """Return identities of an account in order of their names: the first behind `after`, so many at most."""
        names = self._names.get(account_id, [])
        start = bisect_right(names, after.lower())
        found = (self.known(account_id, name) for name in names[start : start + count_max])
        return [identity for identity in found if identity is not None]

    def _on_change(self, suffix: str, old: Identity | None, new: Identity | None) -> None:
        account_id, _, name = suffix.partition("/")
        if old is None:
            insort(self._names.setdefault(account_id, []), name)
        if new is None:
            names = self._names[account_id]
            del names[bisect_left(names, name)]
            if not names:
                del self._names[account_id]
        for listener in self.listeners:
            listener(suffix)


class KnownIdentities:
    """Users and roles that are looked up. Everything answers from RAM."""

    def __init__(self, mirror: Mirror) -> None:
        decode_user, decode_role = row_decoder(UserRow), row_decoder(RoleRow)
        self.users: IdentityTable[User] = IdentityTable(
            mirror, USERS, "user", lambda data: User(decode_user(data))
        )
        self.roles: IdentityTable[Role] = IdentityTable(
            mirror, ROLES, "role", lambda data: Role(decode_role(data))
        )

    def of_kind(self, kind: str) -> IdentityTable[Any]:
        """Return the users, or the roles; so does the kind of a session's ARN."""
        return self.users if kind == "user" else self.roles

    def unique_ids(self, arns: Iterable[str]) -> dict[str, str]:
        """Return the ids of the users and roles that there are among those named by ARN."""
        found = {}
        for arn in arns:
            unique_id = self._unique_id(arn)
            if unique_id is not None:
                found[arn] = unique_id
        return found

    def compare(self, arn: str) -> Compare:
        """Return the condition that the row of the user or role that an ARN may name is still as it is here."""
        account_id, kind, full_name = _parts(arn)
        return self.of_kind(kind).rows.compare(suffix_of(account_id, _short_name(kind, full_name)))

    def _unique_id(self, arn: str) -> str | None:
        account_id, kind, full_name = _parts(arn)
        name = _short_name(kind, full_name)
        identity: User | Role | None = self.of_kind(kind).known(account_id, name)
        if identity is None:
            return None
        is_meant = identity.row.name == name if kind == "assumed-role" else identity.full_name == full_name
        return identity.unique_id if is_meant else None


def _parts(arn: str) -> tuple[str, str, str]:
    """Return account, kind and full name of the user, role or session that an ARN names."""
    account_id, resource = arn.split(":", 5)[4:]
    kind, _, full_name = resource.partition("/")
    return account_id, kind, full_name


def _short_name(kind: str, full_name: str) -> str:
    return full_name.partition("/")[0] if kind == "assumed-role" else full_name.rpartition("/")[2]


def suffix_of(account_id: str, name: str) -> str:
    """Return where an identity is stored below the prefix of its kind."""
    return f"{account_id}/{name.lower()}"
