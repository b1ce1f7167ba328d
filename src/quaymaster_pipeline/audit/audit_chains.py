"""The proof that no audit event was changed, taken out or put in: each has the hash of the one before it.

    event 7 ── record_hash ──▶ prev_hash of event 8 ── record_hash ──▶ prev_hash of event 9 ── record_hash = head

An incarnation goes on from the one before, or from the anchor of what has expired; after a spool was lost it begins
anew. That there were more events at the end is known from bronze.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple

import pyarrow.compute as pc

from quaymaster.protocol.usage.usage_records import NO_HASH, CorruptRecord, UsageRecord, parse_hashed_bytes
from quaymaster_pipeline.audit.stubs import STUB_COLUMNS, stub_hash
from quaymaster_pipeline.usage import silver
from quaymaster_pipeline.warehouse.schemas import AUDIT_EVENTS, BLOCKS
from quaymaster_pipeline.warehouse.times import time_of_us

BREAKS_MAX: Final = 100
"""Breaks that are described; further ones are counted."""
ROWS_AT_ONCE: Final = 10_000
RECORDED: Final = ("front_end", "epoch", "sequence", "event_time", "record_hash", "category", "batch_id")
"""What is asked of bronze's management requests: `Chains.compare` takes them."""
_NO_HEAD: Final = (-1, -1, "")
_REPLACED: Final = f"it is not the event that {BLOCKS.name} has"
_MISSING: Final = "an event before it is missing, or was put in or changed"
_EMPTIED: Final = sorted(
    {*AUDIT_EVENTS.schema.names} - {*STUB_COLUMNS[AUDIT_EVENTS.name], str(AUDIT_EVENTS.partition_column)}
)
"""The columns that an erasure empties."""


class Break(NamedTuple):
    """A place where a chain does not hold; None for what nobody knows of it."""

    front_end: str | None
    incarnation: int | None
    sequence: int | None
    event_time: datetime.datetime | None
    reason: str

    @property
    def where(self) -> str:
        """The place in words, to follow `broken` or `the first is`."""
        if self.front_end is None:
            return "in the chain of a front end that is not known"
        if self.incarnation is None:
            return f"in the chain of {self.front_end}"
        return f"at {self.front_end} {self.incarnation}/{self.sequence}"


class Head(NamedTuple):
    """The end of a front end's chain. Kept elsewhere, its hash proves later that nothing before it was rewritten."""

    front_end: str
    incarnation: int
    sequence: int
    record_hash: str
    events: int


@dataclass(slots=True)
class Proof:
    """What `verify` found. `breaks` has the first ones in the order of the chains.

    Of `events`, `stubs` have no content any more since they expired, and `erased` since that was asked for.
    """

    events: int = 0
    stubs: int = 0
    erased: int = 0
    breaks_total: int = 0
    breaks: list[Break] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)

    def add(self, found: Break) -> None:
        """Count a break, and keep it if there is room."""
        self.breaks_total += 1
        if len(self.breaks) < BREAKS_MAX:
            self.breaks.append(found)


