"""What the HTTP server gives clients that signed nothing yet: seen from the other end of a socket."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from net.http.test_http_server import PATIENT, Client, RunOnLoop, echo, post, run, serving
from quaymaster.net.http import connection as http_connection
from quaymaster.net.http import known
from quaymaster.net.http import server as http_server
from quaymaster.net.http import strangers as unsigned
from quaymaster.net.http.body import (
    CHUNK_BYTES_MEAN_MIN,
    CHUNK_STEPS_PER_TURN,
    SMALL_CHUNKS_MAX,
    ChunkedBody,
)
from quaymaster.net.http.connection import (
    EMPTY_LINES_MAX,
    STALLED_UNREAD_BYTES_MAX,
    STRANGER_HEADS_PER_TURN,
    UNREAD_BYTES_MAX,
    HTTPConnection,
)
from quaymaster.net.http.flows import FLOW_REQUESTS_MAX
from quaymaster.net.http.head import PATH_BYTES_MAX, HeadParser
from quaymaster.net.http.server import (
    UNSIGNED_BUSY_PART,
    UNSIGNED_PASS_BYTES_MAX,
    HTTPLimits,
    HTTPRequest,
    HTTPServer,
)
from quaymaster.net.http.strangers import LATE_REST, NEWCOMER_REST
from quaymaster.net.http.unreadable import UnreadableRequest

__all__ = ["run"]

GET = b"GET /a HTTP/1.1\r\nHost: q\r\n\r\n"
SIGNED = b"GET /signed HTTP/1.1\r\nHost: q\r\n\r\n"
HEAD = b"POST / HTTP/1.1\r\nHost: q\r\n"


def judge(request: HTTPRequest) -> None:
    """Answer as if what says so were signed."""
    if request.path == b"/signed":
        request.vouch("key")
    else:
        request.doubt()
    echo(request)


def chunks(count: int, size: int) -> bytes:
    return b"%x\r\n%b\r\n" % (size, b"x" * size) * count


@pytest.mark.parametrize(
    ("method", "status"),
    [("GET", 400), ("HEAD", 400), ("DELETE", 400), ("OPTIONS", 400), ("PUT", 405), ("PATCH", 405)],
)
@pytest.mark.parametrize("framing", ["Content-Length: 8000000", "Transfer-Encoding: chunked"])
def test_a_request_that_has_no_body_is_refused_before_one_is_read(
    run: RunOnLoop, method: str, status: int, framing: str
) -> None:
    async def scenario() -> None:
        async with serving(echo) as served:
            client = await served.connect()
            client.send(f"{method} /a HTTP/1.1\r\nHost: q\r\n{framing}\r\n\r\n".encode())

            answer = await client.reply(has_body=method != "HEAD")

            assert (answer[0], answer[1][b"Connection"]) == (status, b"close")
            assert served.server.body_bytes == 0

    run(scenario)


def test_a_method_without_a_body_may_say_that_its_length_is_zero(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(echo) as served:
            client = await served.connect()

            answer = await client.ask(b"DELETE /a HTTP/1.1\r\nHost: q\r\nContent-Length: 0\r\n\r\n")

            assert answer[0] == 200

    run(scenario)


def test_a_body_of_many_tiny_chunks_is_refused(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(echo) as served:
            client = await served.connect()
            client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks(10_000, 1))

            status, _, body = await client.reply()

            assert status == 400
            assert b"too small" in body

    run(scenario)


def test_a_body_of_chunks_as_programs_make_them_is_taken(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(echo) as served:
            client = await served.connect()
            head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

            few = await client.ask(head + chunks(SMALL_CHUNKS_MAX, 1) + b"0\r\n\r\n")
            many = await client.ask(
                head + chunks(SMALL_CHUNKS_MAX, 1) + chunks(3000, CHUNK_BYTES_MEAN_MIN) + b"0\r\n\r\n"
            )

            assert (few[0], len(few[2])) == (200, SMALL_CHUNKS_MAX)
            assert (many[0], len(many[2])) == (200, SMALL_CHUNKS_MAX + 3000 * CHUNK_BYTES_MEAN_MIN)

    run(scenario)


def test_empty_lines_before_a_request_are_few(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(echo) as served:
            client = await served.connect()
            few = await client.ask(b"\r\n" * EMPTY_LINES_MAX + GET)
            client.send(b"\r\n" * (EMPTY_LINES_MAX + 1) + GET)

            many = await client.reply()

            assert (few[0], many[0], many[1][b"Connection"]) == (200, 400, b"close")

    run(scenario)


def test_headers_are_counted_before_they_are_parsed() -> None:
    class Unheard(HeadParser):
        def on_header(self, name: bytes, value: bytes) -> None:
            raise AssertionError("a header was parsed")

    sink = HTTPConnection(HTTPServer(lambda _: None, HTTPLimits(), name="test"))
    limits = HTTPLimits(header_count_max=2)

    with pytest.raises(UnreadableRequest, match="over 2 headers"):
        Unheard(limits).read(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 3 + b"\r\n", 0, "", 0.0, sink)


def test_chunks_and_trailers_are_taken_a_few_at_a_time() -> None:
    body = ChunkedBody(HTTPLimits())
    data = chunks(200, 1) + b"0\r\n" + b"T: t\r\n" * 1000 + b"\r\n"
    position, turns = 0, 0

    while not body.is_complete:
        taken = body.feed(data, position)
        assert taken - position <= CHUNK_STEPS_PER_TURN * 6
        assert body.has_more is not body.is_complete
        position, turns = taken, turns + 1

    assert turns == -(-(200 * 4 + 1 + 1001) // CHUNK_STEPS_PER_TURN)
    assert body.join() == b"x" * 200


def test_how_chunks_are_cut_does_not_change_whether_they_are_too_small() -> None:
    data = chunks(SMALL_CHUNKS_MAX + 2, 1)

    def read(step: int) -> None:
        body = ChunkedBody(HTTPLimits())
        unread = b""
        for start in range(0, len(data), step):
            unread += data[start : start + step]
            unread = unread[body.feed(unread, 0) :]
            while body.has_more:
                unread = unread[body.feed(unread, 0) :]

    for step in (1, 7, len(data)):
        with pytest.raises(UnreadableRequest):
            read(step)


def test_where_there_is_no_room_the_oldest_stranger_goes_and_the_signed_stay(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(
            judge, replace(PATIENT, connections_max=3, account_connections_percent=100)
        ) as served:
            signed, idle, half = [await served.connect() for _ in range(3)]
            await signed.ask(SIGNED)
            await idle.ask(GET)
            half.send(GET[:10])

            fourth = await served.connect()
            answer = await fourth.ask(SIGNED)
            fifth = await served.connect()
            last = await fifth.ask(SIGNED)
            sixth = await (await served.connect()).reply()

            assert (answer[0], last[0], sixth[0]) == (200, 200, 503)
            assert await idle.rest() == b""
            assert await half.rest() == b""
            assert (await signed.ask(SIGNED))[0] == 200
            assert served.events["closed_for_others"] == 2
            assert served.events["connection_refused"] == 1

    run(scenario)


def test_one_peer_has_a_bounded_number_of_connections_without_a_signature(run: RunOnLoop) -> None:
    async def scenario() -> None:
        limits = replace(PATIENT, unsigned_peer_connections_max=2)
        async with serving(judge, limits) as served:
            signed = []
            for _ in range(5):
                signed.append(await served.connect())
                await signed[-1].ask(SIGNED)
            idle = [await served.connect() for _ in range(3)]

            assert await idle[0].rest() == b""
            assert [(await client.ask(GET))[0] for client in idle[1:]] == [200, 200]
            assert [(await client.ask(SIGNED))[0] for client in signed] == [200] * 5
            assert served.server.why_not_ready() is None

    run(scenario)


def test_a_connection_is_a_strangers_again_after_a_request_that_was_not_signed(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(judge, replace(PATIENT, connections_max=1)) as served:
            first = await served.connect()
            await first.ask(SIGNED)
            refused = await (await served.connect()).reply()
            await first.ask(GET)

            second = await served.connect()

            assert refused[0] == 503
            assert (await second.ask(SIGNED))[0] == 200
            assert await first.rest() == b""

    run(scenario)


def test_who_is_turned_away_sees_why_although_its_request_was_on_its_way(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(judge, replace(PATIENT, connections_max=1)) as served:
            await (await served.connect()).ask(SIGNED)
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
                writer.write(post(b"x" * 20_000))
                await asyncio.sleep(0.005)
                client = Client(reader, writer)
                served.clients.append(client)

                assert (await client.reply())[0] == 503
                assert await client.rest() == b""

    run(scenario)


def test_those_turned_away_are_let_go_when_the_time_is_over(
    run: RunOnLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "LINGER_MS", 1)
    monkeypatch.setattr(http_server, "TURNED_AWAY_MAX", 2)

    async def scenario() -> None:
        async with serving(judge, replace(PATIENT, connections_max=1, header_timeout_ms=40)) as served:
            await (await served.connect()).ask(SIGNED)
            for _ in range(4):
                assert (await (await served.connect()).reply())[0] == 503
            while served.server._turned_away:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    run(scenario)


def test_a_stalled_body_gives_way_to_one_that_comes_in(run: RunOnLoop) -> None:
    async def scenario() -> None:
        limits = replace(PATIENT, unsigned_bytes_max=300_000, unsigned_peer_bytes_max=200_000)
        async with serving(judge, limits) as served:
            stalled, lively = await served.connect(), await served.connect()
            stalled.send(HEAD + b"Content-Length: 200000\r\n\r\n" + b"a" * 150_000)
            await served.hold(150_000)
            lively.send(HEAD + b"Content-Length: 190000\r\n\r\n" + b"b" * 100_000)

            refused = await stalled.reply()
            lively.send(b"b" * 90_000)
            taken = await lively.reply()

            assert (refused[0], refused[1][b"Connection"]) == (503, b"close")
            assert (taken[0], len(taken[2])) == (200, 190_000)
            assert served.events["rejected_unsigned_full"] == 1

    run(scenario)


def test_bodies_of_strangers_leave_those_of_signed_clients_their_room(run: RunOnLoop) -> None:
    async def scenario() -> None:
        limits = replace(
            PATIENT, body_bytes_total_max=400_000, unsigned_bytes_max=200_000, unsigned_peer_bytes_max=200_000
        )
        async with serving(judge, limits) as served:
            signed = await served.connect()
            await signed.ask(SIGNED)
            strangers = [await served.connect() for _ in range(10)]
            for stranger in strangers:
                stranger.send(HEAD + b"Content-Length: 150000\r\n\r\n" + b"a" * 140_000)
            while served.events["rejected_unsigned_full"] < 9:  # noqa: ASYNC110
                await asyncio.sleep(0.002)

            signed.send(HEAD + b"Content-Length: 150000\r\n\r\n" + b"s" * 140_000)
            await served.hold(280_000)
            answer = await signed.ask(b"s" * 10_000)

            assert answer[0] == 200
            assert served.events["rejected_bodies_full"] == 0
            assert served.server.strangers.kept_bytes <= 200_000

    run(scenario)


def test_bodies_that_stall_on_connections_that_a_proxy_lends_give_way_to_one_that_comes_in(
    run: RunOnLoop,
) -> None:
    async def scenario() -> None:
        async with serving(judge, replace(PATIENT, body_bytes_total_max=400_000)) as served:
            *lent, signed = [await served.connect() for _ in range(4)]
            for client in (*lent, signed):
                await client.ask(SIGNED)
            for number, client in enumerate(lent):
                client.send(HEAD + b"Content-Length: 150000\r\n\r\n" + b"a" * 120_000)
                await served.hold((number + 1) * 120_000)

            answer = await signed.ask(HEAD + b"Content-Length: 300000\r\n\r\n" + b"s" * 300_000)

            assert answer[0] == 200
            assert 1 <= served.events["rejected_bodies_full"] <= len(lent)

    run(scenario)


def test_replies_that_are_not_read_count_as_memory(run: RunOnLoop) -> None:
    async def scenario() -> None:
        def large(request: HTTPRequest) -> None:
            request.respond(200, b"", b"x" * 3_000_000)

        limits = replace(PATIENT, unsigned_bytes_max=9_000_000, unsigned_peer_bytes_max=9_000_000)
        async with serving(large, limits) as served:
            for _ in range(6):
                (await served.connect()).send(GET * 4)
            while served.events["closed_for_others"] < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.002)

            assert served.server.strangers.kept_bytes <= 9_000_000

    run(scenario)


def test_a_pass_takes_the_signed_first_and_a_bounded_number_of_others(run: RunOnLoop) -> None:
    async def scenario() -> None:
        passes: list[list[bytes]] = []

        def handle(requests: list[HTTPRequest]) -> None:
            passes.append([request.path for request in requests])
            for request in requests:
                judge(request)

        limits = replace(PATIENT, unsigned_requests_per_pass=8)
        async with serving(handler=handle, limits=limits) as served:
            signed = [await served.connect() for _ in range(4)]
            for client in signed:
                await client.ask(SIGNED)
            strangers = [await served.connect() for _ in range(20)]
            passes.clear()
            for stranger in strangers:
                stranger.send(GET * 10)
            for client in signed:
                client.send(SIGNED)
            for client in (*signed, *strangers):
                for _ in range(1 if client in signed else 10):
                    assert (await client.reply())[0] == 200

            assert sum(map(len, passes)) == 204
            for paths in passes:
                assert paths == sorted(paths, reverse=True), "the signed are first"
                assert paths.count(b"/a") < 8 + STRANGER_HEADS_PER_TURN

    run(scenario)


class CountedTime:
    """`time` whose processor time moves when a handler says that it used some."""

    def __init__(self) -> None:
        self.used_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def thread_time(self) -> float:
        return self.used_s


def test_strangers_are_taken_up_again_in_the_next_pass_when_they_took_too_much_time(
    run: RunOnLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        clock = CountedTime()
        monkeypatch.setattr(http_server, "time", clock)
        monkeypatch.setattr(http_server, "UNSIGNED_STEP_REQUESTS", 1)
        passes: Counter[int] = Counter()

        def handle(requests: list[HTTPRequest]) -> None:
            for request in requests:
                clock.used_s += http_server.UNSIGNED_PASS_S / 3
                passes[served.passes] += 1
                judge(request)

        async with serving(handler=handle) as served:
            served.count_passes()
            strangers = [await served.connect() for _ in range(20)]
            for stranger in strangers:
                stranger.send(GET)
            for stranger in strangers:
                assert (await stranger.reply())[0] == 200

            assert sum(passes.values()) == 20
            assert max(passes.values()) <= 4

    run(scenario)


@pytest.mark.parametrize(
    "request_",
    [
        b"OPTIONS / HTTP/1.1\r\nHost: q\r\nOrigin: http://e\r\nAccess-Control-Request-Method: POST\r\n\r\n",
        b"GET /?Action=ListQueues HTTP/1.1\r\nHost: q\r\nUser-Agent: e\r\n\r\n",
    ],
    ids=["preflights", "unsigned"],
)
def test_pipelines_of_strangers_have_the_time_of_newcomers_and_late_ones_together(
    run: RunOnLoop, monkeypatch: pytest.MonkeyPatch, request_: bytes
) -> None:
    async def scenario() -> None:
        clock = CountedTime()
        monkeypatch.setattr(http_server, "time", clock)
        passes: Counter[int] = Counter()

        def handle(requests: list[HTTPRequest]) -> None:
            for request in requests:
                clock.used_s += http_server.UNSIGNED_PASS_S / 3
                passes[served.passes] += 1
                judge(request)

        async with serving(handler=handle) as served:
            served.count_passes()
            strangers = [await served.connect() for _ in range(10)]
            for stranger in strangers:
                stranger.send(request_ * 20)
            for stranger in strangers:
                for _ in range(20):
                    assert (await stranger.reply())[0] == 200

            assert sum(passes.values()) == 200
            assert max(passes.values()) <= 2 * STRANGER_HEADS_PER_TURN

    run(scenario)


@pytest.mark.parametrize("is_late", [False, True], ids=["newcomers", "late"])
def test_strangers_rest_after_what_they_did_not_sign_while_the_known_are_served(
    run: RunOnLoop, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    used_s = 0.003

    async def scenario() -> None:
        clock = CountedTime()
        monkeypatch.setattr(http_server, "time", clock)
        monkeypatch.setattr(http_server, "UNSIGNED_STEP_REQUESTS", 1)
        taken_s: list[float] = []

        def handle(requests: list[HTTPRequest]) -> None:
            for request in requests:
                if request.path == b"/a":
                    clock.used_s += used_s
                    taken_s.append(time.monotonic())
                judge(request)

        async with serving(handler=handle) as served:
            signed = await served.connect()
            await signed.ask(SIGNED)
            strangers = [await served.connect() for _ in range(4)]
            if is_late:
                for stranger in strangers:
                    await stranger.ask(GET)
            monkeypatch.setattr(unsigned, "KNOWN_FOR_S", 60)
            taken_s.clear()
            for stranger in strangers:
                stranger.send(GET)
            began_s = time.monotonic()
            assert (await signed.ask(SIGNED))[0] == 200, "the known do not rest"
            for stranger in strangers:
                assert (await stranger.reply())[0] == 200

            assert served.server.unsigned_time.rest_s(began_s, is_late=is_late) > 0
            rest_s = (LATE_REST if is_late else NEWCOMER_REST) * used_s
            assert min(later - earlier for earlier, later in pairwise(taken_s)) > rest_s - 0.002

    run(scenario)


def test_a_signed_newcomer_does_not_wait_for_the_rest_of_those_answered_unsigned(
    run: RunOnLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serving(judge) as served:
            late = await served.connect()
            await late.ask(GET)
            unsigned_time = served.server.unsigned_time
            now_s = time.monotonic()
            monkeypatch.setattr(unsigned, "REST_MAX_S", 60)
            unsigned_time.note_known(now_s)
            unsigned_time.charge(60, now_s, is_late=True)
            late.send(GET)
            newcomer = await served.connect()

            assert (await newcomer.ask(SIGNED))[0] == 200

            assert unsigned_time.rest_s(time.monotonic(), is_late=True) > 0
            assert served.server.strangers.is_waiting(is_late=True)

    run(scenario)


@pytest.mark.parametrize("clients", [1, 20])
def test_a_signed_request_waits_for_few_heads_of_strangers_however_many_there_are(
    run: RunOnLoop, monkeypatch: pytest.MonkeyPatch, clients: int
) -> None:
    monkeypatch.setattr(unsigned, "KNOWN_FOR_S", 60)
    monkeypatch.setattr(http_server, "time", CountedTime())  # only the bounds on numbers are seen
    pipelined = 20
    requests = pipelined * 30
    passes: dict[int, list[bytes]] = {}

    def strangers_taken() -> int:
        return sum(taken.count(b"/a") for taken in passes.values())

    async def scenario() -> None:
        def handle(arrived: list[HTTPRequest]) -> None:
            for request in arrived:
                passes.setdefault(served.passes, []).append(request.path)
                judge(request)

        async def ask_on(client: Client) -> None:
            while strangers_taken() < requests:
                assert (await client.ask(SIGNED))[0] == 200

        async with serving(handler=handle) as served:
            signed = [await served.connect() for _ in range(clients)]
            for client in signed * 2:  # known by the first request, and served by the second
                await client.ask(SIGNED)
            strangers = [await served.connect() for _ in range(requests // pipelined)]
            served.count_passes()
            passes.clear()
            for stranger in strangers:
                stranger.send(GET * pipelined)
            await asyncio.gather(*map(ask_on, signed))

    run(scenario)

    least = -(-PATIENT.unsigned_requests_per_pass // UNSIGNED_BUSY_PART)
    assert strangers_taken() == requests
    for taken in passes.values():
        known_taken = taken.count(b"/signed")
        assert taken[:known_taken] == [b"/signed"] * known_taken, "the signed are first"
        assert taken.count(b"/a") <= 2 * min(max(least, known_taken), PATIENT.unsigned_requests_per_pass)


def test_a_signed_request_waits_for_little_of_the_bodies_of_strangers(
    run: RunOnLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsigned, "KNOWN_FOR_S", 60)
    monkeypatch.setattr(http_server, "time", CountedTime())
    sizes: Counter[int] = Counter()
    body = bytes(1 << 20)

    async def scenario() -> None:
        async with serving(judge) as served:
            signed = await served.connect()
            for _ in range(2):
                await signed.ask(SIGNED)
            served.count_passes()
            read = served.server._read

            def counted(connection: Any, requests_max: int) -> int:
                taken = read(connection, requests_max)
                if connection.key is None:
                    sizes[served.passes] += taken
                return taken

            monkeypatch.setattr(served.server, "_read", counted)
            strangers = [await served.connect() for _ in range(20)]
            for stranger in strangers:
                stranger.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            while sum(sizes.values()) < len(strangers) * len(body):
                assert (await signed.ask(SIGNED))[0] == 200

    run(scenario)

    # All are newcomers until their bodies are there; the last one that is read may have had more to read.
    one_read = STALLED_UNREAD_BYTES_MAX + UNREAD_BYTES_MAX
    assert max(sizes.values()) <= UNSIGNED_PASS_BYTES_MAX // UNSIGNED_BUSY_PART + one_read


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_a_body_is_hashed_as_it_comes_in_where_admission_asks_for_it(run: RunOnLoop, framing: str) -> None:
    body = bytes(range(256)) * 2_000
    digests: list[str] = []

    def admit(request: HTTPRequest) -> None:
        request.digest = hashlib.sha256()

    def note(request: HTTPRequest) -> None:
        assert request.digest is not None
        digests.append(request.digest.hexdigest())
        request.respond(200, b"", b"")

    async def scenario() -> None:
        digests.clear()
        async with serving(note, admit=admit) as served:
            client = await served.connect()
            if framing == "length":
                client.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body))
                sent = body
            else:
                client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
                sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            for start in range(0, len(sent), 100_000):
                await client.writer.drain()
                await asyncio.sleep(0.002)
                client.send(sent[start : start + 100_000])

            assert (await client.reply())[0] == 200

        assert digests == [hashlib.sha256(body).hexdigest()]

    run(scenario)


def test_where_all_are_signed_the_longest_idle_gives_way_to_a_newcomer(
    run: RunOnLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "IDLE_MS_MIN", 1)

    async def scenario() -> None:
        limits = replace(PATIENT, connections_max=3, account_connections_percent=100, header_timeout_ms=40)
        async with serving(judge, limits) as served:
            idle, *others = [await served.connect() for _ in range(3)]
            for client in (idle, *others):
                await client.ask(SIGNED)
            server = served.server
            while not server.known.can_make_room():  # noqa: ASYNC110
                await asyncio.sleep(0.002)

            assert server.why_not_ready() is None
            newcomer = await served.connect()

            assert (await newcomer.ask(SIGNED))[0] == 200
            closed = [
                client for client in (idle, *others) if client.reader.at_eof() or await is_closed(client)
            ]
            assert len(closed) == 1
            assert served.events["closed_for_others"] == 1

    run(scenario)


async def is_closed(client: Client) -> bool:
    try:
        return (await client.ask(SIGNED))[0] != 200
    except (ConnectionError, asyncio.IncompleteReadError):
        return True


def test_a_connection_whose_next_request_is_on_its_way_is_not_closed_as_idle(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(judge) as served:
            client = await served.connect()
            await client.ask(SIGNED)
            (connection,) = served.server._open

            raw = client.writer.get_extra_info("socket")
            os.write(raw.fileno(), SIGNED)  # the loop has not read it yet

            assert not connection.close_idle()
            connection._activity_since_ms = -1e9
            connection.sweep(0.0)
            assert (await client.reply())[0] == 200
            assert connection.close_idle()
            assert await client.rest() == b""

    run(scenario)


def test_an_account_has_no_more_than_its_share_of_the_connections(run: RunOnLoop) -> None:
    def by_path(request: HTTPRequest) -> None:
        taken = request.vouch(request.path.decode())
        request.respond(200 if taken else 503, b"", b"")

    async def scenario() -> None:
        limits = replace(PATIENT, connections_max=10, account_connections_percent=30)
        async with serving(by_path, limits) as served:
            greedy = [await served.connect() for _ in range(5)]

            answers = [await client.ask(GET) for client in greedy]
            other = await (await served.connect()).ask(GET.replace(b"/a", b"/b"))

            assert [answer[0] for answer in answers] == [200, 200, 200, 503, 503]
            assert [answer[1].get(b"Connection") for answer in answers[2:]] == [None, b"close", b"close"]
            assert other[0] == 200
            assert (await greedy[0].ask(GET))[0] == 200

    run(scenario)


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something is so; what runs the scenario bounds the time."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def by_account(served: list[HTTPRequest]) -> Callable[[HTTPRequest], None]:
    """Return what takes a path as the account that signed, and lets what ends in `poll` wait."""

    def answer(request: HTTPRequest) -> None:
        account, _, what = request.path.decode().rpartition("/")
        if not request.vouch(account, account):
            request.respond(503, b"", b"")
        elif what == "poll":
            served.append(request)
            request.hurry_by(lambda: request.respond(200, b"", b"empty"))
        elif what == "work":
            served.append(request)
        else:
            request.respond(200, b"", b"")

    return answer


def asking(account: str, what: str) -> bytes:
    return f"GET /{account}/{what} HTTP/1.1\r\nHost: q\r\n\r\n".encode()


@pytest.mark.parametrize("attackers", ["ab", "abc"])
def test_accounts_that_take_all_connections_and_keep_them_busy_do_not_keep_another_out(
    run: RunOnLoop, attackers: str
) -> None:
    kept: list[HTTPRequest] = []

    async def scenario() -> None:
        limits = replace(PATIENT, connections_max=12)
        async with serving(by_account(kept), limits) as served:
            for number in range(12 // len(attackers)):
                for account in attackers:
                    client = await served.connect()
                    client.send(asking(account, "poll" if number % 2 else "work"))
            await until(lambda: len(kept) == 12)
            assert served.server.known._count_of_all == 12

            for _ in range(2):
                newcomer = await served.connect()
                assert (await newcomer.ask(asking("last", "quick")))[0] == 200
                # It has its place from now on.
                assert (await newcomer.ask(asking("last", "quick")))[0] == 200
                for request in kept:
                    connection: Any = request._connection
                    if connection is not None and connection.gives_way:
                        request.respond(200, b"", b"done")
                await until(lambda: served.server.connections <= 12)

            assert served.events["connection_refused"] == 0
            assert served.events["closed_for_others"] == 2

    run(scenario)


def test_what_gives_way_is_answered_and_closed_behind_its_answer(run: RunOnLoop) -> None:
    kept: list[HTTPRequest] = []

    async def scenario() -> None:
        async with serving(by_account(kept)) as served:
            polling, working, quick, pipelining = [await served.connect() for _ in range(4)]
            polling.send(asking("a", "poll"))
            working.send(asking("a", "work"))
            await quick.ask(asking("a", "quick"))
            pipelining.send(asking("a", "work"))
            await until(lambda: len(kept) == 3)
            connections: list[Any] = list(served.server.known._accounts["/a"].connections)

            pipelining.send(asking("a", "quick")[:-2])
            await until(lambda: any(one._unread for one in connections))
            for connection in connections:
                connection.give_way()

            for client, body in (
                (polling, b"empty"),
                (working, b"done"),
                (quick, b""),
                (pipelining, b"done"),
            ):
                if client is quick:
                    client.send(asking("a", "quick"))
                for request in kept:
                    if request.is_waiting:
                        request.respond(200, b"", b"done")
                status, headers, said = await client.reply()
                assert (status, headers[b"Connection"], said) == (200, b"close", body)
                assert await client.rest() == b""
            assert served.events["closed_for_others"] == 4

    run(scenario)


def test_what_gives_way_and_stalls_is_closed_in_a_while(
    run: RunOnLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "GIVE_WAY_MS", 20)

    async def scenario() -> None:
        limits = replace(PATIENT, header_timeout_ms=60_000, idle_timeout_ms=40, write_buffer_bytes_max=1)
        async with serving(by_account([]), replace(limits, idle_timeout_ms=100_000)) as served:
            served.server._sweep_interval_s = 0.01
            idle, in_head, in_body, unread = clients = [await served.connect() for _ in range(4)]
            for client in clients:
                await client.ask(asking("a", "quick"))
            in_head.send(GET[:10])
            in_body.send(HEAD + b"Content-Length: 10\r\n\r\n12")
            connections: list[Any] = list(served.server.known._accounts["/a"].connections)
            await until(lambda: connections[2]._body is not None and bool(connections[1]._unread))
            connections[3].pause_writing()

            for connection in connections:
                connection.give_way()

            assert await idle.rest() == b""
            for client in (in_head, in_body):
                status, headers, _ = await client.reply()
                assert (status, headers[b"Connection"]) == (503, b"close")
            assert served.events["closed_for_others"] == 3
            # An answer that is read slowly is sent to its end; other bounds hold for that.
            connections[3].resume_writing()
            status, headers, _ = await unread.ask(asking("a", "quick"))
            assert (status, headers[b"Connection"]) == (200, b"close")

    run(scenario)


def has_read(connection: Any, body_bytes: int) -> bool:
    return connection._body is not None and bool(connection._body.size == body_bytes)


def test_a_body_that_comes_in_is_taken_to_its_end_where_its_connection_gives_way(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(by_account([]), PATIENT) as served:
            client = await served.connect()
            await client.ask(asking("a", "quick"))
            client.send(b"POST /a/quick HTTP/1.1\r\nHost: q\r\nContent-Length: 4\r\n\r\n")
            connection: Any = next(iter(served.server.known._accounts["/a"].connections))
            connection.give_way()

            for number in range(3):
                client.send(b"x")
                await until(partial(has_read, connection, number + 1))
                now_ms = served.server.clock_ms + number * 2 * http_connection.GIVE_WAY_MS
                connection.sweep(now_ms)
            client.send(b"x")
            status, headers, _ = await client.reply()

            assert (status, headers[b"Connection"]) == (200, b"close")

    run(scenario)


def test_a_poll_that_comes_when_its_connection_gives_way_already_is_told_to_hurry(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(by_account([]), PATIENT) as served:
            client = await served.connect()
            await client.ask(asking("a", "quick"))
            connection: Any = next(iter(served.server.known._accounts["/a"].connections))
            connection.give_way()

            status, headers, body = await client.ask(asking("a", "poll"))

            assert (status, headers[b"Connection"], body) == (200, b"close", b"empty")

    run(scenario)


def test_a_sweep_over_many_connections_is_done_in_turns(
    run: RunOnLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "SWEPT_PER_TURN", 2)

    async def scenario() -> None:
        async with serving(judge, replace(PATIENT, idle_timeout_ms=20)) as served:
            clients = [await served.connect() for _ in range(5)]

            for client in clients:
                assert await client.rest() == b""

            assert served.events["timeout_idle"] == 5

    run(scenario)


def test_clients_that_go_at_once_are_seen_off_a_few_in_a_pass_behind_what_is_answered(
    run: RunOnLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "ENDS_PER_PASS", 4)

    async def scenario() -> None:
        async with serving(judge) as served:
            served.count_passes()
            signed = await served.connect()
            await signed.ask(SIGNED)
            leaving = [await served.connect() for _ in range(50)]
            while len(served.server._open) < 51:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            ends: Counter[int] = Counter()
            order: list[bool] = []
            take_turn = HTTPConnection.take_turn

            def counted(connection: HTTPConnection, pass_ms: float) -> None:
                is_leaving = connection.key is None
                ends[served.passes] += is_leaving
                order.append(is_leaving)
                take_turn(connection, pass_ms)

            monkeypatch.setattr(HTTPConnection, "take_turn", counted)
            signed.send(SIGNED)
            for client in leaving:
                client.close()
            assert (await signed.reply())[0] == 200
            while len(served.server._open) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

            assert sum(ends.values()) == 50
            assert max(ends.values()) <= 4
            assert order.index(False) < 50, "who asks does not wait for all who go"

    run(scenario)


def test_an_end_of_one_that_waits_for_an_answer_is_taken_up_with_its_answer(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            client = await served.connect()
            client.send(GET)
            (request,) = await served.keep(1)
            client.writer.write_eof()
            await asyncio.sleep(0)

            request.respond(200, b"", b"late")

            assert (await client.reply())[2] == b"late"
            assert await client.rest() == b""

    run(scenario)


@pytest.mark.parametrize("target", [b"/%b", b"/%b?Action=ListQueues", b"http://q/%b"])
def test_a_path_is_refused_before_it_is_decoded_when_it_is_too_long(run: RunOnLoop, target: bytes) -> None:
    async def scenario() -> None:
        async with serving(judge) as served:
            client = await served.connect()
            fits = target % (b"%" * (PATH_BYTES_MAX - 1))
            first = await client.ask(b"GET " + fits + b" HTTP/1.1\r\nHost: q\r\n\r\n")
            too_long = target % (b"%" * PATH_BYTES_MAX)
            second = await client.ask(b"GET " + too_long + b" HTTP/1.1\r\nHost: q\r\n\r\n")
            with_query = b"GET /?" + b"%" * 10_000 + b" HTTP/1.1\r\nHost: q\r\n\r\n"

            assert (first[0], second[0], second[1][b"Connection"]) == (200, 414, b"close")
            assert (await (await served.connect()).ask(with_query))[0] == 200

    run(scenario)


def test_a_new_client_whose_request_is_not_read_yet_is_not_closed_for_others(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving(judge) as served:
            client = await served.connect()
            while not served.server._open:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            (connection,) = served.server._open
            assert connection.can_be_closed()

            connection.data_received(SIGNED)

            assert not connection.can_be_closed()
            assert (await client.reply())[0] == 200

    run(scenario)


def test_an_account_with_many_connections_delays_the_request_of_another_by_one_turn(
    run: RunOnLoop,
) -> None:
    order: list[str] = []

    def by_path(request: HTTPRequest) -> None:
        account = request.path.decode()
        order.append(account)
        request.vouch(account, account)
        request.respond(200, b"", b"")

    async def scenario() -> None:
        async with serving(by_path) as served:
            heavy = [await served.connect() for _ in range(60)]
            light = await served.connect()
            for client in heavy:
                await client.ask(GET)
            await light.ask(GET.replace(b"/a", b"/b"))
            order.clear()

            # All is there before the loop looks: it does not run in between.
            for client in heavy:
                os.write(client.writer.get_extra_info("socket").fileno(), GET)
            os.write(light.writer.get_extra_info("socket").fileno(), GET.replace(b"/a", b"/b"))
            for client in (*heavy, light):
                assert (await client.reply())[0] == 200

            assert sorted(order) == ["/a"] * 60 + ["/b"]
            assert order.index("/b") <= 2 * FLOW_REQUESTS_MAX

    run(scenario)


def test_requests_that_were_sent_together_count_one_by_one_in_the_turn_of_an_account(run: RunOnLoop) -> None:
    order: list[str] = []

    def by_path(request: HTTPRequest) -> None:
        account = request.path.decode()
        order.append(account)
        request.vouch(account, account)
        request.respond(200, b"", b"")

    async def scenario() -> None:
        async with serving(by_path, replace(PATIENT, pipeline_max=32)) as served:
            heavy = [await served.connect() for _ in range(3)]
            light = await served.connect()
            for client in heavy:
                await client.ask(GET)
            await light.ask(GET.replace(b"/a", b"/b"))
            order.clear()

            # All is there before the loop looks: it does not run in between.
            for client in heavy:
                os.write(client.writer.get_extra_info("socket").fileno(), GET * 32)
            os.write(light.writer.get_extra_info("socket").fileno(), GET.replace(b"/a", b"/b"))
            for client in (*heavy * 32, light):
                assert (await client.reply())[0] == 200

            assert sorted(order) == ["/a"] * 96 + ["/b"]
            assert order.index("/b") <= FLOW_REQUESTS_MAX

    run(scenario)
