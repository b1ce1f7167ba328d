"""Whether usage is what the brokers did: messages sent and deleted, by what each queue's journal has counted.

    brokers say at T: so many sends and deletes of this queue, ever      (kept with the messages, replicated like them)
    usage says:       at least what was answered some time before T, at most what was answered some time after T

What usage has, the brokers must have, to the last message. The brokers may have more: what a crash of a front end took,
what was dropped for want of space, what was answered by an error although it was done (`allowances`). Such losses are
booked once, to what explains them (`losses`). Anything else is a difference, and nothing is billed on it.

A queue is compared from its baseline on. One that was made after usage was first recorded begins at 0. Another one, or
one whose counts do not reach back to its beginning, begins where it was first counted: what was before is not known.
From there on causes count, too: one of before explains nothing that is missing since.

A comparison reads what came since the last one: blocks, events and quarantine of later batches, and later events.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.checks.brokers import broker_state
from quaymaster_pipeline.checks.brokers.allowances import (
    SKEW_US,
    FailedSums,
    NewCauses,
    add_failed,
    first_watermark_us,
    read_causes,
)
from quaymaster_pipeline.checks.brokers.broker_pages import COUNT_COLUMNS, Pages, Streams, compare_pages
from quaymaster_pipeline.checks.brokers.broker_state import LastCheck, SortedRows, last_check, times_of
from quaymaster_pipeline.checks.brokers.loss_table import booked_by_month, loss_rows
from quaymaster_pipeline.checks.brokers.losses import FAILED, MEASURES, OpenCause, SharedCauses
from quaymaster_pipeline.checks.brokers.queue_usage import (
    ANSWERED_AFTER_US,
    EVER_US,
    NOTHING,
    SUMS_SCHEMA,
    Baselines,
    Reach,
    Wanted,
    merged,
    sum_usage,
)
from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.usage.expired import expired_usage
from quaymaster_pipeline.usage.partial_sums import last_whole_batch
from quaymaster_pipeline.usage.sequences import Coverage
from quaymaster_pipeline.usage.tasks import ThisProcess, Workers
from quaymaster_pipeline.warehouse.data_files import DataFile, read_row_groups
from quaymaster_pipeline.warehouse.schemas import (
    BLOCK_MARKS,
    BLOCKS,
    BROKER_COUNTS,
    BROKER_STATE,
    LOSSES,
    QUARANTINE,
    RECONCILIATION,
    USAGE_EVENTS,
)
from quaymaster_pipeline.warehouse.tables import Table, Warehouse, highest, planning_again
from quaymaster_pipeline.warehouse.times import time_of_us, us_of_date, us_of_time

APP: Final = broker_state.APP
SCOPE: Final = broker_state.SCOPE
HERE: Final = ThisProcess()
UNSEEN_US: Final = 30_000_000
"""A front end that begins has written a block within this: so long all that had been there had ended."""
COUNTS_KEPT: Final = datetime.timedelta(days=7)
COUNTS_KEPT_MAX: Final = 2_048
"""Counts that are older, and more than so many, are forgotten; baselines stay. In 7 days a run counts 1,008 times."""
COUNT: Final = "count"
BASELINE: Final = "baseline"
ACCEPTED: Final = "accepted"
"""A baseline that an operator set: what was before is not compared."""
NO_QUEUE: Final = 0
"""In usage, requests whose queue is not known."""


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
    """One measure at the brokers and in usage. `allowed`: so many of those that are missing are booked to a cause.

    Of a queue whose baseline is not 0, `brokers` is what was counted since. `missing` in usage and `surplus` there are
    what is outside of `usage_low` to `usage_high`; of all queues, the sums of theirs.
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
        """0, or by how much usage is above what the brokers have, or below it and not booked."""
        return self.surplus + max(0, self.missing - self.allowed)


@dataclass(frozen=True, slots=True)
class Unkept:
    """What a comparison leaves to commit: the state after it, whose files are written, and rows of ops.losses."""

    number: int
    check: LastCheck
    state_files: Sequence[DataFile]
    losses: Any


