"""Taking messages out of the archive for good: of a queue, an account, a sender, a group, or single ones.

    file read ──▶ rows blanked ──▶ a file beside it, compared ──▶ table: new in, old out ──▶ ledger ──▶ old file deleted

A blanked row keeps its place and time and nothing else, so that offsets stay dense. Where all goes, the file leaves the
table, and is deleted. Done again after a crash it finishes what was begun: files that the table does not have any more
are looked for each time. Messages that are still in the queue are the broker's; they go with the queue's retention.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from quaymaster.protocol.logs.log_arrow import TYPES
from quaymaster_pipeline.archive import files
from quaymaster_pipeline.archive.ledger import IN_TABLE, Ledger, LedgerStretch
from quaymaster_pipeline.archive.tables import MESSAGES
from quaymaster_pipeline.warehouse.steps import Steps, Watch, unwatched
from quaymaster_pipeline.warehouse.tables import Warehouse

APP: Final = "erase"
KEPT: Final = frozenset({"queue", "partition", "offset", "timestamp"})
"""What a row has when it was erased."""


@dataclass(frozen=True, slots=True)
class ErasureScope:
    """What is to go: of these queues (ids) all, or the rows that meet one of the conditions."""

    queue_ids: tuple[str, ...]
    senders: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    message_ids: tuple[str, ...] = ()

    @property
    def is_all(self) -> bool:
        """Whether everything of the queues goes."""
        return not (self.senders or self.keys or self.message_ids)

    def mask(self, rows: Any) -> Any:
        """Return which rows of a table go that are not gone yet."""
        found = pa.array([False] * rows.num_rows)
        chosen = (("sender_id", self.senders), ("key", self.keys), ("message_id", self.message_ids))
        for column, values in chosen:
            if values:
                one = pc.is_in(rows.column(column), value_set=pa.array(values, pa.string()))
                found = pc.or_(found, one)
        return found


@dataclass(slots=True)
class Erased:
    """What was done: messages, files that were rewritten, and files that are gone."""

    messages: int = 0
    rewritten: int = 0
    removed: int = 0
    notes: list[str] = field(default_factory=list)


class Erasure:
    """Erases from one archive. Its owner holds `archive_lock` for as long as it uses this."""

    def __init__(self, warehouse: Warehouse, ledger: Ledger) -> None:
        self._ledger = ledger
        self._messages = warehouse.table(MESSAGES)
        self._messages.refresh()
        self._place = self._messages.place

    def run(
        self, scope: ErasureScope, reason: str, *, is_dry_run: bool = False, watch: Watch = unwatched
    ) -> Erased:
        """Erase, and return what went; the same again finds nothing. A dry run only counts. A step is a file."""
        done = Erased()
        kept = {
            queue_id: [one for one in self._ledger.stretches(queue_id) if one.state in IN_TABLE]
            for queue_id in scope.queue_ids
        }
        steps = Steps(sum(map(len, kept.values())), watch)
        for queue_id, stretches in kept.items():
            for stretch in stretches:
                self._erase(stretch, scope, reason, done, is_dry_run)
                steps.take()
            if not is_dry_run:
                self._delete_leftovers(queue_id)
        return done

    def _erase(
        self, stretch: LedgerStretch, scope: ErasureScope, reason: str, done: Erased, is_dry_run: bool
    ) -> None:
        current = self._current(stretch)
        if current is None:  # the table had it removed, and then we were interrupted
            if not is_dry_run:
                self._ledger.record(replace(stretch, rows=0), "erased", reason)
            return
        if current != stretch.path:
            stretch = self._note_rewritten(stretch, current, reason)
        if scope.is_all:
            done.messages += self._rows_left(stretch)
            done.removed += 1
            if not is_dry_run:
                self._replace(stretch.path, [])
                self._ledger.record(replace(stretch, rows=0), "erased", reason)
            return
        count = sum(pc.sum(scope.mask(rows)).as_py() or 0 for rows in self._groups(stretch.path))
        if not count:
            return
        done.messages += count
        done.rewritten += 1
        if not is_dry_run:
            self._rewrite(stretch, scope, f"{count} messages erased: {reason}")

    def _rewrite(self, stretch: LedgerStretch, scope: ErasureScope, reason: str) -> None:
        first, end, queue_id = stretch.first, stretch.end, stretch.queue_id
        revision = stretch.revision + 1
        path = files.path_of(queue_id, stretch.partition, first, end, stretch.last_ms, revision)
        files.write_file(self._place, path, queue_id, self._blanked(stretch.path, scope))
        verified = files.verify_file(self._place, path, first, end, self._blanked(stretch.path, scope))
        file = files.data_file(path, queue_id, stretch.partition, first, end, verified)
        self._replace(stretch.path, [file])
        self._note_rewritten(stretch, path, reason)

    def _note_rewritten(self, stretch: LedgerStretch, path: str, reason: str) -> LedgerStretch:
        size, digest = files.digest_of(self._place, path)
        value_bytes = sum(
            pc.sum(pc.binary_length(rows.column("value"))).as_py() or 0 for rows in self._groups(path)
        )
        revised = replace(
            stretch,
            path=path,
            value_bytes=value_bytes,
            file_bytes=size,
            sha256=digest,
            revision=stretch.revision + 1,
        )
        return self._ledger.record(revised, stretch.state, reason)

    def _replace(self, path: str, adds: Sequence[Any]) -> None:
        removes = [file for file in self._messages.files() if file.path == path]
        self._messages.commit(APP, self._messages.version + 1, adds, removes=removes)

    def _current(self, stretch: LedgerStretch) -> str | None:
        """Return the file that the table has of a stretch; it may be a newer one than the ledger knows."""
        expected = (stretch.queue_id, stretch.partition, stretch.first)
        for file in self._messages.files():
            if tuple(file.bounds[name][0] for name in ("queue_id", "partition", "offset")) == expected:
                return file.path
        return None

    def _rows_left(self, stretch: LedgerStretch) -> int:
        """Return how many rows of a file were not erased before: those have no message id."""
        if not stretch.revision:
            return stretch.rows
        erased: int = sum(rows.column("message_id").null_count for rows in self._groups(stretch.path))
        return stretch.rows - erased

    def _groups(self, path: str) -> Iterator[Any]:
        with self._place.filesystem().open_input_file(path) as source:
            file = pq.ParquetFile(source)
            for number in range(file.num_row_groups):
                yield file.read_row_group(number).select(list(TYPES))

    def _blanked(self, path: str, scope: ErasureScope) -> Iterator[Any]:
        """Yield the rows of a file, those that go without what they said."""
        schema = pa.schema(list(TYPES.items()))
        for rows in self._groups(path):
            goes = scope.mask(rows)
            for name in rows.column_names:
                if name not in KEPT:
                    column = _without(rows.column(name).combine_chunks(), goes)
                    rows = rows.set_column(rows.column_names.index(name), name, column)
            yield from rows.cast(schema).combine_chunks().to_batches()

    def _delete_leftovers(self, queue_id: str) -> None:
        """Delete files of stretches that the table has no more, or has in another file."""
        filesystem = self._place.filesystem()
        selector = pyarrow.fs.FileSelector(f"queue-{queue_id}", recursive=True, allow_not_found=True)
        kept = {file.path for file in self._messages.files()}
        settled = {
            (stretch.partition, stretch.first)
            for stretch in self._ledger.stretches(queue_id)
            if stretch.state in IN_TABLE or stretch.state == "erased"
        }
        for found in filesystem.get_file_info(selector):
            place = files.parse_name(found.base_name) if found.is_file else None
            # What another job writes just now is of no settled stretch.
            if place in settled and found.path not in kept:
                with contextlib.suppress(FileNotFoundError):
                    filesystem.delete_file(found.path)


def _without(column: Any, goes: Any) -> Any:
    """Return a column with null in the rows that go."""
    kept = pc.if_else(goes, None, pa.array(range(len(column)), pa.int64()))
    return column.take(kept.combine_chunks() if isinstance(kept, pa.ChunkedArray) else kept)
