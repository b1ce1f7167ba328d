"""The page of usage queries, a warehouse to ask, and the answers as Python counts them from the records.

docs/guides/usage-queries.md ──blocks──▶ an engine ──rows──▶ tidy ┐
records of the site ──────────ANSWERS─────────────────▶ tidy ┴──▶ equal
"""

from __future__ import annotations

import datetime
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from harness.pipeline_site import Site
from harness.usage_blocks import HOUR_US, SECOND_US, FrontEnd, context_of, context_of_no_queue
from quaymaster.frontend.usage.incarnations import Incarnation, lost_block
from quaymaster.protocol.usage.usage_records import UsageContext, UsageRecord
from quaymaster_pipeline.billing.rules import billed_requests_of, billing_class_of
from quaymaster_pipeline.checks.brokers.broker_counts import QueueCount
from quaymaster_pipeline.jobs.queues import keep_queues
from quaymaster_pipeline.warehouse.schemas import SUMMED_UP
from quaymaster_pipeline.warehouse.tables import Warehouse

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "usage-queries.md"
DATA = "quaymaster-data"
"""The data directory that the page's Python opens, relative to where it runs."""
DAY = datetime.date(2026, 11, 22)
"""The day that some queries are about; the site has usage of this day and the next."""
OPENERS = {
    "DuckDB": "open_tables(",
    "DuckDB without Quaymaster": "read_parquet(",
    "Spark": "register_views(",
}
"""What the blocks that open tables do; those are all under one heading."""
NOT_SUMS = {"latency_us_max", "below_us", "queue_sk", "revision"}

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """What was recorded: all requests, which of them came late, and the queues that exist."""

    site: Site
    records: Sequence[UsageRecord]
    late: Sequence[UsageRecord]
    queues: Sequence[QueueCount]

    @property
    def of_day(self) -> list[UsageRecord]:
        return [record for record in self.records if day_of(record) == DAY]


def blocks_of(language: str) -> dict[str, str]:
    """Return the page's blocks of a language by their heading, or by the engine that they open tables for."""
    found: dict[str, str] = {}
    heading = ""
    text = PAGE.read_text(encoding="utf-8")
    for line, kind, block in re.findall(
        r"^(?:#+ ([^\n]+)|```(\w+)\n(.*?)^```)$", text, re.MULTILINE | re.DOTALL
    ):
        if line:
            heading = line
        elif kind == language:
            name = next((engine for engine, sign in OPENERS.items() if sign in block), heading)
            assert found.setdefault(name, block) is block, f"two blocks are under {name}"
    return found


def make_site(directory: Path) -> Asked:
    """Make a warehouse in `directory/quaymaster-data` that has something to answer to each question."""
    site = Site(directory / DATA)
    runs = FrontEnd("runs", step_us=120 * SECOND_US, besides=tuple(_contexts()))
    gone = FrontEnd("gone", step_us=SECOND_US)
    # The hours of `gone` close, as another front end seals for it; what it ships after that is late.
    lost = lost_block("gone", Incarnation(2, runs.time_us, seals=1), "eu-west-1").data
    for rows in (250, 250):
        site.ship(runs.block(rows), *([gone.block(5), lost] if not gone.records else []))
        site.run()
    before = len(gone.records)
    site.ship(gone.block(20))
    site.run()
    queues = [_queue(number, f"queue-{number - 100}") for number in (100, 101, 102)]
    queues += [_queue(7, "forgotten"), _queue(8, "unused.fifo")]
    noon = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
    keep_queues(site.warehouse, [*queues, _queue(9, "gone")], noon)
    keep_queues(site.warehouse, queues, noon + datetime.timedelta(minutes=10))
    return Asked(site, runs.records + gone.records, gone.records[before:], queues)


def _contexts() -> Iterable[UsageContext]:
    for number, address in enumerate(("10.0.0.7", "192.0.2.8")):
        yield msgspec.structs.replace(
            context_of("DeleteQueue", number),
            category="management",
            read_only=False,
            principal_id=f"arn:aws:iam::1:user/admin-{number}",
            source_ip=address,
        )
    denied = context_of("DeleteQueue", 2, status=403)
    yield msgspec.structs.replace(denied, category="management", read_only=False)
    throttled = context_of("SendMessage", 0, status=403)
    yield msgspec.structs.replace(throttled, error_code="RequestThrottled")
    yield msgspec.structs.replace(context_of("SendMessage", 1, status=503), error_code="ServiceUnavailable")
    yield msgspec.structs.replace(
        context_of("SendMessage", 1, status=400), error_code="MissingParameter", queue_id=0, queue_type=""
    )
    yield context_of_no_queue("ListQueues", "000000000001")
    yield context_of_no_queue("Unknown", "", status=403)


