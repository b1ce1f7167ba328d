"""ops.losses: bookings and what is taken back of them, how much a month lost, and what an operator accepted of that."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.checks.brokers.allowances import DELETES, SENDS
from quaymaster_pipeline.checks.brokers.broker_pages import AccountBooking, TakenBack
from quaymaster_pipeline.checks.brokers.broker_state import BOOKED, LastCheck, times_of
from quaymaster_pipeline.checks.brokers.losses import ACCEPTED, Booking, taken_back_from
from quaymaster_pipeline.warehouse.data_files import read_row_groups
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.schemas import LOSSES, USAGE_DAILY
from quaymaster_pipeline.warehouse.tables import NO_BATCH, Table, Warehouse, planning_again
from quaymaster_pipeline.warehouse.times import time_of_us

MONTH: Final = "month"
"""The cause of a row that books nothing: an operator accepted the losses of a month up to a number of messages."""
ACCEPT_APP: Final = "accepted losses"
"""Its note in ops.losses: up to how many messages were accepted, by month."""
LOSSES_FREE: Final = 10_000
"""Messages that a month may lose for causes that are known, and its final invoices are issued all the same."""
LOSSES_PPM: Final = 10
"""Or so many of a million of its messages, if that is more."""

_BOOKED_COLUMNS: Final = [
    *("queue_id", "measure", "messages", "cause", "front_end", "epoch", "month", "counted_time")
]


class LossesOfMonth(NamedTuple):
    """Messages that a month sent and deleted by usage, those booked as lost, and up to how many were accepted."""

    messages: int
    booked: int
    accepted: int

    @property
    def bound(self) -> int:
        """So many may be lost without anybody's accepting it."""
        return max(LOSSES_FREE, self.messages * LOSSES_PPM // 1_000_000)


def loss_rows(
    warehouse: Warehouse,
    bookings: Iterable[AccountBooking],
    taken_back: Sequence[TakenBack],
    check: LastCheck,
    last_counted_us: int | None,
) -> Any:
    """Return rows of ops.losses for what a comparison booked and took back."""
    about_us = check.counted_us if last_counted_us is None else last_counted_us
    lines = []
    for account_id, booking in bookings:
        time_us = about_us if booking.time_us is None else min(booking.time_us, check.counted_us)
        lines.append(_line(account_id, booking, month_of(time_of_us(time_us)), check))
    for account_id, booking, month in _taken_back_of(warehouse, taken_back):
        lines.append(_line(account_id, booking, month, check))
    return pa.Table.from_pylist(lines, schema=LOSSES.schema)


def _line(account_id: str, booking: Booking, month: str, check: LastCheck) -> dict[str, Any]:
    return {
        "queue_id": booking.queue_id,
        "account_id": account_id,
        "measure": booking.measure,
        "messages": booking.messages,
        "cause": booking.cause,
        "front_end": booking.front_end,
        "epoch": booking.incarnation,
        "month": month,
        "counted_time": time_of_us(check.counted_us),
        "through_batch": check.batch_id,
    }


def _taken_back_of(
    warehouse: Warehouse, taken_back: Sequence[TakenBack]
) -> Iterator[tuple[str, Booking, str]]:
    """Yield what is taken back: of the last bookings of a queue since its baseline, with their causes and months."""
    if not taken_back:
        return
    table = warehouse.table(LOSSES)
    wanted = pa.array(sorted({one.queue_id for one in taken_back}), pa.int64())
    parts = [pa.schema([LOSSES.schema.field(name) for name in _BOOKED_COLUMNS]).empty_table()]
    for file in table.files():
        for rows in read_row_groups(table.place, LOSSES, file.path, _BOOKED_COLUMNS):
            mask = pc.and_(
                pc.is_in(rows.column("queue_id"), wanted), pc.not_equal(rows.column("cause"), ACCEPTED)
            )
            parts.append(rows.filter(mask))
    rows = pa.concat_tables(parts).sort_by("counted_time")
    names = ("queue_id", "measure", "cause", "front_end", "epoch", "month", "messages")
    columns = [rows.column(name).to_pylist() for name in names]
    # What is left of each booking: rows of what was taken back name its cause and month.
    left: defaultdict[tuple[int, str], dict[tuple[Any, ...], int]] = defaultdict(dict)
    since_us = {(one.queue_id, one.measure): one.since_us for one in taken_back}
    for counted_us, (queue_id, measure, *kind, messages) in zip(
        times_of(rows.column("counted_time")).tolist(), zip(*columns, strict=True), strict=True
    ):
        if counted_us > since_us.get((queue_id, measure), counted_us):
            mine = left[queue_id, measure]
            mine[tuple(kind)] = mine.get(tuple(kind), 0) + messages
    for one in taken_back:
        booked = left[one.queue_id, one.measure].items()
        for (cause, front_end, incarnation, month), messages in taken_back_from(booked, one.messages):
            booking = Booking(one.queue_id, one.measure, -messages, cause, None, front_end, incarnation)
            yield one.account_id, booking, month


def month_of(time: datetime.datetime | datetime.date) -> str:
    """Return the month of a time, as invoices name it."""
    return f"{time:%Y-%m}"


def losses_of_month(warehouse: Warehouse, first_day: datetime.date, end_day: datetime.date) -> LossesOfMonth:
    """Return what a month lost, from its first day up to the first of the next. Reads files of its days, one by one."""
    daily = warehouse.table(USAGE_DAILY)
    actions = pa.array(sorted(SENDS | DELETES))
    messages = 0
    for file in daily.files():
        if not first_day.isoformat() <= (file.partition_value or "") < end_day.isoformat():
            continue
        for rows in read_row_groups(daily.place, USAGE_DAILY, file.path, ["action", "messages"]):
            used = rows.filter(pc.is_in(rows.column("action"), actions))
            messages += pc.sum(used.column("messages")).as_py() or 0
    losses = warehouse.table(LOSSES)
    month, found = month_of(first_day), Counter[str]()
    for rows in _rows_of(losses):
        found.update(booked_by_month(rows))
    # Rows that were deleted since stop invoices all the same.
    booked = max(found[month], losses.note(BOOKED).get(month, 0))
    return LossesOfMonth(messages, booked, _accepted_by_month(losses).get(month, 0))


def booked_by_month(rows: Any) -> dict[str, int]:
    """Return how many messages rows of ops.losses book, by month, less what they take back."""
    # An operator who begins the comparison again accepts what was missing without a cause.
    is_other = pc.is_in(rows.column("cause"), pa.array([MONTH, ACCEPTED]))
    sums = rows.filter(pc.invert(is_other)).group_by("month").aggregate([("messages", "sum")])
    return {row["month"]: row["messages_sum"] for row in sums.to_pylist()}


def _accepted_by_month(losses: Table) -> dict[str, int]:
    """Return up to how many messages were accepted, by month: as commits note it, since rows can be put in by hand."""
    noted = losses.note(ACCEPT_APP)
    if noted or losses.last_batch(ACCEPT_APP) == NO_BATCH:
        return noted
    # Earlier programs noted nothing.
    found: dict[str, int] = {}
    for rows in _rows_of(losses):
        for row in rows.filter(pc.equal(rows.column("cause"), MONTH)).to_pylist():
            found[row["month"]] = max(row["messages"], found.get(row["month"], 0))
    return found


def _rows_of(losses: Table) -> Iterator[Any]:
    for file in losses.files():
        yield from read_row_groups(losses.place, LOSSES, file.path, ["month", "cause", "messages"])


def why_losses_stop(month: str, losses: LossesOfMonth) -> str | None:
    """Return why final invoices of a month wait for an operator; None if its losses are within bounds, or accepted."""
    if losses.booked <= max(losses.bound, losses.accepted):
        return None
    return (
        f"{losses.booked} messages of {month} were lost to crashes, drops and errors, and usage has {losses.messages}: "
        f"more than {losses.bound} wait for an operator, who looks at ops.losses and accepts them by "
        f"quaymaster pipeline reconcile --accept-losses {month}"
    )


def accept_losses(
    warehouse: Warehouse, first_day: datetime.date, end_day: datetime.date, now: datetime.datetime
) -> LossesOfMonth:
    """Accept the losses of a month as they are now, and return them; what is booked later stops invoices again.

    Raises:
        CommitConflict: others accepted losses again and again meanwhile.
    """
    return planning_again(lambda: _accept(warehouse, first_day, end_day, now), warehouse)


def _accept(
    warehouse: Warehouse, first_day: datetime.date, end_day: datetime.date, now: datetime.datetime
) -> LossesOfMonth:
    found = losses_of_month(warehouse, first_day, end_day)
    if found.booked <= found.accepted:
        return found
    line = {
        "messages": found.booked,
        "cause": MONTH,
        "month": month_of(first_day),
        "counted_time": now,
    }
    table = warehouse.table(LOSSES)
    rows = pa.Table.from_pylist(
        [{name: line.get(name) for name in LOSSES.schema.names}], schema=LOSSES.schema
    )
    # The batch that follows what the note is of: of two acceptances at once, the second must begin again.
    batch_id = table.last_batch(ACCEPT_APP) + 1
    note = _accepted_by_month(table) | {month_of(first_day): found.booked}
    if not table.commit(ACCEPT_APP, batch_id, table.write(ACCEPT_APP.replace(" ", "-"), rows), note=note):
        raise CommitConflict(f"another process accepted losses in {table.place.uri} meanwhile")
    return found._replace(accepted=found.booked)
