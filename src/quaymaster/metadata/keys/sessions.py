"""Sessions: temporary credentials, whose token has all that is known of them. Nothing of a session is stored.

    create, of_caller, begin ──token──▶ client ──signs, and sends the token along──▶ find ──▶ Session
                                                                                        │
                                    the rows of today: access key · account · user or role

A session ends at its time, and at once when its access key is disabled, deleted, or given a new secret, when its user
or role is deleted or its sessions are revoked, or when its account is disabled. An enabled key begins new sessions;
those of before stay ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from quaymaster.core.access.errors import PolicyError
from quaymaster.core.access.kinds import PolicyKind
from quaymaster.core.access.policies import CompiledPolicy, PolicyInForce, compile_policy
from quaymaster.core.access.principals import Requester
from quaymaster.core.values.errors import (
    ExpiredToken,
    InvalidClientTokenId,
    InvalidParameterValue,
    NotNow,
    UnsupportedOperation,
)
from quaymaster.core.values.written_times import CLOCKS_DIFFER_MAX_MS, has_passed
from quaymaster.metadata.keys.accounts import AccessKey, Accounts, random_secret
from quaymaster.metadata.keys.identities import Identities
from quaymaster.metadata.keys.known_identities import Role, User
from quaymaster.metadata.keys.random_ids import random_id
from quaymaster.metadata.keys.session_keys import SessionKeys
from quaymaster.protocol.tokens.session_tokens import SessionContent, unpack_policy

SESSION_MIN_MS: Final = 60_000
SESSION_MAX_MS: Final = 36 * 3_600_000
SESSION_PREFIX: Final = "ASIA"
"""Of the access key ids of sessions."""
ROWS_AGE_MAX_MS: Final = 4_000
"""Older rows allow no session of a role, and no operator one of a key: what they allow may have been revoked, and
others would honor the session for hours. What a key or user gets for itself needs no such rows: each use is judged."""
OPENED_MAX: Final = 4_096
"""Tokens that are remembered with their content, of 10 KB each."""


class Session(msgspec.Struct, frozen=True):
    """Temporary credentials that are good now. `principal_id` is what receivers see as SenderId.

    `identity` is the user or role whose they are, None for a root key's; `policy` the session policy.
    """

    content: SessionContent
    requester: Requester
    principal_id: str
    identity: User | Role | None
    policy: CompiledPolicy | None

    def __repr__(self) -> str:
        return f"Session({self.content!r})"

    __str__ = __repr__

    @property
    def access_key_id(self) -> str:
        return self.content.access_key_id

    @property
    def account_id(self) -> str:
        return self.content.account_id

    @property
    def secret(self) -> str:
        return self.content.secret

    @property
    def policies(self) -> tuple[PolicyInForce, ...]:
        """The policies of the user or role."""
        return () if self.identity is None else self.identity.policies

    @property
    def issued_ms(self) -> int:
        return self.content.issued_ms

    @property
    def parent_id(self) -> str:
        return self.content.parent_id

    @property
    def parent_rotated_ms(self) -> int:
        return self.content.parent_rotated_ms


class NewSession(msgspec.Struct, frozen=True):
    """Temporary credentials that were just made."""

    content: SessionContent
    token: str

    def __repr__(self) -> str:
        return f"NewSession({self.content!r})"

    __str__ = __repr__


class Sessions:
    """Makes sessions, and finds those of tokens. `now_ms` is the wall clock; `age_ms`: how old the rows may be."""

    def __init__(
        self,
        keys: SessionKeys,
        accounts: Accounts,
        identities: Identities,
        now_ms: Callable[[], int],
        *,
        age_ms: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._age_ms = age_ms
        self._keys = keys
        self._accounts = accounts
        self._identities = identities
        self._now_ms = now_ms
        self._opened: dict[str, Session] = {}

    def find(self, access_key_id: str, token: str) -> Session:
        """Return the session of a token, which a request has with this access key id. Answers from RAM.

        The same object while nothing has changed.

        Raises:
            InvalidClientTokenId: the token is none of this server, or its session has ended with its key or identity.
            ExpiredToken: its session has ended by its time.
            NotYetKnown: something is being asked for.
        """
        session = self._opened.get(token)
        content = self._keys.open(token) if session is None else session.content
        if content.access_key_id != access_key_id:
            raise InvalidClientTokenId
        length_ms = content.expires_ms - content.issued_ms
        if has_passed(content.issued_ms, length_ms, self._now_ms(), ahead_max_ms=CLOCKS_DIFFER_MAX_MS):
            self._opened.pop(token, None)
            raise ExpiredToken
        parent = self._parent_of(content)
        identity = self._identity_of(content)
        if session is not None and session.identity is identity:
            return session
        session = _session(content, parent, identity)
        if len(self._opened) >= OPENED_MAX:
            self._opened.clear()
        self._opened[token] = session
        return session

    def _parent_of(self, content: SessionContent) -> AccessKey | None:
        """Return the key that a session goes back to, None for a web identity's; InvalidClientTokenId if it ended."""
        if content.account_id in self._accounts.known.closed:
            raise InvalidClientTokenId
        if not content.parent_id:
            return None
        parent = self._accounts.access_key(content.parent_id)
        if parent is None or not parent.is_enabled or parent.rotated_ms != content.parent_rotated_ms:
            raise InvalidClientTokenId
        if content.kind == "root" and parent.sessions_generation != content.generation:
            raise InvalidClientTokenId
        return parent

    def _identity_of(self, content: SessionContent) -> User | Role | None:
        """Return the user or role whose session it is, None for root; InvalidClientTokenId if it is gone or revoked."""
        if content.kind == "root":
            return None
        find = self._identities.user if content.kind == "user" else self._identities.role
        identity: User | Role | None = find(content.account_id, content.name.rpartition("/")[2])
        if (
            identity is None
            or identity.unique_id != content.unique_id
            or identity.row.sessions_generation != content.generation
        ):
            raise InvalidClientTokenId
        return identity

    def create(self, access_key_id: str, duration_ms: int, packed_policy: bytes = b"") -> NewSession:
        """Make temporary credentials of a key: of whom the key belongs to, with all its permissions.

        `packed_policy`: the session policy; empty: there is none.

        Raises:
            InvalidParameterValue: they cannot last so long.
            ResourceNotFound: there is no such key.
            UnsupportedOperation: it is disabled, temporary, of a user that is gone or of a disabled account, or the
                cell is of an older format.
            NotYetKnown: its user is being asked for.
            NotNow: the rows here are too old.
        """
        if not SESSION_MIN_MS <= duration_ms <= SESSION_MAX_MS:
            raise InvalidParameterValue.of(
                "DurationSeconds",
                duration_ms // 1000,
                f"Must be between {SESSION_MIN_MS // 1000} and {SESSION_MAX_MS // 1000}.",
            )
        if access_key_id.startswith(SESSION_PREFIX):
            raise UnsupportedOperation(f"{access_key_id} is temporary itself; use the key it was made of.")
        self._check_age()
        key = self._accounts.existing_key(access_key_id)
        if not key.is_enabled:
            raise UnsupportedOperation(f"The access key {access_key_id} is disabled.")
        if key.account_id in self._accounts.known.closed:
            raise UnsupportedOperation(f"The account {key.account_id} is disabled.")
        requester = Requester(key.account_id)
        if key.user:
            user = self._identities.user(key.account_id, key.user)
            if user is None or user.unique_id != key.principal_id:
                raise UnsupportedOperation(f"The user {key.user} of {access_key_id} was deleted.")
            requester = Requester(key.account_id, "user", user.unique_id, user.full_name)
        return self.of_caller(requester, (access_key_id, key.rotated_ms), duration_ms, packed_policy)

    def of_caller(
        self,
        requester: Requester,
        parent: tuple[str, int],
        duration_ms: int,
        packed_policy: bytes = b"",
    ) -> NewSession:
        """Make temporary credentials of a user or root that asks with a key.

        Also of old rows: no policy allows it, and at each use the session may what its key and user may then. They end
        it where the key was disabled, the user deleted or its sessions revoked before it was made, too: what the rows
        here said of them then is in the token.

        `parent`: the key, and when it was changed last; ("", 0) where a user's password got them.
        InvalidClientTokenId if the user is gone; NotYetKnown;
        UnsupportedOperation in a cell of an older format.
        """
        generation = self._accounts.sessions_generation(parent[0])
        if requester.kind == "user":
            user = self._identities.user(requester.account_id, requester.name.rpartition("/")[2])
            if user is None or user.unique_id != requester.unique_id:
                raise InvalidClientTokenId
            generation = user.row.sessions_generation
        return self._make(requester, parent, duration_ms, generation, packed_policy)

    def find_role(self, account_id: str, full_name: str) -> Role | None:
        """Return a role of an account that is not disabled, by its name with its path; NotYetKnown."""
        if account_id in self._accounts.known.closed:
            return None
        role = self._identities.role(account_id, full_name.rpartition("/")[2])
        return None if role is None or role.full_name != full_name else role

    def begin(
        self,
        requester: Requester,
        parent: tuple[str, int],
        duration_ms: int,
        generation: int,
        packed_policy: bytes = b"",
    ) -> NewSession:
        """Make a session of a role that a requester may assume.

        `parent`: as of `of_caller`; ("", 0) for a web identity. `generation`: of the user's or role's sessions.
        UnsupportedOperation in a cell of an older format; NotNow when the rows here are too old.
        """
        self._check_age()
        return self._make(requester, parent, duration_ms, generation, packed_policy)

    def _check_age(self) -> None:
        if self._age_ms() > ROWS_AGE_MAX_MS:
            raise NotNow(
                "Temporary credentials are not made now: this front end has heard nothing of its metadata for too long."
            )

    def _make(
        self,
        requester: Requester,
        parent: tuple[str, int],
        duration_ms: int,
        generation: int,
        packed_policy: bytes = b"",
    ) -> NewSession:
        assert requester.kind != "web identity", "a web identity gets the session of a role"
        now_ms = self._now_ms()
        content = SessionContent(
            access_key_id=random_id(SESSION_PREFIX, 16),
            secret=random_secret(),
            account_id=requester.account_id,
            kind=requester.kind,
            unique_id=requester.unique_id,
            name=requester.name,
            session=requester.session,
            parent_id=parent[0],
            parent_rotated_ms=parent[1],
            issued_ms=now_ms,
            expires_ms=now_ms + duration_ms,
            generation=generation,
            packed_policy=packed_policy,
        )
        return NewSession(content, self._keys.mint(content))


def _session(content: SessionContent, parent: AccessKey | None, identity: User | Role | None) -> Session:
    requester = content.requester
    match requester.kind:
        case "root" if parent is not None and not parent.user:
            principal_id = parent.principal_id
        case "user":  # without a key, its password got it
            principal_id = requester.unique_id
        case "session":
            principal_id = f"{requester.unique_id}:{requester.session}"
        case _:
            raise InvalidClientTokenId
    policy = None
    if content.packed_policy:
        try:
            policy = compile_policy(unpack_policy(content.packed_policy), PolicyKind.IDENTITY)
        except PolicyError:  # a program of another version took it
            raise InvalidClientTokenId from None
    return Session(content, requester, principal_id, identity, policy)
