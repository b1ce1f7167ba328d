"""Who is asking: the signature of a request is checked before anything else of it is read.

    signed   Authorization header or presigned query ──▶ access key ──▶ secret ──▶ signature holds ──▶ principal
    open     anything ──▶ the default account (loopback only, unless forced)

Keys are root keys of accounts, or keys of their users. What each may do is judged later: see `authorization`.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest
from typing import Final, Protocol

from quaymaster.core.values.errors import (
    CallerError,
    ExpiredToken,
    InvalidClientTokenId,
    MissingAuthenticationToken,
    NotNow,
    Overloaded,
)
from quaymaster.core.values.written_times import CLOCKS_DIFFER_MAX_MS, has_passed
from quaymaster.frontend.principal import IdentityInForce, Principal
from quaymaster.net.http.message import HTTPRequest
from quaymaster.net.http.strangers import peer_name
from quaymaster.protocol.sqs.sigv4 import Authorization, SigningKeys, declared_digest

REMEMBERED_PRINCIPALS_MAX: Final = 16_384
UNKNOWN_KEYS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Memory for requests of strangers that wait for the key that they name; no share of a connection counts them."""
UNKNOWN_KEY_COST_BYTES: Final = 256 * 1024
"""What each counts for with its body: so 128 may wait."""


class VerifyingKey(Protocol):
    """An access key as metadata keeps it."""

    @property
    def access_key_id(self) -> str: ...
    @property
    def secret(self) -> str: ...
    @property
    def account_id(self) -> str: ...
    @property
    def principal_id(self) -> str: ...
    @property
    def is_enabled(self) -> bool: ...
    @property
    def session_token(self) -> str | None: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def expires_ms(self) -> int | None: ...
    @property
    def user(self) -> str: ...


FindKey = Callable[[str], VerifyingKey | None]
FindUser = Callable[[str, str], IdentityInForce | None]
"""Finds a user of an account by name; may raise NotYetKnown."""


