"""Audit: who did what, when, from where. Search, the proof that nothing was changed, legal holds, and expiry.

A front end's events are a chain of hashes (`quaymaster_pipeline/audit/audit_chains`): `record` has the bytes that were
hashed, so an event shows by itself whether it was changed, and the chain whether one is missing or was put in. The
events do not show where their chain ended: that there were more is known from bronze's rows, and from the heads and
counts in the notes of silver's tables. Who can rewrite all of these can make a new chain; that shows against a head
that was kept elsewhere.

Expired events leave from the beginning of a chain; the hash of the last one that left is kept in `ops.audit_anchors`,
and the chain goes on from there. An expired event after one that is held becomes a *stub*: only its hashes stay. So
does one that was erased, wherever it is (`quaymaster_pipeline/audit/erasure`).
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster.protocol.usage.usage_records import NO_HASH
from quaymaster_pipeline.audit.audit_chains import RECORDED, Break, Chains, Proof, are_erased
from quaymaster_pipeline.audit.stubs import ERASURES, registered_stubs
from quaymaster_pipeline.usage import silver
from quaymaster_pipeline.usage.bronze import files_of_batches, in_batches
from quaymaster_pipeline.usage.requests import changes_of
from quaymaster_pipeline.warehouse.data_files import DataFile, read_row_groups
from quaymaster_pipeline.warehouse.schemas import (
    AUDIT_EVENTS,
    BLOCKS,
    QUARANTINE,
    TIME,
    USAGE_EVENTS,
    TableSpec,
)
from quaymaster_pipeline.warehouse.tables import Warehouse

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
_KEPT_IN_STUB: Final = {
    "front_end",
    "epoch",
    "sequence",
    "event_time",
    "prev_hash",
    "record_hash",
    "event_date",
}


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


class Expiry(NamedTuple):
    """What `expire` did, or would do: events deleted, made stubs, and those that a hold keeps."""

    deleted: int
    stubbed: int
    held: int


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
        by_day = _by_day(file for file in table.files() if _may_have(file, query.since, query.until))
        found: list[dict[str, Any]] = []
        for day in sorted(by_day, reverse=True):
            rows = table.read(SHOWN, files=by_day[day])
            rows = rows.filter(_wanted(rows, query)).sort_by(_NEWEST_FIRST)
            found += rows.slice(0, query.limit - len(found)).to_pylist()
            if len(found) == query.limit:
                break
        return found

    # Proof

    def verify(self, kept: Iterable[tuple[str, str]] = ()) -> Proof:
        """Check all chains, front end by front end.

        `kept` are heads of before: (front end, hash as hex). Each must still be in its chain, or have expired.
        """
        wanted: dict[str, set[bytes]] = {}
        for front_end, text in kept:
            wanted.setdefault(front_end, set()).add(_hash_of(text))
        proof = Proof()
        ends = self._known_ends()
        anchors = self._anchors()
        chains = Chains(proof, anchors, self._lost_incarnations(), wanted, self._expired_before(), ends.heads)
        # Registrations come before what they register: looked at later, none is missing.
        registered = self._warehouse.table(ERASURES)
        registered.refresh()
        for day, rows in self._days():
            is_any_erased = pc.any(are_erased(rows)).as_py()
            chains.take(rows, registered_stubs(registered, day) if is_any_erased else frozenset())
        for rows in self._recorded(ends.batch_id):
            chains.compare(rows)
        chains.finish(self._quarantined)
        expired = sum(anchor["events"] for of_one in anchors.values() for anchor in of_one)
        if not proof.breaks and (missing := ends.events - expired - proof.events) > 0:
            reason = f"{missing} events are missing: {ends.events} were put in, and {expired} have expired"
            proof.add(Break(None, None, None, None, reason))
        return proof

    def _known_ends(self) -> _Ends:
        """Return what the tables of silver must have, by their notes. A pipeline may run meanwhile."""
        usage, events = self._warehouse.table(USAGE_EVENTS), self._warehouse.table(AUDIT_EVENTS)
        # A batch is in usage_events last: what that has, audit_events has had since before.
        usage.refresh()
        events.refresh()
        tables = (usage, events)
        return _Ends(
            max(table.last_batch(silver.APP) for table in tables),
            silver.newest_heads(silver.heads_in(table) for table in tables),
            max(table.note(silver.APP).get("totals", {}).get("audit.rows", 0) for table in tables),
        )

    def _recorded(self, batch_id: int) -> Iterator[Any]:
        """Yield management requests that bronze has, up to this batch."""
        table = self._warehouse.table(BLOCKS)
        table.refresh()
        names = ["log_partition", "log_offset", "batch_id", "rows", "content"]
        for file in files_of_batches(table, 0, batch_id):
            for blocks in read_row_groups(table.place, BLOCKS, file.path, names):
                for rows in changes_of(in_batches(blocks, 0, batch_id)):
                    yield rows.select(RECORDED)

    def _quarantined(self) -> set[tuple[str, int, int]]:
        """Return the requests that broke a rule, and so are not among the events."""
        rows = self._warehouse.table(QUARANTINE).read(["front_end", "epoch", "sequence"])
        return set(zip(*(column.to_pylist() for column in rows.columns), strict=True))

    def _expired_before(self) -> datetime.datetime | None:
        """Return the time up to which events have expired; None when none have."""
        text = self._warehouse.table(AUDIT_EVENTS).note(APP).get("before")
        return None if text is None else datetime.datetime.fromisoformat(text)

    def _days(self, columns: Sequence[str] | None = None) -> Iterator[tuple[str, Any]]:
        """Yield all events, a day at a time, each day's in the order of their chains."""
        table = self._warehouse.table(AUDIT_EVENTS)
        for day, files in sorted(_by_day(table.files()).items()):
            rows = table.read(columns, files=files)
            yield day, rows.sort_by([(name, "ascending") for name in ("front_end", "epoch", "sequence")])

    def _lost_incarnations(self) -> dict[str, set[int]]:
        """Return the incarnations of front ends that lost their spool, after which a chain begins anew."""
        rows = self._warehouse.table(BLOCKS).read(["front_end", "seal_epoch", "seal_reason"])
        rows = rows.filter(pc.equal(rows.column("seal_reason"), "lost"))
        found: dict[str, set[int]] = {}
        for row in rows.to_pylist():
            found.setdefault(row["front_end"], set()).add(row["seal_epoch"])
        return found

    def _anchors(self) -> dict[str, list[dict[str, Any]]]:
        """Return the anchors of each front end, oldest first."""
        found: dict[str, list[dict[str, Any]]] = {}
        rows = self._warehouse.table(ANCHORS).read().to_pylist()
        for row in sorted(rows, key=lambda row: (row["epoch"], row["sequence"])):
            found.setdefault(row["front_end"], []).append(row)
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

    # Expiry

    def expire(self, before: datetime.datetime, now: datetime.datetime, *, dry_run: bool = False) -> Expiry:
        """Delete events older than `before` that no hold keeps, and say what was done.

        Raises:
            CommitConflict: a compaction replaced the same files meanwhile.
            AuditMistake: a chain is broken; what proves the break must not be deleted.
        """
        if dry_run:
            return self._expire(before, now, dry_run=True)
        with self.changing():
            return self._expire(before, now, dry_run=False)

    def _expire(self, before: datetime.datetime, now: datetime.datetime, *, dry_run: bool) -> Expiry:
        proof = self.verify()
        if proof.breaks:
            first = proof.breaks[0]
            raise AuditMistake(
                f"a chain is broken {first.where} ({first.reason}); nothing expires until that is understood"
            )
        if not dry_run:
            self._drop_registrations()
        kept_from = self._first_kept(before)
        table = self._warehouse.table(AUDIT_EVENTS)
        anchors: dict[str, dict[str, Any]] = {}
        removes: list[DataFile] = []
        adds: list[DataFile] = []
        deleted = stubbed = held = 0
        files = [file for file in table.files() if _may_have(file, None, before)]
        for _, of_day in sorted(_by_day(files).items()):
            rows = table.read(files=of_day)
            is_held = held_by(self.holds(), rows)
            is_old = pc.less(rows.column("event_time"), pa.scalar(before, TIME))
            fates = _fates(rows, pc.or_(pc.invert(is_old), is_held).to_pylist(), kept_from, anchors)
            held += pc.sum(pc.and_(is_old, is_held)).as_py() or 0
            deleted += fates.count(_DELETED)
            stubbed += fates.count(_STUB)
            if not dry_run and any(fates):
                fate = pa.array(fates, pa.int8())
                stubs = _as_stubs(rows.filter(pc.equal(fate, _STUB)))
                left = pa.concat_tables([rows.filter(pc.equal(fate, _KEPT)), stubs])
                adds += table.write(APP, left) if left.num_rows else []
                removes += of_day
        if removes:
            self._write_anchors(anchors, now)
            earlier = self._expired_before()
            latest = before if earlier is None else max(before, earlier)
            note = {"before": latest.isoformat()}
            table.commit(APP, table.last_batch(APP) + 1, adds, removes=removes, note=note)
        return Expiry(deleted, stubbed, held)

    def _first_kept(self, before: datetime.datetime) -> dict[str, tuple[int, int]]:
        """Return the place of each front end's first event that stays: one that is not old, or is held."""
        found: dict[str, tuple[int, int]] = {}
        columns = ["front_end", "epoch", "sequence", "event_time", "event_name", "recipient_account_id"]
        for _, rows in self._days(columns):
            is_old = pc.less(rows.column("event_time"), pa.scalar(before, TIME))
            rows = rows.filter(pc.or_(pc.invert(is_old), held_by(self.holds(), rows)))
            for front_end, place, _ in _places(rows):
                if front_end not in found or place < found[front_end]:
                    found[front_end] = place
        return found

    def _drop_registrations(self) -> None:
        """Remove what was registered as erased on days of which no event is left since the last expiry.

        Not with that one: a verification next to it may still have the events, and look for their registrations.
        """
        before = self._expired_before()
        if before is None:
            return
        table = self._warehouse.table(ERASURES)
        left = {file.partition_value for file in self._warehouse.table(AUDIT_EVENTS).files()}
        first_kept = before.astimezone(datetime.UTC).date().isoformat()
        gone = [
            file
            for file in table.files()
            if str(file.partition_value) < first_kept and file.partition_value not in left
        ]
        if gone:
            table.commit(APP, None, [], removes=gone)

    def _write_anchors(self, anchors: dict[str, dict[str, Any]], now: datetime.datetime) -> None:
        """Add anchors. They are written before events go: one that nothing has left for yet does no harm."""
        table = self._warehouse.table(ANCHORS)
        lines = [{**anchor, "front_end": front_end, "expired": now} for front_end, anchor in anchors.items()]
        if lines:
            rows = pa.Table.from_pylist(lines, schema=ANCHORS.schema)
            table.commit(APP, table.last_batch(APP) + 1, table.write(APP, rows))

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


