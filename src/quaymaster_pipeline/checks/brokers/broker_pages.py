"""The comparison of usage with the brokers' counts, a page of queues at a time.

    ops.broker_counts, sorted ─┐
    ops.broker_state, sorted ──┼─ a page ─▶ explain_page (`losses`) ─▶ state of the page, bookings, what differs
    sums of new usage, sorted ─┘

Three streams in the order of queue ids, so memory is that of a page, and of the sums of queues that were used since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.checks.brokers.allowances import SKEW_US
from quaymaster_pipeline.checks.brokers.broker_state import (
    NO_TIME_US,
    SortedRows,
    aligned,
    as_times,
    times_of,
)
from quaymaster_pipeline.checks.brokers.losses import (
    ACCEPTED,
    MEASURES,
    Booking,
    Counted,
    Outcome,
    SharedCauses,
    Standing,
    explain_page,
)
from quaymaster_pipeline.checks.brokers.queue_usage import EVER_US, Baselines
from quaymaster_pipeline.warehouse.data_files import FileWriter
from quaymaster_pipeline.warehouse.schemas import BROKER_STATE
from quaymaster_pipeline.warehouse.times import DAY_US

SHOWN_MAX: Final = 1_000
"""So many queues that are not exactly as they should be are told of."""
GONE_DAYS: Final = 35
"""A queue that brokers have not listed for so long is forgotten."""
COUNT_COLUMNS: Final = [
    *("queue_id", "account_id", "queue_name", "sends", "deletions", "is_durable", "created_time")
]
_STANDING: Final = ("booked", "unexplained", "hidden", "failed", "failed_later")


class QueueLine(NamedTuple):
    """One measure of a queue that is not exactly as it should be."""

    account_id: str
    queue_name: str
    measure: str
    brokers: int
    usage_low: int
    usage_high: int
    missing: int
    surplus: int
    allowed: int


class AccountBooking(NamedTuple):
    """A booking, and of whose queue it is."""

    account_id: str
    booking: Booking


class TakenBack(NamedTuple):
    """So many messages of a queue's bookings since a time are not missing any more."""

    account_id: str
    queue_id: int
    measure: str
    messages: int
    since_us: int


@dataclass(slots=True)
class Pages:
    """What came of all pages."""

    totals: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in MEASURES})
    differing: list[QueueLine] = field(default_factory=list)
    explained: list[QueueLine] = field(default_factory=list)
    bookings: list[AccountBooking] = field(default_factory=list)
    taken_back: list[TakenBack] = field(default_factory=list)

    @property
    def lines(self) -> list[QueueLine]:
        """Queues that are told of, those that differ first."""
        return [*self.differing, *self.explained][:SHOWN_MAX]


@dataclass(frozen=True, slots=True)
class Streams:
    """What is compared. `is_from_scratch`: sums of usage that the state has are not used."""

    counts: SortedRows
    state: SortedRows
    usage: Any
    baselines: Baselines
    shared: SharedCauses
    counted_us: int
    is_from_scratch: bool


@dataclass(slots=True)
class _Page:
    """Queues in the order of their ids, with what is known of them; vectors have a number for each."""

    ids: Any
    counts: Any
    state: Any
    usage: Any
    is_counted: Any
    has_baseline: Any
    is_fresh: Any
    base_us: Any
    since_us: Any

    def vector(self, rows: Any, name: str) -> Any:
        """Return a column of the page's counts, state or usage of one measure; 0 where there is none."""
        values = rows.column(name)
        is_time = pa.types.is_timestamp(values.type)
        numbers = times_of(values) if is_time else pc.fill_null(values.cast(pa.int64()), 0).to_numpy()
        keys = rows.column("queue_id").to_numpy()
        return aligned(self.ids, keys, numbers, NO_TIME_US if is_time else 0)


def compare_pages(streams: Streams, writer: FileWriter) -> Pages:
    """Compare all queues, and write the state after that."""
    found = Pages()
    for page in _pages(streams):
        written = []
        seen_us = page.vector(_of_measure(page.state, MEASURES[0]), "seen_time")
        seen_us = np.where(page.is_counted | (seen_us == NO_TIME_US), streams.counted_us, seen_us)
        is_kept = page.is_counted | (seen_us > streams.counted_us - GONE_DAYS * DAY_US)
        for measure in MEASURES:
            rows = _compare(streams, page, measure, found)
            rows["seen_time"] = as_times(seen_us)
            table = pa.table([rows[name] for name in BROKER_STATE.schema.names], schema=BROKER_STATE.schema)
            written.append(table.filter(pa.array(is_kept)))
        writer.write(pa.concat_tables(written).sort_by([("queue_id", "ascending")]))
    return found


def _pages(streams: Streams) -> Iterator[_Page]:
    usage_ids = streams.usage.column("queue_id").to_numpy()
    begin = int(np.searchsorted(usage_ids, 0, side="right"))  # not those whose queue is not known
    while True:
        bound = streams.counts.next_bound()
        counts, state = streams.counts.up_to(bound), streams.state.up_to(bound)
        end = len(usage_ids) if bound is None else int(np.searchsorted(usage_ids, bound, side="right"))
        usage = streams.usage.slice(begin, end - begin)
        begin = end
        yield _page(streams, counts, state, usage)
        if bound is None:
            return


