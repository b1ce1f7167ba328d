"""The first page: what needs attention, and how messages flow."""

from __future__ import annotations

from typing import NamedTuple

from starlette.responses import Response

from quaymaster.console.site import Overview
from quaymaster.console.web import access
from quaymaster.console.web.page_calls import Page, PageCall


class OverviewParts(NamedTuple):
    """Which parts of the overview of an account (None: of all) are refused to a user, and with which words."""

    account: str | None
    charts: str
    alerts: str
    cell: str

    @property
    def shows_cell(self) -> bool:
        """Whether problems of the cell are shown: to operators who look at all accounts."""
        return self.account is None and not self.cell

    @property
    def has_all_problems(self) -> bool:
        """Whether nothing that needs attention is left out."""
        return not self.alerts and not self.cell


async def parts_of(call: PageCall) -> OverviewParts:
    """Return what the user of a page may see of the overview. APIError: nothing of it."""
    sees = call.sees
    account, charts = await sees.scope(call.query("account"), access.values)
    alerts = await sees.refusal(account, access.alerts)
    cell = await sees.refusal(sees.account, access.cell) if account is None else ""
    if charts and alerts:
        raise access.refused(charts)
    return OverviewParts(account, charts, alerts, cell)


def shown_of(overview: Overview, *, shows_charts: bool, shows_alerts: bool, shows_cell: bool) -> Overview:
    """Return the parts of an overview that may be seen."""
    problems = [
        problem for problem in overview.problems if (shows_alerts if problem.is_alert else shows_cell)
    ]
    return overview._replace(problems=problems, charts=overview.charts if shows_charts else ())


async def show(call: PageCall) -> Response:
    """Show the overview."""
    parts = await parts_of(call)
    overview = shown_of(
        call.site.overview(parts.account),
        shows_charts=not parts.charts,
        shows_alerts=not parts.alerts,
        shows_cell=parts.shows_cell,
    )
    return call.render("overview.html", overview=overview, account=parts.account, parts=parts)


PAGES = (Page("/", show),)
