"""The operations of CloudWatch on dashboards, which are rows of the store: all consoles of a cell know the same."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, Final

from quaymaster.console.dispatch import Handler
from quaymaster.coordination.interface import ABSENT, Compare, Coordination, Put, RevisionMismatch
from quaymaster.core.monitoring.dashboards import (
    DASHBOARDS,
    DASHBOARDS_MAX,
    DashboardRow,
    check_body,
    dashboard_arn,
    dashboard_key,
    decode_dashboard,
    encode_dashboard,
    is_dashboard_name,
)
from quaymaster.core.values.errors import InvalidParameterValue, LimitExceeded, Overloaded, ResourceNotFound
from quaymaster.protocol.cloudwatch.errors import CloudWatchError
from quaymaster.protocol.rpc.monitoring_calls import MonitoringCall

PAGE_MAX: Final = 1_000
DELETED_MAX: Final = 100
_TOO_MANY: Final = f"An account has at most {DASHBOARDS_MAX} dashboards."
_MISSING: Final = "Dashboard {} does not exist."
_WRONG_PAGE: Final = "The token is not of this request."


class DashboardOperations:
    """Answers for the dashboards in a store, to both APIs. `now_ms` is the wall clock."""

    def __init__(self, store: Coordination, *, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """CloudWatch's operations, by name."""
        return {
            "PutDashboard": self._put,
            "GetDashboard": self._get,
            "ListDashboards": self._list,
            "DeleteDashboards": self._delete,
        }

    @property
    def admin_handlers(self) -> Mapping[str, Handler]:
        """The operations of the admin API, by name."""
        return {
            "PutDashboard": self._put_for_admin,
            "GetDashboard": self._get_for_admin,
            "ListDashboards": self._list_for_admin,
            "DeleteDashboards": self._delete_for_admin,
        }

    # CloudWatch

    async def _put(self, call: MonitoringCall) -> Mapping[str, Any]:
        given = call.given
        name, body = given["DashboardName"], given["DashboardBody"]
        if not is_dashboard_name(name):
            raise _invalid_name()
        findings = check_body(body)
        messages = [{"DataPath": finding.path, "Message": finding.message} for finding in findings]
        if any(finding.is_error for finding in findings):
            raise CloudWatchError(
                "DashboardInvalidInputError",
                f"The field DashboardBody is not valid: {findings[0].message}",
                dashboardValidationMessages=messages,
            )
        try:
            is_stored = await self._store_body(call.account, name, body)
        except RevisionMismatch:
            raise CloudWatchError(
                "ConcurrentModificationException", f"The dashboard {name} was changed at the same moment."
            ) from None
        if not is_stored:
            raise CloudWatchError("LimitExceededFault", _TOO_MANY)
        return {"DashboardValidationMessages": messages}

    async def _get(self, call: MonitoringCall) -> Mapping[str, Any]:
        name = call.given["DashboardName"]
        found = await self._find(call.account, name)
        if found is None:
            raise _not_found(name)
        return {
            "DashboardName": name,
            "DashboardArn": dashboard_arn(call.account, name),
            "DashboardBody": found.body,
        }

    async def _list(self, call: MonitoringCall) -> Mapping[str, Any]:
        given = call.given
        try:
            after = _read_token(given.get("NextToken"))
        except ValueError:
            raise CloudWatchError("InvalidParameterValueException", _WRONG_PAGE) from None
        rows = await self._page(call.account, given.get("DashboardNamePrefix") or "", after)
        output: dict[str, Any] = {
            "DashboardEntries": [
                {
                    "DashboardName": name,
                    "DashboardArn": dashboard_arn(call.account, name),
                    "LastModified": row.modified_ms / 1000,
                    "Size": len(row.body.encode()),
                }
                for name, row in rows[:PAGE_MAX]
            ]
        }
        if len(rows) > PAGE_MAX:
            output["NextToken"] = _token(rows[PAGE_MAX - 1][0])
        return output

    async def _delete(self, call: MonitoringCall) -> None:
        names = call.given["DashboardNames"]
        if not 1 <= len(names) <= DELETED_MAX:
            raise CloudWatchError("InvalidParameterValueException", f"Name 1 to {DELETED_MAX} dashboards.")
        missing = await self._remove(call.account, names)
        if missing is not None:
            raise _not_found(missing)

    # The admin API, which has checked names

    async def _put_for_admin(self, call: MonitoringCall) -> Mapping[str, Any]:
        name, body = call.given["name"], call.given["body"]
        findings = check_body(body)
        wrong = next((finding for finding in findings if finding.is_error), None)
        if wrong is not None:
            raise InvalidParameterValue(f"The body is no dashboard: {wrong.path} {wrong.message}")
        try:
            is_stored = await self._store_body(call.account, name, body)
        except RevisionMismatch:
            raise Overloaded(f"The dashboard {name} was changed at the same moment. Try again.") from None
        if not is_stored:
            raise LimitExceeded(_TOO_MANY)
        return {
            "name": name,
            "arn": dashboard_arn(call.account, name),
            "remarks": [{"path": finding.path, "message": finding.message} for finding in findings],
        }

    async def _get_for_admin(self, call: MonitoringCall) -> Mapping[str, Any]:
        name = call.given["name"]
        found = await self._find(call.account, name)
        if found is None:
            raise ResourceNotFound(_MISSING.format(name))
        return {
            "name": name,
            "arn": dashboard_arn(call.account, name),
            "modified_ms": found.modified_ms,
            "body": found.body,
        }

    async def _list_for_admin(self, call: MonitoringCall) -> Mapping[str, Any]:
        given = call.given
        try:
            after = _read_token(given["next_token"])
        except ValueError:
            raise InvalidParameterValue(_WRONG_PAGE) from None
        rows = await self._page(call.account, given["prefix"], after)
        some = rows[: given["limit"]]
        return {
            "dashboards": [
                {
                    "name": name,
                    "arn": dashboard_arn(call.account, name),
                    "modified_ms": row.modified_ms,
                    "bytes": len(row.body.encode()),
                }
                for name, row in some
            ],
            "next_token": _token(some[-1][0]) if len(rows) > len(some) else None,
        }

    async def _delete_for_admin(self, call: MonitoringCall) -> Mapping[str, Any]:
        name = call.given["name"]
        if await self._remove(call.account, [name]) is not None:
            raise ResourceNotFound(_MISSING.format(name))
        return {"name": name, "deleted": True}

    # The store

    async def _store_body(self, account: str, name: str, body: str) -> bool:
        """Store a dashboard; false if there may be no more. Raises NotNow, RevisionMismatch."""
        key = dashboard_key(account, name)
        found = await self._store.get(key)
        if found is None:
            rows, _ = await self._store.list_all(f"{DASHBOARDS}{account}/")
            if len(rows) >= DASHBOARDS_MAX:
                return False
        row = DashboardRow(body, self._now_ms())
        await self._store.transaction(
            [Compare(key, ABSENT if found is None else found.revision)], [Put(key, encode_dashboard(row))]
        )
        return True

    async def _find(self, account: str, name: str) -> DashboardRow | None:
        found = await self._store.get(dashboard_key(account, name))
        return None if found is None else decode_dashboard(found.value)

    async def _page(self, account: str, prefix: str, after: str) -> list[tuple[str, DashboardRow]]:
        """Return the dashboards whose names have a prefix and come after another name, in order of their names."""
        there = f"{DASHBOARDS}{account}/"
        rows, _ = await self._store.list_all(there + prefix)
        found = {row.key.removeprefix(there): row.value for row in rows}
        return [(name, decode_dashboard(found[name])) for name in sorted(found) if name > after]

    async def _remove(self, account: str, names: list[str]) -> str | None:
        """Delete dashboards; if there is one that is not there, return its name, and delete none."""
        keys = {dashboard_key(account, name): name for name in names}
        found = {row.key for row in (await self._store.read(list(keys)))[0]}
        missing = next((name for key, name in keys.items() if key not in found), None)
        if missing is None:
            await self._store.transaction([], [], list(keys))
        return missing


def _not_found(name: str) -> CloudWatchError:
    return CloudWatchError("DashboardNotFoundError", _MISSING.format(name))


def _invalid_name() -> CloudWatchError:
    return CloudWatchError(
        "InvalidParameterValueException", "The name of a dashboard has 1 to 255 of A-Z, a-z, 0-9, - and _."
    )


def _token(name: str) -> str:
    """Return where a list goes on: after a name."""
    return base64.urlsafe_b64encode(name.encode()).decode()


def _read_token(token: str | None) -> str:
    """Return after which name a list goes on. Raises ValueError."""
    return base64.urlsafe_b64decode(token).decode() if token else ""
