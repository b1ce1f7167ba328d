"""The cell: its processes, journals with their leaders and followers, and what managers decided."""

from __future__ import annotations

from starlette.responses import Response

from quaymaster.console.web.page_calls import Page, PageCall


async def show(call: PageCall) -> Response:
    """Show the cell."""
    return call.render("cell.html", cell=call.site.cell())


PAGES = (Page("/cell", show, operators=True),)
