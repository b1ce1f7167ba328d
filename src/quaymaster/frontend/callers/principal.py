"""Who asks, as the steps after authentication see it: an account's root key, a user with its policies, or a session."""

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


class SessionInForce(Protocol):
    """Temporary credentials that are good now; a change of whose they are makes another object.

    `parent_id` is the long-lived access key that they go back to, as it was when it was changed at `parent_rotated_ms`;
    "" where a web identity got them.
    """

    @property
    def access_key_id(self) -> str: ...
    @property
    def secret(self) -> str: ...
    @property
    def principal_id(self) -> str: ...
    @property
    def requester(self) -> Requester: ...
    @property
    def policies(self) -> tuple[PolicyInForce, ...]: ...
    @property
    def policy(self) -> CompiledPolicy | None: ...
    @property
    def issued_ms(self) -> int: ...
    @property
    def parent_id(self) -> str: ...
    @property
    def parent_rotated_ms(self) -> int: ...


class Principal(msgspec.Struct, frozen=True, gc=False):
    """Who is asking, by which key.

    `sender_id` is what receivers see as SenderId: the user's id, of a root key one of its own. `policies` are those of
    the identity; root keys need none. `is_root`: it may do everything in its account, as a root session with a
    session policy may not. `parent_id` is the long-lived key that asks, or that temporary credentials go back to, as it
    was when it was changed at `parent_rotated_ms`.
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
    parent_id: str = ""
    parent_rotated_ms: int = 0

    @classmethod
    def of_root(cls, account_id: str, access_key_id: str, sender_id: str, rotated_ms: int = 0) -> Self:
        """Return the principal of an account's root key."""
        return cls(
            account_id,
            access_key_id,
            sender_id,
            Requester(account_id),
            is_root=True,
            parent_id=access_key_id,
            parent_rotated_ms=rotated_ms,
        )

    @classmethod
    def of_user(cls, account_id: str, access_key_id: str, user: IdentityInForce, rotated_ms: int = 0) -> Self:
        """Return the principal of a user's key."""
        requester = Requester(account_id, "user", user.unique_id, user.full_name)
        return cls(
            account_id,
            access_key_id,
            user.unique_id,
            requester,
            is_root=False,
            policies=user.policies,
            parent_id=access_key_id,
            parent_rotated_ms=rotated_ms,
        )

    @classmethod
    def of_session(cls, session: SessionInForce) -> Self:
        """Return the principal of temporary credentials."""
        requester = session.requester
        return cls(
            requester.account_id,
            session.access_key_id,
            session.principal_id,
            requester,
            is_root=requester.is_root and session.policy is None,
            policies=session.policies,
            session_policy=session.policy,
            issued_ms=session.issued_ms,
            parent_id=session.parent_id,
            parent_rotated_ms=session.parent_rotated_ms,
        )

    @property
    def is_session(self) -> bool:
        """Whether temporary credentials ask."""
        return self.issued_ms is not None
