"""The stream of a live page. A page follows only topics that its session may see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from quaymaster.console.site import APIError
from quaymaster.console.web.live import Hub, LivePage, TooManyLivePages, Topic
from quaymaster.console.web.page_calls import Page, PageCall, error_page
from quaymaster.console.web.pages.topics import topic_of


async def show(call: PageCall) -> Response:
    """Stream what is new on a page."""
    topic = await topic_of(call)
    if topic is None:
        return error_page(call, 404, "There is no such live page", "Load the page again.")
    page = LivePage(topic, call.session.credentials, partial(_is_seen, call, topic))
    hub = call.state.hub
    try:
        hub.join(page)
    except TooManyLivePages:
        return error_page(call, 503, "Too many live pages", "Values are as of when this page was loaded.")

    return _LiveResponse(page, hub)


async def _is_seen(call: PageCall, topic: Topic) -> bool:
    """Tell whether the user may still see what a page shows; so it is, while that cannot be asked."""
    try:
        return await topic_of(call) == topic
    except APIError as error:
        return error.is_failure


class _LiveResponse(StreamingResponse):
    """A stream that leaves the hub however it ends, also where the browser is gone before it begins."""

    def __init__(self, page: LivePage, hub: Hub) -> None:
        self._page = page
        self._hub = hub
        super().__init__(_stream(page), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the browser leaves."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._hub.leave(self._page)


async def _stream(page: LivePage) -> AsyncIterator[str]:
    yield "retry: 3000\n\n"
    async for event in page.events():
        yield event


PAGES = (Page("/admin/v1/live", show),)