class Compared(NamedTuple):
    """What was compared over all queues, and besides queues that are not exactly as they should be."""

    totals: tuple[BrokerComparison, ...]
    queues: tuple[BrokerComparison, ...]
    unkept: Unkept

    @property
    def difference(self) -> int:
        """0, or no invoice is issued."""
        return sum(one.difference for one in self.totals)


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
    older, baseline_lines = _counts_and_baselines(table)
    baselines = table.files(baseline_lines)
    before = table.read(files=[] if accept else baselines)
    counted_from = dict(
        zip(*(before.column(name).to_pylist() for name in ("queue_id", "counted_from")), strict=True)
    )
    rows = _rows_of(counts, counted, until)
    # What is counted from somewhere else than before cannot be compared with what was before.
    fresh = [counted_from.get(one.queue_id) != one.counted_from for one in counts]
    adds = table.write(COUNT, rows.sort_by("queue_id"))
    removes = table.files(_forgotten(older, counted))
    if any(fresh):
        adds += _with_baselines(table, before, rows.filter(pa.array(fresh, pa.bool_())), accept=accept)
        removes += baselines
    table.commit(APP, None, adds, removes=removes)


def _counts_and_baselines(table: Table) -> tuple[Any, Any]:
    """Return the lines of the table's files that are counts, and of those that are baselines."""
    lines = table.file_lines()
    if not lines.num_rows:
        return lines, lines
    are_baselines = pc.starts_with(lines.column("path"), BASELINE)
    return lines.filter(pc.invert(are_baselines)), lines.filter(are_baselines)


def _forgotten(counts: Any, counted: datetime.datetime) -> Any:
    """Return the lines of counts that are too old, or too many, now that others were counted."""
    if not counts.num_rows:
        return counts
    counts = counts.sort_by([("max.counted_time", "descending")])
    kept, others = counts.slice(0, COUNTS_KEPT_MAX - 1), counts.slice(COUNTS_KEPT_MAX - 1)
    first = pa.scalar(counted - COUNTS_KEPT)
    return pa.concat_tables([kept.filter(pc.less(kept.column("max.counted_time"), first)), others])


def _with_baselines(table: Table, before: Any, counts: Any, *, accept: bool) -> list[DataFile]:
    """Write baselines: those of `before`, and of the queues of these counts that from now on."""
    kind = pa.array([ACCEPTED if accept else BASELINE] * counts.num_rows, pa.string())
    found = counts.set_column(0, "kind", kind)
    is_replaced = pc.is_in(before.column("queue_id"), found.column("queue_id").combine_chunks())
    kept = before.filter(pc.invert(is_replaced))
    return table.write(BASELINE, pa.concat_tables([kept, found]).sort_by("queue_id"))


def last_counted(warehouse: Warehouse) -> datetime.datetime | None:
    """Return when the brokers were asked last, None when they never were."""
    lines, _ = _counts_and_baselines(warehouse.table(BROKER_COUNTS))
    counted: datetime.datetime | None = highest(lines, "counted_time")
    return counted


def set_back_from(warehouse: Warehouse, now: datetime.datetime) -> datetime.datetime | None:
    """Return the latest time that usage or counts have, if it is later than `now` can be; None if it is not.

    Then a clock was set back, or one is ahead. Of usage up to a time in between it is not known whether it was recorded
    before the brokers were counted at that time, or will be after: so nothing is counted and compared until then.
    """
    of_tables = (
        highest(warehouse.table(spec).file_lines(), column)
        for spec, column in ((BROKER_COUNTS, "until_time"), (USAGE_EVENTS, "event_time"))
    )
    latest: datetime.datetime = max(filter(None, of_tables), default=now)
    return latest if latest > now + datetime.timedelta(microseconds=SKEW_US) else None


def newest_comparable(
    warehouse: Warehouse, closed_us: int | None, after: datetime.datetime | None
) -> DataFile | None:
    """Return the newest counts later than `after` that can be compared with usage that is whole up to `closed_us`.

    None: all front ends that are known have ended. What one that began later did is not known: so only counts until
    shortly after the last batch was taken are compared, and none before the first batch.
    """
    whole_us = closed_us
    if whole_us is None:
        taken_us = warehouse.table(BLOCKS).note(BRONZE).get("taken_us", 0)
        whole_us = taken_us + UNSEEN_US + ANSWERED_AFTER_US if taken_us else 0
    # A file is what was counted at one time.
    table = warehouse.table(BROKER_COUNTS)
    lines, _ = _counts_and_baselines(table)
    if lines.num_rows:
        until = pa.scalar(time_of_us(whole_us - ANSWERED_AFTER_US))
        lines = lines.filter(pc.less_equal(lines.column("max.until_time"), until))
    counted = highest(lines, "counted_time")
    if counted is None or (after is not None and counted <= after):
        return None
    return table.files(lines.filter(pc.equal(lines.column("max.counted_time"), counted)))[0]


