"""Calls between the roles of a cell: many at once over one connection, in callback style.

Public: `RPCServer` (`start`, `drain`, `close`, `address`, `connections`), `IncomingCall` (`method`, `body`, `peer`,
`deadline_ms`, `reply`, `fail`, `on_cancel`), `RPCClient` (`call`, `ask`, `notify`, `connect`, `close`, `peer`,
`is_connected`), `OutgoingCall` (`cancel`), `Connection` (`notify`), `RPCLimits`, `CheckPeer`.

    def on_send(call: IncomingCall) -> None:
        journal.append(call.body, then=lambda offset: call.reply(b"%d" % offset))     # or call.fail(DiskFull())

    server = RPCServer({"send": on_send}, Hello(cell="eu1", role="broker", node="b1"))
    address = await server.start("127.0.0.1", 0)

    def on_reply(result: bytes | Exception) -> None: ...            # exactly once, never from inside `call`

    client = RPCClient(address, Hello(cell="eu1", role="frontend", node="f1"), on_closed=suspect)
    handle = client.call("send", body, deadline_ms=2_000, on_reply=on_reply)
    handle.cancel()                                                 # on_reply is then not called
    reply = await client.ask("send", body, deadline_ms=2_000)       # the same as a coroutine: raises what failed
    client.notify("heartbeat", body)                                # one way; False when it could not be taken

What came of a call: the reply's bytes, or the error that the handler failed it with (`core/errors`, of the same
class), or one of our own:

    Unreachable      nothing was sent, so nothing has happened: another node may be asked
    ConnectionLost   sent, and the connection ended before an answer: outcome unknown
    Timeout          sent, and the deadline has passed: outcome unknown; the server is told to forget it
    Overloaded       not sent, or not begun: too many calls in flight, or too many bytes unsent

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
not wait. What both ends write in one turn of the event loop goes out together, and what came in together is handled
together: a call costs no task, future, timer or system call of its own. A peer from which nothing has come for
`silence_ms`, though it was asked, is gone, whether its connection says so or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from quaymaster.core.errors import (
    CallerError,
    ConnectionLost,
    InternalFailure,
    NotNow,
    Overloaded,
    Timeout,
    Unreachable,
    UnsupportedOperation,
)
from quaymaster.protocol.error_codec import decode_error, encode_error
from quaymaster.protocol.frames import (
    CANCEL,
    ERROR,
    FRAME_BYTES_MAX,
    GOODBYE,
    HELLO,
    NOTICE,
    PING,
    PONG,
    REPLY,
    REQUEST,
    Frame,
    FrameReader,
    FrameRefused,
    Goodbye,
    Hello,
    agree_on_version,
    parse_call_header,
    parse_goodbye,
    parse_hello,
    render_call_header,
    render_frame,
    render_goodbye,
    render_hello,
)

__all__ = [
    "CheckPeer",
    "Connection",
    "IncomingCall",
    "OutgoingCall",
    "RPCClient",
    "RPCLimits",
    "RPCServer",
]

SILENT_SWEEPS_MAX: Final = 4
"""Connections are looked at so often within `silence_ms`. Looks are counted, not time: after a pause of our own, what
the peer sent meanwhile is read before it is found silent."""
DEADLINE_STEP_S: Final = 0.01
"""How exact deadlines are: calls are not looked through more often."""
LISTEN_BACKLOG: Final = 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RPCLimits:
    """The bounds of a client or server; all but `connections_max` are for each connection."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    """Largest frame taken or sent, its header included."""
    calls_max: int = 4_096
    """Calls in progress; one more is refused as Overloaded."""
    write_buffer_bytes_max: int = 1024 * 1024
    """Unsent bytes above which a server reads no more from this peer, and a client sends no more to it."""
    unsent_bytes_max: int = 64 * 1024 * 1024
    """Unsent bytes above which a client refuses calls (Overloaded), and a server gives up a peer that does not
    read."""
    connections_max: int = 2_048
    """Connections of a server."""
    silence_ms: int = 1_500
    """A peer that says nothing for so long, though it was asked, is gone."""
    connect_timeout_ms: int = 1_000
    """For a connection, TLS and the HELLO of both."""
    reconnect_min_ms: int = 20
    """The first delay between attempts to connect; each is twice the one before, up to `reconnect_max_ms`, less a
    random part."""
    reconnect_max_ms: int = 1_000


CheckPeer = Callable[[Hello, asyncio.BaseTransport], str | None]
"""Asked when a peer has said who it is: None, or why it is refused. The cell has been compared already."""
CallHandler = Callable[["IncomingCall"], None]
"""Answers now or later. A `CallerError` or `NotNow` that it raises is the answer; anything else is a bug."""
BatchHandler = Callable[[list["IncomingCall"]], None]
"""Gets the calls of one method that came in together, in their order."""
OnReply = Callable[[bytes | Exception], None]
Connector = Callable[[Callable[[], asyncio.Protocol]], Awaitable[object]]
"""Makes a connection and gives it the protocol: TCP, TLS, or the in-memory twin's."""

