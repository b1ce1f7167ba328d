"""Whatever bytes arrive at an end of a connection, and however they are cut: no exception, no hang, one meaning."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, cast

from harness.waiting import PATIENCE_S
from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.core.values.errors import InternalFailure
from quaymaster.net.rpc import IncomingCall, RPCClient, RPCLimits, RPCServer
from quaymaster.protocol.rpc.error_codec import encode_error
from quaymaster.protocol.rpc.frames import (
    CANCEL,
    ERROR,
    GOODBYE,
    HELLO,
    NOTICE,
    PING,
    PONG,
    REPLY,
    REQUEST,
    Frame,
    FrameReader,
    Hello,
    render_call_header,
    render_frame,
    render_hello,
)

BROKER = Hello(cell="eu1", role="broker", node="b1")
FRONT_END = Hello(cell="eu1", role="frontend", node="f1")
LIMITS = RPCLimits(calls_max=3, frame_bytes_max=1000)
LONG_MS = 20_000

well_formed = st.one_of(
    st.builds(
        lambda kind, number, method, body: render_frame(
            1, kind, number, render_call_header(method, 9, ""), body
        ),
        st.sampled_from([REQUEST, NOTICE]),
        st.integers(0, 5),
        st.sampled_from(["echo", "keep", "many", "fail", "none"]),
        st.binary(max_size=20),
    ),
    st.builds(lambda number: render_frame(1, CANCEL, number), st.integers(0, 5)),
    st.sampled_from([render_frame(1, PING, 0), render_frame(1, PONG, 0)]),
).map(lambda pieces: b"".join(pieces))
anything = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda *parts: b"".join(render_frame(*parts)),
        st.integers(0, 2),
        st.integers(0, 12),
        st.integers(0, 9),
        st.binary(max_size=20),
        st.binary(max_size=1100),
    ),
    st.just(render_hello(FRONT_END)),
    well_formed,
)


class RecordingTransport:
    """Keeps what is written; what it is told about reading, it ignores."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = False

    def write(self, data: bytes) -> None:
        assert not self.closing, "nothing is written to a closed connection"
        self.written += data

    def writelines(self, parts: Iterable[bytes]) -> None:
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


def run(scenario: Callable[[], Awaitable[Any]]) -> Any:
    """Run a scenario; an exception that the event loop would only have logged fails it."""

    async def watched() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        async with asyncio.timeout(PATIENCE_S):
            return await scenario()

    problems: list[dict[str, Any]] = []
    result = asyncio.run(watched())
    assert problems == []
    return result


def feed_server(
    pieces: list[bytes], calls_max: int = LIMITS.calls_max
) -> tuple[list[tuple[object, ...]], bytes, bool]:
    """Feed `pieces` to a new connection; return what its handlers saw, what it wrote, whether it closed."""

    async def scenario() -> tuple[list[tuple[object, ...]], bytes, bool]:
        seen: list[tuple[object, ...]] = []
        kept: list[IncomingCall] = []

        def note(call: IncomingCall) -> None:
            seen.append((call.method, call.id, call.body))

        def echo(call: IncomingCall) -> None:
            note(call)
            call.reply(call.body)

        def keep(call: IncomingCall) -> None:
            note(call)
            kept.append(call)
            call.on_cancel = lambda: seen.append(("cancelled", call.id))

        def fail(call: IncomingCall) -> None:
            note(call)
            raise InternalFailure

        def many(calls: list[IncomingCall]) -> None:
            for call in calls:
                echo(call)

        server = RPCServer(
            {"echo": echo, "keep": keep, "fail": fail},
            BROKER,
            batch_handlers={"many": many},
            limits=replace(LIMITS, calls_max=calls_max),
        )
        connection = server.accept()
        transport = RecordingTransport()
        connection.connection_made(cast(asyncio.Transport, transport))
        for piece in pieces:
            if not transport.closing:
                connection.data_received(piece)
                await asyncio.sleep(0)
        written, closed = transport.written, transport.closing
        for call in kept:
            call.reply(b"late")
        await asyncio.sleep(0)
        connection.connection_lost(None)
        assert server.calls_active == 0
        await server.close()
        return seen, written, closed

    return cast("tuple[list[tuple[object, ...]], bytes, bool]", run(scenario))


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted(place % (len(stream) + 1) for place in cuts)
    return [
        stream[start:end]
        for start, end in zip([0, *places], [*places, len(stream)], strict=True)
        if end > start
    ]


