"""The blocking client, against our own server and against servers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from harness.waiting import PATIENCE_S

from quaymaster.net.http.client import HTTPClient, HTTPRequestFailed
from quaymaster.net.http.server import HTTPLimits, HTTPRequest, HTTPServer, one_by_one


@contextlib.contextmanager
def served(handler: Callable[[HTTPRequest], None], limits: HTTPLimits | None = None) -> Iterator[str]:
    """Run a server in a thread of its own and give its endpoint."""
    started = threading.Event()
    address: list[tuple[str, int]] = []
    stop: list[Callable[[], object]] = []

    async def serve() -> None:
        server = HTTPServer(one_by_one(handler), limits or HTTPLimits(), name="test")
        address.append(await server.start("127.0.0.1", 0))
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(stopping.set))
        started.set()
        await stopping.wait()
        await server.drain(0)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(PATIENCE_S)
    try:
        yield f"http://{address[0][0]}:{address[0][1]}"
    finally:
        stop[0]()
        thread.join(PATIENCE_S)


class ScriptedServer:
    """Gives each connection's first bytes the next of `replies`, and closes it."""

    def __init__(self, replies: tuple[bytes, ...]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._replies = replies
        self._closed = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        for reply in self._replies:
            with self._listener.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(reply)
            self._closed.release()

    def wait_closed(self) -> None:
        """Wait until one more connection has been closed."""
        assert self._closed.acquire(timeout=PATIENCE_S)

    def stop(self) -> None:
        self._listener.close()
        self._thread.join(0.1)  # still there if a failed test left it an `accept` without a client


@contextlib.contextmanager
def scripted(*replies: bytes) -> Iterator[ScriptedServer]:
    server = ScriptedServer(replies)
    try:
        yield server
    finally:
        server.stop()


def test_requests_share_one_connection() -> None:
    connections = set()
    seen: list[HTTPRequest] = []

    def echo(request: HTTPRequest) -> None:
        connections.add(id(request._connection))
        seen.append(request)
        request.respond(201, b"X-A: 1\r\nX-A: 2\r\n", request.method + b" " + request.target + request.body)

    with served(echo) as endpoint, HTTPClient(endpoint + "/base/") as client:
        first = client.request("POST", "/q?a=b", headers={"X-B": "c"}, body=b" body")
        second = client.request("GET", "/")

    assert (first.status, first.body) == (201, b"POST /base/q?a=b body")
    assert first.headers["x-a"] == "1, 2"
    assert second.body == b"GET /base/"
    assert seen[0].header(b"x-b") == b"c"
    assert len(connections) == 1


def test_error_statuses_are_replies() -> None:
    with (
        served(lambda request: request.respond(503, b"", b"later")) as endpoint,
        HTTPClient(endpoint) as client,
    ):
        reply = client.request("GET", "/")

    assert (reply.status, reply.body) == (503, b"later")


def test_a_connection_closed_meanwhile_is_replaced() -> None:
    closing = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
    with scripted(closing + b"aa", closing + b"bb") as server, HTTPClient(server.endpoint) as client:
        first = client.request("GET", "/").body
        server.wait_closed()
        second = client.request("GET", "/").body

    assert (first, second) == (b"aa", b"bb")


def test_a_reply_that_ends_with_the_connection_is_read_whole() -> None:
    with (
        scripted(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 200_000) as server,
        HTTPClient(server.endpoint) as client,
    ):
        reply = client.request("GET", "/")

    assert len(reply.body) == 200_000


def test_a_chunked_reply_is_put_together() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    with scripted(chunked) as server, HTTPClient(server.endpoint) as client:
        reply = client.request("GET", "/")

    assert reply.body == b"abcde"


def test_large_bodies_pass_both_ways() -> None:
    body = bytes(range(256)) * 8192

    with (
        served(lambda request: request.respond(200, b"", request.body)) as endpoint,
        HTTPClient(endpoint) as client,
    ):
        reply = client.request("POST", "/", body=body)

    assert reply.body == body


def test_a_server_that_does_not_answer_is_given_up_as_unknown() -> None:
    kept: list[HTTPRequest] = []
    with (
        served(kept.append) as endpoint,
        HTTPClient(endpoint, timeout_ms=100) as client,
        pytest.raises(HTTPRequestFailed, match="did not answer within 100 ms") as raised,
    ):
        client.request("GET", "/")

    assert raised.value.may_have_been_done


@pytest.mark.parametrize(
    "reply",
    [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"],
    ids=["nothing", "garbage", "cut off"],
)
def test_a_broken_reply_is_an_unknown_outcome(reply: bytes) -> None:
    with (
        scripted(reply) as server,
        HTTPClient(server.endpoint) as client,
        pytest.raises(HTTPRequestFailed, match="broke off") as raised,
    ):
        client.request("GET", "/")

    assert raised.value.may_have_been_done


def test_a_reply_over_the_limit_is_not_read() -> None:
    endless = b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 100_000
    with (
        scripted(endless) as server,
        HTTPClient(server.endpoint, reply_bytes_max=10_000) as client,
        pytest.raises(HTTPRequestFailed, match="over 10000 bytes"),
    ):
        client.request("GET", "/")


def test_a_server_that_is_not_there_has_done_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    with (
        HTTPClient(f"http://127.0.0.1:{port}") as client,
        pytest.raises(HTTPRequestFailed, match=r"cannot connect to http://127\.0\.0\.1") as raised,
    ):
        client.request("GET", "/")

    assert not raised.value.may_have_been_done


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9324", "ftp://a", "http://", "http://a?b", "http://u:p@a"])
def test_an_endpoint_is_scheme_host_port_and_path(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"is not an address|has more than"):
        HTTPClient(endpoint)
