"""What any caller may ask the admin API for: who it is, its own sessions, what this API is."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

from quaymaster import __version__
from quaymaster.core.access.principals import Requester
from quaymaster.core.values.errors import ExpiredToken, InvalidClientTokenId, UnsupportedOperation
from quaymaster.frontend.admin.accounts.identity_admin import IdentityService
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute
from quaymaster.frontend.callers.authentication import FindSession
from quaymaster.protocol.admin import own as shapes
from quaymaster.protocol.admin.members import Nothing
from quaymaster.protocol.admin.openapi import make_document
from quaymaster.protocol.admin.operations import OPERATIONS


class KeySessions(Protocol):
    """The part of the metadata service that ends the sessions of access keys."""

    async def revoke_sessions_of_key(self, access_key_id: str) -> object: ...


class OwnAdmin:
    """Answers what callers ask about themselves. Operators are of the account `default_account`."""

    def __init__(
        self,
        identities: IdentityService,
        accounts: KeySessions,
        find_session: FindSession,
        default_account: str,
    ) -> None:
        self._identities = identities
        self._accounts = accounts
        self._find_session = find_session
        self._default_account = default_account

    def routes(self) -> dict[str, AdminRoute]:
        """Return what answers each operation."""
        return {
            "GetDocument": AdminRoute(self._show_document),
            "GetCaller": AdminRoute(self._show_caller),
            "RevokeOwnSessions": AdminRoute(self._revoke_own),
            "FindRevokedSessions": AdminRoute(self._find_revoked),
        }

    @cached_property
    def _document(self) -> dict[str, Any]:
        return make_document(OPERATIONS.values(), version=__version__)

    async def _show_document(self, call: AdminCall, given: Nothing) -> dict[str, Any]:
        return self._document

    async def _show_caller(self, call: AdminCall, given: Nothing) -> shapes.CallerView:
        principal = call.principal
        return shapes.CallerView(
            account_id=principal.account_id,
            arn=principal.requester.arn,
            name=name_of(principal.requester),
            access_key_id=principal.access_key_id,
            is_root=principal.requester.is_root,
            is_operator=principal.account_id == self._default_account,
            is_read_only=principal.session_policy is not None,
        )

    async def _revoke_own(self, call: AdminCall, given: Nothing) -> shapes.RevokedSessions:
        requester = call.principal.requester
        match requester.kind:
            case "user":
                name = requester.name.rpartition("/")[2]
                await self._identities.revoke_sessions("user", requester.account_id, name)
            case "root":
                await self._accounts.revoke_sessions_of_key(call.principal.parent_id)
            case _:
                raise UnsupportedOperation(
                    "A role's sessions are others', too: `quaymaster role revoke-sessions` ends them all."
                )
        return shapes.RevokedSessions(account_id=requester.account_id, arn=requester.arn)

    async def _find_revoked(self, call: AdminCall, given: shapes.FindRevokedRequest) -> shapes.RevokedList:
        revoked = []
        for session in given.sessions:
            try:
                self._find_session(session.access_key_id, session.session_token)
            except (InvalidClientTokenId, ExpiredToken):
                revoked.append(session.access_key_id)
        return shapes.RevokedList(revoked=revoked)


def name_of(requester: Requester) -> str:
    """Return what people call who asks."""
    match requester.kind:
        case "user":
            return requester.name.rpartition("/")[2]
        case "session":
            return f"{requester.name.rpartition('/')[2]}/{requester.session}"
        case _:
            return "root"
