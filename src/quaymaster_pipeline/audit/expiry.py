"""Expiry of audit events: those that are old and that no hold keeps leave, and the chains still prove the rest.

    audit_events ──front ends by hash──▶ first event that stays, last that leaves, counts ─▶ 1 ops.audit_anchors
                 ──files with events that leave──▶ files again, without them ─────────────▶ 2 audit_events

Events leave from the beginning of a chain; after the first that stays they become stubs. Where nothing old stays, files
that have only old events are dropped unread. Anchors are committed before the table: one that nothing has left for yet
does no harm. A pipeline may run next to it. No row goes to the driver; it has a line for each front end.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.audit.audit import (
    ANCHORS,
    APP,
    HOLDS,
    Audit,
    AuditMistake,
    Hold,
    expired_before,
    held_by,
    may_have,
)
from quaymaster_pipeline.audit.audit_chains import run_begins
from quaymaster_pipeline.audit.stubs import ERASURES, with_stubs
from quaymaster_pipeline.audit.verification import group_items, verify_chains
from quaymaster_pipeline.checks.header_groups import Group
from quaymaster_pipeline.usage.tasks import Workers, answer, answer_counts, answer_files, answer_table
from quaymaster_pipeline.warehouse.data_files import DataFile, FileWriter, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.schemas import AUDIT_EVENTS, TIME
from quaymaster_pipeline.warehouse.spools import Spool
from quaymaster_pipeline.warehouse.tables import Warehouse, planning_again
from quaymaster_pipeline.warehouse.times import bound_of_time

_KEPT_IN_STUB: Final = {
    *("front_end", "epoch", "sequence", "event_time", "prev_hash", "record_hash"),
}
_JUDGED: Final = (
    *("front_end", "epoch", "sequence", "event_time", "event_name", "recipient_account_id"),
    "record_hash",
)
_STAYS, _STUB, _DELETED = 0, 1, 2
_PLACE: Final = ("front_end", "epoch", "sequence")
_COUNTS, _FIRST, _ANCHORS, _REPLACED = "counts", "first", "anchors", "replaced"
_FIRST_SCHEMA: Final = pa.schema([ANCHORS.schema.field(name) for name in _PLACE])
_ANCHOR_SCHEMA: Final = pa.schema([ANCHORS.schema.field(name) for name in (*_PLACE, "record_hash", "events")])

Places = Mapping[str, tuple[int, int]]
"""Incarnation and sequence of an event of each front end."""


class Expiry(NamedTuple):
    """What `expire_events` did, or would do: events deleted, made stubs, and those that a hold keeps."""

    deleted: int
    stubbed: int
    held: int


@dataclass(frozen=True, slots=True)
class Fates:
    """What decides what becomes of an event. What need not be kept is deleted up to the first that is.

    After that, it becomes a stub, so that the chain holds.
    """

    before: datetime.datetime
    holds: Sequence[Hold]

    def judge(self, rows: Any) -> tuple[Any, Any]:
        """Return which events are old, and which of these a hold keeps, as masks."""
        is_old = pc.fill_null(pc.less(rows.column("event_time"), pa.scalar(self.before, TIME)), False)
        return is_old, pc.and_(is_old, held_by(self.holds, rows))

    def of(self, rows: Any, first_kept: Places) -> Any:
        """Return what becomes of each event, as an array of numpy."""
        is_old, is_held = self.judge(rows)
        goes = pc.and_not(is_old, is_held).to_numpy()
        front_ends = rows.column("front_end").combine_chunks().dictionary_encode()
        kept = [first_kept.get(name, _NEVER) for name in front_ends.dictionary.to_pylist()]
        of_row = front_ends.indices.to_numpy()
        incarnation, sequence = (
            np.array([place[side] for place in kept], np.int64)[of_row] for side in (0, 1)
        )
        epochs, sequences = (rows.column(name).to_numpy() for name in _PLACE[1:])
        is_after = (epochs > incarnation) | ((epochs == incarnation) & (sequences > sequence))
        is_stub = pc.is_null(rows.column("event_name")).to_numpy()
        after = np.where(is_stub, _STAYS, _STUB)  # it is one already
        return np.where(goes, np.where(is_after, after, _DELETED), _STAYS)


_NEVER: Final = (1 << 62, 0)


class _Plan(NamedTuple):
    """What leaves: the first event of each front end that stays, anchors, and how many events become what."""

    first_kept: Places
    anchors: Any
    counts: Counter[str]


def has_old_events(warehouse: Warehouse, before: datetime.datetime) -> bool:
    """Return whether there may be events older than `before`, without a look at any."""
    return any(_may_be_old(file, before) for file in warehouse.table(AUDIT_EVENTS).files())


def expire_events(
    workers: Workers,
    warehouse: Warehouse,
    before: datetime.datetime,
    now: datetime.datetime,
    *,
    is_dry_run: bool = False,
) -> Expiry:
    """Delete events older than `before` that no hold keeps, and say what was done.

    Raises:
        CommitConflict: others replaced the same files again and again.
        AuditMistake: a chain is broken; what proves the break must not be deleted.
        WarehouseBusy: holds are changed, or events expire or are erased.
    """
    if is_dry_run:
        return _expiry_of(_plan(workers, warehouse, before)[1])
    audit = Audit(warehouse)
    with audit.changing():
        written: list[Any] = []
        return planning_again(lambda: _expire(workers, warehouse, before, now, written), warehouse)


def _expiry_of(plan: _Plan) -> Expiry:
    return Expiry(*(plan.counts[name] for name in Expiry._fields))


def _plan(workers: Workers, warehouse: Warehouse, before: datetime.datetime) -> tuple[Fates, _Plan]:
    """Prove the chains, and return what becomes of their events."""
    proof = verify_chains(workers, warehouse)
    if proof.breaks:
        first = proof.breaks[0]
        raise AuditMistake(
            f"a chain is broken {first.where} ({first.reason}); no event expires until that is understood"
        )
    fates = Fates(before, [hold for hold in Audit(warehouse).holds() if hold.released is None])
    # As it was verified: what the pipeline added since is the next expiry's.
    table = warehouse.table(AUDIT_EVENTS)
    files = table.files()
    old = [file.path for file in files if _may_be_old(file, before)]
    work = judging_work(table.place, [file.path for file in files], old, fates)
    answers = workers.over(group_items(files, workers.cores), work)
    first_kept = {
        row["front_end"]: (row["epoch"], row["sequence"])
        for table_of_lines in answers.tables(_FIRST)
        for row in table_of_lines.to_pylist()
    }
    anchors = pa.concat_tables([_ANCHOR_SCHEMA.empty_table(), *answers.tables(_ANCHORS)]).sort_by("front_end")
    return fates, _Plan(first_kept, anchors, answers.counts(_COUNTS))


def _may_be_old(file: DataFile, before: datetime.datetime) -> bool:
    low, _ = file.bounds.get("event_time", ("", ""))
    return may_have(file, None, before) and low < bound_of_time(before)


def _is_all_old(file: DataFile, before: datetime.datetime) -> bool:
    bounds = file.bounds.get("event_time")
    return bounds is not None and bounds[1] < bound_of_time(before) and not file.nulls.get("event_time")


def _expire(
    workers: Workers,
    warehouse: Warehouse,
    before: datetime.datetime,
    now: datetime.datetime,
    written: list[Any],
) -> Expiry:
    """Let events expire. `written` are anchors of tries before this one, when others were first with the files."""
    fates, plan = _plan(workers, warehouse, before)
    _drop_registrations(warehouse)
    table = warehouse.table(AUDIT_EVENTS)
    old = {file.path: file for file in table.files() if _may_be_old(file, before)}
    if not (plan.counts["deleted"] or plan.counts["stubbed"]):
        return _expiry_of(plan)
    # Nothing old stays: what has only old events need not be read again.
    dropped = [] if plan.counts["left"] else [file for file in old.values() if _is_all_old(file, before)]
    dates = {path: file.partition_value for path, file in old.items()}
    items = sorted(old.keys() - {file.path for file in dropped})
    answers = workers.over(items, expiring_work(table.place, dates, fates, plan.first_kept))
    removes = [*dropped, *(old[path] for path in answers.texts(_REPLACED))]
    _check_holds(warehouse, fates)
    if plan.anchors not in written:
        _write_anchors(warehouse, plan.anchors, now)
        written.append(plan.anchors)
    earlier = expired_before(table)
    latest = before if earlier is None else max(before, earlier)
    adds = answers.files(AUDIT_EVENTS.name)
    note = {"before": latest.isoformat()}
    table.commit(APP, None, adds, removes=removes, note=note)
    return _expiry_of(plan)


def _check_holds(warehouse: Warehouse, fates: Fates) -> None:
    """Raise CommitConflict if holds are others now: in an object store no lock keeps them from changing."""
    warehouse.table(HOLDS).refresh()
    if [hold for hold in Audit(warehouse).holds() if hold.released is None] != fates.holds:
        raise CommitConflict("holds on audit events were changed meanwhile")


def _write_anchors(warehouse: Warehouse, anchors: Any, now: datetime.datetime) -> None:
    """Add anchors, before events go."""
    if anchors.num_rows:
        table = warehouse.table(ANCHORS)
        expired = pa.repeat(pa.scalar(now, TIME), anchors.num_rows)
        rows = anchors.append_column("expired", expired).select(ANCHORS.schema.names)
        table.commit(APP, None, table.write(APP, rows))


def _drop_registrations(warehouse: Warehouse) -> None:
    """Remove what was registered as erased on days of which no event is left since the last expiry.

    Not with that one: a verification next to it may still have the events, and look for their registrations.
    """
    events = warehouse.table(AUDIT_EVENTS)
    before = expired_before(events)
    if before is None:
        return
    table = warehouse.table(ERASURES)
    left = {file.partition_value for file in events.files()}
    first_kept = before.astimezone(datetime.UTC).date().isoformat()
    gone = [
        file
        for file in table.files()
        if str(file.partition_value) < first_kept and file.partition_value not in left
    ]
    if gone:
        table.commit(APP, None, [], removes=gone)


# Tasks


def judging_work(
    place: TablePlace, paths: Sequence[str], old: Sequence[str], fates: Fates
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: find the first event that stays of each front end of a group, and count what goes."""
    schema, are_old = pa.schema([AUDIT_EVENTS.schema.field(name) for name in _JUDGED]), set(old)

    def work(item: str) -> Iterator[Any]:
        with Spool(schema) as of_old:
            yield from judge(Group.of_item(item), of_old)

    def read(group: Group, of_old: Spool) -> Iterator[Any]:
        for path in paths:
            for rows in read_row_groups(place, AUDIT_EVENTS, path, _JUDGED):
                mine = rows.filter(group.are_in(rows.column("front_end")))
                if mine.num_rows:
                    yield mine
                    if path in are_old:
                        of_old.add(mine)

    def judge(group: Group, of_old: Spool) -> Iterator[Any]:
        first: dict[str, tuple[int, int]] = {}
        for rows in read(group, of_old):
            is_old, is_held = fates.judge(rows)
            kept = rows.filter(pc.or_(pc.invert(is_old), is_held)).select(_PLACE)
            for line, _ in _ends_of_runs(kept, "ascending"):
                place_of = line["epoch"], line["sequence"]
                first[line["front_end"]] = min(first.get(line["front_end"], place_of), place_of)
        counts, anchors = Counter[str](), dict[str, dict[str, Any]]()
        for rows in of_old:  # what becomes of them depends on the first that stays
            found = fates.of(rows, first)
            is_old, is_held = (mask.to_numpy() for mask in fates.judge(rows))
            counts.update(
                deleted=int(np.sum(found == _DELETED)),
                stubbed=int(np.sum(found == _STUB)),
                held=int(np.sum(is_held)),
                left=int(np.sum(is_old & (found != _DELETED))),
            )
            _move_anchors(anchors, rows.filter(pa.array(found == _DELETED)))
        lines = [{"front_end": name, "epoch": at[0], "sequence": at[1]} for name, at in first.items()]
        yield answer_counts(_COUNTS, counts)
        yield answer_table(_FIRST, pa.Table.from_pylist(lines, schema=_FIRST_SCHEMA))
        yield answer_table(_ANCHORS, pa.Table.from_pylist(list(anchors.values()), schema=_ANCHOR_SCHEMA))

    return work


