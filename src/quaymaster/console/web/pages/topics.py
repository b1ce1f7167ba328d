"""What live pages show: for each kind of topic, how its fragments are made."""

from __future__ import annotations

from typing import Final

from quaymaster.console.site import QueueNow, Site
from quaymaster.console.web.access import refused
from quaymaster.console.web.live import Fragments, Renderer, Topic
from quaymaster.console.web.page_calls import PageCall
from quaymaster.console.web.pages import alerts, cell, overview, queues
from quaymaster.console.web.pages.queue import DEFAULT_RANGE, RANGES, find_charts, refusals_of_charts
from quaymaster.console.web.templating import Templates
from quaymaster.console.web.views.queue_list import QueueOrders, parse_list

ROWS_KEPT_MS: Final = 5_000
"""A row of a list is made again after so long, for its ages grow also where its values stay."""
CHARTS_KEPT_MS: Final = 15_000
CHARTS_KEPT_MAX: Final = 200


def _marks(**shown: bool) -> tuple[str, ...]:
    return tuple(part for part, is_shown in shown.items() if is_shown)


async def topic_of(call: PageCall) -> Topic | None:
    """Return the topic that a page asks for, with the parts that its user may see; None: there is none of this kind.

    APIError: the user may see nothing of it.
    """
    kind = call.query("kind")
    match kind:
        case "overview":
            parts = await overview.parts_of(call)
            marks = _marks(alerts=not parts.alerts, cell=parts.shows_cell, all=parts.has_all_problems)
            return Topic(kind, parts.account, marks)
        case "alerts":
            return Topic(kind, await alerts.listed_scope(call))
        case "queues":
            asked, without_values = await queues.list_request(call)
            if without_values:
                raise refused(without_values)
            columns = "accounts" if call.session.is_operator else ""
            return Topic(kind, asked.account, (asked.search, asked.sort, str(asked.shown), columns))
        case "queue":
            account = call.query("account")
            if not call.session.is_operator and account != call.session.account:
                return None
            name, chosen = call.query("name"), call.query("range")
            without_values, without_charts = await refusals_of_charts(call, account, name)
            marks = _marks(values=not without_values, charts=not without_charts)
            return Topic(kind, account, (name, chosen if chosen in RANGES else DEFAULT_RANGE, *marks))
        case "cell" if call.session.is_operator:
            return Topic(kind, None, _marks(decisions=await cell.sees_decisions(call)))
        case _:
            return None


class TopicRenderer:
    """Makes the fragments of topics, and keeps those that several of them share."""

    def __init__(self, site: Site, templates: Templates, orders: QueueOrders) -> None:
        self._site = site
        self._templates = templates
        self._orders = orders
        self._rows: dict[tuple[str, bool], tuple[QueueNow, str]] = {}
        self._rows_at_ms = 0
        self._charts: dict[tuple[str, str, str], tuple[int, str]] = {}

    async def render(self, topic: Topic) -> Fragments:
        """Return what the pages of a topic show now, by the ids of their elements."""
        now_ms = self._site.now_ms()
        match topic.kind:
            case "overview":
                shown = overview.shown_of(
                    self._site.overview(topic.account),
                    shows_charts=False,  # which are not live
                    shows_alerts="alerts" in topic.subject,
                    shows_cell="cell" in topic.subject,
                )
                return {"overview": self._part("overview_body", shown, now_ms, "all" in topic.subject)}
            case "queues":
                return self._queue_rows(topic, now_ms)
            case "queue":
                return await self._queue(topic, now_ms)
            case "alerts":
                return {"alerts": self._part("alerts_body", self._site.alerts(topic.account), now_ms)}
            case _:
                return {
                    "cell": self._part("cell_body", self._site.cell(), now_ms, "decisions" in topic.subject)
                }

    def _queue_rows(self, topic: Topic, now_ms: int) -> Fragments:
        search, sort, shown, columns = topic.subject
        if now_ms - self._rows_at_ms >= ROWS_KEPT_MS:
            self._rows.clear()
            self._rows_at_ms = now_ms
        found = self._orders.find(
            parse_list(topic.account, search, sort, shown),
            self._site.queues,
            now_ms,
            self._site.queue,
        )
        return {f"q{queue.queue_id}": self._queue_row(queue, now_ms, bool(columns)) for queue in found.rows}

    def _queue_row(self, queue: QueueNow, now_ms: int, shows_accounts: bool) -> str:
        key = (queue.queue_id, shows_accounts)
        known = self._rows.get(key)
        if known is not None and known[0] == queue:
            return known[1]
        text = self._part("queue_cells", queue, now_ms, shows_accounts)
        self._rows[key] = (queue, text)
        return text

    async def _queue(self, topic: Topic, now_ms: int) -> Fragments:
        name, time_range, *parts = topic.subject
        account = topic.account or ""
        queue = self._site.queue(account, name)
        if queue is None:
            return {}
        self._site.watch(account, name)
        shown = {}
        if "values" in parts:
            shown["facts"] = self._part("queue_facts", queue, now_ms)
        if "charts" in parts:
            shown["charts"] = await self._charts_of(account, name, time_range, now_ms)
        return shown

    async def _charts_of(self, account: str, name: str, time_range: str, now_ms: int) -> str:
        key = (account, name, time_range)
        known = self._charts.pop(key, None)
        if known is None or now_ms - known[0] >= CHARTS_KEPT_MS:
            charts = await find_charts(self._site, account, name, time_range)
            known = (now_ms, self._part("queue_charts", charts))
        self._charts[key] = known
        if len(self._charts) > CHARTS_KEPT_MAX:
            del self._charts[next(iter(self._charts))]
        return known[1]

    def _part(self, macro: str, *values: object) -> str:
        return self._templates.macro("parts.html", macro, *values)


def renderer(site: Site, templates: Templates, orders: QueueOrders) -> Renderer:
    """Return what makes the fragments of topics."""
    return TopicRenderer(site, templates, orders).render
