"""What both ends of a connection do: frames in and out, the HELLO, silence, what is unsent; and a call that came in.

A peer from which nothing has come for `silence_ms`, though it was asked, is gone, whether its connection says so or
not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from quaymaster.monitoring.logs import log_event
from quaymaster.net.rpc.stats import RPCStats
from quaymaster.protocol.rpc.error_codec import encode_error
from quaymaster.protocol.rpc.frames import (
    ERROR,
    FRAME_BYTES_MAX,
    GOODBYE,
    HELLO,
    NOTICE,
    PING,
    PONG,
    REPLY,
    Frame,
    FrameReader,
    FrameRefused,
    Goodbye,
    Hello,
    agree_on_version,
    parse_goodbye,
    parse_hello,
    render_call_header,
    render_frame,
    render_goodbye,
)

SILENT_SWEEPS_MAX: Final = 4
"""Connections are looked at so often within `silence_ms`. Looks are counted, not time: after a pause of our own, what
the peer sent meanwhile is read before it is found silent."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RPCLimits:
    """The bounds of a client or server; `connections_max` and `partial_bytes_max` are for all connections together."""

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
    unknown_max: int = 1_024
    """Of these, connections whose peer has not said who it is; one more closes the oldest such."""
    partial_bytes_max: int = 256 * 1024 * 1024
    """Bytes that a server keeps of frames that have come in part; clients that send more of one are refused."""
    frame_timeout_ms: int = 30_000
    """How long a frame may take to come whole: 16 MiB at half a megabyte a second."""
    silence_ms: int = 1_500
    """A peer that says nothing for so long, though it was asked, is gone."""
    connect_timeout_ms: int = 1_000
    """For a connection, TLS and the HELLO of both."""
    reconnect_min_ms: int = 20
    """The first delay between attempts to connect; each is twice the one before, up to `reconnect_max_ms`, less a
    random part."""
    reconnect_max_ms: int = 1_000
    slow_ms: float = 1_000
    """A call that belongs to a request and takes longer than this is logged by who answers it."""


CheckPeer = Callable[[Hello, asyncio.BaseTransport], str | None]
"""Asked when a peer has said who it is: None, or why it is refused. The cell has been compared already."""
CallHandler = Callable[["IncomingCall"], None]
"""Answers now or later. A `CallerError` or `NotNow` that it raises is the answer; anything else is a bug."""
OnReply = Callable[[bytes | Exception], None]
Connector = Callable[[Callable[[], asyncio.Protocol]], Awaitable[object]]
"""Makes a connection and gives it the protocol: TCP, TLS, or the in-memory twin's."""

_encode = msgspec.msgpack.Encoder().encode
WAITING, ANSWERED, GONE = range(3)
"""What an incoming call is: unanswered, answered, or no longer waited for (a notice, cancelled, connection lost)."""


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
        "patience_ms",
        "state",
        "trace",
    )

    def __init__(
        self, connection: RPCConnection, call_id: int, header: Any, body: bytes, received_s: float, state: int
    ) -> None:
        self.connection = connection
        self.id = call_id
        self.method: str = header.method
        self.trace: str = header.trace
        """The request it belongs to, for logs."""
        self.body = body
        self.patience_ms = 0
        """How long it may take before it is slow, on top of what any may: of a long poll, its wait."""
        self.on_cancel: Callable[[], None] | None = None
        """Called when the caller no longer waits: cancelled, out of time, or disconnected. Not after an answer."""
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
    def address(self) -> str:
        """From where."""
        return self.connection.address

    @property
    def caller(self) -> str:
        """Who calls and from where, for logs."""
        return f"{self.peer} at {self.address}"

    @property
    def version(self) -> int:
        """The RPC version that this peer and we speak."""
        return self.connection.version

    @property
    def deadline_ms(self) -> int:
        """How long the caller still waits; 0 when it is too late, or it does not wait."""
        if not self.is_waiting:
            return 0  # it gave up by its own clock, which began a little earlier
        elapsed_s = self.connection.loop.time() - self._received_s
        return max(0, self._deadline_ms - int(elapsed_s * 1000))

    @property
    def is_waiting(self) -> bool:
        """Whether somebody waits for an answer."""
        return self.state == WAITING

    def reply(self, body: bytes | msgspec.Struct = b"") -> None:
        """Answer; a struct is sent as MessagePack. When the caller no longer waits, nothing happens."""
        if isinstance(body, msgspec.Struct):
            body = _encode(body)
        self._answer(REPLY, body)

    def fail(self, error: Exception) -> None:
        """Answer with an error: a `CallerError` or `NotNow`. Any other arrives as InternalFailure."""
        self._answer(ERROR, encode_error(error))

    def _answer(self, kind: int, body: bytes) -> None:
        if self.state == GONE:
            return
        assert self.state == WAITING, f"a call of {self.method} was answered twice"
        self.state = ANSWERED
        self.connection.answer(self.id, kind, body)
        if self.trace:
            self._log_if_slow()

    def _log_if_slow(self) -> None:
        now_s = self.connection.loop.time()
        took_ms = (now_s - self._received_s) * 1000
        if took_ms <= self.connection.limits.slow_ms + self.patience_ms:
            return
        left_out = self.connection.stats.slow_lines.enter(now_s * 1000)
        if left_out is not None:
            log_event(
                log,
                logging.WARNING,
                "call was slow",
                request=self.trace,
                method=self.method,
                caller=self.caller,
                took_ms=round(took_ms, 1),
                left_out=left_out or None,
            )

    def give_up(self) -> None:
        """The caller no longer waits; tell the handler."""
        self.state = GONE
        if self.on_cancel is not None:
            call_back(self.on_cancel)


class RPCConnection(asyncio.Protocol):
    """One end of a connection: HELLO, frames in and out, silence. What the frames mean, the subclasses know."""

    peer: Hello | None = None
    """Who is at the other end, once it has said so and was not refused."""
    version = 0

    def __init__(
        self, hello: Hello, limits: RPCLimits, check_peer: CheckPeer | None, stats: RPCStats
    ) -> None:
        self.stats = stats
        """What is counted of connections such as this; the subclass may take others once the peer is known."""
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

    def calls_in_progress(self) -> list[IncomingCall]:
        """Return the calls of the peer that are not answered yet; a client's peer makes none."""
        return []

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
        self.stats.received_bytes += len(data)
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
            self.stats.sent_bytes += len(out[0])
            self.transport.write(out[0])
        else:
            self.stats.sent_bytes += sum(map(len, out))
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
            log.info("connection refused peer=%s reason=%s", self.peer or self.address, reason)
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

    @property
    def address(self) -> str:
        """Where the peer is, as host:port."""
        name = self.transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else "unknown"


def call_back(callback: Callable[..., None], *arguments: Any) -> None:
    """Call what somebody gave us; it must not harm the connection."""
    try:
        callback(*arguments)
    except Exception:
        log.exception("callback failed")
