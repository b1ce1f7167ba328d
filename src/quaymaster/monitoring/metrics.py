"""The cheap counters behind the metrics of `monitoring/metric_table`, and their text.

What is counted per request or message is a plain number in this process; Prometheus's own objects exist only
while somebody scrapes. Other parts hand in a *source*, a callable asked at each scrape.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from quaymaster.monitoring.labelled import merge_metrics
from quaymaster.monitoring.metric_table import METRICS, WORKER_LABEL, Declaration

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
LINES_AT_ONCE_MAX: Final = 100
"""So many are made into text at once, which takes less than a millisecond; then others have a turn."""
SECONDS_BOUNDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0),
)
"""Upper bounds of the buckets of every duration."""


class Sample(NamedTuple):
    """A value a source gives. `labels` are in the declared order."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


Source = Callable[[], Iterable[Sample | None]]
"""Gives samples; None where it has looked at much, and others may have a turn."""
Others = Callable[[], Awaitable[Mapping[str, bytes]]]
"""Gives the texts of other processes, by the value of WORKER_LABEL."""
QueuesText = Callable[[str], Awaitable[tuple[int, bytes]]]
"""Gives an HTTP status and the metrics of the queues that the query of a URL names, in Prometheus's text format."""
HistogramSource = Callable[[], Iterable["HistogramSample"]]


