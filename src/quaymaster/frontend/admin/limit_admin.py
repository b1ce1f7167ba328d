"""What operators do with limits of accounts and queues: routes of the admin API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

from quaymaster.core.access.operations import Operation
from quaymaster.core.limits.limits import Limit, LimitName, LimitTable, check_limit
from quaymaster.core.values.errors import InvalidParameterValue
from quaymaster.core.values.queue_names import is_account_id, is_queue_name
from quaymaster.frontend.admin.admin_calls import PAGE_MAX, AdminCall, AdminRoute
from quaymaster.protocol.actions.table import ACTIONS

LIMIT_CLASSES: Final = frozenset(action.limit_class for action in ACTIONS.values())
"""Actions that can have a limit; that of a single action is its batch's too."""


class LimitService(Protocol):
    """The part of the metadata service that owns limits. Errors are those of `core/values/errors`."""

    @property
    def table(self) -> LimitTable: ...

    async def set(self, name: LimitName, limit: Limit) -> None: ...

    async def remove(self, name: LimitName) -> None: ...


class LimitAdmin:
    """Answers requests about limits."""

    def __init__(self, limits: LimitService) -> None:
        self._limits = limits

    def routes(self) -> dict[tuple[str, ...], AdminRoute]:
        """Return what answers each request, as `Admin` has them."""
        return {
            ("GET", "limits"): AdminRoute(self._list_limits, looks_at=Operation.LIST_LIMITS),
            ("POST", "limits"): AdminRoute(self._set_limit, "SetLimit"),
            ("GET", "limits", "*"): AdminRoute(self._show_limits, looks_at=Operation.GET_LIMITS),
            ("DELETE", "limits", "*"): AdminRoute(self._remove_limit, "RemoveLimit"),
        }

    async def _list_limits(self, call: AdminCall) -> Mapping[str, Any]:
        """List the limits of one account, or of whole accounts until a page is full."""
        table = self._limits.table
        account_id = call.query.get("account_id")
        if account_id:
            return {"limits": _rows(table, account_id), "next_token": None}
        page_max = call.number("limit", PAGE_MAX, largest=PAGE_MAX)
        rows: list[dict[str, Any]] = []
        for account_id in table.accounts(after=call.query.get("next_token", "")):
            if len(rows) >= page_max:
                return {"limits": rows, "next_token": rows[-1]["account_id"]}
            rows += _rows(table, account_id)
        return {"limits": rows, "next_token": None}

    async def _set_limit(self, call: AdminCall) -> Mapping[str, Any]:
        name = _checked(LimitName(call.text("account_id"), call.text("queue", ""), call.text("action", "")))
        rates = [call.integer(word) if call.fields.get(word) is not None else None for word in Limit._fields]
        limit = check_limit(*rates)
        await self._limits.set(name, limit)
        return _row(name, limit)

    async def _show_limits(self, call: AdminCall) -> Mapping[str, Any]:
        queue = call.query.get("queue", "")
        _checked(LimitName(call.name, queue))
        effective = self._limits.table.effective(call.name, call.name, queue)
        return {"account_id": call.name, "queue": queue, "effective": json.loads(effective)}

    async def _remove_limit(self, call: AdminCall) -> Mapping[str, Any]:
        name = LimitName(call.name, call.query.get("queue", ""), call.query.get("action", ""))
        await self._limits.remove(name)
        return {**_row(name, Limit()), "deleted": True}


def _checked(name: LimitName) -> LimitName:
    if not is_account_id(name.account_id):
        raise InvalidParameterValue.of("account_id", name.account_id, "Must be 12 digits.")
    if name.queue and not is_queue_name(name.queue):
        raise InvalidParameterValue.of("queue", name.queue, "Must be the name of a queue.")
    if name.action and name.action not in LIMIT_CLASSES:
        raise InvalidParameterValue.of(
            "action", name.action, f"Must be one of {', '.join(sorted(LIMIT_CLASSES - {''}))}."
        )
    return name


def _rows(table: LimitTable, account_id: str) -> list[dict[str, Any]]:
    return [_row(name, limit) for name, limit in table.of_account(account_id)]


def _row(name: LimitName, limit: Limit) -> dict[str, Any]:
    return {**name._asdict(), **limit._asdict()}
