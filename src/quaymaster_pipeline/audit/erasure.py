"""Erasing what audit events and quarantine have of a principal or an access key. The chains of hashes still hold.

    files of audit_events, quarantine ──▶ tasks: files again, with stubs ─┐
                                          tasks: registrations ───────────┴──▶ 1 ops.audit_erasures  2 the table

Registrations are committed before the table, so every stub that a reader sees is registered. After a kill in between
the rows are still there, and the next run erases them. No row goes to the driver. Rows under a legal hold stay whole.
"""

from __future__ import annotations

import datetime
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.audit.audit import HOLDS, Audit, Hold, held_by
from quaymaster_pipeline.audit.stubs import (
    ERASURES,
    KEY_BYTES,
    STUB_COLUMNS,
    Act,
    keyed_hash,
    registrations,
    with_stubs,
)
from quaymaster_pipeline.usage.silver_commits import complete_batch
from quaymaster_pipeline.usage.tasks import Workers, answer, answer_counts, answer_files
from quaymaster_pipeline.warehouse.data_files import FileWriter, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.schemas import AUDIT_EVENTS, QUARANTINE, TIME, TableSpec
from quaymaster_pipeline.warehouse.tables import Warehouse, planning_again

APP: Final = "erase"
SUBJECT_KINDS: Final[Mapping[str, str]] = {"principal": "principal_id", "access-key": "access_key_id"}
"""Whose rows can be erased, and the column that has them."""
_COUNTS, _REPLACED = "counts", "replaced"


class Subject(NamedTuple):
    """Whose rows are erased: a kind of SUBJECT_KINDS, and the name."""

    kind: str
    name: str

    @property
    def column(self) -> str:
        """The column that has such names."""
        return SUBJECT_KINDS[self.kind]


class Erased(NamedTuple):
    """What was erased, or would be: audit events, rows of quarantine; and how many rows of both a hold keeps."""

    events: int
    quarantined: int
    held: int


class _Rows(NamedTuple):
    """How rows of one table are erased: what is looked at, whose they are and which holds are of them."""

    spec: TableSpec
    looked_at: tuple[str, ...]
    judged: Callable[[Any, Subject, Sequence[Hold]], tuple[Any, Any]]


def erase(
    workers: Workers,
    warehouse: Warehouse,
    subject: Subject,
    now: datetime.datetime,
    *,
    operator: str,
    is_dry_run: bool = False,
) -> Erased:
    """Erase what audit events and quarantine have of a subject, and say what went. The same again finds nothing.

    A pipeline may run next to it. Old files are deleted as others are, by its upkeep or by compaction.

    Raises:
        CommitConflict: others replaced the files again and again.
        WarehouseBusy: holds are changed, or events expire.
    """
    audit = Audit(warehouse)
    key = os.urandom(KEY_BYTES)
    hashes = (keyed_hash(key, text) for text in (f"{subject.kind} {subject.name}", operator))
    act = Act(uuid.uuid4().hex, now, subject.kind, key, *hashes)
    if is_dry_run:
        found = [_erase_from(workers, warehouse, rows, subject, None) for rows in (_QUARANTINE, _EVENTS)]
    else:
        with audit.changing():
            warehouse.refresh()
            complete_batch(warehouse)  # or events of a batch that a killed run decided come after this
            found = [_erase_from(workers, warehouse, rows, subject, act) for rows in (_QUARANTINE, _EVENTS)]
    quarantine, events = found
    return Erased(events["erased"], quarantine["erased"], events["held"] + quarantine["held"])


def _erase_from(
    workers: Workers, warehouse: Warehouse, rows: _Rows, subject: Subject, act: Act | None
) -> Counter[str]:
    """Erase from one table, and return how many rows were `erased` and are `held`. Without an act only count them."""
    audit = Audit(warehouse)
    table, registered = warehouse.table(rows.spec), warehouse.table(ERASURES)
    table.refresh()

    def erase_once() -> Counter[str]:
        holds = audit.holds()
        files = {file.path: file for file in table.files()}
        dates = {path: file.partition_value for path, file in files.items()}
        task = erasing_work(rows, table.place, registered.place, dates, subject, holds, act)
        answers = workers.over(list(files), task)
        replaced = [files[path] for path in answers.texts(_REPLACED)]
        if replaced:
            warehouse.table(HOLDS).refresh()
            if audit.holds() != holds:
                raise CommitConflict("holds on audit events were changed meanwhile")
            registered.commit(APP, None, answers.files(ERASURES.name))
            table.commit(APP, None, answers.files(rows.spec.name), removes=replaced)
        return answers.counts(_COUNTS)

    return planning_again(erase_once, warehouse)


