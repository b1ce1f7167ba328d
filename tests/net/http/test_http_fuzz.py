"""Whatever bytes arrive, and however they are cut: no exception, no hang, no growing buffer, one meaning."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.net.http.connection import HTTPConnection
from quaymaster.net.http.server import HTTPLimits, HTTPRequest, HTTPServer, one_by_one

LIMITS = HTTPLimits(
    header_bytes_max=400, header_count_max=8, target_bytes_max=64, body_bytes_max=200, pipeline_max=3
)
UNREAD_MAX = LIMITS.header_bytes_max + LIMITS.target_bytes_max + 64 + 1024


class RecordingTransport:
    """Keeps what is written; what it is told about reading, it ignores."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = False

    def write(self, data: bytes) -> None:
        assert not self.closing, "nothing is written to a closed connection"
        self.written += data

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == LIMITS.write_buffer_bytes_max

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def write_eof(self) -> None:
        return None

    pause_reading = resume_reading = write_eof


class Turns:
    """Stands for the event loop: keeps what is to be called in the next pass."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def take(self) -> None:
        for _ in range(10_000):
            if not self.due:
                return
            due, self.due = self.due, []
            for callback in due:
                callback()
        raise AssertionError("the connection never comes to rest")


def serve(pieces: list[bytes], *, answer_later: bool = False) -> tuple[list[tuple[object, ...]], bytes, bool]:
    """Feed `pieces` to a new connection; return the requests it saw, what it wrote, whether it closed."""
    requests: list[tuple[object, ...]] = []
    turns = Turns()

    def handle(request: HTTPRequest) -> None:
        requests.append((request.method, request.target, request.headers, request.body))
        if answer_later:
            turns.call_soon(lambda: request.respond(200, b"", b"ok"))
        else:
            request.respond(200, b"", b"ok")

    server = HTTPServer(one_by_one(handle), LIMITS, name="fuzz")
    server._loop = cast(asyncio.AbstractEventLoop, turns)
    server.replies.set_time(1)  # so that replies of different runs are the same
    connection = HTTPConnection(server)
    transport = RecordingTransport()
    connection.connection_made(cast(asyncio.Transport, transport))
    for piece in pieces:
        connection.data_received(piece)
        turns.take()
        assert len(connection._unread) <= UNREAD_MAX
        if connection._body is not None:
            assert sum(map(len, connection._body._parts)) <= LIMITS.body_bytes_max
    closed = transport.closing or connection._is_lingering
    connection.connection_lost(None)
    turns.take()
    return requests, transport.written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""), closed


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges) if start < end]


TOKENS = st.text("abcXYZ-", min_size=1, max_size=8).map(str.encode)
VALUES = st.text("abc ,;=\t", max_size=12).map(str.encode)
HEADERS = st.lists(st.tuples(TOKENS, VALUES), max_size=3).map(
    lambda pairs: b"".join(b"X%b: %b\r\n" % pair for pair in pairs)
)
SPECIAL_HEADERS = st.lists(
    st.sampled_from(
        [
            b"Connection: close\r\n",
            b"Connection: keep-alive\r\n",
            b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
            b"Expect: 100-continue\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Transfer-Encoding: gzip\r\n",
            b"Content-Length: 3\r\n",
            b"Content-Length: 4\r\n",
            b"Host: other\r\n",
        ]
    ),
    max_size=2,
).map(b"".join)
BODIES = st.binary(max_size=60)


def _chunks(parts: list[bytes]) -> bytes:
    return b"".join(b"%x;e=1\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\nT: t\r\n\r\n"


METHODS = st.sampled_from([b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"CONNECT", b"BREW"])
TARGETS = st.text("/abc?=%2&", max_size=12).map(lambda text: b"/" + text.encode())
HEADS = st.builds(
    lambda method, target, version, headers: (
        b"%b %b HTTP/1.%b\r\nHost: q\r\n%b" % (method, target, version, headers)
    ),
    METHODS,
    TARGETS,
    st.sampled_from([b"1", b"1", b"1", b"0", b"2"]),
    HEADERS,
)
REQUESTS = st.one_of(
    st.builds(lambda head, special: head + special + b"\r\n", HEADS, SPECIAL_HEADERS),
    st.builds(lambda head, body: head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body), HEADS, BODIES),
    st.builds(
        lambda head, parts: head + b"Transfer-Encoding: chunked\r\n\r\n" + _chunks(parts),
        HEADS,
        st.lists(BODIES, max_size=3),
    ),
)
STREAMS = st.lists(REQUESTS, min_size=1, max_size=6).map(b"".join)
MUTATIONS = st.lists(
    st.tuples(
        st.integers(0, 10_000),
        st.integers(0, 3),
        st.sampled_from([b"", b"\r", b"\n", b"\r\n", b"\x00", b" ", b":", b"\xff", b"0", b"A" * 500]),
    ),
    max_size=4,
)
CUTS = st.lists(st.integers(0, 10_000), max_size=12)


@given(st.binary(max_size=3000), CUTS)
@settings(deadline=None, max_examples=200)
def test_random_bytes_do_no_harm(data: bytes, places: list[int]) -> None:
    assert serve([data]) == serve(cut(data, places))


@given(STREAMS, MUTATIONS, CUTS)
@settings(deadline=None, max_examples=200)
def test_the_same_bytes_mean_the_same_however_they_are_cut(
    stream: bytes, mutations: list[tuple[int, int, bytes]], places: list[int]
) -> None:
    for place, dropped, inserted in mutations:
        at = place % (len(stream) + 1)
        stream = stream[:at] + inserted + stream[at + dropped :]

    whole = serve([stream])

    assert whole == serve(cut(stream, places))
    assert whole == serve(cut(stream, places), answer_later=True)


@given(STREAMS)
@settings(deadline=None, max_examples=50)
def test_a_stream_means_the_same_byte_by_byte(stream: bytes) -> None:
    assert serve([stream]) == serve([stream[i : i + 1] for i in range(len(stream))])


@given(
    st.lists(st.tuples(TARGETS, BODIES, st.booleans()), min_size=1, max_size=8),
    CUTS,
)
@settings(deadline=None, max_examples=100)
def test_every_well_formed_request_is_read_and_answered(
    wanted: list[tuple[bytes, bytes, bool]], places: list[int]
) -> None:
    stream = b"".join(
        b"POST %b HTTP/1.1\r\nHost: q\r\n" % target
        + (
            b"Transfer-Encoding: chunked\r\n\r\n" + _chunks([body[:20], body[20:]])
            if chunked
            else b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        for target, body, chunked in wanted
    )

    requests, written, closed = serve(cut(stream, places))

    assert [(request[1], request[3]) for request in requests] == [(t, b) for t, b, _ in wanted]
    assert written.count(b"HTTP/1.1 200 OK") == len(wanted)
    assert not closed


def test_empty_lines_before_a_request_are_let_pass_even_when_cut_in_half() -> None:
    request = b"GET / HTTP/1.1\r\nHost: q\r\n\r\n"

    requests, written, closed = serve([b"\r\n\r", b"\n\r", b"\n" + request + b"\r\n\r", b"\n" + request])
    _, refused, closed_by_lone_cr = serve([b"\r", request])

    assert len(requests) == written.count(b"200 OK") == 2
    assert not closed
    assert refused.startswith(b"HTTP/1.1 400")
    assert closed_by_lone_cr


def test_the_body_of_an_upgrade_is_not_read_as_the_next_request() -> None:
    upgrade = b"POST / HTTP/1.1\r\nHost: q\r\nConnection: Upgrade\r\nUpgrade: a\r\nContent-Length: 3\r\n\r\n"
    well_formed = upgrade + b"POS" + b"POST /next HTTP/1.1\r\nHost: q\r\n\r\n"
    smuggled = upgrade + b"POS" + b"T /smuggled HTTP/1.1\r\nHost: q\r\n\r\n"

    requests, _, closed = serve([well_formed])
    requests_before_smuggled, _, closed_by_smuggled = serve([smuggled])

    assert [request[1] for request in requests] == [b"/", b"/next"]
    assert requests[0][3] == b"POS"
    assert not closed
    assert [request[1] for request in requests_before_smuggled] == [b"/"]
    assert closed_by_smuggled
