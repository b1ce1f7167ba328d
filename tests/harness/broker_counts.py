"""Brokers that count what front ends of the harness did, and comparisons of that with usage."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path

from harness.built_once import built_once
from harness.pipeline_site import Site
from harness.usage_blocks import NOON_US, SECOND_US, FrontEnd
from quaymaster.protocol.usage.usage_blocks import Seal, SealReason
from quaymaster.protocol.usage.usage_records import UsageContext
from quaymaster_pipeline.checks.brokers.allowances import DELETES, SENDS
from quaymaster_pipeline.checks.brokers.broker_counts import (
    BrokerComparison,
    Compared,
    QueueCount,
    Unkept,
    check_brokers,
    compare_brokers,
    write_broker_comparison,
    write_counts,
)
from quaymaster_pipeline.checks.brokers.broker_state import LastCheck, next_number
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.warehouse.schemas import LOSSES
from quaymaster_pipeline.warehouse.tables import Warehouse

QUEUES = (100, 101, 102)
LATE_US = NOON_US + 7200 * SECOND_US


def time_of(time_us: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(time_us / 1_000_000, datetime.UTC)


def keep_comparison(tables: Warehouse, compared: datetime.datetime) -> None:
    """Keep that the brokers of a time were compared, and nothing differed."""
    total = BrokerComparison("brokers", "sends", compared, 0, 0, 0, 0, 0, 0)
    counted_us = int(compared.timestamp()) * SECOND_US
    note = [total._asdict() | {"counted_time": compared.isoformat()}]
    check = LastCheck(counted_us, counted_us, 0, 0, totals=note)
    unkept = Unkept(next_number(tables), check, [], LOSSES.schema.empty_table())
    write_broker_comparison(tables, Compared((total,), (), unkept), compared)


def done_until(time_us: int, *front_ends: FrontEnd) -> Counter[tuple[int, str]]:
    """Return what brokers did, if each record was answered at once and nothing was lost."""
    found: Counter[tuple[int, str]] = Counter()
    for front_end in front_ends:
        for record in front_end.records:
            if record.event_time_us <= time_us and record.queue_id:
                if record.action in SENDS:
                    found[record.queue_id, "sends"] += record.message_count
                if record.action in DELETES:
                    found[record.queue_id, "deletions"] += record.message_count
    return found


def count_of(
    done: Counter[tuple[int, str]],
    *,
    more: int = 0,
    counted_from: int = 0,
    is_durable: bool = True,
    created_us: int = NOON_US + SECOND_US,
) -> list[QueueCount]:
    return [
        QueueCount(
            queue,
            f"{queue % 2 + 1:012}",
            f"queue-{queue - 100}",
            done[queue, "sends"] + (more if queue == 101 else 0),
            done[queue, "deletions"],
            counted_from,
            is_durable,
            created_us // 1000,
            "standard",
        )
        for queue in QUEUES
    ]


def keep(site: Site, counts: list[QueueCount], time_us: int, *, accept: bool = False) -> None:
    warehouse = site.warehouse
    with warehouse.ingesting():
        write_counts(warehouse, counts, time_of(time_us), time_of(time_us + SECOND_US), accept=accept)


def compare(site: Site, *, now_us: int = LATE_US) -> Compared | None:
    """Compare, and keep nothing of it."""
    warehouse = site.warehouse
    return compare_brokers(warehouse, coverage_of(warehouse), now=time_of(now_us))


def differences(site: Site) -> tuple[int, int]:
    """Return those of sends and deletions."""
    compared = compare(site)
    assert compared is not None
    sends, deletions = compared.totals
    return sends.difference, deletions.difference


@built_once
def started(tmp_path: Path) -> tuple[Site, FrontEnd, FrontEnd]:
    """Return a site with an hour and more of two front ends, which are idle since."""
    site, one, two = (
        Site(tmp_path),
        FrontEnd("a", step_us=9 * SECOND_US),
        FrontEnd("b", step_us=5 * SECOND_US),
    )
    site.ship(one.block(0), two.block(0), one.block(600), two.block(300))
    one.time_us = two.time_us = LATE_US
    site.ship(one.block(0), two.block(0))
    # Early by the pipeline's clock, which never goes back: tests take more at times of theirs.
    site.run(now=time_of(NOON_US))
    return site, one, two


EVERY_US = 600 * SECOND_US


class Cluster:
    """Front ends and brokers that do what is recorded, and a pipeline that compares both every ten minutes."""

    def __init__(self, directory: Path) -> None:
        self.site, one, two = started(directory)
        self.alive = [one, two]
        self.silent: list[FrontEnd] = []
        """Those of which nothing comes any more by itself."""
        self.time_us = LATE_US
        self.created_us = NOON_US + SECOND_US
        self.listed = len(QUEUES)
        """How many queues brokers list."""
        self.more = 0
        """How many messages of queue 101 the brokers have that no front end has recorded."""

    def use(self, front_end: FrontEnd, rows: int, *, before_us: int = 300 * SECOND_US) -> bytes:
        """Return a block of requests that are made some time before the next comparison."""
        front_end.time_us = self.time_us + EVERY_US - before_us
        return front_end.block(rows)

    def stranger(self, *, rows: int = 0, besides: tuple[UsageContext, ...] = ()) -> FrontEnd:
        """Return a front end that is new, and recorded some requests before the next comparison."""
        number = len(self.alive) + len(self.silent)
        front_end = FrontEnd(f"c{number}", step_us=SECOND_US // 10, besides=besides)
        self.alive.append(front_end)
        self.site.ship(self.use(front_end, rows))
        return front_end

    def crash(self, front_end: FrontEnd, reason: SealReason = "crashed") -> FrontEnd:
        """Let a front end end without order, and another incarnation of it say so, which this returns."""
        number = front_end.incarnation
        again = FrontEnd(front_end.name, incarnation=number + 1, time_us=front_end.time_us)
        end = None if reason == "lost" else front_end.sequence
        self.site.ship(again.block(0, seal=Seal(number, end, reason)))
        if front_end in self.alive:
            self.alive.remove(front_end)
        if front_end not in self.silent:
            self.silent.append(front_end)
        self.alive.append(again)
        return again

    def count(self, *, accept: bool = False) -> None:
        """Let ten minutes pass and the brokers be counted, and the tables have all usage of before."""
        self.time_us += EVERY_US
        for front_end in self.alive:
            front_end.time_us = max(front_end.time_us, self.time_us + 120 * SECOND_US)
            self.site.ship(front_end.block(0))
        self.site.run(now=time_of(self.time_us + 130 * SECOND_US))
        done = done_until(self.time_us, *self.alive, *self.silent)
        counts = count_of(done, more=self.more, created_us=self.created_us)[: self.listed]
        keep(self.site, counts, self.time_us, accept=accept)

    def compare(self) -> Compared:
        """Compare, and keep what was found."""
        warehouse = self.site.warehouse
        now = time_of(self.time_us + 200 * SECOND_US)
        found = check_brokers(warehouse, coverage_of(warehouse), now=now)
        assert found is not None
        return found

    def check(self, *, accept: bool = False) -> tuple[int, int]:
        """Let ten minutes pass and compare; return of sends how many are booked, and how many differ."""
        self.count(accept=accept)
        sends = self.compare().totals[0]
        return sends.allowed, sends.difference

    def losses(self) -> list[tuple[int, str, str, int]]:
        """Return what was booked and taken back: queue, measure, cause, messages."""
        rows = self.site.warehouse.table(LOSSES).read().sort_by("counted_time").to_pylist()
        return [(row["queue_id"], row["measure"], row["cause"], row["messages"]) for row in rows]
