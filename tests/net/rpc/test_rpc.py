"""Calls between roles, seen from both ends: over sockets on uvloop and plain asyncio, and over the in-memory twin."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import uvloop
from harness.short_paths import short_directory
from harness.waiting import PATIENCE_S

from quaymaster.core.values.errors import (
    AccessDenied,
    ConnectionLost,
    InternalFailure,
    NotLeader,
    Overloaded,
    QueueDoesNotExist,
    Timeout,
    Unreachable,
    UnsupportedOperation,
)
from quaymaster.net.rpc import CallHandler, IncomingCall, RPCClient, RPCConnection, RPCLimits, RPCServer
from quaymaster.net.rpc.memory import MemoryNetwork
from quaymaster.protocol.rpc.frames import (
    GOODBYE,
    HELLO,
    NOTICE,
    REPLY,
    REQUEST,
    FrameReader,
    Hello,
    parse_goodbye,
    parse_hello,
    render_call_header,
    render_frame,
    render_hello,
)

BROKER = Hello(cell="eu1", role="broker", node="b1")
FRONT_END = Hello(cell="eu1", role="frontend", node="f1")
LIMITS = RPCLimits(reconnect_min_ms=1, reconnect_max_ms=20, connect_timeout_ms=10_000)
LONG_MS = 20_000

Scenario = Callable[["Cell"], Awaitable[None]]
Run = Callable[[Scenario], None]


class Cell:
    """Servers and clients of one test, all closed at its end; in memory or over loopback."""

    def __init__(self, *, in_memory: bool) -> None:
        self.network = MemoryNetwork() if in_memory else None
        self._servers: list[RPCServer] = []
        self._clients: list[RPCClient] = []

    async def serve(self, server: RPCServer, address: tuple[str, int] | None = None) -> tuple[str, int]:
        self._servers.append(server)
        if self.network is None:
            return await server.start(*(address or ("127.0.0.1", 0)))
        address = address or ("node", len(self._servers))
        self.network.listen(address, server)
        return address

    def client(self, address: tuple[str, int], hello: Hello = FRONT_END, **options: Any) -> RPCClient:
        options.setdefault("limits", LIMITS)
        connector = self.network.connector(address) if self.network is not None else None
        client = RPCClient(address, hello, connector=connector, **options)
        self._clients.append(client)
        return client

    async def stop(self, server: RPCServer) -> None:
        """End a server as its process's end would."""
        if self.network is not None:
            self.network.forget(server.address)
        await server.close()

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for server in self._servers:
            await server.close()


def _runner(transport: str) -> Run:
    factory = uvloop.new_event_loop if transport == "uvloop" else asyncio.new_event_loop

    def run_scenario(scenario: Scenario) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_S):
                cell = Cell(in_memory=transport == "memory")
                try:
                    await scenario(cell)
                finally:
                    await cell.close()

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    return run_scenario


