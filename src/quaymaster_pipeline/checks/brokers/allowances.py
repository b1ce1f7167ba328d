"""What may explain that usage lacks messages: causes that became known with batches of bronze, silver and quarantine.

    cause                               at most so many messages              latest time that it can be of
    crash: a front end was killed       3 x its busiest second of the hour    when it was silent for longer than
                                        before it was last heard              any that runs
    dropped: records had no room        10 a record                           the next block of that incarnation
    failed: a row in quarantine         its own                               its own
    failed: an error of ours was        10 a request                          its own, and a minute more: what
    answered (`queue_usage`)                                                  failed may still be done

A crash or a drop may be why messages of any queue are missing, a failed request only those of its queue, if it has one.

What the tables took before the time in question is of before, whatever clocks of front ends say. A cause that may be of
either side counts: what is allowed wrongly is not billed, what is not allowed wrongly stops all invoices.

Records that never came explain nothing: usage is not whole after them, so no later count is compared (`sequences`).
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster.protocol.actions.table import RECORDED_ACTIONS
from quaymaster_pipeline.checks.brokers.losses import CRASH, DROPPED, MEASURES, OpenCause
from quaymaster_pipeline.usage.batch_rows import files_of_batches, in_batches
from quaymaster_pipeline.usage.rules import EARLIEST_US, REPEATED, are_links
from quaymaster_pipeline.usage.sequences import Coverage, IncarnationId
from quaymaster_pipeline.usage.silver import block_keys
from quaymaster_pipeline.usage.tasks import Workers, answer_table
from quaymaster_pipeline.warehouse.data_files import TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.schemas import BLOCK_MARKS, BLOCKS, QUARANTINE, USAGE_EVENTS
from quaymaster_pipeline.warehouse.tables import Warehouse, within
from quaymaster_pipeline.warehouse.times import HOUR_US, bound_of_time, time_of_us, us_of_time

SENDS: Final = frozenset(action.name for action in RECORDED_ACTIONS if action.queue_sum == "sends")
DELETES: Final = frozenset(action.name for action in RECORDED_ACTIONS if action.queue_sum == "deletions")
SKEW_US: Final = 5_000_000
"""Clocks of front ends and of brokers may differ by this."""
SILENT_US: Final = 120_000_000
"""A front end that runs writes a block within this: twice the default of `usage_heartbeat_s`."""
MESSAGES_PER_REQUEST: Final = 10
CRASH_SECONDS: Final = 3
"""A crash costs at most the use of the last fsync's interval (1 s) and of the time that writing took."""
CRASH_MESSAGES_MIN: Final = CRASH_SECONDS * MESSAGES_PER_REQUEST
"""What a front end may lose that did less than one full request a second."""
CRASH_MESSAGES_UNKNOWN: Final = 1_000
"""What one may lose that recorded nothing in the hour before, so that its rate is not known."""
STOPPED: Final = "stopped"
CRASHED: Final = "crashed"
_OF_SECONDS: Final = ["front_end", "epoch", "event_time", "action", "messages"]
_SECONDS: Final = "messages by second"
NEVER_US: Final = 1 << 62
"""The latest time of what has no known time."""
CRASHES_AT_ONCE: Final = 64
"""The rates of so many front ends are looked up together, if they were last heard within RATES_TOGETHER_US."""
RATES_TOGETHER_US: Final = 6 * HOUR_US


@dataclass(slots=True)
class FailedSums:
    """Messages of one queue and measure that failed requests may explain: of up to a time, and of later ones.

    With each, the latest time that one of them can be of.
    """

    now: int = 0
    now_us: int = 0
    later: int = 0
    later_us: int = 0


@dataclass(slots=True)
class NewCauses:
    """What became known with some batches. `sealed`: the incarnations that ended with them."""

    shared: list[OpenCause] = field(default_factory=list)
    failed: dict[tuple[int, str], FailedSums] = field(default_factory=dict)
    sealed: list[IncarnationId] = field(default_factory=list)


class Rate(NamedTuple):
    """What a front end did in the hour before it was last heard: messages of its busiest second, by measure."""

    last_us: int
    busiest: Mapping[str, int]