_encode = msgspec.msgpack.Encoder().encode
_OVERLOADED = encode_error(Overloaded("Too many calls of this connection are in progress."))
_DRAINING = encode_error(Unreachable("The process that was asked is shutting down."))
_WAITING, _ANSWERED, _GONE = range(3)
"""What an incoming call is: unanswered, answered, or waited for by nobody (a notice, cancelled, connection lost)."""
_UNSENT, _SENT, _DONE = range(3)
"""What an outgoing call is."""


class IncomingCall:
    """A call (or notice) from a peer. Answer it once, with `reply` or `fail`, now or later."""

    __slots__ = (
        "_deadline_ms",
        "_received_s",
        "body",
        "connection",
        "id",
        "method",
        "on_cancel",
        "state",
        "trace",
    )

    def __init__(
        self, connection: Connection, call_id: int, header: Any, body: bytes, received_s: float, state: int
    ) -> None:
        self.connection = connection
        self.id = call_id
        self.method: str = header.method
        self.trace: str = header.trace
        """The request it belongs to, for logs."""
        self.body = body
        self.on_cancel: Callable[[], None] | None = None
        """Called when nobody waits any more: cancelled, out of time, or the connection lost. Not after an answer."""
        self._deadline_ms: int = header.deadline_ms
        self._received_s = received_s
        self.state = state

    @property
    def peer(self) -> Hello:
        """Who calls."""
        peer = self.connection.peer
        assert peer is not None, "calls come after the HELLO"
        return peer

    @property
    def version(self) -> int:
        """The RPC version that this peer and we speak."""
        return self.connection.version

    @property
    def deadline_ms(self) -> int:
        """How long the caller still waits; 0 when it is too late, or nobody does."""
        elapsed_s = self.connection.loop.time() - self._received_s
        return max(0, self._deadline_ms - int(elapsed_s * 1000))

    @property
    def is_waiting(self) -> bool:
        """Whether somebody waits for an answer."""
        return self.state == _WAITING

    def reply(self, body: bytes | msgspec.Struct = b"") -> None:
        """Answer; a struct is sent as MessagePack. When nobody waits any more, nothing happens."""
        if isinstance(body, msgspec.Struct):
            body = _encode(body)
        self._answer(REPLY, body)

    def fail(self, error: Exception) -> None:
        """Answer with an error: a `CallerError` or `NotNow`. Any other arrives as InternalFailure."""
        self._answer(ERROR, encode_error(error))

    def _answer(self, kind: int, body: bytes) -> None:
        if self.state == _GONE:
            return
        assert self.state == _WAITING, f"a call of {self.method} was answered twice"
        self.state = _ANSWERED
        self.connection.answer(self.id, kind, body)

    def give_up(self) -> None:
        """Nobody waits any more; tell the handler."""
        self.state = _GONE
        if self.on_cancel is not None:
            _call_back(self.on_cancel)


class OutgoingCall:
    """A call on its way."""

    __slots__ = ("_client", "body", "deadline_s", "id", "method", "on_reply", "state", "trace")

    def __init__(
        self,
        client: RPCClient,
        call_id: int,
        method: str,
        body: bytes,
        deadline_s: float,
        on_reply: OnReply | None,
        trace: str,
    ) -> None:
        self._client = client
        self.id = call_id
        self.method = method
        self.body = body
        self.deadline_s = deadline_s
        self.on_reply = on_reply
        self.trace = trace
        self.state = _UNSENT

    def cancel(self) -> None:
        """Wait no longer: the reply is never called, and the server is told. After the reply, nothing happens."""
        self._client.cancel(self)


