"""Live pages: one hub renders each topic once a second, for all pages that show it.

    page ──/admin/v1/live?topic=…──▶ Hub ── renders the topic, once a second ──▶ fragments by element id
                                       └──▶ each page: only the fragments that it does not have yet

A page that reads slowly finds the newest fragments, and none of those in between. Hidden tabs disconnect by themselves.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from quaymaster.console.site import Credentials, Site

RENDER_EVERY_S: Final = 1.0
ENDED_EVERY_S: Final = 5.0
SEEN_EVERY_S: Final = 10.0
"""A page is asked again whether its user may see it; that is a call for each session that policies limit."""
PING_EVERY_S: Final = 15.0
"""A comment, so that proxies do not take a quiet page for a dead one."""

Fragments = Mapping[str, str]
_log = logging.getLogger(__name__)


class Topic(NamedTuple):
    """What a page shows, and of which account (None: all). Pages with equal topics share their fragments."""

    kind: str
    account: str | None
    subject: tuple[str, ...] = ()


IsSeen = Callable[[], Awaitable[bool]]
"""Tells whether the user of a page may still see its topic."""
Renderer = Callable[[Topic], Awaitable[Fragments]]


class TooManyLivePages(Exception):
    """As many pages are live as the setting `console_live_pages_max` allows."""


async def _always() -> bool:
    return True


class LivePage:
    """One browser page that follows a topic."""

    def __init__(self, topic: Topic, credentials: Credentials, is_seen: IsSeen = _always) -> None:
        self.topic = topic
        self.credentials = credentials
        self.is_seen = is_seen
        self.end_event = ""
        self._pending: dict[str, str] = {}
        self._news = asyncio.Event()

    def tell(self, fragments: Fragments) -> None:
        """Have the page get fragments; those that it did not read yet are replaced."""
        if fragments:
            self._pending.update(fragments)
            self._news.set()

    @property
    def is_ended(self) -> bool:
        """Whether it is told nothing more."""
        return bool(self.end_event)

    def end(self) -> None:
        """Have the page go to the sign-in page: its session is over."""
        self.end_event = "ended"
        self._news.set()

    def reload(self) -> None:
        """Have the page be loaded again: its user sees less of it now, or more."""
        self.end_event = self.end_event or "reload"
        self._news.set()

    async def events(self) -> AsyncIterator[str]:
        """Yield server-sent events until the page's session ends."""
        while True:
            try:
                async with asyncio.timeout(PING_EVERY_S):
                    await self._news.wait()
            except TimeoutError:
                yield ": still here\n\n"
                continue
            self._news.clear()
            if self.is_ended:
                yield f"event: {self.end_event}\ndata: {{}}\n\n"
                return
            pending, self._pending = self._pending, {}
            yield f"data: {json.dumps(pending, separators=(',', ':'))}\n\n"


class Hub:
    """All live pages, and the tasks that render for them. `run` is to run as long as pages are served."""

    def __init__(self, site: Site, render: Renderer, live_pages_max: int) -> None:
        self._site = site
        self._render = render
        self._live_pages_max = live_pages_max
        self._pages: dict[Topic, set[LivePage]] = {}
        self._shown: dict[Topic, dict[str, str]] = {}
        self._is_stopped = False

    @property
    def live_pages(self) -> int:
        """How many pages are live."""
        return sum(len(pages) for pages in self._pages.values())

    def join(self, page: LivePage) -> None:
        """Have a page follow its topic; TooManyLivePages."""
        if self._is_stopped or self.live_pages >= self._live_pages_max:
            raise TooManyLivePages
        self._pages.setdefault(page.topic, set()).add(page)
        page.tell(self._shown.get(page.topic, {}))

    def leave(self, page: LivePage) -> None:
        """Forget a page; and its topic, if no other page follows it."""
        pages = self._pages.get(page.topic, set())
        pages.discard(page)
        if not pages:
            self._pages.pop(page.topic, None)
            self._shown.pop(page.topic, None)

    async def run(self) -> None:
        """Render topics, end revoked sessions and pages that are refused now, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._repeat(self.render_once, RENDER_EVERY_S))
                tasks.create_task(self._repeat(self.end_revoked, ENDED_EVERY_S))
                tasks.create_task(self._repeat(self.reload_refused, SEEN_EVERY_S))
        finally:
            self.stop()

    def stop(self) -> None:
        """End all live pages and take no new ones."""
        self._is_stopped = True
        for page in self._all_pages():
            page.end()

    async def render_once(self) -> None:
        """Render each topic once, and tell its pages what is new."""
        for topic in list(self._pages):
            try:
                rendered = dict(await self._render(topic))
            except Exception:  # noqa: BLE001 -- a page that cannot be rendered must not stop the others
                _log.exception("live page could not be rendered kind=%s", topic.kind)
                continue
            if topic in self._pages:
                self._tell_news(topic, rendered)

    async def end_revoked(self) -> None:
        """Ask which sessions of live pages are over, all in one call, and end their pages."""
        pages = self._all_pages()
        if not pages:
            return
        sessions = list({page.credentials for page in pages})
        is_over = dict(zip(sessions, await self._site.ended_sessions(sessions), strict=True))
        for page in pages:
            if is_over[page.credentials]:
                page.end()

    async def reload_refused(self) -> None:
        """Have pages loaded again whose users may not see any more what they show."""
        for page in self._all_pages():
            if not await page.is_seen():
                page.reload()

    def _tell_news(self, topic: Topic, rendered: dict[str, str]) -> None:
        shown = self._shown.get(topic, {})
        news = {name: text for name, text in rendered.items() if shown.get(name) != text}
        self._shown[topic] = rendered
        for page in self._pages[topic]:
            page.tell(news)

    def _all_pages(self) -> list[LivePage]:
        return [page for pages in self._pages.values() for page in pages]

    async def _repeat(self, step: Callable[[], Awaitable[None]], every_s: float) -> None:
        while True:
            try:
                await step()
            except Exception:  # noqa: BLE001 -- the API may be away for a while; pages stay as they are until it is back
                _log.exception("live pages could not be looked after")
            await asyncio.sleep(every_s)
