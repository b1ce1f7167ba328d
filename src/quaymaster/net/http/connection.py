"""One client's connection to the HTTP server: requests in, replies out in the same order, and what it is late with.

What it is reading:

```
             ┌── whole body there: handed over at the end of the pass ─┐
             ▼                                                         │
    ──▶ HEAD ──head complete, admitted──▶ BODY ────────────────────────┘
         │                                  │
         └── refused, `Connection: close` ──┴──▶ NOTHING MORE ──last reply sent──▶ closed
```
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import cast

from quaymaster.net.http.body import ChunkedBody, SizedBody
from quaymaster.net.http.connection_owner import AdmitRequest, ConnectionOwner
from quaymaster.net.http.head import CHUNKED, HeadParser
from quaymaster.net.http.message import CONNECTION_CLOSE, HTTPRequest
from quaymaster.net.http.replies import ReplyQueue
from quaymaster.net.http.return_time import ReturnTime
from quaymaster.net.http.strangers import PeerShare
from quaymaster.net.http.transports import address_of, has_input
from quaymaster.net.http.unreadable import UnreadableRequest

UNREAD_BYTES_MAX = 256 * 1024
"""A connection that waits for its pass with more than this is not read meanwhile."""
STALLED_UNREAD_BYTES_MAX = 16 * 1024
"""Nor one whose earlier requests wait, or that is a stranger's and waits for its turn, with more than this. With less
it is read, to see when the client goes: its long polls must not take messages for nobody."""
EMPTY_LINES_MAX = 8
"""So many empty lines are let pass at once before a request; more would hold the loop and mean nothing."""
STRANGER_HEADS_PER_TURN = 4
"""Requests that a stranger's connection may have taken in one turn."""
UNCOUNTED_BYTES = 4 * 1024
"""What a stranger's connection holds is counted above this."""
HELD_PERCENT_MAX = 90
"""No more than this part of all connections is held; others are closed instead. Of a client that is held it is not
seen that it has gone, so those that reconnect would use up all connections."""
GIVE_WAY_MS = 2_000
"""A connection that others need is closed after so long in which nothing new happened on it."""
LINGER_MS = 2_000
"""How long we go on reading, and forgetting, after a refusal: a close with unread bytes would make the
kernel reset the connection, and the client might never see why it was refused."""

_HEAD, _BODY, _NOTHING_MORE = range(3)
"""What a connection reads next."""
_IDLE, _IN_HEAD, _IN_BODY, _SERVING, _WRITING, _LINGERING, _CLOSING = range(7)
"""What the sweep sees it do."""
_ACTIVITIES = 8

log = logging.getLogger(__name__)


