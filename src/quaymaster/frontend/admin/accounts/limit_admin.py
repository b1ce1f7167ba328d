"""What operators do with limits of accounts and queues: routes of the admin API."""

from __future__ import annotations

import json
from typing import Any, Final, Protocol

from quaymaster.core.limits.limits import Limit, LimitName, LimitTable, check_limit
from quaymaster.core.values.errors import InvalidParameterValue
from quaymaster.core.values.queues.queue_names import is_account_id, is_queue_name
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute
from quaymaster.protocol.actions.table import ACTIONS
from quaymaster.protocol.admin import accounts as shapes

LIMIT_CLASSES: Final = frozenset(action.limit_class for action in ACTIONS.values())
"""Actions that can have a limit; that of a single action is its batch's too."""
QUEUE_LIMIT_CLASSES: Final = frozenset(
    action.limit_class for action in ACTIONS.values() if action.scope not in ("account", "resources")
)
"""Those that a queue can have a limit on: the others are about no queue, so that nothing would be charged."""


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

    def routes(self) -> dict[str, AdminRoute]:
        """Return what answers each operation."""
        return {
            "ListLimits": AdminRoute(self._list_limits),
            "SetLimit": AdminRoute(self._set_limit),
            "GetLimits": AdminRoute(self._show_limits, owner_of=_account_of),
            "RemoveLimit": AdminRoute(self._remove_limit),
        }

    async def _list_limits(self, call: AdminCall, given: shapes.ListLimitsRequest) -> shapes.LimitList:
        """List the limits of one account, or of whole accounts until a page is full."""
        table = self._limits.table
        if given.account_id:
            return shapes.LimitList(limits=_views(table, given.account_id), next_token=None)
        rows: list[shapes.LimitView] = []
        for account_id in table.accounts(after=given.next_token):
            if len(rows) >= given.limit:
                return shapes.LimitList(limits=rows, next_token=rows[-1].account_id)
            rows += _views(table, account_id)
        return shapes.LimitList(limits=rows, next_token=None)

    async def _set_limit(self, call: AdminCall, given: shapes.SetLimitRequest) -> shapes.LimitView:
        name = _checked(LimitName(given.account_id, given.queue, given.action))
        limit = check_limit(given.requests, given.bytes)
        await self._limits.set(name, limit)
        return _view(name, limit)

    async def _show_limits(self, call: AdminCall, given: shapes.GetLimitsRequest) -> shapes.EffectiveLimits:
        _checked(LimitName(given.account_id, given.queue))
        effective = self._limits.table.effective(given.account_id, given.account_id, given.queue)
        return shapes.EffectiveLimits(
            account_id=given.account_id, queue=given.queue, effective=json.loads(effective)
        )

    async def _remove_limit(self, call: AdminCall, given: shapes.RemoveLimitRequest) -> shapes.RemovedLimit:
        name = LimitName(given.account_id, given.queue, given.action)
        await self._limits.remove(name)
        return shapes.RemovedLimit(**_members(name, Limit()))


def _account_of(call: AdminCall, given: shapes.GetLimitsRequest) -> str:
    return given.account_id


def _checked(name: LimitName) -> LimitName:
    if not is_account_id(name.account_id):
        raise InvalidParameterValue.of("account_id", name.account_id, "Must be 12 digits.")
    if name.queue and not is_queue_name(name.queue):
        raise InvalidParameterValue.of("queue", name.queue, "Must be the name of a queue.")
    if name.action and name.action not in LIMIT_CLASSES:
        raise InvalidParameterValue.of(
            "action", name.action, f"Must be one of {', '.join(sorted(LIMIT_CLASSES - {''}))}."
        )
    if name.queue and name.action and name.action not in QUEUE_LIMIT_CLASSES:
        raise InvalidParameterValue.of(
            "action", name.action, "It is about no queue: set the limit on the account, without a queue."
        )
    return name


def _views(table: LimitTable, account_id: str) -> list[shapes.LimitView]:
    return [_view(name, limit) for name, limit in table.of_account(account_id)]


def _view(name: LimitName, limit: Limit) -> shapes.LimitView:
    return shapes.LimitView(**_members(name, limit))


def _members(name: LimitName, limit: Limit) -> dict[str, Any]:
    return {**name._asdict(), **limit._asdict()}
