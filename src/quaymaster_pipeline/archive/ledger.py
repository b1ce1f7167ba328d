"""The ledger: what became of each stretch of each log, durable before the next step is taken.

    closed ──▶ archived ──▶ expiring ──▶ deleted          lost: the log dropped it before it was archived
      │            └────────────┴───────────┴──▶ erased   its file is gone, because somebody asked for that
      └──▶ lost

`closed`: from where to where the stretch goes is fixed. `archived`: its file is verified and in the table. `expiring`:
it may go from the log when the grace is over. `deleted`: the log has it no more.

An entry is appended by compare-and-swap on its number: of two jobs that append the same one, one fails. Merging
files changes no entry: beside that, an append is tried again, and the other way round.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal, cast

import pyarrow as pa

from quaymaster_pipeline.archive.tables import LEDGER
from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.tables import COMMIT_TRIES, NO_BATCH, Table, Warehouse

State = Literal["closed", "archived", "expiring", "deleted", "erased", "lost"]

FOLLOWING: Final[Mapping[str, frozenset[str]]] = {
    "": frozenset({"closed", "lost"}),
    "closed": frozenset({"archived", "lost"}),
    "archived": frozenset({"archived", "expiring", "deleted", "erased"}),
    "expiring": frozenset({"expiring", "archived", "deleted", "erased"}),
    "deleted": frozenset({"deleted", "erased"}),
    "erased": frozenset(),
    "lost": frozenset(),
}
"""Which state may follow. One that follows itself has another file: rows were erased from it."""
IN_TABLE: Final = frozenset({"archived", "expiring", "deleted"})
"""States in which a stretch has its file."""

APP: Final = "ledger"
TIDY_APP: Final = "ledger-tidy"
FILES_MAX: Final = 64
"""With more files, most of them of an entry or two, the small ones become one."""
OLD_FILES_KEPT_HOURS: Final = 24
"""Files that were rewritten stay for those who are reading."""

Clock = Callable[[], datetime.datetime]


LOCK_FILE: Final = "archive.lock"


@contextlib.contextmanager
def archive_lock(warehouse: Warehouse) -> Iterator[None]:
    """Be the only job on the archive of a warehouse while the block runs; the usage pipeline may run beside.

    In an object store there is no lock; there the ledger's compare-and-swap lets one of two jobs fail.

    Raises:
        WarehouseBusy: another process archives, erases, or tidies up.
    """
    with warehouse.only_writer(LOCK_FILE, "writes the archive"):
        yield


class LedgerConflict(Exception):
    """Another job wrote to the ledger meanwhile."""


def compact_ledger(warehouse: Warehouse, keep_hours: int) -> tuple[int, int]:
    """Make one file of the ledger's, delete those it had `keep_hours` ago; return how many it had and has.

    Raises:
        WarehouseBusy: a job is at work; it keeps its ledger's files few itself.
        LedgerConflict: others committed each time it was tried.
    """
    with archive_lock(warehouse):
        table = warehouse.table(LEDGER)
        table.refresh()
        before = len(table.files())
        _merge_files(table, lambda files: files)
        table.vacuum(keep_hours)
        return before, len(table.files())


def plan_tidying(files: Sequence[DataFile], files_max: int) -> list[DataFile]:
    """Return which files become one: none up to `files_max`, else all but those larger than all smaller ones together.

    So a row is rewritten about as often as the ledger doubled since it was written, and not each time.
    """
    if len(files) <= files_max:
        return []
    large_first = sorted(files, key=lambda file: file.rows, reverse=True)
    smaller = sum(file.rows for file in large_first)
    for number, file in enumerate(large_first):
        smaller -= file.rows
        if file.rows <= smaller:
            return large_first[number:]
    return []


def _merge_files(table: Table, plan: Callable[[list[DataFile]], list[DataFile]]) -> bool:
    """Make one file of those that `plan` names of the table's; return whether there were two or more."""
    cause: CommitConflict | None = None
    for _ in range(COMMIT_TRIES):
        files = plan(table.files())
        if len(files) < 2:
            return False
        rows = table.read(files=files).sort_by("entry")
        merged = table.write(TIDY_APP, rows)
        assert [file.rows for file in merged] == [sum(file.rows for file in files)], "each entry is kept"
        number = table.last_batch(TIDY_APP) + 1
        try:
            if table.commit(TIDY_APP, number, merged, removes=files, changes_data=False, is_alone=True):
                return True
        except CommitConflict as error:
            cause = error  # what was written is in no table, and goes with the old files
        table.refresh()
    raise LedgerConflict("others wrote to the ledger each time its files were to become fewer") from cause


