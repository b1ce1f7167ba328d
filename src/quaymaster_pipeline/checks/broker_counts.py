"""Whether usage is what the brokers did: messages sent and deleted, by what each queue's journal has counted.

    brokers say at T: so many sends and deletes of this queue, ever      (kept with the messages, replicated like them)
    usage says:       at least what was answered some time before T, at most what was answered some time after T

What usage has, the brokers must have, to the last message. The brokers may have more, within a bound that is known:
what a crash of a front end took, what was dropped for want of space, what was answered by an error although it was
done (`allowances`). Anything else is a difference, and nothing is billed on it.

A queue is compared from its baseline on. One that was made after usage was first recorded begins at 0. Another one, or
one whose counts do not reach back to its beginning, begins where it was first counted: what was before is not known.
From there on causes count, too: one of before explains nothing that is missing since.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.checks.allowances import DELETES, MESSAGES_PER_REQUEST, SENDS, SKEW_US, KnownCauses
from quaymaster_pipeline.checks.reconciliation import APP as RECONCILIATION_APP
from quaymaster_pipeline.usage.sequences import Coverage
from quaymaster_pipeline.warehouse.data_files import DataFile, read_row_groups
from quaymaster_pipeline.warehouse.schemas import (
    BROKER_COUNTS,
    RECONCILIATION,
    USAGE_EVENTS,
    USAGE_HOURLY,
)
from quaymaster_pipeline.warehouse.sums import add_up_files
from quaymaster_pipeline.warehouse.tables import Warehouse, within
from quaymaster_pipeline.warehouse.times import HOUR_US, bound_of_time, time_of_us, us_of_time

APP: Final = "broker_counts"
SCOPE: Final = "brokers"
"""The scope of a comparison over all queues."""
MEASURES: Final = ("sends", "deletions")
ANSWERED_AFTER_US: Final = 60_000_000
"""What a broker has done is answered, and so recorded, within this, clocks that differ included."""
COUNTS_KEPT: Final = 200
"""Counts before that many are forgotten; baselines stay."""
COUNT: Final = "count"
BASELINE: Final = "baseline"
ACCEPTED: Final = "accepted"
"""A baseline that an operator set: what was before is not compared."""
NO_QUEUE: Final = 0
"""In usage, requests of which nobody knows the queue."""


class QueueCount(NamedTuple):
    """What the brokers say of one queue."""

    queue_id: int
    account_id: str
    queue_name: str
    sends: int
    deletions: int
    counted_from: int
    is_durable: bool
    created_ms: int
    queue_type: str


class BrokerComparison(NamedTuple):
    """One measure at the brokers and in usage. `allowed`: so many may be missing in usage, for causes that are known.

    Of a queue whose baseline is not 0, `brokers` is what was counted since. `missing` in usage and `surplus` there are
    what is outside of `usage_low` to `usage_high`; of all queues, the sums of theirs. What may be missing of any queue
    is allowed to each alone, but once to all; what may of one queue is allowed to all as far as it is missing there.
    """

    scope: str
    measure: str
    counted_time: datetime.datetime
    brokers: int
    usage_low: int
    usage_high: int
    missing: int
    surplus: int
    allowed: int

    @property
    def difference(self) -> int:
        """0, or by how much usage is above what the brokers have, or below it by more than is allowed."""
        return self.surplus + max(0, self.missing - self.allowed)


class Compared(NamedTuple):
    """What was compared over all queues, and besides each queue that is not exactly as it should be."""

    totals: tuple[BrokerComparison, ...]
    queues: tuple[BrokerComparison, ...]

    @property
    def difference(self) -> int:
        """0, or no invoice is issued."""
        return sum(one.difference for one in self.totals)


class UsageAt(NamedTuple):
    """What was recorded of a queue up to a time: messages sent; deleted, those that were gone before once less.

    Besides, how many requests that failed for our own reasons may have sent or deleted all the same.
    """

    sends: int = 0
    deletions: int = 0
    deletions_with_gone: int = 0
    unanswered_sends: int = 0
    unanswered_deletions: int = 0


class UsageByTime:
    """Messages sent and deleted by queue, as of any time, from gold for whole hours and silver for the rest."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        names = ["hour", "queue_sk", "action", "messages", "duplicates", "errors_5xx"]
        hourly = warehouse.table(USAGE_HOURLY)
        self._hourly = _of_queues(add_up_files(hourly, hourly.files(), names[:3], names))
        self._known: dict[int, dict[int, UsageAt]] = {}
        self._ever = _sums(self._hourly.select(_COUNTED))

    def unanswered(self, queue_id: int, measure: str, since_us: int | None) -> int:
        """Return how many messages of a queue requests may have sent or deleted that failed for our own reasons.

        Those that failed shortly before may have been done after. Of a transaction, asking again for its commit tells
        how many they were.
        """
        before = {} if since_us is None else self._at(since_us - ANSWERED_AFTER_US)
        ever, then = (usage.get(queue_id, UsageAt()) for usage in (self._ever, before))
        if measure == "sends":
            return ever.unanswered_sends - then.unanswered_sends
        return ever.unanswered_deletions - then.unanswered_deletions

    def between(self, count: Mapping[str, Any], measure: str) -> tuple[int, int]:
        """Return least and most that usage may say of a queue that was counted so."""
        queue_id = count["queue_id"]
        low = self._at(us_of_time(count["counted_time"]) - SKEW_US).get(queue_id, UsageAt())
        high = self._at(us_of_time(count["until_time"]) + ANSWERED_AFTER_US).get(queue_id, UsageAt())
        if measure == "sends":
            return low.sends, high.sends
        return low.deletions, high.deletions_with_gone

    def _at(self, time_us: int) -> dict[int, UsageAt]:
        found = self._known.get(time_us)
        if found is None:
            hour_us = time_us // HOUR_US * HOUR_US
            hours = self._hourly.column("hour").cast(pa.int64())
            parts = [self._hourly.filter(pc.less(hours, hour_us)).select(_COUNTED)]
            parts += self._of_hour(hour_us, time_us)
            found = self._known[time_us] = _sums(pa.concat_tables(parts))
        return found

    def _of_hour(self, hour_us: int, time_us: int) -> Iterable[Any]:
        table = self._warehouse.table(USAGE_EVENTS)
        hour = bound_of_time(time_of_us(hour_us))
        for file in table.files():
            low, high = file.bounds["hour"]
            if not low <= hour <= high:
                continue
            names = ["hour", "event_time", "http_status", "queue_sk", "action", "messages", "duplicates"]
            for rows in read_row_groups(table.place, USAGE_EVENTS, file.path, names):
                failed = pc.greater_equal(rows.column("http_status"), 500).cast(pa.int64())
                rows = rows.append_column("errors_5xx", failed)
                times = rows.column("event_time").cast(pa.int64())
                yield _of_queues(rows.filter(within(times, hour_us, time_us + 1))).select(_COUNTED)


