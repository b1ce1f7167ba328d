"""The pages, served by uvicorn in this process's event loop, on sockets that are bound already."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import uvicorn

from quaymaster.console.site import Site
from quaymaster.console.web.app import WebOptions, create_app
from quaymaster.console.web.guards import BadConsoleURL
from quaymaster.monitoring.metrics import Sample
from quaymaster.monitoring.supervision import supervise
from quaymaster.net.http.forwarded import TrustedProxies
from quaymaster.node.node import Node

END_S: Final = 1
"""So long requests may take to end; live pages have no end of their own."""
TICK_S: Final = 1.0
KEPT_ALIVE_S: Final = 75
CONNECTIONS_MAX: Final = 4_096


class _PageServer(uvicorn.Server):
    """Signals are the node's, and nothing is looked at ten times a second while nobody asks."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Take no more requests; `serve` returns when those that there are have ended, or soon after."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Keep the date of answers right until the end."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._ending.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def sockets_of(descriptors: Sequence[int]) -> list[socket.socket]:
    """Return the sockets that another process bound."""
    return [socket.socket(fileno=descriptor) for descriptor in descriptors]


async def serve_pages(node: Node, site: Site, key: bytes, bound: Sequence[socket.socket]) -> None:
    """Serve the pages until the node ends. Raises OSError when the setting `console_url` cannot be."""
    settings = node.settings
    options = WebOptions(
        key,
        settings.console_url or "",
        settings.console_live_pages_max,
        settings.operators_see_bodies,
        TrustedProxies(settings.trusted_networks),
    )
    try:
        app = create_app(site, options)
    except BadConsoleURL as error:
        raise OSError(f"console_url cannot be used: {error}") from None
    node.metrics.add_source(lambda: [Sample("quaymaster_console_live_pages", app.state.web.hub.live_pages)])
    server = _PageServer(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=True,
            lifespan="on",
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=KEPT_ALIVE_S,
            timeout_graceful_shutdown=END_S,
        )
    )
    serving = supervise(asyncio.create_task(server.serve(sockets=list(bound)), name="pages"))

    async def end() -> None:
        server.end()
        await asyncio.gather(serving, return_exceptions=True)

    node.stack.push_async_callback(end)
