"""The commits of a batch of silver: the first one decides it, and the others follow.

    quarantine: decides ─▶ audit_events ─▶ usage_events: all of silver has the batch
      │ names the files of both, and with its totals what became of how many requests
      └──── killed in between: the next run commits these files, whatever rules it has

So each request is in usage, in quarantine or a duplicate by the rules of one program, also where another one continues.
Where such a file is gone, or an earlier version named none, the batch is taken again and must come out as decided:
by other rules it does not, which is told, and nothing is committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from quaymaster_pipeline.usage.audit_heads import HEADS, Heads, heads_in, heads_of_files, newest_heads
from quaymaster_pipeline.usage.batch_rows import files_of_batches, in_batches
from quaymaster_pipeline.usage.partial_sums import SILVER
from quaymaster_pipeline.usage.rules import RULE_VERSION
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace, are_there, read_row_groups
from quaymaster_pipeline.warehouse.errors import CommitConflict, SumsDiffer
from quaymaster_pipeline.warehouse.schemas import AUDIT_EVENTS, BLOCKS, QUARANTINE, USAGE_EVENTS
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

FOLLOWERS: Final = (AUDIT_EVENTS, USAGE_EVENTS)
"""In the order of their commits."""
_TOTALS, _FILES, _FIRST, _RULES = "totals", "files", "first_batch", "rule_version"
_PLACE: Final = ("log_partition", "log_offset", "block_row")
"""Which request, or block, a row of quarantine is."""


class MadeBatch(NamedTuple):
    """What became of the batches of bronze from `first_batch` to `batch_id`, which is the batch of silver.

    `counts` are control totals, as `usage.rows` and so on, `heads` of audit events; `files` are by table.
    """

    first_batch: int
    batch_id: int
    counts: Mapping[str, int]
    heads: Heads
    files: Mapping[str, Sequence[DataFile]]


class DecidedBatch(NamedTuple):
    """What the commit of quarantine says of a batch that usage_events does not have.

    `files` are None where an earlier version decided. `rules` is what is known of the rules it was decided by.
    """

    first_batch: int
    batch_id: int
    counts: Mapping[str, int]
    files: Mapping[str, Sequence[DataFile]] | None
    rules: str

    def check(self, warehouse: Warehouse, made: MadeBatch) -> None:
        """Return if a batch that was taken again came out as it was decided.

        Raises:
            SumsDiffer: it did not.
        """
        counts = {name: made.counts.get(name, 0) for name in {*self.counts, *made.counts}}
        differing = sorted(name for name, count in counts.items() if count != self.counts.get(name, 0))
        table = warehouse.table(QUARANTINE)
        batches = self.first_batch, self.batch_id
        there = _sum_of_places(table.place, files_of_batches(table, *batches), batches)
        if differing or there != _sum_of_places(table.place, made.files[QUARANTINE.name], batches):
            told = "".join(
                f", {name} {self.counts.get(name, 0)} and not {counts[name]}" for name in differing
            )
            raise SumsDiffer(
                f"batch {self.batch_id} was decided by {self.rules}, and by this program's, of version {RULE_VERSION}, "
                f"other requests would go to {QUARANTINE.name}{told}: nothing more of it was committed; let a program "
                "with the rules of before run once"
            )


def decided_batch(warehouse: Warehouse) -> DecidedBatch | None:
    """Return the batch that was decided, and that usage_events does not have after a kill; None if there is none.

    Bronze is looked at after it, so that it has its batches.
    """
    quarantine, usage = warehouse.table(QUARANTINE), warehouse.table(USAGE_EVENTS)
    batch_id, last = quarantine.last_batch(SILVER), usage.last_batch(SILVER)
    if batch_id <= last:
        return None
    note = quarantine.note(SILVER)
    if note.get(_FIRST, last + 1) != last + 1:
        return None  # another process committed while tables were looked at: they are more than a batch apart
    warehouse.table(BLOCKS).refresh()
    counts = Counter(note[_TOTALS])
    counts.subtract(usage.note(SILVER).get(_TOTALS, {}))
    named: Mapping[str, Any] | None = note.get(_FILES)
    if named is None:
        return DecidedBatch(last + 1, batch_id, counts, None, "an earlier program")
    files = {spec.name: [DataFile.of_note(one) for one in named[spec.name]] for spec in FOLLOWERS}
    return DecidedBatch(last + 1, batch_id, counts, files, f"rules of version {note[_RULES]}")


def decide(warehouse: Warehouse, made: MadeBatch) -> None:
    """Commit a batch to quarantine, which decides it, and to the tables that follow.

    Raises:
        CommitConflict: another process decided it, or files are so old that they may be gone.
    """
    _check_ages(warehouse, made)
    table = warehouse.table(QUARANTINE)
    note = {
        _TOTALS: _added(table, made.counts),
        _FIRST: made.first_batch,
        _RULES: RULE_VERSION,
        _FILES: {spec.name: [file.to_json() for file in made.files[spec.name]] for spec in FOLLOWERS},
    }
    files = made.files[QUARANTINE.name]
    if not table.commit(SILVER, made.batch_id, files, note=note, follows=made.first_batch - 1):
        raise _others(warehouse)
    _follow(warehouse, made)


def follow_again(warehouse: Warehouse, left: DecidedBatch, made: MadeBatch) -> None:
    """Commit a batch that was decided and taken again, as `made`, to the tables that follow and do not have it.

    Raises:
        SumsDiffer: it did not come out as it was decided.
        CommitConflict: files are so old that they may be gone, or others committed again and again.
    """
    left.check(warehouse, made)
    _check_ages(warehouse, made)
    _follow(warehouse, made)


def _check_ages(warehouse: Warehouse, made: MadeBatch) -> None:
    for spec in FOLLOWERS:
        warehouse.table(spec).check_age(made.files[spec.name])


def _follow(warehouse: Warehouse, made: MadeBatch) -> None:
    """Commit what was decided to the tables that follow and do not have it, however old the files are.

    Raises:
        CommitConflict: others committed again and again.
    """
    for spec in FOLLOWERS:
        table = warehouse.table(spec)
        files = [replace(file, written_ms=0) for file in made.files[spec.name]]
        note = {_TOTALS: _added(table, made.counts), HEADS: newest_heads([heads_in(table), made.heads])}
        try:
            table.commit(SILVER, made.batch_id, files, note=note, follows=made.first_batch - 1)
        except CommitConflict:
            # Another process that found it decided was first with the same.
            if table.last_batch(SILVER) < made.batch_id:
                raise
        if table.last_batch(SILVER) < made.batch_id:
            raise _others(warehouse)


def _others(warehouse: Warehouse) -> CommitConflict:
    return CommitConflict(f"another process refines batches of {BLOCKS.name} in {warehouse.root}")


def complete_batch(warehouse: Warehouse) -> DecidedBatch | None:
    """Commit what a killed run decided and did not commit to all of silver, and return it.

    None: nothing is left, or some of its files are gone or not known, and `refine_batches` takes it again.

    Raises:
        CommitConflict: another process does the same.
    """
    left = decided_batch(warehouse)
    if left is None or left.files is None:
        return None
    for spec in FOLLOWERS:
        table = warehouse.table(spec)
        if table.last_batch(SILVER) < left.batch_id and not are_there(table.place, left.files[spec.name]):
            return None
    events = warehouse.table(AUDIT_EVENTS)
    has_events = events.last_batch(SILVER) >= left.batch_id
    heads = heads_in(events) if has_events else heads_of_files(events.place, left.files[AUDIT_EVENTS.name])
    _follow(warehouse, MadeBatch(left.first_batch, left.batch_id, left.counts, heads, left.files))
    return left


def _added(table: Table, counts: Mapping[str, int]) -> dict[str, int]:
    """Return the control totals of a table with those of a batch."""
    totals = Counter(table.note(SILVER).get(_TOTALS, {}))
    totals.update(counts)
    return dict(totals)


def _sum_of_places(place: TablePlace, files: Iterable[DataFile], batches: tuple[int, int]) -> tuple[int, int]:
    """Return how many rows of some batches files of quarantine have, and the sum of hashes of which these are."""
    count = total = 0
    for file in files:
        for rows in read_row_groups(place, QUARANTINE, file.path, ["batch_id", *_PLACE]):
            mine = in_batches(rows, *batches)
            for one in zip(*(mine.column(name).to_pylist() for name in _PLACE), strict=True):
                count += 1
                total += int.from_bytes(blake2b(repr(one).encode(), digest_size=16).digest())
    return count, total
