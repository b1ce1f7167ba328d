"""The operations of CloudWatch on dashboards, which are rows of the store: all consoles of a cell know the same."""

from __future__ import annotations

import base64
import binascii
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
from quaymaster.protocol.cloudwatch.errors import CloudWatchError
from quaymaster.protocol.rpc.monitoring_calls import MonitoringCall

PAGE_MAX: Final = 1_000
DELETED_MAX: Final = 100


class DashboardOperations:
    """Answers for the dashboards in a store. `now_ms` is the wall clock."""

    def __init__(self, store: Coordination, *, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The operations, by name."""
        return {
            "PutDashboard": self._put,
            "GetDashboard": self._get,
            "ListDashboards": self._list,
            "DeleteDashboards": self._delete,
        }

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
        key = dashboard_key(call.account, name)
        found = await self._store.get(key)
        if found is None:
            rows, _ = await self._store.list_all(f"{DASHBOARDS}{call.account}/")
            if len(rows) >= DASHBOARDS_MAX:
                raise CloudWatchError(
                    "LimitExceededFault", f"An account has at most {DASHBOARDS_MAX} dashboards."
                )
        row = DashboardRow(body, self._now_ms())
        try:
            await self._store.transaction(
                [Compare(key, ABSENT if found is None else found.revision)], [Put(key, encode_dashboard(row))]
            )
        except RevisionMismatch:
            raise CloudWatchError(
                "ConcurrentModificationException", f"The dashboard {name} was changed at the same moment."
            ) from None
        return {"DashboardValidationMessages": messages}

    async def _get(self, call: MonitoringCall) -> Mapping[str, Any]:
        name = call.given["DashboardName"]
        found = await self._store.get(dashboard_key(call.account, name))
        if found is None:
            raise _not_found(name)
        return {
            "DashboardName": name,
            "DashboardArn": dashboard_arn(call.account, name),
            "DashboardBody": decode_dashboard(found.value).body,
        }

    async def _list(self, call: MonitoringCall) -> Mapping[str, Any]:
        given = call.given
        prefix = f"{DASHBOARDS}{call.account}/"
        after = _read_token(given.get("NextToken"))
        rows, _ = await self._store.list_all(prefix + (given.get("DashboardNamePrefix") or ""))
        names = sorted(row.key.removeprefix(prefix) for row in rows)
        values = {row.key.removeprefix(prefix): decode_dashboard(row.value) for row in rows}
        left = [name for name in names if name > after]
        output: dict[str, Any] = {
            "DashboardEntries": [
                {
                    "DashboardName": name,
                    "DashboardArn": dashboard_arn(call.account, name),
                    "LastModified": values[name].modified_ms / 1000,
                    "Size": len(values[name].body.encode()),
                }
                for name in left[:PAGE_MAX]
            ]
        }
        if len(left) > PAGE_MAX:
            output["NextToken"] = base64.urlsafe_b64encode(left[PAGE_MAX - 1].encode()).decode()
        return output

    async def _delete(self, call: MonitoringCall) -> None:
        names = call.given["DashboardNames"]
        if not 1 <= len(names) <= DELETED_MAX:
            raise CloudWatchError("InvalidParameterValueException", f"Name 1 to {DELETED_MAX} dashboards.")
        keys = {dashboard_key(call.account, name): name for name in names}
        found = {row.key for row in (await self._store.read(list(keys)))[0]}
        missing = [name for key, name in keys.items() if key not in found]
        if missing:
            raise _not_found(missing[0])
        await self._store.transaction([], [], list(keys))


def _not_found(name: str) -> CloudWatchError:
    return CloudWatchError("DashboardNotFoundError", f"Dashboard {name} does not exist.")


def _invalid_name() -> CloudWatchError:
    return CloudWatchError(
        "InvalidParameterValueException", "The name of a dashboard has 1 to 255 of A-Z, a-z, 0-9, - and _."
    )


def _read_token(token: str | None) -> str:
    try:
        return base64.urlsafe_b64decode(token).decode() if token else ""
    except (binascii.Error, ValueError):
        raise CloudWatchError("InvalidParameterValueException", "The token is not of this request.") from None
