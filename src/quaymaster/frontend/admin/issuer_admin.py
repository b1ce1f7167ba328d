"""What operators do with issuers of web identity tokens: routes of the admin API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from quaymaster.core.access.operations import Operation
from quaymaster.core.values.errors import InvalidParameterValue
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute
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

    def routes(self) -> dict[tuple[str, ...], AdminRoute]:
        """Return what answers each request, as `Admin` has them."""
        return {
            ("GET", "oidc"): AdminRoute(self._list, looks_at=Operation.LIST_OIDC_ISSUERS),
            ("POST", "oidc"): AdminRoute(self._put, "SetOIDCIssuer"),
            ("DELETE", "oidc", "*"): AdminRoute(self._delete, "DeleteOIDCIssuer"),
        }

    async def _list(self, call: AdminCall) -> Mapping[str, Any]:
        return {"issuers": [_row(issuer) for issuer in self._issuers.list_all()]}

    async def _put(self, call: AdminCall) -> Mapping[str, Any]:
        audiences = call.fields.get("audiences")
        if not isinstance(audiences, list) or not all(isinstance(one, str) for one in audiences):
            raise InvalidParameterValue.of("audiences", audiences, "Must be a list of texts.")
        keys, keys_url = call.text("keys", ""), call.text("keys_url", "")
        return _row(await self._issuers.put(call.text("issuer"), audiences, keys, keys_url))

    async def _delete(self, call: AdminCall) -> Mapping[str, Any]:
        await self._issuers.delete(call.name)
        return {"name": call.name, "deleted": True}


def _row(issuer: Issuer) -> dict[str, Any]:
    return {
        "name": issuer.name,
        "issuer": issuer.row.issuer,
        "audiences": list(issuer.audiences),
        "key_count": None if issuer.keys is None else len(issuer.keys),
        "keys_url": issuer.keys_url or None,
        "changed_ms": issuer.row.changed_ms,
    }
