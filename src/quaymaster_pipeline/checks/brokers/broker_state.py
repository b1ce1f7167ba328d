"""ops.broker_state: how far the comparison with the brokers is, replaced by each comparison in one commit.

    ops.broker_state ──note: time and batch of the comparison, open causes, files of ──▶ ops.losses, ops.reconciliation
                       a row for each queue and measure, sorted by queue

That commit decides. The files that it names are of the two tables that follow it; what a killed process has not
committed there is completed by the next one. So losses are booked once, whatever was killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.checks.brokers.losses import MEASURES, OpenCause
from quaymaster_pipeline.usage.sequences import IncarnationId
from quaymaster_pipeline.warehouse.data_files import (
    RESTORE,
    DataFile,
    FileWriter,
    read_batches,
    read_row_groups,
)
from quaymaster_pipeline.warehouse.errors import BrokenTable, CommitConflict
from quaymaster_pipeline.warehouse.schemas import BROKER_STATE, LOSSES, RECONCILIATION, TableSpec
from quaymaster_pipeline.warehouse.tables import NO_BATCH, Table, Warehouse

APP: Final = "broker_counts"
SCOPE: Final = "brokers"
"""The scope of a comparison over all queues, and its note in ops.reconciliation."""
FOLLOWERS: Final = (LOSSES, RECONCILIATION)
BOOKED: Final = "booked"
"""The note in ops.losses of how many messages are booked, by month."""
SEALED_KEPT: Final = 1_000
"""So many incarnations that ended last are kept, as the end of one may be told again."""
NO_TIME_US: Final = -1
"""In vectors of times: none."""
PAGE_QUEUES: Final = 1 << 16


class LastCheck(msgspec.Struct):
    """What the last comparison was: of counts of a time, and with usage up to a batch."""

    counted_us: int
    until_us: int
    batch_id: int
    began_us: int
    """When usage was first recorded, as was known at the first comparison."""
    causes: list[OpenCause] = []
    sealed: list[tuple[str, int]] = []
    """Incarnations that ended, which had their causes."""
    totals: list[dict[str, Any]] = []
    """What was compared, over all queues."""

    @property
    def sealed_incarnations(self) -> set[IncarnationId]:
        """The incarnations of `sealed`."""
        return {IncarnationId(*owner) for owner in self.sealed}


def last_check(warehouse: Warehouse) -> LastCheck | None:
    """Return the last comparison, None before the first.

    Raises:
        BrokenTable: losses are booked that the table does not know of.
    """
    state, losses = warehouse.table(BROKER_STATE), warehouse.table(LOSSES)
    if losses.last_batch(APP) > state.last_batch(APP):
        state.refresh()  # it may have been looked at before another process compared
    if losses.last_batch(APP) > state.last_batch(APP):
        raise BrokenTable(
            f"the table {BROKER_STATE.name} is broken: {LOSSES.name} has losses of later comparisons; {RESTORE}"
        )
    note = state.note(APP)
    return msgspec.convert(note["check"], LastCheck) if note else None


def commit_check(
    warehouse: Warehouse,
    number: int,
    check: LastCheck,
    state_files: Iterable[DataFile],
    followers: Mapping[TableSpec, Any],
    booked: Mapping[str, int],
) -> None:
    """Replace the state by that after a comparison, and add rows to the tables that follow it.

    `booked` are messages that rows of ops.losses book, by month.

    Raises:
        CommitConflict: another process compared meanwhile.
    """
    table = warehouse.table(BROKER_STATE)
    files = {
        spec.name: [file.to_json() for file in warehouse.table(spec).write(f"{APP}-{number}", rows)]
        for spec, rows in followers.items()
    }
    note = {"check": msgspec.to_builtins(check), "files": files, BOOKED: dict(booked)}
    before = table.files()
    if not table.commit(APP, number, state_files, removes=before, note=note, follows=number - 1):
        raise CommitConflict(
            f"another process compared usage with the brokers in {table.place.uri} meanwhile"
        )
    complete_check(warehouse)


def next_number(warehouse: Warehouse) -> int:
    """Return the number of the next comparison."""
    return warehouse.table(BROKER_STATE).last_batch(APP) + 1


def complete_check(warehouse: Warehouse) -> None:
    """Commit the files of the last comparison to the tables that follow it and do not have them."""
    state = warehouse.table(BROKER_STATE)
    number = state.last_batch(APP)
    if number == NO_BATCH:
        return
    files = state.note(APP)["files"]
    for spec in FOLLOWERS:
        adds = [DataFile.of_note(fields) for fields in files.get(spec.name, ())]
        if adds and warehouse.table(spec).last_batch(APP) < number:
            totals = state.note(APP)["check"]["totals"]
            notes = {SCOPE: {"totals": totals}} if spec is RECONCILIATION else None
            counts = {BOOKED: state.note(APP).get(BOOKED, {})} if spec is LOSSES else None
            warehouse.table(spec).commit(APP, number, adds, shared_notes=notes, counts=counts)


def known_queues(warehouse: Warehouse) -> tuple[Any, Any]:
    """Return which queues the state has, and from when on each is compared: NO_TIME_US, from its beginning."""
    table = warehouse.table(BROKER_STATE)
    columns = ["queue_id", "since_time", "measure"]
    ids, since_us = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for file in table.files():
        for group in read_row_groups(table.place, BROKER_STATE, file.path, columns):
            rows = group.filter(pc.equal(group.column("measure"), MEASURES[0]))
            ids.append(rows.column("queue_id").to_numpy())
            since_us.append(times_of(rows.column("since_time")))
    return np.concatenate(ids), np.concatenate(since_us)


# Pages of queues


class SortedRows:
    """Rows of files that are sorted by `queue_id`, taken a page at a time."""

    def __init__(self, table: Table, files: Iterable[DataFile], columns: list[str]) -> None:
        self._schema = pa.schema([table.spec.schema.field(name) for name in columns])
        self._batches: Iterator[Any] = (
            rows
            for file in sorted(files, key=lambda file: file.bounds["queue_id"][0])
            for rows in read_batches(table.place, table.spec, file.path, columns, PAGE_QUEUES)
        )
        self._waiting = self._schema.empty_table()
        self._is_over = False

    def next_bound(self) -> int | None:
        """Return the last queue of those that are read next; None when all are read."""
        self._fill(-1)
        return None if not self._waiting.num_rows else int(self._waiting.column("queue_id")[-1].as_py())

    def up_to(self, bound: int | None) -> Any:
        """Return the rows of queues up to this one that were not taken before; None: all."""
        parts = [self._schema.empty_table()]
        while self._fill(bound):
            parts.append(self._waiting)
            self._waiting = self._schema.empty_table()
        if bound is not None and self._waiting.num_rows:
            ids = self._waiting.column("queue_id").to_numpy()
            count = int(np.searchsorted(ids, bound, side="right"))
            parts.append(self._waiting.slice(0, count))
            self._waiting = self._waiting.slice(count)
        return pa.concat_tables(parts).combine_chunks()

    def _fill(self, bound: int | None) -> bool:
        """Have rows waiting if there are any; return whether all of them are up to `bound`, and there are some."""
        while not self._waiting.num_rows and not self._is_over:
            following = next(self._batches, None)
            self._is_over = following is None
            if following is not None:
                self._waiting = following
        if not self._waiting.num_rows:
            return False
        return bound is None or int(self._waiting.column("queue_id")[-1].as_py()) <= bound


def aligned(ids: Any, keys: Any, values: Any, otherwise: int = 0) -> Any:
    """Return a value for each of sorted `ids`: that of its key, which is among them."""
    found = np.full(len(ids), otherwise, np.int64)
    found[np.searchsorted(ids, keys)] = values
    return found


def times_of(column: Any) -> Any:
    """Return a column of times as microseconds; NO_TIME_US where there is none."""
    return pc.fill_null(column.cast(pa.int64()), NO_TIME_US).to_numpy()


def as_times(times_us: Any) -> Any:
    """Return microseconds as a column of times."""
    values = pa.array(times_us, pa.int64(), mask=times_us == NO_TIME_US)
    return values.cast(BROKER_STATE.schema.field("seen_time").type)


def state_writer(warehouse: Warehouse, number: int) -> FileWriter:
    """Return what writes the state after a comparison, in the order of queues."""
    return FileWriter(warehouse.place(BROKER_STATE), BROKER_STATE, f"{APP}-{number}")
