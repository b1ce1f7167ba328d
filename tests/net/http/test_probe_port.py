"""What anyone may ask of every process, and how much of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import cast

import pytest

from quaymaster.core.values.errors import Unreachable
from quaymaster.monitoring.health import Health
from quaymaster.monitoring.metrics import Metrics, Sample
from quaymaster.net.http.message import HTTPRequest, ReplySink
from quaymaster.net.http.probe_port import (
    PEER_SCRAPES_MAX,
    QUEUE_SCRAPES_MAX,
    REFUSED_SCRAPE_HOLD_MS,
    SCRAPES_MAX,
    ProbePort,
)


class Sink:
    """Keeps the status of each reply."""

    key = None

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.headers: list[bytes] = []
        self.held: list[int] = []

    def hold_off(self, hold_ms: int) -> None:
        self.held.append(hold_ms)

    def reply(self, request: HTTPRequest, status: int, headers: bytes, body: bytes) -> None:
        self.statuses.append(status)
        self.headers.append(headers)


def get(path: bytes, sink: Sink, peer: str = "1.1.1.1") -> HTTPRequest:
    path, _, query = path.partition(b"?")
    return HTTPRequest(b"GET", path, path, query, [], peer, 0.0, {}, b"", cast(ReplySink, sink))


class Renderings:
    """Counts them, and may scrape once more in the middle of one."""

    def __init__(self, metrics: Metrics) -> None:
        self.count = 0
        self.scrape: Callable[[], None] = lambda: None
        metrics.add_source(self._look)

    def _look(self) -> Iterable[Sample]:
        self.count += 1
        if self.count < 3:
            self.scrape()
        return ()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something is so."""
    for _ in range(10_000):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("what was waited for did not happen")


def test_scrapes_that_come_together_are_answered_by_one_rendering() -> None:
    async def scenario() -> None:
        metrics = Metrics("0")
        port, renderings, sink = ProbePort(metrics, Health()), Renderings(metrics), Sink()
        for number in range(SCRAPES_MAX):
            port.handle(get(b"/metrics", sink, f"1.1.1.{number}"))
        await until(lambda: len(sink.statuses) == SCRAPES_MAX)

        assert sink.statuses == [200] * SCRAPES_MAX
        assert renderings.count == 1
        await port.stop()

    asyncio.run(scenario())


def test_a_scrape_that_comes_during_a_rendering_gets_the_next_one() -> None:
    async def scenario() -> None:
        metrics = Metrics("0")
        port, renderings, sink = ProbePort(metrics, Health()), Renderings(metrics), Sink()
        renderings.scrape = lambda: port.handle(get(b"/metrics", sink))
        port.handle(get(b"/metrics", sink))
        await until(lambda: len(sink.statuses) == 3)

        assert (sink.statuses, renderings.count) == ([200] * 3, 3)
        port.handle(get(b"/metrics", sink))
        await port.stop()
        assert len(sink.statuses) == 3

    asyncio.run(scenario())


def test_one_address_does_not_take_all_the_places_of_those_who_wait() -> None:
    async def scenario() -> None:
        port, sink, other = ProbePort(Metrics("0"), Health()), Sink(), Sink()
        for _ in range(PEER_SCRAPES_MAX + 3):
            port.handle(get(b"/metrics", sink))
        port.handle(get(b"/metrics", other, "2.2.2.2"))
        await until(lambda: len(sink.statuses) + len(other.statuses) == PEER_SCRAPES_MAX + 4)

        assert sorted(sink.statuses) == [200] * PEER_SCRAPES_MAX + [503] * 3
        assert other.statuses == [200]
        assert (sink.held, other.held) == ([REFUSED_SCRAPE_HOLD_MS] * 3, [])
        await port.stop()

    asyncio.run(scenario())


def test_metrics_that_cannot_be_rendered_are_said_to_be_so(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        def fail() -> Iterable[Sample]:
            raise ValueError("no figures")

        metrics, sink = Metrics("0"), Sink()
        metrics.add_source(fail)
        port = ProbePort(metrics, Health())
        port.handle(get(b"/metrics", sink))
        await until(lambda: bool(sink.statuses))

        assert sink.statuses == [500]
        assert "metrics not rendered" in caplog.text
        await port.stop()

    asyncio.run(scenario())


def test_metrics_of_queues_come_from_a_console_where_there_is_one() -> None:
    async def scenario() -> None:
        metrics, sink = Metrics("0"), Sink()
        port = ProbePort(metrics, Health())
        asked: list[str] = []

        async def answer(query: str) -> tuple[int, bytes]:
            asked.append(query)
            if query == "away":
                raise Unreachable("no console")
            return 413, b"too many\n"

        port.handle(get(b"/metrics/queues", sink))
        await until(lambda: len(sink.statuses) == 1)
        metrics.queues = answer
        port.handle(get(b"/metrics/queues?top=3", sink))
        port.handle(get(b"/metrics/queues?away", sink))
        await until(lambda: len(sink.statuses) == 3)

        assert sink.statuses == [404, 413, 503]
        assert asked == ["top=3", "away"]
        await port.stop()

    asyncio.run(scenario())


def test_scrapes_of_queues_that_wait_are_few_and_end_with_the_port() -> None:
    async def scenario() -> None:
        metrics, sink = Metrics("0"), Sink()
        port = ProbePort(metrics, Health())

        async def hang(query: str) -> tuple[int, bytes]:
            await asyncio.Event().wait()
            return 200, b""

        metrics.queues = hang
        for _ in range(QUEUE_SCRAPES_MAX + 1):
            port.handle(get(b"/metrics/queues", sink))

        assert sink.statuses == [503]
        await port.stop()
        assert sink.statuses == [503]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("url", "peer", "location"),
    [
        ("", "127.0.0.1", None),
        ("http://127.0.0.1:9326", "127.0.0.1", b"http://127.0.0.1:9326/"),
        ("http://localhost:9326", "::1", b"http://localhost:9326/"),
        ("http://127.0.0.1:9326", "10.0.0.7", None),
        ("https://console.example/", "10.0.0.7", b"https://console.example/"),
    ],
)
def test_browsers_are_led_to_the_console_where_its_address_is_good_for_them(
    url: str, peer: str, location: bytes | None
) -> None:
    metrics, sink = Metrics("0"), Sink()
    metrics.console_url = url

    ProbePort(metrics, Health()).handle(get(b"/", sink, peer))

    assert sink.statuses == [404 if location is None else 302]
    assert location is None or b"Location: %s\r\n" % location in sink.headers[0]
