"""The first page: what needs attention, and how messages flow."""

from __future__ import annotations

from starlette.responses import Response

from quaymaster.console.web.page_calls import Page, PageCall


async def show(call: PageCall) -> Response:
    """Show the overview."""
    return call.render("overview.html", overview=call.site.overview(call.scope), account=call.scope)


PAGES = (Page("/", show),)