class Histogram:
    """Counts durations by bucket; `bounds` are their upper ends in seconds."""

    __slots__ = ("bounds", "counts", "sum_s")

    def __init__(self, bounds: Sequence[float] = SECONDS_BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count one duration, or several that are the same."""
        self.counts[bisect_left(self.bounds, seconds)] += count
        self.sum_s += seconds * count

    def add(self, counts: Iterable[int], sum_s: float) -> None:
        """Count what was counted elsewhere, by the same bounds."""
        self.counts = [one + other for one, other in zip(self.counts, counts, strict=True)]
        self.sum_s += sum_s

    @classmethod
    def sum_of(cls, histograms: Iterable[Histogram]) -> Histogram:
        """Return one that has counted what all of these have."""
        total = cls()
        for histogram in histograms:
            total.add(histogram.counts, histogram.sum_s)
        return total

    def cumulated(self) -> list[tuple[str, float]]:
        """Return (upper bound, number of durations up to it), as Prometheus wants them."""
        total = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows


class HistogramSample(NamedTuple):
    """Durations a source gives. `labels` are in the declared order."""

    name: str
    histogram: Histogram
    labels: tuple[str, ...]


class ActionMetrics:
    """What is counted of one action: requests by code, and how long they took."""

    __slots__ = ("codes", "counts", "sum_s")

    def __init__(self) -> None:
        self.codes: dict[str, int] = {"OK": 0}
        self.counts = [0] * (len(SECONDS_BOUNDS) + 1)
        self.sum_s = 0.0

    def observe(self, code: str, seconds: float) -> None:
        """Count one request. On the path of every request: keep it under a microsecond."""
        try:
            self.codes[code] += 1
        except KeyError:
            self.codes[code] = 1
        self.counts[bisect_left(SECONDS_BOUNDS, seconds)] += 1
        self.sum_s += seconds


class Metrics:
    """Everything counted in this process. The attributes are added to where things happen."""

    def __init__(self, version: str) -> None:
        self.actions: dict[str, ActionMetrics] = {}
        self.http_events: dict[str, int] = {}
        self.messages_sent = 0
        self.messages_duplicate = 0
        self.messages_received = 0
        self.messages_deleted = 0
        self.empty_receives = 0
        self.event_loop_pauses = Histogram()
        self._version = version
        self._sources: list[Source] = []
        self._histogram_sources: list[HistogramSource] = []
        self.others: Others | None = None
        """Asked for the metrics of processes that this one speaks for."""
        self.queues: QueuesText | None = None
        """Asked for the metrics of queues, one by one; None where no console is known."""
        self.console_url = ""
        """Where browsers find the console's pages, which show all this; "": not known."""

    def action(self, name: str) -> ActionMetrics:
        """Return what is counted of the action `name`. Names come from a closed set, never from a request."""
        counted = self.actions.get(name)
        if counted is None:
            counted = self.actions[name] = ActionMetrics()
        return counted

    def count_http_event(self, event: str) -> None:
        """Count what happened to a connection."""
        self.http_events[event] = self.http_events.get(event, 0) + 1

    def add_source(self, source: Source) -> None:
        """Ask `source` for samples at every scrape. Their names must be declared in METRICS."""
        self._sources.append(source)

    def add_histograms(self, source: HistogramSource) -> None:
        """Ask `source` for durations at every scrape. Their names must be declared in METRICS."""
        self._histogram_sources.append(source)

    def render(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return b"".join(self._texts([sample for sample in self._samples() if sample is not None]))

    async def render_in_steps(self) -> bytes:
        """Return the same; it takes milliseconds, with many queues more, but no single step does."""
        samples: list[Sample] = []
        for sample in self._samples():
            if sample is None:
                await asyncio.sleep(0)
            else:
                samples.append(sample)
        texts: list[bytes] = []
        for text in self._texts(samples):
            texts.append(text)
            await asyncio.sleep(0)
        own = b"".join(texts)
        if self.others is None:
            return own
        others = await self.others()
        return await asyncio.get_running_loop().run_in_executor(
            None, merge_metrics, own, others, WORKER_LABEL
        )

    def _texts(self, samples: list[Sample]) -> Iterator[bytes]:
        """Yield the text of all metrics, a few lines at a time."""
        yield from _texts_of(self._families(samples))
        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        yield generate_latest(registry)

    def _families(self, samples: list[Sample]) -> Iterator[_Part]:
        """Yield Prometheus's families, made from the counters."""
        yield from _plain(samples)
        yield from self._histograms()

    def _histograms(self) -> Iterator[_Part]:
        yield from self._durations()
        yield from _histogram_parts("quaymaster_event_loop_pause_seconds", [((), self.event_loop_pauses)])
        by_name: dict[str, list[tuple[tuple[str, ...], Histogram]]] = {}
        for source in self._histogram_sources:
            for name, histogram, labels in source():
                by_name.setdefault(name, []).append((labels, histogram))
        for name, rows in by_name.items():
            yield from _histogram_parts(name, rows)

    def _durations(self) -> Iterator[_Part]:
        rows: list[tuple[tuple[str, ...], Histogram]] = []
        for action, counted in self.actions.items():
            histogram = Histogram()
            histogram.counts = counted.counts
            histogram.sum_s = counted.sum_s
            rows.append(((action,), histogram))
        return _histogram_parts("quaymaster_http_request_duration_seconds", rows)

    def _samples(self) -> Iterator[Sample | None]:
        for action, counted in self.actions.items():
            for code, number in counted.codes.items():
                yield Sample("quaymaster_http_requests_total", number, (action, code))
        for event, number in self.http_events.items():
            yield Sample("quaymaster_http_events_total", number, (event,))
        yield Sample("quaymaster_messages_sent_total", self.messages_sent)
        yield Sample("quaymaster_messages_duplicate_total", self.messages_duplicate)
        yield Sample("quaymaster_messages_received_total", self.messages_received)
        yield Sample("quaymaster_messages_empty_receives_total", self.empty_receives)
        yield Sample("quaymaster_messages_deleted_total", self.messages_deleted)
        yield Sample("quaymaster_build_info", 1, (self._version,))
        for source in self._sources:
            yield from source()


class _Part(NamedTuple):
    """A family, or some of its samples; `is_first`: others may follow."""

    family: Metric
    is_first: bool


class _Families(Collector):
    """Families that are made already, in place of Prometheus's registry."""

    def __init__(self, families: list[Metric]) -> None:
        self._made = families

    def collect(self) -> list[Metric]:
        """Return them."""
        return self._made


def _texts_of(parts: Iterable[_Part]) -> Iterator[bytes]:
    """Yield the text of families, a few lines at a time."""
    families: list[Metric] = []
    lines = 0
    for family, is_first in parts:
        if is_first:
            families.append(family)
            lines += len(family.samples)
        if families and (lines >= LINES_AT_ONCE_MAX or not is_first):
            yield generate_latest(_Families(families))
            families, lines = [], 0
        if not is_first:  # its help and type stand there already
            yield generate_latest(_Families([family])).split(b"\n", 2)[2]
    yield generate_latest(_Families(families))


def _plain(samples: list[Sample]) -> Iterator[_Part]:
    """Yield the families of all counters and gauges."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        assert sample.name in METRICS, f"{sample.name} is not declared in METRICS"
        by_name.setdefault(sample.name, []).append(sample)
    for name, declaration in METRICS.items():
        if declaration.kind != "histogram":
            yield from _plain_parts(name, declaration, by_name.get(name, []))


def _plain_parts(name: str, declaration: Declaration, samples: list[Sample]) -> Iterator[_Part]:
    """Yield the family of a counter or gauge, if it has samples."""
    labels = declaration.labels
    for first in range(0, len(samples), LINES_AT_ONCE_MAX):
        family: CounterMetricFamily | GaugeMetricFamily
        if declaration.kind == "counter":
            family = CounterMetricFamily(name.removesuffix("_total"), declaration.help, labels=labels)
        else:
            family = GaugeMetricFamily(name, declaration.help, labels=labels)
        for sample in samples[first : first + LINES_AT_ONCE_MAX]:
            assert len(sample.labels) == len(labels), f"{name} has the labels {labels}, not {sample.labels}"
            family.add_metric(sample.labels, sample.value)
        yield _Part(family, is_first=not first)


def _histogram_parts(name: str, rows: list[tuple[tuple[str, ...], Histogram]]) -> Iterator[_Part]:
    declaration = METRICS[name]
    family = HistogramMetricFamily(name, declaration.help, labels=declaration.labels)
    is_first = True
    for labels, histogram in rows:
        if len(family.samples) >= LINES_AT_ONCE_MAX:
            yield _Part(family, is_first)
            family, is_first = HistogramMetricFamily(name, declaration.help, labels=declaration.labels), False
        family.add_metric(labels, buckets=histogram.cumulated(), sum_value=histogram.sum_s)
    yield _Part(family, is_first)
