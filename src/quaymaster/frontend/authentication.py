"""Who is asking: the signature of a request is checked before anything else of it is read.

    signed   Authorization header or presigned query ──▶ access key ──▶ secret ──▶ signature holds ──▶ principal
    open     anything ──▶ the default account (loopback only, unless forced)

Only the owner of a queue may use it; stored policies are not evaluated yet.
"""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest
from typing import Final, Protocol

import msgspec

from quaymaster.core.errors import (
    CallerError,
    ExpiredToken,
    InvalidClientTokenId,
    MissingAuthenticationToken,
    NotNow,
    Overloaded,
)
from quaymaster.net.http_message import HTTPRequest
from quaymaster.protocol.sigv4 import SigningKeys

REMEMBERED_PRINCIPALS_MAX: Final = 16_384
UNKNOWN_KEYS_WAITING_MAX: Final = 128
"""Requests of strangers that wait at once for the key that they name: anybody can make one up."""
UNKNOWN_KEYS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Their bodies, which no share of a connection counts any more."""
_CREDENTIAL: Final = b"Credential="


class AccessKey(Protocol):
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
    def expires_ms(self) -> int | None: ...


FindKey = Callable[[str], AccessKey | None]


class Principal(msgspec.Struct, frozen=True, gc=False):
    """Who is asking. `sender_id` is what receivers see as SenderId: the id of the user the key belongs to."""

    account_id: str
    access_key_id: str
    sender_id: str


class Signed:
    """Checks signatures. `now_ms` is the wall clock."""

    def __init__(
        self,
        find_key: FindKey,
        *,
        region: str,
        skew_ms: int,
        now_ms: Callable[[], int],
        signing_keys: SigningKeys | None = None,
    ) -> None:
        self._find_key = find_key
        self._region = region
        self._skew_ms = skew_ms
        self._now_ms = now_ms
        self._signing = signing_keys or SigningKeys()
        self._principals: dict[str, Principal] = {}

    def authenticate(self, request: HTTPRequest) -> Principal:
        """Return who signed `request`.

        Raises:
            CallerError: not signed, by an unknown key, too long ago, or not this request.
        """
        authorization = self._signing.parse(
            request.headers, request.query, region=self._region, first=request.first
        )
        if authorization is None:
            raise MissingAuthenticationToken
        key = self._find_key(authorization.access_key_id)
        if key is None or not key.is_enabled:
            raise InvalidClientTokenId
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
            skew_ms=self._skew_ms,
        )
        principal = self._principals.get(key.access_key_id)
        if principal is None or principal.sender_id != key.principal_id:
            if len(self._principals) >= REMEMBERED_PRINCIPALS_MAX:
                self._principals.clear()
            principal = Principal(key.account_id, key.access_key_id, key.principal_id)
            self._principals[key.access_key_id] = principal
        return principal

    def refuse_unread(self, request: HTTPRequest) -> CallerError | None:
        """Return why a request can be refused by its head alone, None when its body must be read to judge it.

        It is not signed, or by a key that does not exist or is disabled: the body of such a request is not
        worth the memory.
        """
        authorization = request.header(b"authorization")
        if authorization is not None:
            # Every request passes here: what is found nowhere is no key, and is parsed to say why.
            start = authorization.find(_CREDENTIAL) + len(_CREDENTIAL)
            if self._is_usable(authorization[start : authorization.find(b"/", start)].decode("latin-1")):
                return None
        try:
            read = self._signing.parse(
                request.headers, request.query, region=self._region, first=request.first
            )
        except CallerError as error:
            return error
        if read is None:
            return MissingAuthenticationToken()
        return None if self._is_usable(read.access_key_id) else InvalidClientTokenId()

    def _is_usable(self, access_key_id: str) -> bool:
        try:
            key = self._find_key(access_key_id)
        except NotNow:  # not known yet: the body has come when it is
            return True
        return key is not None and key.is_enabled

    def _check_token(self, key: AccessKey, token: str | None, now_ms: int) -> None:
        expected = key.session_token
        if (
            expected is None
            or token is None
            or not compare_digest(expected.encode(), token.encode("latin-1"))
        ):
            raise InvalidClientTokenId
        if key.expires_ms is not None and now_ms >= key.expires_ms:
            raise ExpiredToken


class Unjudged:
    """The requests of one port that wait until metadata was asked for the key that they name."""

    def __init__(self) -> None:
        self.requests = 0
        self.bytes = 0

    def enter(self, request: HTTPRequest) -> None:
        """Let one wait; Overloaded when too many do, or their bodies are too large."""
        body_bytes = len(request.body)
        if self.requests >= UNKNOWN_KEYS_WAITING_MAX or self.bytes + body_bytes > UNKNOWN_KEYS_BYTES_MAX:
            raise Overloaded
        self.requests += 1
        self.bytes += body_bytes

    def leave(self, request: HTTPRequest) -> None:
        """It waits no more."""
        self.requests -= 1
        self.bytes -= len(request.body)


class Open:
    """Takes everybody for the default account, as emulators do."""

    def __init__(self, account_id: str) -> None:
        self._principal = Principal(account_id, "", account_id)

    def authenticate(self, request: HTTPRequest) -> Principal:
        """Return the default account."""
        return self._principal

    def refuse_unread(self, request: HTTPRequest) -> CallerError | None:
        """Return None: every request is taken."""
        return None


Authentication = Signed | Open
