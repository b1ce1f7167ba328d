"""Where a front end takes connections of the proxy that ends TLS (setting `edge_listen`)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from quaymaster.monitoring.logs import log_event
from quaymaster.net.http.proxied import ProxiedListener
from quaymaster.net.http.server import HTTPServer
from quaymaster.node.node import Node

RUN_DIRECTORY_MODE: Final = 0o700

log = logging.getLogger(__name__)


async def listen_for_proxies(node: Node, server: HTTPServer) -> None:
    """Let `server` take connections of proxies, until it drains; call when that is to happen at the stack's end.

    Where the setting is unset and the data directory cannot hold the socket, there is none, and the log says so.

    Raises:
        OSError: the place that is set cannot be used.
    """
    place = node.settings.edge_place
    if place is None:
        return
    listener = ProxiedListener(server)
    try:
        if isinstance(place, Path):
            if node.settings.edge_listen is None:
                place.parent.mkdir(mode=RUN_DIRECTORY_MODE, exist_ok=True)
            listener.start_unix(place)
        else:
            await listener.start(place.host, place.port)
    except OSError as error:
        reason = error.strerror or error
        if node.settings.edge_listen is None:
            log_event(log, logging.INFO, "no socket for a proxy", path=str(place), reason=reason)
            return
        raise OSError(
            f"cannot listen on {node.settings.edge_listen} (setting 'edge_listen'): {reason}"
        ) from error
    node.stack.push_async_callback(listener.drain)
