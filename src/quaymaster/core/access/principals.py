"""Who asks, and whom a policy names.

    requester        layers, outer to inner                    names that mean them
    root key         account                                   "111122223333", arn:aws:iam::111122223333:root
    user             account, user                             arn:aws:iam::111122223333:user/path/name
    role session     account, role, session                    arn:aws:iam::111122223333:role/path/name,
                                                               arn:aws:sts::111122223333:assumed-role/name/session
    all of them                                                "*"
    web identity     the issuer of its token                   arn:aws:iam::111122223333:oidc-provider/ISSUER
                                                               (trust policies only; "*" does not mean it)

A name of a user or role is bound to its unique id: a new one with an old one's name gains nothing. A name that is bound
to none means no principal.

Source: IAM User Guide, "IAM JSON policy elements: Principal" and "NotPrincipal".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal

import msgspec

from quaymaster.core.access.documents import texts_of
from quaymaster.core.access.errors import PolicyElementIsUnknown, PolicyLacks, PolicyValueIsWrong
from quaymaster.core.access.kinds import PolicyKind

ALL: Final = "*"
_ACCOUNT: Final = re.compile(r"(?:arn:aws(?:-cn|-us-gov)?:iam::)?([0-9]{12})(:root)?", re.ASCII)
_IDENTITY: Final = re.compile(
    r"arn:aws(?:-cn|-us-gov)?:iam::[0-9]{12}:(?:user|role)/(?:[!-)+->@-~]+/)?[A-Za-z0-9_+=,.@-]{1,64}",
    re.ASCII,
)
_SESSION: Final = re.compile(
    r"arn:aws(?:-cn|-us-gov)?:sts::[0-9]{12}:assumed-role/[A-Za-z0-9_+=,.@-]{1,64}/([A-Za-z0-9_+=,.@-]{2,64})",
    re.ASCII,
)
_ISSUER: Final = re.compile(
    r"arn:aws(?:-cn|-us-gov)?:iam::([0-9]{12}):oidc-provider/([A-Za-z0-9][A-Za-z0-9._~:/-]{0,254})", re.ASCII
)
_SERVICE: Final = re.compile(r"[a-z0-9.-]{1,128}", re.ASCII)


class Requester(msgspec.Struct, frozen=True, gc=False):
    """Who asks. `unique_id` is the user's or the role's, `name` with its path; root has neither.

    A web identity has no account; its `name` is the issuer, `session` the token's subject.
    """

    account_id: str
    kind: Literal["root", "user", "session", "web identity"] = "root"
    unique_id: str = ""
    name: str = ""
    session: str = ""

    @property
    def is_root(self) -> bool:
        """Whether an account's root key asks."""
        return self.kind == "root"

    @property
    def arn(self) -> str:
        """The ARN that answers name."""
        if self.is_root:
            return f"arn:aws:iam::{self.account_id}:root"
        if self.kind == "user":
            return f"arn:aws:iam::{self.account_id}:user/{self.name}"
        if self.kind == "web identity":
            return f"{self.name}:{self.session}"
        role = self.name.rpartition("/")[2]
        return f"arn:aws:sts::{self.account_id}:assumed-role/{role}/{self.session}"

    @property
    def principal_arn(self) -> str:
        """The ARN in the key aws:PrincipalArn: a session's is its role's."""
        return f"arn:aws:iam::{self.account_id}:role/{self.name}" if self.kind == "session" else self.arn


class Naming(IntEnum):
    """How a statement names a requester.

    `INDIRECT`: by its account or role, so that within its account a policy of its own must allow what it asks for, or a
    session policy does not widen it.
    """

    NONE = 0
    INDIRECT = 1
    DIRECT = 2