def erasing_work(
    rows: _Rows,
    place: TablePlace,
    erasures: TablePlace,
    dates: Mapping[str, str | None],
    subject: Subject,
    holds: Sequence[Hold],
    act: Act | None,
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: count rows to erase in a file; if it has any, write it again, and their registrations.

    Without an act it only counts.
    """
    spec = rows.spec

    def work(path: str) -> Iterator[Any]:
        counts = Counter(erased=0, held=0)
        for found in read_row_groups(place, spec, path, rows.looked_at):
            goes, is_held = rows.judged(found, subject, holds)
            counts.update(erased=pc.sum(goes).as_py() or 0, held=pc.sum(is_held).as_py() or 0)
        yield answer_counts(_COUNTS, counts)
        if act is None or not counts["erased"]:
            return
        with (
            FileWriter(place, spec, APP, dates[path]) as writer,
            FileWriter(erasures, ERASURES, APP, dates[path]) as register,
        ):
            for found in read_row_groups(place, spec, path):
                goes, _ = rows.judged(found, subject, holds)
                erased = found.filter(goes).select(STUB_COLUMNS[spec.name]).to_pylist()
                register.write(registrations(act, spec.name, erased))
                writer.write(with_stubs(spec, found, goes, STUB_COLUMNS[spec.name]))
            registered, written = register.finish(), writer.finish()
        yield from answer_files(ERASURES.name, [registered])
        yield from answer_files(spec.name, [written])
        yield answer(_REPLACED, path.encode())

    return work


def _judged_events(rows: Any, subject: Subject, holds: Sequence[Hold]) -> tuple[Any, Any]:
    """Return which audit events go, and which are the subject's and held."""
    is_mine = pc.fill_null(pc.equal(rows.column(subject.column), subject.name), False)
    is_held = held_by(holds, rows)
    return pc.and_(is_mine, pc.invert(is_held)), pc.and_(is_mine, is_held)


class _Recorded(msgspec.Struct):
    """What is looked at of a row in quarantine, as it was recorded."""

    principal_id: str | None = None
    access_key_id: str | None = None
    account_id: str | None = None
    event_time: str | None = None


_recorded = msgspec.json.Decoder(_Recorded)
_NOTHING: Final = _Recorded()


def _judged_quarantine(rows: Any, subject: Subject, holds: Sequence[Hold]) -> tuple[Any, Any]:
    """Return the same of rows in quarantine. Blocks that could not be read belong to no subject."""
    columns = (rows.column(name).to_pylist() for name in ("raw", "block_row"))
    recorded = [
        _NOTHING if raw is None or row is None else _recorded.decode(raw)
        for raw, row in zip(*columns, strict=True)
    ]
    is_mine = pa.array([getattr(one, subject.column) == subject.name for one in recorded], pa.bool_())
    times = [
        None if one.event_time is None else datetime.datetime.fromisoformat(one.event_time)
        for one in recorded
    ]
    as_events = {
        "event_name": pa.array([""] * len(recorded), pa.string()),
        "recipient_account_id": pa.array([one.account_id for one in recorded], pa.string()),
        "event_time": pa.array(times, TIME),
    }
    is_held = held_by(holds, pa.table(as_events))
    return pc.and_(is_mine, pc.invert(is_held)), pc.and_(is_mine, is_held)


_EVENTS: Final = _Rows(
    AUDIT_EVENTS,
    ("principal_id", "access_key_id", "event_time", "event_name", "recipient_account_id"),
    _judged_events,
)
_QUARANTINE: Final = _Rows(QUARANTINE, ("raw", "block_row"), _judged_quarantine)
