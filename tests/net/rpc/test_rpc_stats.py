"""What is counted of calls, notices and connections, over the in-memory network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress

import pytest
from harness.waiting import PATIENCE_S
from prometheus_client.parser import text_string_to_metric_families

from quaymaster.core.values.errors import ConnectionLost, NotLeader, Timeout, Unreachable
from quaymaster.monitoring.metric_table import METRICS
from quaymaster.monitoring.metrics import Metrics
from quaymaster.net.rpc import IncomingCall, RPCClient, RPCLimits, RPCMetrics, RPCServer
from quaymaster.net.rpc.memory import MemoryNetwork
from quaymaster.protocol.rpc.frames import Hello

ADDRESS = ("b1", 1)
BROKER = Hello(cell="eu1", role="broker", node="b1")
FRONT_END = Hello(cell="eu1", role="frontend", node="f1")
LIMITS = RPCLimits(reconnect_min_ms=1, reconnect_max_ms=20)
LONG_MS = 20_000


class Pair:
    """A client and its server, and what each of them counts."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.here, self.there = RPCMetrics(), RPCMetrics()
        self.kept: list[IncomingCall] = []
        handlers = {"echo": lambda call: call.reply(call.body), "keep": self.kept.append, "fail": self._fail}
        self.server = RPCServer(handlers, BROKER, limits=LIMITS, metrics=self.there)
        self.network.listen(ADDRESS, self.server)
        self.client = self.make_client(FRONT_END)

    def make_client(self, hello: Hello) -> RPCClient:
        return RPCClient(
            ADDRESS,
            hello,
            limits=LIMITS,
            connector=self.network.connector(ADDRESS),
            stats=self.here.of("client", "broker"),
        )

    def _fail(self, call: IncomingCall) -> None:
        raise NotLeader("b2")

    def results(self, method: str) -> dict[str, int]:
        results = self.here.of("client", "broker").of(method).results
        return {result: number for result, number in results.items() if number}

    def in_flight(self, method: str) -> int:
        calls = self.here.of("client", "broker").of(method)
        return calls.begun - calls.ended


def run(scenario: Callable[[Pair], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            pair = Pair()
            stack.push_async_callback(pair.server.close)
            stack.push_async_callback(pair.client.close)
            await scenario(pair)

    asyncio.run(main())


async def until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def test_calls_are_counted_by_method_and_by_what_came_of_them() -> None:
    async def scenario(pair: Pair) -> None:
        assert [await pair.client.ask("echo", b"x", LONG_MS) for _ in range(3)] == [b"x"] * 3
        with pytest.raises(NotLeader):
            await pair.client.ask("fail", b"", LONG_MS)
        with pytest.raises(Timeout):
            await pair.client.ask("keep", b"", 30)

        assert pair.results("echo") == {"OK": 3}
        assert pair.results("fail") == {"NotLeader": 1}
        assert pair.results("keep") == {"Timeout": 1}
        waited = pair.here.of("client", "broker").of("keep").durations
        assert 0.03 <= waited.sum_s < 10

    run(scenario)


def test_a_call_is_in_flight_until_it_is_over_however_that_comes() -> None:
    async def scenario(pair: Pair) -> None:
        results: list[bytes | Exception] = []
        calls = [pair.client.call("keep", b"", LONG_MS, results.append) for _ in range(4)]
        await until(lambda: len(pair.kept) == 4)
        assert pair.in_flight("keep") == 4

        calls[0].cancel()
        calls[0].cancel()
        pair.kept[1].reply(b"")
        await until(lambda: results)
        assert pair.in_flight("keep") == 2
        await pair.server.close()
        await until(lambda: len(results) == 3)

        assert isinstance(results[1], ConnectionLost)
        assert pair.in_flight("keep") == 0
        assert pair.results("keep") == {"Cancelled": 1, "OK": 1, "ConnectionLost": 2}

    run(scenario)


def test_calls_that_were_never_sent_are_counted_too() -> None:
    async def scenario(pair: Pair) -> None:
        pair.network.forget(ADDRESS)

        with pytest.raises(Unreachable):
            await pair.client.ask("echo", b"", LONG_MS)
        refused = pair.client.call("echo", b"", LONG_MS, lambda result: None)
        refused.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        assert pair.results("echo") == {"Unreachable": 1, "Cancelled": 1}
        assert pair.in_flight("echo") == 0
        assert pair.here.of("client", "broker").failed >= 1

    run(scenario)


def test_a_call_may_be_counted_as_something_else_than_its_method() -> None:
    async def scenario(pair: Pair) -> None:
        await pair.client.ask("echo", b"", LONG_MS, counted_as="long_poll")

        assert pair.results("long_poll") == {"OK": 1}
        assert pair.results("echo") == {}

    run(scenario)


def test_connections_and_bytes_are_counted_at_both_ends() -> None:
    async def scenario(pair: Pair) -> None:
        await pair.client.ask("echo", b"x" * 1000, LONG_MS)
        assert pair.client.notify("echo", b"x" * 1000)
        here, there = pair.here.of("client", "broker"), pair.there.of("server", "frontend")
        await until(lambda: there.received_bytes > 2000)

        assert (here.opened, here.closed, there.opened, there.closed) == (1, 0, 1, 0)
        assert here.sent_bytes == there.received_bytes
        assert 1000 < here.received_bytes == there.sent_bytes
        await pair.client.close()
        await until(lambda: there.closed == 1)
        assert here.closed == 1
        assert not pair.client.notify("echo", b"")
        assert (here.notices, here.notices_refused) == (1, 1)

    run(scenario)


def test_peers_that_are_not_greeted_or_say_strange_things_share_one_label() -> None:
    async def scenario(pair: Pair) -> None:
        stranger = pair.make_client(Hello(cell="other", role="frontend", node="f1"))
        with suppress(Unreachable):
            await stranger.ask("echo", b"", LONG_MS)
        await stranger.close()
        poet = pair.make_client(Hello(cell="eu1", role="roses are red", node="f1"))
        await poet.ask("echo", b"", LONG_MS)
        await poet.close()

        other = pair.there.of("server", "other")
        await until(lambda: other.closed == 1)
        assert other.failed >= 1
        assert {labels[1] for _, _, labels in pair.there.samples()} == {"other"}

    run(scenario)


def test_the_counters_are_rendered_as_they_are_declared() -> None:
    async def scenario(pair: Pair) -> None:
        await pair.client.ask("echo", b"", LONG_MS)
        with pytest.raises(NotLeader):
            await pair.client.ask("fail", b"", LONG_MS)
        metrics = Metrics("0")
        for rpc in (pair.here, pair.there):
            metrics.add_source(rpc.samples)
            metrics.add_histograms(rpc.histograms)

        text = metrics.render().decode()

        families = {family.name: family for family in text_string_to_metric_families(text)}
        rendered = {name for name in families if name.startswith("quaymaster_rpc_")}
        declared = {name for name in METRICS if name.startswith("quaymaster_rpc_")}
        assert rendered == {name.removesuffix("_total") for name in declared}
        calls = families["quaymaster_rpc_calls"].samples
        assert {(sample.labels["method"], sample.labels["result"], sample.value) for sample in calls} == {
            ("echo", "OK", 1.0),
            ("fail", "OK", 0.0),
            ("fail", "NotLeader", 1.0),
        }
        durations = families["quaymaster_rpc_call_duration_seconds"].samples
        assert sum(sample.value for sample in durations if sample.name.endswith("_count")) == 2

    run(scenario)
