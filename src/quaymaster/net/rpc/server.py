"""The end of a connection that answers: calls come in, singly or in runs of one method; and the server that listens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from quaymaster.core.values.errors import (
    AccessDenied,
    CallerError,
    InternalFailure,
    NotNow,
    Overloaded,
    Unreachable,
    UnsupportedOperation,
)
from quaymaster.monitoring.logs import log_failure
from quaymaster.net.listener import Listener
from quaymaster.net.rpc.connection import (
    GONE,
    SILENT_SWEEPS_MAX,
    WAITING,
    CallHandler,
    CheckPeer,
    IncomingCall,
    RPCConnection,
    RPCLimits,
    call_back,
)
from quaymaster.net.rpc.stats import RPCMetrics
from quaymaster.protocol.rpc.error_codec import encode_error
from quaymaster.protocol.rpc.frames import (
    CANCEL,
    ERROR,
    NOTICE,
    REQUEST,
    Frame,
    FrameRefused,
    Goodbye,
    Hello,
    parse_call_header,
    render_frame,
    render_goodbye,
    render_hello,
)
from quaymaster.settings import UNIX_PREFIX

UNIX_MODE: Final = 0o600

log = logging.getLogger(__name__)

BatchHandler = Callable[[list[IncomingCall]], None]
"""Gets the calls of one method that came in together, in their order."""

_OVERLOADED = encode_error(Overloaded("Too many calls of this connection are in progress."))
_DRAINING = encode_error(Unreachable("The process that was asked is shutting down."))


class _ServerConnection(RPCConnection):
    """A connection of a server: calls come in, answers go out."""

    def __init__(self, server: RPCServer) -> None:
        super().__init__(server.hello, server.limits, server.check_peer, server.metrics.of("server", ""))
        self.is_draining = False
        self._server = server
        self._calls: dict[int, IncomingCall] = {}
        self._run: list[IncomingCall] = []
        self._run_handler: BatchHandler | None = None
        self._partial_bytes = 0
        """Our part of the server's."""
        self._is_advancing = True
        """Whether a frame has come whole since the last sweep."""
        self._torn_sweeps = 0
        self._handlers: Mapping[str, CallHandler] = {}
        self._batch_handlers: Mapping[str, BatchHandler] = {}

    @property
    def calls_active(self) -> int:
        """Calls in progress."""
        return len(self._calls)

    def calls_in_progress(self) -> list[IncomingCall]:
        """Return the calls that are not answered yet."""
        return list(self._calls.values())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.open.add(self)
        self._server.add_unknown(self)
        if len(self._server.open) > self.limits.connections_max:
            self.refuse(f"there are {self.limits.connections_max} connections already")
        elif self._server.is_draining:
            self.refuse("shutting down")

    def on_ready(self) -> None:
        assert self.peer is not None, "who is ready has been heard"
        self._server.unknown.pop(self, None)
        self.stats = self._server.metrics.of("server", self.peer.role)
        self.stats.opened += 1
        self._handlers, self._batch_handlers = self._server.handlers_for(self.peer.role)
        self.send((render_hello(self._hello),))
        if self._server.on_connected is not None:
            call_back(self._server.on_connected, self)

    def on_frames(self, frames: list[Frame]) -> None:
        self._is_advancing = True
        try:
            self._take_frames(frames)
        finally:
            self._hand_over_run()

    def _take_frames(self, frames: list[Frame]) -> None:
        calls = self._calls
        batch_handlers = self._batch_handlers
        for kind, call_id, header_bytes, body in frames:
            if kind in (REQUEST, NOTICE):
                header = parse_call_header(header_bytes)
                call = IncomingCall(self, call_id, header, body, self._received_s, GONE)
                if kind == REQUEST:
                    if call_id in calls:
                        raise FrameRefused(f"call {call_id} is in progress already")
                    if len(calls) >= self.limits.calls_max:
                        self.send(render_frame(self.version, ERROR, call_id, b"", _OVERLOADED))
                        continue
                    if self.is_draining:
                        self.send(render_frame(self.version, ERROR, call_id, b"", _DRAINING))
                        continue
                    call.state = WAITING
                    calls[call_id] = call
                batch_handler = batch_handlers.get(header.method)
                if self._run and batch_handler is not self._run_handler:
                    self._hand_over_run()
                if batch_handler is not None:
                    self._run_handler = batch_handler
                    self._run.append(call)
                else:
                    self._hand_over(call)
            else:
                self._hand_over_run()
                if kind == CANCEL:
                    cancelled = calls.pop(call_id, None)
                    if cancelled is not None:
                        cancelled.give_up()
                else:
                    self.take_other(kind, header_bytes)

    def on_pass_end(self) -> None:
        if self._reader.kept_bytes != self._partial_bytes:
            self._keep(self._reader.kept_bytes)
        self._end_if_drained()

    def _keep(self, kept_bytes: int) -> None:
        """Note what is kept of a frame that has come in part; refuse the peer when that is too much, of all of them."""
        server = self._server
        server.partial_bytes += kept_bytes - self._partial_bytes
        self._partial_bytes = kept_bytes
        if kept_bytes and server.partial_bytes > self.limits.partial_bytes_max:
            self.refuse("too much is being received at once")

    def sweep(self) -> None:
        """See `RPCConnection`; also end the connection of a peer that does not come to the end of a frame."""
        is_late = self._reader.is_torn and not self._is_advancing and not self.is_write_paused
        self._is_advancing = False
        self._torn_sweeps = self._torn_sweeps + 1 if is_late else 0
        if self._torn_sweeps * self.limits.silence_ms > self.limits.frame_timeout_ms * SILENT_SWEEPS_MAX:
            self.abort(f"a frame did not come whole within {self.limits.frame_timeout_ms} ms")
        super().sweep()

    def _hand_over(self, call: IncomingCall) -> None:
        handler = self._handlers.get(call.method)
        if handler is None:
            self._deny(call)
            return
        try:
            handler(call)
        except Exception as error:  # noqa: BLE001 -- the call is answered with it
            _fail((call,), error)

    def _deny(self, call: IncomingCall) -> None:
        """Answer a call that this peer has no handler for; one that says what it may not is spoken to no more."""
        if not self._server.knows(call.method):
            call.fail(UnsupportedOperation(f"{self._hello} does not know the method {call.method}."))
            return
        if not call.is_waiting:
            raise FrameRefused(f"{self.peer} may not call {call.method}")
        log.warning("call denied peer=%s method=%s", self.peer, call.method)
        call.fail(AccessDenied(f"{self.peer} may not call {call.method}."))

    def _hand_over_run(self) -> None:
        if self._run:
            run = self._run
            self._run = []
            handler = self._run_handler
            assert handler is not None, "a run has a handler"
            try:
                handler(run)
            except Exception as error:  # noqa: BLE001 -- the call is answered with it
                _fail(run, error)

    def answer(self, call_id: int, kind: int, body: bytes) -> None:
        """Send what came of a call."""
        del self._calls[call_id]
        if len(body) > self.limits.frame_bytes_max - 64:
            kind = ERROR
            body = encode_error(InternalFailure(f"A reply of {len(body)} bytes is too large to be sent."))
        self.send(render_frame(self.version, kind, call_id, b"", body))
        if self.is_draining and not self._is_in_pass:
            self._end_if_drained()

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def on_lost(self, reason: str) -> None:
        self._server.open.discard(self)
        self._server.unknown.pop(self, None)
        self._keep(0)
        if self.peer is None:
            self.stats.failed += 1
        else:
            self.stats.closed += 1
        calls = list(self._calls.values())
        self._calls.clear()
        self._run.clear()
        for call in calls:
            call.give_up()
        if self.peer is not None and self._server.on_closed is not None:
            call_back(self._server.on_closed, self, reason)
        self._server.connection_ended()

    def drain(self) -> None:
        """Take no more calls, and close once those in progress are answered."""
        if not self.is_draining and self._reason is None:
            self.is_draining = True
            self.send((render_goodbye(Goodbye("draining", "shutting down")),))
            self._end_if_drained()

    def _end_if_drained(self) -> None:
        if self.is_draining and not self._calls:
            self.end("drained")


