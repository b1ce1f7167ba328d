"""From the bytes of a connection to request heads; no sockets, no clock.

```
    POST /target HTTP/1.1 CRLF      ≤ target_bytes_max, its path ≤ PATH_BYTES_MAX (414)
    Name: value CRLF  …             ≤ header_bytes_max, header_count_max (431)
    CRLF
    body                            Content-Length bytes, or chunks        ≤ body_bytes_max (413)
```

httptools checks the head's syntax; where the head ends and how long the body is, is decided here and only
here, so two readers of the same bytes cannot disagree about it. A head is parsed once it is complete, never
in pieces: the same bytes give the same requests however the network cut them.

Source: RFC 9112, sections 2 to 6 (and 11.2, request smuggling).
"""

from __future__ import annotations

import re
from collections.abc import Callable

import httptools

from quaymaster.net.http.message import (
    CONNECTION_CLOSE,
    CONNECTION_KEEP_ALIVE,
    CONNECTION_PERSISTS,
    HTTPLimits,
    HTTPRequest,
    ReplySink,
)
from quaymaster.net.http.unreadable import UnreadableRequest, malformed

REQUEST_LINE_OVERHEAD_BYTES = 32
"""Longest known method, two blanks, `HTTP/1.1` and CRLF."""
PATH_BYTES_MAX = 2048
"""A queue's path, or one of the admin API, has a tenth of it. To decode it, and to encode it as it was signed, takes a
tenth of a microsecond for each byte, before anything is proven."""
BODY_METHOD = b"POST"
"""No request of another method has a body here."""
BODILESS_METHODS = frozenset({b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"TRACE"})
"""Nor does one of these mean anything anywhere with a body."""

CHUNKED = -1


