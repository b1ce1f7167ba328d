"""The operations of the admin API on dashboards: those that CloudWatch's PutDashboard makes, and pages show."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from quaymaster.core.access.operations import Operation
from quaymaster.core.monitoring.dashboards import BODY_BYTES_MAX, DASHBOARDS_MAX, NAME_PATTERN
from quaymaster.core.values import errors
from quaymaster.protocol.admin.members import AdminAnswer, Change, Limit, NextToken, OfAccount
from quaymaster.protocol.admin.operation import NOT_THERE, row

DashboardName = Annotated[
    str,
    Meta(pattern=NAME_PATTERN, max_length=255, description="Letters, digits, - and _."),
]


class ListDashboardsRequest(OfAccount, frozen=True, kw_only=True):
    prefix: Annotated[str, Meta(max_length=255)] = ""
    limit: Limit = 100
    next_token: NextToken = ""


class DashboardRequest(OfAccount, frozen=True, kw_only=True):
    name: DashboardName


class PutDashboardRequest(OfAccount, frozen=True, kw_only=True):
    name: DashboardName
    body: Annotated[
        str, Meta(max_length=BODY_BYTES_MAX, description="CloudWatch's dashboard body, JSON, as text.")
    ]


class DashboardEntry(AdminAnswer, frozen=True, kw_only=True):
    """A dashboard without its body."""

    name: str
    arn: str
    modified_ms: int
    bytes: Annotated[int, Meta(description="Of its body.")]


class DashboardList(AdminAnswer, frozen=True, kw_only=True):
    """Dashboards of an account in order of their names."""

    dashboards: list[DashboardEntry]
    next_token: Annotated[str | None, Meta(description="null: there are no more.")]


class DashboardView(AdminAnswer, frozen=True, kw_only=True):
    name: str
    arn: str
    modified_ms: int
    body: Annotated[str, Meta(description="As it was given, JSON.")]


class DashboardRemark(AdminAnswer, frozen=True, kw_only=True):
    """What of a body is kept and not shown."""

    path: Annotated[str, Meta(description="Where, such as `/widgets/0/type`.")]
    message: str


class StoredDashboard(Change, frozen=True, kw_only=True):
    name: str
    arn: str
    remarks: list[DashboardRemark]


class DeletedDashboard(Change, frozen=True, kw_only=True):
    name: str
    deleted: Literal[True] = True


DASHBOARDS_OPERATIONS: Final = (
    row(
        "GET",
        "dashboards",
        Operation.LIST_DASHBOARDS,
        ListDashboardsRequest,
        DashboardList,
        "Lists the dashboards of an account.",
        who="owner",
        answered_by="console",
    ),
    row(
        "GET",
        "dashboards/{name}",
        Operation.GET_DASHBOARD,
        DashboardRequest,
        DashboardView,
        "Shows a dashboard.",
        errors=NOT_THERE,
        who="owner",
        answered_by="console",
    ),
    row(
        "POST",
        "dashboards/{name}",
        Operation.PUT_DASHBOARD,
        PutDashboardRequest,
        StoredDashboard,
        f"Makes a dashboard, or gives it another body; an account has at most {DASHBOARDS_MAX}.",
        errors=(errors.LimitExceeded,),
        who="owner",
        answered_by="console",
    ),
    row(
        "DELETE",
        "dashboards/{name}",
        Operation.DELETE_DASHBOARDS,
        DashboardRequest,
        DeletedDashboard,
        "Deletes a dashboard.",
        errors=NOT_THERE,
        who="owner",
        answered_by="console",
    ),
)
