"""Where a front end takes connections of the proxy that ends TLS (setting `edge_listen`)."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

from quaymaster.monitoring.logs import log_event
from quaymaster.net.http.proxied import SOCKET_MODE, ProxiedListener
from quaymaster.net.http.server import HTTPServer
from quaymaster.net.listener import listen_unix
from quaymaster.node.edge.sockets import RUN_DIRECTORY_MODE
from quaymaster.node.node import Node, cannot_listen
from quaymaster.settings import Address

log = logging.getLogger(__name__)


async def share_proxies(node: Node, server: HTTPServer, listening: socket.socket | None) -> None:
    """Let `server` take connections of proxies as other workers do, until it drains.

    `listening`: the Unix socket; without one the place is a TCP address, or there is none.

    Raises:
        OSError: the address that is set cannot be used.
    """
    place = node.settings.edge_place
    listener = ProxiedListener(server)
    if listening is not None:
        listener.start_on(listening)
    elif isinstance(place, Address):
        try:
            await listener.start(place.host, place.port, shares_port=True)
        except OSError as error:
            raise cannot_listen(place, "edge_listen", error) from error
    else:
        return
    node.stack.push_async_callback(listener.drain)


def listen_for_workers(node: Node) -> socket.socket | None:
    """Return a Unix socket for the workers of this process, which it removes at its end; None where there is none.

    Raises:
        OSError: the path that is set cannot be used.
    """
    place = node.settings.edge_place
    if not isinstance(place, Path):
        return None
    try:
        if node.settings.edge_listen is None:
            place.parent.mkdir(mode=RUN_DIRECTORY_MODE, exist_ok=True)
        listening = listen_unix(place, SOCKET_MODE)
    except OSError as error:
        _go_without(node, place, error)
        return None
    node.stack.callback(place.unlink, missing_ok=True)
    node.stack.callback(listening.close)
    return listening


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
        _go_without(node, place, error)
        return
    node.stack.push_async_callback(listener.drain)


def _go_without(node: Node, place: Path | Address, error: OSError) -> None:
    """Say that there is no place for a proxy. Raises OSError where the settings name it."""
    reason = error.strerror or error
    if node.settings.edge_listen is not None:
        raise OSError(
            f"cannot listen on {node.settings.edge_listen} (setting 'edge_listen'): {reason}"
        ) from error
    log_event(log, logging.INFO, "no socket for a proxy", path=str(place), reason=reason)


def listen_for_console(node: Node, server: HTTPServer, socket_path: Path) -> None:
    """Let a server take requests that the console makes for browsers, until the node ends. Raises OSError."""
    listener = ProxiedListener(server)
    listener.start_unix(socket_path)
    node.stack.push_async_callback(listener.drain)
