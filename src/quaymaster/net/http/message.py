"""One HTTP request as a handler sees it, and the limits every connection is held to.

Public: `HTTPRequest`, `HTTPLimits`, `render_error_as_text`.

```
    head read ──▶ admitted ──▶ body read ──▶ handler(request) ──▶ respond() ──▶ gone
                     │                            │  (now, or later: a long poll)
                     └── refused: 401, 413, …     └── client hangs up ──▶ on_disconnect()
```
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

import msgspec

CONNECTION_CLOSE = b"Connection: close\r\n"
CONNECTION_KEEP_ALIVE = b"Connection: keep-alive\r\n"
CONNECTION_PERSISTS = b""
"""HTTP/1.1 connections stay open unless something is said."""


@dataclass(frozen=True, slots=True)
class HTTPLimits:
    """What one connection, and all of them together, may cost. Times are milliseconds, sizes bytes."""

    header_bytes_max: int = 32 * 1024
    """All header lines of a request together; also the trailer lines of a chunked body."""
    header_count_max: int = 100
    target_bytes_max: int = 16 * 1024
    """The request target. SQS's Query protocol may carry a whole message in it."""
    body_bytes_max: int = 8 * 1024 * 1024
    """A body, as sent. JSON may spend six bytes on one of a message's, so this is not the message limit."""
    body_bytes_total_max: int = 256 * 1024 * 1024
    """All bodies together that have come in part; a body that came whole with its head is not among them."""
    header_timeout_ms: int = 10_000
    """From the first byte of a request to the end of its headers."""
    body_timeout_ms: int = 10_000
    """For a body, plus the time its received bytes take at `body_rate_min_bytes_per_s`."""
    body_rate_min_bytes_per_s: int = 16 * 1024
    idle_timeout_ms: int = 75_000
    """Between requests. Longer than the usual load balancer's 60 s, so that it closes first, not we."""
    connections_max: int = 10_000
    pipeline_max: int = 32
    """Requests of one connection the handler holds at once, and that are served in one pass of the loop."""
    write_buffer_bytes_max: int = 256 * 1024
    """Unsent reply bytes of a connection above which no further request of it is read."""
    write_timeout_ms: int = 30_000
    """How long replies may stay unsent because the client does not read them."""
    unsigned_bytes_max: int = 64 * 1024 * 1024
    """What all connections without a valid signature hold: received and not taken, and unsent."""
    unsigned_peer_bytes_max: int = 32 * 1024 * 1024
    """The same of one peer."""
    unsigned_connections_max: int = 2_000
    """Connections without a valid signature, of all peers; one more closes the oldest."""
    unsigned_peer_connections_max: int = 1_000
    """Connections of one peer without a valid signature; one more closes the oldest."""
    unsigned_requests_per_pass: int = 32
    """So many requests of such connections a pass takes, and it looks at no more connections than that."""
    account_connections_percent: int = 50
    """This part of all connections may be those of one account, whatever keys and sessions of it sign."""
    key_connections_percent: int = 90
    """And this part of those may be of one access key."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")


class ReplySink(Protocol):
    """The connection a request came by."""

    key: str | None
    """The access key that signed the last request of it that was judged; None when it was not signed."""

    @property
    def account(self) -> str:
        """Whose that key is; "" where there is none."""
        ...

    @property
    def is_ending(self) -> bool:
        """Whether what waits for messages must not wait any longer."""
        ...

    def become_known(self, key: str, account: str) -> bool: ...

    def become_stranger(self) -> None: ...

    def charge(self, used_s: float) -> None: ...

    def reply(self, request: HTTPRequest, status: int, headers: bytes, body: bytes) -> None: ...

    def hold_off(self, hold_ms: int) -> None: ...

    def hold_off_if_early(self, request: HTTPRequest, hold_ms: int) -> None: ...


class HTTPRequest(msgspec.Struct, eq=False):
    """A request whose head and body have arrived. Answer it exactly once with `respond`."""

    method: bytes
    target: bytes
    """As sent; never decoded, since signatures cover it."""
    path: bytes
    """The target's path, still percent-encoded; of an absolute target without scheme and authority."""
    query: bytes
    """What follows the first `?`, still percent-encoded; empty when there is none."""
    headers: list[tuple[bytes, bytes]]
    """Names lower-cased, values without surrounding blanks, in the order sent, repeated ones too."""
    peer: str
    """The client's address, also where it came through a proxy that is believed; empty when it has none."""
    received_ms: float
    """When the last of it came in, on `time.monotonic()`'s clock. (uvloop's own is only good to 1 ms.)"""
    first: dict[bytes, bytes]
    """The first value of each header."""
    _connection_line: bytes
    """What the reply's head says about the connection: `CONNECTION_CLOSE`, or that it stays."""
    _connection: ReplySink | None = None
    """None once answered, and once the client has gone."""
    body: bytes = b""
    """Whole and de-chunked. Trailers are checked and dropped."""
    on_disconnect: Callable[[], None] | None = None
    """Set by a handler that lets the request wait: called once if the client goes before `respond`."""
    on_hurry: Callable[[], None] | None = None
    """See `hurry_by`."""
    digest: hashlib._Hash | None = None
    """Set on admission to have the body hashed as it comes in: a large one at once would hold the loop."""
    _reply: tuple[bytes, ...] | None = None
    is_tls: bool = False
    """Whether the client used TLS, as a proxy says that is believed."""

    def hurry_by(self, hurry: Callable[[], None]) -> None:
        """For a handler that lets the request wait: `hurry` is called when the server wants to stop, or others need the
        connection; at once if that is so already.
        """
        self.on_hurry = hurry
        if self._connection is not None and self._connection.is_ending:
            hurry()

    def __repr__(self) -> str:
        """Name the request without headers, query and body, which hold secrets."""
        return f"<HTTPRequest {self.method.decode()} {self.path.decode('ascii', 'replace')} from {self.peer}>"

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of the header `name` (lower case), or None when it was not sent."""
        return self.first.get(name)

    @property
    def is_waiting(self) -> bool:
        """Whether a reply is still owed and there is still someone to give it to."""
        return self._connection is not None

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """Answer, now or later, on the event loop's thread. Does nothing when the client has gone.

        `headers` is whole lines, each ending in CRLF; Content-Length, Connection, Date and Server are added
        here. Replies leave in the order of their requests, whatever the order of the answers, and all replies
        of one pass of the loop to one connection leave in one write.
        """
        connection = self._connection
        if connection is None:
            assert self._reply is None, "a request is answered once"
            return
        self._connection = None
        connection.reply(self, status, headers, body)

    @property
    def is_strangers(self) -> bool:
        """Whether nothing signed came by its connection yet; see `net/http/strangers`."""
        return self._connection is not None and self._connection.key is None

    def vouch(self, key: str, account: str = "") -> bool:
        """Say that a key of an account signed it: its connection gets more than strangers do. Call it before `respond`.

        False when the account or the key has too many connections: then it is to be refused, and its connection is
        closed after that.
        """
        connection = self._connection
        if connection is None or connection.key == key or connection.become_known(key, account):
            return True
        self._connection_line = CONNECTION_CLOSE
        return False

    def doubt(self) -> None:
        """Say that it is not signed as it must be: its connection is a stranger's again. Call it before `respond`."""
        connection = self._connection
        if connection is not None and connection.key is not None:
            connection.become_stranger()

    def charging(self) -> Callable[[float], None]:
        """Return what to tell, also after `respond`, how many seconds of processor time it took after its pass.

        They are of strangers' time, where its client has signed nothing.
        """
        connection = self._connection
        return _charge_nobody if connection is None else connection.charge

    def hold_off(self, hold_ms: int) -> None:
        """Take nothing more from this client for so long, beginning now. Call it before `respond`."""
        if self._connection is not None:
            self._connection.hold_off(hold_ms)

    def hold_off_if_early(self, hold_ms: int) -> None:
        """Do the same if this client came before the moment that it was told last; it is told another one now."""
        if self._connection is not None:
            self._connection.hold_off_if_early(self, hold_ms)

    @property
    def account(self) -> str:
        """Whose key signed the last request of its connection that was judged; "" where none did."""
        return "" if self._connection is None else self._connection.account

    def is_known_by(self, key: str) -> bool:
        """Tell whether an access key signed the last request of its connection that was judged."""
        return self._connection is not None and self._connection.key == key


def render_error_as_text(status: int, message: str) -> tuple[bytes, bytes]:
    """Return headers and body of an error reply as plain text: the default `error_response`."""
    phrase = HTTPStatus(status).phrase
    return b"Content-Type: text/plain; charset=utf-8\r\n", f"{status} {phrase}: {message}\n".encode()


def _charge_nobody(used_s: float) -> None:
    """Its client has gone."""