def _queue(queue_id: int, name: str) -> QueueCount:
    created = datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC) + datetime.timedelta(minutes=queue_id)
    kind = "fifo" if name.endswith(".fifo") else "standard"
    return QueueCount(queue_id, "000000000001", name, 7, 5, 0, True, int(created.timestamp() * 1000), kind)


def split_sums(warehouse: Warehouse) -> None:
    """Make two rows of each row of gold that add up to it: readers may not count on one row for a key."""
    with warehouse.ingesting():
        for spec in SUMMED_UP:
            table = warehouse.table(spec)
            rows = table.read()
            halves = [rows, rows]
            for at, field in enumerate(spec.schema):
                if pa.types.is_integer(field.type) and field.name not in NOT_SUMS:
                    half = pc.divide(rows.column(field.name), 2)
                    parts = half, pc.subtract(rows.column(field.name), half)
                    halves = [of.set_column(at, field, part) for of, part in zip(halves, parts, strict=True)]
            files = table.files()
            adds = [file for number, of in enumerate(halves) for file in table.write(f"half-{number}", of)]
            assert table.commit("halves", 0, adds, removes=files)
            assert table.rows == 2 * rows.num_rows > 0


def tidy(rows: Iterable[Sequence[Any]]) -> list[Row]:
    """Return rows in Python's own types: whole numbers, others with two places, times in UTC."""
    return [tuple(map(_tidy, row)) for row in rows]


def _tidy(value: Any) -> Any:
    match value:
        case float() | Decimal():
            return Decimal(str(value)).quantize(Decimal("0.01"), ROUND_HALF_UP)
        case datetime.datetime():
            return value.astimezone(datetime.UTC)
    return value


def day_of(record: UsageRecord) -> datetime.date:
    return time_of(record.event_time_us).date()