def _move_anchors(anchors: dict[str, dict[str, Any]], deleted: Any) -> None:
    """Move the anchors of the front ends of events that are deleted, and count these."""
    for line, events in _ends_of_runs(deleted, "descending"):
        known = anchors.setdefault(line["front_end"], {**line, "events": 0})
        if (line["epoch"], line["sequence"]) > (known["epoch"], known["sequence"]):
            known |= {name: line[name] for name in (*_PLACE, "record_hash")}
        known["events"] += events


def _ends_of_runs(rows: Any, order: str) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the first event of each front end in this order, and how many it has."""
    if not rows.num_rows:
        return
    rows = rows.sort_by([("front_end", "ascending"), *((name, order) for name in _PLACE[1:])])
    begins = run_begins(rows, _PLACE[:1])
    lengths = np.diff(np.append(begins, rows.num_rows)).tolist()
    yield from zip(rows.take(pa.array(begins)).to_pylist(), lengths, strict=True)


def expiring_work(
    place: TablePlace, dates: Mapping[str, str | None], fates: Fates, first_kept: Places
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: write a file again, without what is deleted, and with stubs; not if nothing changes."""

    def work(path: str) -> Iterator[Any]:
        judged = [fates.of(rows, first_kept) for rows in read_row_groups(place, AUDIT_EVENTS, path, _JUDGED)]
        if not any(found.any() for found in judged):
            return
        if not all((found == _DELETED).all() for found in judged):
            with FileWriter(place, AUDIT_EVENTS, APP, dates[path]) as writer:
                for found, rows in zip(judged, read_row_groups(place, AUDIT_EVENTS, path), strict=True):
                    left = found != _DELETED
                    if not left.any():
                        continue
                    is_stub = pa.array(found[left] == _STUB)
                    stays = rows.filter(pa.array(left))
                    writer.write(with_stubs(AUDIT_EVENTS, stays, is_stub, _KEPT_IN_STUB))
                written = writer.finish()
            yield from answer_files(AUDIT_EVENTS.name, [written])
        yield answer(_REPLACED, path.encode())

    return work
