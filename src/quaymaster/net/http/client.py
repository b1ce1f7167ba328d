"""A small blocking HTTP/1.1 client for people's tools: one server, one connection kept alive.

Public: `HTTPClient` (`request`, `close`; a context manager), `HTTPReply`, `HTTPRequestFailed`.

For the command line, which makes a few calls one after the other; not for the data path.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

REPLY_BYTES_MAX = 64 * 1024 * 1024
READ_BYTES = 64 * 1024


class HTTPRequestFailed(Exception):
    """No reply was had. `may_have_been_done` says whether the server may have acted on the request."""

    def __init__(self, message: str, *, may_have_been_done: bool) -> None:
        super().__init__(message)
        self.may_have_been_done = may_have_been_done


@dataclass(frozen=True, slots=True)
class HTTPReply:
    """What the server answered, whatever its status."""

    status: int
    headers: Mapping[str, str]
    """Names lower-cased; the values of repeated ones joined by `, `."""
    body: bytes


class HTTPClient:
    """Talks to the server at `endpoint` (`http://host:port`, perhaps with a path that goes before every target).

    `connect_timeout_ms` bounds the connecting, `timeout_ms` each whole request. Not for several threads.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        timeout_ms: int = 30_000,
        connect_timeout_ms: int = 5_000,
        reply_bytes_max: int = REPLY_BYTES_MAX,
    ) -> None:
        """Take the address apart; nothing is connected before the first request.

        Raises:
            ValueError: the endpoint is not an http or https URL, or a timeout is not positive.
        """
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{endpoint} is not an address like http://127.0.0.1:9324")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError(f"{endpoint} has more than scheme, host, port and path")
        if timeout_ms <= 0 or connect_timeout_ms <= 0:
            raise ValueError("a timeout must be positive")
        self.endpoint = endpoint
        self._host = parts.hostname
        self._port = parts.port
        self._prefix = parts.path.rstrip("/")
        self._is_tls = parts.scheme == "https"
        self._timeout_ms = timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._reply_bytes_max = reply_bytes_max
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        connection = self._connection
        self._connection = None
        if connection is not None:
            connection.close()

    def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_ms: int | None = None,
    ) -> HTTPReply:
        """Send one request and return its reply, whatever the status. Redirects are not followed.

        A kept connection that the server had closed meanwhile is noticed before anything is sent on it, and
        replaced. A request that was sent is never sent again: that is for the caller to decide.

        Raises:
            HTTPRequestFailed: no connection, no reply in time, or not an HTTP reply.
        """
        allowed_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        deadline_s = time.monotonic() + allowed_ms / 1000
        connection = self._connect()
        try:
            connected = connection.sock
            _set_time_left(connected, deadline_s)
            connection.request(method, self._prefix + target, body=body or None, headers=dict(headers or {}))
            _set_time_left(connected, deadline_s)
            response = connection.getresponse()
            content = self._read(connected, response, deadline_s)
        except TimeoutError as error:
            self.close()
            message = f"{self.endpoint} did not answer within {allowed_ms} ms"
            raise HTTPRequestFailed(message, may_have_been_done=True) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            message = f"{self.endpoint} broke off: {str(error) or type(error).__name__}"
            raise HTTPRequestFailed(message, may_have_been_done=True) from error
        except BaseException:
            self.close()
            raise
        if response.will_close:
            self.close()
        joined: dict[str, str] = {}
        for name, value in response.getheaders():
            key = name.lower()
            joined[key] = f"{joined[key]}, {value}" if key in joined else value
        return HTTPReply(response.status, joined, content)

    def _connect(self) -> http.client.HTTPConnection:
        """Return a connection the server has not closed, opening one if need be."""
        connection = self._connection
        if connection is not None and not _is_closed_by_peer(connection.sock):
            return connection
        self.close()
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._connect_timeout_ms / 1000)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            reason = error.strerror or str(error) or type(error).__name__
            message = f"cannot connect to {self.endpoint}: {reason}"
            raise HTTPRequestFailed(message, may_have_been_done=False) from error
        self._connection = connection
        return connection

    def _read(self, connected: socket.socket, response: http.client.HTTPResponse, deadline_s: float) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while True:
            _set_time_left(connected, deadline_s)
            piece = response.read1(READ_BYTES)
            if not piece:
                break
            size += len(piece)
            if size > self._reply_bytes_max:
                raise http.client.HTTPException(f"the reply is over {self._reply_bytes_max} bytes")
            pieces.append(piece)
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        response.close()  # it does not notice its own end; the connection stays
        return b"".join(pieces)


def _set_time_left(connected: socket.socket, deadline_s: float) -> None:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    if connected.fileno() != -1:  # closed once the last byte of a reply that ends the connection was read
        connected.settimeout(left_s)


def _is_closed_by_peer(kept: socket.socket | None) -> bool:
    """Whether the other side has closed, or said something unasked, which comes to the same."""
    if kept is None:
        return True
    kept.setblocking(False)
    try:
        kept.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True
    return True
