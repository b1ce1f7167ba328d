"""Queue metrics as Prometheus reads them: of all queues for operators (`/metrics/queues`), of an account for customers.

shard=3&shards=20    queues whose id leaves 3 when it is divided by 20
account=, prefix=    queues of an account, queues whose names begin so
top=100&by=visible   those with most; of some moment, so no base for alerts
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from quaymaster.console.known_queues import KnownQueue
from quaymaster.console.queue_monitor import QueueMonitor
from quaymaster.core.monitoring.minutes import COUNTERS, Counts
from quaymaster.core.monitoring.queue_book import STALE_MS
from quaymaster.core.values.queue_metrics import QueueMetricsRow

QUEUES_MAX: Final = 10_000
"""Queues of one scrape."""
SHARDS_MAX: Final = 10_000
_COUNTED: Final = {
    "sent": "Messages stored, duplicates not counted.",
    "sent_bytes": "Bytes of those messages, as they are stored.",
    "received": "Deliveries made.",
    "empty_receives": "Receives answered with no message.",
    "deleted": "Messages deleted by consumers.",
    "duplicate": "Sends found to be stored already.",
    "dead_lettered": "Messages moved to the dead-letter queue.",
    "expired": "Messages dropped at the end of their retention.",
}
_STATES: Final = ("visible", "in_flight", "delayed")


class ToldQueue(NamedTuple):
    """A queue as it was told last: what is needed to render it on another thread."""

    labels: str
    rows: tuple[QueueMetricsRow, ...]
    oldest_sent_ms: int
    totals: Counts


class ScrapeRefused(Exception):
    """A scrape that is not answered: an HTTP status, and a sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Selection(NamedTuple):
    shard: int
    shards: int
    account: str | None
    prefix: str
    top: int
    by: str


def select_queues(monitor: QueueMonitor, query: str) -> list[KnownQueue]:
    """Return the queues that the query of a URL names. Raises ScrapeRefused."""
    try:
        wanted = _selection(query)
    except ValueError as error:
        raise ScrapeRefused(400, f"{error}") from None
    queues = [queue for queue in monitor.queues.all(wanted.account) if _is_wanted(queue, wanted)]
    if wanted.top:
        return heapq.nlargest(wanted.top, queues, key=_order(monitor, wanted.by))
    if len(queues) > QUEUES_MAX:
        shards = -(-len(queues) * wanted.shards // (QUEUES_MAX * 4 // 5))
        raise ScrapeRefused(
            413,
            f"{len(queues)} queues are more than the {QUEUES_MAX} of one scrape. Scrape /metrics/queues?"
            f"shard=0&shards={shards} to shard={shards - 1}&shards={shards}, or name account=, prefix= or top=.",
        )
    return queues


def told_queues(monitor: QueueMonitor, queues: Iterable[KnownQueue]) -> list[ToldQueue]:
    """Return what is known now of queues; nothing of those whose values are stale."""
    least_ms = monitor.now_ms() - STALE_MS
    told = []
    for queue in queues:
        booked = monitor.booked(queue.queue_id)
        value_ms = None if booked is None else monitor.value_ms(booked)
        if booked is not None and value_ms is not None and value_ms >= least_ms:
            labels = f'account="{queue.account}",queue="{queue.name}"'
            told.append(ToldQueue(labels, booked.rows, booked.oldest_sent_ms, booked.totals))
    return told


def _selection(query: str) -> _Selection:
    given = dict(parse_qsl(query, keep_blank_values=True))
    unknown = given.keys() - {"shard", "shards", "account", "prefix", "top", "by"}
    if unknown:
        raise ValueError(f"there is no parameter {min(unknown)}")
    shards, shard = _number(given, "shards", 1, SHARDS_MAX), _number(given, "shard", 0, SHARDS_MAX)
    if not shards >= 1 or shard >= shards:
        raise ValueError("shard is a number from 0 to shards - 1")
    by = given.get("by", "visible")
    if by not in ("visible", "in_flight", "age", "sent"):
        raise ValueError("by is visible, in_flight, age or sent")
    top = _number(given, "top", 0, QUEUES_MAX)
    return _Selection(shard, shards, given.get("account"), given.get("prefix", ""), top, by)


def _number(given: dict[str, str], name: str, default: int, most: int) -> int:
    text = given.get(name, str(default))
    if not text.isascii() or not text.isdigit() or int(text) > most:
        raise ValueError(f"{name} is a number up to {most}")
    return int(text)


def _is_wanted(queue: KnownQueue, wanted: _Selection) -> bool:
    return queue.queue_id % wanted.shards == wanted.shard and queue.name.startswith(wanted.prefix)


def _order(monitor: QueueMonitor, by: str) -> Callable[[KnownQueue], float]:
    def place(queue: KnownQueue) -> float:
        booked = monitor.booked(queue.queue_id)
        if booked is None:
            return -1.0
        if by == "sent":
            return monitor.rates(queue.queue_id).sent_per_s
        if by == "age":
            return monitor.now_ms() - booked.oldest_sent_ms if booked.oldest_sent_ms else 0
        return float(sum(getattr(row, by) for row in booked.rows))

    return place


def render_queues(told: Sequence[ToldQueue], now_ms: int) -> str:
    """Return the metrics of queues in Prometheus's format."""
    lines = _family("quaymaster_queue_messages", "gauge", "Messages by state: visible, in_flight, delayed.")
    for queue in told:
        for state in _STATES:
            value = sum(getattr(row, state) for row in queue.rows)
            lines.append(f'quaymaster_queue_messages{{{queue.labels},state="{state}"}} {value}')
    lines += _family(
        "quaymaster_queue_oldest_message_age_seconds", "gauge", "Age of the oldest message; 0: there is none."
    )
    for queue in told:
        age_s = max(0, now_ms - queue.oldest_sent_ms) / 1000 if queue.oldest_sent_ms else 0
        lines.append(f"quaymaster_queue_oldest_message_age_seconds{{{queue.labels}}} {age_s}")
    lines += _family(
        "quaymaster_queue_wait_seconds_total", "counter", "Waits until first deliveries, added up."
    )
    place = COUNTERS.index("wait_ms")
    for queue in told:
        lines.append(f"quaymaster_queue_wait_seconds_total{{{queue.labels}}} {queue.totals[place] / 1000}")
    for name, meaning in _COUNTED.items():
        family, place = f"quaymaster_queue_{name}_total", COUNTERS.index(name)
        lines += _family(family, "counter", meaning)
        lines += [f"{family}{{{queue.labels}}} {queue.totals[place]}" for queue in told]
    return "".join(f"{line}\n" for line in lines)


def _family(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