class Connection(asyncio.Protocol):
    """One end of a connection: HELLO, frames in and out, silence. What the frames mean, the subclasses know."""

    peer: Hello | None = None
    """Who is at the other end, once it has said so and was not refused."""
    version = 0

    def __init__(self, hello: Hello, limits: RPCLimits, check_peer: CheckPeer | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.limits = limits
        self.transport: asyncio.Transport
        self.is_write_paused = False
        self.is_up = False
        """Between the event loop's saying that it is made and that it is lost."""
        self._hello = hello
        self._check_peer = check_peer
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._is_flush_due = False
        self._is_in_pass = False
        self._received_s = 0.0
        self._has_heard = False
        self._silent_sweeps = 0
        self._unsent_bytes = 0
        self._reason: str | None = None

    # To be said in subclasses.

    def on_ready(self) -> None:
        """The peer has been greeted."""

    def on_frames(self, frames: list[Frame]) -> None:
        """Frames have come, no HELLO among them."""

    def on_pass_end(self) -> None:
        """All that came in has been handled."""

    def answer(self, call_id: int, kind: int, body: bytes) -> None:
        """Send what came of a call."""
        raise AssertionError("only a server has calls to answer")

    def on_goodbye(self, goodbye: Goodbye) -> None:
        """The peer takes no more calls; those in progress go on."""

    def on_lost(self, reason: str) -> None:
        """The connection is no more."""

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.is_up = True
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=self.limits.write_buffer_bytes_max)

    def data_received(self, data: bytes) -> None:
        self._has_heard = True
        if self._reason is not None:
            return
        self._received_s = self.loop.time()
        self._is_in_pass = True
        try:
            frames = self._reader.feed(data)
            if self.peer is None and frames:
                frames = self._greet(frames)
            if frames:
                self.on_frames(frames)
            if self._reader.refusal is not None:
                raise FrameRefused(self._reader.refusal)
        except FrameRefused as refusal:
            self.refuse(str(refusal))
        self.on_pass_end()
        self._is_in_pass = False
        if self._out:
            self._flush()

    def eof_received(self) -> None:
        if self._reason is None:
            torn = " in the middle of a frame" if self._reader.is_torn else ""
            self._reason = f"closed by the peer{torn}"

    def connection_lost(self, error: Exception | None) -> None:
        self.is_up = False
        self._out.clear()
        self.on_lost(self._reason or (str(error) if error else "") or "closed by the peer")

    def pause_writing(self) -> None:
        self.is_write_paused = True

    def resume_writing(self) -> None:
        self.is_write_paused = False

    # Sending.

    def notify(self, method: str, body: bytes, trace: str = "") -> bool:
        """Say something to the peer that it does not answer. False: it does not read, or is not there; not sent."""
        if self.peer is None or self.is_write_paused or self._reason is not None or not self.is_up:
            return False
        self.send(render_frame(self.version, NOTICE, 0, render_call_header(method, 0, trace), body))
        return True

    def send(self, pieces: Iterable[bytes]) -> None:
        """Send rendered frames, together with all others of this turn."""
        self._out += pieces
        if not self._is_flush_due and not self._is_in_pass:
            self._is_flush_due = True
            self.loop.call_soon(self._flush)

    def send_now(self, pieces: Iterable[bytes]) -> None:
        """Send rendered frames, together with those that wait; from a turn that has nothing more to send."""
        self._out += pieces
        if not self._is_in_pass:
            self._flush()

    def _flush(self) -> None:
        self._is_flush_due = False
        out = self._out
        if not out:
            return
        self._out = []
        if not self.is_up or self._reason is not None:
            return
        if len(out) == 1:
            self.transport.write(out[0])
        else:
            self.transport.writelines(out)
        if self.is_write_paused and self.transport.get_write_buffer_size() > self.limits.unsent_bytes_max:
            self.abort("does not read what it is sent")

    # Beginning and ending.

    def _greet(self, frames: list[Frame]) -> list[Frame]:
        """Take the peer's HELLO; return the frames behind it."""
        kind, _, header, _ = frames[0]
        if kind == GOODBYE:
            self._take_goodbye(header)
            return []
        if kind != HELLO:
            raise FrameRefused("it did not say who it is")
        peer = parse_hello(header)
        ours = self._hello
        version = agree_on_version(ours, peer)
        if version is None:
            raise FrameRefused(
                f"{peer} speaks RPC versions {peer.version_min}-{peer.version_max}, "
                f"{ours} speaks {ours.version_min}-{ours.version_max}"
            )
        if peer.cell != ours.cell:
            raise FrameRefused(f"{peer} is not of the cell {ours.cell}")
        refusal = self._check_peer(peer, self.transport) if self._check_peer is not None else None
        if refusal is not None:
            raise FrameRefused(refusal)
        self.version = self._reader.version = version
        self._reader.frame_bytes_max = self.limits.frame_bytes_max
        self.peer = peer
        self.on_ready()
        return self._reader.feed(b"")

    def take_other(self, kind: int, header: bytes) -> None:
        """Handle a frame that means the same at both ends."""
        if kind == PING:
            self.send(render_frame(self.version, PONG, 0))
        elif kind == GOODBYE:
            self._take_goodbye(header)
        elif kind != PONG:
            raise FrameRefused(f"a frame of kind {kind} makes no sense here")

    def _take_goodbye(self, header: bytes) -> None:
        goodbye = parse_goodbye(header)
        if goodbye.code == "refused":
            self._reason = f"refused by the peer: {goodbye.reason}"
            self.transport.close()
        else:
            self.on_goodbye(goodbye)

    def refuse(self, reason: str) -> None:
        """Tell the peer why, and close."""
        if self._reason is None and self.is_up:
            log.info("connection refused peer=%s reason=%s", self.peer or self._address(), reason)
            self._out.append(render_goodbye(Goodbye("refused", reason)))
            self.end(f"refused: {reason}")

    def end(self, reason: str) -> None:
        """Close when what has been written is sent. If the peer does not take it, the sweep ends it."""
        if self._reason is None and self.is_up:
            self._flush()
            self._reason = reason
            self._silent_sweeps = 0
            self.transport.close()

    def abort(self, reason: str) -> None:
        """Close now; what has not been sent is lost."""
        if self.is_up:
            self._reason = self._reason or reason
            self.transport.abort()

    def sweep(self) -> None:
        """Ask a silent peer whether it is there; end the connection of one that does not answer."""
        if not self.is_up:
            return
        if self._is_hearing():
            self._silent_sweeps = 0
            return
        self._silent_sweeps += 1
        if self._silent_sweeps >= SILENT_SWEEPS_MAX:
            self.abort(f"silent for {self.limits.silence_ms} ms")
        elif self._silent_sweeps == 1 and self.peer is not None and self._reason is None:
            self.send(render_frame(self.version, PING, 0))

    def _is_hearing(self) -> bool:
        has_heard = self._has_heard
        self._has_heard = False
        if self._reason is not None or self.peer is None:
            return False
        unsent_before = self._unsent_bytes
        self._unsent_bytes = self.transport.get_write_buffer_size() if self.is_write_paused else 0
        # Of a peer that we do not read because it does not, taking bytes is a sign of life.
        return has_heard or self._unsent_bytes < unsent_before

    def _address(self) -> str:
        name = self.transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else "unknown"


