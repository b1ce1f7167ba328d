"""What a connection asks of the HTTP server that it belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from quaymaster.net.http.forwarded import TrustedProxies
from quaymaster.net.http.known import Known
from quaymaster.net.http.message import HTTPLimits, HTTPRequest
from quaymaster.net.http.replies import ReplyRenderer
from quaymaster.net.http.strangers import Strangers, UnsignedTime

ConnectionT = TypeVar("ConnectionT")
AdmitRequest = Callable[[HTTPRequest], tuple[int, bytes, bytes] | None]
"""Called when the head of a request is complete, before its body is read: None, or the reply (status,
headers, body) that refuses it. The connection is closed after a refusal."""
RenderError = Callable[[int, str], tuple[bytes, bytes]]
"""Gives headers and body of the server's own error replies, by status and message."""


class ConnectionOwner(Protocol[ConnectionT]):
    """What a connection asks of its server."""

    limits: HTTPLimits
    unsigned_answers: int
    received_bytes: int
    sent_bytes: int
    unsigned_time: UnsignedTime
    name: str
    admit: AdmitRequest | None
    error_response: RenderError
    on_event: Callable[[str], None]
    is_draining: bool
    is_ending: bool
    """Whether connections are closed behind their next answer: it drains, or is about to."""
    hears_newcomers: bool
    """Whether connections may stay for their first request although it drains."""
    body_bytes: int
    """Memory that bodies take that have come in part."""
    bodies: dict[ConnectionT, None]
    """Connections that have such a body, the one heard least lately first."""
    strangers: Strangers
    known: Known
    clock_ms: float
    """Of the sweeps."""
    replies: ReplyRenderer
    trusted_proxies: TrustedProxies

    @property
    def connections_held(self) -> int:
        """Connections from which nothing is taken for a while (`HTTPRequest.hold_off`)."""
        ...

    def has_room_for(self, peer: str) -> bool:
        """Tell whether one more connection is taken; another may have been closed for it."""
        ...

    def turn_away(self, transport: asyncio.Transport) -> None:
        """Close the connection of a client that was refused, once it has seen that."""
        ...

    def add(self, connection: ConnectionT) -> None:
        """Note that it is open, and a stranger's."""
        ...

    def remove(self, connection: ConnectionT) -> None:
        """Note that it is lost."""
        ...

    def schedule_read(self, connection: ConnectionT) -> None:
        """Have what `connection` received read in the next pass."""
        ...

    def schedule_turn(self, connection: ConnectionT) -> None:
        """Have `connection` send what it has, and read on, at the end of the next pass."""
        ...

    def schedule_end(self, connection: ConnectionT) -> None:
        """Have `connection`, whose client is gone and waits for nothing, close when others have had their turn."""
        ...

    def arrive(self, request: HTTPRequest) -> None:
        """Have a request that is complete handed over: in this pass, or in the next if it has begun to write."""
        ...

    def hold(self, connection: ConnectionT, hold_ms: int) -> None:
        """Release `connection` after so long."""
        ...

    def call_back(self, callback: Callable[[], None]) -> None:
        """Tell a handler something of its request; its failure is nobody else's."""
        ...
