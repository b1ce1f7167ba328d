"""Accepts connections in bounded turns, so that many who connect at once hold up neither the loop nor each other.

```
    kernel's queue ──turn: ACCEPTS_PER_TURN at most──▶ takes(peer)? ──yes──▶ transport, or TLS handshake ──▶ protocol
                                                           └── no ──▶ closed, before anything is made for it
```

The event loop's own servers do not fit. uvloop accepts one connection in each iteration: a thousand that wait delay
the next client by a thousand iterations, and once the kernel's queue is full, by the second after which it tries
again. asyncio accepts as many as its queue is long, all at once. Neither bounds the TLS handshakes in progress.

A Unix socket is bound next to its place and then renamed, so that clients meet the one before it, or one that listens.

Public: `Listener` (`start`, `start_unix`, `start_on`, `accept_waiting`, `close`, `handshakes`), `ACCEPTS_PER_TURN`; for
processes that share a listener: `bind_all`, `listen_unix`, `fits_unix`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

BACKLOG: Final = 4096
"""Connections that wait in the kernel; it takes no more than `net.core.somaxconn`."""
ACCEPTS_PER_TURN: Final = 16
"""So many are accepted in one turn of the loop: each costs 40 to 100 us."""
HANDSHAKES_MAX: Final = 512
"""TLS handshakes in progress; one more ends the oldest. Without TLS none takes longer than a turn of the loop."""
PAUSE_S: Final = 0.1
"""Nothing is accepted for so long after the system had no file or memory for a connection."""
UNIX_PATH_BYTES_MAX: Final = 103
"""What macOS takes; Linux takes 107."""
NEW_SUFFIX: Final = ".new"
_OUT_OF_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger(__name__)


class Listener:
    """Listens on the addresses of one host, and connects who is taken to a protocol."""

    def __init__(
        self,
        factory: Callable[[], asyncio.Protocol],
        *,
        takes: Callable[[str], bool],
        tls: ssl.SSLContext | None = None,
        handshake_timeout_s: float | None = None,
    ) -> None:
        """`takes` is given the address of a client, and tells whether it may have a connection now.

        Clients of a Unix socket have none ("").
        """
        self._factory = factory
        self._takes = takes
        self._options: dict[str, Any] = {}
        if tls is not None:
            self._options = {"ssl": tls, "ssl_handshake_timeout": handshake_timeout_s}
        self._sockets: list[socket.socket] = []
        self._unix: tuple[Path, int] | None = None
        """The path of the Unix socket, and the number of its file."""
        self._connecting: dict[asyncio.Task[Any], socket.socket] = {}
        """The oldest first."""
        self._timers: set[asyncio.TimerHandle] = set()
        self._loop: asyncio.AbstractEventLoop

    @property
    def handshakes(self) -> int:
        """Connections accepted whose protocol does not know of them yet."""
        return len(self._connecting)

    async def start(self, host: str, port: int, *, shares_port: bool = False) -> tuple[str, int]:
        """Listen on all addresses of `host`, and return the first one bound; port 0 takes a free one.

        `shares_port`: with other processes of this user that do so, each of which gets some of the connections.

        Raises:
            OSError: an address cannot be found or bound.
        """
        self._loop = asyncio.get_running_loop()
        self._sockets = await bind_all(host, port, shares_port=shares_port)
        try:
            for listening in self._sockets:
                listening.listen(BACKLOG)
        except OSError:
            self.close()
            raise
        for listening in self._sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)
        bound = self._sockets[0].getsockname()
        return bound[0], bound[1]

    def start_on(self, listening: socket.socket) -> None:
        """Accept connections of a socket that listens, and that other processes may accept from as well."""
        self._loop = asyncio.get_running_loop()
        listening.setblocking(False)
        self._sockets.append(listening)
        self._loop.add_reader(listening.fileno(), self._accept, listening)

    def start_unix(self, path: Path, mode: int) -> None:
        """Listen on a Unix socket with these permissions, in place of one of a process that is gone.

        Raises:
            OSError: the path is too long or cannot be used, or another process listens there.
        """
        listening = listen_unix(path, mode)
        self._unix = path, path.stat().st_ino
        self.start_on(listening)

    def accept_waiting(self) -> None:
        """Accept those that wait in the kernel, before `close`: they would be reset, and their clients ask already."""
        for listening in self._sockets:
            for _ in range(BACKLOG // ACCEPTS_PER_TURN):
                if not self._accept(listening):
                    break

    def close(self) -> None:
        """Take no more. Those whose handshake is in progress come to their protocol yet, or fail."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for listening in self._sockets:
            if listening.fileno() != -1:
                self._loop.remove_reader(listening.fileno())
                listening.close()
        self._sockets.clear()
        if self._unix is not None:
            path, number = self._unix
            self._unix = None
            with contextlib.suppress(OSError):
                if path.stat().st_ino == number:
                    path.unlink()

    def _accept(self, listening: socket.socket) -> bool:
        """Accept some; False when there are no more for now."""
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = listening.accept()
            except OSError as error:
                if error.errno in _OUT_OF_ROOM:
                    log.error("no connection can be accepted reason=%s", error)
                    self._pause(listening)
                return False  # There is none, or the network had something against that one.
            if self._takes(str(address[0]) if isinstance(address, tuple) else ""):
                self._connect(accepted)
            else:
                accepted.close()
        return True

    def _connect(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        if len(self._connecting) >= HANDSHAKES_MAX:
            oldest = next(iter(self._connecting))
            # Its handshake fails by that. To cancel it would leave a protocol that is never told of its end, were it
            # made in this very turn.
            with contextlib.suppress(OSError):
                self._connecting.pop(oldest).shutdown(socket.SHUT_RDWR)
        connecting = self._loop.create_task(
            self._loop.connect_accepted_socket(self._factory, accepted, **self._options)
        )
        self._connecting[connecting] = accepted
        connecting.add_done_callback(self._on_connected)

    def _on_connected(self, connecting: asyncio.Task[Any]) -> None:
        self._connecting.pop(connecting, None)
        if not connecting.cancelled():
            connecting.exception()  # The client broke its handshake off, or could not make one: its own affair.

    def _pause(self, listening: socket.socket) -> None:
        self._loop.remove_reader(listening.fileno())

        def resume() -> None:
            self._timers.discard(timer)
            self._loop.add_reader(listening.fileno(), self._accept, listening)

        timer = self._loop.call_later(PAUSE_S, resume)
        self._timers.add(timer)


async def bind_all(host: str, port: int, *, shares_port: bool) -> list[socket.socket]:
    """Return sockets bound to all addresses of `host`, the first to a free port if that is 0; see `Listener.start`."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            bound.append(listening)
            listening.setblocking(False)
            if os.name == "posix":
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shares_port:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
    except OSError:
        for listening in bound:
            listening.close()
        raise
    return bound


def listen_unix(path: Path, mode: int) -> socket.socket:
    """Return a Unix socket that listens, as `Listener.start_unix` does it; raises as that does."""
    _refuse_used_path(path)
    new = path.with_name(path.name + NEW_SUFFIX)
    if not fits_unix(path):
        raise OSError(
            errno.ENAMETOOLONG,
            f"the path of a Unix socket has at most {UNIX_PATH_BYTES_MAX - len(NEW_SUFFIX)} bytes",
        )
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.bind(str(new))
        new.chmod(mode)
        listening.listen(BACKLOG)
        new.rename(path)
    except OSError:
        listening.close()
        raise
    return listening


def fits_unix(path: Path) -> bool:
    """Tell whether a path is short enough for `listen_unix`."""
    return len(os.fsencode(path)) + len(NEW_SUFFIX) <= UNIX_PATH_BYTES_MAX


def _refuse_used_path(path: Path) -> None:
    """Raise OSError where a path is no socket's, or a process listens there."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.EEXIST, "a file that is no socket is there")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return
    raise OSError(errno.EADDRINUSE, "another process listens there")