class Chains:
    """Checks chains, given a day at a time.

    Within an incarnation, days come in the order of the chain; incarnations are put together at the end, since a clock
    that was set back may lie between them.
    """

    def __init__(
        self,
        proof: Proof,
        anchors: Mapping[str, Sequence[dict[str, Any]]],
        lost_incarnations: Mapping[str, set[int]],
        wanted: Mapping[str, set[bytes]],
        expired_before: datetime.datetime | None,
        heads: silver.Heads,
    ) -> None:
        self._proof = proof
        self._anchors = anchors
        self._lost_incarnations = lost_incarnations
        self._wanted = wanted
        self._expired_before = expired_before
        self._heads = dict(heads)
        self._stretches: dict[tuple[str, int], _Stretch] = {}
        self._missing: dict[tuple[str, int], dict[int, datetime.datetime]] = {}
        self._broken: set[str] = set()

    def take(self, rows: Any, registered: AbstractSet[bytes]) -> None:
        """Look at the events of a day, in the order of their chains. `registered` are the hashes of its erased ones."""
        for batch in rows.to_batches(max_chunksize=ROWS_AT_ONCE):
            for row in batch.to_pylist():
                self._take(row, registered)

    def _take(self, row: dict[str, Any], registered: AbstractSet[bytes]) -> None:
        proof = self._proof
        owner = row["front_end"], row["epoch"]
        stretch = self._stretches.get(owner)
        reason = self._content_break(row, registered)
        proof.events += 1
        self._wanted.get(row["front_end"], set()).discard(row["record_hash"])
        if row["sequence"] == self._heads.get(row["front_end"], _NO_HEAD)[1]:
            self._find_head(row)
        ends = {name: row[name] for name in ("epoch", "sequence", "event_time", "prev_hash", "record_hash")}
        if stretch is None:
            self._stretches[owner] = _Stretch(ends, ends)
        else:
            if row["sequence"] <= stretch.last["sequence"]:
                reason = reason or "it is there twice, or its time was changed"
            elif row["prev_hash"] != stretch.last["record_hash"]:
                reason = reason or _MISSING
            stretch.last = ends
            stretch.events += 1
        if reason is not None:
            self._break(row["front_end"], row, reason)

    def _content_break(self, row: Mapping[str, Any], registered: AbstractSet[bytes]) -> str | None:
        """Count an event without content, and return what is wrong with the content of one; None when nothing is."""
        if row["record"] is not None:
            return _changed(row)
        if row["event_name"] is None:
            self._proof.stubs += 1
            has_expired = self._expired_before is not None and row["event_time"] < self._expired_before
            return None if has_expired else "its content is gone, and it had not expired"
        if stub_hash(AUDIT_EVENTS.name, row) not in registered:
            return "its content is gone, and was not erased"
        self._proof.erased += 1
        filled = next((name for name in _EMPTIED if row[name] is not None), None)
        return None if filled is None else f"it was erased, and its column {filled} was filled since"

    def _find_head(self, row: Mapping[str, Any]) -> None:
        place = row["epoch"], row["sequence"], (row["record_hash"] or b"").hex()
        if self._heads[row["front_end"]] == place:
            del self._heads[row["front_end"]]

    def compare(self, rows: Any) -> None:
        """Look at management requests of bronze, after all events: those after an incarnation's last are missing."""
        columns = (rows.column(name).to_pylist() for name in RECORDED[:5])
        for front_end, incarnation, sequence, event_time, record_hash in zip(*columns, strict=True):
            owner = front_end, incarnation
            stretch = self._stretches.get(owner)
            if stretch is not None and sequence == stretch.last["sequence"]:
                stretch.recorded.add(record_hash)
                continue
            is_after = stretch is None or sequence > stretch.last["sequence"]
            if is_after and not self._has_expired(front_end, (incarnation, sequence)):
                self._missing.setdefault(owner, {})[sequence] = event_time

    def _has_expired(self, front_end: str, place: tuple[int, int]) -> bool:
        anchors = self._anchors.get(front_end, ())
        return bool(anchors) and place <= (anchors[-1]["epoch"], anchors[-1]["sequence"])

    def finish(self, quarantined: Callable[[], set[tuple[str, int, int]]]) -> None:
        """Put the incarnations of each front end together, and look for what was to be there."""
        if self._missing:
            for front_end, incarnation, sequence in quarantined():
                self._missing.get((front_end, incarnation), {}).pop(sequence, None)
        names = {front_end for front_end, _ in self._stretches} | set(self._anchors) | set(self._wanted)
        names |= {front_end for front_end, _ in self._missing} | set(self._heads)
        for front_end in sorted(names):
            self._finish(front_end)

    def _finish(self, front_end: str) -> None:
        anchors = self._anchors.get(front_end, ())
        incarnations = sorted(incarnation for name, incarnation in self._stretches if name == front_end)
        last: dict[str, Any] | None = None
        for incarnation in incarnations:
            stretch = self._stretches[front_end, incarnation]
            before = last
            if before is None:
                place = incarnation, stretch.first["sequence"]
                below = [one for one in anchors if (one["epoch"], one["sequence"]) < place]
                before = below[-1] if below else None
            since = -1 if before is None else before["epoch"]
            is_lost = any(since <= lost < incarnation for lost in self._lost_incarnations.get(front_end, ()))
            expected = NO_HASH if before is None else before["record_hash"]
            begins_anew = is_lost and stretch.first["prev_hash"] == NO_HASH
            if stretch.first["prev_hash"] != expected and not begins_anew:
                self._break(front_end, stretch.first, _MISSING)
            last = stretch.last
            if stretch.recorded and last["record_hash"] not in stretch.recorded:
                self._break(front_end, last, _REPLACED)
        self._find_end(front_end)
        if last is None and anchors:
            last = anchors[-1]
        if last is not None:
            events = sum(self._stretches[front_end, incarnation].events for incarnation in incarnations)
            head = Head(front_end, last["epoch"], last["sequence"], last["record_hash"].hex(), events)
            self._proof.heads.append(head)
        known = {anchor["record_hash"] for anchor in anchors}
        for lacking in sorted(self._wanted.get(front_end, set()) - known):
            reason = f"the head {lacking.hex()} is not in the chain any more"
            self._break(front_end, {"epoch": None, "sequence": None, "event_time": None}, reason)

    def _find_end(self, front_end: str) -> None:
        """Tell what is missing at the end of incarnations."""
        for (name, incarnation), lacking in sorted(self._missing.items()):
            if name == front_end and lacking:
                first, last = min(lacking), max(lacking)
                span = f"{len(lacking)} events from it up to {incarnation}/{last}"
                reason = f"{span} are missing; {BLOCKS.name} has them"
                row = {"epoch": incarnation, "sequence": first, "event_time": lacking[first]}
                self._break(front_end, row, reason)
        head = self._heads.get(front_end)
        if head is not None and front_end not in self._broken and not self._has_expired(front_end, head[:2]):
            row = {"epoch": head[0], "sequence": head[1], "event_time": None}
            self._break(
                front_end, row, f"it was the last event, with the hash {head[2]}, and is missing or changed"
            )

    def _break(self, front_end: str, row: Mapping[str, Any], reason: str) -> None:
        self._broken.add(front_end)
        self._proof.add(Break(front_end, row["epoch"], row["sequence"], row["event_time"], reason))


