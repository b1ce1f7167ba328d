"""What operators do with the server's own keys for queues: routes of the admin API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute
from quaymaster.protocol.admin import kms as shapes


class LocalKey(Protocol):
    """A key as metadata keeps it."""

    @property
    def key_id(self) -> str: ...
    @property
    def account_id(self) -> str: ...
    @property
    def arn(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def state(self) -> Literal["enabled", "disabled", "pending deletion"]: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def deletion_ms(self) -> int | None: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...


class LocalKeyService(Protocol):
    """The part of the metadata service that owns keys for queues. Errors are those of `core.errors`."""

    async def create(self, account_id: str, description: str = "", alias: str | None = None) -> LocalKey: ...

    def list_keys(self, account_id: str) -> Sequence[LocalKey]: ...

    def show(self, account_id: str, name: str) -> LocalKey: ...

    async def set_enabled(self, account_id: str, name: str, *, enabled: bool) -> LocalKey: ...

    async def schedule_deletion(self, account_id: str, name: str, days: int) -> LocalKey: ...

    async def cancel_deletion(self, account_id: str, name: str) -> LocalKey: ...

    async def set_alias(self, account_id: str, alias: str, name: str) -> LocalKey: ...

    async def delete_alias(self, account_id: str, alias: str) -> None: ...


class KMSAdmin:
    """Answers requests about keys for queues."""

    def __init__(self, keys: LocalKeyService) -> None:
        self._keys = keys

    def routes(self) -> dict[str, AdminRoute]:
        """Return what answers each operation."""
        return {
            "ListKMSKeys": AdminRoute(self._list),
            "CreateKMSKey": AdminRoute(self._create),
            "GetKMSKey": AdminRoute(self._show),
            "EnableKMSKey": AdminRoute(self._enable),
            "DisableKMSKey": AdminRoute(self._disable),
            "ScheduleKMSKeyDeletion": AdminRoute(self._delete),
            "CancelKMSKeyDeletion": AdminRoute(self._cancel),
            "SetKMSAlias": AdminRoute(self._set_alias),
            "DeleteKMSAlias": AdminRoute(self._delete_alias),
        }

    async def _list(self, call: AdminCall, given: shapes.ListKMSKeysRequest) -> shapes.KMSKeyList:
        return shapes.KMSKeyList(keys=[_view(key) for key in self._keys.list_keys(call.owner)])

    async def _create(self, call: AdminCall, given: shapes.CreateKMSKeyRequest) -> shapes.KMSKeyView:
        return _view(await self._keys.create(call.owner, given.description, given.alias))

    async def _show(self, call: AdminCall, given: shapes.KMSKeyRequest) -> shapes.KMSKeyView:
        return _view(self._keys.show(call.owner, given.key_id))

    async def _enable(self, call: AdminCall, given: shapes.KMSKeyRequest) -> shapes.KMSKeyView:
        return _view(await self._keys.set_enabled(call.owner, given.key_id, enabled=True))

    async def _disable(self, call: AdminCall, given: shapes.KMSKeyRequest) -> shapes.KMSKeyView:
        return _view(await self._keys.set_enabled(call.owner, given.key_id, enabled=False))

    async def _delete(
        self, call: AdminCall, given: shapes.ScheduleKMSKeyDeletionRequest
    ) -> shapes.KMSKeyView:
        return _view(await self._keys.schedule_deletion(call.owner, given.key_id, given.days))

    async def _cancel(self, call: AdminCall, given: shapes.KMSKeyRequest) -> shapes.KMSKeyView:
        return _view(await self._keys.cancel_deletion(call.owner, given.key_id))

    async def _set_alias(self, call: AdminCall, given: shapes.SetKMSAliasRequest) -> shapes.KMSKeyView:
        return _view(await self._keys.set_alias(call.owner, given.alias, given.key_id))

    async def _delete_alias(
        self, call: AdminCall, given: shapes.DeleteKMSAliasRequest
    ) -> shapes.DeletedKMSAlias:
        await self._keys.delete_alias(call.owner, given.alias)
        return shapes.DeletedKMSAlias(alias=given.alias)


def _view(key: LocalKey) -> shapes.KMSKeyView:
    return shapes.KMSKeyView(
        key_id=key.key_id,
        account_id=key.account_id,
        arn=key.arn,
        description=key.description,
        state=key.state,
        created_ms=key.created_ms,
        deletion_ms=key.deletion_ms,
        aliases=list(key.aliases),
    )