class Signed:
    """Checks signatures. `now_ms` is the wall clock."""

    def __init__(
        self,
        find_key: FindKey,
        find_user: FindUser,
        *,
        region: str,
        skew_ms: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._find_key = find_key
        self._find_user = find_user
        self._region = region
        self._now_ms = now_ms
        self._signing = SigningKeys(skew_ms=skew_ms)
        self._principals: dict[str, tuple[VerifyingKey, IdentityInForce | None, Principal]] = {}
        """By access key; made of these objects, and others when the key or its user has changed."""

    def authenticate(self, request: HTTPRequest) -> Principal:
        """Return who signed `request`.

        Raises:
            CallerError: not signed, by an unknown key, too long ago, or not this request.
        """
        authorization = self._read(request)
        key = self._find_key(authorization.access_key_id)
        if key is None or not key.is_enabled:
            raise InvalidClientTokenId
        digest = request.digest
        self._verify(authorization, key, request, None if digest is None else digest.hexdigest().encode())
        return self._principal(key)

    def renew(self, request: HTTPRequest) -> Principal:
        """Return who signed a request that was authenticated, as that is now; CallerError if it may sign no more."""
        key = self._find_key(self._read(request).access_key_id)
        if key is None or not key.is_enabled:
            raise InvalidClientTokenId
        return self._principal(key)

    def _principal(self, key: VerifyingKey) -> Principal:
        """Return whose key signed a request; InvalidClientTokenId where it is of a user that is gone."""
        user = None
        if key.user:
            user = self._find_user(key.account_id, key.user)
            if user is None or user.unique_id != key.principal_id:
                raise InvalidClientTokenId
        known = self._principals.get(key.access_key_id)
        if known is not None and known[0] is key and known[1] is user:
            return known[2]
        if len(self._principals) >= REMEMBERED_PRINCIPALS_MAX:
            self._principals.clear()
        if user is None:
            principal = Principal.of_root(key.account_id, key.access_key_id, key.principal_id)
        else:
            principal = Principal.of_user(key.account_id, key.access_key_id, user)
        self._principals[key.access_key_id] = key, user, principal
        return principal

    def judge_head(self, request: HTTPRequest) -> CallerError | NotNow | None:
        """Return why a request can be refused by its head alone, None when its body is to be read.

        It is not signed, or by a key that does not exist or is disabled: the body of such a request is not worth the
        memory. Where the head says what the body's digest is, the signature is verified, and the connection is known
        before the body comes. Of others the body is hashed as it comes in.
        """
        try:
            authorization = self._read(request)
            key = self._find_key(authorization.access_key_id)
            if key is None or not key.is_enabled:
                raise InvalidClientTokenId
            declared = declared_digest(request.first)
            if declared is not None:
                self._verify(authorization, key, request, declared)
                if not request.vouch(key.access_key_id):
                    return too_many_connections()
        except CallerError as error:
            return error
        except NotNow:  # the key is not known yet; the body has come when it is
            pass
        request.digest = sha256()
        return None

    def _read(self, request: HTTPRequest) -> Authorization:
        authorization = self._signing.parse(
            request.headers, request.query, region=self._region, first=request.first
        )
        if authorization is None:
            raise MissingAuthenticationToken
        return authorization

    def _verify(
        self, authorization: Authorization, key: VerifyingKey, request: HTTPRequest, body_sha256: bytes | None
    ) -> None:
        now_ms = self._now_ms()
        token = authorization.token
        if key.session_token is not None or token is not None:
            self._check_token(key, token, now_ms)
        self._signing.verify(
            authorization,
            method=request.method,
            raw_path=request.path,
            body=request.body,
            secret=key.secret,
            now_ms=now_ms,
            body_sha256=body_sha256,
        )

    def _check_token(self, key: VerifyingKey, token: str | None, now_ms: int) -> None:
        expected = key.session_token
        if (
            expected is None
            or token is None
            or not compare_digest(expected.encode(), token.encode("latin-1"))
        ):
            raise InvalidClientTokenId
        if key.expires_ms is not None and has_passed(
            key.created_ms, key.expires_ms - key.created_ms, now_ms, ahead_max_ms=CLOCKS_DIFFER_MAX_MS
        ):
            raise ExpiredToken


class Unjudged:
    """The requests of one port that wait until metadata was asked for the key that they name.

    Anybody can make keys up. So all of them have one budget, and where it is used up, the peer that has most of it
    gives way: its oldest is refused.
    """

    def __init__(self) -> None:
        self.bytes = 0
        """What all take: their bodies, and as much for each request as `UNKNOWN_KEY_COST_BYTES`."""
        self._bytes_of: dict[str, int] = {}
        self._waiting: dict[str, dict[HTTPRequest, Callable[[], None]]] = {}
        """By peer, the oldest first, and how each is refused."""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def enter(self, request: HTTPRequest, refuse: Callable[[], None]) -> None:
        """Let one wait; Overloaded when there is no room, and no other peer has more.

        `refuse` is called when it has to give way later; it has left by then.
        """
        peer = peer_name(request.peer)
        cost_bytes = len(request.body) + UNKNOWN_KEY_COST_BYTES
        while self.bytes + cost_bytes > UNKNOWN_KEYS_BYTES_MAX:
            largest = max(self._bytes_of, key=lambda other: self._bytes_of[other], default=peer)
            if self._bytes_of.get(largest, 0) <= self._bytes_of.get(peer, 0) + cost_bytes:
                raise Overloaded
            oldest, refuse_oldest = next(iter(self._waiting[largest].items()))
            self.leave(oldest)
            refuse_oldest()
        self._waiting.setdefault(peer, {})[request] = refuse
        self._add(peer, cost_bytes)

    def leave(self, request: HTTPRequest) -> bool:
        """It waits no more; False when it was refused before."""
        peer = peer_name(request.peer)
        of_peer = self._waiting.get(peer, {})
        if of_peer.pop(request, None) is None:
            return False
        if not of_peer:
            del self._waiting[peer]
        self._add(peer, -len(request.body) - UNKNOWN_KEY_COST_BYTES)
        return True

    def _add(self, peer: str, cost_bytes: int) -> None:
        self.bytes += cost_bytes
        self._bytes_of[peer] = self._bytes_of.get(peer, 0) + cost_bytes
        if not self._bytes_of[peer]:
            del self._bytes_of[peer]


def too_many_connections() -> Overloaded:
    """Return what a request is told whose access key has too many connections."""
    return Overloaded("The access key has too many connections.")


class Open:
    """Takes everybody for the default account, as emulators do."""

    def __init__(self, account_id: str) -> None:
        self._principal = Principal.of_root(account_id, "", account_id)

    def authenticate(self, request: HTTPRequest) -> Principal:
        """Return the default account."""
        return self._principal

    def renew(self, request: HTTPRequest) -> Principal:
        """Return the default account."""
        return self._principal

    def judge_head(self, request: HTTPRequest) -> CallerError | NotNow | None:
        """Return None: every request is taken."""
        return None


Authentication = Signed | Open
