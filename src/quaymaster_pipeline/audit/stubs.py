"""What stays of an audit event that was erased, and how that is told from an event that somebody emptied.

    event ──erase──▶ stub: place, name, time, hashes      in silver.audit_events
                └──▶ registration: hash of the stub       in ops.audit_erasures, committed first

A stub keeps the hashes that chain it to its neighbors, so the chain is checked link by link as before. That its content
is gone is no break if the erasure registered exactly this stub. A registration does not say whose event it was: names
are in it as keyed hashes, with a key of its own for each erasure. Who knows a name can check it; it cannot be read off.
"""

from __future__ import annotations

import datetime
import hmac
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.warehouse.data_files import TablePlace, read_file
from quaymaster_pipeline.warehouse.schemas import AUDIT_EVENTS, QUARANTINE, TIME, TableSpec
from quaymaster_pipeline.warehouse.times import us_of_time

ERASURES: Final = TableSpec(
    "ops.audit_erasures",
    pa.schema(
        [
            ("erasure_id", pa.string()),
            ("erased_time", TIME),
            ("erased_from", pa.string()),
            ("subject_kind", pa.string()),
            ("hash_key", pa.binary()),
            ("subject_hash", pa.binary()),
            ("operator_hash", pa.binary()),
            ("stub_hash", pa.binary()),
            ("event_date", pa.date32()),
        ]
    ),
    "event_date",
    bounded=("erased_time",),
)
"""What was erased, a row for each row that lost its content. `erased_from` is the table, and `event_date` the partition
there; `stub_hash` is of all that stayed. `subject_hash` and `operator_hash` are HMACs of what was asked for and of who
ran the command, with `hash_key`, which is another one for each erasure."""

STUB_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    AUDIT_EVENTS.name: (
        *(
            "front_end",
            "epoch",
            "sequence",
            "event_id",
            "event_time",
            "event_name",
            "prev_hash",
            "record_hash",
        ),
        *("log_partition", "log_offset", "block_row", "batch_id"),
    ),
    QUARANTINE.name: (
        *("front_end", "epoch", "sequence", "rule", "reason", "prev_hash", "record_hash"),
        *("log_partition", "log_offset", "block_row", "batch_id"),
    ),
}
"""What stays of an erased row, besides its date."""
KEY_BYTES: Final = 32


class Act(NamedTuple):
    """One erasure: when, of what kind of name, and hashes of that name and of who erased it."""

    erasure_id: str
    erased_time: datetime.datetime
    subject_kind: str
    hash_key: bytes
    subject_hash: bytes
    operator_hash: bytes


def keyed_hash(key: bytes, text: str) -> bytes:
    """Return the HMAC of a name."""
    return hmac.digest(key, text.encode(), "sha256")


def stub_hash(table_name: str, row: Mapping[str, Any]) -> bytes:
    """Return the hash of what stays of a row of a table."""
    values = [row[name] for name in STUB_COLUMNS[table_name]]
    plain = [us_of_time(value) if isinstance(value, datetime.datetime) else value for value in values]
    return sha256(msgspec.msgpack.encode([table_name, *plain])).digest()


def with_stubs(spec: TableSpec, rows: Any, is_stub: Any, kept: Collection[str]) -> Any:
    """Return rows of a data file; of those that become stubs only the columns that are kept. Their raw bytes are 0."""
    columns = []
    for field in spec.file_schema:
        column = rows.column(field.name)
        if field.name not in kept:
            nothing = pa.scalar(0 if field.name == "raw_bytes" else None, field.type)
            column = pc.if_else(is_stub, nothing, column)
        columns.append(column)
    return pa.table(columns, schema=spec.file_schema)


def registrations(act: Act, table_name: str, rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return the rows of ERASURES' files for rows that are erased."""
    hashes = [stub_hash(table_name, row) for row in rows]
    given = {**act._asdict(), "erased_from": table_name}
    schema = ERASURES.file_schema
    columns = [
        pa.array(hashes, field.type)
        if field.name == "stub_hash"
        else pa.repeat(pa.scalar(given[field.name], field.type), len(hashes))
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def registered_stubs(place: TablePlace, paths: Iterable[str]) -> set[bytes]:
    """Return the hashes of stubs of audit events that files of ERASURES have."""
    found: set[bytes] = set()
    for path in paths:
        rows = read_file(place, ERASURES, path, ["erased_from", "stub_hash"])
        of_events = pc.equal(rows.column("erased_from"), AUDIT_EVENTS.name)
        found.update(rows.filter(of_events).column("stub_hash").to_pylist())
    return found
