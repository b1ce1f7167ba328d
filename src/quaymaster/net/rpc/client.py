"""The end of a connection that asks: calls, their deadlines, and a connection that is made again when it has ended.

A client's connection:

```
             first call, connect()                    HELLO of both
    idle ────────────────────────▶ connecting ─────────────────────────▶ open ──GOODBYE──▶ draining
                                    ▲   │ refused, not in time             │                  │
                          back-off  │   ▼                                  └── connection ends┘
                                    backing off ◀── ended soon again ──────────┤ on_closed, at once
                                    connecting  ◀── else ──────────────────────┘
```

Calls wait while a connection is being made, and fail at once while backing off: who has another node to ask should
not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Final

from quaymaster.core.values.errors import ConnectionLost, Overloaded, Timeout, Unreachable
from quaymaster.net.rpc.connection import (
    GONE,
    SILENT_SWEEPS_MAX,
    CallHandler,
    CheckPeer,
    Connector,
    IncomingCall,
    OnReply,
    RPCConnection,
    RPCLimits,
    call_back,
)
from quaymaster.net.rpc.stats import CallStats, RPCStats
from quaymaster.protocol.rpc.error_codec import decode_error
from quaymaster.protocol.rpc.frames import (
    CANCEL,
    ERROR,
    NOTICE,
    REPLY,
    REQUEST,
    Frame,
    Goodbye,
    Hello,
    parse_call_header,
    render_call_header,
    render_frame,
    render_hello,
)
from quaymaster.settings import UNIX_PREFIX

DEADLINE_STEP_S: Final = 0.01
"""How exact deadlines are: calls are not looked through more often."""
log = logging.getLogger(__name__)

_monotonic = time.monotonic

_UNSENT, _SENT, _DONE = range(3)
"""What an outgoing call is."""
_NOT_COUNTED = CallStats()
"""Stands with notices: nothing comes of them."""


class OutgoingCall:
    """A call on its way."""

    __slots__ = (
        "_client",
        "began_s",
        "body",
        "counted",
        "deadline_s",
        "id",
        "method",
        "on_reply",
        "state",
        "trace",
    )

    def __init__(
        self,
        client: RPCClient,
        call_id: int,
        method: str,
        body: bytes,
        deadline_s: float,
        on_reply: OnReply | None,
        trace: str,
        counted: CallStats,
        began_s: float,
    ) -> None:
        self._client = client
        self.counted = counted
        self.began_s = began_s
        """On `time.monotonic()`'s clock; uvloop's own is only good to 1 ms."""
        self.id = call_id
        self.method = method
        self.body = body
        self.deadline_s = deadline_s
        self.on_reply = on_reply
        self.trace = trace
        self.state = _UNSENT

    @property
    def is_unsent(self) -> bool:
        """Whether it waits for a connection, so that the server has nothing of it."""
        return self.state == _UNSENT

    def cancel(self) -> None:
        """Wait no longer: the reply is never called, and the server is told. After the reply, nothing happens."""
        self._client.cancel(self)


class _ClientConnection(RPCConnection):
    """A connection of a client: calls go out, answers and notices come in."""

    def __init__(self, client: RPCClient) -> None:
        super().__init__(client.hello, client.limits, client.check_peer, client.stats)
        self.greeted: asyncio.Future[str | None] = self.loop.create_future()
        """None once calls can be sent, or why that will never be."""
        self.ended: asyncio.Future[str] = self.loop.create_future()
        self.is_draining = False
        self._client = client
        self._sweeper: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send((render_hello(self._hello),))

    def on_ready(self) -> None:
        self.stats.opened += 1
        self._sweep_later()
        self._client.connection_ready(self)
        if not self.greeted.done():
            self.greeted.set_result(None)

    def on_frames(self, frames: list[Frame]) -> None:
        client = self._client
        calls = client.calls
        now_s = _monotonic()
        for kind, call_id, header_bytes, body in frames:
            if kind == REPLY:
                call = calls.pop(call_id, None)
                if call is not None:
                    call.state = _DONE
                    call.counted.end("OK", now_s - call.began_s)
                    _answer(call, body)
            elif kind == ERROR:
                call = calls.pop(call_id, None)
                if call is not None:
                    call.state = _DONE
                    _fail(call, decode_error(body), now_s)
            elif kind == NOTICE:
                header = parse_call_header(header_bytes)
                handler = client.handlers.get(header.method)
                if handler is not None:
                    call_back(handler, IncomingCall(self, 0, header, body, self._received_s, GONE))
            else:
                self.take_other(kind, header_bytes)

    def on_pass_end(self) -> None:
        self._client.flush()

    def on_goodbye(self, goodbye: Goodbye) -> None:
        self.is_draining = True
        self._client.connection_draining(self, goodbye.reason)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._client.schedule_flush()

    def on_lost(self, reason: str) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        if not self.greeted.done():
            self.greeted.set_result(reason)
        if not self.ended.done():
            self.ended.set_result(reason)
        if self.peer is not None:
            self.stats.closed += 1
            self._client.connection_lost(self, reason)

    @property
    def is_usable(self) -> bool:
        """Whether calls may be sent on it."""
        return self.peer is not None and self._reason is None and self.is_up and not self.is_draining

    @property
    def is_in_pass(self) -> bool:
        """Whether what came in is being handled: what is to be sent goes out at its end."""
        return self._is_in_pass

    def _sweep_later(self) -> None:
        delay_s = self.limits.silence_ms / 1000 / SILENT_SWEEPS_MAX
        self._sweeper = self.loop.call_later(delay_s, self._sweep_now)

    def _sweep_now(self) -> None:
        self.sweep()
        if self.is_up:
            self._sweep_later()


class RPCClient:
    """Calls one server. Connects with the first call (or `connect`), and again whenever the connection has ended.

    `on_connected` gets the peer's HELLO; `on_closed` the reason, at once, before the calls in flight fail;
    `on_draining` the reason, when the server takes no more calls. `handlers` take its notices, by method.
    `tls` gives the context for the next connection, so that it may change; `check_peer` as in `RPCServer`. What comes
    of its calls is counted in `stats`, which clients may share. `say_first` gives the method and body of a notice that
    each new connection begins with, before what waits to be sent.
    """

    def __init__(
        self,
        address: tuple[str, int],
        hello: Hello,
        *,
        limits: RPCLimits | None = None,
        handlers: Mapping[str, CallHandler] | None = None,
        check_peer: CheckPeer | None = None,
        on_connected: Callable[[Hello], None] | None = None,
        on_closed: Callable[[str], None] | None = None,
        on_draining: Callable[[str], None] | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        connector: Connector | None = None,
        stats: RPCStats | None = None,
        say_first: Callable[[], tuple[str, bytes]] | None = None,
    ) -> None:
        self.stats = stats or RPCStats()
        self.say_first = say_first
        self.address = address
        self.hello = hello
        self.limits = limits or RPCLimits()
        self.handlers = handlers or {}
        self.check_peer = check_peer
        self.on_connected = on_connected
        self.on_closed = on_closed
        self.on_draining = on_draining
        self.calls: dict[int, OutgoingCall] = {}
        """Unanswered ones by their ids: those sent, and those that wait to be."""
        self._tls = tls
        self._connector = connector or self._connect_by_network
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._connection: _ClientConnection | None = None
        self._is_connecting = False
        self._is_closed = False
        self._unreachable = "not connected"
        """Why it cannot be reached, as long as it cannot."""
        self._unsent: list[OutgoingCall] = []
        self._unsent_bytes = 0
        self._is_flush_due = False
        self._last_id = 0
        self._deadline_s = math.inf
        """No call's deadline is before this."""
        self._deadline_timer: asyncio.TimerHandle | None = None

    @property
    def peer(self) -> Hello | None:
        """Who answers; None while no one does."""
        return self._connection.peer if self._connection is not None else None

    @property
    def version(self) -> int:
        """The RPC version spoken with the server; 0 while not connected."""
        return self._connection.version if self._connection is not None else 0

    @property
    def is_connected(self) -> bool:
        """Whether calls can be sent now."""
        return self._connection is not None and self._connection.is_usable

    def connect(self) -> None:
        """Begin to connect, and stay connected, without waiting for a call."""
        if self._keeper is None and not self._is_closed:
            self._loop = asyncio.get_running_loop()
            self._is_connecting = True
            self._keeper = self._loop.create_task(self._keep_connected())

    def call(
        self,
        method: str,
        body: bytes,
        deadline_ms: int,
        on_reply: OnReply,
        *,
        trace: str = "",
        counted_as: str = "",
    ) -> OutgoingCall:
        """Call a method; `on_reply` gets what came of it, once, never from inside this. No task, no future.

        `counted_as` is what the call is counted as in place of its method.
        """
        if self._keeper is None:
            self.connect()
        loop = self._loop or asyncio.get_running_loop()
        self._last_id += 1
        deadline_s = loop.time() + deadline_ms / 1000
        counted = self.stats.of(counted_as or method)
        counted.begun += 1
        call = OutgoingCall(
            self, self._last_id, method, body, deadline_s, on_reply, trace, counted, _monotonic()
        )
        refusal = self._refusal(body)
        if refusal is not None:
            loop.call_soon(_refuse_call, call, refusal)
            return call
        self.calls[call.id] = call
        self._queue(call)
        if deadline_s < self._deadline_s:
            self._watch_deadlines(deadline_s)
        return call

    async def ask(
        self, method: str, body: bytes, deadline_ms: int, *, trace: str = "", counted_as: str = ""
    ) -> bytes:
        """Call a method and return its reply, or raise what it failed with."""
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def on_reply(result: bytes | Exception) -> None:
            if done.done():
                return
            if isinstance(result, Exception):
                done.set_exception(result)
            else:
                done.set_result(result)

        call = self.call(method, body, deadline_ms, on_reply, trace=trace, counted_as=counted_as)
        try:
            return await done
        finally:
            call.cancel()

    def notify(self, method: str, body: bytes, *, trace: str = "") -> bool:
        """Say something that is not answered. False: it was not taken; True: it may still be lost on its way."""
        if self._keeper is None:
            self.connect()
        if self._refusal(body) is not None:
            self.stats.notices_refused += 1
            return False
        self.stats.notices += 1
        self._queue(OutgoingCall(self, 0, method, body, 0.0, None, trace, _NOT_COUNTED, 0.0))
        return True

    def cancel(self, call: OutgoingCall) -> None:
        """Wait for a call no longer."""
        if call.state == _DONE:
            return
        was_sent = call.state == _SENT
        call.state = _DONE
        call.on_reply = None
        call.counted.end("Cancelled", _monotonic() - call.began_s)
        if self.calls.pop(call.id, None) is None:
            return
        if was_sent:
            self._send_cancel(call)
        else:
            self._unsent_bytes -= len(call.body)
            call.body = b""

    async def close(self) -> None:
        """Close the connection for good. Calls in flight fail: outcome unknown; later ones: unreachable."""
        self._is_closed = True
        self._unreachable = "the client was closed"
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        connection = self._connection
        if connection is not None:
            connection.end("closed here")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.limits.silence_ms / 1000):
                    await asyncio.shield(connection.ended)
            connection.abort("closed here")
            await connection.ended
        self._is_connecting = False
        self._fail_unsent()

    # Calls.

    def _refusal(self, body: bytes) -> Exception | None:
        """Return why nothing more can be sent, None if it can."""
        if not (self._is_connecting or self.is_connected):
            return self._as_unreachable()
        if len(self.calls) >= self.limits.calls_max or len(self._unsent) >= self.limits.calls_max:
            return Overloaded(f"{self.limits.calls_max} calls to one server are in flight already.")
        if self._unsent_bytes + len(body) > self.limits.unsent_bytes_max:
            return Overloaded(f"{self._unsent_bytes} bytes wait to be sent to one server already.")
        assert len(body) < self.limits.frame_bytes_max - 4096, "a body fits a frame"
        return None

    def _as_unreachable(self) -> Unreachable:
        host, port = self.address
        if self.is_connected:
            return Unreachable(f"{host}:{port} did not take the request in time.")
        return Unreachable(f"{host}:{port} cannot be reached: {self._unreachable}.")

    def _queue(self, call: OutgoingCall) -> None:
        self._unsent.append(call)
        self._unsent_bytes += len(call.body)
        if not self._is_flush_due:
            self.schedule_flush()

    def schedule_flush(self) -> None:
        """Send what is unsent, together with all else of this turn."""
        connection = self._connection
        if connection is None or self._is_flush_due or connection.is_in_pass:
            return
        self._is_flush_due = True
        connection.loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._is_flush_due = False
        self.flush()

    def flush(self) -> None:
        """Hand what is unsent to the connection, unless the peer does not read."""
        connection = self._connection
        if not self._unsent or connection is None or not connection.is_usable or connection.is_write_paused:
            return
        unsent = self._unsent
        self._unsent = []
        self._unsent_bytes = 0
        out: list[bytes] = []
        version = connection.version
        now_s = connection.loop.time()
        for call in unsent:
            if call.state != _UNSENT:
                continue
            call.state = _SENT
            if call.on_reply is None:
                header = render_call_header(call.method, 0, call.trace)
                out += render_frame(version, NOTICE, 0, header, call.body)
            else:
                left_ms = int((call.deadline_s - now_s) * 1000)
                header = render_call_header(call.method, left_ms if left_ms > 1 else 1, call.trace)
                out += render_frame(version, REQUEST, call.id, header, call.body)
            call.body = b""
        connection.send_now(out)

    def _send_cancel(self, call: OutgoingCall) -> None:
        connection = self._connection
        if connection is not None:
            connection.send(render_frame(connection.version, CANCEL, call.id))

    # Deadlines: one timer for all calls.

    def _watch_deadlines(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        assert self._loop is not None, "calls come after the loop is known"
        self._deadline_timer = self._loop.call_at(
            max(deadline_s, self._loop.time() + DEADLINE_STEP_S), self._on_deadline
        )

    def _on_deadline(self) -> None:
        assert self._loop is not None, "the timer is the loop's"
        now_s = self._loop.time()
        late = [call for call in self.calls.values() if call.deadline_s <= now_s]
        self._deadline_timer = None
        self._deadline_s = math.inf
        for call in late:
            del self.calls[call.id]
        earliest_s = min((call.deadline_s for call in self.calls.values()), default=math.inf)
        if earliest_s < math.inf:
            self._watch_deadlines(earliest_s)
        ended_s = _monotonic()
        for call in late:
            was_sent = call.state == _SENT
            call.state = _DONE
            if was_sent:
                self._send_cancel(call)
                _fail(call, Timeout(), ended_s)
            else:
                self._unsent_bytes -= len(call.body)
                call.body = b""
                _fail(call, self._as_unreachable(), ended_s)

    # The connection.

    async def _keep_connected(self) -> None:
        limits = self.limits
        failures = 0
        while True:
            self._is_connecting = True
            connection = _ClientConnection(self)
            reason = await self._connect(connection)
            began_s = connection.loop.time()
            if reason is None:
                reason = await asyncio.shield(connection.ended)
            lived_ms = (connection.loop.time() - began_s) * 1000
            self._unreachable = reason
            failures = 0 if lived_ms > limits.reconnect_max_ms else failures + 1
            if failures:
                self._is_connecting = False
                self._fail_unsent()
            # Clients that lost their server together do not all come back at once.
            delay_ms = min(limits.reconnect_max_ms, limits.reconnect_min_ms * 2 ** min(failures, 20))
            await asyncio.sleep(delay_ms * random.uniform(0.5, 1) / 1000)

    async def _connect(self, connection: _ClientConnection) -> str | None:
        """Connect and greet; return None, or why there is no connection."""
        reason: str | None = "given up"
        try:
            async with asyncio.timeout(self.limits.connect_timeout_ms / 1000):
                await self._connector(lambda: connection)
                reason = await connection.greeted
        except TimeoutError:
            reason = f"no connection within {self.limits.connect_timeout_ms} ms"
        except OSError as error:  # TLS errors too
            reason = error.strerror or str(error) or type(error).__name__
        except Exception as error:
            log.exception("connecting failed peer=%s:%s", *self.address)
            reason = str(error)
        finally:
            if reason is not None:
                self.stats.failed += 1
                connection.abort(reason)
        return reason

    async def _connect_by_network(self, protocol: Callable[[], asyncio.Protocol]) -> object:
        assert self._loop is not None, "connections are made on the loop"
        host, port = self.address
        if host.startswith(UNIX_PREFIX):
            return await self._loop.create_unix_connection(protocol, host.removeprefix(UNIX_PREFIX))
        tls = self._tls() if self._tls is not None else None
        return await self._loop.create_connection(protocol, host, port, ssl=tls)

    def connection_ready(self, connection: _ClientConnection) -> None:
        """Both ends have greeted: send what waits."""
        self._connection = connection
        self._is_connecting = False
        if self.say_first is not None:
            method, body = self.say_first()
            header = render_call_header(method, 0, "")
            connection.send(render_frame(connection.version, NOTICE, 0, header, body))
        if self.on_connected is not None and connection.peer is not None:
            call_back(self.on_connected, connection.peer)

    def connection_draining(self, connection: _ClientConnection, reason: str) -> None:
        """The server takes no more calls: those not sent yet fail, those sent are still answered."""
        self._unreachable = reason or "shutting down"
        if self.on_draining is not None and connection is self._connection:
            call_back(self.on_draining, reason)
        self._fail_unsent()

    def connection_lost(self, connection: _ClientConnection, reason: str) -> None:
        """Tell the owner at once, then the calls that were sent. The others wait for the next connection."""
        if self._connection is not connection:
            return
        self._connection = None
        if not self._is_closed:
            self._unreachable = reason
            self._is_connecting = True
        if self.on_closed is not None:
            call_back(self.on_closed, reason)
        sent = [call for call in self.calls.values() if call.state == _SENT]
        for call in sent:
            if self.calls.pop(call.id, None) is not None:
                call.state = _DONE
                _fail(call, ConnectionLost(), _monotonic())

    def _fail_unsent(self) -> None:
        unsent = self._unsent
        self._unsent = []
        self._unsent_bytes = 0
        for call in unsent:
            if call.state == _UNSENT:
                call.state = _DONE
                if self.calls.pop(call.id, None) is not None:
                    _fail(call, self._as_unreachable(), _monotonic())


def _answer(call: OutgoingCall, result: bytes | Exception) -> None:
    on_reply = call.on_reply
    call.on_reply = None
    if on_reply is not None:
        try:
            on_reply(result)
        except Exception:
            log.exception("callback failed method=%s", call.method)


def _fail(call: OutgoingCall, error: Exception, now_s: float) -> None:
    call.counted.end(type(error).__name__, now_s - call.began_s)
    _answer(call, error)


def _refuse_call(call: OutgoingCall, error: Exception) -> None:
    if call.state != _DONE:
        call.state = _DONE
        _fail(call, error, _monotonic())
