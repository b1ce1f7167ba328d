"""Who asks, as the steps after authentication see it: an account's root key, or a user with its policies."""

from __future__ import annotations

from typing import Protocol, Self

import msgspec

from quaymaster.core.access.policies import CompiledPolicy, PolicyInForce
from quaymaster.core.access.principals import Requester


class IdentityInForce(Protocol):
    """A user as metadata keeps it; a change of it makes another object."""

    @property
    def unique_id(self) -> str: ...

    @property
    def full_name(self) -> str: ...

    @property
    def policies(self) -> tuple[PolicyInForce, ...]: ...


class Principal(msgspec.Struct, frozen=True, gc=False):
    """Who is asking, by which key.

    `sender_id` is what receivers see as SenderId: the user's id, of a root key one of its own. `policies` are those of
    the identity; root keys need none.
    """

    account_id: str
    access_key_id: str
    sender_id: str
    requester: Requester
    is_root: bool
    policies: tuple[PolicyInForce, ...] = ()
    session_policy: CompiledPolicy | None = None
    issued_ms: int | None = None
    """When its temporary credentials were made."""

    @classmethod
    def of_root(cls, account_id: str, access_key_id: str, sender_id: str) -> Self:
        """Return the principal of an account's root key."""
        return cls(account_id, access_key_id, sender_id, Requester(account_id), is_root=True)

    @classmethod
    def of_user(cls, account_id: str, access_key_id: str, user: IdentityInForce) -> Self:
        """Return the principal of a user's key."""
        requester = Requester(account_id, "user", user.unique_id, user.full_name)
        return cls(
            account_id, access_key_id, user.unique_id, requester, is_root=False, policies=user.policies
        )