@dataclass(slots=True)
class _Stretch:
    """The events of one incarnation of a front end that were looked at so far."""

    first: dict[str, Any]
    last: dict[str, Any]
    events: int = 1
    recorded: set[bytes] = field(default_factory=set)
    """Hashes that bronze has of the last event."""


def are_erased(rows: Any) -> Any:
    """Return which events look as erased ones do, as a mask."""
    return pc.and_(pc.is_null(rows.column("record")), pc.is_valid(rows.column("event_name")))


def _changed(row: Mapping[str, Any]) -> str | None:
    """Return why an event with content is not what was recorded; None when it is."""
    if sha256(row["record"]).digest() != row["record_hash"]:
        return "its content was changed: it has another hash"
    try:
        record = parse_hashed_bytes(row["record"])
    except CorruptRecord as error:
        return str(error)
    for name, value in _columns_of(record).items():
        if row[name] != value:
            return f"its column {name} was changed"
    return None


def _columns_of(record: UsageRecord) -> dict[str, Any]:
    """Return what the columns of an event must say, by the record that was hashed."""
    time = time_of_us(record.event_time_us)
    same: tuple[str, ...] = (
        "front_end",
        "sequence",
        "event_id",
        "principal_id",
        "access_key_id",
        "user_agent",
    )
    same += ("request_id", "error_code", "response_elements", "read_only", "http_status", "prev_hash")
    return {name: getattr(record, name) for name in same} | {
        "epoch": record.incarnation,
        "event_time": time,
        "event_name": record.action,
        "aws_region": record.region,
        "recipient_account_id": record.account_id,
        "source_ip_address": record.source_ip,
        "queue_name": record.queue_name,
        "request_parameters": record.request_params,
    }
