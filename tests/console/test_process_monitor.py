"""What a console knows of what processes use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from harness.web_servers import web_server

from console.monitored import NOON_MS, until
from quaymaster.console.exchange import APIPlace
from quaymaster.console.process_monitor import LOOK_MS, ProcessMonitor, ProcessName
from quaymaster.core.monitoring.process_metrics import KEPT_MS, ProcessUse

BROKER, CONSOLE, WORKER = (
    ProcessName("broker", "b1"),
    ProcessName("console", "console"),
    ProcessName("worker", "worker 0"),
)
TEXT = """\
process_cpu_seconds_total {cpu}
process_resident_memory_bytes 1.048576e+06
quaymaster_pool_used_ratio{{pool="memory"}} 0.25
quaymaster_pool_used_ratio{{pool="disk"}} 0.5
"""
SPOKEN_FOR = 'process_cpu_seconds_total{worker="0"} 1\nprocess_cpu_seconds_total{worker="console"} 2\n'


class Process:
    """An admin port whose metrics are what tests set."""

    def __init__(self) -> None:
        self.status = 200
        self.text = TEXT.format(cpu=10)
        self.url = ""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        assert request.path == "/metrics"
        return web.Response(status=self.status, text=self.text)

    def places(self) -> Mapping[ProcessName, APIPlace]:
        return {BROKER: APIPlace(self.url)}


@asynccontextmanager
async def a_process() -> AsyncIterator[Process]:
    process = Process()
    async with web_server(process.answer) as server:
        process.url = server.url
        yield process


def test_process_that_answers_has_values_with_their_time_and_one_that_does_not_keeps_its_last() -> None:
    async def run() -> None:
        async with a_process() as process:
            monitor = ProcessMonitor(process.places, now_ms=lambda: NOON_MS)
            assert monitor.charts(BROKER) is None
            await monitor.look(NOON_MS)
            process.text = TEXT.format(cpu=12.5)
            await monitor.look(NOON_MS + 5_000)

            for status, text in ((503, "no"), (200, "process_cpu_seconds_total 1e\n"), (200, "\xff\xfe")):
                process.status, process.text = status, text
                await monitor.look(NOON_MS + 10_000)

            track = monitor.track(BROKER)
            assert track is not None
            assert track.newest == ProcessUse(NOON_MS + 5_000, 0.5, 0.25, 1_048_576.0, 0.5)

        await monitor.look(NOON_MS + 15_000)  # nothing listens there any more
        assert track.newest.at_ms == NOON_MS + 5_000

    asyncio.run(run())


def test_processes_that_another_one_speaks_for_have_names_of_their_own() -> None:
    async def run() -> None:
        async with a_process() as process:
            process.text += SPOKEN_FOR
            monitor = ProcessMonitor(process.places, now_ms=lambda: NOON_MS)
            await monitor.look(NOON_MS)

            assert monitor.names() == [BROKER, CONSOLE, WORKER]

    asyncio.run(run())


def test_charts_are_of_three_hours_and_a_process_of_before_is_forgotten() -> None:
    async def run() -> None:
        async with a_process() as process:
            now_ms = NOON_MS + 60_000
            monitor = ProcessMonitor(process.places, now_ms=lambda: now_ms)
            await monitor.look(NOON_MS)
            process.text = TEXT.format(cpu=40)
            await monitor.look(now_ms)

            charts = monitor.charts(BROKER)
            assert charts is not None
            cpu, memory, disk = (one.series[0] for one in charts)
            assert list(cpu.times_ms) == [NOON_MS, now_ms]
            assert (list(cpu.values), cpu.unit) == ([None, 50.0], "Percent")
            assert (list(memory.values), memory.unit) == ([1_048_576.0] * 2, "Bytes")
            assert list(disk.values) == [50.0, 50.0]

            process.status = 503
            await monitor.look(now_ms + KEPT_MS)
            assert monitor.names() == []

    asyncio.run(run())


def test_processes_are_asked_each_15_s_and_each_5_s_while_somebody_looks() -> None:
    now_ms = NOON_MS
    monitor = ProcessMonitor(dict, now_ms=lambda: now_ms)

    def due() -> list[int]:
        return [since for since in range(0, 50_000, LOOK_MS) if monitor.is_due(NOON_MS + since)]

    assert due() == [0, 15_000, 30_000, 45_000]
    now_ms += 1_000
    monitor.watch()
    assert due() == [0, 5_000, 10_000, 15_000, 30_000, 45_000]


def test_monitor_looks_when_a_look_is_due() -> None:
    async def run() -> None:
        async with a_process() as process:
            monitor = ProcessMonitor(process.places, now_ms=lambda: NOON_MS - 1)
            running = asyncio.create_task(monitor.run())
            await until(lambda: monitor.track(BROKER))
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
