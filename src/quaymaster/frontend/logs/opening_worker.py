"""The process that opens messages for a front end: `python -m quaymaster.frontend.logs.opening_worker`.

Its standard input is one of two connected sockets; the front end has the other. It ends when that is closed, also by a
front end that was killed. It has no settings, no data directory and no data keys.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import socket

from quaymaster.frontend.logs.kept_memory import keep_freed_memory
from quaymaster.frontend.logs.opening import LENGTH, NOTHING, reply_to


def serve(connection: socket.socket) -> None:
    """Answer one piece after another until the other end is closed."""
    connection.sendall(NOTHING)
    length = bytearray(LENGTH.size)
    while _receive(connection, length):
        piece = bytearray(*LENGTH.unpack(length))
        if not _receive(connection, piece):
            return
        connection.sendall(reply_to(piece))


def _receive(connection: socket.socket, into: bytearray) -> bool:
    """Fill the buffer; False when the other end was closed before."""
    view = memoryview(into)
    while view:
        count = connection.recv_into(view)
        if not count:
            return False
        view = view[count:]
    return True


def main() -> None:
    """Serve the front end that started this process."""
    # Ctrl-C and service managers reach the whole group. The front end drains then, and closes the socket after that.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keep_freed_memory()
    gc.disable()  # nothing that is made here refers to itself
    with socket.socket(fileno=0) as connection, contextlib.suppress(ConnectionError):
        connection.setblocking(True)
        serve(connection)


if __name__ == "__main__":
    main()
