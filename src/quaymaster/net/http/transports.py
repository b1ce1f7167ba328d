"""What a connection asks of its transport: who connected, and whether something waits to be read."""

from __future__ import annotations

import asyncio
import fcntl
import termios

_NO_BYTES = bytes(4)
"""What the kernel says is unread of a connection."""


def address_of(transport: asyncio.BaseTransport) -> str:
    """Return the address of who connected; empty where the transport has none."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""


def has_input(transport: asyncio.BaseTransport) -> bool:
    """Whether the client sent something that the loop has not read yet: to close now would lose a request."""
    connected = transport.get_extra_info("socket")
    if connected is None or connected.fileno() == -1:
        return False
    return fcntl.ioctl(connected.fileno(), termios.FIONREAD, _NO_BYTES) != _NO_BYTES