class _ServerConnection(Connection):
    """A connection of a server: calls come in, answers go out."""

    def __init__(self, server: RPCServer) -> None:
        super().__init__(server.hello, server.limits, server.check_peer)
        self.is_draining = False
        self._server = server
        self._calls: dict[int, IncomingCall] = {}
        self._run: list[IncomingCall] = []
        self._run_handler: BatchHandler | None = None

    @property
    def calls_active(self) -> int:
        """Calls in progress."""
        return len(self._calls)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.open.add(self)
        if len(self._server.open) > self.limits.connections_max:
            self.refuse(f"there are {self.limits.connections_max} connections already")
        elif self._server.is_draining:
            self.refuse("shutting down")

    def on_ready(self) -> None:
        self.send((render_hello(self._hello),))
        if self._server.on_connected is not None:
            _call_back(self._server.on_connected, self)

    def on_frames(self, frames: list[Frame]) -> None:
        try:
            self._take_frames(frames)
        finally:
            self._hand_over_run()

    def _take_frames(self, frames: list[Frame]) -> None:
        calls = self._calls
        server = self._server
        for kind, call_id, header_bytes, body in frames:
            if kind in (REQUEST, NOTICE):
                header = parse_call_header(header_bytes)
                call = IncomingCall(self, call_id, header, body, self._received_s, _GONE)
                if kind == REQUEST:
                    if call_id in calls:
                        raise FrameRefused(f"call {call_id} is in progress already")
                    if len(calls) >= self.limits.calls_max:
                        self.send(render_frame(self.version, ERROR, call_id, b"", _OVERLOADED))
                        continue
                    if self.is_draining:
                        self.send(render_frame(self.version, ERROR, call_id, b"", _DRAINING))
                        continue
                    call.state = _WAITING
                    calls[call_id] = call
                batch_handler = server.batch_handlers.get(header.method)
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
        self._end_if_drained()

    def _hand_over(self, call: IncomingCall) -> None:
        handler = self._server.handlers.get(call.method)
        if handler is None:
            call.fail(UnsupportedOperation(f"{self._hello} does not know the method {call.method}."))
            return
        try:
            handler(call)
        except Exception as error:
            _fail((call,), error)

    def _hand_over_run(self) -> None:
        if self._run:
            run = self._run
            self._run = []
            handler = self._run_handler
            assert handler is not None, "a run has a handler"
            try:
                handler(run)
            except Exception as error:
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
        calls = list(self._calls.values())
        self._calls.clear()
        self._run.clear()
        for call in calls:
            call.give_up()
        if self.peer is not None and self._server.on_closed is not None:
            _call_back(self._server.on_closed, self, reason)
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
    nothing. `check_peer` may refuse a peer by its HELLO and certificate. `on_connected` gets each connection once its
    peer is known, `on_closed` when it has ended and why: at once, from inside the event loop's callback.
    """

    def __init__(
        self,
        handlers: Mapping[str, CallHandler],
        hello: Hello,
        *,
        batch_handlers: Mapping[str, BatchHandler] | None = None,
        limits: RPCLimits | None = None,
        check_peer: CheckPeer | None = None,
        on_connected: Callable[[Connection], None] | None = None,
        on_closed: Callable[[Connection, str], None] | None = None,
    ) -> None:
        self.handlers = handlers
        self.batch_handlers = batch_handlers or {}
        self.hello = hello
        self.limits = limits or RPCLimits()
        self.check_peer = check_peer
        self.on_connected = on_connected
        self.on_closed = on_closed
        self.is_draining = False
        self.open: set[_ServerConnection] = set()
        self.address = ("", 0)
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Event | None = None

    @property
    def connections(self) -> list[Connection]:
        """The connections whose peer is known."""
        return [connection for connection in self.open if connection.peer is not None]

    @property
    def calls_active(self) -> int:
        """Calls in progress."""
        return sum(connection.calls_active for connection in self.open)

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Listen, and return the address: with port 0, the system chooses one."""
        options: dict[str, Any] = {}
        if tls is not None:
            options["ssl_handshake_timeout"] = self.limits.connect_timeout_ms / 1000
        self._listener = await asyncio.get_running_loop().create_server(
            self.accept, host, port, ssl=tls, backlog=LISTEN_BACKLOG, **options
        )
        self.address = self._listener.sockets[0].getsockname()[:2]
        return self.address

    def accept(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        if self._sweeper is None:
            self._sweep()
        return _ServerConnection(self)

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


class _ClientConnection(Connection):
    """A connection of a client: calls go out, answers and notices come in."""

    def __init__(self, client: RPCClient) -> None:
        super().__init__(client.hello, client.limits, client.check_peer)
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
        self._sweep_later()
        self._client.connection_ready(self)
        if not self.greeted.done():
            self.greeted.set_result(None)

    def on_frames(self, frames: list[Frame]) -> None:
        client = self._client
        calls = client.calls
        for kind, call_id, header_bytes, body in frames:
            if kind == REPLY:
                call = calls.pop(call_id, None)
                if call is not None:
                    call.state = _DONE
                    _answer(call, body)
            elif kind == ERROR:
                call = calls.pop(call_id, None)
                if call is not None:
                    call.state = _DONE
                    _answer(call, decode_error(body))
            elif kind == NOTICE:
                header = parse_call_header(header_bytes)
                handler = client.handlers.get(header.method)
                if handler is not None:
                    _call_back(handler, IncomingCall(self, 0, header, body, self._received_s, _GONE))
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
    `tls` gives the context for the next connection, so that it may change; `check_peer` as in `RPCServer`.
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
    ) -> None:
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
        self._connector = connector or self._connect_by_tcp
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
        """Who answers; None while nobody does."""
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
        self, method: str, body: bytes, deadline_ms: int, on_reply: OnReply, *, trace: str = ""
    ) -> OutgoingCall:
        """Call a method; `on_reply` gets what came of it, once, never from inside this. No task, no future."""
        if self._keeper is None:
            self.connect()
        loop = self._loop or asyncio.get_running_loop()
        self._last_id += 1
        deadline_s = loop.time() + deadline_ms / 1000
        call = OutgoingCall(self, self._last_id, method, body, deadline_s, on_reply, trace)
        refusal = self._refusal(body)
        if refusal is not None:
            loop.call_soon(_refuse_call, call, refusal)
            return call
        self.calls[call.id] = call
        self._queue(call)
        if deadline_s < self._deadline_s:
            self._watch_deadlines(deadline_s)
        return call

    async def ask(self, method: str, body: bytes, deadline_ms: int, *, trace: str = "") -> bytes:
        """Call a method and return its reply, or raise what it failed with."""
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def on_reply(result: bytes | Exception) -> None:
            if done.done():
                return
            if isinstance(result, Exception):
                done.set_exception(result)
            else:
                done.set_result(result)

        call = self.call(method, body, deadline_ms, on_reply, trace=trace)
        try:
            return await done
        finally:
            call.cancel()

    def notify(self, method: str, body: bytes, *, trace: str = "") -> bool:
        """Say something that is not answered. False: it was not taken; True: it may still be lost on its way."""
        if self._keeper is None:
            self.connect()
        if self._refusal(body) is not None:
            return False
        self._queue(OutgoingCall(self, 0, method, body, 0.0, None, trace))
        return True

    def cancel(self, call: OutgoingCall) -> None:
        """Wait for a call no longer."""
        if call.state == _DONE:
            return
        was_sent = call.state == _SENT
        call.state = _DONE
        call.on_reply = None
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
        for call in late:
            was_sent = call.state == _SENT
            call.state = _DONE
            if was_sent:
                self._send_cancel(call)
                _answer(call, Timeout())
            else:
                self._unsent_bytes -= len(call.body)
                call.body = b""
                _answer(call, self._as_unreachable())

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
                connection.abort(reason)
        return reason

    async def _connect_by_tcp(self, protocol: Callable[[], asyncio.Protocol]) -> object:
        assert self._loop is not None, "connections are made on the loop"
        host, port = self.address
        tls = self._tls() if self._tls is not None else None
        return await self._loop.create_connection(protocol, host, port, ssl=tls)

    def connection_ready(self, connection: _ClientConnection) -> None:
        """Both ends have greeted: send what waits."""
        self._connection = connection
        self._is_connecting = False
        if self.on_connected is not None and connection.peer is not None:
            _call_back(self.on_connected, connection.peer)

    def connection_draining(self, connection: _ClientConnection, reason: str) -> None:
        """The server takes no more calls: those not sent yet fail, those sent are still answered."""
        self._unreachable = reason or "shutting down"
        if self.on_draining is not None and connection is self._connection:
            _call_back(self.on_draining, reason)
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
            _call_back(self.on_closed, reason)
        sent = [call for call in self.calls.values() if call.state == _SENT]
        for call in sent:
            if self.calls.pop(call.id, None) is not None:
                call.state = _DONE
                _answer(call, ConnectionLost())

    def _fail_unsent(self) -> None:
        unsent = self._unsent
        self._unsent = []
        self._unsent_bytes = 0
        for call in unsent:
            if call.state == _UNSENT:
                call.state = _DONE
                if self.calls.pop(call.id, None) is not None:
                    _answer(call, self._as_unreachable())


def _answer(call: OutgoingCall, result: bytes | Exception) -> None:
    on_reply = call.on_reply
    call.on_reply = None
    if on_reply is not None:
        try:
            on_reply(result)
        except Exception:
            log.exception("callback failed method=%s", call.method)


def _refuse_call(call: OutgoingCall, error: Exception) -> None:
    if call.state != _DONE:
        call.state = _DONE
        _answer(call, error)


def _fail(calls: Iterable[IncomingCall], error: Exception) -> None:
    """Answer with what a handler raised."""
    for call in calls:
        if not isinstance(error, CallerError | NotNow):
            log.error("call handler failed method=%s trace=%s", call.method, call.trace, exc_info=error)
        if call.is_waiting:
            call.fail(error)


def _call_back(callback: Callable[..., None], *arguments: Any) -> None:
    """Call what somebody gave us; it must not harm the connection."""
    try:
        callback(*arguments)
    except Exception:
        log.exception("callback failed")
