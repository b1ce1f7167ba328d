"""How the HTTP server behaves, seen from the other end of a socket; on uvloop and on plain asyncio."""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import uvloop
from harness.waiting import PATIENCE_S

from quaymaster.net.http import server as http_server
from quaymaster.net.http.connection import STALLED_UNREAD_BYTES_MAX
from quaymaster.net.http.server import (
    HTTP_EVENTS,
    PASS_BODY_BYTES_MAX,
    PASS_REQUESTS_MAX,
    AdmitRequest,
    HTTPLimits,
    HTTPRequest,
    HTTPServer,
    RequestsHandler,
    one_by_one,
)

QUICK = HTTPLimits(
    header_bytes_max=2048,
    header_count_max=20,
    target_bytes_max=1024,
    body_bytes_max=4096,
    header_timeout_ms=200,
    body_timeout_ms=200,
    body_rate_min_bytes_per_s=1_000_000,
    idle_timeout_ms=400,
    pipeline_max=4,
    write_timeout_ms=300,
)
PATIENT = HTTPLimits(body_bytes_max=4 * 1024 * 1024)

GET = b"GET /a HTTP/1.1\r\nHost: q\r\n\r\n"
RunOnLoop = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> RunOnLoop:
    """Run a scenario on the loop under test, in bounded time."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_scenario(scenario: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await scenario()

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    return run_scenario


class Served:
    """A running server, what it counted, and the requests its handler keeps."""

    def __init__(
        self,
        answer: Callable[[HTTPRequest], None] | None = None,
        limits: HTTPLimits = PATIENT,
        admit: AdmitRequest | None = None,
        handler: RequestsHandler | None = None,
    ) -> None:
        self.kept: list[HTTPRequest] = []
        self.events: Counter[str] = Counter()
        self.clients: list[Client] = []
        self.server = HTTPServer(
            handler or one_by_one(answer or self._keep),
            limits,
            name="test",
            on_event=self._count,
            admit=admit,
        )
        self.port = 0
        self.passes = 0
        self._changed = asyncio.Event()

    def _keep(self, request: HTTPRequest) -> None:
        self.kept.append(request)
        self._changed.set()

    def _count(self, event: str) -> None:
        assert event in HTTP_EVENTS
        self.events[event] += 1
        self._changed.set()

    def count_passes(self) -> None:
        """Number the passes from now on (`passes`)."""
        begin = self.server._take_up

        def counted(pass_ms: float) -> None:
            self.passes += 1
            begin(pass_ms)

        self.server._take_up = counted  # type: ignore[method-assign]

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client

    async def keep(self, count: int) -> list[HTTPRequest]:
        """Wait until the handler has got `count` requests."""
        await self._until(lambda: len(self.kept) >= count)
        return self.kept

    async def see(self, event: str) -> None:
        await self._until(lambda: self.events[event] > 0)

    async def hold(self, kept_bytes: int) -> None:
        """Wait until the bodies that have come in part take this much memory, or one was refused."""
        while self.server.body_bytes < kept_bytes and not self.events["rejected_bodies_full"]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def reply(self, *, has_body: bool = True) -> tuple[int, dict[bytes, bytes], bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        status_line, *lines = head[:-4].split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines)
        assert len(headers) == len(lines), "a header was sent twice"
        length = int(headers.get(b"Content-Length", b"0")) if has_body else 0
        return int(status_line.split()[1]), headers, await self.reader.readexactly(length)

    async def ask(self, data: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
        self.send(data)
        return await self.reply()

    async def rest(self) -> bytes:
        """Return what comes until the server closes."""
        return await self.reader.read()

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def serving(
    answer: Callable[[HTTPRequest], None] | None = None,
    limits: HTTPLimits = PATIENT,
    admit: AdmitRequest | None = None,
    handler: RequestsHandler | None = None,
) -> AsyncIterator[Served]:
    served = Served(answer, limits, admit, handler)
    _, served.port = await served.server.start("127.0.0.1", 0)
    try:
        yield served
    finally:
        for client in served.clients:
            client.close()
        await served.server.drain(0)
        assert served.server.connections == 0


def echo(request: HTTPRequest) -> None:
    request.respond(200, b"X-Target: %b\r\n" % request.target, request.body)


def signed_echo(request: HTTPRequest) -> None:
    request.vouch("key")
    echo(request)


def post(body: bytes, extra: bytes = b"") -> bytes:
    return b"POST /p HTTP/1.1\r\nHost: q\r\n%bContent-Length: %d\r\n\r\n%b" % (extra, len(body), body)


# Requests and replies.


def test_a_request_reaches_the_handler_in_full(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            client = await served.connect()
            client.send(
                b"POST /1/q%20x?Action=Send&A=%3D HTTP/1.1\r\nHOST: q\r\nX-A:  one \t\r\nX-a: two\r\n"
                b"Content-Length: 5\r\n\r\nhello"
            )

            (request,) = await served.keep(1)

            assert request.method == b"POST"
            assert request.target == b"/1/q%20x?Action=Send&A=%3D"
            assert request.path == b"/1/q%20x"
            assert request.query == b"Action=Send&A=%3D"
            assert request.headers == [
                (b"host", b"q"),
                (b"x-a", b"one"),
                (b"x-a", b"two"),
                (b"content-length", b"5"),
            ]
            assert request.header(b"x-a") == b"one"
            assert request.header(b"x-b") is None
            assert request.body == b"hello"
            assert request.peer == "127.0.0.1"
            assert 0 <= time.monotonic() * 1000 - request.received_ms < 60_000
            assert repr(request) == "<HTTPRequest POST /1/q%20x from 127.0.0.1>"
            assert served.server.requests_active == 1

    run(scenario)


def test_a_reply_has_length_date_and_server_and_the_connection_stays(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(echo) as served:
            client = await served.connect()

            first = await client.ask(post(b"abc"))
            second = await client.ask(post(b""))

            assert first[0] == 200
            assert first[1][b"Server"] == b"quaymaster"
            assert first[1][b"X-Target"] == b"/p"
            assert re.fullmatch(rb"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", first[1][b"Date"])
            assert b"Connection" not in first[1]
            assert (first[2], second[2]) == (b"abc", b"")
            assert second[1][b"Content-Length"] == b"0"
            assert served.server.connections == 1

    run(scenario)


def test_a_reply_to_head_has_the_length_but_no_body(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(lambda request: request.respond(200, b"", b"12345")) as served:
            client = await served.connect()

            client.send(b"HEAD / HTTP/1.1\r\nHost: q\r\n\r\n" + GET)
            head = await client.reply(has_body=False)
            get = await client.reply()

            assert head[1][b"Content-Length"] == b"5"
            assert get[2] == b"12345"

    run(scenario)


def test_a_reply_without_content_has_no_length(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(lambda request: request.respond(204, b"", b"")) as served:
            client = await served.connect()

            status, headers, _ = await client.ask(GET)

            assert status == 204
            assert b"Content-Length" not in headers

    run(scenario)


def test_connection_close_is_honoured(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(echo) as served:
            client = await served.connect()

            _, headers, _ = await client.ask(
                b"GET / HTTP/1.1\r\nHost: q\r\nConnection: x, Close\r\n\r\n" + GET
            )

            assert headers[b"Connection"] == b"close"
            assert await client.rest() == b""

    run(scenario)


def test_http_1_0_closes_unless_it_asks_to_stay(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(echo) as served:
            staying = await served.connect()
            leaving = await served.connect()

            stayed = [
                await staying.ask(b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n") for _ in range(2)
            ]
            left = await leaving.ask(b"GET / HTTP/1.0\r\n\r\n")

            assert [headers[b"Connection"] for _, headers, _ in stayed] == [b"keep-alive"] * 2
            assert left[1][b"Connection"] == b"close"
            assert await leaving.rest() == b""

    run(scenario)


def test_an_upgrade_is_answered_as_a_normal_request(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(echo) as served:
            client = await served.connect()
            upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"

            client.send(b"GET /u HTTP/1.1\r\nHost: q\r\n%b\r\n" % upgrade + post(b"body", upgrade) + GET)
            replies = [await client.reply() for _ in range(3)]

            assert [(headers[b"X-Target"], body) for _, headers, body in replies] == [
                (b"/u", b""),
                (b"/p", b"body"),
                (b"/a", b""),
            ]

    run(scenario)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"http://q:9324/a/b?c=d", b"/a/b", b"c=d"),
        (b"http://q", b"/", b""),
        (b"http://q?c=d/e", b"/", b"c=d/e"),
        (b"*", b"*", b""),
        (b"/a?b?c", b"/a", b"b?c"),
    ],
)
def test_every_form_of_target_has_a_path(run: RunOnLoop, target: bytes, path: bytes, query: bytes) -> None:
    async def scenario() -> None:
        async with serving() as served:
            client = await served.connect()

            client.send(b"OPTIONS %b HTTP/1.1\r\nHost: q\r\n\r\n" % target)
            (request,) = await served.keep(1)

            assert (request.target, request.path, request.query) == (target, path, query)

    run(scenario)


def test_bodies_and_replies_of_megabytes_pass(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(echo) as served:
            client = await served.connect()
            body = bytes(range(256)) * 8 * 1024

            plain = await client.ask(post(body))
            chunked = await client.ask(
                b"POST / HTTP/1.1\r\nHost: q\r\nTransfer-Encoding: chunked\r\n\r\n"
                + b"".join(b"10000\r\n%b\r\n" % body[i : i + 65536] for i in range(0, len(body), 65536))
                + b"0\r\n\r\n"
            )

            assert plain[2] == body
            assert chunked[2] == body

    run(scenario)


def test_a_chunked_body_is_put_together_without_extensions_and_trailers(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(echo) as served:
            client = await served.connect()
            request = (
                b"POST / HTTP/1.1\r\nHost: q\r\nTransfer-Encoding: Chunked\r\n\r\n"
                b'5;name="v;\\"x"\r\nhello\r\n00A ; a\r\n, chunked!\r\n0\r\nX-Checksum: 1\r\nB:\r\n\r\n'
            )

            whole = await client.ask(request + GET)
            after_whole = await client.reply()
            for byte in request:
                client.send(bytes([byte]))
                await asyncio.sleep(0)
            in_bytes = await client.reply()

            assert whole[2] == in_bytes[2] == b"hello, chunked!"
            assert after_whole[1][b"X-Target"] == b"/a"

    run(scenario)


def test_replies_leave_in_request_order_whatever_the_order_of_answers(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            client = await served.connect()
            client.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: q\r\n\r\n" % n for n in range(5)))
            requests = await served.keep(5)

            for n in (3, 1, 4, 0, 2):
                requests[n].respond(200, b"", requests[n].path)
                await asyncio.sleep(0.01)

            assert [(await client.reply())[2] for _ in range(5)] == [b"/%d" % n for n in range(5)]
            assert served.server.requests_active == 0

    run(scenario)


def test_replies_of_one_commit_leave_in_one_write_per_connection(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            clients = [await served.connect() for _ in range(2)]
            for client in clients:
                client.send(GET * 3)
            requests = await served.keep(6)

            for request in requests:
                request.respond(200, b"", b"x")

            for client in clients:
                # One segment with all three, or the test's one read would not see them.
                data = await client.reader.read(65536)
                assert data.count(b"HTTP/1.1 200 OK") == 3

    run(scenario)


def test_no_more_than_pipeline_max_requests_of_a_connection_are_with_the_handler(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(limits=replace(PATIENT, pipeline_max=4)) as served:
            client = await served.connect()
            client.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: q\r\n\r\n" % n for n in range(50)))
            await served.keep(4)
            await asyncio.sleep(0.05)
            assert len(served.kept) == 4

            for n in range(50):
                (await served.keep(n + 1))[n].respond(200, b"", b"")
                assert served.server.requests_active <= 4

            assert [(await client.reply())[0] for _ in range(50)] == [200] * 50

    run(scenario)


def test_a_long_pipeline_is_served_in_turns(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(echo, replace(PATIENT, pipeline_max=4)) as served:
            busy = await served.connect()

            busy.send(GET * 1000)
            replies = [await busy.reply() for _ in range(1000)]

            assert {status for status, _, _ in replies} == {200}

    run(scenario)


def test_a_client_held_off_is_answered_at_once_and_not_read_for_a_while(run: RunOnLoop) -> None:
    handled: list[tuple[bytes, float]] = []

    def hold_the_first(request: HTTPRequest) -> None:
        handled.append((request.target, time.monotonic()))
        if request.target == b"/first":
            request.hold_off(300)
        echo(request)

    async def scenario() -> None:
        async with serving(hold_the_first) as served:
            client = await served.connect()
            client.send(post(b"1").replace(b"/p", b"/first") + post(b"2"))

            assert (await client.reply())[2] == b"1"
            assert (await client.reply())[2] == b"2", "it was read before the first was handled"
            assert served.server.connections_held == 1
            client.send(post(b"3"))
            other = await served.connect()
            assert (await other.ask(post(b"4")))[2] == b"4", "others are served meanwhile"
            assert (await client.reply())[2] == b"3"
            assert served.server.connections_held == 0

    run(scenario)
    assert [target for target, _ in handled] == [b"/first", b"/p", b"/p", b"/p"]
    assert handled[-1][1] - handled[0][1] >= 0.3, "a hold is never shorter than it was asked for"


def test_a_client_held_off_that_only_stops_sending_gets_its_replies(run: RunOnLoop) -> None:
    def hold(request: HTTPRequest) -> None:
        request.hold_off(100)
        echo(request)

    async def scenario() -> None:
        async with serving(hold) as served:
            client = await served.connect()
            client.send(post(b"1") + post(b"2"))
            client.writer.write_eof()

            assert (await client.reply())[2] == b"1"
            assert (await client.reply())[2] == b"2"
            assert await client.rest() == b""

    run(scenario)


def test_a_client_held_off_is_not_late_meanwhile(run: RunOnLoop) -> None:
    def hold_the_first(request: HTTPRequest) -> None:
        if request.body == b"1":
            request.hold_off(3 * QUICK.header_timeout_ms)
        echo(request)

    async def scenario() -> None:
        async with serving(hold_the_first, QUICK) as served:
            client = await served.connect()
            second = post(b"2")
            client.send(post(b"1") + second[:10])
            assert (await client.reply())[2] == b"1"
            client.send(second[10:])

            assert (await client.reply())[2] == b"2"
            assert not served.events["timeout_header"]

    run(scenario)


def test_a_client_held_off_that_has_gone_is_forgotten(run: RunOnLoop) -> None:
    def hold(request: HTTPRequest) -> None:
        request.hold_off(100)
        echo(request)

    async def scenario() -> None:
        async with serving(hold) as served:
            client = await served.connect()
            await client.ask(GET)
            client.close()

            await served.see("connection_closed")
            assert served.server.connections_held == 0
            assert served.server.connections == 0

    run(scenario)


def test_a_server_without_room_for_connections_is_not_ready(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(
            signed_echo, replace(PATIENT, connections_max=2, account_connections_percent=100)
        ) as served:
            reasons = [served.server.why_not_ready()]
            for _ in range(2):
                await (await served.connect()).ask(GET)
            reasons.append(served.server.why_not_ready())

            assert reasons == [None, "The server takes no more connections."]

    run(scenario)


def test_not_all_connections_are_held_and_the_others_closed(run: RunOnLoop) -> None:
    def hold(request: HTTPRequest) -> None:
        request.hold_off(60_000)
        echo(request)

    async def scenario() -> None:
        async with serving(hold, replace(PATIENT, connections_max=4)) as served:
            clients = [await served.connect() for _ in range(4)]
            for client in clients:
                client.send(post(b"1") + post(b"2") + post(b"3")[:20])
                assert (await client.reply())[2] == b"1"
                _, headers, body = await client.reply()
                assert body == b"2"

            assert headers[b"Connection"] == b"close"
            assert await clients[3].rest() == b""
            assert served.server.connections_held == 3
            assert (await (await served.connect()).ask(GET))[0] == 200, "there is room"

    run(scenario)


def test_a_client_that_asks_to_be_closed_is_not_held(run: RunOnLoop) -> None:
    def hold(request: HTTPRequest) -> None:
        request.hold_off(60_000)
        echo(request)

    async def scenario() -> None:
        async with serving(hold) as served:
            client = await served.connect()
            client.send(post(b"1", b"Connection: close\r\n"))

            assert (await client.reply())[2] == b"1"
            assert await client.rest() == b""
            assert served.server.connections_held == 0

    run(scenario)


def test_draining_does_not_wait_for_holds(run: RunOnLoop) -> None:
    def hold(request: HTTPRequest) -> None:
        request.hold_off(60_000)
        echo(request)

    async def scenario() -> None:
        async with serving(hold) as served:
            client = await served.connect()
            assert (await client.ask(post(b"1")))[2] == b"1"

            await served.server.drain(20)

            assert served.server.connections_held == 0
            assert await client.rest() == b""

    run(scenario)


def test_a_pass_takes_a_bounded_number_of_requests_in_the_order_in_which_they_came(run: RunOnLoop) -> None:
    passes: list[list[bytes]] = []

    def handle(requests: list[HTTPRequest]) -> None:
        passes.append([request.body for request in requests])
        for request in requests:
            echo(request)

    async def scenario() -> None:
        async with serving(handler=handle) as served:
            clients = [await served.connect() for _ in range(PASS_REQUESTS_MAX + 40)]
            for number, client in enumerate(clients):
                client.send(post(b"%d" % number) + post(b"%d" % number))

            for number, client in enumerate(clients):
                assert (await client.reply())[2] == b"%d" % number
                assert (await client.reply())[2] == b"%d" % number

    run(scenario)
    assert max(len(bodies) for bodies in passes) <= PASS_REQUESTS_MAX + 1
    assert sum(len(bodies) for bodies in passes) == 2 * (PASS_REQUESTS_MAX + 40)


def test_a_pass_takes_a_bounded_number_of_body_bytes(run: RunOnLoop) -> None:
    passes: list[int] = []
    body = b"x" * (PASS_BODY_BYTES_MAX // 3)

    def handle(requests: list[HTTPRequest]) -> None:
        passes.append(sum(len(request.body) for request in requests))
        for request in requests:
            request.respond(200, b"", b"taken")

    async def scenario() -> None:
        async with serving(handler=handle) as served:
            clients = [await served.connect() for _ in range(12)]
            for client in clients:
                client.send(post(body))

            for client in clients:
                assert (await client.reply())[2] == b"taken"

    run(scenario)
    assert max(passes) < PASS_BODY_BYTES_MAX + len(body)
    assert sum(passes) == 12 * len(body)


def test_a_client_that_sends_far_ahead_is_not_read_while_it_waits_for_its_pass(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(echo, replace(PATIENT, pipeline_max=2)) as served:
            client = await served.connect()
            client.send(post(b"x" * 40_000) * 50)

            for _ in range(50):
                assert (await client.reply())[2] == b"x" * 40_000

    run(scenario)


def test_a_request_is_answered_only_once(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            client = await served.connect()
            client.send(GET)
            (request,) = await served.keep(1)
            request.respond(200, b"", b"")

            with pytest.raises(AssertionError, match="once"):
                request.respond(200, b"", b"")

    run(scenario)


def test_a_failing_handler_gives_500_and_the_server_lives(
    run: RunOnLoop, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(requests: list[HTTPRequest]) -> None:
        for request in requests:
            if request.path == b"/a":
                raise RuntimeError("broken on purpose")
            request.respond(200, b"", b"")

    async def scenario() -> None:
        async with serving(handler=fail) as served:
            client = await served.connect()

            failed = await client.ask(GET)
            fine = await client.ask(post(b""))

            assert (failed[0], fine[0]) == (500, 200)
            assert served.events["handler_failed"] == 1
            assert "broken on purpose" in caplog.text
            assert b"broken" not in failed[2]

    run(scenario)


def test_a_handler_that_fails_after_some_answers_costs_only_the_others(run: RunOnLoop) -> None:
    def answer_one_and_fail(requests: list[HTTPRequest]) -> None:
        requests[0].respond(200, b"", b"")
        if len(requests) > 1:
            raise RuntimeError("broken on purpose")

    async def scenario() -> None:
        async with serving(handler=answer_one_and_fail) as served:
            client = await served.connect()
            client.send(GET + GET)

            statuses = [(await client.reply())[0] for _ in range(2)]
            later = await (await served.connect()).ask(GET)

            assert statuses == [200, 500]
            assert later[0] == 200, "the server lives"

    run(scenario)


def test_a_handler_of_one_request_may_fail_after_its_answer(run: RunOnLoop) -> None:
    def answer_and_fail(request: HTTPRequest) -> None:
        request.respond(200, b"", b"")
        raise RuntimeError("broken on purpose")

    async def scenario() -> None:
        async with serving(answer_and_fail) as served:
            client = await served.connect()
            client.send(GET + GET)

            assert [(await client.reply())[0] for _ in range(2)] == [200, 200]

    run(scenario)


def test_whatever_fails_in_a_pass_the_next_one_comes(run: RunOnLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(requests: list[HTTPRequest]) -> None:
        raise RuntimeError("broken on purpose")

    async def scenario() -> None:
        async with serving(handler=fail) as served:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            with monkeypatch.context() as patched:
                patched.setattr(served.server, "error_response", fail)
                (await served.connect()).send(GET)
                await served.see("handler_failed")

            assert (await (await served.connect()).ask(GET))[0] == 500

    run(scenario)


def test_requests_taken_one_by_one_fail_one_by_one(run: RunOnLoop, caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: HTTPRequest) -> None:
        if request.path == b"/a":
            raise RuntimeError("broken on purpose")
        request.respond(200, b"", b"")

    async def scenario() -> None:
        async with serving(fail) as served:
            client = await served.connect()
            client.send(GET + post(b""))

            replies = [await client.reply() for _ in range(2)]

            assert [reply[0] for reply in replies] == [500, 200]
            assert "broken on purpose" in caplog.text

    run(scenario)


# Admission.


def test_a_refused_request_is_answered_before_its_body_is_read(run: RunOnLoop) -> None:
    def refuse_posts(request: HTTPRequest) -> tuple[int, bytes, bytes] | None:
        assert request.body == b""
        return (403, b"X-Why: no\r\n", b"denied") if request.method == b"POST" else None

    async def scenario() -> None:
        async with serving(echo, admit=refuse_posts) as served:
            client = await served.connect()
            admitted = await client.ask(GET)

            refused = await client.ask(b"POST / HTTP/1.1\r\nHost: q\r\nContent-Length: 1000000\r\n\r\n")

            assert admitted[0] == 200
            assert (refused[0], refused[2]) == (403, b"denied")
            assert refused[1][b"X-Why"] == b"no"
            assert refused[1][b"Connection"] == b"close"
            assert await client.rest() == b""
            assert served.events["rejected_by_admission"] == 1

    run(scenario)


def test_a_client_still_sending_its_body_sees_why_it_was_refused(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(echo, replace(PATIENT, body_bytes_max=1000)) as served:
            client = await served.connect()

            client.send(post(b"x" * 2_000_000))
            status, headers, _ = await client.reply()

            assert status == 413
            assert headers[b"Connection"] == b"close"

    run(scenario)


def test_100_continue_is_sent_only_when_admitted(run: RunOnLoop) -> None:
    def refuse_large(request: HTTPRequest) -> tuple[int, bytes, bytes] | None:
        return (429, b"", b"") if request.header(b"content-length") == b"7" else None

    async def scenario() -> None:
        async with serving(echo, admit=refuse_large) as served:
            admitted = await served.connect()
            refused = await served.connect()
            head = b"POST / HTTP/1.1\r\nHost: q\r\nExpect: 100-Continue\r\nContent-Length: %d\r\n\r\n"

            admitted.send(head % 4)
            word = await admitted.reader.readuntil(b"\r\n\r\n")
            answer = await admitted.ask(b"body")
            unasked = await admitted.ask(head % 4 + b"body")
            refusal = await refused.ask(head % 7)

            assert word == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert answer[2] == b"body"
            assert unasked[0] == 200
            assert refusal[0] == 429

    run(scenario)


def test_100_continue_waits_for_the_replies_before_it(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            client = await served.connect()
            client.send(
                GET + b"POST / HTTP/1.1\r\nHost: q\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
            )
            (first,) = await served.keep(1)
            await asyncio.sleep(0.02)

            first.respond(201, b"", b"")

            assert (await client.reply())[0] == 201
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"

    run(scenario)


# Malformed and too large.

_P = b"POST / HTTP/1.1\r\nHost: q\r\n"
_CHUNKS = _P + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(_P + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400, id="CL and TE"),
        pytest.param(_P + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 400, id="TE and CL"),
        pytest.param(_P + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n", 400, id="two lengths"),
        pytest.param(_P + b"Content-Length: 3, 4\r\n\r\n", 400, id="list of lengths"),
        pytest.param(_P + b"Content-Length: +3\r\n\r\n", 400, id="signed length"),
        pytest.param(_P + b"Content-Length: -3\r\n\r\n", 400, id="negative length"),
        pytest.param(_P + b"Content-Length: 0x3\r\n\r\n", 400, id="hexadecimal length"),
        pytest.param(_P + b"Content-Length:\r\n\r\n", 400, id="empty length"),
        pytest.param(_P + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n", 400, id="endless length"),
        pytest.param(_P + b"Transfer-Encoding: gzip\r\n\r\n", 501, id="unknown encoding"),
        pytest.param(_P + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501, id="two encodings"),
        pytest.param(_P + b"Transfer-Encoding: chunked, identity\r\n\r\n", 400, id="chunked not last"),
        pytest.param(_P + b"Transfer-Encoding: xchunked\r\n\r\n", 501, id="almost chunked"),
        pytest.param(
            _P + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400, id="chunked twice"
        ),
        pytest.param(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, id="chunks in 1.0"),
        pytest.param(_P + b"Transfer-Encoding : chunked\r\n\r\n", 400, id="blank before colon"),
        pytest.param(_P + b" Transfer-Encoding: chunked\r\n\r\n", 400, id="folded header"),
        pytest.param(_P + b"A: b\r\n\tc\r\n\r\n", 400, id="folded with a tab"),
        pytest.param(_P + b"A: b\nC: d\r\n\r\n", 400, id="bare LF in the headers"),
        pytest.param(_P + b"A: b\rC: d\r\n\r\n", 400, id="bare CR in the headers"),
        pytest.param(_P + b"A: b\x00c\r\n\r\n", 400, id="NUL in a value"),
        pytest.param(_P + b"A\x00: b\r\n\r\n", 400, id="NUL in a name"),
        pytest.param(_P + b": b\r\n\r\n", 400, id="no name"),
        pytest.param(_P + b"no colon\r\n\r\n", 400, id="no colon"),
        pytest.param(_P + b"Host: r\r\n\r\n", 400, id="two hosts"),
        pytest.param(b"GET / HTTP/1.1\r\nA: b\r\n\r\n", 400, id="no host"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", 400, id="no headers"),
        pytest.param(b"GET / HTTP/1.1\nHost: q\n\n", 400, id="bare LF after the request line"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: q\r\nExpect: 200-ok\r\n\r\n", 417, id="unknown expectation"),
        pytest.param(b"GET / HTTP/2.0\r\nHost: q\r\n\r\n", 400, id="HTTP/2.0"),
        pytest.param(b"GET / HTTP/1.2\r\nHost: q\r\n\r\n", 400, id="HTTP/1.2"),
        pytest.param(b"GET /\r\n\r\n", 400, id="HTTP/0.9"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, id="HTTP/2 preface"),
        pytest.param(b"get / HTTP/1.1\r\nHost: q\r\n\r\n", 400, id="method in lower case"),
        pytest.param(b"BREW / HTTP/1.1\r\nHost: q\r\n\r\n", 400, id="unknown method"),
        pytest.param(b"CONNECT q:1 HTTP/1.1\r\nHost: q\r\n\r\n", 405, id="CONNECT"),
        pytest.param(b"GET /a b HTTP/1.1\r\nHost: q\r\n\r\n", 400, id="blank in the target"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, id="TLS"),
        pytest.param(b"\r\n\r\n\x00", 400, id="NUL"),
        pytest.param(_CHUNKS + b"5\r\nhello!\r\n0\r\n\r\n", 400, id="chunk longer than its size"),
        pytest.param(_CHUNKS + b"5\r\nhello\n0\r\n\r\n", 400, id="bare LF after a chunk"),
        pytest.param(_CHUNKS + b"5\nhello\r\n0\r\n\r\n", 400, id="bare LF after a size"),
        pytest.param(_CHUNKS + b"\r\nhello\r\n0\r\n\r\n", 400, id="no size"),
        pytest.param(_CHUNKS + b"-5\r\nhello\r\n", 400, id="negative size"),
        pytest.param(_CHUNKS + b"0x5\r\nhello\r\n", 400, id="prefixed size"),
        pytest.param(_CHUNKS + b" 5\r\nhello\r\n", 400, id="blank before the size"),
        pytest.param(_CHUNKS + b"5;a\rb\r\nhello\r\n", 400, id="CR in an extension"),
        pytest.param(_CHUNKS + b"ffffffffffffffffffff\r\n", 400, id="endless size"),
        pytest.param(_CHUNKS + b"5;" + b"x" * 2000, 400, id="endless extension"),
        pytest.param(_CHUNKS + b"0\r\nno colon\r\n\r\n", 400, id="malformed trailer"),
        pytest.param(_CHUNKS + b"0\r\nA: b\r\n c\r\n\r\n", 400, id="folded trailer"),
        pytest.param(_CHUNKS + b"0\r\n" + b"A: b\r\n" * 1000 + b"\r\n", 431, id="trailers too large"),
        pytest.param(_CHUNKS + b"0\r\nA:" + b"b" * 3000, 431, id="trailer line too large"),
        pytest.param(_CHUNKS + b"1001\r\n", 413, id="chunk too large"),
        pytest.param(_CHUNKS + (b"800\r\n" + b"x" * 2048 + b"\r\n") * 3, 413, id="chunks too large"),
        pytest.param(_P + b"Content-Length: 4097\r\n\r\n", 413, id="length too large"),
        pytest.param(b"GET /" + b"a" * 1024 + b" HTTP/1.1\r\nHost: q\r\n\r\n", 414, id="target too large"),
        pytest.param(b"GET /" + b"a" * 4000, 414, id="endless target"),
        pytest.param(_P + b"A: " + b"b" * 2048 + b"\r\n\r\n", 431, id="headers too large"),
        pytest.param(_P + b"A: " + b"b" * 4000, 431, id="endless header"),
        pytest.param(_P + b"a:\r\n" * 20 + b"\r\n", 431, id="too many headers"),
    ],
)
def test_what_cannot_be_read_without_doubt_is_refused_and_the_connection_closed(
    run: RunOnLoop, data: bytes, status: int
) -> None:
    async def scenario() -> None:
        async with serving(limits=QUICK) as served:
            client = await served.connect()

            refused = await client.ask(data)

            assert refused[0] == status
            assert refused[1][b"Connection"] == b"close"
            assert refused[2].startswith(b"%d " % status)
            assert await client.rest() == b""
            assert served.kept == []
            assert any(served.events[event] for event in HTTP_EVENTS if event.startswith("rejected"))
            assert not any(served.events[event] for event in HTTP_EVENTS if event.startswith("timeout"))

    run(scenario)


def test_what_is_just_within_the_limits_passes(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(echo, QUICK) as served:
            client = await served.connect()

            target = b"/" + b"a" * 1023
            with_target = await client.ask(b"GET %b HTTP/1.1\r\nHost: q\r\n\r\n" % target)
            with_headers = await client.ask(
                b"GET / HTTP/1.1\r\nHost: q\r\nA: " + b"b" * (2048 - 9 - 5) + b"\r\n\r\n"
            )
            with_many = await client.ask(b"GET / HTTP/1.1\r\nHost: q\r\n" + b"a:\r\n" * 19 + b"\r\n")
            with_body = await client.ask(post(b"x" * 4096))
            with_chunks = await client.ask(_CHUNKS + b"1000\r\n" + b"x" * 4096 + b"\r\n0\r\n\r\n")

            assert with_target[1][b"X-Target"] == target
            assert [with_headers[0], with_many[0]] == [200, 200]
            assert len(with_body[2]) == len(with_chunks[2]) == 4096

    run(scenario)


def test_a_refusal_waits_for_the_replies_before_it(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            client = await served.connect()
            client.send(GET + b"garbage\r\n\r\n" + GET)
            (request,) = await served.keep(1)
            await asyncio.sleep(0.02)

            request.respond(200, b"", b"first")

            assert (await client.reply())[2] == b"first"
            assert (await client.reply())[0] == 400
            assert await client.rest() == b""
            assert len(served.kept) == 1

    run(scenario)


# Time.


@pytest.mark.parametrize(
    ("start", "drip", "event"),
    [
        (b"GET / HTTP/1.1\r\n", b"A: b\r\n", "timeout_header"),
        (_P + b"Content-Length: 4000\r\n\r\n", b"x", "timeout_body"),
        (_CHUNKS, b"1\r\nx\r\n", "timeout_body"),
    ],
    ids=["headers", "body", "chunks"],
)
def test_a_slow_client_is_dropped_while_another_is_served(
    run: RunOnLoop, start: bytes, drip: bytes, event: str
) -> None:
    async def scenario() -> None:
        async with serving(echo, QUICK) as served:
            slow = await served.connect()
            other = await served.connect()
            slow.send(start)

            while not served.events[event]:
                slow.send(drip)
                assert (await other.ask(GET))[0] == 200
                await asyncio.sleep(0.03)
            status, headers, _ = await slow.reply()

            assert status == 408
            assert headers[b"Connection"] == b"close"
            assert (await other.ask(GET))[0] == 200

    run(scenario)


def test_an_idle_connection_is_closed_without_a_word(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(echo, QUICK) as served:
            silent = await served.connect()
            used = await served.connect()
            await used.ask(GET)

            assert await silent.rest() == b""
            assert await used.rest() == b""
            assert served.events["timeout_idle"] == 2

    run(scenario)


def test_a_waiting_request_may_wait_longer_than_every_timeout(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(limits=replace(QUICK, idle_timeout_ms=100)) as served:
            client = await served.connect()
            client.send(GET)
            (request,) = await served.keep(1)

            await asyncio.sleep(0.5)
            request.respond(200, b"", b"at last")

            assert (await client.reply())[2] == b"at last"

    run(scenario)


class StoppingClock:
    """`time` as a process sees it that is stopped for a while (SIGSTOP, a suspended machine)."""

    def __init__(self) -> None:
        self.stopped_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.stopped_s

    def time(self) -> float:
        return time.time() + self.stopped_s

    def thread_time(self) -> float:
        return time.thread_time()


def test_clients_are_not_charged_with_the_time_the_server_was_stopped(
    run: RunOnLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StoppingClock()
    monkeypatch.setattr(http_server, "time", clock)

    async def scenario() -> None:
        async with serving(echo, replace(PATIENT, write_timeout_ms=40)) as served:  # sweeps every 10 ms
            idle, in_head, in_body = [await served.connect() for _ in range(3)]
            in_head.send(GET[:10])
            in_body.send(post(b"whole")[:-2])
            await idle.ask(GET)
            await asyncio.sleep(0.05)

            clock.stopped_s = 3_600.0
            await asyncio.sleep(0.1)
            in_head.send(GET[10:])
            in_body.send(b"le")

            assert (await idle.ask(GET))[0] == 200
            assert (await in_head.reply())[0] == 200
            assert (await in_body.reply())[2] == b"whole"

    run(scenario)


# Clients that go.


def test_a_poll_that_its_client_stopped_sending_behind_keeps_no_other_reply_back(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            client = await served.connect()
            client.send(GET * 3)
            first, poll, last = await served.keep(3)
            gone: list[str] = []
            poll.on_disconnect = lambda: gone.append("poll")

            client.writer.write_eof()
            await served.see("client_disconnected")
            poll.respond(200, b"", b"nobody hears this")
            last.respond(200, b"", b"last")
            first.respond(200, b"", b"first")
            replies = await client.rest()

            assert gone == ["poll"]
            assert re.findall(rb"HTTP/1.1 (\d+)", replies) == [b"200", b"503", b"200"]
            assert replies.index(b"first") < replies.index(b"given up") < replies.index(b"last")
            assert b"nobody" not in replies

    run(scenario)


def test_polls_that_fill_a_pipeline_learn_that_their_client_has_gone(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(limits=replace(PATIENT, pipeline_max=2)) as served:
            client = await served.connect()
            client.send(GET * 3)
            gone: list[int] = []
            for number, poll in enumerate(await served.keep(2)):
                poll.on_disconnect = functools.partial(gone.append, number)

            client.close()
            await served.see("client_disconnected")

            assert gone == [0, 1]

    run(scenario)


def test_a_client_whose_requests_wait_is_read_on_only_a_little(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(limits=replace(PATIENT, pipeline_max=1)) as served:
            client = await served.connect()
            client.send(GET)
            await served.keep(1)
            (connection,) = served.server._open

            for _ in range(100):
                client.send(GET * 100)
                await asyncio.sleep(0)
            await asyncio.sleep(0.1)
            kept_bytes = len(connection._unread)
            for n in range(5):
                (await served.keep(n + 1))[n].respond(200, b"", b"")

            assert STALLED_UNREAD_BYTES_MAX < kept_bytes < STALLED_UNREAD_BYTES_MAX + 300_000
            assert connection._reading_paused

    run(scenario)


def test_a_waiting_request_learns_once_that_its_client_has_gone(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            client = await served.connect()
            client.send(GET * 2)
            first, second = await served.keep(2)
            gone: list[str] = []
            first.on_disconnect = lambda: gone.append("first")
            second.on_disconnect = lambda: gone.append("second")

            client.close()
            await served.see("client_disconnected")

            assert gone == ["first", "second"]
            assert not first.is_waiting
            assert served.server.requests_active == 0
            first.respond(200, b"", b"nobody hears this")
            first.respond(200, b"", b"nor this")
            assert gone == ["first", "second"]

    run(scenario)


def test_an_answered_request_hears_nothing_of_the_disconnect(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            client = await served.connect()
            client.send(GET)
            (request,) = await served.keep(1)
            gone: list[str] = []
            request.on_disconnect = lambda: gone.append("gone")

            request.respond(200, b"", b"")
            await client.reply()
            client.close()
            await served.see("connection_closed")

            assert gone == []
            assert served.events["client_disconnected"] == 0

    run(scenario)


def test_a_client_that_only_stops_sending_gets_its_replies(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(limits=replace(PATIENT, pipeline_max=2)) as served:
            client = await served.connect()
            client.send(GET * 5)
            client.writer.write_eof()

            for n in range(5):
                (await served.keep(n + 1))[n].respond(200, b"", b"")

            assert (await client.rest()).count(b"HTTP/1.1 200 OK") == 5

    run(scenario)


CROWDED = replace(PATIENT, body_bytes_total_max=100_000)


def test_bodies_that_come_in_part_share_a_limit(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(echo, CROWDED) as served:
            first, second, third = [await served.connect() for _ in range(3)]
            first.send(_P + b"Content-Length: 70000\r\n\r\n" + b"a" * 60_000)
            await served.hold(60_000)

            second.send(_P + b"Content-Length: 70000\r\n\r\n" + b"b" * 60_000)
            refused = await first.reply()
            whole = await third.ask(post(b"c" * 1000))
            second.send(b"b" * 10_000)
            finished = await second.reply()
            third.send(_P + b"Content-Length: 70000\r\n\r\n" + b"d" * 60_000)
            await served.hold(60_000)
            third.send(b"d" * 10_000)
            later = await third.reply()

            assert (refused[0], refused[1][b"Connection"]) == (503, b"close")
            assert served.events["rejected_bodies_full"] == 1
            assert (whole[0], finished[2], later[2]) == (200, b"b" * 70_000, b"d" * 70_000)
            assert (served.server.body_bytes, served.server.bodies) == (0, {})

    run(scenario)


@pytest.mark.parametrize("chunked", [False, True])
def test_single_bytes_count_with_what_they_cost(run: RunOnLoop, chunked: bool) -> None:
    async def scenario() -> None:
        async with serving(echo, replace(CROWDED, body_bytes_total_max=2_000)) as served:
            client = await served.connect()
            client.send(_CHUNKS if chunked else _P + b"Content-Length: 1000\r\n\r\n")

            for sent in range(1, 200):
                client.send(b"1\r\nx\r\n" if chunked else b"x")
                await client.writer.drain()
                await served.hold(sent * 65)
                if served.events["rejected_bodies_full"]:
                    break

            assert (await client.reply())[0] == 503
            assert sent < 40

    run(scenario)


def test_half_a_request_disappears_with_its_client(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            for part in (b"GET / HT", _P, _P + b"Content-Length: 9\r\n\r\nabc", _CHUNKS + b"5\r\nab"):
                client = await served.connect()
                client.send(part)
                await client.writer.drain()
                client.close()
                await served.see("connection_closed")
                served.events.clear()

            assert served.kept == []
            assert served.server.connections == 0
            assert served.server.body_bytes == 0

    run(scenario)


def test_a_client_that_does_not_read_is_paused_then_dropped(run: RunOnLoop) -> None:
    reply = b"x" * 200_000
    handled = []

    def handle(request: HTTPRequest) -> None:
        handled.append(request.path)
        request.respond(200, b"", reply)

    async def scenario() -> None:
        limits = replace(QUICK, write_buffer_bytes_max=100_000, pipeline_max=4, idle_timeout_ms=60_000)
        async with serving(handle, limits) as served:
            loop = asyncio.get_running_loop()
            deaf = socket.socket()
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            await loop.sock_connect(deaf, ("127.0.0.1", served.port))
            other = await served.connect()

            await loop.sock_sendall(deaf, GET * 2000)
            while not served.events["timeout_write"]:
                assert (await other.ask(GET))[2] == reply
                await asyncio.sleep(0.05)

            of_deaf = len(handled) - served.server.requests_active
            assert of_deaf < 500, "reading went on while nothing could be written"
            await served.see("connection_closed")
            deaf.close()

    run(scenario)


def test_a_slow_but_reading_client_gets_everything(run: RunOnLoop) -> None:
    reply = b"x" * 300_000

    async def scenario() -> None:
        limits = replace(PATIENT, write_buffer_bytes_max=50_000, pipeline_max=2)
        async with serving(lambda request: request.respond(200, b"", reply), limits) as served:
            client = await served.connect()
            client.send(GET * 12)

            for _ in range(12):
                await asyncio.sleep(0.01)
                assert (await client.reply())[2] == reply

    run(scenario)


def test_connections_over_the_limit_are_refused(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(
            signed_echo, replace(PATIENT, connections_max=2, account_connections_percent=100)
        ) as served:
            first, second = await served.connect(), await served.connect()
            await first.ask(GET)
            await second.ask(GET)

            third = await served.connect()
            status, headers, _ = await third.reply()
            first.close()
            await served.see("connection_closed")
            fourth = await served.connect()

            assert status == 503
            assert headers[b"Connection"] == b"close"
            assert served.events["connection_refused"] == 1
            assert (await second.ask(GET))[0] == 200
            assert (await fourth.ask(GET))[0] == 200

    run(scenario)


# Stopping.


def test_draining_closes_idle_connections_and_answers_the_rest(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            idle, busy, polling = [await served.connect() for _ in range(3)]
            idle.send(GET)
            (await served.keep(1))[0].respond(200, b"", b"")
            await idle.reply()
            busy.send(GET)
            working = (await served.keep(2))[1]
            polling.send(GET)
            poll = (await served.keep(3))[2]
            poll.hurry_by(lambda: poll.respond(200, b"", b"empty"))

            draining = asyncio.create_task(served.server.drain(20))

            assert await idle.rest() == b""
            answered_early = await polling.reply()
            assert answered_early[1][b"Connection"] == b"close"
            assert answered_early[2] == b"empty"
            assert await polling.rest() == b""
            assert not draining.done()
            working.respond(200, b"", b"done")
            assert (await busy.reply())[1][b"Connection"] == b"close"
            assert await busy.rest() == b""
            await draining
            with pytest.raises(OSError, match=r"refused|Connect"):
                await served.connect()

    run(scenario)


def test_once_its_end_is_announced_a_server_closes_each_connection_behind_its_next_answer(
    run: RunOnLoop,
) -> None:
    async def scenario() -> None:
        async with serving(echo) as served:
            asking, silent = await served.connect(), await served.connect()
            for client in (asking, silent):
                assert (await client.ask(GET))[1].get(b"Connection") is None

            served.server.announce_end()

            for client in (asking, await served.connect()):
                status, headers, _ = await client.ask(GET)
                assert (status, headers[b"Connection"]) == (200, b"close")
                assert await client.rest() == b""
            assert served.server.connections == 1
            await served.server.drain(20)
            assert await silent.rest() == b""

    run(scenario)


def test_a_request_half_received_when_draining_starts_is_answered(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(echo) as served:
            in_head, in_body = await served.connect(), await served.connect()
            in_head.send(GET[:10])
            in_body.send(post(b"12345")[:-2])
            await asyncio.sleep(0.05)

            draining = asyncio.create_task(served.server.drain(20))
            await asyncio.sleep(0.02)
            head_reply = await in_head.ask(GET[10:])
            body_reply = await in_body.ask(b"45")
            await draining

            assert head_reply[1][b"Connection"] == body_reply[1][b"Connection"] == b"close"
            assert body_reply[2] == b"12345"

    run(scenario)


def test_what_is_left_after_the_grace_time_is_cut_off(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            client = await served.connect()
            client.send(GET)
            (request,) = await served.keep(1)
            gone: list[str] = []
            request.on_disconnect = lambda: gone.append("gone")

            await served.server.drain(0.05)

            assert gone == ["gone"]
            assert served.server.connections == 0

    run(scenario)


def test_pipelined_requests_are_all_answered_while_draining(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            client = await served.connect()
            client.send(GET * 3)
            requests = await served.keep(3)

            draining = asyncio.create_task(served.server.drain(20))
            await asyncio.sleep(0)
            for request in requests:
                request.respond(200, b"", b"")
            replies = [await client.reply() for _ in range(3)]
            await draining

            assert [headers.get(b"Connection") for _, headers, _ in replies] == [None, None, b"close"]

    run(scenario)


def test_limits_below_one_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="pipeline_max is 0"):
        HTTPLimits(pipeline_max=0)
