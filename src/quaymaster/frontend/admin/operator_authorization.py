"""Which operations of the admin API a key may ask for.

root key of the default account ──▶ all
user of the default account     ──▶ those that its policies allow: quaymaster:OPERATION
all others                      ──▶ none
"""

from __future__ import annotations

from collections.abc import Callable

from quaymaster.core.access.decisions import Decision, decide, refusal_text
from quaymaster.core.access.operations import ADMIN_SERVICE, OPERATION_NAMES, Operation
from quaymaster.core.access.statements import AccessRequest
from quaymaster.core.values.errors import AccessDenied
from quaymaster.frontend.principal import Principal
from quaymaster.frontend.request_keys import RequestKeys
from quaymaster.net.http.message import HTTPRequest


class OperatorAuthorization:
    """Judges requests of the admin API. `now_ms` is the wall clock."""

    def __init__(self, account_id: str, *, region: str, now_ms: Callable[[], int]) -> None:
        self._account_id = account_id
        self._region = region
        self._now_ms = now_ms

    def check_account(self, principal: Principal) -> None:
        """Raise AccessDenied unless a key is of the account that operates the admin API."""
        if principal.account_id != self._account_id:
            raise AccessDenied("Only the default account may use the admin API.")

    def check(
        self, principal: Principal, request: HTTPRequest, operation: Operation, owner: str, name: str
    ) -> None:
        """Raise AccessDenied unless a key may ask for an operation on what `name` says, of the account `owner`."""
        self.check_account(principal)
        if principal.is_root:
            return
        keys = RequestKeys(request, principal, owner, self._region, self._now_ms())
        resource = ("arn", "aws", ADMIN_SERVICE, self._region, owner, name)
        asked = AccessRequest(
            principal.requester,
            OPERATION_NAMES[operation],
            resource,
            self._account_id,  # operators need no policy of the account that they look after
            keys.find,
            can_cross=False,
        )
        decision = decide(asked, None, principal.policies, principal.session_policy)
        if decision is not Decision.ALLOWED:
            raise AccessDenied(refusal_text(asked, decision))
