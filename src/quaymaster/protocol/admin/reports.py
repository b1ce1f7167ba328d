"""Requests and answers of the admin API about tables of the usage pipeline: what was used, and who did what."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from quaymaster.core.access.operations import Operation
from quaymaster.core.values import errors
from quaymaster.protocol.admin.members import AdminAnswer, OfAccount
from quaymaster.protocol.admin.operation import row

ROWS_MAX: Final = 1_000
EVENTS_MAX: Final = 200
COSTS_UNKNOWN: Final = "CostsUnknown"
"""With this code `quaymaster usage --costs` says that there is no price: what was used is known all the same."""
Day = Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$", description="A day, in UTC.")]
OptionalDay = Annotated[str, Meta(pattern=r"^(?:\d{4}-\d{2}-\d{2})?$", description="A day, in UTC.")]
Words = Annotated[str, Meta(max_length=256, pattern=r"^[^\x00]*$")]
"""No word of a command can have a NUL, and a console gives them to one."""


class GetUsageRequest(OfAccount, frozen=True, kw_only=True, rename={"from_": "from"}):
    from_: Day
    to: Day


class UsageRow(AdminAnswer, frozen=True, kw_only=True):
    """What an account used of a queue by an action on a day."""

    day: str
    account_id: str
    queue: str
    action: str
    requests: int
    messages: int
    bytes: int
    errors: int
    cost: Annotated[
        str | None, Meta(description="By the price book, exactly; invoices count. null: not known.")
    ] = None


class UsageRows(AdminAnswer, frozen=True, kw_only=True):
    rows: Annotated[list[UsageRow], Meta(description=f"The newest days first, at most {ROWS_MAX}.")]
    has_more: bool
    currency: Annotated[str | None, Meta(description="Of costs. null: there are none.")] = None
    why_no_costs: Annotated[str, Meta(description="Empty where costs are known.")] = ""


class SearchAuditRequest(OfAccount, frozen=True, kw_only=True, rename={"from_": "from"}):
    from_: OptionalDay = ""
    to: OptionalDay = ""
    principal: Annotated[Words, Meta(description="ARN of who did it.")] = ""
    action: Words = ""
    queue: Words = ""


class AuditRow(AdminAnswer, frozen=True, kw_only=True):
    """An act, or a request that was refused."""

    time: Annotated[str, Meta(description="ISO 8601, in UTC.")]
    account_id: str
    principal: str
    action: str
    queue: str
    address: str
    error: Annotated[str, Meta(description="Code of the refusal; empty: it was done.")]


class AuditRows(AdminAnswer, frozen=True, kw_only=True):
    events: Annotated[list[AuditRow], Meta(description=f"The newest first, at most {EVENTS_MAX}.")]
    has_more: bool


REPORTS_OPERATIONS: Final = (
    row(
        "GET",
        "usage",
        Operation.GET_USAGE,
        GetUsageRequest,
        UsageRows,
        "Shows what an account used and what it costs, by day, as the tables of the "
        "[usage pipeline](../guides/pipeline.md) have it.",
        errors=(errors.UnsupportedOperation,),
        who="owner",
        answered_by="console",
    ),
    row(
        "GET",
        "audit",
        Operation.SEARCH_AUDIT,
        SearchAuditRequest,
        AuditRows,
        "Searches an account's [audit events](../guides/audit.md) in the tables of the usage pipeline.",
        errors=(errors.UnsupportedOperation,),
        who="owner",
        answered_by="console",
    ),
)