class HTTPConnection(asyncio.Protocol):
    """One client. Requests come in and replies go out in the same order."""

    __slots__ = (
        "_activity",
        "_activity_since_ms",
        "_body",
        "_body_bytes",
        "_body_bytes_since_ms",
        "_continue_due",
        "_dropped_bytes",
        "_end_of_input",
        "_head",
        "_is_lingering",
        "_is_lost",
        "_is_of_proxy",
        "_is_read_due",
        "_is_tls",
        "_kept_bytes",
        "_limits",
        "_phase",
        "_pipeline_max",
        "_reading_paused",
        "_received_ms",
        "_refused",
        "_replies",
        "_request",
        "_requests_seen",
        "_return",
        "_server",
        "_stalled",
        "_transport",
        "_turn_scheduled",
        "_unread",
        "_write_paused",
        "counted_bytes",
        "gives_way",
        "is_late",
        "key",
        "peer",
        "share",
    )

    def __init__(
        self, server: ConnectionOwner[HTTPConnection], *, peer: str | None = None, is_tls: bool = False
    ) -> None:
        """`peer` and `is_tls`: what a proxy said before the first request (`net/http/proxied`)."""
        self._server = server
        self._limits = server.limits
        self._pipeline_max = server.limits.pipeline_max
        """0 while the connection is held: then nothing more is taken from it."""
        self._head = HeadParser(server.limits)
        self._transport: asyncio.Transport
        self.peer = peer or ""
        self._is_tls = is_tls
        self._is_of_proxy = peer is None
        """Whether requests say in a header who their client is; asked once it is known who connected."""
        self.key: str | None = None
        """The access key that signed the last request that was judged; None: it was not signed (`net/http/known`)."""
        self.share: PeerShare | None = None
        self.is_late = False
        """Whether an answer went to it that was not for something signed; see `net/http/strangers`."""
        self.counted_bytes = 0
        self.gives_way = False
        self._body_bytes = 0
        self._body_bytes_since_ms = 0.0
        """Whether it is closed behind its next reply, for others."""
        self._phase = _HEAD
        self._unread = b""
        """Bytes received and not taken yet: until the next pass; part of a head; requests over pipeline_max."""
        self._replies = ReplyQueue()
        self._request: HTTPRequest | None = None
        """The request whose body is being read."""
        self._body: SizedBody | ChunkedBody | None = None
        self._kept_bytes = 0
        """Our part of the server's `body_bytes`."""
        self._requests_seen = 0
        self._continue_due = False
        """The client waits for `100 Continue`."""
        self._is_read_due = False
        self._dropped_bytes = 0
        self._received_ms = 0.0
        """When the first of what waits for a pass came in."""
        self._return = ReturnTime()
        self._turn_scheduled = False
        self._stalled = False
        """There is something unread that must wait for its turn."""
        self._reading_paused = False
        self._write_paused = False
        self._refused = False
        """A request could not be read on, so nothing behind it can."""
        self._end_of_input = False
        self._is_lingering = False
        self._is_lost = False
        self._activity = -1
        self._activity_since_ms = 0.0

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        server = self._server
        if self._is_of_proxy:
            self.peer = address_of(transport)
            self._is_of_proxy = self.peer in server.trusted_proxies
        if server.is_draining or not server.has_room_for(self.peer):
            self._is_lost = True
            self._phase = _NOTHING_MORE
            server.on_event("connection_refused")
            headers, body = server.error_response(503, "The server takes no more connections.")
            self._transport.writelines(
                server.replies.render(503, headers, CONNECTION_CLOSE, body, is_head=False)
            )
            server.turn_away(self._transport)
            return
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes_max)
        server.add(self)

    def data_received(self, data: bytes) -> None:
        self._server.received_bytes += len(data)
        if self._phase == _NOTHING_MORE:
            self._drop(len(data))
            return
        self._unread = self._unread + data if self._unread else data
        if self._is_read_due or self._stalled:
            self._update_reading()
        else:
            self._schedule_read(time.monotonic() * 1000)
        if self.key is None and len(self._unread) > UNCOUNTED_BYTES:
            self._update_reading()
            self._settle()

    def eof_received(self) -> bool:
        """Take it up in this connection's turn: what came before it has been handled then."""
        self._end_of_input = True
        if self._is_lost or self._is_lingering:
            return False
        if self._replies.pending or self._replies.ready or self._unread or self._turn_scheduled:
            self._schedule_turn()
        else:
            self._turn_scheduled = True
            self._server.schedule_end(self)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self._phase = _NOTHING_MORE
        self._unread = b""
        self._forget_body()
        waiting = self._replies.waiting()
        self._replies.pending.clear()
        self._replies.ready.clear()
        self._server.remove(self)
        if waiting:
            self._server.on_event("client_disconnected")
        for request in waiting:
            request._connection = None
        for request in waiting:
            if request.on_disconnect is not None:
                self._server.call_back(request.on_disconnect)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._activity = -1
        self._schedule_turn()

    # Reading.

    def _schedule_read(self, received_ms: float) -> None:
        self._is_read_due = True
        self._received_ms = received_ms
        self._server.schedule_read(self)

    def read(self, requests_max: int) -> int:
        """Take up to `requests_max` requests from what is unread, or fewer if others should have their turn.

        Return how many bytes were taken.
        """
        self._is_read_due = False
        data, self._unread = self._unread, b""
        size = len(data)
        try:
            position = self._take_requests(data, requests_max)
        except UnreadableRequest as refusal:
            self._refuse(refusal)
            position = size
        if position < size:
            self._unread = data[position:]
        if self._continue_due or self._end_of_input:
            self._schedule_turn()
        if self._stalled or self._refused or self._reading_paused:
            self._update_reading()
        if self.key is None:
            self._settle()
        if self._dropped_bytes:
            size, self._dropped_bytes = self._dropped_bytes, 0
        return size - len(self._unread)

    def _take_requests(self, data: bytes, requests_max: int) -> int:
        """Take heads and bodies one after another; return the position behind them."""
        received_ms, pending = self._received_ms, self._replies.pending
        if self.key is None:
            requests_max = min(requests_max, STRANGER_HEADS_PER_TURN)
        turns = min(self._pipeline_max, requests_max)
        empty_lines = 0
        position, size = 0, len(data)
        while position < size:
            if self._phase == _HEAD:
                if data[position] == 13:  # RFC 9112, 2.2: empty lines before a request are let pass
                    if position + 1 == size:
                        break
                    if data[position + 1] == 10:
                        position += 2
                        empty_lines += 1
                        if empty_lines > EMPTY_LINES_MAX:
                            raise UnreadableRequest(400, "rejected_malformed", "These are only empty lines.")
                        continue
                if not turns or len(pending) >= self._pipeline_max or self._write_paused:
                    self._stall()
                    break
                taken = self._read_head(data, position, received_ms)
                turns -= 1
            elif self._phase == _BODY:
                taken = self._read_body(data, position, received_ms)
                if self._stalled:
                    return taken
            else:
                return size
            if taken == position:
                break
            position = taken
        return position

    def _stall(self) -> None:
        """Leave the rest unread until this connection's next turn."""
        self._stalled = True
        self._schedule_turn()

    def _read_head(self, data: bytes, position: int, received_ms: float) -> int:
        """Take one head, and its body too if all of it is there; return the new position."""
        head = self._head
        request = head.read(data, position, self.peer, received_ms, self)
        if request is None:
            return position
        self._requests_seen += 1
        if self._is_tls:
            request.is_tls = True
        elif self._is_of_proxy:
            self._server.trusted_proxies.tell(request)
        length = head.body_length
        end = head.end
        if length > self._limits.body_bytes_max:
            self._request = request
            raise UnreadableRequest(
                413, "rejected_body_too_large", f"The body is over {self._limits.body_bytes_max} bytes."
            )
        body_end = end + length
        if length >= 0 and body_end <= len(data):
            if length:
                body = data[end:body_end]
                request.body = body
                head.skip_body(body)
            self._take(request)
            return body_end
        admit = self._server.admit
        if admit is not None:
            refusal = self._ask(admit, request)
            if refusal is not None:
                self._server.on_event("rejected_by_admission")
                self._answer_and_close(request, *refusal)
                return len(data)

        self._request = request
        self._continue_due = head.expects_continue
        if length == CHUNKED:
            self._body = ChunkedBody(self._limits, request.digest)
        else:
            self._body = SizedBody(length, request.digest)
        self._phase = _BODY
        return end

    def _read_body(self, data: bytes, position: int, received_ms: float) -> int:
        """Take what is there of a body; return the new position."""
        body = self._body
        assert body is not None, "a body is read into what its head called for"
        self._continue_due = False
        end = body.feed(data, position)
        if body.is_complete:
            self._finish_body(body.join(), received_ms)
        else:
            self._keep(body.kept_bytes)
            if body.has_more:
                self._stall()
        return end

    def _keep(self, kept_bytes: int) -> None:
        """Note the memory that the body takes now. Where all such bodies take too much, those heard least lately go.

        UnreadableRequest: it takes too much alone.
        """
        server = self._server
        server.body_bytes += kept_bytes - self._kept_bytes
        self._kept_bytes = kept_bytes
        bodies = server.bodies
        bodies.pop(self, None)
        bodies[self] = None
        while server.body_bytes > self._limits.body_bytes_total_max:
            stalled = next(iter(bodies))
            refusal = UnreadableRequest(
                503, "rejected_bodies_full", "The server is receiving too many bodies."
            )
            if stalled is self:
                raise refusal
            stalled._refuse(refusal)

    def _forget_body(self) -> None:
        """Let go of a body that has come in part, and of its request."""
        server = self._server
        server.body_bytes -= self._kept_bytes
        server.bodies.pop(self, None)
        self._kept_bytes = 0
        self._request = self._body = None

    def _finish_body(self, body: bytes, received_ms: float) -> None:
        request = self._request
        assert request is not None, "a body belongs to a request"
        self._forget_body()
        self._phase = _HEAD
        self._head.reset()
        request.body = body
        request.received_ms = received_ms
        self._take(request)

    def _take(self, request: HTTPRequest) -> None:
        self._replies.pending.append(request)
        if request._connection_line is CONNECTION_CLOSE:
            self._phase = _NOTHING_MORE
        self._server.arrive(request)

    def _ask(self, admit: AdmitRequest, request: HTTPRequest) -> tuple[int, bytes, bytes] | None:
        try:
            return admit(request)
        except Exception:
            log.exception("request admission failed name=%s", self._server.name)
            self._server.on_event("handler_failed")
            return 500, *self._server.error_response(500, "The server failed to handle the request.")

    def _refuse(self, refusal: UnreadableRequest) -> None:
        self._server.on_event(refusal.event)
        request = self._request
        if request is None:  # its head could not be read
            now_ms = time.monotonic() * 1000
            request = HTTPRequest(b"", b"", b"", b"", [], self.peer, now_ms, {}, CONNECTION_CLOSE, self)
        headers, body = self._server.error_response(refusal.status, refusal.message)
        self._answer_and_close(request, refusal.status, headers, body)

    def _answer_and_close(self, request: HTTPRequest, status: int, headers: bytes, body: bytes) -> None:
        """Answer `request` in its turn, and read nothing behind its head."""
        self._forget_body()
        self._continue_due = False
        self._unread = b""
        self._phase = _NOTHING_MORE
        self._refused = True
        request._connection_line = CONNECTION_CLOSE
        self._replies.pending.append(request)
        request.respond(status, headers, body)

    def _drop(self, size: int) -> None:
        """Forget what came after a refusal. What is forgotten was read all the same, so others have their turn."""
        if size <= UNCOUNTED_BYTES or self.key is not None:
            return
        if self._is_lost:  # it was turned away
            self._transport.pause_reading()
        elif self._is_lingering and not self._is_read_due:
            self._dropped_bytes = size
            self._schedule_read(0.0)
            self._update_reading()

    def _update_reading(self) -> None:
        unread_max = UNREAD_BYTES_MAX if self.key is not None else STALLED_UNREAD_BYTES_MAX
        pause = (
            self._write_paused
            or not self._pipeline_max
            or (self._stalled and len(self._unread) > STALLED_UNREAD_BYTES_MAX)
            or (self._refused and not self._is_lingering)
            or (self._is_read_due and (len(self._unread) > unread_max or self._is_lingering))
        )
        if pause == self._reading_paused or self._is_lost or self._transport.is_closing():
            return
        self._reading_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # Replying.

    def reply(self, request: HTTPRequest, status: int, headers: bytes, body: bytes) -> None:
        server = self._server
        if self.key is None:
            self.is_late = True
            server.unsigned_answers += 1
        if (server.is_ending and self._is_last(request)) or (self.gives_way and self._is_last_taken(request)):
            self._end_behind(request)
        line, is_head = request._connection_line, request.method == b"HEAD"
        rendered = server.replies.render(status, headers, line, body, is_head=is_head)
        if self._replies.answer(request, rendered):
            self._schedule_turn()

    def _is_last(self, request: HTTPRequest) -> bool:
        """Whether nothing has been received behind `request`."""
        return not self._unread and self._is_last_taken(request)

    def _is_last_taken(self, request: HTTPRequest) -> bool:
        """Whether nothing behind `request` is being read."""
        return self._phase == _HEAD and request is self._replies.pending[-1]

    def _end_behind(self, request: HTTPRequest) -> None:
        """Answer `request`, and nothing that came behind it."""
        request._connection_line = CONNECTION_CLOSE
        self._phase = _NOTHING_MORE
        if self._unread:
            self._unread = b""
            self._refused = True
        if self.gives_way:
            self._server.on_event("closed_for_others")

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._server.schedule_turn(self)

    def take_turn(self, pass_ms: float) -> None:
        """Send the replies whose turn has come, then take up reading where it had to stop."""
        self._turn_scheduled = False
        if self._is_lost:
            return
        pending, out = self._replies.pending, self._replies.ready
        if out:
            if len(out) == 1:
                self._transport.write(out[0])
            else:
                self._transport.writelines(out)
            self._server.sent_bytes += sum(map(len, out))
            out.clear()
        if self._end_of_input:
            self._give_polls_up()
        if self._stalled and not self._write_paused and len(pending) < self._pipeline_max:
            self._stalled = False
            self._schedule_read(pass_ms)
        elif self._end_of_input and not self._stalled and not self._is_read_due:
            self._end_input()
        if not pending and not out:
            if self._replies.closes or (self._server.is_draining and self._is_idle()):
                self._close()
            elif self._continue_due:
                self._continue_due = False
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._reading_paused:
            self._update_reading()
        if self.key is None:
            self._settle()

    def _give_polls_up(self) -> None:
        """The client sends no more: it may be gone, so none of its polls must take a message any more.

        Where it is still there it gets an answer to them, and so to all that it asked before and after.
        """
        polls = self._replies.take_polls()
        if not polls:
            return
        self._server.on_event("client_disconnected")
        headers, body = self._server.error_response(503, "The client sent no more, so its wait was given up.")
        for _, stand_in in polls:
            stand_in.respond(503, headers, body)
        for poll, _ in polls:
            assert poll.on_disconnect is not None, "that made it a poll"
            self._server.call_back(poll.on_disconnect)

    def _end_input(self) -> None:
        """Answer a client that only stopped sending what it asked."""
        self._phase = _NOTHING_MORE
        self._unread = b""
        self._forget_body()
        self._replies.closes = True

    def hold_off(self, hold_ms: int) -> None:
        """Take nothing more from this client for so long; for good when too many are held."""
        server = self._server
        if self._is_of_proxy:  # its other requests are of other clients
            return
        if not self._pipeline_max or self._phase == _NOTHING_MORE or server.is_draining:
            return
        if (server.connections_held + 1) * 100 <= self._limits.connections_max * HELD_PERCENT_MAX:
            self._pipeline_max = 0
            self._update_reading()
            server.hold(self, hold_ms)
        else:
            self._replies.pending[-1]._connection_line = CONNECTION_CLOSE
            self._phase = _NOTHING_MORE
            self._unread = b""
            self._forget_body()

    def hold_off_if_early(self, request: HTTPRequest, hold_ms: int) -> None:
        """Do so if a request came before the time that this client was told last; it is told another one."""
        if self._return.tell(request.received_ms, hold_ms):
            self.hold_off(hold_ms)

    def release(self) -> None:
        """Take up reading again."""
        self._pipeline_max = self._limits.pipeline_max
        if not self._is_lost:
            self._schedule_turn()

    # Strangers; see `net/http/strangers`.

    @property
    def account(self) -> str:
        """Whose key signed the last request that was judged; "" where none did."""
        return "" if self.key is None else self._server.known.account_of(self.key)

    def become_known(self, key: str, account: str) -> bool:
        """A request of it was signed with this key of an account; False when it or its account has too many."""
        if self._server.known.add(self, key, account):
            self._server.strangers.remove(self)
            self.is_late = False
            return True
        if self.share is None:
            self._server.strangers.add(self, self.peer)
        return False

    def become_stranger(self) -> None:
        """A request of it was not."""
        if not self._is_lost:
            self._server.known.remove(self)
            self._server.strangers.add(self, self.peer)

    def charge(self, used_s: float) -> None:
        """Charge strangers for processor time that a request of it took after its pass."""
        if self.key is None:
            self._server.unsigned_time.charge(used_s, time.monotonic(), is_late=self.is_late)

    @property
    def has_much(self) -> bool:
        """Whether it sent much."""
        return self.counted_bytes > 0

    def can_be_closed(self) -> bool:
        """Tell whether no request of it waits for an answer, or to be read for the first time."""
        if self._is_read_due and not self._requests_seen:
            return False
        return not self._replies.waiting()

    def idle_ms(self) -> float:
        """Return for how long it had nothing to do, as the sweeps saw; 0 while it has."""
        if self._activity != self._requests_seen * _ACTIVITIES + _IDLE or self._is_read_due:
            return 0.0
        return self._server.clock_ms - self._activity_since_ms

    def close_idle(self) -> bool:
        """Close it for others; False, and nothing is done, when something of its client has just come in."""
        if has_input(self._transport):
            return False
        self._server.on_event("closed_for_others")
        self._close()
        return True

    def unchanged_ms(self) -> float:
        """Return for how long it has been doing what it does, as the sweeps saw."""
        if self._activity != self._requests_seen * _ACTIVITIES + self._current_activity():
            return 0.0
        return self._server.clock_ms - self._activity_since_ms

    def give_way(self) -> None:
        """Have it closed for others: behind its next reply, or once it was idle for a while or its request stalled.

        An answer that is read slowly is sent to its end.
        """
        self.gives_way = True
        self._hurry()

    def close_for_others(self) -> None:
        """Close it, so that there is room for others."""
        self._server.on_event("closed_for_others")
        self.connection_lost(None)
        self._transport.abort()

    def give_memory_back(self) -> None:
        """Refuse what is coming in; close it where it does not read our answers."""
        if self._phase == _NOTHING_MORE or self._transport.get_write_buffer_size() > UNCOUNTED_BYTES:
            self.close_for_others()
        else:
            self._refuse(
                UnreadableRequest(
                    503, "rejected_unsigned_full", "Too much is coming in that is not known to be signed."
                )
            )

    def _settle(self) -> None:
        """Have the memory counted that it takes as a stranger's."""
        if self._is_lost:
            return
        kept_bytes = len(self._unread) + self._kept_bytes + self._transport.get_write_buffer_size()
        self._server.strangers.keep(self, kept_bytes if kept_bytes > UNCOUNTED_BYTES else 0)

    # Ending.

    @property
    def is_ending(self) -> bool:
        """Whether what waits for messages must not wait any longer."""
        return self.gives_way or self._server.is_draining

    def count_waiting(self) -> int:
        """Return how many requests are with the handler."""
        return len(self._replies.waiting())

    def drain(self) -> None:
        """Tell the requests that wait, and close if there is nothing to answer."""
        self._hurry()
        if self._requests_seen or not self._server.hears_newcomers:
            self.close_if_idle()

    def close_if_idle(self) -> None:
        """Close it if nothing of it is being read or answered, and its next request is not in the kernel."""
        is_answered = not self._replies.pending and not self._replies.ready
        if is_answered and self._is_idle() and not has_input(self._transport):
            self._close()

    def _hurry(self) -> None:
        for request in self._replies.waiting():
            if request.on_hurry is not None and request.is_waiting:
                self._server.call_back(request.on_hurry)

    def abort(self) -> None:
        """Cut the connection off; what has not been sent is lost."""
        self._transport.abort()

    def sweep(self, now_ms: float) -> None:
        """Drop the client when it has been doing the same thing for too long."""
        if self.counted_bytes:
            self._settle()
        activity = self._requests_seen * _ACTIVITIES + self._current_activity()
        if activity != self._activity:
            self._activity = activity
            self._activity_since_ms = now_ms
            return
        elapsed_ms = now_ms - self._activity_since_ms
        limits = self._limits
        doing = activity % _ACTIVITIES
        if self.gives_way and self._has_stalled(doing, now_ms, elapsed_ms):
            self._end_for_others(doing)
        elif doing == _IDLE:
            if elapsed_ms > limits.idle_timeout_ms and not has_input(self._transport):
                self._server.on_event("timeout_idle")
                self._close()
        elif doing == _IN_HEAD:
            if elapsed_ms > limits.header_timeout_ms:
                self._refuse(UnreadableRequest(408, "timeout_header", "The headers took too long."))
        elif doing == _IN_BODY:
            if elapsed_ms > limits.body_timeout_ms + self._body_time_ms():
                self._refuse(UnreadableRequest(408, "timeout_body", "The body took too long."))
        elif doing == _LINGERING:
            if elapsed_ms > LINGER_MS:
                self.abort()
        elif doing != _SERVING and elapsed_ms > limits.write_timeout_ms:
            self._server.on_event("timeout_write")
            self.abort()

    def _has_stalled(self, doing: int, now_ms: float, elapsed_ms: float) -> bool:
        """Whether its client has sent nothing for long enough, and no answer is being made or sent."""
        if doing in (_SERVING, _WRITING):
            return False
        if doing == _IN_BODY:
            assert self._body is not None, "one that reads a body has begun it"
            if self._body.size != self._body_bytes:
                self._body_bytes, self._body_bytes_since_ms = self._body.size, now_ms
            return now_ms - self._body_bytes_since_ms >= GIVE_WAY_MS
        return elapsed_ms >= GIVE_WAY_MS

    def _end_for_others(self, doing: int) -> None:
        """Close it unless its next request has come."""
        if doing in (_IN_HEAD, _IN_BODY):
            self._refuse(UnreadableRequest(503, "closed_for_others", "Others need this connection."))
        elif doing == _IDLE:
            self.close_idle()
        elif doing == _LINGERING:
            self.abort()

    def _current_activity(self) -> int:
        if self._transport.is_closing():
            return _CLOSING
        if self._is_lingering:
            return _LINGERING
        if self._write_paused:
            return _WRITING
        if not self._pipeline_max:  # held: if it is slow, that is our doing
            return _SERVING
        if self._phase == _BODY:
            return _IN_BODY
        if self._unread and not self._stalled:
            return _IN_HEAD
        return _IDLE if self._is_idle() and not self._replies.pending else _SERVING

    def _body_time_ms(self) -> float:
        assert self._body is not None, "one that reads a body has begun it"
        return self._body.size * 1000 / self._limits.body_rate_min_bytes_per_s

    def _is_idle(self) -> bool:
        return self._phase == _HEAD and not self._unread

    def _close(self) -> None:
        if self._is_lingering or self._transport.is_closing():
            return
        if self._refused and not self._end_of_input:
            self._is_lingering = True
            self._transport.write_eof()
            self._update_reading()
        else:
            self._phase = _NOTHING_MORE
            self._transport.close()