def compare_brokers(
    warehouse: Warehouse,
    coverage: Coverage,
    *,
    now: datetime.datetime,
    after: datetime.datetime | None = None,
    workers: Workers = HERE,
) -> Compared | None:
    """Compare the newest counts of a time for which usage is whole. What is found counts once it is written.

    None when there are none later than `after`, or none can be compared since a clock was set back. `coverage` is of
    what all layers have. Usage is summed up by tasks of `workers`.
    """
    broker_state.complete_check(warehouse)
    last = last_check(warehouse)
    newest = newest_comparable(warehouse, coverage.closed_until_us(), after)
    if newest is None:
        return None
    counted_us, until_us = (us_of_time(_bound(newest, name)) for name in ("counted_time", "until_time"))
    if last is not None and counted_us < last.counted_us:
        return None  # a spool of long ago came back, and usage is not whole yet up to where it was
    if set_back_from(warehouse, now) is not None:
        return None
    through = last_whole_batch(warehouse)
    # Looked at before the events, maybe: what they have of these batches is asked for next.
    for spec in (BLOCKS, BLOCK_MARKS, QUARANTINE):
        warehouse.table(spec).refresh()
    began_us = first_watermark_us(warehouse, through) if last is None else last.began_us
    reach = Reach.of_counts(through, counted_us, until_us)
    kept = NOTHING if last is None else Reach.of_counts(last.batch_id, last.counted_us, last.until_us)
    known = broker_state.known_queues(warehouse)
    baselines = _baselines(warehouse, began_us, known)
    lacking = _lack_sums(warehouse, newest, baselines, known, kept)
    if len(lacking) and expired_usage(warehouse.table(USAGE_EVENTS)).before:
        _begin_with(warehouse, newest, lacking)
        baselines = _baselines(warehouse, began_us, known)
    elif len(lacking):
        kept = NOTHING
    known_batch = -1 if last is None else last.batch_id
    causes = read_causes(
        warehouse,
        coverage,
        (known_batch + 1, through),
        counted_us,
        set() if last is None else last.sealed_incarnations,
        baselines.since_us,
        workers,
    )
    wanted = Wanted(kept, reach, known_batch, counted_us, baselines)
    usage = _with_quarantine(sum_usage(warehouse.table(USAGE_EVENTS), wanted, workers), causes, counted_us)
    shared = SharedCauses(
        [] if last is None else last.causes,
        [*causes.shared, *_of_no_queue(causes)],
        None if last is None else last.counted_us,
    )
    check = LastCheck(counted_us, until_us, through, began_us)
    sealed = [*([] if last is None else last.sealed), *causes.sealed]
    check.sealed = [(front_end, number) for front_end, number in sealed][-broker_state.SEALED_KEPT :]
    return _compare(warehouse, newest, Inputs(usage, baselines, shared, check, last, kept is NOTHING))


class Inputs(NamedTuple):
    """What a comparison needs besides the counts and the state."""

    usage: Any
    baselines: Baselines
    shared: SharedCauses
    check: LastCheck
    last: LastCheck | None
    is_from_scratch: bool


def _compare(warehouse: Warehouse, newest: DataFile, inputs: Inputs) -> Compared:
    check = inputs.check
    number = broker_state.next_number(warehouse)
    state = warehouse.table(BROKER_STATE)
    streams = Streams(
        SortedRows(warehouse.table(BROKER_COUNTS), [newest], COUNT_COLUMNS),
        SortedRows(state, state.files(), BROKER_STATE.schema.names),
        inputs.usage,
        inputs.baselines,
        inputs.shared,
        check.counted_us,
        inputs.is_from_scratch,
    )
    with broker_state.state_writer(warehouse, number) as writer:
        pages = compare_pages(streams, writer)
        file = writer.finish()
    hidden = {measure: pages.totals[measure]["hidden"] for measure in MEASURES}
    check.causes = inputs.shared.left(hidden, check.counted_us)
    last_us = None if inputs.last is None else inputs.last.counted_us
    losses = loss_rows(warehouse, pages.bookings, pages.taken_back, check, last_us)
    totals, queues = _comparisons(pages, time_of_us(check.counted_us))
    check.totals = _as_note(totals)
    return Compared(totals, queues, Unkept(number, check, [] if file is None else [file], losses))


def _comparisons(
    pages: Pages, counted: datetime.datetime
) -> tuple[tuple[BrokerComparison, ...], tuple[BrokerComparison, ...]]:
    names = BrokerComparison._fields[3:]
    totals = tuple(
        BrokerComparison(SCOPE, measure, counted, *(sums[name] for name in names))
        for measure, sums in pages.totals.items()
    )
    queues = tuple(
        BrokerComparison(f"{one.account_id}/{one.queue_name}", one.measure, counted, *one[3:])
        for one in pages.lines
    )
    return totals, queues


