"""The HTTP/1.1 server: it listens, and has all its connections read, answered and looked after together.

Public: `HTTPServer` (`start`, `drain`, `connections`, `connections_held`, `requests_active`, `is_draining`),
`RequestsHandler`, `one_by_one`, `AdmitRequest`, `RenderError`, `HTTP_EVENTS`; and from `message`:
`HTTPRequest` (`respond`, `hold_off`, `header`, `on_disconnect`, `hurry_by`, `is_waiting`), `HTTPLimits`,
`render_error_as_text`.

Work goes in passes, one for all that came in since the last, each a few short loops over many requests:

```
    sockets ──data_received──▶ unread ─┬─ pass: read heads and bodies ──▶ handler(requests) ──▶ write replies
    handler ──respond, later──▶ out ───┘
```

The same few functions run for one request after the other, so their code and data are still in the processor's
caches: a request costs a third less than when each is taken all the way by itself. It costs no task, future,
timer or log line either. One sweep over all connections finds the late ones: what a connection was doing at
the last sweep is compared with what it does now.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from quaymaster.net.http.connection import LINGER_MS, HTTPConnection
from quaymaster.net.http.connection_owner import AdmitRequest, RenderError
from quaymaster.net.http.flows import FLOW_REQUESTS_MAX
from quaymaster.net.http.forwarded import NO_PROXIES, TrustedProxies
from quaymaster.net.http.known import Known, KnownConnection
from quaymaster.net.http.message import HTTPLimits, HTTPRequest, render_error_as_text
from quaymaster.net.http.replies import ReplyRenderer
from quaymaster.net.http.strangers import Stranger, Strangers, UnsignedTime
from quaymaster.net.listener import Listener

__all__ = [
    "HTTP_EVENTS",
    "AdmitRequest",
    "HTTPLimits",
    "HTTPRequest",
    "HTTPServer",
    "RenderError",
    "RequestsHandler",
    "one_by_one",
    "render_error_as_text",
]

RequestsHandler = Callable[[list[HTTPRequest]], None]
"""Called on the loop's thread with the requests that a pass found complete, those of one connection in their
order; answers each now or later. Raises only by a bug: what of the pass is unanswered then is answered 500."""
HTTP_EVENTS: Final = (
    "connection_opened",
    "connection_closed",
    "connection_refused",  # over connections_max, or over what one peer may have without a signature
    "closed_for_others",  # for there was no room
    "rejected_malformed",
    "rejected_proxy_header",  # no header of the PROXY protocol where each connection has one
    "rejected_target_too_large",
    "rejected_header_too_large",
    "rejected_body_too_large",
    "rejected_bodies_full",  # over body_bytes_total_max
    "rejected_unsigned_full",  # over what connections without a valid signature may hold
    "rejected_by_admission",
    "timeout_header",
    "timeout_body",
    "timeout_idle",
    "timeout_write",
    "client_disconnected",  # while a request of it was unanswered
    "handler_failed",
)

PASS_REQUESTS_MAX = 128
"""A pass stops reading at so many complete requests; other connections wait for the next one, in their order. So the
loop looks after everything else in between, however much comes in."""
PASS_BODY_BYTES_MAX = 1024 * 1024
"""A pass also stops reading at so many bytes of bodies: a mebibyte takes milliseconds to check and to encrypt."""
ENDS_PER_PASS = 64
"""So many connections whose clients are gone are closed in a pass: 20 to 50 us each. Thousands may go at once."""
UNSIGNED_PASS_BYTES_MAX = 512 * 1024
"""A pass reads so much of strangers; see `net/http/strangers`."""
UNSIGNED_PASS_S = 0.001
"""And takes no more of them after so much processor time: what one request costs is up to who sends it."""
UNSIGNED_BUSY_PART = 4
"""While known connections are served, a pass takes as many of them as it took known requests, at least such a part of
these bounds: a known request that comes in meanwhile waits for no more."""
UNSIGNED_STEP_REQUESTS = 4
UNSIGNED_STEP_BYTES = 64 * 1024
"""So many of their requests, or so much of their bodies, are handed over at once; one request while known connections
are served, for then the time is looked at after each."""
NEWCOMERS_MAX = 64
NEWCOMERS_PART = 16
"""Where several accounts have connections, so many more than `connections_max` may be open, at most a part of these:
new clients are heard, and known connections give way to those who sign (`net/http/known`)."""
TURNED_AWAY_MAX = 256
"""Clients that were refused, and are let see why before their connection is closed."""
FIRST_REQUEST_S = 1.0
"""After its end was announced, a server that drains waits so long for the first requests of new connections."""
HOLD_STEP_S = 0.05
"""How exact the end of a hold is."""
SWEEP_INTERVAL_MS_MAX = 500
SWEPT_PER_TURN = 512
"""A sweep looks at so many connections at once: a microsecond each."""
SWEEPS_LATE_MAX = 2
"""A sweep that comes later than so many intervals: this process was stopped, or its loop was held. Clients are not
charged with that time; what they sent meanwhile has not been read yet."""
log = logging.getLogger(__name__)


def one_by_one(handler: Callable[[HTTPRequest], None]) -> RequestsHandler:
    """Return a handler that takes the requests of a pass one after the other; one that raises costs only itself."""

    def handle(requests: list[HTTPRequest]) -> None:
        for request in requests:
            try:
                handler(request)
            except Exception:
                log.exception("request handler failed")
                if request.is_waiting:
                    request.respond(
                        500, *render_error_as_text(500, "The server failed to handle the request.")
                    )

    return handle


class HTTPServer:
    """Accepts connections and hands their requests to `handler`, one call for those of a pass.

    Servers of one event loop share `unsigned_time`.

    Runs on asyncio's own event loop and on uvloop. Everything happens on the loop's thread.
    """

    def __init__(
        self,
        handler: RequestsHandler,
        limits: HTTPLimits,
        *,
        name: str,
        on_event: Callable[[str], None] | None = None,
        admit: AdmitRequest | None = None,
        error_response: RenderError = render_error_as_text,
        unsigned_time: UnsignedTime | None = None,
        trusted_proxies: TrustedProxies = NO_PROXIES,
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.name = name
        self.admit = admit
        self.trusted_proxies = trusted_proxies
        self.error_response = error_response
        self.received_bytes = 0
        self.sent_bytes = 0
        """Of requests and their answers, as they are in HTTP."""
        self.on_event: Callable[[str], None] = on_event or _ignore_event
        self.is_draining = False
        self.is_ending = False
        """Whether connections are closed behind their next answer."""
        self.hears_newcomers = False
        """Whether connections may stay for their first request although it drains."""
        self.strangers = Strangers(limits)
        self.known = Known(limits)
        self._open: set[HTTPConnection] = set()
        self._turned_away: deque[tuple[float, asyncio.Transport]] = deque()
        """And when they were, on the sweep's clock."""
        self._arrived: list[HTTPRequest] = []
        self._dirty: list[HTTPConnection] = []
        self._ending: deque[HTTPConnection] = deque()
        self._arrived_bytes = 0
        """Of their bodies."""
        self._is_pass_due = False
        self.unsigned_time = unsigned_time or UnsignedTime()
        self.unsigned_answers = 0
        self._rest: asyncio.TimerHandle | None = None
        self._held: list[tuple[float, int, HTTPConnection]] = []
        """Connections from which nothing is taken, and until when: a heap."""
        self._holds = 0
        self._releaser: asyncio.TimerHandle | None = None
        self.body_bytes = 0
        """Memory that bodies take that have come in part."""
        self.bodies: dict[HTTPConnection, None] = {}
        """Connections that have such a body, the one heard least lately first."""
        self.replies = ReplyRenderer()
        self._listener: Listener | None = None
        self._sweeper: asyncio.Handle | None = None
        self._to_sweep: Iterator[HTTPConnection] = iter(())
        self._all_closed: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop
        shortest_ms = min(
            limits.header_timeout_ms,
            limits.body_timeout_ms,
            limits.idle_timeout_ms,
            limits.write_timeout_ms,
        )
        self._sweep_interval_s = max(1, min(shortest_ms // 4, SWEEP_INTERVAL_MS_MAX)) / 1000
        self._swept_at_s = 0.0
        self.clock_ms = 0.0
        """Of the sweeps: it moves with the time in which this process could serve its clients."""

    def why_not_ready(self) -> str | None:
        """Return why a balancer should ask another server, None while new connections are taken."""
        has_room = (
            self.connections < self.limits.connections_max
            or self.strangers.can_make_room()
            or self.known.can_make_room()
        )
        return None if has_room else "The server takes no more connections."

    @property
    def connections(self) -> int:
        """Open connections, those being closed included."""
        return len(self._open)

    @property
    def connections_held(self) -> int:
        """Connections from which nothing is taken for a while (`HTTPRequest.hold_off`)."""
        return len(self._held)

    @property
    def requests_active(self) -> int:
        """Requests given to the handler and not answered yet. Counted on demand, over all connections."""
        return sum(connection.count_waiting() for connection in self._open)

    async def start(self, host: str, port: int, *, shares_port: bool = False) -> tuple[str, int]:
        """Listen, and return the bound address; port 0 takes a free one. `shares_port`: see `Listener.start`.

        Raises:
            OSError: the address cannot be bound.
        """
        assert self._listener is None, "a server is started once"
        self._loop = asyncio.get_running_loop()
        listener = Listener(lambda: HTTPConnection(self), takes=self.strangers.may_connect)
        host, port = await listener.start(host, port, shares_port=shares_port)
        self._listener = listener
        self._sweep()
        log.info("http server started name=%s host=%s port=%d", self.name, host, port)
        return host, port

    def announce_end(self) -> None:
        """Close each connection behind its next answer, and say so there; new ones are still taken.

        So when `drain` closes those that are idle, their clients were silent since; those that have just connected
        have a while for their request. A client that asks all the time has sent none on one that is being closed.
        """
        self.is_ending = True

    async def drain(self, grace_s: float) -> None:
        """Stop: answer what has been asked, take nothing new, and cut off what is left after `grace_s`.

        Idle connections are closed at once. Requests that wait are told (`on_hurry`) so they can be answered
        early. Requests half received are still read and answered, with `Connection: close`.
        """
        listener, self._listener = self._listener, None
        if listener is None:
            return
        self.hears_newcomers = self.is_ending
        if self.hears_newcomers:
            listener.accept_waiting()
        listener.close()
        while listener.handshakes:  # noqa: ASYNC110 -- a turn or two of the loop
            await asyncio.sleep(0)
        self.is_draining = self.is_ending = True
        self._all_closed = asyncio.Event()
        self._release(float("inf"))
        for connection in list(self._open):
            connection.drain()
        silent = self._loop.call_later(min(FIRST_REQUEST_S, grace_s), self._close_silent)
        try:
            if self._open:
                await asyncio.wait_for(self._all_closed.wait(), grace_s)
        except TimeoutError:
            log.warning("http server cut connections off name=%s connections=%d", self.name, len(self._open))
            for connection in list(self._open):
                connection.abort()
            await self._all_closed.wait()
        finally:
            silent.cancel()
            if self._sweeper is not None:
                self._sweeper.cancel()
            for _, transport in self._turned_away:
                transport.abort()
        log.info("http server stopped name=%s", self.name)

    def _close_silent(self) -> None:
        self.hears_newcomers = False
        for connection in list(self._open):
            connection.close_if_idle()

    # For connections.

    def has_room_for(self, peer: str) -> bool:
        """Tell whether one more connection is taken; another may have been closed for it."""
        return self.strangers.make_room_for(peer) and (
            self.connections < self.limits.connections_max + self._places_of_newcomers()
            or self.strangers.make_room(peer)
            or self.known.make_room()
        )

    def _places_of_newcomers(self) -> int:
        """Return how many connections may be open above the most that there may be."""
        if not self.known.is_shared:
            return 0
        return min(NEWCOMERS_MAX, -(-self.limits.connections_max // NEWCOMERS_PART))

    def turn_away(self, transport: asyncio.Transport) -> None:
        """Close the connection of a client that was refused, once it has seen that."""
        if len(self._turned_away) < TURNED_AWAY_MAX and not self.is_draining:
            transport.write_eof()
            self._turned_away.append((self.clock_ms, transport))
        else:
            transport.close()

    def add(self, connection: HTTPConnection) -> None:
        self._open.add(connection)
        self.strangers.add(connection, connection.peer)
        self.on_event("connection_opened")

    def remove(self, connection: HTTPConnection) -> None:
        self._open.discard(connection)
        self.strangers.remove(connection)
        self.known.remove(connection)
        self.on_event("connection_closed")
        if self._all_closed is not None and not self._open:
            self._all_closed.set()

    def schedule_read(self, connection: HTTPConnection) -> None:
        """Have what `connection` received read in the next pass; a stranger's, when its turn comes."""
        if connection.key is not None:
            self.known.wait_for_turn(connection)
        else:
            self.strangers.wait_for_turn(connection)
        self._have_pass()

    def schedule_turn(self, connection: HTTPConnection) -> None:
        """Have `connection` send what it has, and read on, at the end of the next pass."""
        self._dirty.append(connection)
        self._have_pass()

    def schedule_end(self, connection: HTTPConnection) -> None:
        """Have `connection`, whose client is gone and waits for nothing, close when others have had their turn."""
        self._ending.append(connection)
        self._have_pass()

    def arrive(self, request: HTTPRequest) -> None:
        """Have a request that is complete handed over: in this pass, or in the next if it has begun to write."""
        self._arrived.append(request)
        self._arrived_bytes += len(request.body)

    def hold(self, connection: HTTPConnection, hold_ms: int) -> None:
        """Release `connection` after so long."""
        self._holds += 1
        heappush(self._held, (time.monotonic() * 1000 + hold_ms, self._holds, connection))
        if self._releaser is None:
            self._releaser = self._loop.call_later(HOLD_STEP_S, self._release_due)

    def _have_pass(self) -> None:
        if not self._is_pass_due:
            self._is_pass_due = True
            self._loop.call_soon(self._pass)

    def _pass(self) -> None:
        try:
            self._take_up(time.monotonic() * 1000)
        finally:  # whatever failed, the next pass comes
            self._is_pass_due = False
            if self.known.flows or self._arrived or self._dirty or self._ending:
                self._have_pass()
            else:
                self._have_pass_for_strangers()

    def _have_pass_for_strangers(self) -> None:
        """Have a pass once those that wait may have their turn: now, or when they have rested."""
        now_s = time.monotonic()
        rests_s = [
            self.unsigned_time.rest_s(now_s, is_late=is_late)
            for is_late in (False, True)
            if self.strangers.is_waiting(is_late=is_late)
        ]
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        if rests_s:
            rest_s = min(rests_s)
            if rest_s <= 0:
                self._have_pass()
            else:
                self._rest = self._loop.call_later(rest_s, self._end_rest)

    def _end_rest(self) -> None:
        self._rest = None
        self._have_pass()

    def _take_up(self, pass_ms: float) -> None:
        flows = self.known.flows
        if flows:
            self.unsigned_time.note_known(pass_ms / 1000)
        while flows and not self._is_pass_full():
            waiting = flows.begin_turn()
            requests_max = len(self._arrived) + FLOW_REQUESTS_MAX
            while waiting and len(self._arrived) < requests_max and not self._is_pass_full():
                left = requests_max - len(self._arrived) if flows.are_several else PASS_REQUESTS_MAX
                self._read(waiting.popleft(), left)
            flows.end_turn()
        known = len(self._arrived)
        self._hand_over_arrived()
        self._take_turns(pass_ms)
        for is_late in (False, True):
            if (
                self.strangers.is_waiting(is_late=is_late)
                and self.unsigned_time.rest_s(time.monotonic(), is_late=is_late) <= 0
            ):
                self._read_strangers(pass_ms, known, is_late=is_late)
        for _ in range(min(len(self._ending), ENDS_PER_PASS)):
            self._take_turn(self._ending.popleft(), pass_ms)

    def _is_pass_full(self) -> bool:
        return len(self._arrived) >= PASS_REQUESTS_MAX or self._arrived_bytes >= PASS_BODY_BYTES_MAX

    def _read_strangers(self, pass_ms: float, known: int, *, is_late: bool) -> None:
        """Take requests of some whose signature is not known to be valid; the others wait for the next pass.

        They are handed over a few at a time, for it is then that their signatures are looked at: how long that takes
        depends on what they sent. `known`: so many requests of known connections were taken in this pass.
        """
        requests_max = self.limits.unsigned_requests_per_pass
        part, step = 1.0, UNSIGNED_STEP_REQUESTS
        if self.unsigned_time.is_shared(pass_ms / 1000):
            least = -(-requests_max // UNSIGNED_BUSY_PART)
            part, step = min(max(known, least), requests_max) / requests_max, 1
            requests_max = round(requests_max * part)
        requests = read_bytes = 0
        answers_before = self.unsigned_answers
        began_s = time.thread_time()
        until_s = began_s + UNSIGNED_PASS_S * part
        for _ in range(requests_max):
            connection = self.strangers.next_turn(is_late=is_late)
            if connection is None:
                break
            read_bytes += self._read(connection, step)
            if len(self._arrived) >= step or self._arrived_bytes >= UNSIGNED_STEP_BYTES:
                requests += len(self._arrived)
                self._hand_over_arrived()
            if (
                requests + len(self._arrived) >= requests_max
                or read_bytes >= UNSIGNED_PASS_BYTES_MAX * part
                or time.thread_time() >= until_s
            ):
                break
        requests += len(self._arrived)
        self._hand_over_arrived()
        self._take_turns(pass_ms)
        unsigned = self.unsigned_answers - answers_before
        if unsigned:
            used_s = time.thread_time() - began_s
            self.unsigned_time.charge(
                used_s * min(1, unsigned / max(1, requests)), time.monotonic(), is_late=is_late
            )

    def _take_turns(self, pass_ms: float) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            self._take_turn(connection, pass_ms)

    def _take_turn(self, connection: HTTPConnection, pass_ms: float) -> None:
        try:
            connection.take_turn(pass_ms)
        except Exception:  # noqa: BLE001 -- costs one connection
            self._on_failed(connection)

    def _read(self, connection: Stranger | KnownConnection, requests_max: int = PASS_REQUESTS_MAX) -> int:
        try:
            return connection.read(requests_max)
        except Exception:  # noqa: BLE001 -- costs one connection
            self._on_failed(connection)
            return 0

    def _on_failed(self, connection: Stranger | KnownConnection) -> None:
        """A bug of ours costs the connection it was met on, not the server."""
        log.exception("connection failed name=%s", self.name)
        self.on_event("handler_failed")
        connection.abort()

    def _hand_over_arrived(self) -> None:
        if self._arrived:
            arrived, self._arrived = self._arrived, []
            self._arrived_bytes = 0
            self._hand_over(arrived)

    def _hand_over(self, requests: list[HTTPRequest]) -> None:
        try:
            self.handler(requests)
        except Exception:
            log.exception("request handler failed name=%s", self.name)
            self.on_event("handler_failed")
            headers, body = self.error_response(500, "The server failed to handle the request.")
            for request in requests:
                if request.is_waiting:
                    request.respond(500, headers, body)

    def call_back(self, callback: Callable[[], None]) -> None:
        """Tell a handler something of its request; its failure is nobody else's."""
        try:
            callback()
        except Exception:
            log.exception("request callback failed name=%s", self.name)
            self.on_event("handler_failed")

    def _release_due(self) -> None:
        self._release(time.monotonic() * 1000)

    def _release(self, now_ms: float) -> None:
        held = self._held
        while held and held[0][0] <= now_ms:
            heappop(held)[2].release()
        if self._releaser is not None:
            self._releaser.cancel()
            self._releaser = self._loop.call_later(HOLD_STEP_S, self._release_due) if held else None

    def _sweep(self) -> None:
        now_s = time.monotonic()
        passed_s = min(now_s - self._swept_at_s, SWEEPS_LATE_MAX * self._sweep_interval_s)
        self._swept_at_s = now_s
        self.clock_ms += passed_s * 1000
        self.replies.set_time(int(time.time()))
        self.strangers.forgive()
        self.known.forgive()
        while self._turned_away and self._turned_away[0][0] + LINGER_MS < self.clock_ms:
            self._turned_away.popleft()[1].abort()
        self._to_sweep = iter(list(self._open))
        self._sweep_some()

    def _sweep_some(self) -> None:
        """Sweep over some, and let others have their turn before the next."""
        swept = 0
        for connection in islice(self._to_sweep, SWEPT_PER_TURN):
            connection.sweep(self.clock_ms)
            swept += 1
        if swept == SWEPT_PER_TURN:
            self._sweeper = self._loop.call_soon(self._sweep_some)
        else:
            self._sweeper = self._loop.call_later(self._sweep_interval_s, self._sweep)


def _ignore_event(event: str) -> None:
    """Count nothing."""
