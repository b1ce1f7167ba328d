"""Who is asking: the signature of a request is checked before anything else of it is read.

    signed   Authorization header or presigned query ──▶ access key, or session of a token ──▶ secret
                                                                               signature holds ──▶ principal
    open     anything ──▶ the default account (loopback only, unless forced)

Keys are root keys of accounts, or keys of their users. What each may do is judged later: see `authorization`.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Final, Protocol

from quaymaster.core.values.errors import (
    AccessDenied,
    CallerError,
    InvalidClientTokenId,
    InvalidSecurity,
    MissingAuthenticationToken,
    NotNow,
    Overloaded,
    SignatureDoesNotMatch,
)
from quaymaster.frontend.callers.principal import IdentityInForce, Principal, SessionInForce
from quaymaster.net.http.forwarded import is_of_this_machine
from quaymaster.net.http.message import HTTPRequest
from quaymaster.net.http.strangers import peer_name
from quaymaster.protocol.sqs.metrics_password import is_metrics_password, read_basic
from quaymaster.protocol.sqs.response import Service
from quaymaster.protocol.sqs.sigv4 import (
    UNSIGNED_PAYLOAD,
    Authorization,
    SigningKeys,
    claimed_key,
    declared_digest,
    refuse_repeated,
    wrong_service,
)

REMEMBERED_PRINCIPALS_MAX: Final = 16_384
SESSION_ACCOUNTS_MAX: Final = 16_384
"""So many temporary credentials that signed lately are known to be of an account without their token."""
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
    def rotated_ms(self) -> int: ...
    @property
    def user(self) -> str: ...


FindKey = Callable[[str], VerifyingKey | None]
FindUser = Callable[[str, str], IdentityInForce | None]
"""Finds a user of an account by name; may raise NotYetKnown."""
FindSession = Callable[[str, str], SessionInForce]
"""Finds the session of an access key id and a token; raises InvalidClientTokenId, ExpiredToken, NotYetKnown."""


class Signed:
    """Checks signatures. `now_ms` is the wall clock."""

    def __init__(
        self,
        find_key: FindKey,
        find_user: FindUser,
        find_session: FindSession,
        *,
        region: str,
        skew_ms: int,
        now_ms: Callable[[], int],
        on_use: Callable[[str], None] = lambda access_key_id: None,
    ) -> None:
        """`on_use` hears of each request that a key signed; of those of temporary credentials it does not."""
        self._on_use = on_use
        self._find_key = find_key
        self._find_user = find_user
        self._find_session = find_session
        self._region = region
        self._now_ms = now_ms
        self._signing = SigningKeys(skew_ms=skew_ms)
        self._principals: dict[str, tuple[object, IdentityInForce | None, Principal]] = {}
        """By access key; made of these objects, and others when the key, session or user has changed."""
        self._session_accounts: dict[str, str] = {}
        """Accounts by access key of sessions, those that signed last at the end."""

    def authenticate(self, request: HTTPRequest, service: Service = "sqs") -> Principal:
        """Return who signed `request`, which asks for an action of `service`.

        Raises:
            CallerError: not signed, by an unknown key, too long ago, for another service, or not this request.
        """
        authorization = self._read(request)
        if authorization.scope.service != service:
            raise SignatureDoesNotMatch(wrong_service(service))
        digest = None if request.digest is None else request.digest.hexdigest().encode()
        if authorization.token is None:
            key = self._key(authorization.access_key_id)
            self._verify(authorization, key.secret, request, digest)
            self._on_use(key.access_key_id)
            return self._principal(key)
        session = self._find_session(authorization.access_key_id, authorization.token)
        self._verify(authorization, session.secret, request, digest)
        self._remember_account(session)
        return self._principal_of_session(session)

    def authenticate_reader(self, request: HTTPRequest) -> Principal:
        """Return whose metrics password a request has: over TLS, or from this machine.

        Raises:
            CallerError: it has none or a wrong one, of an unknown key, or others could read it on its way.
        """
        if not (request.is_tls or is_of_this_machine(request.peer)):
            raise InvalidSecurity("Metrics are read over TLS, or from the machine of the server.")
        header = request.first.get(b"authorization")
        named = None if header is None else read_basic(header)
        if named is None:
            raise MissingAuthenticationToken
        access_key_id, password = named
        key = self._key(access_key_id)
        if not is_metrics_password(password, key.secret):
            raise SignatureDoesNotMatch(
                "The password is not that of the access key: `quaymaster key metrics-password` tells it."
            )
        self._on_use(key.access_key_id)
        return self._principal(key)

    def renew(self, request: HTTPRequest, before: Principal) -> Principal:
        """Return who signed a request that was authenticated, as that is now; CallerError if it may sign no more.

        `before`: who it was then. A key that was given a new secret, or was disabled meanwhile, signs it no more.
        """
        authorization = self._read(request)
        if authorization.token is None:
            key = self._key(authorization.access_key_id)
            if key.rotated_ms != before.parent_rotated_ms:
                raise InvalidClientTokenId
            return self._principal(key)
        return self._principal_of_session(
            self._find_session(authorization.access_key_id, authorization.token)
        )

    def principal_of(self, access_key_id: str, token: str) -> Principal:
        """Return whose temporary credentials these are, which were just made; InvalidClientTokenId if they ended."""
        return self._principal_of_session(self._find_session(access_key_id, token))

    def _principal_of_session(self, session: SessionInForce) -> Principal:
        known = self._principals.get(session.access_key_id)
        if known is not None and known[0] is session:
            return known[2]
        return self._remember(session, None, Principal.of_session(session))

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
        if user is None:
            principal = Principal.of_root(key.account_id, key.access_key_id, key.principal_id, key.rotated_ms)
        else:
            principal = Principal.of_user(key.account_id, key.access_key_id, user, key.rotated_ms)
        return self._remember(key, user, principal)

    def _remember(self, signer: object, user: IdentityInForce | None, principal: Principal) -> Principal:
        if len(self._principals) >= REMEMBERED_PRINCIPALS_MAX:
            self._principals.clear()
        self._principals[principal.access_key_id] = signer, user, principal
        return principal

    def judge_head(self, request: HTTPRequest) -> CallerError | NotNow | None:
        """Return why a request can be refused by its head alone, None when its body is to be read.

        It is not signed, or by a key that does not exist or is disabled: the body of such a request is not worth the
        memory. Where the head says what the body's digest is, the signature is verified, and the connection is known
        before the body comes. Of others the body is hashed as it comes in.
        """
        try:
            authorization = self._read(request)
            access_key_id, token = authorization.access_key_id, authorization.token
            if token is None:
                key = self._key(access_key_id)
                secret, account_id = key.secret, key.account_id
            else:
                session = self._find_session(access_key_id, token)
                secret, account_id = session.secret, session.requester.account_id
            declared = declared_digest(request.first)
            if declared is not None:
                self._verify(authorization, secret, request, declared)
                if not request.vouch(access_key_id, account_id):
                    return too_many_connections()
        except CallerError as error:
            return error
        except NotNow:  # the key is not known yet; the body has come when it is
            pass
        request.digest = sha256()
        return None

    def claimed(self, request: HTTPRequest) -> tuple[str, str] | None:
        """Return access key and account that a request claims, before anything of it is proven; None if not known.

        Whose temporary credentials are is in their token, and to decrypt it is no cheaper than what follows. So those
        are known that signed before.
        """
        claimed = claimed_key(request.first, request.query)
        if claimed is None:
            return None
        account_id = self._session_accounts.get(claimed)
        if account_id is not None:
            return claimed, account_id
        if b"x-amz-security-token" in request.first:
            return None
        try:
            key = self._find_key(claimed)
        except NotNow:
            return None
        return None if key is None else (claimed, key.account_id)

    def _remember_account(self, session: SessionInForce) -> None:
        """Keep whose a session is, once its signature has held."""
        accounts = self._session_accounts
        if accounts.pop(session.access_key_id, None) is None and len(accounts) >= SESSION_ACCOUNTS_MAX:
            del accounts[next(iter(accounts))]
        accounts[session.access_key_id] = session.requester.account_id

    def _read(self, request: HTTPRequest) -> Authorization:
        if request.first.get(b"x-amz-content-sha256") == UNSIGNED_PAYLOAD and not (
            request.is_tls or is_of_this_machine(request.peer)
        ):
            raise InvalidSecurity(
                "An unsigned body (UNSIGNED-PAYLOAD) is taken only over TLS, or from the machine of the server."
            )
        authorization = self._signing.parse(
            request.headers, request.query, region=self._region, first=request.first
        )
        if authorization is None:
            raise MissingAuthenticationToken
        return authorization

    def _key(self, access_key_id: str) -> VerifyingKey:
        key = self._find_key(access_key_id)
        if key is None or not key.is_enabled:
            raise InvalidClientTokenId
        return key

    def _verify(
        self, authorization: Authorization, secret: str, request: HTTPRequest, body_sha256: bytes | None
    ) -> None:
        self._signing.verify(
            authorization,
            method=request.method,
            raw_path=request.path,
            body=request.body,
            secret=secret,
            now_ms=self._now_ms(),
            body_sha256=body_sha256,
        )


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
    """Return what a request is told whose access key or account has too many connections."""
    return Overloaded("The access key, or its account, has too many connections.")


class Open:
    """Takes everybody for the default account, as emulators do: on this machine, or everywhere where `is_forced`."""

    def __init__(self, account_id: str, *, is_forced: bool = False) -> None:
        self._principal = Principal.of_root(account_id, "", account_id)
        self._is_forced = is_forced

    def authenticate(self, request: HTTPRequest, service: Service = "sqs") -> Principal:
        """Return the default account; AccessDenied for a client of another machine, which a proxy let in."""
        error = self.judge_head(request)
        if error is not None:
            raise error
        return self._principal

    def authenticate_reader(self, request: HTTPRequest) -> Principal:
        """Do the same for metrics: no password is asked for."""
        return self.authenticate(request)

    def renew(self, request: HTTPRequest, before: Principal) -> Principal:
        """Return the default account."""
        return self._principal

    def claimed(self, request: HTTPRequest) -> tuple[str, str] | None:
        """Return that it is the default account's."""
        return "", self._principal.account_id

    def judge_head(self, request: HTTPRequest) -> CallerError | NotNow | None:
        """Return why a request is refused, whatever its body is; None when it is taken."""
        if len(request.first) != len(request.headers):
            try:
                refuse_repeated(request.headers)
            except CallerError as error:
                return error
        if self._is_forced or is_of_this_machine(request.peer):
            return None
        return AccessDenied("Without signatures, only clients on the server's own machine are served.")


Authentication = Signed | Open