def _baselines(warehouse: Warehouse, began_us: int, known: tuple[Any, Any]) -> Baselines:
    """Return from when on queues are compared that are not compared from their beginning on.

    `known` is which queues the state has, and since when.
    """
    table = warehouse.table(BROKER_COUNTS)
    columns = ["queue_id", "kind", "counted_time", "until_time", "counted_from", "created_time", *MEASURES]
    parts = [pa.schema([BROKER_COUNTS.schema.field(name) for name in columns]).empty_table()]
    for file in table.files(_counts_and_baselines(table)[1]):
        for rows in read_row_groups(table.place, BROKER_COUNTS, file.path, columns):
            is_from_0 = pc.and_(
                pc.equal(rows.column("counted_from"), 0),
                pc.greater(rows.column("created_time").cast(pa.int64()), began_us),
            )
            is_accepted = pc.equal(rows.column("kind"), ACCEPTED)
            parts.append(rows.filter(pc.or_(is_accepted, pc.invert(is_from_0))))
    rows = pa.concat_tables(parts).sort_by("queue_id")
    queue_ids, counted_us = rows.column("queue_id").to_numpy(), times_of(rows.column("counted_time"))
    return Baselines(
        queue_ids,
        counted_us,
        times_of(rows.column("until_time")),
        {measure: rows.column(measure).to_numpy() for measure in MEASURES},
        pc.equal(rows.column("kind"), ACCEPTED).to_numpy(),
        ~np.isin(_pairs(queue_ids, counted_us), _pairs(*known)),
    )


def _pairs(left: Any, right: Any) -> Any:
    """Return two vectors as one of pairs that can be compared."""
    found = np.empty(len(left), dtype=[("left", np.int64), ("right", np.int64)])
    found["left"], found["right"] = left, right
    return found


def _lack_sums(
    warehouse: Warehouse, newest: DataFile, baselines: Baselines, known: tuple[Any, Any], kept: Reach
) -> Any:
    """Return the queues to whose sums, that are kept, usage cannot be added: theirs must be made of all usage.

    A queue has a baseline of before the last comparison, or has none and had one, or was there before and forgotten. At
    the first comparison, and where usage has expired since the last one, it is any queue that may have such usage.
    """
    counts = warehouse.table(BROKER_COUNTS).read(["queue_id", "created_time"], files=[newest])
    counted_ids, (known_ids, since_us) = counts.column("queue_id").to_numpy(), known
    created_us = times_of(counts.column("created_time"))
    base_us, _, is_fresh = baselines.of(counted_ids)
    has_baseline = base_us != EVER_US
    expired = expired_usage(warehouse.table(USAGE_EVENTS))
    first_us = EVER_US
    if expired.before:
        first_us = us_of_date(expired.before)
    if kept.batch_id < expired.through or kept.low_us < first_us:
        return counted_ids[np.where(has_baseline, base_us, created_us) - SKEW_US < first_us]
    is_too_early = has_baseline & is_fresh & (base_us - SKEW_US < kept.low_us)
    had_one = np.isin(counted_ids, known_ids[since_us != broker_state.NO_TIME_US])
    was_there = created_us < kept.low_us
    is_forgotten = ~np.isin(counted_ids, known_ids) & was_there
    return counted_ids[is_too_early | (~has_baseline & (had_one | is_forgotten))]


def _begin_with(warehouse: Warehouse, newest: DataFile, queue_ids: Any) -> None:
    """Compare these queues from the newest counts on: of what was before, usage has expired in part.

    Raises:
        CommitConflict: another process counted meanwhile.
    """
    table = warehouse.table(BROKER_COUNTS)
    counts = table.read(files=[newest])
    mine = counts.filter(pc.is_in(counts.column("queue_id"), pa.array(queue_ids)))
    baselines = table.files(_counts_and_baselines(table)[1])
    adds = _with_baselines(table, table.read(files=baselines), mine, accept=True)
    table.commit(APP, None, adds, removes=baselines)