@dataclass(frozen=True, slots=True)
class Principals:
    """Whom a statement names: all, or accounts, unique ids of users and roles, and sessions of role ids.

    `count` names stand there, `identities` are those of users, roles and sessions among them.
    """

    all: bool
    accounts: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()
    sessions: frozenset[tuple[str, str]] = frozenset()
    count: int = 1
    identities: tuple[str, ...] = ()
    issuers: frozenset[tuple[str, str]] = frozenset()
    """Of web identities: the account that the ARN names, and the issuer."""
    are_trusted: bool = False
    """Whether it stands in a trust policy."""

    def naming(self, requester: Requester, owner: str) -> Naming:
        """Return how a requester is named in the policy of an account's queue or role.

        An account's name means all of it in the policies of others. In its own it means its root alone; in a trust
        policy all of it, too. A role's name in a trust policy means its sessions as if they were named. A queue's `*`
        names all directly; a trust policy's leaves it to their accounts who of them may assume the role.
        """
        if requester.kind == "web identity":
            return Naming.DIRECT if (owner, requester.name) in self.issuers else Naming.NONE
        if self.all and not self.are_trusted:
            return Naming.DIRECT
        match requester.kind:
            case "user" if requester.unique_id in self.ids:
                return Naming.DIRECT
            case "session" if (requester.unique_id, requester.session) in self.sessions:
                return Naming.DIRECT
            case "session" if requester.unique_id in self.ids:
                return Naming.DIRECT if self.are_trusted else Naming.INDIRECT
        if self.all or (
            requester.account_id in self.accounts
            and (requester.is_root or self.are_trusted or requester.account_id != owner)
        ):
            return Naming.INDIRECT
        return Naming.NONE

    def spares(self, requester: Requester, owner: str) -> bool:
        """Tell whether NotPrincipal with these names leaves a requester out: each of its layers must be listed."""
        if requester.kind == "web identity":
            return (owner, requester.name) in self.issuers
        if self.all:
            return True
        if requester.account_id not in self.accounts:
            return False
        if requester.is_root:
            return True
        if requester.unique_id not in self.ids:
            return False
        return requester.kind == "user" or (requester.unique_id, requester.session) in self.sessions


def parse_principals(element: str, value: Any, kind: PolicyKind, unique_ids: Mapping[str, str]) -> Principals:
    """Return whom an element names. `unique_ids` has the ids of the identities that it names, by ARN.

    Raises:
        PolicyValueIsWrong, PolicyElementIsUnknown, PolicyLacks: the element is wrong.
    """
    is_trust = kind is PolicyKind.TRUST
    if value == ALL and isinstance(value, str):
        return Principals(all=True, are_trusted=is_trust)
    if not isinstance(value, dict):
        raise PolicyValueIsWrong(element, value, 'it must be "*" or an object')
    if not value:
        raise PolicyLacks(element, "AWS or Service")
    names: tuple[str, ...] = ()
    issuers: list[tuple[str, str]] = []
    count = 0
    for member, given in value.items():
        texts = texts_of(f"{element}.{member}", given)
        count += len(texts)
        if member == "AWS":
            names = texts
        elif member == "Federated" and is_trust:
            issuers += map(_parse_issuer, texts)
        elif member == "Service":
            for text in texts:
                if _SERVICE.fullmatch(text) is None:
                    raise PolicyValueIsWrong(f"{element}.Service", text, "it is not a service's name")
        else:
            raise PolicyElementIsUnknown(element, member)
    accounts: set[str] = set()
    ids: set[str] = set()
    sessions: set[tuple[str, str]] = set()
    identities: list[str] = []
    for name in names:
        if name == ALL:
            continue
        account = _ACCOUNT.fullmatch(name)
        session = _SESSION.fullmatch(name)
        if account is not None and name.startswith("arn:") == bool(account[2]):
            accounts.add(account[1])
            continue
        if session is None and _IDENTITY.fullmatch(name) is None:
            raise PolicyValueIsWrong(
                f"{element}.AWS", name, "it must be *, an account, or the ARN of a user, role or session"
            )
        identities.append(name)
        unique_id = unique_ids.get(name)
        if unique_id is None:
            continue
        if session is not None:
            sessions.add((unique_id, session[1]))
        else:
            ids.add(unique_id)
    return Principals(
        ALL in names,
        frozenset(accounts),
        frozenset(ids),
        frozenset(sessions),
        count,
        tuple(identities),
        frozenset(issuers),
        is_trust,
    )


def _parse_issuer(text: str) -> tuple[str, str]:
    match = _ISSUER.fullmatch(text)
    if match is None:
        raise PolicyValueIsWrong(
            "Principal.Federated",
            text,
            "it must be the ARN of an OpenID Connect provider (:oidc-provider/ISSUER)",
        )
    return match[1], match[2]
