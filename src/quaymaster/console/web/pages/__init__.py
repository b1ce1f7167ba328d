"""The pages, each with its acts. `PAGES` is the table of all of them."""

from quaymaster.console.web.page_calls import Page
from quaymaster.console.web.pages import live_page, overview, sign_in

PAGES: tuple[Page, ...] = (
    *sign_in.PAGES,
    *overview.PAGES,
    *live_page.PAGES,
)
