"""Tables of the warehouse: Delta logs through `deltalake`, with one writer, and batches that are committed once.

A job names itself and its batch in each commit (Delta's `txn` action). A batch that was committed is not committed
again, so a job that was killed anywhere starts over with the batch that its table does not have. What the job must
know for the next one, as positions in the queue, is a note in the same commit: rows and position cannot disagree.

    <warehouse>/bronze/blocks/_delta_log/00000000000000000012.json
                            /ingest_date=2026-11-22/bronze-11-7f....parquet
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, Transaction

from quaymaster_pipeline.warehouse.commit_notes import COMMIT_ID, NOTE, has_id, notes_of
from quaymaster_pipeline.warehouse.data_files import (
    RESTORE,
    DataFile,
    TablePlace,
    first_line,
    read_file,
    sync_file,
    write_rows,
)
from quaymaster_pipeline.warehouse.errors import BrokenTable, CommitConflict, StoreFails
from quaymaster_pipeline.warehouse.locks import locked
from quaymaster_pipeline.warehouse.object_stores import check_conditional_writes, telling_store, writing_to
from quaymaster_pipeline.warehouse.schemas import TableSpec
from quaymaster_pipeline.warehouse.times import bound_of_time

LOG_CLEANUP = "delta.enableExpiredLogCleanup"
TABLE_PROPERTIES = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 2 days",
    LOG_CLEANUP: "false",
}
"""Old commits are deleted by ours alone, which carry the notes on: others would delete the last one that has them."""
NO_BATCH = -1
NO_VERSION = -1
UNKNOWN_SCHEME = "Unknown scheme"
"""So begins what `deltalake` says of a URI of which it cannot tell the store; by its kind, there is only no table."""
COMMIT_TRIES = 5
"""How often a commit is tried beside others that do not touch what it is about."""
PLANS_MAX = 3
"""So often a job plans, where others replace meanwhile what it planned by."""
OBJECT_STORE_KEPT_HOURS_MIN = 24
"""No lock is there that keeps jobs out: what one of them wrote and commits next must not be deleted."""


FILE_AGE_MAX_MS = 12 * 3_600_000
"""A file that is older is not committed: after 24 hours others delete what no table has."""
Result = TypeVar("Result")


class TableSize(NamedTuple):
    """What a version of a table has."""

    files: int
    rows: int
    bytes: int


class WarehouseBusy(Exception):
    """Another process writes the tables of this warehouse."""


class Table:
    """One table at the version it was opened or last committed at.

    What reads it raises BrokenTable when its log or a file of it is gone or cannot be read.
    """

    def __init__(self, spec: TableSpec, place: TablePlace) -> None:
        self.spec = spec
        self.place = place
        self._delta: DeltaTable | None = None
        self._notes_text: tuple[int, str] = (NO_VERSION, "{}")
        self._batches: tuple[int, dict[str, int]] = (NO_VERSION, {})
        self.refresh()

    @property
    def version(self) -> int:
        """The version of the table's log; -1 when there is no table yet."""
        return NO_VERSION if self._delta is None else int(self._delta.version())

    def refresh(self) -> None:
        """See what others committed."""
        with self._telling_broken_log():
            if self._delta is not None:
                self._delta.update_incremental()
                return
            try:
                self._delta = DeltaTable(self.place.uri, storage_options=dict(self.place.storage_options))
            except TableNotFoundError as error:
                if UNKNOWN_SCHEME in str(error):
                    raise StoreFails(
                        f"{self.place.uri} cannot be used: it begins with no scheme that is known, as s3://"
                    ) from None

    def last_batch(self, app: str) -> int:
        """Return the highest batch that the job `app` committed here, or -1."""
        if self._delta is None:
            return NO_BATCH
        # To find it, deltalake reads the log, each time.
        if self._batches[0] != self.version:
            self._batches = self.version, {}
        known = self._batches[1]
        if app not in known:
            with self._telling_broken_log():
                batch = self._delta.transaction_version(app)
            known[app] = NO_BATCH if batch is None else int(batch)
        return known[app]

    def note(self, app: str) -> dict[str, Any]:
        """Return the note of the last batch of the job `app`; empty when there is none."""
        note: dict[str, Any] = self._notes().get(app, {})
        return note

    def file_lines(self) -> Any:
        """Return what the log says of the files of this version, a row each: to choose from without Python objects.

        Columns are `path`, `size_bytes`, `num_records`, `partition.<column>`, `min.<column>`, `max.<column>`; none when
        there is no table.
        """
        if self._delta is None:
            return pa.table({})
        with self._telling_broken_log():
            return pa.table(self._delta.get_add_actions(flatten=True))

    def lines_of_days(self, *, begin: str | None = None, end: str | None = None) -> Any:
        """Return the `file_lines` of a table with a partition for each day: from one day on, before another one."""
        lines = self.file_lines()
        for limit, is_within in ((begin, pc.greater_equal), (end, pc.less)):
            if limit is not None and lines.num_rows:
                day = pa.scalar(datetime.date.fromisoformat(limit), pa.date32())
                lines = lines.filter(is_within(self._days_of(lines), day))
        return lines

    def lines_of(self, days: Iterable[str]) -> Any:
        """Return the `file_lines` of these days, of a table with a partition for each."""
        lines = self.file_lines()
        if not lines.num_rows:
            return lines
        wanted = pa.array([datetime.date.fromisoformat(day) for day in days], pa.date32())
        return lines.filter(pc.is_in(self._days_of(lines), wanted))

    def partitions(self) -> set[str]:
        """Return the values of the partition column that there are files of."""
        lines = self.file_lines()
        return {str(day) for day in pc.unique(self._days_of(lines)).to_pylist()} if lines.num_rows else set()

    def _days_of(self, lines: Any) -> Any:
        return lines.column(f"partition.{self.spec.partition_column}")

    def files(self, lines: Any = None) -> list[DataFile]:
        """Return the files of this version, or those of these rows of `file_lines`."""
        found = []
        for action in (self.file_lines() if lines is None else lines).to_pylist():
            lows = {name[4:]: value for name, value in action.items() if name.startswith("min.")}
            bounds = {
                name: (_plain(low), _plain(action[f"max.{name}"]))
                for name, low in lows.items()
                if low is not None
            }
            partition = action.get(f"partition.{self.spec.partition_column}")
            value = None if partition is None else str(partition)
            nulls = {name: action.get(f"null_count.{name}") for name in self.spec.bounded_columns}
            known = {name: count for name, count in nulls.items() if count is not None}
            sizes = action["size_bytes"], action["num_records"]
            found.append(DataFile(action["path"], *sizes, value, bounds, known))
        return found

    @property
    def size(self) -> TableSize:
        """How many files, rows and bytes this version has, by its log."""
        lines = self.file_lines()
        rows, size = (
            pc.sum(lines.column(name)).as_py() if lines.num_rows else 0
            for name in ("num_records", "size_bytes")
        )
        return TableSize(lines.num_rows, rows, size)

    @property
    def rows(self) -> int:
        """How many rows this version has, by its log."""
        return self.size.rows

    def read(self, columns: Sequence[str] | None = None, *, files: Iterable[DataFile] | None = None) -> Any:
        """Return rows as a `pyarrow.Table`: of the files given, or all. Columns may include the partition column."""
        spec = self.spec
        names = spec.schema.names if columns is None else list(columns)
        schema = pa.schema([spec.schema.field(name) for name in names])
        parts = [schema.empty_table()]
        for file in self.files() if files is None else files:
            part = read_file(
                self.place, spec, file.path, [name for name in names if name != spec.partition_column]
            )
            if spec.partition_column in names:
                date = datetime.date.fromisoformat(file.partition_value or "")
                column = pa.array([date] * part.num_rows, pa.date32())
                part = part.append_column(spec.schema.field(spec.partition_column), column)
            parts.append(part.select(names))
        return pa.concat_tables(parts)

    def write(self, prefix: str, rows: Any) -> list[DataFile]:
        """Write rows (columns of the spec) to files that are not yet part of the table."""
        return write_rows(self.place, self.spec, prefix, rows)

    def commit(
        self,
        app: str,
        batch_id: int | None,
        adds: Iterable[DataFile],
        *,
        removes: Iterable[DataFile] = (),
        note: Mapping[str, Any] | None = None,
        shared_notes: Mapping[str, Any] | None = None,
        counts: Mapping[str, Mapping[str, int]] | None = None,
        changes_data: bool = True,
        is_alone: bool = False,
        follows: int | None = None,
    ) -> bool:
        """Add and remove files in one commit. False, and nothing done, when the job committed this batch before.

        Without `batch_id` it is the job's next, whatever others who do the same job commit meanwhile.
        `shared_notes` are notes under other names than the job's, for what several jobs keep up. `counts` are added to
        the numbers of such notes, as they are in the version before: others may add to them, too. `is_alone`: it fails
        when anybody committed since this table was last looked at; else only when that was the same job, or it took
        a file that is removed here. `follows`: nothing is done either unless this is the job's last batch.

        Raises:
            CommitConflict: another process was first, or files are so old that others may have deleted them.
            StoreFails: the object store refuses, and does not have the commit as far as it says.
        """
        if batch_id is not None and self.last_batch(app) >= batch_id:
            return False
        seen = self.version
        with writing_to(self.place.uri):
            self._open_to_write()
        if is_alone and self.version != max(seen, 0):
            raise self._conflict()
        # Asked again: it may have been made, and by another one, since it was looked at.
        if not self._may_follow(app, batch_id, follows):
            return False
        adds, removes, commit_id = list(adds), list(removes), uuid.uuid4().hex
        for _ in range(1 if is_alone else COMMIT_TRIES):
            self.check_age(adds)
            notes = self._next_notes({app: dict(note)} if note is not None else {}, shared_notes, counts)
            number = self.last_batch(app) + 1 if batch_id is None else batch_id
            said = {NOTE: json.dumps(notes), COMMIT_ID: commit_id}
            if not self._commit_next(app, number, adds, removes, said, changes_data):
                there = {file.path for file in self.files()} if removes else set()
                is_late = not self._may_follow(app, batch_id, follows)
                if is_alone or is_late or not there.issuperset(file.path for file in removes):
                    break
                continue
            return True
        raise self._conflict()

    def _may_follow(self, app: str, batch_id: int | None, follows: int | None) -> bool:
        """Return whether a job's batch comes after those that this version has."""
        last = self.last_batch(app)
        return (batch_id is None or last < batch_id) and follows in (None, last)

    def check_age(self, files: Iterable[DataFile]) -> None:
        """Return if files are so young that others have deleted none of them.

        Raises:
            CommitConflict: they may be gone.
        """
        oldest_ms = min((file.written_ms for file in files if file.written_ms), default=None)
        if oldest_ms is not None and _now_ms() - oldest_ms > FILE_AGE_MAX_MS:
            raise CommitConflict(
                f"files for the table {self.spec.name} in {self.place.uri} were written "
                f"{(_now_ms() - oldest_ms) // 3_600_000} hours ago, and may have been deleted since"
            )

    def _conflict(self) -> CommitConflict:
        return CommitConflict(
            f"another process wrote to the table {self.spec.name} in {self.place.uri} meanwhile"
        )

    def _commit_next(
        self,
        app: str,
        batch_id: int,
        adds: Iterable[DataFile],
        removes: Iterable[DataFile],
        said: Mapping[str, str],
        changes_data: bool,
    ) -> bool:
        """Write the version that follows the one last looked at; False when another one did. Either is looked at then.

        Delta would try again with a higher one by itself, and then the notes of the version between would be lost.
        """
        assert self._delta is not None, "it was opened to write"
        now_ms = _now_ms()
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(file.path, changes_data, now_ms, file.size, self._partition(file))
            for file in removes
        ]
        actions += [
            AddAction(file.path, file.size, self._partition(file), now_ms, changes_data, file.stats)
            for file in adds
        ]
        before = self.version
        try:
            with writing_to(self.place.uri):
                self._delta.create_write_transaction(
                    actions,
                    "append",
                    self.spec.schema,
                    [self.spec.partition_column] if self.spec.partition_column else [],
                    commit_properties=CommitProperties(
                        custom_metadata=dict(said),
                        app_transactions=[Transaction(app, batch_id)],
                        max_commit_retries=0,
                    ),
                    post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=True),
                )
        except CommitFailedError:
            self.refresh()
            # An answer that got lost was asked for again, and then told that there is such a version: ours.
            return has_id(self.place, before + 1, said[COMMIT_ID])
        except StoreFails:
            with contextlib.suppress(StoreFails, BrokenTable):
                self.refresh()
                if has_id(self.place, before + 1, said[COMMIT_ID]):
                    return True
            raise
        self.refresh()
        if self.place.is_local:
            with writing_to(self.place.uri):
                sync_file(os.path.join(self.place.uri, "_delta_log", f"{before + 1:020}.json"))
        return True

    def vacuum(self, older_than_hours: int) -> int:
        """Delete files that no version of the last hours has, in an object store of a day at least; return how many."""
        if self._delta is None:
            return 0
        if not self.place.is_local:
            older_than_hours = max(older_than_hours, OBJECT_STORE_KEPT_HOURS_MIN)
        with writing_to(self.place.uri):  # what is deleted is noted in the log
            removed = self._delta.vacuum(
                retention_hours=older_than_hours,
                dry_run=False,
                enforce_retention_duration=False,
                full=True,
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )
        self.refresh()
        return len(removed)

    def _open_to_write(self) -> None:
        """Make the table if there is none, and give it the columns and properties that it lacks.

        Raises:
            StoreFails: the store has no conditional writes, or cannot be used.
        """
        if not self.place.is_local:
            check_conditional_writes(self.place.uri, self.place.storage_options)
        if self._delta is None:
            self._delta = DeltaTable.create(
                self.place.uri,
                self.spec.schema,
                mode="ignore",
                partition_by=[self.spec.partition_column] if self.spec.partition_column else None,
                name=self.spec.name,
                configuration=TABLE_PROPERTIES | _statistics_of(self.spec),
                storage_options=dict(self.place.storage_options),
            )
        for _ in range(COMMIT_TRIES):
            try:
                self._mend(self._delta)
            except CommitFailedError:
                self.refresh()
                continue
            return
        raise self._conflict()

    def _mend(self, delta: DeltaTable) -> None:
        """Add what an earlier version's table lacks, by commits that carry the notes on."""
        there = {field.name for field in delta.schema().fields}
        added = [field for field in self.spec.schema if field.name not in there]
        if added:
            fields = Schema.from_arrow(pa.schema(added)).fields
            delta.alter.add_columns(fields, commit_properties=self._notes_alone())
            self.refresh()
        if delta.metadata().configuration.get(LOG_CLEANUP) != TABLE_PROPERTIES[LOG_CLEANUP]:
            lacking = {LOG_CLEANUP: TABLE_PROPERTIES[LOG_CLEANUP]}
            delta.alter.set_table_properties(lacking, commit_properties=self._notes_alone())
            self.refresh()

    def _notes_alone(self) -> CommitProperties:
        """Return what a commit says that changes no notes. It fails beside another, or notes of that would be lost."""
        return CommitProperties(custom_metadata={NOTE: json.dumps(self._notes())}, max_commit_retries=0)

    def _partition(self, file: DataFile) -> dict[str, str | None]:
        column = self.spec.partition_column
        return {} if column is None else {column: file.partition_value}

    def _notes(self) -> dict[str, Any]:
        version = self.version
        if self._delta is not None and self._notes_text[0] != version:
            with self._telling_broken_log():
                text = notes_of(self.place, self.spec.name, version)
            if text is None and self.file_lines().num_rows:
                raise BrokenTable(
                    f"the table {self.spec.name} is broken: it has rows, and no commit in {self.place.uri}/_delta_log "
                    f"says of which jobs; {RESTORE}"
                )
            self._notes_text = version, text or "{}"
        notes: dict[str, Any] = json.loads(self._notes_text[1])
        return notes

    def _next_notes(
        self,
        note: Mapping[str, Any],
        shared_notes: Mapping[str, Any] | None,
        counts: Mapping[str, Mapping[str, int]] | None,
    ) -> dict[str, Any]:
        notes = self._notes() | dict(note) | dict(shared_notes or {})
        for name, added in (counts or {}).items():
            before = notes.get(name, {})
            notes[name] = before | {key: before.get(key, 0) + count for key, count in added.items()}
        return notes

    @contextlib.contextmanager
    def _telling_broken_log(self) -> Iterator[None]:
        try:
            with telling_store(self.place.uri):
                yield
        except DeltaError as error:
            raise BrokenTable(
                f"the table {self.spec.name} is broken: its log {self.place.uri}/_delta_log cannot be read: "
                f"{first_line(error)}; {RESTORE}"
            ) from None