def time_of(us: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(us // 1_000_000, datetime.UTC) + datetime.timedelta(
        microseconds=us % 1_000_000
    )


def hour_of(record: UsageRecord) -> datetime.datetime:
    return time_of(record.event_time_us // HOUR_US * HOUR_US)


def billed(record: UsageRecord) -> int:
    return billed_requests_of(
        record.account_id, record.http_status, record.chunks, record.protocol, action=record.action
    )


def percent(part: int, whole: int) -> Decimal:
    return (Decimal(100) * part / whole).quantize(Decimal("0.01"), ROUND_HALF_UP)


def is_send(record: UsageRecord) -> bool:
    return record.action in ("SendMessage", "SendMessageBatch")


def grouped(
    records: Iterable[UsageRecord], key: Callable[[UsageRecord], Row]
) -> dict[Row, list[UsageRecord]]:
    found: defaultdict[Row, list[UsageRecord]] = defaultdict(list)
    for record in records:
        found[key(record)].append(record)
    return found


def most_usage(asked: Asked) -> list[Row]:
    rows = [
        (*key, len(of), sum(map(billed, of)), sum(one.payload_bytes for one in of))
        for key, of in grouped(asked.records, lambda one: (one.account_id,)).items()
    ]
    return sorted(rows, key=lambda row: (-row[2], row[0]))[:10]


def cost_drivers(asked: Asked) -> list[Row]:
    def key(one: UsageRecord) -> Row:
        return one.account_id, day_of(one), one.action, billing_class_of(one.action, one.queue_type)

    rows = [(*of_key, len(of), sum(map(billed, of))) for of_key, of in grouped(asked.records, key).items()]
    return sorted((row for row in rows if row[5]), key=lambda row: (row[0], row[1], -row[5], row[2], row[3]))


def error_rate(asked: Asked) -> list[Row]:
    rows = []
    for key, of in sorted(grouped(asked.of_day, lambda one: (hour_of(one),)).items()):
        client = sum(400 <= one.http_status < 500 for one in of)
        server = sum(one.http_status >= 500 for one in of)
        rows.append((*key, len(of), client, server, percent(client + server, len(of))))
    return rows


def empty_receives(asked: Asked) -> list[Row]:
    receives = [record for record in asked.records if record.action == "ReceiveMessage"]
    rows = []
    for key, of in grouped(receives, lambda one: (one.account_id, one.queue_name, one.queue_id)).items():
        empty = sum(one.empty_receive for one in of)
        rows.append((*key, len(of), empty, percent(empty, len(of))))
    return sorted((row for row in rows if row[4]), key=lambda row: (-row[4], row[2]))[:20]


def most_bytes(asked: Asked) -> list[Row]:
    rows = []
    with_queue = [record for record in asked.records if record.queue_id]
    for key, of in grouped(with_queue, lambda one: (one.queue_name, one.queue_id)).items():
        sent = sum(one.payload_bytes for one in of if is_send(one))
        received = sum(one.payload_bytes for one in of if one.action == "ReceiveMessage")
        rows.append((*key, sent, received))
    return sorted(rows, key=lambda row: (-row[2] - row[3], row[1]))[:10]


def busiest_hours(asked: Asked) -> list[Row]:
    messages: Counter[Row] = Counter()
    for one in asked.records:
        if one.queue_id and is_send(one):
            messages[one.queue_name, one.queue_id, hour_of(one)] += one.message_count
    best: dict[int, Row] = {}
    for (name, queue_id, hour), count in sorted(messages.items(), key=lambda item: item[0][2]):
        if queue_id not in best or count > best[queue_id][3]:
            best[queue_id] = (name, queue_id, hour, count)
    return sorted(best.values(), key=lambda row: (-row[3], row[1]))


def denied(asked: Asked) -> list[Row]:
    refused = [record for record in asked.of_day if record.http_status in (403, 429, 503)]
    rows = []
    for key, of in grouped(
        refused, lambda one: (one.account_id, one.queue_name, one.action, one.error_code)
    ).items():
        times = [time_of(one.event_time_us) for one in of]
        rows.append((*key, len(of), min(times), max(times)))
    return sorted(rows, key=lambda row: (-row[4], *row[:4]))


def percentiles(asked: Asked) -> list[Row]:
    rows = []
    for key, of in sorted(grouped(asked.of_day, lambda one: (one.action,)).items()):
        latencies = sorted(one.latency_us for one in of)
        # The smallest one that a share of all requests is not above.
        places = [-(-len(of) * share // 100) - 1 for share in (50, 95, 99)]
        rows.append((*key, *(1 << latencies[place].bit_length() for place in places)))
    return rows


def deleted_queues(asked: Asked) -> list[Row]:
    return sorted(
        (
            time_of(one.event_time_us),
            one.account_id,
            one.queue_name,
            one.principal_id,
            one.access_key_id,
            one.source_ip,
            one.user_agent,
        )
        for one in asked.records
        if one.action == "DeleteQueue" and one.http_status == 200
    )


def late_usage(asked: Asked) -> list[Row]:
    found = grouped(asked.late, lambda one: (one.account_id, hour_of(one), one.front_end))
    rows = [(*key, len(of), sum(map(billed, of))) for key, of in found.items()]
    return sorted(rows, key=lambda row: (row[1], row[0], row[2]))


def unused_queues(asked: Asked) -> list[Row]:
    used = {record.queue_id for record in asked.records}
    return sorted(
        (queue.account_id, queue.queue_name, time_of(queue.created_ms * 1000))
        for queue in asked.queues
        if queue.queue_id not in used
    )


ANSWERS: Mapping[str, Callable[[Asked], list[Row]]] = {
    "Accounts with the most usage": most_usage,
    "Cost drivers by day": cost_drivers,
    "Error rate by hour": error_rate,
    "Empty receives": empty_receives,
    "Queues with the most bytes": most_bytes,
    "Busiest hour of each queue": busiest_hours,
    "Denied and throttled requests": denied,
    "Latency percentiles": percentiles,
    "Deleted queues": deleted_queues,
    "Late usage": late_usage,
    "Unused queues": unused_queues,
}
"""What each SQL query of the page must give, by its heading."""