class RPCServer:
    """Answers calls with `handlers`, by method; `batch_handlers` get those of one method that came in together.

    Notices are handed to the same handlers, in their order among the calls of their connection; answering one does
    nothing. `check_peer` may refuse a peer by its HELLO and certificate; `callers` says of a method which roles may
    call it (those it does not name, everybody who was not refused). `on_connected` gets each connection once its peer
    is known, `on_closed` when it has ended and why: at once, from inside the event loop's callback. Connections are
    counted in `metrics`, by the role of the peer.
    """

    def __init__(
        self,
        handlers: Mapping[str, CallHandler],
        hello: Hello,
        *,
        batch_handlers: Mapping[str, BatchHandler] | None = None,
        limits: RPCLimits | None = None,
        check_peer: CheckPeer | None = None,
        on_connected: Callable[[RPCConnection], None] | None = None,
        on_closed: Callable[[RPCConnection, str], None] | None = None,
        metrics: RPCMetrics | None = None,
        callers: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._callers = callers or {}
        self.metrics = metrics or RPCMetrics()
        self.handlers = handlers
        self.batch_handlers = batch_handlers or {}
        self.hello = hello
        self.limits = limits or RPCLimits()
        self.check_peer = check_peer
        self.on_connected = on_connected
        self.on_closed = on_closed
        self.is_draining = False
        self.open: set[_ServerConnection] = set()
        self.unknown: dict[_ServerConnection, None] = {}
        """Those whose peer has not said who it is, the oldest first."""
        self.partial_bytes = 0
        """Of frames that have come in part."""
        self.address = ("", 0)
        self._listener: Listener | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Event | None = None

    def handlers_for(self, role: str) -> tuple[Mapping[str, CallHandler], Mapping[str, BatchHandler]]:
        """Return the handlers of what peers of a role may call."""
        denied = {method for method, roles in self._callers.items() if role not in roles}
        return (
            {method: handler for method, handler in self.handlers.items() if method not in denied},
            {method: handler for method, handler in self.batch_handlers.items() if method not in denied},
        )

    def knows(self, method: str) -> bool:
        """Tell whether anybody may call this."""
        return method in self.handlers or method in self.batch_handlers

    @property
    def connections(self) -> list[RPCConnection]:
        """The connections whose peer is known."""
        return [connection for connection in self.open if connection.peer is not None]

    @property
    def calls_active(self) -> int:
        """Calls in progress."""
        return sum(connection.calls_active for connection in self.open)

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Listen, and return the address: with port 0, the system chooses one.

        A host `unix:PATH` is a Unix socket, which only this user can connect to. Raises OSError.
        """
        listener = Listener(
            self.accept,
            takes=lambda _: True,
            tls=tls,
            handshake_timeout_s=self.limits.connect_timeout_ms / 1000,
        )
        if host.startswith(UNIX_PREFIX):
            listener.start_unix(Path(host.removeprefix(UNIX_PREFIX)), UNIX_MODE)
            self.address = host, 0
        else:
            self.address = await listener.start(host, port)
        self._listener = listener
        return self.address

    def accept(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        if self._sweeper is None:
            self._sweep()
        return _ServerConnection(self)

    def add_unknown(self, connection: _ServerConnection) -> None:
        """Note that it is not known yet whose this is: anyone may connect, so peers are left their room."""
        if len(self.unknown) >= self.limits.unknown_max:
            oldest = next(iter(self.unknown))
            del self.unknown[oldest]
            self.open.discard(oldest)
            oldest.abort("others connected, and it had not said who it is")
        self.unknown[connection] = None

    def _sweep(self) -> None:
        self._sweeper = None
        for connection in list(self.open):
            connection.sweep()
        if self.is_draining and not self.open:
            return
        delay_s = self.limits.silence_ms / 1000 / SILENT_SWEEPS_MAX
        self._sweeper = asyncio.get_running_loop().call_later(delay_s, self._sweep)

    async def drain(self, grace_ms: int) -> None:
        """Take no more connections and calls; wait for those in progress, at most so long; then close everything."""
        self.is_draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.open):
            connection.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_ms / 1000):
                await self._wait_closed()
        await self.close()

    async def close(self) -> None:
        """Close everything now; calls in progress are not answered."""
        self.is_draining = True
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self.open):
            connection.abort("shut down")
        await self._wait_closed()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    async def _wait_closed(self) -> None:
        if self.open:
            self._all_closed = asyncio.Event()
            await self._all_closed.wait()

    def connection_ended(self) -> None:
        """Note that a connection is no longer among the open ones."""
        if self._all_closed is not None and not self.open:
            self._all_closed.set()


def _fail(calls: Iterable[IncomingCall], error: Exception) -> None:
    """Answer with what a handler raised."""
    for call in calls:
        if not isinstance(error, CallerError | NotNow):
            log_failure(log, "call handler failed", error, method=call.method, request=call.trace or None)
        if call.is_waiting:
            call.fail(error)
