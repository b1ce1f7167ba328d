"""Connections that a proxy makes for its clients: each begins with a header of the PROXY protocol, version 2.

```
    accepted ──header──▶ an HTTP connection of the client that the header names
        │
        └── something else, twice: 400 ── nothing for too long, or too many that wait: closed
```

No other listener reads such a header: anybody could write it there. A second one behind the first is no HTTP request.

Public: `ProxiedListener` (`start`, `start_unix`, `start_on`, `drain`, `waiting`).
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

from quaymaster.net.http.connection import UNCOUNTED_BYTES, HTTPConnection
from quaymaster.net.http.message import CONNECTION_CLOSE
from quaymaster.net.http.server import HTTPServer
from quaymaster.net.http.transports import address_of
from quaymaster.net.listener import Listener
from quaymaster.protocol.proxy_header import MalformedProxyHeader, parse_proxy_header

SOCKET_MODE: Final = 0o660
HEADER_S: Final = 1.0
"""After its end was announced, a listener that drains waits so long for headers."""
WAITING_MAX: Final = 256
"""Connections whose header has not come yet; one more closes the oldest. Proxies send it at once."""


class ProxiedListener:
    """Listens for proxies, and gives their connections to an HTTP server; from addresses, for believed proxies only."""

    def __init__(self, server: HTTPServer) -> None:
        self.server = server
        self.waiting: dict[_BeforeHeader, None] = {}
        """Connections whose header has not come yet, the oldest first."""
        self._listener: Listener | None = None
        self._all_left: asyncio.Event | None = None

    async def start(self, host: str, port: int, *, shares_port: bool = False) -> tuple[str, int]:
        """Listen on an address; return the one bound. Raises OSError when it cannot be. As `Listener.start`."""
        self._listener = Listener(
            lambda: _BeforeHeader(self), takes=lambda peer: peer in self.server.trusted_proxies
        )
        return await self._listener.start(host, port, shares_port=shares_port)

    def start_unix(self, path: Path) -> None:
        """Listen on a Unix socket, mode 0660. Raises OSError when its path cannot be used."""
        self._listener = Listener(lambda: _BeforeHeader(self), takes=lambda _: True)
        self._listener.start_unix(path, SOCKET_MODE)

    def start_on(self, listening: socket.socket) -> None:
        """Accept connections of a Unix socket that listens, and that other processes may accept from as well."""
        self._listener = Listener(lambda: _BeforeHeader(self), takes=lambda _: True)
        self._listener.start_on(listening)

    async def drain(self) -> None:
        """Take no more; call before the HTTP server drains, whose connections are those whose header has come.

        Where the end was announced, a proxy makes a connection for each request, for those of before were closed behind
        their answers. So what waits in the kernel is accepted, and has a while for its header.
        """
        listener, self._listener = self._listener, None
        if listener is None:
            return
        if self.server.is_ending:
            listener.accept_waiting()
        listener.close()
        while listener.handshakes:  # noqa: ASYNC110 -- a turn or two of the loop
            await asyncio.sleep(0)
        if self.server.is_ending and self.waiting:
            self._all_left = asyncio.Event()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_left.wait(), HEADER_S)
        for connection in list(self.waiting):
            connection.abort()

    def leave(self, connection: _BeforeHeader) -> None:
        """Note that a connection waits no longer."""
        self.waiting.pop(connection, None)
        if self._all_left is not None and not self.waiting:
            self._all_left.set()

    def add(self, connection: _BeforeHeader) -> None:
        """Note that a connection waits for its header."""
        if len(self.waiting) >= WAITING_MAX:
            next(iter(self.waiting)).abort()
        self.waiting[connection] = None


class _BeforeHeader(asyncio.Protocol):
    """A proxy's connection until its header is there."""

    def __init__(self, owner: ProxiedListener) -> None:
        self._owner = owner
        self._unread = b""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._owner.add(self)
        timeout_s = self._owner.server.limits.header_timeout_ms / 1000
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._end, "timeout_header")

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            if len(data) > UNCOUNTED_BYTES:
                self._transport.pause_reading()
            return
        self._unread += data
        try:
            header = parse_proxy_header(self._unread)
        except MalformedProxyHeader as error:
            self._refuse(str(error))
            return
        if header is None:
            return
        self._leave()
        server, transport = self._owner.server, self._transport
        peer = address_of(transport) if header.address is None else header.address
        if not server.strangers.may_connect(peer):
            transport.abort()
            return
        connection = HTTPConnection(server, peer=peer, is_tls=header.is_tls)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if rest := self._unread[header.size :]:
            connection.data_received(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def abort(self) -> None:
        """Close it: others need its place, or the server stops."""
        self._end("connection_refused")

    def _end(self, event: str) -> None:
        self._owner.server.on_event(event)
        self._leave()
        self._transport.abort()

    def _refuse(self, reason: str) -> None:
        server = self._owner.server
        server.on_event("rejected_proxy_header")
        self._leave()
        self._is_refused = True
        headers, body = server.error_response(400, reason)
        self._transport.writelines(server.replies.render(400, headers, CONNECTION_CLOSE, body, is_head=False))
        server.turn_away(self._transport)

    def _leave(self) -> None:
        self._owner.leave(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
