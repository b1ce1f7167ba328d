"""One operation of the admin API, as the table `operations` has them."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from quaymaster.core.access.operations import Operation
from quaymaster.core.values import errors
from quaymaster.protocol.admin.members import AdminRequest, OfAccount

API: Final = "/admin/v1/"
Method = Literal["GET", "POST", "DELETE"]
Who = Literal["operator", "owner"]
"""Operators alone, or owners of what it is about as well."""
Place = Literal["front end", "console"]

NOT_THERE: Final = (errors.ResourceNotFound,)
NO_QUEUE: Final = (errors.QueueDoesNotExist,)


class AdminOperation(msgspec.Struct, frozen=True, kw_only=True):
    """One operation.

    `path` is below API; a part in braces is the member of the request that stands there. `permission`: what policies
    call it, and its audit event. `says`: what it does, a sentence. `errors`: those besides errors of the request
    itself.
    """

    name: str
    method: Method
    path: str
    request: type[AdminRequest]
    answer: Any
    says: str
    permission: Operation | None
    errors: tuple[type[errors.CallerError], ...] = ()
    who: Who = "operator"
    answered_by: Place = "front end"
    is_change: bool = False
    """It changes something, and leaves an audit event."""
    is_recorded: bool = False
    """It only looks at what may be secret, and leaves an audit event all the same."""
    is_untimed: bool = False
    """It takes as long as it takes."""
    is_unsigned: bool = False
    """It is how clients get credentials: what it is asked with says who asks."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the path; those in braces are members."""
        return tuple(self.path.split("/"))

    @property
    def subject(self) -> str:
        """The member that names what it is about, empty where the path has none."""
        return next((part[1:-1] for part in self.parts if part.startswith("{")), "")

    @property
    def is_of_account(self) -> bool:
        """Whether the request can name the account."""
        return issubclass(self.request, OfAccount)

    @property
    def act(self) -> str:
        """The name of the audit event that it leaves; empty where it leaves none."""
        return self.name if self.is_change or self.is_recorded else ""


def row(
    method: Method,
    path: str,
    permission: Operation,
    request: type[AdminRequest],
    answer: Any,
    says: str,
    *,
    name: str = "",
    errors: tuple[type[errors.CallerError], ...] = (),
    who: Who = "operator",
    answered_by: Place = "front end",
    is_recorded: bool = False,
    is_untimed: bool = False,
) -> AdminOperation:
    """Return a row. `name`: where several operations have the same permission."""
    return AdminOperation(
        name=name or str(permission),
        method=method,
        path=path,
        permission=permission,
        request=request,
        answer=answer,
        says=says,
        errors=errors,
        who=who,
        answered_by=answered_by,
        is_change=method != "GET",
        is_recorded=is_recorded,
        is_untimed=is_untimed,
    )