def _statistics_of(spec: TableSpec) -> dict[str, str]:
    """Return the property that says of which columns the log has statistics.

    Where it named others, readers take a bound that is not there for one that nothing is within, and find no rows.
    """
    names = spec.bounded_columns
    if not names:
        return {"delta.dataSkippingNumIndexedCols": "0"}
    return {"delta.dataSkippingStatsColumns": ",".join(names)}


class Warehouse:
    """All tables of a data directory, or of a place in an object store."""

    def __init__(self, root: str | Path, storage_options: Mapping[str, str] | None = None) -> None:
        self.root = str(root).rstrip("/")
        self.storage_options = dict(storage_options or {})
        self._tables: dict[str, Table] = {}

    def table(self, spec: TableSpec) -> Table:
        """Return the table, at its newest version when first asked for."""
        table = self._tables.get(spec.name)
        if table is None:
            table = self._tables[spec.name] = Table(spec, self.place(spec))
        return table

    def another(self) -> Warehouse:
        """Return these tables for another thread: which versions it looks at is its own affair."""
        return Warehouse(self.root, self.storage_options)

    def refresh(self) -> None:
        """See what others committed, in all tables."""
        for table in self._tables.values():
            table.refresh()

    def place(self, spec: TableSpec) -> TablePlace:
        """Return where a table's files are."""
        return TablePlace(f"{self.root}/{spec.name.replace('.', '/')}", self.storage_options)

    @contextlib.contextmanager
    def ingesting(self) -> Iterator[None]:
        """Be the only one that takes blocks while the block runs. All other jobs may run beside.

        In an object store there is no lock; there a commit beside ours fails, by Delta's own rules.

        Raises:
            WarehouseBusy: another process is.
        """
        with self.only_writer("lock", "takes usage into the tables"):
            self._tables.clear()
            yield

    @contextlib.contextmanager
    def only_writer(self, lock_file: str, what: str) -> Iterator[None]:
        """Hold one of the warehouse's locks while the block runs. `what` it does is told to the next process.

        In an object store nothing is locked, nor in a file system without locks: there commits keep processes apart.

        Raises:
            WarehouseBusy: another process holds it.
            StoreFails: the store has no conditional writes.
        """
        if "://" in self.root:
            check_conditional_writes(self.root, self.storage_options)
            yield
            return
        with locked(self.root, lock_file) as is_ours:
            if not is_ours:
                raise WarehouseBusy(f"another process {what} in {self.root}")
            yield


def planning_again(act: Callable[[], Result], *seen: Table | Warehouse) -> Result:
    """Return what `act` does, which plans and commits; when others were first, it acts again on what is there now.

    `seen` is what it plans by.

    Raises:
        CommitConflict: others were first again and again.
    """
    for _ in range(PLANS_MAX - 1):
        try:
            return act()
        except CommitConflict:
            for tables in seen:
                tables.refresh()
    return act()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def lowest(lines: Any, column: str) -> Any:
    """Return the lowest value in a column, by lines of `Table.file_lines`; None where there is none."""
    return pc.min(lines.column(f"min.{column}")).as_py() if lines.num_rows else None


def highest(lines: Any, column: str) -> Any:
    """Return the highest value in a column, by lines of `Table.file_lines`; None where there is none."""
    return pc.max(lines.column(f"max.{column}")).as_py() if lines.num_rows else None


def within(column: Any, first: Any, end: Any) -> Any:
    """Return a mask of `first <= column < end`."""
    return pc.and_(pc.greater_equal(column, first), pc.less(column, end))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return bound_of_time(value)
    return value.isoformat() if isinstance(value, datetime.date) else value