def frames_in(written: bytes) -> list[Frame]:
    reader = FrameReader()
    frames = reader.feed(written)
    reader.version, reader.frame_bytes_max = 1, 1 << 20
    frames += reader.feed(b"")
    assert reader.refusal is None
    assert not reader.is_torn
    return frames


@settings(max_examples=150)
@given(st.lists(anything, max_size=8), st.lists(st.integers(0, 5000), max_size=5), st.booleans())
def test_no_bytes_harm_a_server(sent: list[bytes], cuts: list[int], greets: bool) -> None:
    stream = (render_hello(FRONT_END) if greets else b"") + b"".join(sent)

    _, written, closed = feed_server(cut(stream, cuts))

    frames = frames_in(written)
    assert closed == (bool(frames) and frames[-1][0] == GOODBYE) or b"\xa4code" in stream
    assert {frame[0] for frame in frames} <= {HELLO, GOODBYE, REPLY, ERROR, PONG}


spoken = st.lists(
    st.tuples(
        st.sampled_from([REQUEST, REQUEST, REQUEST, NOTICE, CANCEL, PING]),
        st.sampled_from(["echo", "keep", "many", "fail", "none"]),
        st.binary(max_size=20),
        st.integers(0, 9),
    ),
    max_size=10,
)


@settings(max_examples=100)
@given(spoken, st.lists(st.integers(0, 5000), max_size=6))
def test_calls_mean_the_same_however_their_bytes_are_cut(
    sent: list[tuple[int, str, bytes, int]], cuts: list[int]
) -> None:
    stream = render_hello(FRONT_END)
    for number, (kind, method, body, other) in enumerate(sent):
        # Ids are never used again; a CANCEL is about any call, before or to come.
        header = render_call_header(method, 9, "") if kind in (REQUEST, NOTICE) else b""
        stream += b"".join(render_frame(1, kind, other if kind == CANCEL else number, header, body))

    whole = feed_server([stream], calls_max=100)
    pieces = feed_server(cut(stream, cuts), calls_max=100)

    assert pieces[0] == whole[0]
    assert sorted(frames_in(pieces[1])) == sorted(frames_in(whole[1]))
    assert pieces[2] == whole[2]


answers = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda kind, number, body: b"".join(render_frame(1, kind, number, b"", body)),
        st.integers(1, 10),
        st.integers(0, 4),
        st.one_of(st.binary(max_size=20), st.just(encode_error(InternalFailure()))),
    ),
    st.just(render_hello(BROKER)),
)


@settings(max_examples=150)
@given(st.lists(answers, max_size=8), st.lists(st.integers(0, 5000), max_size=5), st.booleans())
def test_no_bytes_harm_a_client_and_each_call_is_answered_once(
    sent: list[bytes], cuts: list[int], greets: bool
) -> None:
    stream = (render_hello(BROKER) if greets else b"") + b"".join(sent)

    async def scenario() -> list[Any]:
        transport = RecordingTransport()
        made: list[asyncio.Protocol] = []
        refused = False

        async def connect(protocol: Callable[[], asyncio.Protocol]) -> None:
            if refused:
                raise ConnectionRefusedError
            made.append(protocol())
            made[0].connection_made(cast(asyncio.Transport, transport))

        client = RPCClient(("test", 1), FRONT_END, connector=connect)
        results: list[Any] = []
        for number in (1, 2, 3):
            client.call("echo", b"", LONG_MS, lambda result, n=number: results.append(n))  # type: ignore[misc]
        while not made:  # noqa: ASYNC110 -- the client makes it when it comes to it
            await asyncio.sleep(0)
        for piece in cut(stream, cuts):
            if not transport.closing:
                made[0].data_received(piece)
                await asyncio.sleep(0)
        refused = True
        made[0].connection_lost(None)
        while len(results) < 3:  # noqa: ASYNC110 -- once its attempt to connect again has failed
            await asyncio.sleep(0.001)
        await client.close()
        return results

    assert sorted(run(scenario)) == [1, 2, 3]
