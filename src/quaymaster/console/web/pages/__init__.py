"""The pages, each with its acts. `PAGES` is the table of all of them."""

from quaymaster.console.web.page_calls import Page
from quaymaster.console.web.pages import (
    cell,
    dead_letters,
    live_page,
    messages,
    overview,
    queue,
    queue_policy,
    queues,
    sign_in,
)

PAGES: tuple[Page, ...] = (
    *sign_in.PAGES,
    *overview.PAGES,
    *queues.PAGES,
    *queue.PAGES,
    *messages.PAGES,
    *dead_letters.PAGES,
    *queue_policy.PAGES,
    *cell.PAGES,
    *live_page.PAGES,
)
