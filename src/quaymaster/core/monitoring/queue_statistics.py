"""The metrics of `AWS/SQS`, and CloudWatch's statistics over what is kept of each minute.

    kept: minutes, or several together ──part of a period──▶ Summary ──statistic──▶ number

A gauge or a counter has one sample a minute; SentMessageSize has one for each message, of which only the sum is known.

Source: Amazon SQS Developer Guide, "Available CloudWatch metrics for Amazon SQS"; CloudWatch User Guide, "CloudWatch
statistics definitions".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from quaymaster.core.monitoring.minutes import VALUES

NAMESPACE: Final = "AWS/SQS"
DIMENSION: Final = "QueueName"
STATISTICS: Final = ("SampleCount", "Average", "Sum", "Minimum", "Maximum")
PERCENTILE_MAX: Final = 100.0
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,10})?|100)")


class QueueMetric(NamedTuple):
    """A metric: where its value is, its unit, and whether only FIFO queues have it.

    `samples`: the value that tells how many samples there are; None: one a minute.
    """

    value: str
    unit: str
    is_of_fifo: bool = False
    samples: str | None = None


METRICS: Final[dict[str, QueueMetric]] = {
    "NumberOfMessagesSent": QueueMetric("sent", "Count"),
    "NumberOfMessagesReceived": QueueMetric("received", "Count"),
    "NumberOfMessagesDeleted": QueueMetric("deleted", "Count"),
    "NumberOfEmptyReceives": QueueMetric("empty_receives", "Count"),
    "SentMessageSize": QueueMetric("sent_bytes", "Bytes", samples="sent"),
    "ApproximateNumberOfMessagesVisible": QueueMetric("visible", "Count"),
    "ApproximateNumberOfMessagesNotVisible": QueueMetric("in_flight", "Count"),
    "ApproximateNumberOfMessagesDelayed": QueueMetric("delayed", "Count"),
    "ApproximateAgeOfOldestMessage": QueueMetric("oldest_age_s", "Seconds"),
    "NumberOfDeduplicatedSentMessages": QueueMetric("duplicate", "Count", is_of_fifo=True),
    "ApproximateNumberOfGroupsWithInflightMessages": QueueMetric(
        "groups_in_flight", "Count", is_of_fifo=True
    ),
}


class Summary(NamedTuple):
    """Several samples of one value: how many, their sum, the least and the greatest."""

    samples: int
    total: int
    least: int
    greatest: int


class Kept(NamedTuple):
    """What is kept of a time that began at `at_s`: a summary for each of VALUES, None where there is no sample."""

    at_s: int
    summaries: tuple[Summary | None, ...]


def summary_of(value: int | None) -> Summary | None:
    """Return the summary of one sample."""
    return None if value is None else Summary(1, value, value, value)


def join(summaries: Iterable[Summary | None]) -> Summary | None:
    """Return one summary of all."""
    there = [one for one in summaries if one is not None]
    if len(there) <= 1:
        return there[0] if there else None
    return Summary(
        sum(one.samples for one in there),
        sum(one.total for one in there),
        min(one.least for one in there),
        max(one.greatest for one in there),
    )


def percentile_of(statistic: str) -> float | None:
    """Return the percentile that a statistic such as p99.9 asks for; None: it is none."""
    found = _PERCENTILE.fullmatch(statistic)
    return None if found is None else float(found[1])


def is_statistic(statistic: str) -> bool:
    """Tell whether there is such a statistic."""
    return statistic in STATISTICS or percentile_of(statistic) is not None


def has_statistic(metric: QueueMetric, statistic: str) -> bool:
    """Tell whether a metric has a statistic: of messages' sizes only the sum is known."""
    return metric.samples is None or statistic in ("SampleCount", "Average", "Sum")


def evaluate(metric: QueueMetric, statistic: str, kept: Sequence[Kept]) -> float | None:
    """Return a statistic of a metric over what was kept of a period; None: there is nothing to say."""
    place = VALUES.index(metric.value)
    found = join(one.summaries[place] for one in kept)
    if found is None:
        return None
    count = found.samples
    if metric.samples is not None:
        samples = join(one.summaries[VALUES.index(metric.samples)] for one in kept)
        count = 0 if samples is None else samples.total
        if not count:
            return None
    if statistic == "SampleCount":
        return float(count)
    if statistic == "Sum":
        return float(found.total)
    if statistic == "Average":
        return found.total / count
    if statistic == "Minimum":
        return float(found.least)
    if statistic == "Maximum":
        return float(found.greatest)
    percentile = percentile_of(statistic)
    assert percentile is not None, "statistics are checked before"
    return _percentile(percentile, [one.summaries[place] for one in kept])


def _percentile(percentile: float, summaries: Sequence[Summary | None]) -> float | None:
    """Return a percentile, between two samples in proportion; None where not each sample is known."""
    samples: list[int] = []
    for one in summaries:
        if one is not None:
            if one.least != one.greatest:
                return None
            samples += [one.least] * one.samples
    samples.sort()
    rank = percentile / PERCENTILE_MAX * (len(samples) - 1)
    below = int(rank)
    above = min(below + 1, len(samples) - 1)
    return samples[below] + (samples[above] - samples[below]) * (rank - below)
