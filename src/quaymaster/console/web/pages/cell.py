"""The cell: its processes, journals with their leaders and followers, and what managers decided."""

from __future__ import annotations

from starlette.responses import Response

from quaymaster.console.web import access
from quaymaster.console.web.page_calls import Page, PageCall, error_page


async def show(call: PageCall) -> Response:
    """Show the cell."""
    shows_decisions = await sees_decisions(call)
    return call.render("cell.html", cell=call.site.cell(), shows_decisions=shows_decisions)


async def sees_decisions(call: PageCall) -> bool:
    """Tell whether the user sees decisions on the cell's page. APIError: not even that page."""
    await _check(call)
    return not await call.sees.refusal(call.session.account, access.decisions)


async def _check(call: PageCall) -> None:
    refusal = await call.sees.refusal(call.session.account, access.cell)
    if refusal:
        raise access.refused(refusal)


async def show_process(call: PageCall) -> Response:
    """Show what a process used."""
    await _check(call)
    role, name = call.part("role"), call.part("name")
    charts = call.site.process(role, name)
    if charts is None:
        return error_page(
            call, 404, "There is no such process", "Or its metrics were not read in the last 3 h."
        )
    return call.render("process.html", role=role, name=name, charts=charts)


PAGES = (
    Page("/cell", show, operators=True),
    Page("/cell/{role}/{name}", show_process, operators=True),
)