class _Ends(NamedTuple):
    """What silver's tables have by their notes: up to which batch, the last events, and how many were put in ever."""

    batch_id: int
    heads: silver.Heads
    events: int


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


_KEPT, _STUB, _DELETED = 0, 1, 2


def _places(rows: Any) -> list[tuple[str, tuple[int, int], bytes | None]]:
    """Return each row's front end, (incarnation, sequence) and, if it was read, hash."""
    names = ("front_end", "epoch", "sequence")
    hashes = (
        rows.column("record_hash").to_pylist() if "record_hash" in rows.column_names else [None] * len(rows)
    )
    columns = [rows.column(name).to_pylist() for name in names]
    return [
        (front_end, (incarnation, sequence), record_hash)
        for front_end, incarnation, sequence, record_hash in zip(*columns, hashes, strict=True)
    ]


def _fates(
    rows: Any,
    keep: Sequence[bool],
    kept_from: Mapping[str, tuple[int, int]],
    anchors: dict[str, dict[str, Any]],
) -> list[int]:
    """Return what becomes of each row, and move the anchors of those that are deleted.

    What need not be kept is deleted up to the first that is; after it, it becomes a stub, so that the chain holds.
    """
    fates = [_KEPT] * len(keep)
    names = rows.column("event_name").to_pylist()
    for at, (front_end, place, record_hash) in enumerate(_places(rows)):
        if keep[at]:
            continue
        if front_end in kept_from and place > kept_from[front_end]:
            fates[at] = _KEPT if names[at] is None else _STUB  # it is one already
            continue
        fates[at] = _DELETED
        anchor = anchors.setdefault(front_end, {"epoch": -1, "sequence": -1, "events": 0})
        anchor["events"] += 1
        if place > (anchor["epoch"], anchor["sequence"]):
            anchor |= {"epoch": place[0], "sequence": place[1], "record_hash": record_hash}
    return fates


def _as_stubs(rows: Any) -> Any:
    columns = [
        rows.column(column.name) if column.name in _KEPT_IN_STUB else pa.nulls(rows.num_rows, column.type)
        for column in AUDIT_EVENTS.schema
    ]
    return pa.table(columns, schema=AUDIT_EVENTS.schema)


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


def _may_have(file: DataFile, since: datetime.datetime | None, until: datetime.datetime | None) -> bool:
    """Return whether a file may have events of [since, until), by its day."""
    day = str(file.partition_value)
    if since is not None and day < since.astimezone(datetime.UTC).date().isoformat():
        return False
    return until is None or day <= until.astimezone(datetime.UTC).date().isoformat()


def _hash_of(text: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != len(NO_HASH):
        raise AuditMistake(f"{text!r} is no hash; a head has {2 * len(NO_HASH)} hexadecimal digits")
    return value
