"""Consoles are asked in turn until one is reached, with bounds on what is in flight and how long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from quaymaster.core.values.errors import (
    ConnectionLost,
    InternalFailure,
    NotNow,
    Overloaded,
    Timeout,
    Unreachable,
)
from quaymaster.monitoring.metrics import Sample
from quaymaster.monitoring.request_ids import REQUEST_ID
from quaymaster.net.routing import console_client
from quaymaster.net.routing.console_client import IN_FLIGHT_MAX, KNOWN_MS, ConsoleClient
from quaymaster.protocol.cloudwatch.errors import CloudWatchError
from quaymaster.protocol.rpc.monitoring_calls import (
    MONITORING,
    MonitoringAnswer,
    MonitoringCall,
    decode_call,
    encode_answer,
    encode_members,
)

CALL = MonitoringCall(
    *("cloudwatch", "ListMetrics", "000000000000", "arn:aws:iam::000000000000:root", "eu-test-1"),
    encode_members({}),
    "5f",
)


class FakeConsole:
    """A connection to a console that answers, or fails, as the test says."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.result: bytes | Exception = encode_answer(MonitoringAnswer.of({"NextToken": name}))
        self.asked: list[MonitoringCall] = []
        self.traces: list[str] = []
        self.gate: asyncio.Event | None = None
        self.is_closed = False
        self.is_full = asyncio.Event()

    async def ask(self, method: str, body: bytes, deadline_ms: int, *, trace: str = "") -> bytes:
        assert method == MONITORING
        assert 0 < deadline_ms <= console_client.TIMEOUT_MS
        self.asked.append(decode_call(body))
        self.traces.append(trace)
        if len(self.asked) == IN_FLIGHT_MAX:
            self.is_full.set()
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    async def close(self) -> None:
        self.is_closed = True


class Site:
    """Consoles that are there, and a client of them on a clock that the test moves."""

    def __init__(self, *names: str) -> None:
        self.consoles = {name: FakeConsole(name) for name in names}
        self.there: Sequence[str] = names
        self.looks = 0
        self.now_ms = 0.0
        self.client = ConsoleClient(self._find, self._connect, now_ms=lambda: self.now_ms)

    async def _find(self) -> Sequence[str]:
        self.looks += 1
        return self.there

    def _connect(self, address: str) -> FakeConsole:
        return self.consoles.setdefault(address, FakeConsole(address))

    async def ask(self) -> object:
        return (await self.client.ask(CALL)).returned["NextToken"]

    def counts(self) -> set[Sample]:
        return set(self.client.samples())


def run(scenario: Callable[[], object]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


def test_call_goes_to_a_console_with_the_id_of_its_request() -> None:
    async def scenario() -> None:
        site = Site("a")
        REQUEST_ID.set("5f")

        assert await site.ask() == "a"
        assert site.consoles["a"].asked == [CALL]
        assert site.consoles["a"].traces == ["5f"]

    run(scenario)


def test_console_that_is_not_reached_is_passed_over_and_asked_last_from_then_on() -> None:
    async def scenario() -> None:
        site = Site("a", "b")
        site.consoles["a"].result = Unreachable()

        assert [await site.ask(), await site.ask()] == ["b", "b"]
        assert len(site.consoles["a"].asked) == 1

    run(scenario)


def test_outcome_that_is_unknown_is_not_asked_for_again() -> None:
    async def scenario() -> None:
        site = Site("a", "b")
        site.consoles["a"].result = ConnectionLost()

        with pytest.raises(ConnectionLost):
            await site.ask()
        assert site.consoles["b"].asked == []

    run(scenario)


def test_without_a_console_the_call_is_unreachable() -> None:
    async def scenario() -> None:
        for site in (Site(), Site("a")):
            for console in site.consoles.values():
                console.result = Unreachable("a cannot be reached.")
            with pytest.raises(Unreachable):
                await site.ask()

    run(scenario)


def test_consoles_are_looked_for_again_after_a_while() -> None:
    async def scenario() -> None:
        site = Site("a")
        await site.ask()
        site.there = ("b",)

        assert await site.ask() == "a"
        site.now_ms = KNOWN_MS
        assert await site.ask() == "b"
        assert site.looks == 2
        assert site.consoles["a"].is_closed

    run(scenario)


def test_where_the_store_is_away_the_consoles_known_before_are_asked() -> None:
    async def scenario() -> None:
        site = Site("a")
        await site.ask()

        async def away() -> Sequence[str]:
            raise NotNow

        site.client._find = away
        site.now_ms = KNOWN_MS
        assert await site.ask() == "a"

    run(scenario)


def test_one_call_more_than_may_be_in_flight_is_refused_at_once() -> None:
    async def scenario() -> None:
        site = Site("a")
        gate = site.consoles["a"].gate = asyncio.Event()
        calls = [asyncio.create_task(site.ask()) for _ in range(IN_FLIGHT_MAX)]
        await site.consoles["a"].is_full.wait()

        with pytest.raises(Overloaded):
            await site.ask()
        gate.set()
        assert await asyncio.gather(*calls) == ["a"] * IN_FLIGHT_MAX
        assert await site.ask() == "a"

    run(scenario)


def test_console_that_hangs_holds_a_call_up_for_so_long_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        site = Site("a")
        site.consoles["a"].gate = asyncio.Event()
        with pytest.raises(Timeout):
            await site.ask()

    monkeypatch.setattr(console_client, "TIMEOUT_MS", 1)
    run(scenario)


def test_answer_that_cannot_be_read_is_a_failure_of_ours() -> None:
    async def scenario() -> None:
        site = Site("a")
        site.consoles["a"].result = b"\xc1"
        with pytest.raises(InternalFailure):
            await site.ask()

    run(scenario)


def test_answers_are_counted_by_operation_and_code() -> None:
    async def scenario() -> None:
        site = Site("a")
        await site.ask()
        await site.ask()
        site.consoles["a"].result = encode_answer(
            MonitoringAnswer.refusing(CloudWatchError("InvalidNextToken", "No."))
        )
        answer = await site.client.ask(CALL)
        site.consoles["a"].result = Unreachable()
        with pytest.raises(Unreachable):
            await site.ask()

        assert answer.error is not None
        name = "quaymaster_monitoring_requests_total"
        assert site.counts() == {
            Sample(name, 2, ("ListMetrics", "OK")),
            Sample(name, 1, ("ListMetrics", "InvalidNextToken")),
            Sample(name, 1, ("ListMetrics", "Unreachable")),
        }

    run(scenario)


def test_connections_end_with_the_client() -> None:
    async def scenario() -> None:
        site = Site("a", "b")
        await site.ask()
        await site.client.close()

        assert all(console.is_closed for console in site.consoles.values())

    run(scenario)
