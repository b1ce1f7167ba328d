"""What the processes of a cell use: their admin ports are asked for their metrics, and three hours are kept in memory.

every 15 s; every 5 s while somebody looks ─▶ /metrics of each process ─▶ ProcessTrack
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from quaymaster.console.exchange import APIPlace, Exchanges, NoAnswer
from quaymaster.console.site import Chart, Series
from quaymaster.core.monitoring.process_metrics import (
    KEPT_MS,
    SAMPLE_MS,
    ProcessReading,
    ProcessTrack,
    read_processes,
)

LOOK_MS: Final = 5_000
WATCHED_FOR_MS: Final = 15_000
ANSWER_S: Final = 4.0
PROCESSES_MAX: Final = 1_000
PERCENT: Final = 100


class ProcessName(NamedTuple):
    """A process of the cell, or of a server: that has workers and a console."""

    role: str
    name: str


class ProcessMonitor:
    """`run` looks for ever. `places` gives where each process is asked now; `now_ms` is the wall clock."""

    def __init__(
        self, places: Callable[[], Mapping[ProcessName, APIPlace]], *, now_ms: Callable[[], int]
    ) -> None:
        self._places = places
        self._now_ms = now_ms
        self._exchanges = Exchanges()
        self._tracks: dict[ProcessName, ProcessTrack] = {}
        self._watched_until_ms = 0

    def watch(self) -> None:
        """Look more often for a while: somebody does, too."""
        self._watched_until_ms = self._now_ms() + WATCHED_FOR_MS

    def track(self, name: ProcessName) -> ProcessTrack | None:
        """Return what is known of a process; None: nothing yet."""
        return self._tracks.get(name)

    def names(self) -> list[ProcessName]:
        """Return the processes that were heard in the last KEPT_MS."""
        return sorted(self._tracks)

    def charts(self, name: ProcessName) -> list[Chart] | None:
        """Return what a process used in the last three hours; None: it is not known."""
        track = self._tracks.get(name)
        if track is None:
            return None
        uses = list(track.minutes(self._now_ms()))
        times_ms = [use.at_ms for use in uses]

        def series(label: str, unit: str, values: Sequence[float | None]) -> Series:
            return Series(label, unit, times_ms, values)

        def percent(value: float | None) -> float | None:
            return None if value is None else value * PERCENT

        return [
            Chart("Processor, of one core", [series("used", "Percent", [percent(use.cpu) for use in uses])]),
            Chart("Memory", [series("used", "Bytes", [use.memory_bytes for use in uses])]),
            Chart("Disk", [series("used", "Percent", [percent(use.disk) for use in uses])]),
        ]

    def is_due(self, at_ms: int) -> bool:
        """Tell whether processes are to be asked at such a time."""
        return at_ms % SAMPLE_MS == 0 or at_ms <= self._watched_until_ms

    async def run(self) -> None:
        """Look for ever, at whole seconds of the wall clock."""
        while True:
            now_ms = self._now_ms()
            due_ms = (now_ms // LOOK_MS + 1) * LOOK_MS
            await asyncio.sleep((due_ms - now_ms) / 1_000)
            if self.is_due(due_ms):
                await self.look(due_ms)

    async def look(self, at_ms: int) -> None:
        """Ask all processes once."""
        places = dict(list(self._places().items())[:PROCESSES_MAX])
        await asyncio.gather(*(self._ask(name, place, at_ms) for name, place in places.items()))
        old_ms = at_ms - KEPT_MS
        for name, track in list(self._tracks.items()):
            if track.newest is not None and track.newest.at_ms <= old_ms:
                del self._tracks[name]

    async def _ask(self, name: ProcessName, place: APIPlace, at_ms: int) -> None:
        host = urlsplit(place.url).netloc.encode()
        try:
            async with asyncio.timeout(ANSWER_S):
                status, text = await self._exchanges.ask(place, "GET", "/metrics", [(b"host", host)], b"", "")
            if status != 200:
                return
            readings = read_processes(text.decode())
        except (NoAnswer, TimeoutError, ValueError):
            return  # what it used last becomes stale
        self.take(name, readings, at_ms)

    def take(self, name: ProcessName, readings: Mapping[str, ProcessReading], at_ms: int) -> None:
        """Take what a process told: of itself by "", of those that it speaks for by what it calls them."""
        for worker, reading in readings.items():
            track = self._tracks.setdefault(_named(name, worker), ProcessTrack())
            track.take(reading, at_ms)


def _named(asked: ProcessName, worker: str) -> ProcessName:
    """Return which process a text tells of: the one that was asked, or one that it speaks for."""
    if not worker:
        return asked
    return ProcessName("worker", f"worker {worker}") if worker.isdecimal() else ProcessName(worker, worker)