@dataclass(frozen=True, slots=True)
class LedgerStretch:
    """Offsets [first, end) of a partition, and the state they are in. `last_ms`: when the last of them was sent."""

    queue_id: str
    queue: str
    account_id: str
    partition: int
    first: int
    end: int
    state: State
    path: str
    rows: int = 0
    value_bytes: int = 0
    file_bytes: int = 0
    sha256: str = ""
    last_ms: int = 0
    revision: int = 0
    reason: str = ""
    since: datetime.datetime | None = None

    @property
    def key(self) -> tuple[str, int, int]:
        """Which stretch it is."""
        return self.queue_id, self.partition, self.first


class Ledger:
    """The ledger of one warehouse, all of it in memory. Owned by one job at a time."""

    def __init__(self, warehouse: Warehouse, clock: Clock) -> None:
        self._warehouse = warehouse
        self._clock = clock
        self._stretches: dict[tuple[str, int, int], LedgerStretch] = {}
        self._entries = 0
        self._load()

    def partitions(self) -> list[tuple[str, int]]:
        """Return the partitions, as (queue id, number), of which there is a stretch."""
        return sorted({(one.queue_id, one.partition) for one in self._stretches.values()})

    def stretches(self, queue_id: str | None = None, partition: int | None = None) -> list[LedgerStretch]:
        """Return the stretches, by offset, of a partition, a queue, or all."""
        return sorted(
            (
                one
                for one in self._stretches.values()
                if queue_id in (None, one.queue_id) and partition in (None, one.partition)
            ),
            key=lambda one: one.key,
        )

    def record(self, stretch: LedgerStretch, state: State, reason: str = "") -> LedgerStretch:
        """Append that a stretch is in a state now, and return it so; it is durable then.

        Raises:
            LedgerConflict: somebody else appended first.
        """
        return self.record_all([stretch], state, reason)[0]

    def record_all(
        self, stretches: Sequence[LedgerStretch], state: State, reason: str = ""
    ) -> list[LedgerStretch]:
        """Append that each of several stretches is in a state now: all of these entries are durable then, or none.

        For steps that need nothing done between them. Raises what `record` does.
        """
        if not stretches:
            return []
        now = self._clock()
        recorded = [replace(one, state=state, reason=reason, since=now) for one in stretches]
        rows = []
        for entry, one in enumerate(recorded, self._entries + 1):
            known = self._stretches.get(one.key)
            before = "" if known is None else known.state
            assert state in FOLLOWING[before], f"{state} does not follow {before or 'nothing'}"
            fields = asdict(one)
            del fields["since"]
            rows.append({"entry": entry, "time": now, **fields})
        self._append(pa.Table.from_pylist(rows, schema=LEDGER.schema))
        for one in recorded:
            self._stretches[one.key] = one
        return recorded

    def tidy(self) -> None:
        """Make many small files one; nothing else changes.

        Raises:
            LedgerConflict: others committed each time it was tried.
        """
        table = self._warehouse.table(LEDGER)
        if _merge_files(table, lambda files: plan_tidying(files, FILES_MAX)):
            table.vacuum(OLD_FILES_KEPT_HOURS)

    def _append(self, rows: pa.Table) -> None:
        table = self._warehouse.table(LEDGER)
        last = self._entries + rows.num_rows
        follows = self._entries or NO_BATCH
        files = table.write(APP, rows)
        cause: CommitConflict | None = None
        for _ in range(COMMIT_TRIES):
            try:
                is_ours = table.commit(APP, last, files, is_alone=True, follows=follows)
            except CommitConflict as error:
                cause = error
                table.refresh()  # and if somebody appended, the next try finds it
                continue
            if not is_ours:
                raise LedgerConflict(f"another job wrote entry {self._entries + 1} of the ledger")
            self._entries = last
            return
        raise LedgerConflict("others wrote to the ledger each time an entry was to be appended") from cause

    def _load(self) -> None:
        table = self._warehouse.table(LEDGER)
        table.refresh()
        rows = table.read().sort_by("entry").to_pylist()
        for number, row in enumerate(rows, 1):
            if row["entry"] != number:
                raise LedgerConflict(f"the ledger has entry {row['entry']} where {number} should be")
            since = row.pop("time")
            del row["entry"]
            row["state"] = cast("State", row["state"])
            stretch = LedgerStretch(**row, since=since)
            self._stretches[stretch.key] = stretch
        self._entries = len(rows)
