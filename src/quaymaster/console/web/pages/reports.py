"""Usage with its cost, and audit search. Both read tables of the usage pipeline, which may not be there."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from quaymaster.console.site import APIError
from quaymaster.console.web.page_calls import Page, PageCall

USAGE: Final = "/admin/v1/usage"
AUDIT: Final = "/admin/v1/audit"
NO_SUCH_OPERATION: Final = 404
NOT_THERE: Final = frozenset((NO_SUCH_OPERATION, 501))
DAYS_SHOWN: Final = 30
SEARCHES: Final = ("from", "to", "principal", "action", "resource", "outcome")


async def show_usage(call: PageCall) -> Response:
    """Show usage by day, queue and action."""
    today = datetime.datetime.fromtimestamp(call.site.now_ms() / 1_000, datetime.UTC).date()
    first = today - datetime.timedelta(days=DAYS_SHOWN - 1)
    asked = {"from": call.query("from") or str(first), "to": call.query("to") or str(today)}
    query = {**asked, **({"account_id": call.scope} if call.scope else {})}
    found, reason = await _ask(call, USAGE, query)
    rows: list[Mapping[str, Any]] = found.get("rows", [])
    return call.render(
        "usage.html",
        asked=asked,
        account=call.scope,
        rows=rows,
        currency=found.get("currency", ""),
        as_of_ms=found.get("as_of_ms"),
        total=_total(rows),
        reason=reason,
    )


def _total(rows: list[Mapping[str, Any]]) -> float | None:
    """Return what all rows cost; None where one of them has no price."""
    costs = [row.get("cost") for row in rows]
    return sum(float(cost) for cost in costs if cost is not None) if None not in costs else None


async def show_audit(call: PageCall) -> Response:
    """Search audit events."""
    asked = {name: call.query(name).strip() for name in SEARCHES}
    query = {name: value for name, value in asked.items() if value}
    if call.scope:
        query["account_id"] = call.scope
    if call.query("next"):
        query["next_token"] = call.query("next")
    found, reason = await _ask(call, AUDIT, query)
    return call.render(
        "audit.html",
        asked=asked,
        account=call.scope,
        events=found.get("events", []),
        next_token=found.get("next_token"),
        reason=reason,
    )


async def _ask(call: PageCall, path: str, query: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Return an answer, or why there is none: tables need the usage pipeline."""
    try:
        return await call.api.admin(call.caller, "GET", path, query=query), ""
    except APIError as error:
        if error.status not in NOT_THERE:
            raise
        return (
            {},
            "This server does not answer for them." if error.status == NO_SUCH_OPERATION else error.message,
        )


PAGES = (
    Page("/usage", show_usage),
    Page("/audit", show_audit),
)
