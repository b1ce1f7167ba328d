"""Which operations of the admin API a key may ask for.

    admin port    root key of the default account ──▶ all
                  user of the default account     ──▶ those that its policies allow: quaymaster:OPERATION
                  all others                      ──▶ none
    SQS port      root key of an account          ──▶ those for owners, about its own account
                  user of an account              ──▶ of these those that its policies allow

A root key does what no policy can deny; so what hands one out is for root alone: users make, renew or use no root key
of their own account.
"""

from __future__ import annotations

from collections.abc import Callable

from quaymaster.core.access.operations import ADMIN_SERVICE, OPERATION_NAMES, Operation
from quaymaster.core.access.statements import AccessRequest
from quaymaster.core.values.errors import AccessDenied
from quaymaster.frontend.access.authorization import check_identity
from quaymaster.frontend.callers.principal import Principal
from quaymaster.frontend.callers.request_keys import RequestKeys
from quaymaster.net.http.message import HTTPRequest
from quaymaster.protocol.admin.operation import AdminOperation


class OperatorAuthorization:
    """Judges requests of the admin port. `now_ms` is the wall clock."""

    def __init__(self, account_id: str, *, region: str, now_ms: Callable[[], int]) -> None:
        self._account_id = account_id
        self._region = region
        self._now_ms = now_ms

    def takes(self, operation: AdminOperation) -> bool:
        """Tell whether an operation is asked for here."""
        return True

    def check_account(self, principal: Principal) -> None:
        """Raise AccessDenied unless a key is of the account that operates the admin API."""
        if principal.account_id != self._account_id:
            raise AccessDenied("Only the default account may use the admin API.")

    def check(
        self, principal: Principal, request: HTTPRequest, operation: Operation | None, owner: str, name: str
    ) -> None:
        """Raise AccessDenied unless a key may ask for an operation on what `name` says, of the account `owner`.

        `operation` None: all may that may use this port.
        """
        self.check_account(principal)
        if operation is None or principal.is_root:
            return
        keys = RequestKeys(request, principal, owner, self._region, self._now_ms())
        resource = ("arn", "aws", ADMIN_SERVICE, self._region, owner, name)
        asked = AccessRequest(
            principal.requester,
            OPERATION_NAMES[operation],
            resource,
            principal.account_id,  # operators need no policy of the account that they look after
            keys.find,
            can_cross=False,
        )
        check_identity(asked, principal)


class OwnerAuthorization(OperatorAuthorization):
    """Judges requests of the admin API on the SQS port."""

    def takes(self, operation: AdminOperation) -> bool:
        """Tell whether an operation is asked for here."""
        return operation.who == "owner"

    def check_account(self, principal: Principal) -> None:
        """Take the keys of all accounts."""

    def check(
        self, principal: Principal, request: HTTPRequest, operation: Operation | None, owner: str, name: str
    ) -> None:
        """See `OperatorAuthorization`."""
        if owner != principal.account_id:
            raise AccessDenied(f"The account {owner} is not that of the access key.")
        super().check(principal, request, operation, owner, name)


def check_root_key(principal: Principal, owner: str) -> None:
    """Raise AccessDenied where a user would get a root key of its own account."""
    if owner == principal.account_id and not principal.requester.is_root:
        raise AccessDenied("Only a root key may make, rotate or use root keys of its account.")
