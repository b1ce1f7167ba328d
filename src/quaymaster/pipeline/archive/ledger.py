"""The ledger: what became of each stretch of each log, durable before the next step is taken.

    sealed ──▶ archived ──▶ expiring ──▶ deleted          lost: the log dropped it before it was archived
      │            └────────────┴───────────┴──▶ erased   its file is gone, because somebody asked for that
      └──▶ lost

`sealed`: from where to where the stretch goes is fixed. `archived`: its file is verified and in the table. `expiring`:
it may go from the log when the grace is over. `deleted`: the log has it no more.

An entry is appended by compare-and-swap on its number: of two jobs that append the same one, one fails.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal, cast

import pyarrow as pa
from deltalake.exceptions import CommitFailedError

from quaymaster.pipeline.archive.tables import LEDGER
from quaymaster.pipeline.tables import Warehouse

State = Literal["sealed", "archived", "expiring", "deleted", "erased", "lost"]

FOLLOWING: Final[Mapping[str, frozenset[str]]] = {
    "": frozenset({"sealed", "lost"}),
    "sealed": frozenset({"archived", "lost"}),
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
FILES_MAX: Final = 256
"""With more files, each of an entry, the ledger is rewritten as one."""

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


@dataclass(frozen=True, slots=True)
class Stretch:
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
        self._stretches: dict[tuple[str, int, int], Stretch] = {}
        self._entries = 0
        self._load()

    def partitions(self) -> list[tuple[str, int]]:
        """Return the partitions, as (queue id, number), of which there is a stretch."""
        return sorted({(one.queue_id, one.partition) for one in self._stretches.values()})

    def stretches(self, queue_id: str | None = None, partition: int | None = None) -> list[Stretch]:
        """Return the stretches, by offset, of a partition, a queue, or all."""
        return sorted(
            (
                one
                for one in self._stretches.values()
                if queue_id in (None, one.queue_id) and partition in (None, one.partition)
            ),
            key=lambda one: one.key,
        )

    def record(self, stretch: Stretch, state: State, reason: str = "") -> Stretch:
        """Append that a stretch is in a state now, and return it so; it is durable then.

        Raises:
            LedgerConflict: somebody else appended first.
        """
        known = self._stretches.get(stretch.key)
        before = "" if known is None else known.state
        assert state in FOLLOWING[before], f"{state} does not follow {before or 'nothing'}"
        now = self._clock()
        recorded = replace(stretch, state=state, reason=reason, since=now)
        entry = self._entries + 1
        fields = asdict(recorded)
        del fields["since"]
        row = pa.Table.from_pylist([{"entry": entry, "time": now, **fields}], schema=LEDGER.schema)
        table = self._warehouse.table(LEDGER)
        try:
            is_ours = table.commit(APP, entry, table.write(APP, row), is_alone=True)
        except CommitFailedError as error:
            raise LedgerConflict(f"another job writes to the ledger: {error}") from error
        if not is_ours:
            raise LedgerConflict(f"another job wrote entry {entry} of the ledger")
        self._entries = entry
        self._stretches[recorded.key] = recorded
        return recorded

    def tidy(self) -> None:
        """Rewrite many small files as one; nothing else changes."""
        table = self._warehouse.table(LEDGER)
        files = table.files()
        if len(files) > FILES_MAX:
            rows = table.read(files=files).sort_by("entry")
            table.commit(
                TIDY_APP, self._entries, table.write(TIDY_APP, rows), removes=files, changes_data=False
            )
            table.vacuum(OLD_FILES_KEPT_HOURS)

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
            stretch = Stretch(**row, since=since)
            self._stretches[stretch.key] = stretch
        self._entries = len(rows)
