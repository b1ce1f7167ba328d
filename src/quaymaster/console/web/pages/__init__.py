"""The pages, each with its acts. `PAGES` is the table of all of them."""

from quaymaster.console.web.page_calls import Page
from quaymaster.console.web.pages import (
    accounts,
    alerts,
    cell,
    dashboards,
    dead_letters,
    groups,
    live_page,
    messages,
    overview,
    queue,
    queue_policy,
    queue_push,
    queues,
    reports,
    sign_in,
    users,
)

PAGES: tuple[Page, ...] = (
    *sign_in.PAGES,
    *overview.PAGES,
    *queues.PAGES,
    *queue.PAGES,
    *messages.PAGES,
    *dead_letters.PAGES,
    *groups.PAGES,
    *queue_policy.PAGES,
    *queue_push.PAGES,
    *alerts.PAGES,
    *dashboards.PAGES,
    *reports.PAGES,
    *users.PAGES,
    *accounts.PAGES,
    *cell.PAGES,
    *live_page.PAGES,
)
