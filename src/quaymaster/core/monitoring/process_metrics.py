"""What processes use, as their own metrics tell it: some figures of Prometheus's text, and three hours of them.

    text ─▶ read_processes ─▶ a ProcessReading of each process in it ─▶ its ProcessTrack: newest, and one each 15 s

A server's text has the metrics of its workers and its console, too, with the label `worker`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

SAMPLE_MS: Final = 15_000
KEPT_MS: Final = 3 * 3_600 * 1_000
MINUTE_MS: Final = 60_000

_LINE: Final = re.compile(
    r"^(process_cpu_seconds_total|process_resident_memory_bytes|quaymaster_pool_used_ratio|"
    r"quaymaster_journal_lag_records)(?:\{(.*)\})? ([-+.0-9e]+)$",
    re.MULTILINE,
)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


class ProcessReading(NamedTuple):
    """What a process tells of itself at a moment; None: it does not tell.

    `cpu_s`: processor time since its start. `memory`, `disk`: used shares, 0 to 1. `lags`: by journal that it leads,
    the records by which other brokers are behind.
    """

    cpu_s: float | None
    memory: float | None
    memory_bytes: float | None
    disk: float | None
    lags: dict[str, dict[str, int]]


class ProcessUse(NamedTuple):
    """What a process uses: of `cpu` a share of one core, since the use before; None: not known."""

    at_ms: int
    cpu: float | None
    memory: float | None
    memory_bytes: float | None
    disk: float | None


def read_processes(text: str) -> dict[str, ProcessReading]:
    """Return the processes of a text in Prometheus's format by their label `worker`; "" is the one that was asked.

    Raises ValueError where a value is no number.
    """
    found: dict[str, dict[str, float]] = {}
    lags: dict[str, dict[str, dict[str, int]]] = {}
    for name, given, value in _LINE.findall(text):
        labels = dict(_LABEL.findall(given))
        worker = labels.get("worker", "")
        if "journal" in labels:
            journal = lags.setdefault(worker, {}).setdefault(labels["journal"], {})
            journal[labels.get("broker", "")] = int(float(value))
        else:
            found.setdefault(worker, {})[labels.get("pool", name)] = float(value)
    return {
        worker: ProcessReading(
            values.get("process_cpu_seconds_total"),
            values.get("memory"),
            values.get("process_resident_memory_bytes"),
            values.get("disk"),
            lags.get(worker, {}),
        )
        for worker, values in found.items()
    }


class ProcessTrack:
    """The use of one process."""

    def __init__(self) -> None:
        self.newest: ProcessUse | None = None
        self.lags: dict[str, dict[str, int]] = {}
        """As in the newest reading."""
        self._before: tuple[int, float | None] = (0, None)
        self._kept: deque[ProcessUse] = deque(maxlen=KEPT_MS // SAMPLE_MS)
        self._kept_before: tuple[int, float | None] = (0, None)

    def take(self, reading: ProcessReading, at_ms: int) -> None:
        """Take a reading."""
        self.lags = reading.lags
        self.newest = _use(reading, at_ms, self._before)
        self._before = (at_ms, reading.cpu_s)
        if not self._kept or at_ms // SAMPLE_MS > self._kept[-1].at_ms // SAMPLE_MS:
            self._kept.append(_use(reading, at_ms, self._kept_before))
            self._kept_before = (at_ms, reading.cpu_s)

    def minutes(self, now_ms: int) -> Iterator[ProcessUse]:
        """Yield the highest use of each minute of the last KEPT_MS, the oldest first; a minute without one is a gap."""
        by_minute: dict[int, list[ProcessUse]] = {}
        for use in self._kept:
            if use.at_ms > now_ms - KEPT_MS:
                by_minute.setdefault(use.at_ms // MINUTE_MS, []).append(use)
        if by_minute:
            for minute in range(min(by_minute), max(by_minute) + 1):
                uses = by_minute.get(minute, [])
                yield ProcessUse(
                    minute * MINUTE_MS,
                    _highest([use.cpu for use in uses]),
                    _highest([use.memory for use in uses]),
                    _highest([use.memory_bytes for use in uses]),
                    _highest([use.disk for use in uses]),
                )


def _use(reading: ProcessReading, at_ms: int, before: tuple[int, float | None]) -> ProcessUse:
    before_ms, before_s = before
    cpu = None
    # A process that was started again has used less than before: that is no negative use.
    if reading.cpu_s is not None and before_s is not None and before_s <= reading.cpu_s and before_ms < at_ms:
        cpu = (reading.cpu_s - before_s) * 1_000 / (at_ms - before_ms)
    return ProcessUse(at_ms, cpu, reading.memory, reading.memory_bytes, reading.disk)


def _highest(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