def _page(streams: Streams, counts: Any, state: Any, usage: Any) -> _Page:
    keys = [rows.column("queue_id").to_numpy() for rows in (counts, state, usage)]
    ids = np.unique(np.concatenate(keys))
    base_us, _, is_fresh = streams.baselines.of(ids)
    page = _Page(ids, counts, state, usage, None, base_us != EVER_US, is_fresh, base_us, None)
    page.is_counted = aligned(ids, keys[0], 1) == 1
    created_us = page.vector(counts, "created_time")
    page.since_us = np.where(page.has_baseline, base_us, created_us - SKEW_US)
    return page


def _of_measure(state: Any, measure: str) -> Any:
    return state.filter(pc.equal(state.column("measure"), measure))


def _compare(streams: Streams, page: _Page, measure: str, found: Pages) -> dict[str, Any]:
    """Compare one measure of a page, add what came of it, and return its columns of the state."""
    state = _of_measure(page.state, measure)
    usage = page.usage.filter(pc.equal(page.usage.column("is_send"), measure == MEASURES[0]))
    low, high = (
        np.where(page.is_fresh | streams.is_from_scratch, 0, page.vector(state, f"usage_{name}"))
        + page.vector(usage, name)
        for name in ("low", "high")
    )
    before = _standing(page, state)
    for at in np.flatnonzero(page.is_fresh & (page.vector(state, "unexplained") > 0)):
        if streams.baselines.was_accepted(int(page.ids[at])):
            messages = int(page.vector(state, "unexplained")[at])
            booking = Booking(int(page.ids[at]), measure, messages, ACCEPTED, None)
            found.bookings.append(AccountBooking(_text(page, int(at), "account_id"), booking))
    brokers = page.vector(page.counts, measure) - streams.baselines.counts_of(page.ids, measure)
    is_durable = page.vector(page.counts, "is_durable") == 1
    now = Counted(
        is_compared=page.is_counted & (page.base_us <= streams.counted_us),
        since_us=page.since_us,
        brokers=brokers,
        # What was acknowledged may be lost where the queue is set so.
        low=np.where(is_durable, low, np.minimum(low, brokers)),
        high=high,
        new_failed=page.vector(usage, "failed"),
        new_later=page.vector(usage, "later"),
        new_later_us=page.vector(usage, "later_us"),
    )
    outcome = explain_page(measure, page.ids, before, now, streams.shared, streams.counted_us)
    _tell(page, measure, now, outcome, found)
    after = outcome.standing
    size = len(page.ids)
    # A queue that brokers do not list may have lost its baseline, and is back some day.
    since_us = np.where(page.is_counted, NO_TIME_US, page.vector(state, "since_time"))
    return {
        "queue_id": pa.array(page.ids, pa.int64()),
        "measure": pa.array([measure] * size, pa.string()),
        "since_time": as_times(np.where(page.has_baseline, page.base_us, since_us)),
        "usage_low": pa.array(low),
        "usage_high": pa.array(high),
        **{name: pa.array(getattr(after, name)) for name in _STANDING},
        "later_time": as_times(np.where(after.later_us > 0, after.later_us, NO_TIME_US)),
    }


def _standing(page: _Page, state: Any) -> Standing:
    """Return how a measure stood. Where a queue is compared from a fresh baseline on, nothing of before counts."""
    later_us = np.maximum(page.vector(state, "later_time"), 0)
    vectors = {name: page.vector(state, name) for name in _STANDING}
    is_kept = ~page.is_fresh
    may_be_since = is_kept | (later_us > page.base_us)
    return Standing(
        **{name: np.where(is_kept, vectors[name], 0) for name in _STANDING[:-1]},
        failed_later=np.where(may_be_since, vectors["failed_later"], 0),
        later_us=np.where(may_be_since, later_us, 0),
    )


def _tell(page: _Page, measure: str, now: Counted, outcome: Outcome, found: Pages) -> None:
    """Add what came of a page to what came of all: only queues that are compared are told of."""
    compared = np.flatnonzero(now.is_compared)
    allowed = outcome.allowed
    columns = {
        "brokers": now.brokers,
        "usage_low": now.low,
        "usage_high": now.high,
        "missing": outcome.missing,
        "surplus": outcome.surplus,
        "allowed": allowed,
        "hidden": outcome.standing.hidden,
    }
    found.totals[measure].update({name: int(values[compared].sum()) for name, values in columns.items()})
    is_off = (outcome.missing > 0) | (outcome.surplus > 0)
    differs = is_off & ((outcome.surplus > 0) | (outcome.missing > allowed))
    for lines, mask in ((found.differing, differs), (found.explained, is_off & ~differs)):
        for at in np.flatnonzero(mask)[: SHOWN_MAX - len(lines)]:
            numbers = (int(columns[name][at]) for name in QueueLine._fields[3:])
            names = _text(page, int(at), "account_id"), _text(page, int(at), "queue_name")
            lines.append(QueueLine(*names, measure, *numbers))
    places = {int(page.ids[at]): int(at) for at in np.flatnonzero(is_off)}
    for booking in outcome.bookings:
        account_id = _text(page, places[booking.queue_id], "account_id")
        found.bookings.append(AccountBooking(account_id, booking))
    for at in np.flatnonzero(outcome.taken_back > 0):
        found.taken_back.append(
            TakenBack(
                _text(page, int(at), "account_id"),
                int(page.ids[at]),
                measure,
                int(outcome.taken_back[at]),
                int(page.base_us[at]),
            )
        )


def _text(page: _Page, at: int, name: str) -> str:
    """Return a text of the counts of a queue; empty if brokers do not list it."""
    keys = page.counts.column("queue_id").to_numpy()
    place = int(np.searchsorted(keys, page.ids[at]))
    is_there = place < len(keys) and keys[place] == page.ids[at]
    return str(page.counts.column(name)[place].as_py()) if is_there else ""