@pytest.fixture(params=["uvloop", "asyncio", "memory"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a scenario on the transport under test, in bounded time."""
    return _runner(request.param)


@pytest.fixture(params=["uvloop", "asyncio"])
def run_on_sockets(request: pytest.FixtureRequest) -> Run:
    """Run a scenario on sockets only."""
    return _runner(request.param)


run_in_memory = _runner("memory")


def echo(call: IncomingCall) -> None:
    call.reply(call.body)


def keep_body(seen: list[bytes]) -> CallHandler:
    """Return a handler that notes what it is sent."""

    def handle(call: IncomingCall) -> None:
        seen.append(call.body)
        call.reply()

    return handle


async def until(is_so: Callable[[], object]) -> None:
    """Wait for what another callback of this loop will make true; the scenario's time is bounded."""
    while not is_so():  # noqa: ASYNC110 -- what is waited for is in the product, which has no event for tests
        await asyncio.sleep(0.001)


# Calls and answers.


def test_a_call_is_answered_by_its_handler(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        client = cell.client(await cell.serve(RPCServer({"echo": echo}, BROKER)))

        bodies = [b"", b"x", bytes(20_000), bytes(range(256)) * 12_000]

        assert [await client.ask("echo", body, LONG_MS) for body in bodies] == bodies
        assert client.peer == BROKER
        assert client.version == 1

    run(scenario)


def test_calls_go_over_a_unix_socket_that_only_its_user_may_use(run_on_sockets: Run) -> None:
    async def scenario(cell: Cell) -> None:
        with short_directory() as directory:
            address = await cell.serve(RPCServer({"echo": echo}, BROKER), (f"unix:{directory}/s", 0))
            client = cell.client(address)

            assert await client.ask("echo", b"hello", LONG_MS) == b"hello"
            assert (directory / "s").stat().st_mode & 0o777 == 0o600

    run_on_sockets(scenario)


def test_many_calls_are_in_flight_and_each_gets_its_own_answer(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        kept: list[IncomingCall] = []
        client = cell.client(await cell.serve(RPCServer({"keep": kept.append}, BROKER)))
        answers: dict[int, Any] = {}
        for number in range(500):
            client.call("keep", b"%d" % number, LONG_MS, lambda result, n=number: answers.update({n: result}))  # type: ignore[misc]
        await until(lambda: len(kept) == 500)

        for call in reversed(kept):
            call.reply(call.body)
        await until(lambda: len(answers) == 500)

        assert answers == {number: b"%d" % number for number in range(500)}

    run(scenario)


def test_a_handler_knows_who_asks_and_how_long_they_wait(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        seen: list[Any] = []

        def handle(call: IncomingCall) -> None:
            seen.append((call.peer, call.method, call.trace, call.version, 0 < call.deadline_ms <= 7_000))
            call.reply()

        client = cell.client(await cell.serve(RPCServer({"who": handle}, BROKER)))

        await client.ask("who", b"", 7_000, trace="r-1")

        assert seen == [(FRONT_END, "who", "r-1", 1, True)]

    run(scenario)


def test_a_slow_call_is_logged_with_its_request_unless_it_was_to_wait(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(call: IncomingCall) -> None:
        if call.method == "polls":
            call.patience_ms = LONG_MS
        call.reply()

    async def scenario(cell: Cell) -> None:
        handlers: dict[str, CallHandler] = {"polls": answer, "sends": answer}
        client = cell.client(
            await cell.serve(RPCServer(handlers, BROKER, limits=replace(LIMITS, slow_ms=-1)))
        )

        await client.ask("sends", b"", LONG_MS)  # for no request
        await client.ask("polls", b"", LONG_MS, trace="r-1")
        await client.ask("sends", b"", LONG_MS, trace="r-2")

    with caplog.at_level(logging.WARNING, "quaymaster"):
        run(scenario)

    fields = [vars(record)["fields"] for record in caplog.records if record.message == "call was slow"]
    assert [(each["method"], each["request"]) for each in fields] == [("sends", "r-2")]


def test_a_struct_is_answered_as_message_pack(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        client = cell.client(await cell.serve(RPCServer({"who": lambda call: call.reply(BROKER)}, BROKER)))

        assert msgspec.msgpack.decode(await client.ask("who", b"", LONG_MS), type=Hello) == BROKER

    run(scenario)


def test_errors_are_raised_as_they_were(run: Run) -> None:
    def refuse(call: IncomingCall) -> None:
        raise QueueDoesNotExist

    def redirect(call: IncomingCall) -> None:
        call.fail(NotLeader("10.0.0.2:9400"))

    def stumble(call: IncomingCall) -> None:
        raise ZeroDivisionError

    async def scenario(cell: Cell) -> None:
        handlers: dict[str, CallHandler] = {"refuse": refuse, "redirect": redirect, "stumble": stumble}
        client = cell.client(await cell.serve(RPCServer(handlers, BROKER)))

        with pytest.raises(QueueDoesNotExist):
            await client.ask("refuse", b"", LONG_MS)
        with pytest.raises(NotLeader) as redirected:
            await client.ask("redirect", b"", LONG_MS)
        assert redirected.value.leader_hint == "10.0.0.2:9400"
        with pytest.raises(InternalFailure):
            await client.ask("stumble", b"", LONG_MS)
        with pytest.raises(UnsupportedOperation, match="eu1/broker/b1 does not know the method dance"):
            await client.ask("dance", b"", LONG_MS)

    run(scenario)


def test_a_method_is_called_by_the_roles_it_is_for_and_by_no_other(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        seen: list[tuple[str, str]] = []
        reasons: list[str] = []

        def note(call: IncomingCall) -> None:
            seen.append((call.peer.role, call.method))
            call.reply()

        def note_all(calls: list[IncomingCall]) -> None:
            for call in calls:
                note(call)

        server = RPCServer(
            {"any": note, "drop": note},
            BROKER,
            batch_handlers={"replicate": note_all},
            callers={"drop": ("manager",), "replicate": ("broker",)},
        )
        address = await cell.serve(server)
        manager = cell.client(address, Hello("eu1", "manager", "m1"))
        front_end = cell.client(address, on_closed=reasons.append)
        await manager.ask("drop", b"", LONG_MS)
        await front_end.ask("any", b"", LONG_MS)
        for method in ("drop", "replicate"):
            with pytest.raises(AccessDenied, match=f"eu1/frontend/f1 may not call {method}"):
                await front_end.ask(method, b"", LONG_MS)
        with pytest.raises(UnsupportedOperation):
            await front_end.ask("none", b"", LONG_MS)
        await front_end.ask("any", b"", LONG_MS)

        front_end.notify("replicate", b"")  # which cannot be answered
        await until(lambda: reasons)

        assert seen == [("manager", "drop"), ("frontend", "any"), ("frontend", "any")]
        assert reasons == ["refused by the peer: eu1/frontend/f1 may not call replicate"]

    run(scenario)


def test_notices_arrive_in_order_among_the_calls(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        seen: list[bytes] = []

        def note(call: IncomingCall) -> None:
            seen.append(call.body)
            assert call.deadline_ms == 0
            call.reply(b"nobody waits")

        handlers: dict[str, CallHandler] = {
            "note": note,
            "call": keep_body(seen),
        }
        client = cell.client(await cell.serve(RPCServer(handlers, BROKER)))

        for number in range(100):
            assert client.notify("note", b"n%d" % number)
            client.call("call", b"c%d" % number, LONG_MS, lambda result: None)
        await client.ask("call", b"last", LONG_MS)

        assert seen == [b"%c%d" % (kind, n) for n in range(100) for kind in b"nc"] + [b"last"]

    run(scenario)


def test_a_server_gives_notices_to_its_clients(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        connected: list[RPCConnection] = []
        server = RPCServer({"echo": echo}, BROKER, on_connected=connected.append)
        seen: list[tuple[str, bytes, Hello]] = []
        client = cell.client(
            await cell.serve(server),
            handlers={"moved": lambda call: seen.append((call.method, call.body, call.peer))},
        )
        client.connect()
        await until(lambda: connected)

        assert connected[0].notify("moved", b"j1")
        assert connected[0].notify("unknown", b"")
        await until(lambda: seen)

        assert seen == [("moved", b"j1", BROKER)]
        assert server.connections == connected

    run(scenario)


def test_calls_that_came_together_are_handed_over_together_and_in_order(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        seen: list[list[bytes]] = []

        def batch(calls: list[IncomingCall]) -> None:
            seen.append([call.body for call in calls])
            for call in calls:
                call.reply(call.body)

        def single(call: IncomingCall) -> None:
            seen.append([call.body])
            call.reply()

        server = RPCServer({"one": single}, BROKER, batch_handlers={"many": batch})
        client = cell.client(await cell.serve(server))
        await client.ask("one", b"warm", LONG_MS)
        answers: list[Any] = []
        for method, body in [("many", b"1"), ("many", b"2"), ("one", b"3"), ("many", b"4"), ("many", b"5")]:
            client.call(method, body, LONG_MS, answers.append)
        await until(lambda: len(answers) == 5)

        assert seen == [[b"warm"], [b"1", b"2"], [b"3"], [b"4", b"5"]]

    run(scenario)


def test_a_batch_handler_that_fails_fails_its_calls_only(run: Run) -> None:
    def batch(calls: list[IncomingCall]) -> None:
        calls[0].reply(b"done")
        raise ZeroDivisionError

    async def scenario(cell: Cell) -> None:
        client = cell.client(
            await cell.serve(RPCServer({"echo": echo}, BROKER, batch_handlers={"many": batch}))
        )
        await client.ask("echo", b"", LONG_MS)
        answers: list[Any] = []
        for method in ("many", "many", "echo"):
            client.call(method, b"x", LONG_MS, answers.append)
        await until(lambda: len(answers) == 3)

        assert (answers[0], type(answers[1]), answers[2]) == (b"done", InternalFailure, b"x")

    run(scenario)


# Giving up.


def test_a_cancelled_call_is_not_answered_and_its_handler_is_told(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        kept: list[IncomingCall] = []
        told: list[str] = []

        def keep(call: IncomingCall) -> None:
            call.on_cancel = lambda: told.append(call.method)
            kept.append(call)

        server = RPCServer({"keep": keep, "echo": echo}, BROKER)
        client = cell.client(await cell.serve(server))
        answers: list[Any] = []
        handle = client.call("keep", b"", LONG_MS, answers.append)
        await until(lambda: kept)

        handle.cancel()
        handle.cancel()
        await until(lambda: told)
        kept[0].reply(b"too late")
        await client.ask("echo", b"", LONG_MS)

        assert (told, answers) == (["keep"], [])
        assert not kept[0].is_waiting
        assert not client.calls
        assert server.calls_active == 0

    run(scenario)


def test_a_call_cancelled_before_it_was_sent_is_never_sent(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        seen: list[bytes] = []
        server = RPCServer({"see": keep_body(seen)}, BROKER)
        client = cell.client(await cell.serve(server))

        client.call("see", b"cancelled", LONG_MS, lambda result: None).cancel()
        await client.ask("see", b"sent", LONG_MS)

        assert seen == [b"sent"]

    run(scenario)


def test_a_call_out_of_time_fails_and_its_handler_is_told(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        kept: list[IncomingCall] = []
        told: list[bool] = []

        def keep(call: IncomingCall) -> None:
            call.on_cancel = lambda: told.append(True)
            kept.append(call)

        client = cell.client(await cell.serve(RPCServer({"keep": keep, "echo": echo}, BROKER)))
        long_wait: list[Any] = []
        client.call("keep", b"", LONG_MS, long_wait.append)

        with pytest.raises(Timeout):
            await client.ask("keep", b"", 50)
        await until(lambda: told)

        assert await client.ask("echo", b"alive", LONG_MS) == b"alive"
        assert long_wait == []
        assert kept[1].deadline_ms == 0

    run(scenario)


def test_an_asking_coroutine_that_is_cancelled_cancels_its_call(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        kept: list[IncomingCall] = []
        server = RPCServer({"keep": kept.append}, BROKER)
        client = cell.client(await cell.serve(server))
        asking = asyncio.create_task(client.ask("keep", b"", LONG_MS))
        await until(lambda: kept)

        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: not kept[0].is_waiting)

        assert server.calls_active == 0
        assert kept[0].deadline_ms == 0, "nobody waits, however much time is left"

    run(scenario)


# Losing the connection.


def test_a_lost_connection_is_told_at_once_and_what_was_sent_has_an_unknown_outcome(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        kept: list[IncomingCall] = []
        told: list[bool] = []

        def keep(call: IncomingCall) -> None:
            call.on_cancel = lambda: told.append(True)
            kept.append(call)

        server = RPCServer({"keep": keep}, BROKER)
        events: list[Any] = []
        client = cell.client(await cell.serve(server), on_closed=lambda reason: events.append("closed"))
        client.call("keep", b"", LONG_MS, lambda result: events.append(type(result)))
        await until(lambda: kept)

        await cell.stop(server)
        await until(lambda: len(events) == 2)

        assert events == ["closed", ConnectionLost]
        assert told == [True]
        kept[0].reply(b"nobody is there")

    run(scenario)


def test_a_call_to_nobody_fails_at_once_and_says_that_nothing_happened(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        server = RPCServer({"echo": echo}, BROKER)
        address = await cell.serve(server)
        await cell.stop(server)
        client = cell.client(
            address, limits=replace(LIMITS, reconnect_min_ms=10_000, reconnect_max_ms=10_000)
        )

        for _ in range(2):
            with pytest.raises(Unreachable, match="cannot be reached"):
                await client.ask("echo", b"", LONG_MS)
        assert not client.notify("echo", b"")

    run(scenario)


def test_a_client_connects_again_when_its_server_is_back(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        first = RPCServer({"echo": echo}, BROKER)
        address = await cell.serve(first)
        events: list[str] = []
        client = cell.client(
            address,
            on_connected=lambda peer: events.append(peer.node),
            on_closed=lambda reason: events.append("closed"),
        )
        await client.ask("echo", b"", LONG_MS)
        await cell.stop(first)
        await until(lambda: len(events) == 2)

        await cell.serve(RPCServer({"echo": echo}, replace_node("b2")), address)
        await until(lambda: client.is_connected)

        assert await client.ask("echo", b"again", LONG_MS) == b"again"
        assert events == ["b1", "closed", "b2"]

    run(scenario)


def replace_node(node: str) -> Hello:
    return msgspec.structs.replace(BROKER, node=node)


def test_a_closed_client_calls_nobody(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        kept: list[IncomingCall] = []
        client = cell.client(await cell.serve(RPCServer({"keep": kept.append}, BROKER)))
        answers: list[Any] = []
        client.call("keep", b"", LONG_MS, answers.append)
        await until(lambda: kept)

        await client.close()

        assert [type(answer) for answer in answers] == [ConnectionLost]
        with pytest.raises(Unreachable, match="the client was closed"):
            await client.ask("keep", b"", LONG_MS)
        never = cell.client(("127.0.0.1", 1))
        await never.close()
        with pytest.raises(Unreachable):
            await never.ask("keep", b"", LONG_MS)

    run(scenario)


def test_calls_that_never_came_to_be_sent_say_so_when_their_time_is_over() -> None:
    async def scenario(cell: Cell) -> None:
        assert cell.network is not None
        address = await cell.serve(RPCServer({"echo": echo}, BROKER))
        cell.network.cut(address)
        client = cell.client(address, limits=replace(LIMITS, connect_timeout_ms=10_000))

        with pytest.raises(Unreachable):
            await client.ask("echo", b"", 30)

        assert client._unsent_bytes == 0

    run_in_memory(scenario)


def test_a_peer_that_dies_without_a_word_is_noticed_by_both_ends() -> None:
    async def scenario(cell: Cell) -> None:
        assert cell.network is not None
        limits = replace(LIMITS, silence_ms=100)
        ended: list[tuple[str, str]] = []
        server = RPCServer(
            {"keep": lambda call: None},
            BROKER,
            limits=limits,
            on_closed=lambda connection, reason: ended.append(("server", reason)),
        )
        address = await cell.serve(server)
        client = cell.client(
            address, limits=limits, on_closed=lambda reason: ended.append(("client", reason))
        )
        answers: list[Any] = []
        client.call("keep", b"", LONG_MS, answers.append)
        await until(lambda: server.calls_active)

        cell.network.cut(address)
        await until(lambda: len(ended) == 2)

        assert sorted(ended) == [("client", "silent for 100 ms"), ("server", "silent for 100 ms")]
        assert [type(answer) for answer in answers] == [ConnectionLost]
        cell.network.heal(address)
        await until(lambda: client.is_connected)

    run_in_memory(scenario)


def test_an_idle_connection_stays_while_its_peer_is_there(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        limits = replace(LIMITS, silence_ms=60)
        ended: list[str] = []
        server = RPCServer({"echo": echo}, BROKER, limits=replace(LIMITS, silence_ms=10_000))
        client = cell.client(await cell.serve(server), limits=limits, on_closed=ended.append)
        await client.ask("echo", b"", LONG_MS)

        await asyncio.sleep(0.5)

        assert ended == []
        assert client.is_connected

    run(scenario)


def test_a_pause_of_our_own_is_not_taken_for_silence_of_the_peer(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        limits = replace(LIMITS, silence_ms=100)
        ended: list[str] = []
        server = RPCServer({"echo": echo}, BROKER, limits=limits)
        client = cell.client(await cell.serve(server), limits=limits, on_closed=ended.append)
        await client.ask("echo", b"", LONG_MS)

        for _ in range(3):
            time.sleep(0.3)  # noqa: ASYNC251 -- the pause that is meant
            await asyncio.sleep(0)
        await client.ask("echo", b"", LONG_MS)

        assert ended == []

    run(scenario)


# Bounds.


def test_a_server_refuses_more_calls_of_a_connection_than_it_may_have_in_progress(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        kept: list[IncomingCall] = []
        server = RPCServer({"keep": kept.append}, BROKER, limits=replace(LIMITS, calls_max=3))
        client = cell.client(await cell.serve(server))
        answers: list[Any] = []
        for _ in range(5):
            client.call("keep", b"", LONG_MS, answers.append)
        await until(lambda: len(answers) == 2)

        assert [type(answer) for answer in answers] == [Overloaded] * 2
        kept[0].reply(b"room")
        await until(lambda: len(answers) == 3)
        client.call("keep", b"", LONG_MS, answers.append)
        await until(lambda: len(kept) == 4)

    run(scenario)


def test_a_client_refuses_more_than_it_may_have_in_flight_or_unsent(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        server = RPCServer({"keep": lambda call: None}, BROKER)
        limits = replace(LIMITS, calls_max=4, unsent_bytes_max=100)
        client = cell.client(await cell.serve(server), limits=limits)
        answers: list[Any] = []

        client.call("keep", bytes(60), LONG_MS, answers.append)
        client.call("keep", bytes(60), LONG_MS, answers.append)
        assert answers == [], "never from inside call"
        assert not client.notify("keep", bytes(60))
        await until(lambda: answers)
        for _ in range(4):
            client.call("keep", b"", LONG_MS, answers.append)
        await until(lambda: len(answers) == 2)

        assert [type(answer) for answer in answers] == [Overloaded] * 2

    run(scenario)


def test_a_reply_too_large_to_be_sent_is_told_as_a_failure(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        server = RPCServer(
            {"big": lambda call: call.reply(bytes(10_000))},
            BROKER,
            limits=replace(LIMITS, frame_bytes_max=9_000),
        )
        client = cell.client(await cell.serve(server))

        with pytest.raises(InternalFailure, match="10000 bytes"):
            await client.ask("big", b"", LONG_MS)

    run(scenario)


def test_connections_over_their_bound_are_refused_with_the_reason(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        address = await cell.serve(
            RPCServer({"echo": echo}, BROKER, limits=replace(LIMITS, connections_max=1))
        )
        await cell.client(address).ask("echo", b"", LONG_MS)

        with pytest.raises(Unreachable, match="there are 1 connections already"):
            await cell.client(address).ask("echo", b"", LONG_MS)

    run(scenario)


def test_connections_that_say_nothing_leave_room_for_peers(run_on_sockets: Run) -> None:
    async def scenario(cell: Cell) -> None:
        limits = replace(LIMITS, connections_max=5, unknown_max=3, silence_ms=60_000)
        server = RPCServer({"echo": echo}, BROKER, limits=limits)
        address = await cell.serve(server)
        known = cell.client(address)
        await known.ask("echo", b"before", LONG_MS)
        silent = [await asyncio.open_connection(*address) for _ in range(20)]
        await until(lambda: len(server.unknown) == 3)

        later = cell.client(address)

        assert await later.ask("echo", b"later", LONG_MS) == b"later"
        assert await known.ask("echo", b"still", LONG_MS) == b"still"
        assert len(server.connections) == 2
        assert len(server.open) <= 5
        for reader, _ in silent[:17]:
            assert await reader.read() == b""
        for _, writer in silent:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    run_on_sockets(scenario)


def test_a_peer_that_does_not_read_is_not_read_and_in_the_end_given_up(run_on_sockets: Run) -> None:
    async def scenario(cell: Cell) -> None:
        ended: list[str] = []
        answered: list[int] = []

        def big(call: IncomingCall) -> None:
            answered.append(call.id)
            call.reply(bytes(100_000))

        server = RPCServer(
            {"big": big},
            BROKER,
            limits=replace(LIMITS, silence_ms=300, write_buffer_bytes_max=100_000),
            on_closed=lambda connection, reason: ended.append(reason),
        )
        async with raw_client(await cell.serve(server)) as raw:
            await raw.greet()
            header = render_call_header("big", 10_000, "")
            # Apart, so that each may be answered before the next is read.
            for number in range(1, 400):
                raw.writer.write(b"".join(render_frame(1, REQUEST, number, header)))
                await asyncio.sleep(0)
                if ended:
                    break
            await until(lambda: ended)

        assert ended == ["silent for 300 ms"]

    run_on_sockets(scenario)


def test_a_slow_reader_gets_everything(run_on_sockets: Run) -> None:
    async def scenario(cell: Cell) -> None:
        server = RPCServer(
            {"big": lambda call: call.reply(bytes(100_000))},
            BROKER,
            limits=replace(LIMITS, silence_ms=2_000, write_buffer_bytes_max=50_000),
        )
        async with raw_client(await cell.serve(server)) as raw:
            await raw.greet()
            header = render_call_header("big", 10_000, "")
            for number in range(1, 101):
                raw.writer.write(b"".join(render_frame(1, REQUEST, number, header)))
            ids: list[int] = []
            while len(ids) < 100:
                ids += [frame[1] for frame in await raw.read(30_000) if frame[0] == REPLY]

        assert ids == list(range(1, 101))

    run_on_sockets(scenario)


def test_replies_beyond_what_may_be_unsent_end_the_connection(run_on_sockets: Run) -> None:
    async def scenario(cell: Cell) -> None:
        ended: list[str] = []
        server = RPCServer(
            {"big": lambda call: call.reply(bytes(15_000_000))},
            BROKER,
            limits=replace(LIMITS, unsent_bytes_max=20_000_000),
            on_closed=lambda connection, reason: ended.append(reason),
        )
        async with raw_client(await cell.serve(server)) as raw:
            await raw.greet()
            header = render_call_header("big", 10_000, "")
            raw.writer.write(b"".join(render_frame(1, REQUEST, n, header)[0] for n in range(1, 5)))
            await until(lambda: ended)

        assert ended == ["does not read what it is sent"]

    run_on_sockets(scenario)


# Who is there, and in which version.


class Raw:
    """A peer that writes what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frames = FrameReader()

    async def greet(self, hello: Hello = FRONT_END) -> list[Any]:
        self.writer.write(render_hello(hello))
        received = await self.read()
        self.frames.version, self.frames.frame_bytes_max = 1, 1 << 24
        return received

    async def read(self, size: int = 1 << 16) -> list[Any]:
        data = await self.reader.read(size)
        return [*self.frames.feed(data)] if data else [None]


@asynccontextmanager
async def raw_client(address: tuple[str, int]) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()


def test_both_ends_say_who_they_are(run_on_sockets: Run) -> None:
    async def scenario(cell: Cell) -> None:
        async with raw_client(await cell.serve(RPCServer({}, BROKER))) as raw:
            (frame,) = await raw.greet()

        assert parse_hello(frame[2]) == BROKER

    run_on_sockets(scenario)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "refused: there is no frame of kind 32"),
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
            "refused: a frame of 33620758 bytes is over",
        ),
        (render_frame(0, NOTICE, 0, b"")[0], "refused: it did not say who it is"),
        (render_hello(Hello("eu2", "frontend", "f1")), "refused: eu2/frontend/f1 is not of the cell eu1"),
        (
            render_hello(Hello("eu1", "frontend", "f1", 7, 9)),
            "refused: eu1/frontend/f1 speaks RPC versions 7-9, eu1/broker/b1 speaks 1-1",
        ),
        (render_hello(Hello("eu1", "stranger", "f1")), "refused: a stranger"),
        (render_hello(FRONT_END) + struct.pack("<IBBHQ", 1 << 31, 1, REQUEST, 0, 0), "refused: a frame of"),
        (render_hello(FRONT_END) * 2, "refused: a frame of kind 1 makes no sense here"),
        (render_hello(FRONT_END) + render_frame(1, REPLY, 1)[0], "refused: a frame of kind 4 makes no"),
        (
            render_hello(FRONT_END) + render_frame(1, REQUEST, 1, b"\x01")[0],
            "refused: not the header of a call",
        ),
        (
            render_hello(FRONT_END) + render_frame(1, REQUEST, 1, render_call_header("keep", 1, ""))[0] * 2,
            "refused: call 1 is in progress already",
        ),
        (render_frame(0, HELLO, 0, b"\x81\xa4cell\xa2\x00\x80")[0], "refused: not a hello: "),
        (
            render_hello(FRONT_END) + render_frame(1, REQUEST, 1, b"\x91\xa2\x00\x80")[0],
            "refused: not the header of a call",
        ),
    ],
    ids=range(13),
)
def test_what_makes_no_sense_is_refused_with_the_reason_and_harms_nobody_else(
    run_on_sockets: Run, said: bytes, reason: str
) -> None:
    def check(hello: Hello, transport: asyncio.BaseTransport) -> str | None:
        return "a stranger" if hello.role == "stranger" else None

    async def scenario(cell: Cell) -> None:
        handlers: dict[str, CallHandler] = {"echo": echo, "keep": lambda call: None}
        address = await cell.serve(RPCServer(handlers, BROKER, check_peer=check))
        other = cell.client(address)
        await other.ask("echo", b"", LONG_MS)
        async with raw_client(address) as raw:
            raw.frames.version, raw.frames.frame_bytes_max = 1, 1 << 20
            raw.writer.write(said)
            given = await _reason_behind_hello(raw)

        assert given.startswith(reason), given
        assert await other.ask("echo", b"unharmed", LONG_MS) == b"unharmed"

    run_on_sockets(scenario)


async def _reason_behind_hello(raw: Raw) -> str:
    """Return why the other end said goodbye, once it has closed the connection."""
    data = b""
    while piece := await raw.reader.read(1 << 16):
        data += piece
    reader = FrameReader()
    received = reader.feed(data)
    reader.version, reader.frame_bytes_max = 1, 1 << 20
    received += reader.feed(b"")
    (goodbye,) = (parse_goodbye(frame[2]) for frame in received if frame[0] == GOODBYE)
    return f"{goodbye.code}: {goodbye.reason}"


def test_a_refused_client_knows_why_and_keeps_its_distance(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        address = await cell.serve(RPCServer({"echo": echo}, BROKER))
        newer = cell.client(address, Hello("eu1", "frontend", "f9", 2, 3))

        with pytest.raises(Unreachable, match=r"eu1/frontend/f9 speaks RPC versions 2-3, .*b1 speaks 1-1"):
            await newer.ask("echo", b"", LONG_MS)
        assert not newer.is_connected

    run(scenario)


def test_a_client_refuses_a_server_of_another_cell_or_one_it_does_not_expect(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        address = await cell.serve(RPCServer({"echo": echo}, BROKER))

        def expect_b2(hello: Hello, transport: asyncio.BaseTransport) -> str | None:
            return None if hello.node == "b2" else f"{hello} is not b2"

        picky = cell.client(address, check_peer=expect_b2)
        with pytest.raises(Unreachable, match="eu1/broker/b1 is not b2"):
            await picky.ask("echo", b"", LONG_MS)

    run(scenario)


def test_two_peers_of_different_ages_speak_the_highest_version_both_know(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        seen: list[int] = []

        def handle(call: IncomingCall) -> None:
            seen.append(call.version)
            call.reply(call.body)

        newer = Hello("eu1", "broker", "b1", 1, 3)
        address = await cell.serve(RPCServer({"echo": handle}, newer))
        for version_max in (1, 2, 3, 9):
            client = cell.client(address, Hello("eu1", "frontend", f"f{version_max}", 1, version_max))
            assert await client.ask("echo", b"x", LONG_MS) == b"x"

        assert seen == [1, 2, 3, 3]

    run(scenario)


def test_a_peer_that_connects_and_says_nothing_is_dropped(run_on_sockets: Run) -> None:
    async def scenario(cell: Cell) -> None:
        address = await cell.serve(RPCServer({}, BROKER, limits=replace(LIMITS, silence_ms=100)))
        async with raw_client(address) as silent, raw_client(address) as dribbling:
            dribbling.writer.write(render_hello(FRONT_END)[:9])
            for raw in (silent, dribbling):
                with suppress(ConnectionResetError):
                    assert await raw.reader.read() == b""

    run_on_sockets(scenario)


def test_a_peer_that_greets_and_then_is_silent_is_dropped(run_on_sockets: Run) -> None:
    async def scenario(cell: Cell) -> None:
        ended: list[str] = []
        limits = replace(LIMITS, silence_ms=100)
        server = RPCServer(
            {}, BROKER, limits=limits, on_closed=lambda connection, reason: ended.append(reason)
        )
        async with raw_client(await cell.serve(server)) as raw:
            await raw.greet()
            await until(lambda: ended)

        assert ended == ["silent for 100 ms"]

    run_on_sockets(scenario)


def test_a_server_that_greets_and_then_is_silent_is_left(run_on_sockets: Run) -> None:
    async def scenario(cell: Cell) -> None:
        ended: list[str] = []
        writers: list[asyncio.StreamWriter] = []

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            writer.write(render_hello(BROKER))

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        limits = replace(LIMITS, silence_ms=100, reconnect_min_ms=5_000, reconnect_max_ms=5_000)
        client = cell.client(server.sockets[0].getsockname()[:2], limits=limits, on_closed=ended.append)

        with pytest.raises(ConnectionLost):
            await client.ask("echo", b"", LONG_MS)
        server.close()
        for writer in writers:
            writer.transport.abort()

        assert ended == ["silent for 100 ms"]

    run_on_sockets(scenario)


def test_a_connection_that_ends_inside_a_frame_harms_nobody(run_on_sockets: Run) -> None:
    async def scenario(cell: Cell) -> None:
        ended: list[str] = []
        server = RPCServer({"echo": echo}, BROKER, on_closed=lambda connection, reason: ended.append(reason))
        async with raw_client(await cell.serve(server)) as raw:
            await raw.greet()
            raw.writer.write(
                render_frame(1, REQUEST, 1, render_call_header("echo", 1, ""), bytes(99))[0][:-5]
            )
            raw.writer.write_eof()
            await until(lambda: ended)

        assert ended == ["closed by the peer in the middle of a frame"]

    run_on_sockets(scenario)


def test_a_frame_that_does_not_come_to_its_end_is_not_waited_for(run_on_sockets: Run) -> None:
    async def scenario(cell: Cell) -> None:
        ended: list[str] = []
        limits = replace(LIMITS, silence_ms=100, frame_timeout_ms=300)
        server = RPCServer(
            {"echo": echo}, BROKER, limits=limits, on_closed=lambda connection, reason: ended.append(reason)
        )
        async with raw_client(await cell.serve(server)) as raw:
            await raw.greet()
            frame = render_frame(1, REQUEST, 1, render_call_header("echo", 1, ""), bytes(4_000))[0]
            for place in range(1, len(frame)):
                if ended:
                    break
                raw.writer.write(frame[place - 1 : place])
                await asyncio.sleep(0.02)

        assert ended == ["a frame did not come whole within 300 ms"]
        assert server.partial_bytes == 0

    run_on_sockets(scenario)


def test_what_is_kept_of_unfinished_frames_is_bounded_over_all_connections(run_on_sockets: Run) -> None:
    async def scenario(cell: Cell) -> None:
        reasons: list[str] = []
        server = RPCServer(
            {"echo": echo},
            BROKER,
            limits=replace(LIMITS, partial_bytes_max=1 << 20),
            on_closed=lambda connection, reason: reasons.append(reason),
        )
        address = await cell.serve(server)
        honest = cell.client(address)
        await honest.ask("echo", b"", LONG_MS)
        header = render_call_header("echo", 1, "")
        half = struct.pack("<IBBHQ", 16 + len(header) + (8 << 20), 1, REQUEST, len(header), 1) + header
        async with AsyncExitStack() as stack:
            for number in range(8):
                raw = await stack.enter_async_context(raw_client(address))
                await raw.greet()
                raw.writer.write(half + bytes(300_000))
                await until(lambda number=number: server.partial_bytes >= 300_000 * min(number + 1, 3))  # type: ignore[misc]
            await until(lambda: len(reasons) == 5)

            assert server.partial_bytes < 1 << 20
            assert await honest.ask("echo", bytes(50_000), LONG_MS) == bytes(50_000)

        await until(lambda: server.partial_bytes == 0)
        assert set(reasons[:5]) == {"refused: too much is being received at once"}

    run_on_sockets(scenario)


# Ending in order.


def test_a_draining_server_answers_what_it_has_and_takes_no_more(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        kept: list[IncomingCall] = []
        server = RPCServer({"keep": kept.append}, BROKER)
        events: list[Any] = []
        client = cell.client(
            await cell.serve(server),
            on_draining=lambda reason: events.append("draining"),
            on_closed=lambda reason: events.append("closed"),
            limits=replace(LIMITS, reconnect_min_ms=5_000, reconnect_max_ms=5_000),
        )
        client.call("keep", b"", LONG_MS, events.append)
        await until(lambda: kept)

        draining = asyncio.create_task(server.drain(10_000))
        await until(lambda: events)
        with pytest.raises(Unreachable, match="shutting down"):
            await client.ask("keep", b"", LONG_MS)
        kept[0].reply(b"answered")
        await draining
        await until(lambda: len(events) == 3)

        assert events == ["draining", b"answered", "closed"]

    run(scenario)


def test_a_call_that_crosses_the_goodbye_of_a_draining_server_has_not_happened(run_on_sockets: Run) -> None:
    async def scenario(cell: Cell) -> None:
        kept: list[IncomingCall] = []
        server = RPCServer({"keep": kept.append}, BROKER)
        async with raw_client(await cell.serve(server)) as raw:
            await raw.greet()
            header = render_call_header("keep", 10_000, "")
            raw.writer.write(render_frame(1, REQUEST, 1, header)[0])
            await until(lambda: kept)
            draining = asyncio.create_task(server.drain(10_000))
            await asyncio.sleep(0)
            raw.writer.write(render_frame(1, REQUEST, 2, header)[0])
            frames: list[Any] = []
            while len(frames) < 2:
                frames += await raw.read()
            kept[0].reply()
            await draining

        assert b"Unreachable" in frames[1][3]
        assert len(kept) == 1

    run_on_sockets(scenario)


def test_a_drain_ends_with_its_grace(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        kept: list[IncomingCall] = []
        server = RPCServer({"keep": kept.append}, BROKER)
        client = cell.client(await cell.serve(server))
        answers: list[Any] = []
        client.call("keep", b"", LONG_MS, answers.append)
        await until(lambda: kept)

        await server.drain(20)
        await until(lambda: answers)

        assert [type(answer) for answer in answers] == [ConnectionLost]
        assert server.open == set()

    run(scenario)


# What others give us.


def test_callbacks_that_fail_harm_nothing(run: Run) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError

    async def scenario(cell: Cell) -> None:
        def keep(call: IncomingCall) -> None:
            call.on_cancel = fail

        server = RPCServer({"echo": echo, "keep": keep}, BROKER, on_connected=fail, on_closed=fail)
        address = await cell.serve(server)
        client = cell.client(
            address, on_connected=fail, on_closed=fail, on_draining=fail, handlers={"note": fail}
        )
        client.call("echo", b"", LONG_MS, fail)
        client.call("keep", b"", LONG_MS, fail).cancel()
        assert await client.ask("echo", b"x", LONG_MS) == b"x"
        client.call("keep", b"", LONG_MS, fail)
        assert server.connections[0].notify("note", b"")
        assert await client.ask("echo", b"y", LONG_MS) == b"y"

        await server.drain(10)

    run(scenario)


def test_a_call_made_by_a_reply_goes_out_in_the_same_turn(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        client = cell.client(await cell.serve(RPCServer({"echo": echo}, BROKER)))
        left = [200]
        done = asyncio.Event()

        def again(result: bytes | Exception) -> None:
            assert result == b"x"
            left[0] -= 1
            if left[0]:
                client.call("echo", b"x", LONG_MS, again)
            else:
                done.set()

        client.call("echo", b"x", LONG_MS, again)
        await done.wait()

    run(scenario)


# Width.


def test_a_thousand_connections(run_on_sockets: Run) -> None:
    async def scenario(cell: Cell) -> None:
        server = RPCServer({"echo": echo}, BROKER)
        address = await cell.serve(server)
        # All on one loop of a busy machine: nobody here is silent or late, only slow.
        limits = replace(LIMITS, connect_timeout_ms=30_000, silence_ms=30_000)
        clients = [
            cell.client(address, Hello("eu1", "frontend", f"f{n}"), limits=limits) for n in range(1000)
        ]

        answers = await asyncio.gather(*(client.ask("echo", b"x", 30_000) for client in clients))

        assert answers == [b"x"] * 1000
        assert len({connection.peer.node for connection in server.connections if connection.peer}) == 1000

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2_200:
        pytest.skip(f"needs 2,200 open files, {soft} are allowed")
    run_on_sockets(scenario)


def test_a_server_that_accepts_and_says_nothing_is_not_waited_for(run_on_sockets: Run) -> None:
    async def scenario(cell: Cell) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = cell.client(
                listener.getsockname()[:2],
                limits=replace(LIMITS, connect_timeout_ms=50, reconnect_min_ms=5_000, reconnect_max_ms=5_000),
            )
            with pytest.raises(Unreachable, match="no connection within 50 ms"):
                await client.ask("echo", b"", LONG_MS)

    run_on_sockets(scenario)


def test_nothing_is_left_of_calls_and_connections_that_ended(run: Run) -> None:
    async def scenario(cell: Cell) -> None:
        server = RPCServer({"echo": echo}, BROKER)
        client = cell.client(await cell.serve(server))
        for _ in range(50):
            await client.ask("echo", b"x", LONG_MS)
        await client.close()
        await until(lambda: not server.open)
        gc.collect()

        assert not client.calls
        assert client._unsent_bytes == 0
        assert not [thing for thing in gc.get_objects() if isinstance(thing, IncomingCall)]

    run(scenario)