def _with_quarantine(usage: Any, causes: NewCauses, counted_us: int) -> Any:
    """Return sums of usage, with failed requests that are in quarantine; those of no queue are with `causes`."""
    for is_send, measure in zip((True, False), MEASURES, strict=True):
        mask = pc.and_(
            pc.equal(usage.column("queue_id"), NO_QUEUE), pc.equal(usage.column("is_send"), is_send)
        )
        for row in usage.filter(mask).to_pylist():
            owner = (NO_QUEUE, measure)
            add_failed(causes.failed, owner, row["failed"], row["failed_us"], counted_us)
            if row["later"]:
                add_failed(causes.failed, owner, row["later"], row["later_us"], counted_us)
    rows = [
        (queue_id, measure == MEASURES[0], 0, 0, sums.now, sums.now_us, sums.later, sums.later_us)
        for (queue_id, measure), sums in causes.failed.items()
        if queue_id != NO_QUEUE
    ]
    columns = list(zip(*rows, strict=True)) or [()] * len(SUMS_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SUMS_SCHEMA, strict=True)]
    return merged([usage, pa.table(arrays, schema=SUMS_SCHEMA)])


def _of_no_queue(causes: NewCauses) -> Iterable[OpenCause]:
    """Yield what failed requests may explain whose queue is not known: it may have been any."""
    for measure in MEASURES:
        sums = causes.failed.get((NO_QUEUE, measure), FailedSums())
        yield OpenCause(FAILED, measure, sums.now, sums.now_us, sums.now_us)
        yield OpenCause(FAILED, measure, sums.later, sums.later_us, sums.later_us)


def check_brokers(
    warehouse: Warehouse,
    coverage: Coverage,
    *,
    now: datetime.datetime,
    after: datetime.datetime | None = None,
    workers: Workers = HERE,
) -> Compared | None:
    """Compare, and keep what was found: as `compare_brokers`, once more where another process was first.

    Raises:
        CommitConflict: others were first again and again.
    """

    def check() -> Compared | None:
        found = compare_brokers(warehouse, coverage, now=now, after=after, workers=workers)
        if found is not None:
            write_broker_comparison(warehouse, found, now)
        return found

    return planning_again(check, *(warehouse.table(spec) for spec in (BROKER_STATE, LOSSES)))


def write_broker_comparison(warehouse: Warehouse, found: Compared, now: datetime.datetime) -> None:
    """Keep what was compared in ops.reconciliation, what was booked in ops.losses, and how far the comparison is.

    Raises:
        CommitConflict: another process compared meanwhile.
    """
    names = RECONCILIATION.schema.names
    lines = [
        {"checked_time": now, **one._asdict(), "difference": one.difference}
        for one in (*found.totals, *found.queues)
    ]
    rows = pa.Table.from_pylist(
        [{name: line.get(name) for name in names} for line in lines], schema=RECONCILIATION.schema
    )
    unkept = found.unkept
    followers = {RECONCILIATION: rows, LOSSES: unkept.losses}
    booked = booked_by_month(unkept.losses)
    broker_state.commit_check(warehouse, unkept.number, unkept.check, unkept.state_files, followers, booked)


def last_comparison(warehouse: Warehouse) -> tuple[BrokerComparison, ...]:
    """Return what was compared last over all queues; empty when nothing was."""
    reconciliation, state = warehouse.table(RECONCILIATION), warehouse.table(BROKER_STATE)
    lines = reconciliation.note(SCOPE).get("totals", [])
    last = last_check(warehouse)
    # A process that was killed may have kept it there only.
    if last is not None and reconciliation.last_batch(APP) < state.last_batch(APP):
        lines = last.totals
    return tuple(
        BrokerComparison(**line | {"counted_time": datetime.datetime.fromisoformat(line["counted_time"])})
        for line in lines
    )


def last_compared(warehouse: Warehouse) -> datetime.datetime | None:
    """Return for what time the brokers and usage were compared last."""
    return max((one.counted_time for one in last_comparison(warehouse)), default=None)


def _as_note(totals: Iterable[BrokerComparison]) -> list[dict[str, Any]]:
    return [one._asdict() | {"counted_time": one.counted_time.isoformat()} for one in totals]


def _rows_of(counts: Iterable[QueueCount], counted: datetime.datetime, until: datetime.datetime) -> Any:
    """Return rows of ops.broker_counts; ops.dim_queue has the kinds of queues."""
    columns = list(zip(*counts, strict=True)) or [()] * len(QueueCount._fields)
    fields = dict(zip(QueueCount._fields, columns, strict=True))
    fields["created_time"] = tuple(time_of_us(created_ms * 1000) for created_ms in fields["created_ms"])
    size = len(fields["queue_id"])
    fields |= {"kind": (COUNT,) * size, "counted_time": (counted,) * size, "until_time": (until,) * size}
    schema = BROKER_COUNTS.schema
    return pa.table([pa.array(fields[field.name], field.type) for field in schema], schema=schema)


def _bound(file: DataFile, name: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(file.bounds[name][1])