def crash_bound(rate: Rate | None, measure: str) -> int:
    """Return how many messages a crash may have taken, by the front end's own rate; None: it recorded nothing."""
    if rate is None:
        return CRASH_MESSAGES_UNKNOWN
    return max(CRASH_MESSAGES_MIN, CRASH_SECONDS * rate.busiest.get(measure, 0))


def read_causes(
    warehouse: Warehouse,
    coverage: Coverage,
    batches: tuple[int, int],
    counted_us: int,
    sealed_before: Collection[IncarnationId],
    since_us: Callable[[int], int],
    workers: Workers,
) -> NewCauses:
    """Return the causes that became known with these batches, both included; only their files are read.

    `counted_us` tells failed requests of before and after; `sealed_before` had their cause already; `since_us` says of
    a queue after which time it is compared. Rates of front ends are looked up by tasks of `workers`.
    """
    found = NewCauses()
    kept, taken = _telling_blocks(warehouse, batches)
    fresh = _ended(kept, sealed_before)
    found.sealed = list(fresh)
    found.shared += _crashes(warehouse, coverage, fresh, workers)
    found.shared += _drops(warehouse, batches, kept, counted_us)
    for owner, messages, latest_us in _quarantined(warehouse, batches, taken):
        if owner is None:
            for measure in MEASURES:
                add_failed(found.failed, (0, measure), messages, latest_us, counted_us)
        elif latest_us > since_us(owner[0]):
            add_failed(found.failed, owner, messages, latest_us, counted_us)
    return found


def add_failed(
    sums: dict[tuple[int, str], FailedSums],
    owner: tuple[int, str],
    messages: int,
    latest_us: int,
    counted_us: int,
) -> None:
    """Add messages that a failed request may explain."""
    mine = sums.setdefault(owner, FailedSums())
    if latest_us <= counted_us:
        mine.now += messages
        mine.now_us = max(mine.now_us, latest_us)
    else:
        mine.later += messages
        mine.later_us = max(mine.later_us, latest_us)


def first_watermark_us(warehouse: Warehouse, through: int) -> int:
    """Return when usage was first recorded, by the headers of blocks up to a batch; 0 when there are none."""
    table = warehouse.table(BLOCKS)
    found: list[int] = []
    for file in files_of_batches(table, 0, through):
        for rows in read_row_groups(table.place, BLOCKS, file.path, ["low_watermark"]):
            low_us = pc.min(rows.column("low_watermark").cast(pa.int64())).as_py()
            found = [min([low_us, *found])] if low_us is not None else found
    return found[0] if found else 0


_TOLD: Final = ["log_partition", "log_offset", "front_end", "epoch", "seq_hi", "max_time", "low_watermark"]
_TOLD_BESIDES: Final = ["dropped", "seal_epoch", "seal_reason", "batch_id", "taken_time", "damage"]


def _telling_blocks(warehouse: Warehouse, batches: tuple[int, int]) -> tuple[Any, dict[int, int]]:
    """Return blocks that drop something or seal an incarnation, each once, and when each batch was taken."""
    table = warehouse.table(BLOCKS)
    names = [*_TOLD, *_TOLD_BESIDES]
    schema = pa.schema([BLOCKS.schema.field(name) for name in names])
    parts, taken = [schema.empty_table()], dict[int, int]()
    for file in files_of_batches(table, *batches):
        for group in read_row_groups(table.place, BLOCKS, file.path, names):
            rows = in_batches(group, *batches)
            rows = rows.filter(pc.is_null(rows.column("damage")))
            times = rows.group_by("batch_id").aggregate([("taken_time", "max")])
            for batch_id, time in zip(
                *(times.column(name).to_pylist() for name in ("batch_id", "taken_time_max")), strict=True
            ):
                taken[batch_id] = max(taken.get(batch_id, 0), us_of_time(time))
            tells = pc.or_(pc.greater(rows.column("dropped"), 0), pc.is_valid(rows.column("seal_reason")))
            parts.append(rows.filter(pc.fill_null(tells, False)))
    kept = pa.concat_tables(parts)
    marks = warehouse.table(BLOCK_MARKS)
    marked = marks.read(
        ["log_partition", "log_offset", "state", "batch_id"], files=files_of_batches(marks, *batches)
    )
    duplicates = marked.filter(pc.equal(marked.column("state"), "duplicate"))
    if duplicates.num_rows and kept.num_rows:
        kept = kept.filter(pc.invert(pc.is_in(block_keys(kept), block_keys(duplicates))))
    return kept, taken