def write_counts(
    warehouse: Warehouse,
    counts: Sequence[QueueCount],
    counted: datetime.datetime,
    until: datetime.datetime,
    *,
    accept: bool = False,
) -> None:
    """Keep what the brokers said between two times. `accept`: all queues are compared from here on."""
    table = warehouse.table(BROKER_COUNTS)
    files = table.files()
    baselines = [file for file in files if _is_baseline(file)]
    older = sorted((file for file in files if not _is_baseline(file)), key=_counted_text)
    known = {} if accept else {row["queue_id"]: row for row in table.read(files=baselines).to_pylist()}
    rows = [_row(COUNT, count, counted, until) for count in counts]
    # What is counted from somewhere else than before cannot be compared with what was before.
    fresh = {
        row["queue_id"]: row | {"kind": ACCEPTED if accept else BASELINE}
        for row in rows
        if known.get(row["queue_id"], {}).get("counted_from") != row["counted_from"]
    }
    adds = table.write(COUNT, _table(rows))
    removes = older[: max(0, len(older) + 1 - COUNTS_KEPT)]
    if fresh:
        adds += table.write(BASELINE, _table([*(known | fresh).values()]))
        removes += baselines
    table.commit(APP, None, adds, removes=removes)


def last_counted(warehouse: Warehouse) -> datetime.datetime | None:
    """Return when the brokers were asked last, None when they never were."""
    files = [file for file in warehouse.table(BROKER_COUNTS).files() if not _is_baseline(file)]
    return max((_bound(file, "counted_time") for file in files), default=None)


def set_back_from(warehouse: Warehouse, now: datetime.datetime) -> datetime.datetime | None:
    """Return the latest time that usage or counts have, if it is later than `now` can be; None if it is not.

    Then a clock was set back, or one is ahead. Of usage up to a time in between nobody knows whether it was recorded
    before the brokers were counted at that time, or will be after: so nothing is counted and compared until then.
    """
    times = [_bound(file, "until_time") for file in warehouse.table(BROKER_COUNTS).files()]
    times += [_bound(file, "event_time") for file in warehouse.table(USAGE_EVENTS).files()]
    latest = max(times, default=now)
    return latest if latest > now + datetime.timedelta(microseconds=SKEW_US) else None


