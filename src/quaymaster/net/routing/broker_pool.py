"""The connections to one broker, and how much may be on its way there: what one broker holds up is bounded.

    commands ──▶ one connection            up to `calls_max`, `bytes_max` of requests unanswered
    long polls ─▶ others, as many as needed   up to `polls_max`

Of both, no account has more than half (`rooms`).

Long polls have connections of their own: they stay for long, and there are many.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from quaymaster.core.values.errors import ConnectionLost, NotNow, Overloaded, Timeout, Unreachable
from quaymaster.monitoring.logs import log_event
from quaymaster.net.routing.circuit_breaker import CircuitBreaker
from quaymaster.net.routing.rooms import Room, RoomLimits
from quaymaster.net.rpc import OnReply, OutgoingCall, RPCClient

COMMAND_METHOD: Final = "command"
LONG_POLL: Final = "long_poll"
"""What commands that wait are counted as."""
POLLS_PER_CONNECTION_MAX: Final = 2_048
"""Less than the calls that a connection may have (`RPCLimits.calls_max`): those taken back count until the broker
has heard of it."""

log = logging.getLogger(__name__)

MakeClient = Callable[[tuple[str, int]], RPCClient]


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What may be on its way to one broker."""

    calls_max: int = 4_000
    """Commands, long polls aside; fewer than `RPCLimits.calls_max`, as probes need room too."""
    bytes_max: int = 32 * 1024 * 1024
    """Bytes of requests."""
    polls_max: int = 20_000
    """Long polls."""
    is_shared: bool = False
    """Whether there are several accounts, each of which has half of these at most."""

    def room(self) -> RoomLimits:
        """Return what may be on its way."""
        return RoomLimits(self.calls_max, self.bytes_max, self.polls_max, is_shared=self.is_shared)


class BrokerPool:
    """How one broker is reached."""

    __slots__ = (
        "_commands",
        "_make_client",
        "_overloaded",
        "_polls",
        "_silent",
        "address",
        "breaker",
        "endpoint",
        "room",
    )

    def __init__(
        self, address: str, endpoint: tuple[str, int], make_client: MakeClient, limits: PoolLimits
    ) -> None:
        self.address = address
        self.endpoint = endpoint
        self.breaker = CircuitBreaker()
        self.room = Room(limits.room())
        """What is on its way."""
        self._make_client = make_client
        self._commands = make_client(endpoint)
        self._polls: list[RPCClient] = []
        self._overloaded = Overloaded(f"Too many requests for the broker at {address} are in progress.")
        self._silent = Unreachable(f"The broker at {address} has not answered for a while.")

    def connect(self) -> None:
        """Begin to connect: it will be needed."""
        self._commands.connect()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way."""
        there = self.room.all
        return not there.commands and not there.polls and not self._commands.calls

    def refusal(self, account_id: str, body_bytes: int, *, is_poll: bool, now_ms: float) -> NotNow | None:
        """Return why nothing more may be sent for an account, None if it may."""
        if not self.room.has_room(account_id, body_bytes, is_poll=is_poll):
            return self._overloaded
        if is_poll:
            # Who may try is who is answered soon.
            return self._silent if self.breaker.is_open else None
        return None if self.breaker.allows(now_ms) else self._silent

    def call(
        self,
        account_id: str,
        body: bytes,
        deadline_ms: int,
        on_reply: OnReply,
        *,
        is_poll: bool,
        trace: str = "",
    ) -> OutgoingCall:
        """Send a command that was not refused, for the request `trace`. Tell `ended` when it is over."""
        self.room.enter(account_id, len(body), is_poll=is_poll)
        if is_poll:
            client = self._poll_client()
            return client.call(COMMAND_METHOD, body, deadline_ms, on_reply, trace=trace, counted_as=LONG_POLL)
        return self._commands.call(COMMAND_METHOD, body, deadline_ms, on_reply, trace=trace)

    def probe(self, body: bytes, deadline_ms: int, on_reply: OnReply) -> OutgoingCall:
        """Ask a question of our own, whatever else is on its way."""
        return self._commands.call(COMMAND_METHOD, body, deadline_ms, on_reply)

    def ask(self, method: str, deadline_ms: int, on_reply: OnReply) -> None:
        """Ask something else than a command, whatever else is on its way."""
        self._commands.call(method, b"", deadline_ms, on_reply)

    def tell(self, method: str, body: bytes) -> None:
        """Send a notice on each connection that there is; new ones begin with what is true then."""
        for client in (self._commands, *self._polls):
            if client.is_connected:
                client.notify(method, body)

    def ended(self, account_id: str, body_bytes: int, *, is_poll: bool) -> None:
        """A command was answered or taken back."""
        self.room.leave(account_id, body_bytes, is_poll=is_poll)

    def heard(self, result: bytes | Exception, now_ms: float) -> bool:
        """Judge the broker by what came of a call; true when it is not asked any more from now on."""
        kind = type(result)
        if kind is Timeout:
            if self.breaker.on_timeout(now_ms):
                log_event(log, logging.WARNING, "broker silent", address=self.address)
                return True
        elif kind is not ConnectionLost and kind is not Unreachable and self.breaker.on_answer():
            log_event(log, logging.INFO, "broker answered again", address=self.address)
        return False

    async def close(self) -> None:
        """Close the connections; what is on its way fails."""
        await asyncio.gather(*(client.close() for client in [self._commands, *self._polls]))

    def _poll_client(self) -> RPCClient:
        for client in self._polls:
            if len(client.calls) < POLLS_PER_CONNECTION_MAX:
                return client
        client = self._make_client(self.endpoint)
        self._polls.append(client)
        return client
