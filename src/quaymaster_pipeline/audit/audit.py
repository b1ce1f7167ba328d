"""Audit: who did what, when, from where. Search, and legal holds.

A front end's events are a chain of hashes (`quaymaster_pipeline/audit/audit_chains`): `record` has the bytes that were
hashed, so an event shows by itself whether it was changed, and the chain whether one is missing or was put in. The
events do not show where their chain ended: that there were more is known from bronze's rows, and from the heads and
counts in the notes of silver's tables. Who can rewrite all of these can make a new chain; that shows against a head
that was kept elsewhere (`quaymaster_pipeline/audit/verification`).

Expired events leave from the beginning of a chain; the hash of the last one that left is kept in `ops.audit_anchors`,
and the chain goes on from there. An expired event after one that is held becomes a *stub*: only its hashes stay. So
does one that was erased, wherever it is (`quaymaster_pipeline/audit/erasure`).
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.audit.stubs import ERASURES
from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.schemas import AUDIT_EVENTS, TIME, TableSpec
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

APP: Final = "audit"
LOCK_FILE: Final = "audit.lock"
FOUND_MAX: Final = 10_000
"""Events that one search returns at most."""
NAME_LENGTH_MAX: Final = 200

HOLDS: Final = TableSpec(
    "ops.audit_holds",
    pa.schema(
        [
            ("name", pa.string()),
            ("account_id", pa.string()),
            ("since", TIME),
            ("until", TIME),
            ("reason", pa.string()),
            ("placed", TIME),
            ("released", TIME),
        ]
    ),
)
"""Legal holds: events of an account (null: all) from `since` up to `until` (null: no bound) are kept until released."""

ANCHORS: Final = TableSpec(
    "ops.audit_anchors",
    pa.schema(
        [
            ("front_end", pa.string()),
            ("epoch", pa.int64()),
            ("sequence", pa.int64()),
            ("record_hash", pa.binary()),
            ("events", pa.int64()),
            ("expired", TIME),
        ]
    ),
)
"""The last event of a front end that expired at a time: the chain goes on from the newest. `events` left with it."""

SHOWN: Final = (
    *("event_time", "recipient_account_id", "principal_id", "access_key_id", "event_name", "queue_name"),
    *(
        "source_ip_address",
        "user_agent",
        "http_status",
        "error_code",
        "read_only",
        "aws_region",
        "request_id",
    ),
    *("event_id", "request_parameters", "response_elements", "front_end", "epoch", "sequence"),
)
_NEWEST_FIRST: Final = [(name, "descending") for name in ("event_time", "front_end", "epoch", "sequence")]


class AuditMistake(ValueError):
    """What was asked for cannot be; the message says why."""


@dataclass(frozen=True, slots=True)
class Query:
    """Which events are wanted; None means any. Times are half open."""

    account: str | None = None
    principal: str | None = None
    action: str | None = None
    queue: str | None = None
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    limit: int = 100
    changes_only: bool = False
    """Leave out what only reads, as GetQueueUrl."""


class Hold(NamedTuple):
    """A legal hold; columns as in HOLDS."""

    name: str
    account_id: str | None
    since: datetime.datetime | None
    until: datetime.datetime | None
    reason: str
    placed: datetime.datetime
    released: datetime.datetime | None


class Audit:
    """The audit events of one warehouse."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    # Search

    def search(self, query: Query) -> list[dict[str, Any]]:
        """Return events, newest first, at most `limit`. Days are read one by one, until there are enough."""
        if not 1 <= query.limit <= FOUND_MAX:
            raise AuditMistake(f"the limit is {query.limit}; it must be 1 to {FOUND_MAX}")
        table = self._warehouse.table(AUDIT_EVENTS)
        by_day = _by_day(file for file in table.files() if may_have(file, query.since, query.until))
        found: list[dict[str, Any]] = []
        for day in sorted(by_day, reverse=True):
            rows = table.read(SHOWN, files=by_day[day])
            rows = rows.filter(_wanted(rows, query)).sort_by(_NEWEST_FIRST)
            found += rows.slice(0, query.limit - len(found)).to_pylist()
            if len(found) == query.limit:
                break
        return found

    # Holds

    def holds(self) -> list[Hold]:
        """Return all holds, also those released, in the order in which they were placed."""
        rows = self._warehouse.table(HOLDS).read().to_pylist()
        return sorted((Hold(**row) for row in rows), key=lambda hold: (hold.placed, hold.name))

    def place_hold(self, hold: Hold) -> None:
        """Keep what a hold names until it is released. Its name must not be that of another."""
        if not 1 <= len(hold.name) <= NAME_LENGTH_MAX or not hold.name.isprintable():
            raise AuditMistake(f"a hold has a name of 1 to {NAME_LENGTH_MAX} printable characters")
        if hold.since is not None and hold.until is not None and hold.until <= hold.since:
            raise AuditMistake("a hold ends after it begins: --until must be later than --since")
        with self.changing():
            holds = self.holds()
            if any(other.name == hold.name for other in holds):
                raise AuditMistake(f"there is a hold {hold.name!r} already, or was one")
            self._write_holds([*holds, hold])

    def release_hold(self, name: str, now: datetime.datetime) -> None:
        """Let what a hold kept expire as everything else."""
        with self.changing():
            holds = self.holds()
            if not any(hold.name == name and hold.released is None for hold in holds):
                raise AuditMistake(f"there is no hold {name!r} that is not released")
            self._write_holds([hold._replace(released=now) if hold.name == name else hold for hold in holds])

    def _write_holds(self, holds: Sequence[Hold]) -> None:
        table = self._warehouse.table(HOLDS)
        rows = pa.Table.from_pylist([hold._asdict() for hold in holds], schema=HOLDS.schema)
        table.commit(APP, table.last_batch(APP) + 1, table.write(APP, rows), removes=table.files())

    def delete_old_files(self, keep_hours: int) -> int:
        """Delete files that the tables of holds, anchors and erasures have not had for so long; return how many.

        Raises WarehouseBusy.
        """
        with self.changing():
            return sum(self._warehouse.table(spec).vacuum(keep_hours) for spec in (HOLDS, ANCHORS, ERASURES))

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Be the only one that changes holds, lets events expire or erases them while the block runs.

        Raises:
            WarehouseBusy: another process is.
        """
        with self._warehouse.only_writer(LOCK_FILE, "changes holds, lets events expire or erases them"):
            for spec in (HOLDS, ANCHORS, ERASURES, AUDIT_EVENTS):
                self._warehouse.table(spec).refresh()
            yield


def expired_before(events: Table) -> datetime.datetime | None:
    """Return the time up to which events have expired, by the table of them; None when none have."""
    text = events.note(APP).get("before")
    return None if text is None else datetime.datetime.fromisoformat(text)


def held_by(holds: Iterable[Hold], rows: Any) -> Any:
    """Return which events a hold keeps that is not released, as a mask. Nothing is kept of what has expired."""
    is_held = pa.repeat(pa.scalar(False), rows.num_rows)
    times = rows.column("event_time")
    for hold in holds:
        if hold.released is not None:
            continue
        mask = pc.is_valid(rows.column("event_name"))
        if hold.account_id is not None:
            mask = pc.and_(mask, pc.equal(rows.column("recipient_account_id"), hold.account_id))
        if hold.since is not None:
            mask = pc.and_(mask, pc.greater_equal(times, pa.scalar(hold.since, TIME)))
        if hold.until is not None:
            mask = pc.and_(mask, pc.less(times, pa.scalar(hold.until, TIME)))
        is_held = pc.or_(is_held, pc.fill_null(mask, False))
    return is_held


def _wanted(rows: Any, query: Query) -> Any:
    mask = pc.is_valid(rows.column("event_name"))
    for name, value in (
        ("recipient_account_id", query.account),
        ("principal_id", query.principal),
        ("event_name", query.action),
        ("queue_name", query.queue),
    ):
        if value is not None:
            mask = pc.and_(mask, pc.fill_null(pc.equal(rows.column(name), value), False))
    if query.changes_only:
        mask = pc.and_(mask, pc.invert(pc.fill_null(rows.column("read_only"), False)))
    times = rows.column("event_time")
    if query.since is not None:
        mask = pc.and_(mask, pc.greater_equal(times, pa.scalar(query.since, TIME)))
    if query.until is not None:
        mask = pc.and_(mask, pc.less(times, pa.scalar(query.until, TIME)))
    return mask


def _by_day(files: Iterable[DataFile]) -> dict[str, list[DataFile]]:
    found: dict[str, list[DataFile]] = {}
    for file in files:
        found.setdefault(str(file.partition_value), []).append(file)
    return found


def may_have(file: DataFile, since: datetime.datetime | None, until: datetime.datetime | None) -> bool:
    """Return whether a file may have events of [since, until), by its day."""
    day = str(file.partition_value)
    if since is not None and day < since.astimezone(datetime.UTC).date().isoformat():
        return False
    return until is None or day <= until.astimezone(datetime.UTC).date().isoformat()
