"""What operators do with issuers of web identity tokens: routes of the admin API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute
from quaymaster.protocol.admin import identities as shapes
from quaymaster.protocol.admin.members import Nothing
from quaymaster.protocol.tokens.web_identity import KeySet


class SetIssuer(Protocol):
    """What an issuer's row says of when it was set."""

    @property
    def issuer(self) -> str: ...
    @property
    def changed_ms(self) -> int: ...


class Issuer(Protocol):
    """An issuer as metadata keeps it."""

    @property
    def name(self) -> str: ...
    @property
    def row(self) -> SetIssuer: ...
    @property
    def audiences(self) -> tuple[str, ...]: ...
    @property
    def keys(self) -> KeySet | None: ...
    @property
    def keys_url(self) -> str: ...


class IssuerService(Protocol):
    """The part of the metadata service that owns issuers. Errors are those of `core/values/errors`."""

    def list_all(self) -> Sequence[Issuer]: ...

    async def put(
        self, issuer: str, audiences: Sequence[str], key_set: str = "", keys_url: str = ""
    ) -> Issuer: ...

    async def delete(self, name: str) -> None: ...


class IssuerAdmin:
    """Answers requests about issuers."""

    def __init__(self, issuers: IssuerService) -> None:
        self._issuers = issuers

    def routes(self) -> dict[str, AdminRoute]:
        """Return what answers each operation."""
        return {
            "ListOIDCIssuers": AdminRoute(self._list),
            "SetOIDCIssuer": AdminRoute(self._put),
            "DeleteOIDCIssuer": AdminRoute(self._delete),
        }

    async def _list(self, call: AdminCall, given: Nothing) -> shapes.IssuerList:
        return shapes.IssuerList(issuers=[_view(issuer) for issuer in self._issuers.list_all()])

    async def _put(self, call: AdminCall, given: shapes.SetIssuerRequest) -> shapes.IssuerView:
        return _view(await self._issuers.put(given.issuer, given.audiences, given.keys, given.keys_url))

    async def _delete(self, call: AdminCall, given: shapes.IssuerRequest) -> shapes.DeletedIssuer:
        await self._issuers.delete(given.name)
        return shapes.DeletedIssuer(name=given.name)


def _view(issuer: Issuer) -> shapes.IssuerView:
    return shapes.IssuerView(
        name=issuer.name,
        issuer=issuer.row.issuer,
        audiences=list(issuer.audiences),
        key_count=None if issuer.keys is None else len(issuer.keys),
        keys_url=issuer.keys_url or None,
        changed_ms=issuer.row.changed_ms,
    )