# Crashes


def _ended(blocks: Any, known: Collection[IncarnationId]) -> dict[IncarnationId, list[tuple[str, int]]]:
    """Return incarnations that ended, but those that are known, with each reason that was told, and when."""
    ends = blocks.filter(pc.is_valid(blocks.column("seal_reason")))
    names = ("front_end", "seal_epoch", "seal_reason", "taken_time")
    seals: defaultdict[IncarnationId, list[tuple[str, int]]] = defaultdict(list)
    for front_end, number, reason, time in zip(
        *(ends.column(name).to_pylist() for name in names), strict=True
    ):
        seals[IncarnationId(front_end, number)].append((reason, us_of_time(time)))
    return {owner: told for owner, told in sorted(seals.items()) if owner not in known}


def _crashes(
    warehouse: Warehouse,
    coverage: Coverage,
    ended: Mapping[IncarnationId, list[tuple[str, int]]],
    workers: Workers,
) -> Iterator[OpenCause]:
    """Yield what may be missing of incarnations that did not end in order, by measure."""
    crashed = {
        owner: coverage.heard_us(owner)
        for owner, told in ended.items()
        if all(reason != STOPPED for reason, _ in told)
    }
    rates = read_rates(warehouse, crashed, workers)
    for owner, heard_us in crashed.items():
        rate = rates.get(owner)
        last_us = heard_us if rate is None else max(heard_us, rate.last_us)
        latest_us = min(taken_us for _, taken_us in ended[owner])
        # How much longer a lost spool was written than shipped is not known.
        if any(reason == CRASHED for reason, _ in ended[owner]) and last_us >= EARLIEST_US:
            latest_us = min(latest_us, last_us + SKEW_US + SILENT_US)
        for measure in MEASURES:
            time_us = last_us if last_us >= EARLIEST_US else latest_us
            yield OpenCause(CRASH, measure, crash_bound(rate, measure), time_us, latest_us, *owner)


def read_rates(
    warehouse: Warehouse, heard: Mapping[IncarnationId, int], workers: Workers
) -> dict[IncarnationId, Rate]:
    """Return what front ends did in the hour before an incarnation of theirs was last heard; none if they did nothing.

    `heard` has a time of each, microseconds, after which it may have recorded some more. Tasks of `workers` read.
    """
    found: dict[IncarnationId, Rate] = {}
    waiting = sorted(
        ((heard_us, owner) for owner, heard_us in heard.items() if heard_us), key=lambda pair: pair[0]
    )
    while waiting:
        end_us = waiting[0][0] + RATES_TOGETHER_US
        together = [pair for pair in waiting[:CRASHES_AT_ONCE] if pair[0] <= end_us]
        waiting = waiting[len(together) :]
        found |= _rates_of(warehouse, together, workers)
    return found


def _rates_of(
    warehouse: Warehouse, heard: list[tuple[int, IncarnationId]], workers: Workers
) -> dict[IncarnationId, Rate]:
    table = warehouse.table(USAGE_EVENTS)
    # What was under way when the watermark was written is recorded after it.
    times_us = max(0, heard[0][0] - HOUR_US), heard[-1][0] + SILENT_US
    bounds = [bound_of_time(time_of_us(time_us)) for time_us in times_us]
    paths = [file.path for file in table.files() if file.may_have("event_time", *bounds)]
    work = seconds_work(table.place, sorted({owner.front_end for _, owner in heard}), times_us)
    parts = workers.over(paths, work).tables(_SECONDS)
    return dict(_rates_in(_by_second(pa.concat_tables(parts)), heard)) if parts else {}