def newest_comparable(
    warehouse: Warehouse, closed_us: int | None, after: datetime.datetime | None
) -> DataFile | None:
    """Return the newest counts later than `after` that can be compared with usage that is whole up to `closed_us`."""
    # A file is what was counted at one time.
    comparable = [
        file
        for file in warehouse.table(BROKER_COUNTS).files()
        if not _is_baseline(file)
        and (closed_us is None or us_of_time(_bound(file, "until_time")) + ANSWERED_AFTER_US <= closed_us)
    ]
    newest = max(comparable, key=_counted_text, default=None)
    if newest is None or (after is not None and _bound(newest, "counted_time") <= after):
        return None
    return newest


def compare_brokers(
    warehouse: Warehouse,
    coverage: Coverage,
    *,
    now: datetime.datetime,
    after: datetime.datetime | None = None,
) -> Compared | None:
    """Compare the newest counts of a time for which usage is whole.

    None when there are none later than `after`, or none can be compared since a clock was set back.
    """
    newest = newest_comparable(warehouse, coverage.closed_until_us(), after)
    if newest is None or set_back_from(warehouse, now) is not None:
        return None
    table = warehouse.table(BROKER_COUNTS)
    counts = table.read(files=[newest]).to_pylist()
    baselines = table.read(files=[file for file in table.files() if _is_baseline(file)]).to_pylist()
    usage = UsageByTime(warehouse)
    causes = KnownCauses(warehouse, coverage)
    return compare_counts(counts, {row["queue_id"]: row for row in baselines}, usage, causes)


def compare_counts(
    counts: Sequence[Mapping[str, Any]],
    baselines: Mapping[int, Mapping[str, Any]],
    usage: UsageByTime,
    causes: KnownCauses,
) -> Compared:
    """Compare rows of ops.broker_counts with usage."""
    began_us = causes.began_us
    starts = [(row, baseline_of(row, baselines[row["queue_id"]], began_us)) for row in counts]
    since_us = min(_since_us(row, baseline) for row, baseline in starts)
    of_all = causes.of_all(since_us)
    totals, queues = [], []
    for measure in MEASURES:
        # Nobody knows of which queue, so it may have been any.
        shared = of_all + usage.unanswered(NO_QUEUE, measure, since_us)
        each, explained = [], 0
        for row, baseline in starts:
            own_since_us = None if baseline is None else us_of_time(baseline["counted_time"])
            own = causes.of_queue(row["queue_id"], measure, own_since_us)
            own += usage.unanswered(row["queue_id"], measure, own_since_us)
            one = _compare_queue(row, baseline, measure, usage, own + shared)
            explained += min(own, one.missing)
            each.append(one)
        queues += [one for one in each if one.missing or one.surplus]
        # Sums of what is missing and of what is too many: the one does not make up for the other.
        totals.append(
            BrokerComparison(
                SCOPE,
                measure,
                counts[0]["counted_time"],
                brokers=sum(one.brokers for one in each),
                usage_low=sum(one.usage_low for one in each),
                usage_high=sum(one.usage_high for one in each),
                missing=sum(one.missing for one in each),
                surplus=sum(one.surplus for one in each),
                allowed=shared + explained,
            )
        )
    return Compared(tuple(totals), tuple(queues))


def baseline_of(
    count: Mapping[str, Any], baseline: Mapping[str, Any], began_us: int
) -> Mapping[str, Any] | None:
    """Return from which count on a queue is compared; None when that is its beginning."""
    is_from_0 = not count["counted_from"] and us_of_time(baseline["created_time"]) > began_us
    return baseline if baseline["kind"] == ACCEPTED or not is_from_0 else None


