"""Signing in: temporary credentials for the console, by a key, a password, or a link that works once.

    signed with a key            ─▶ the signature is the proof: a session of the key
    account, user and password   ─▶ scrypt on a thread ─▶ a session of the user
    a link's token               ─▶ its row is deleted ─▶ a session of the key that made it

Sessions last 12 h, those of root too. Nothing of them is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

from quaymaster.core.access.principals import Requester
from quaymaster.core.values.errors import (
    AccessDenied,
    InvalidClientTokenId,
    InvalidParameterCombination,
    ResourceNotFound,
    UnsupportedOperation,
)
from quaymaster.frontend.actions.sts_actions import NewSession, SessionService
from quaymaster.frontend.admin.accounts.identity_admin import IdentityRow, IdentityService
from quaymaster.frontend.admin.accounts.own_admin import name_of
from quaymaster.frontend.admin.accounts.passwords import Passwords
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute
from quaymaster.frontend.call import NOBODY
from quaymaster.protocol.admin import sign_in as shapes
from quaymaster.protocol.admin.members import Nothing
from quaymaster.protocol.tokens.session_tokens import pack_policy

_READ_ONLY: Final = pack_policy(shapes.READ_ONLY_POLICY)
_WRONG: Final = "Account, user or password are not right."
_NO_LINK: Final = "The link was used, or is older than a minute."


class Links(Protocol):
    """Where links that sign in once are kept (`coordination/sign_in_links`)."""

    async def make(self, access_key_id: str) -> str: ...

    async def take(self, token: str) -> str | None: ...


@runtime_checkable
class UserWithPassword(IdentityRow, Protocol):
    """A user as metadata keeps it; `password` is a hash, empty where there is none."""

    @property
    def password(self) -> str: ...


class SignInAdmin:
    """Answers requests to sign in. Operators are of the account `default_account`; `console_url`: where pages are.

    `now_ms` is the wall clock.
    """

    def __init__(
        self,
        identities: IdentityService,
        sessions: SessionService,
        links: Links | None,
        *,
        default_account: str,
        console_url: str,
        now_ms: Callable[[], int],
    ) -> None:
        self._identities = identities
        self._sessions = sessions
        self._links = links
        self._default_account = default_account
        self._console_url = console_url
        self._now_ms = now_ms
        self._passwords = Passwords()

    def routes(self) -> dict[str, AdminRoute]:
        """Return what answers each operation."""
        return {
            "SignIn": AdminRoute(self._sign_in),
            "CreateSignInLink": AdminRoute(self._make_link),
            "SetUserPassword": AdminRoute(self._set_password, self._stored_name),
            "DeleteUserPassword": AdminRoute(self._delete_password, self._stored_name),
        }

    async def _sign_in(self, call: AdminCall, given: shapes.SignInRequest) -> shapes.SignedInView:
        policy = _READ_ONLY if given.read_only else b""
        by_password = (given.account_id, given.user, given.password)
        if call.principal is not NOBODY:
            if given.token is not None or any(part is not None for part in by_password):
                raise InvalidParameterCombination("A signed request signs in the key that signed it.")
            principal = call.principal
            if principal.is_session:
                raise UnsupportedOperation("Temporary credentials sign nobody in.")
            made = self._sessions.create(principal.access_key_id, shapes.SIGN_IN_MS, policy)
        elif given.token is not None and by_password == (None, None, None):
            made = await self._by_link(given.token, policy)
        elif given.token is None and None not in by_password:
            made = await self._by_password(given, policy)
        else:
            raise InvalidParameterCombination(
                "Give account_id, user and password; or token; or sign the request with a key."
            )
        return self._view(made, is_read_only=given.read_only)

    async def _by_password(self, given: shapes.SignInRequest, policy: bytes) -> NewSession:
        account_id, name = given.account_id or "", given.user or ""
        user = self._identities.user(account_id, name)
        row = None if user is None else user.row
        kept = row.password if isinstance(row, UserWithPassword) else ""
        is_right = await self._passwords.is_right(given.password or "", kept)
        if user is None or not is_right:
            raise AccessDenied(_WRONG)
        requester = Requester(account_id, "user", user.unique_id, user.full_name)
        try:
            return self._sessions.of_caller(requester, ("", 0), shapes.SIGN_IN_MS, policy)
        except InvalidClientTokenId:  # deleted meanwhile
            raise AccessDenied(_WRONG) from None

    async def _by_link(self, token: str, policy: bytes) -> NewSession:
        key = None if self._links is None else await self._links.take(token)
        if key is None:
            raise AccessDenied(_NO_LINK)
        try:
            return self._sessions.create(key, shapes.SIGN_IN_MS, policy)
        except (ResourceNotFound, UnsupportedOperation):  # the key has gone
            raise AccessDenied(_NO_LINK) from None

    def _view(self, made: NewSession, *, is_read_only: bool) -> shapes.SignedInView:
        content = made.content
        requester = Requester(content.account_id, content.kind, content.unique_id, content.name)
        return shapes.SignedInView(
            account_id=content.account_id,
            arn=requester.arn,
            name=name_of(requester),
            is_operator=content.account_id == self._default_account,
            is_read_only=is_read_only,
            access_key_id=content.access_key_id,
            secret_access_key=content.secret,
            session_token=made.token,
            expires_ms=content.expires_ms,
        )

    async def _make_link(self, call: AdminCall, given: Nothing) -> shapes.SignInLinkView:
        principal = call.principal
        if principal.is_session:
            # It would sign in for longer, and for more than a session policy allows.
            raise UnsupportedOperation("Temporary credentials make no links that sign in.")
        if self._links is None:
            raise UnsupportedOperation("This process makes no links that sign in.")
        now_ms = self._now_ms()
        token = await self._links.make(principal.access_key_id)
        url = f"{self._console_url}/sign-in#{token}"
        return shapes.SignInLinkView(url=url, token=token, expires_ms=now_ms + shapes.LINK_MS)

    # Passwords

    def _stored_name(self, call: AdminCall, given: shapes.UserOfPassword) -> str:
        user = self._identities.user(call.owner, given.name)
        return given.name if user is None else user.row.name

    async def _set_password(self, call: AdminCall, given: shapes.SetPasswordRequest) -> shapes.PasswordView:
        hashed = await self._passwords.hash(given.password)
        user = await self._identities.set_password(call.owner, given.name, hashed)
        return shapes.PasswordView(account_id=call.owner, name=user.row.name, has_password=True)

    async def _delete_password(self, call: AdminCall, given: shapes.UserOfPassword) -> shapes.PasswordView:
        user = await self._identities.set_password(call.owner, given.name, "")
        return shapes.PasswordView(account_id=call.owner, name=user.row.name, has_password=False)
