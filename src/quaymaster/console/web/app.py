"""The console's web application: guards around pages, files for the browser, and live pages.

uvicorn ─▶ Guards (Host, Origin, headers) ─▶ compression ─▶ routes ─▶ Pages (session, CSRF) ─▶ pages/
"""

from __future__ import annotations

import asyncio
import gzip
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quaymaster.console.site import Site
from quaymaster.console.web.guards import Doors, Guards
from quaymaster.console.web.live import Hub
from quaymaster.console.web.page_calls import Pages, WebOptions, WebState, error_page
from quaymaster.console.web.pages import PAGES, topics
from quaymaster.console.web.templating import STATIC, Templates, file_hash
from quaymaster.console.web.views.queue_list import QueueOrders

__all__ = ["WebOptions", "create_app"]

_COMPRESSED_FROM_BYTES: Final = 1_024
_COMPRESSION: Final = 5
_KEPT: Final = "public, max-age=31536000, immutable"
"""Where a URL holds the file's hash."""
_ASKED: Final = "no-cache"
"""Modules import each other without a hash: the browser asks whether they are still the same."""


def create_app(site: Site, options: WebOptions) -> Starlette:
    """Return the pages of a site as an ASGI application; its lifespan runs what renders live pages. BadConsoleURL."""
    doors = Doors(options.url)
    templates = Templates()
    orders = QueueOrders()
    hub = Hub(site, topics.renderer(site, templates, orders), options.live_pages_max)
    state = WebState(site, options, templates, hub, orders)
    pages = Pages(state)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(hub.run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def not_found(request: Request, error: Exception) -> Response:
        call = pages.call(request)
        if isinstance(error, HTTPException) and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            text = f"Nothing at this address takes the method {request.method}. Begin at the overview."
            return error_page(call, error.status_code, "There is nothing to show", text)
        return error_page(
            call, 404, "There is no such page", "Look at the address, or begin at the overview."
        )

    app = Starlette(
        routes=[*pages.routes(PAGES), Route("/static/{name}", _static_files(), methods=["GET"])],
        middleware=[
            Middleware(Guards, doors=doors),
            Middleware(GZipMiddleware, minimum_size=_COMPRESSED_FROM_BYTES, compresslevel=_COMPRESSION),
        ],
        exception_handlers={HTTPException: not_found},
        lifespan=lifespan,
    )
    app.state.web = state
    return app


def _static_files() -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint for the files that browsers load, kept in memory and compressed once."""
    files = {
        file.name: _StaticFile(file.read_bytes(), file.name) for file in STATIC.iterdir() if file.is_file()
    }

    async def serve(request: Request) -> Response:
        file = files.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        kept = _KEPT if request.query_params.get("v") == file.hash else _ASKED
        headers = {"Cache-Control": kept, "Vary": "Accept-Encoding", "ETag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(file.content, headers=headers, media_type=file.media_type)
        headers["Content-Encoding"] = "gzip"
        return Response(file.compressed, headers=headers, media_type=file.media_type)

    return serve


class _StaticFile:
    def __init__(self, content: bytes, name: str) -> None:
        self.content = content
        self.compressed = gzip.compress(content, 9, mtime=0)
        self.hash = file_hash(content)
        self.etag = f'"{self.hash}"'
        self.media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