class HeadParser:
    """Reads one request head after the other of one connection.

    After `read` returned a request, `end` is where its head ends, `body_length` the length of its body
    (`CHUNKED` when only its chunks tell), and `expects_continue` whether the client waits for a word before
    it sends the body.
    """

    __slots__ = (
        "_feed",
        "_header_bytes_max",
        "_header_count_max",
        "_headers",
        "_is_current",
        "_is_spent",
        "_line_bytes_max",
        "_parser",
        "_target",
        "_target_bytes_max",
        "body_length",
        "end",
        "expects_continue",
    )

    def __init__(self, limits: HTTPLimits) -> None:
        self._header_bytes_max = limits.header_bytes_max
        self._header_count_max = limits.header_count_max
        self._target_bytes_max = limits.target_bytes_max
        self._line_bytes_max = limits.target_bytes_max + REQUEST_LINE_OVERHEAD_BYTES
        self.end = 0
        self.body_length = 0
        self.expects_continue = False
        self._headers: list[tuple[bytes, bytes]] = []
        self._target = b""
        self._is_current = True
        """Whether the head is of HTTP/1.1; HTTP/1.0 otherwise."""
        self.reset()

    # Called by httptools while it is fed a head.

    def on_url(self, target: bytes) -> None:
        self._target = target

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value.rstrip()))

    # Called by the connection.

    def reset(self) -> None:
        """Forget the last request; needed unless its whole body was given to `skip_body`."""
        self._parser = httptools.HttpRequestParser(self)
        self._feed: Callable[[bytes], None] = self._parser.feed_data
        self._is_spent = False

    def skip_body(self, body: bytes) -> None:
        """Let httptools see the end of the message (it copies nothing), so it is ready for the next head."""
        if self._is_spent:
            return
        try:
            self._feed(body)
        except httptools.HttpParserError:
            self._is_spent = True

    def read(
        self, data: bytes, start: int, peer: str, received_ms: float, sink: ReplySink
    ) -> HTTPRequest | None:
        """Return the request whose head starts at `start`, or None when the head is not complete yet.

        Raises:
            UnreadableRequest: malformed, too large, or not to be framed without doubt.
        """
        if not self._find_end(data, start):
            return None
        headers: list[tuple[bytes, bytes]] = []
        method = self._parse(data[start : self.end], headers)
        target = self._target
        if len(target) > self._target_bytes_max:
            raise self._target_too_large()
        first = dict(headers)
        if len(first) != len(headers):
            _refuse_repeated(headers)
            first = dict(reversed(headers))
        if self._is_current and b"host" not in first:
            raise malformed("The Host header is missing.")
        if method == b"CONNECT":
            raise UnreadableRequest(405, "rejected_malformed", "This is no proxy.")
        self._frame_body(first)
        if self.body_length and method != BODY_METHOD:
            raise _bodiless(method)
        line = CONNECTION_PERSISTS if self._is_current else CONNECTION_CLOSE
        if b"connection" in first:
            line = _connection_line(first[b"connection"], line)
        path, _, query = (target if target[0] == 47 else _origin_form(target)).partition(b"?")
        if len(path) > PATH_BYTES_MAX:
            raise UnreadableRequest(
                414, "rejected_target_too_large", f"The path is over {PATH_BYTES_MAX} bytes."
            )
        return HTTPRequest(method, target, path, query, headers, peer, received_ms, first, line, sink)

    def _find_end(self, data: bytes, start: int) -> bool:
        """Find where the head ends, and of which version of HTTP it is; False when it is not complete yet."""
        if not 65 <= data[start] <= 90:  # no method; a TLS client would wait for us, and we for it
            raise malformed("This is not an HTTP request.")
        line_end = data.find(b"\n", start)
        if (line_end if line_end != -1 else len(data)) - start > self._line_bytes_max:
            raise self._target_too_large()
        if line_end == -1:
            return False
        version = data[line_end - 9 : line_end] if line_end >= 9 else b""
        self._is_current = version == b"HTTP/1.1\r"
        if not self._is_current and version != b"HTTP/1.0\r":
            raise malformed("The request line must end in HTTP/1.1 or HTTP/1.0 and CRLF.")
        # From the request line's own CR: a request without headers ends in the CRLF right behind it.
        end = data.find(b"\r\n\r\n", line_end - 1)
        if (end + 2 if end != -1 else len(data)) - line_end > self._header_bytes_max + 1:
            raise UnreadableRequest(
                431, "rejected_header_too_large", f"The headers are over {self._header_bytes_max} bytes."
            )
        if end == -1:
            return False
        # Counted before they are parsed: 8,000 empty headers of 32 KiB take milliseconds.
        if data.count(b"\n", line_end + 1, end + 2) > self._header_count_max:
            raise UnreadableRequest(
                431, "rejected_header_too_large", f"There are over {self._header_count_max} headers."
            )
        self.end = end + 4
        return True

    def _parse(self, head: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
        """Fill in `headers` and the target; return the method."""
        if self._is_spent:
            self.reset()
        self._headers = headers
        try:
            self._feed(head)
        except httptools.HttpParserUpgrade:
            # No upgrades here: the request is answered as it stands. But httptools takes its body for another
            # protocol and must not see it, or it would be read as the beginning of the next head.
            self._is_spent = True
        except httptools.HttpParserError as error:
            raise _reason_of_failure(headers, error) from None
        method: bytes = self._parser.get_method()
        return method

    def _frame_body(self, first: dict[bytes, bytes]) -> None:
        """Decide how long the body is, and whether the client waits to be told to send it."""
        length = first.get(b"content-length")
        if b"transfer-encoding" in first:
            self._check_encoding(first)
            self.body_length = CHUNKED
        elif length is None:
            self.body_length = 0
        elif length.isdigit() and len(length) <= 15:
            self.body_length = int(length)
        else:
            raise malformed("Content-Length is not a number.")
        self.expects_continue = False
        if b"expect" in first:
            if first[b"expect"].lower() != b"100-continue":
                raise UnreadableRequest(417, "rejected_malformed", "Only 100-continue can be expected.")
            self.expects_continue = self._is_current and self.body_length != 0

    def _check_encoding(self, first: dict[bytes, bytes]) -> None:
        if b"content-length" in first:
            raise malformed("Content-Length and Transfer-Encoding exclude each other.")
        if not self._is_current:
            raise malformed("HTTP/1.0 has no Transfer-Encoding.")
        if first[b"transfer-encoding"].lower() != b"chunked":
            raise _unknown_encoding()

    def _target_too_large(self) -> UnreadableRequest:
        return UnreadableRequest(
            414, "rejected_target_too_large", f"The target is over {self._target_bytes_max} bytes."
        )


def _connection_line(value: bytes, unsaid: bytes) -> bytes:
    """Return what the reply says to a `Connection` header; `unsaid`: what it says where it has none of our tokens."""
    tokens = [token.strip() for token in value.lower().split(b",")]
    if b"close" in tokens:
        return CONNECTION_CLOSE
    if b"keep-alive" in tokens and unsaid is CONNECTION_CLOSE:
        return CONNECTION_KEEP_ALIVE
    return unsaid


def _bodiless(method: bytes) -> UnreadableRequest:
    if method in BODILESS_METHODS:
        return malformed(f"A {method.decode()} request has no body.")
    return UnreadableRequest(405, "rejected_malformed", "Only POST requests have a body here.")


def _unknown_encoding() -> UnreadableRequest:
    return UnreadableRequest(501, "rejected_malformed", "The only Transfer-Encoding understood is chunked.")


def _reason_of_failure(headers: list[tuple[bytes, bytes]], error: Exception) -> UnreadableRequest:
    first = dict(headers)
    encoding = first.get(b"transfer-encoding", b"chunked").lower()
    if encoding != b"chunked" and b"content-length" not in first:
        return _unknown_encoding()
    return malformed(f"{error}.")


def _refuse_repeated(headers: list[tuple[bytes, bytes]]) -> None:
    names = [name for name, _ in headers]
    for name in (b"host", b"content-length", b"transfer-encoding"):
        if names.count(name) > 1:
            raise malformed(f"The header {name.decode()} was sent more than once.")


def _origin_form(target: bytes) -> bytes:
    """Return path and query of a target in absolute form; others (`*`) as they are. RFC 9112, 3.2.2."""
    _, separator, rest = target.partition(b"://")
    if not separator:
        return target
    cut = re.search(rb"[/?]", rest)
    if cut is None:
        return b"/"
    return rest[cut.start() :] if cut.group() == b"/" else b"/" + rest[cut.start() :]
