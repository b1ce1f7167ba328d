"""What operators do with the server's own keys for queues: routes of the admin API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from quaymaster.core.access.operations import Operation
from quaymaster.core.values.errors import InvalidParameterValue
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute

DELETION_DAYS: Final = 30


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
    def state(self) -> str: ...
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

    def routes(self) -> dict[tuple[str, ...], AdminRoute]:
        """Return what answers each request, as `Admin` has them."""
        return {
            ("GET", "kms-keys"): AdminRoute(self._list, looks_at=Operation.LIST_KMS_KEYS),
            ("POST", "kms-keys"): AdminRoute(self._create, "CreateKMSKey"),
            ("GET", "kms-keys", "*"): AdminRoute(self._show, looks_at=Operation.GET_KMS_KEY),
            ("POST", "kms-keys", "*", "enable"): AdminRoute(self._enable, "EnableKMSKey"),
            ("POST", "kms-keys", "*", "disable"): AdminRoute(self._disable, "DisableKMSKey"),
            ("POST", "kms-keys", "*", "schedule-deletion"): AdminRoute(
                self._delete, "ScheduleKMSKeyDeletion"
            ),
            ("POST", "kms-keys", "*", "cancel-deletion"): AdminRoute(self._cancel, "CancelKMSKeyDeletion"),
            ("POST", "kms-keys", "*", "alias"): AdminRoute(self._set_alias, "SetKMSAlias"),
            ("DELETE", "kms-aliases"): AdminRoute(self._delete_alias, "DeleteKMSAlias"),
        }

    async def _list(self, call: AdminCall) -> Mapping[str, Any]:
        return {"keys": [_row(key) for key in self._keys.list_keys(_account_of(call))]}

    async def _create(self, call: AdminCall) -> Mapping[str, Any]:
        alias = None if call.fields.get("alias") is None else call.text("alias")
        return _row(
            await self._keys.create(
                call.text("account_id", call.account_id), call.text("description", ""), alias
            )
        )

    async def _show(self, call: AdminCall) -> Mapping[str, Any]:
        return _row(self._keys.show(_account_of(call), call.name))

    async def _enable(self, call: AdminCall) -> Mapping[str, Any]:
        return _row(await self._keys.set_enabled(_account_of(call), call.name, enabled=True))

    async def _disable(self, call: AdminCall) -> Mapping[str, Any]:
        return _row(await self._keys.set_enabled(_account_of(call), call.name, enabled=False))

    async def _delete(self, call: AdminCall) -> Mapping[str, Any]:
        days = call.fields.get("days", DELETION_DAYS)
        if not isinstance(days, int):
            raise InvalidParameterValue.of("days", days, "Must be a number of days.")
        return _row(await self._keys.schedule_deletion(_account_of(call), call.name, days))

    async def _cancel(self, call: AdminCall) -> Mapping[str, Any]:
        return _row(await self._keys.cancel_deletion(_account_of(call), call.name))

    async def _set_alias(self, call: AdminCall) -> Mapping[str, Any]:
        return _row(await self._keys.set_alias(_account_of(call), call.text("alias"), call.name))

    async def _delete_alias(self, call: AdminCall) -> Mapping[str, Any]:
        alias = call.query.get("alias", "")
        await self._keys.delete_alias(_account_of(call), alias)
        return {"alias": alias, "deleted": True}


def _account_of(call: AdminCall) -> str:
    return call.query.get("account_id") or call.account_id


def _row(key: LocalKey) -> dict[str, Any]:
    return {
        "key_id": key.key_id,
        "account_id": key.account_id,
        "arn": key.arn,
        "description": key.description,
        "state": key.state,
        "created_ms": key.created_ms,
        "deletion_ms": key.deletion_ms,
        "aliases": list(key.aliases),
    }