def seconds_work(
    place: TablePlace, front_ends: Sequence[str], times_us: tuple[int, int]
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does with a file of events: sum up what some front ends did, by second."""

    def work(path: str) -> Iterator[Any]:
        for rows in read_row_groups(place, USAGE_EVENTS, path, _OF_SECONDS):
            mask = pc.and_(
                pc.is_in(rows.column("front_end"), pa.array(front_ends)),
                pc.is_in(rows.column("action"), pa.array(sorted(SENDS | DELETES))),
            )
            mask = pc.and_(mask, within(rows.column("event_time").cast(pa.int64()), *times_us))
            rows = rows.filter(mask)
            if rows.num_rows:
                times = rows.column("event_time").cast(pa.int64())
                seconds = pa.table(
                    {
                        "front_end": rows.column("front_end"),
                        "epoch": rows.column("epoch"),
                        "second": pc.divide(times, 1_000_000),
                        "is_send": pc.is_in(rows.column("action"), pa.array(sorted(SENDS))),
                        "messages": rows.column("messages"),
                        "time": times,
                    }
                )
                yield answer_table(_SECONDS, _by_second(seconds))

    return work


def _by_second(rows: Any) -> Any:
    keys = ["front_end", "epoch", "second", "is_send"]
    summed = rows.group_by(keys).aggregate([("messages", "sum"), ("time", "max")])
    return summed.select([*keys, "messages_sum", "time_max"]).rename_columns([*keys, "messages", "time"])


def _rates_in(
    seconds: Any, heard: Iterable[tuple[int, IncarnationId]]
) -> Iterator[tuple[IncarnationId, Rate]]:
    for heard_us, owner in heard:
        # Of all its incarnations: a restart has another number, and the same users.
        rows = seconds.filter(pc.equal(seconds.column("front_end"), owner.front_end))
        last_us = pc.max(rows.filter(pc.equal(rows.column("epoch"), owner.number)).column("time")).as_py()
        last_us = max(heard_us, last_us or 0)
        times = rows.column("time")
        rows = rows.filter(
            pc.and_(pc.greater(times, last_us - HOUR_US), pc.less_equal(times, last_us))
        ).select(["second", "is_send", "messages"])
        if rows.num_rows == 0:
            continue
        summed = rows.group_by(["second", "is_send"]).aggregate([("messages", "sum")])
        busiest = summed.group_by("is_send").aggregate([("messages_sum", "max")])
        columns = (busiest.column(name).to_pylist() for name in ("is_send", "messages_sum_max"))
        yield (
            owner,
            Rate(
                last_us, {MEASURES[0 if is_send else 1]: most for is_send, most in zip(*columns, strict=True)}
            ),
        )


# Drops


def _drops(
    warehouse: Warehouse, batches: tuple[int, int], blocks: Any, counted_us: int
) -> Iterator[OpenCause]:
    """Yield what dropped records may explain, for each incarnation: of up to a time, and of later ones."""
    drops = with_times(blocks.filter(pc.fill_null(pc.greater(blocks.column("dropped"), 0), False)))
    if not drops.num_rows:
        return
    after = _next_times(warehouse, batches, pc.unique(drops.column("front_end")))
    sums: defaultdict[tuple[IncarnationId, bool], list[tuple[int, int, int]]] = defaultdict(list)
    names = ("front_end", "epoch", "seq_hi", "dropped", "own_us", "taken_us")
    for front_end, number, seq_hi, dropped, own_us, taken_us in zip(
        *(drops.column(name).to_pylist() for name in names), strict=True
    ):
        owner = IncarnationId(front_end, number)
        # A block in place of damage has the time of what was before that, so only the next one says until when.
        next_us = _next_us(after.get(owner), seq_hi)
        latest_us = min(taken_us, max(next_us, 0 if own_us is None else own_us))
        time_us = taken_us if own_us is None else min(taken_us, own_us)
        sums[owner, latest_us <= counted_us].append((dropped, time_us, latest_us))
    for (owner, _), told in sorted(sums.items()):
        messages = MESSAGES_PER_REQUEST * sum(dropped for dropped, _, _ in told)
        time_us, latest_us = min(time for _, time, _ in told), max(latest for _, _, latest in told)
        for measure in MEASURES:
            yield OpenCause(DROPPED, measure, messages, time_us, latest_us, *owner)


def with_times(blocks: Any) -> Any:
    """Return blocks with times until when what they say can be.

    `own_us` by the front end, clocks that differ included, null if it says none; `taken_us` by the pipeline;
    `latest_us` by both.
    """
    low_us, high_us = (blocks.column(name).cast(pa.int64()) for name in ("low_watermark", "max_time"))
    own_us = pc.max_element_wise(low_us, high_us)
    own_us = pc.if_else(pc.greater_equal(own_us, EARLIEST_US), pc.add(own_us, SKEW_US), None)
    taken_us = blocks.column("taken_time").cast(pa.int64())
    return (
        blocks.append_column("own_us", own_us)
        .append_column("taken_us", taken_us)
        .append_column("latest_us", pc.min_element_wise(own_us, taken_us))
    )


def _next_times(
    warehouse: Warehouse, batches: tuple[int, int], front_ends: Any
) -> dict[IncarnationId, tuple[Any, Any]]:
    """Return of each incarnation where its blocks begin, in order, and the least latest time from there on."""
    table = warehouse.table(BLOCKS)
    names = ["front_end", "epoch", "seq_lo", "max_time", "low_watermark", "batch_id", "taken_time", "damage"]
    parts = []
    for file in files_of_batches(table, *batches):
        for group in read_row_groups(table.place, BLOCKS, file.path, names):
            rows = in_batches(group, *batches)
            mask = pc.and_(pc.is_null(rows.column("damage")), pc.is_in(rows.column("front_end"), front_ends))
            parts.append(with_times(rows.filter(mask)).select(["front_end", "epoch", "seq_lo", "latest_us"]))
    rows = pa.concat_tables(parts)
    found = {}
    for front_end, number in set(
        zip(*(rows.column(name).to_pylist() for name in ("front_end", "epoch")), strict=True)
    ):
        mine = rows.filter(
            pc.and_(pc.equal(rows.column("front_end"), front_end), pc.equal(rows.column("epoch"), number))
        ).sort_by("seq_lo")
        latest = mine.column("latest_us").to_numpy()
        found[IncarnationId(front_end, number)] = (
            mine.column("seq_lo").to_numpy(),
            np.minimum.accumulate(latest[::-1])[::-1],
        )
    return found


def _next_us(after: tuple[Any, Any] | None, sequence: int) -> int:
    """Return until when records can be that come before a sequence number."""
    if after is None:
        return NEVER_US
    lows, latest = after
    at = int(np.searchsorted(lows, sequence))
    return NEVER_US if at == len(lows) else int(latest[at])


# Quarantine


class _Recorded(msgspec.Struct):
    """What is looked at of a row in quarantine."""

    event_time: str | None = None
    action: str | None = None
    queue_id: int | None = None
    message_count: int | None = None


_recorded = msgspec.json.Decoder(_Recorded)
_Quarantined = tuple[tuple[int, str] | None, int, int]
"""Of which queue and measure a row is, None: of any; how many messages; the latest time that it can be of."""


def _quarantined(
    warehouse: Warehouse, batches: tuple[int, int], taken: Mapping[int, int]
) -> Iterator[_Quarantined]:
    """Yield rows that may have sent or deleted something that is not in usage.

    Blocks that could not be read are gaps, if anything. Of a row that repeats one, that one is in usage.
    """
    table = warehouse.table(QUARANTINE)
    for file in files_of_batches(table, *batches):
        for group in read_row_groups(
            table.place, QUARANTINE, file.path, ["rule", "raw", "batch_id", "block_row", "record_hash"]
        ):
            rows = in_batches(group, *batches)
            is_new = pc.not_equal(rows.column("rule"), REPEATED)
            rows = rows.filter(pc.and_(pc.is_valid(rows.column("block_row")), is_new))
            # Management requests stay without what was recorded.
            rows = rows.filter(pc.invert(are_links(rows)))
            columns = (rows.column(name).to_pylist() for name in ("rule", "raw", "batch_id"))
            for rule, raw, batch_id in zip(*columns, strict=True):
                recorded = _Recorded() if raw is None else _recorded.decode(raw)  # it has expired
                if recorded.action is None or recorded.action in SENDS | DELETES:
                    yield _quarantined_row(recorded, rule, taken.get(batch_id, NEVER_US))


def _quarantined_row(recorded: _Recorded, rule: str, taken_us: int) -> _Quarantined:
    messages = recorded.message_count
    if messages is None or messages < 0:
        messages = MESSAGES_PER_REQUEST
    owner = None
    if recorded.action is not None and recorded.queue_id:
        owner = (recorded.queue_id, MEASURES[0] if recorded.action in SENDS else MEASURES[1])
    latest_us = taken_us
    if rule != "time" and recorded.event_time is not None:
        own_us = us_of_time(datetime.datetime.fromisoformat(recorded.event_time))
        if own_us >= EARLIEST_US:
            latest_us = min(taken_us, own_us + SKEW_US)
    return owner, messages, latest_us
