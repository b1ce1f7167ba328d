"""Usage, and audit search. Both read tables of the usage pipeline, which may not be there."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from starlette.responses import Response

from quaymaster.console.site import APIError
from quaymaster.console.web.page_calls import Page, PageCall

USAGE: Final = "/admin/v1/usage"
AUDIT: Final = "/admin/v1/audit"
UNSUPPORTED: Final = "UnsupportedOperation"
NOT_NOW: Final = 503
DAYS_SHOWN: Final = 30
SEARCHES: Final = ("from", "to", "principal", "action", "queue")


async def show_usage(call: PageCall) -> Response:
    """Show what an account used, by day, queue and action."""
    today = datetime.datetime.fromtimestamp(call.site.now_ms() / 1_000, datetime.UTC).date()
    first = today - datetime.timedelta(days=DAYS_SHOWN - 1)
    asked = {"from": call.query("from") or str(first), "to": call.query("to") or str(today)}
    account = call.account
    found, reason = await _ask(call, USAGE, {**asked, "account_id": account})
    return call.render(
        "usage.html",
        asked=asked,
        account=account,
        rows=found.get("rows", []),
        has_more=found.get("has_more", False),
        currency=found.get("currency"),
        total=_sum_of_costs(found.get("rows", [])),
        why_no_costs=found.get("why_no_costs", ""),
        reason=reason,
    )


async def show_audit(call: PageCall) -> Response:
    """Search audit events of an account."""
    asked = {name: call.query(name).strip() for name in SEARCHES}
    account = call.account
    query = {name: value for name, value in asked.items() if value}
    found, reason = await _ask(call, AUDIT, {**query, "account_id": account})
    return call.render(
        "audit.html",
        asked=asked,
        account=account,
        events=found.get("events", []),
        has_more=found.get("has_more", False),
        reason=reason,
    )


def _sum_of_costs(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what rows cost together, with as many digits as invoices have; None: it is not known."""
    costs = [Decimal(row["cost"]) for row in rows if row.get("cost") is not None]
    return f"{sum(costs):,.2f}" if costs and len(costs) == len(rows) else None


async def _ask(call: PageCall, path: str, query: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Return an answer, or why there is none now: tables need the usage pipeline, and some seconds to be read."""
    try:
        return await call.api.admin(call.caller, "GET", path, query=query), ""
    except APIError as error:
        if not error.code.endswith(UNSUPPORTED) and error.status != NOT_NOW:
            raise
        return {}, error.message


PAGES = (
    Page("/usage", show_usage),
    Page("/audit", show_audit),
)
