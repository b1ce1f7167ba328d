"""Whether audit events say what was recorded: their hash, their columns, and why the content of some is gone."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import sha256
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster.protocol.usage.usage_records import CorruptRecord, UsageRecord, parse_hashed_bytes
from quaymaster_pipeline.audit.stubs import STUB_COLUMNS, stub_hash
from quaymaster_pipeline.checks.usage_breaks import differing
from quaymaster_pipeline.warehouse.schemas import AUDIT_EVENTS

ROWS_AT_ONCE: Final = 10_000
_EMPTIED: Final = sorted(
    {*AUDIT_EVENTS.schema.names} - {*STUB_COLUMNS[AUDIT_EVENTS.name], str(AUDIT_EVENTS.partition_column)}
)
"""The columns that an erasure empties."""
_RECORDED_AS: Final[Mapping[str, str]] = {
    **{
        name: name
        for name in (
            *("front_end", "sequence", "event_id", "principal_id", "access_key_id", "user_agent"),
            *("request_id", "error_code", "response_elements", "read_only", "http_status", "prev_hash"),
        )
    },
    "epoch": "incarnation",
    "event_time": "event_time_us",
    "event_name": "action",
    "aws_region": "region",
    "recipient_account_id": "account_id",
    "source_ip_address": "source_ip",
    "queue_name": "queue_name",
    "request_parameters": "request_params",
}
"""The columns of an event that the record that was hashed says, and the fields of the record."""


class Content(NamedTuple):
    """What was found: how many events are `stubs` or `erased`, and what is wrong with events, by their row."""

    counts: Counter[str]
    reasons: dict[int, str]


def check_content(
    rows: Any, expired_before: datetime.datetime | None, registered: Callable[[], AbstractSet[bytes]]
) -> Content:
    """Check rows of a file of audit events. `registered` gives the hashes of stubs of their date, if any is needed."""
    found = Content(Counter(), {})
    for begin in range(0, rows.num_rows, ROWS_AT_ONCE):
        part = rows.slice(begin, ROWS_AT_ONCE)
        is_whole = pc.is_valid(part.column("record")).to_numpy()
        for at, reason in _changed(part, np.flatnonzero(is_whole)).items():
            found.reasons[begin + at] = reason
        gone = np.flatnonzero(~is_whole)
        for at, row in zip(gone.tolist(), part.take(pa.array(gone)).to_pylist(), strict=True):
            wrong = _judge_gone(row, expired_before, registered, found.counts)
            if wrong is not None:
                found.reasons[begin + at] = wrong
    return found


def _judge_gone(
    row: Mapping[str, Any],
    expired_before: datetime.datetime | None,
    registered: Callable[[], AbstractSet[bytes]],
    counts: Counter[str],
) -> str | None:
    """Count an event without content, and return what is wrong with it; None when nothing is."""
    if row["event_name"] is None:
        counts["stubs"] += 1
        if None in (row["front_end"], row["epoch"], row["sequence"]):
            return "its place in the chain is gone"
        time = row["event_time"]
        has_expired = None not in (expired_before, time) and time < expired_before
        return None if has_expired else "its content is gone, and it had not expired"
    if stub_hash(AUDIT_EVENTS.name, row) not in registered():
        return "its content is gone, and was not erased"
    counts["erased"] += 1
    filled = next((name for name in _EMPTIED if row[name] is not None), None)
    return None if filled is None else f"it was erased, and its column {filled} was filled since"


def _changed(rows: Any, places: Any) -> dict[int, str]:
    """Return why events with content, at these places, are not what was recorded."""
    mine = rows if len(places) == rows.num_rows else rows.take(pa.array(places))
    reasons: dict[int, str] = {}
    records: list[UsageRecord] = []
    readable: list[int] = []
    columns = (mine.column(name).to_pylist() for name in ("record", "record_hash"))
    for at, (data, record_hash) in enumerate(zip(*columns, strict=True)):
        if sha256(data).digest() != record_hash:
            reasons[at] = "its content was changed: it has another hash"
            continue
        try:
            records.append(parse_hashed_bytes(data))
            readable.append(at)
        except CorruptRecord as error:
            reasons[at] = str(error)
    if reasons:
        mine = mine.take(pa.array(readable, pa.int64()))
    for at, name in _changed_columns(mine, records).items():
        reasons[readable[at]] = f"its column {name} was changed"
    return {int(places[at]): reason for at, reason in reasons.items()}


def _changed_columns(rows: Any, records: Sequence[UsageRecord]) -> dict[int, str]:
    """Return the first column that is not what the record says, by row."""
    found: dict[int, str] = {}
    for name, of_record in _RECORDED_AS.items():
        column = rows.column(name)
        if name == "event_time":
            column = column.cast(pa.int64())
        values = list(map(attrgetter(of_record), records))
        try:
            recorded = pa.chunked_array([pa.array(values, column.type)])
        except (pa.ArrowException, OverflowError):  # a number that the table cannot hold
            others = [at for at, value in enumerate(column.to_pylist()) if value != values[at]]
        else:
            if column.equals(recorded):
                continue
            others = np.flatnonzero(differing(column, recorded).to_numpy()).tolist()
        for at in others:
            found.setdefault(at, name)
    return found