def _since_us(count: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> int:
    """Return when that of a queue began which is compared."""
    if baseline is None:
        return us_of_time(count["created_time"]) - SKEW_US
    return us_of_time(baseline["counted_time"])


def _compare_queue(
    count: Mapping[str, Any],
    baseline: Mapping[str, Any] | None,
    measure: str,
    usage: UsageByTime,
    allowed: int,
) -> BrokerComparison:
    low, high = usage.between(count, measure)
    brokers: int = count[measure]
    if baseline is not None:
        before_low, before_high = usage.between(baseline, measure)
        brokers -= baseline[measure]
        low, high = max(0, low - before_high), max(0, high - before_low)
    if not count["is_durable"]:
        low = min(low, brokers)  # what was acknowledged may be lost: that is how the queue is set
    scope = f"{count['account_id']}/{count['queue_name']}"
    missing, surplus = max(0, brokers - high), max(0, low - brokers)
    return BrokerComparison(
        scope, measure, count["counted_time"], brokers, low, high, missing, surplus, allowed
    )


def write_broker_comparison(warehouse: Warehouse, found: Compared, now: datetime.datetime) -> None:
    """Keep what was compared in ops.reconciliation."""
    table = warehouse.table(RECONCILIATION)
    names = RECONCILIATION.schema.names
    lines = [
        {"checked_time": now, **one._asdict(), "difference": one.difference}
        for one in (*found.totals, *found.queues)
    ]
    rows = pa.Table.from_pylist(
        [{name: line.get(name) for name in names} for line in lines], schema=RECONCILIATION.schema
    )
    app = RECONCILIATION_APP
    note = [one._asdict() | {"counted_time": one.counted_time.isoformat()} for one in found.totals]
    table.commit(app, None, table.write(app, rows), shared_notes={SCOPE: {"totals": note}})


def last_comparison(warehouse: Warehouse) -> tuple[BrokerComparison, ...]:
    """Return what was compared last over all queues; empty when nothing was."""
    lines = warehouse.table(RECONCILIATION).note(SCOPE).get("totals", [])
    return tuple(
        BrokerComparison(**line | {"counted_time": datetime.datetime.fromisoformat(line["counted_time"])})
        for line in lines
    )


def last_compared(warehouse: Warehouse) -> datetime.datetime | None:
    """Return for what time the brokers and usage were compared last."""
    return max((one.counted_time for one in last_comparison(warehouse)), default=None)


_COUNTED: Final = ["queue_sk", "action", "messages", "duplicates", "errors_5xx"]


def _of_queues(rows: Any) -> Any:
    """Return the rows of actions that send or delete."""
    return rows.filter(pc.is_in(rows.column("action"), pa.array(sorted(SENDS | DELETES))))


def _sums(rows: Any) -> dict[int, UsageAt]:
    """Return sums by queue. Queues that were not found, and none at all, are NO_QUEUE."""
    queues, actions = rows.column("queue_sk"), rows.column("action")
    duplicates = pc.fill_null(rows.column("duplicates"), 0)
    found_done = pc.if_else(pc.equal(actions, "CommitTransaction"), duplicates, 0)
    summed = pa.table(
        {
            "queue": pc.if_else(pc.greater(queues, 0), queues, NO_QUEUE),
            "is_send": pc.is_in(actions, pa.array(sorted(SENDS))),
            "messages": rows.column("messages"),
            "net": pc.subtract(rows.column("messages"), duplicates),
            "unanswered": pc.add(pc.multiply(rows.column("errors_5xx"), MESSAGES_PER_REQUEST), found_done),
        }
    ).group_by(["queue", "is_send"])
    found: dict[int, UsageAt] = {}
    for row in summed.aggregate([("messages", "sum"), ("net", "sum"), ("unanswered", "sum")]).to_pylist():
        before = found.get(row["queue"], UsageAt())
        net, unanswered = row["net_sum"], row["unanswered_sum"]
        found[row["queue"]] = (
            before._replace(sends=net, unanswered_sends=unanswered)
            if row["is_send"]
            else before._replace(
                deletions=net, deletions_with_gone=row["messages_sum"], unanswered_deletions=unanswered
            )
        )
    return found


def _row(
    kind: str, count: QueueCount, counted: datetime.datetime, until: datetime.datetime
) -> dict[str, Any]:
    fields = count._asdict()
    del fields["queue_type"]  # ops.dim_queue has it
    fields["created_time"] = time_of_us(fields.pop("created_ms") * 1000)
    return {"kind": kind, "counted_time": counted, "until_time": until, **fields}


def _table(rows: Iterable[Mapping[str, Any]]) -> Any:
    return pa.Table.from_pylist(list(rows), schema=BROKER_COUNTS.schema)


def _is_baseline(file: DataFile) -> bool:
    return file.path.startswith(BASELINE)


def _counted_text(file: DataFile) -> str:
    text: str = file.bounds["counted_time"][0]
    return text


def _bound(file: DataFile, name: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(file.bounds[name][1])
