"""Closed days: which days of usage are final, what they add up to, and which files have them.

    gold.usage_daily   gold-… merged-… ──close──▶ closed-….parquet        never rewritten
    ops.closes         a row for each day of a close: sums, files and their SHA-256, the hash of the row before

A close takes every file of usage_daily that is not closed yet, of each day up to some day. So the closed files of a day
have exactly the usage that came with batches up to the close's last one. What comes later is late: the next close gives
the day a further file. Rows of ops.closes are a chain: operators keep its head elsewhere. What a close says of the last
blocks of front ends is one hash; ops.close_heads has them.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.warehouse.data_files import RESTORE, DataFile
from quaymaster_pipeline.warehouse.errors import BrokenTable
from quaymaster_pipeline.warehouse.schemas import CLOSES, USAGE_DAILY
from quaymaster_pipeline.warehouse.tables import Table, Warehouse
from quaymaster_pipeline.warehouse.times import bound_of_time

APP: Final = "close"
"""The job that closes days; its batches are the numbers of closes, from 0 on."""
CLOSED: Final = "closed"
"""How names of closed files begin."""
SUMS: Final = ("requests", "billed_requests", "messages", "bytes", "chunks", "errors")
_COLUMNS: Final = tuple(name for name in CLOSES.schema.names if name != "hash")


Digest = bytes
"""A SHA-256."""


class DayClose(NamedTuple):
    """What one close did with one day. Its hash covers all other fields that are not None.

    `is_late`: the day was closed before, and this is usage that came since. `first_batch` to `through_batch` are the
    batches since the close before. `blocks` and `block_rows` are those of these batches, on the first row of a close,
    and 0 on others. So are `heads`, how many incarnations these are of, and `heads_hash`, the SHA-256 of their last
    blocks (`checks/close_heads`), empty on others; closes of earlier programs have neither. `difference` is 0 unless an
    operator `accepted` what the layers count differently.
    """

    number: int
    day: datetime.date
    is_late: bool
    first_batch: int
    through_batch: int
    closed_time: datetime.datetime
    requests: int
    billed_requests: int
    messages: int
    bytes: int
    chunks: int
    errors: int
    blocks: int
    block_rows: int
    difference: int
    accepted: bool
    files: tuple[str, ...]
    file_hashes: tuple[Digest, ...]
    previous: Digest
    hash: Digest = b""
    heads: int | None = None
    heads_hash: Digest | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object, for the note of the commit that closes."""
        fields = self._asdict()
        fields |= {"day": self.day.isoformat(), "closed_time": bound_of_time(self.closed_time)}
        fields |= {name: fields[name].hex() for name in ("previous", "hash")}
        fields |= {"file_hashes": [one.hex() for one in self.file_hashes], "files": list(self.files)}
        if self.heads_hash is not None:
            fields["heads_hash"] = self.heads_hash.hex()
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> DayClose:
        """Return what `to_json` was made of."""
        return cls(
            **{
                **fields,
                "day": datetime.date.fromisoformat(fields["day"]),
                "closed_time": datetime.datetime.fromisoformat(fields["closed_time"]),
                "files": tuple(fields["files"]),
                "file_hashes": tuple(map(bytes.fromhex, fields["file_hashes"])),
                "previous": bytes.fromhex(fields["previous"]),
                "hash": bytes.fromhex(fields["hash"]),
                "heads_hash": bytes.fromhex(text) if (text := fields.get("heads_hash")) is not None else None,
            }
        )


def is_closed_file(path: str) -> bool:
    """Return whether a file of usage_daily is of a closed day, by its name."""
    return path.rpartition("/")[2].startswith(f"{CLOSED}-")


def are_closed_files(paths: Any) -> Any:
    """Return which of these files `is_closed_file` is true of, as a mask."""
    return pc.match_substring_regex(paths, rf"(^|/){CLOSED}-[^/]*$")


def sealed(closes: Iterable[DayClose], previous: bytes) -> list[DayClose]:
    """Return rows with their hashes, chained to the row before the first of them."""
    found = []
    for close in closes:
        close = close._replace(previous=previous)
        found.append(close._replace(hash=hash_of(close)))
        previous = found[-1].hash
    return found


def hash_of(close: DayClose) -> bytes:
    """Return the SHA-256 of a row: of its other fields as JSON with sorted keys."""
    fields = close._replace(hash=b"").to_json()
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).digest()


def closes_table(closes: Sequence[DayClose]) -> Any:
    """Return rows of ops.closes."""
    rows = [
        one._asdict() | {"files": list(one.files), "file_hashes": list(one.file_hashes)} for one in closes
    ]
    return pa.Table.from_pylist(rows, schema=CLOSES.schema)


def read_closes(warehouse: Warehouse) -> list[DayClose]:
    """Return all closes in their order, also one whose rows are not in ops.closes yet.

    Raises:
        BrokenTable: rows are missing.
    """
    found, last = closes_of(warehouse.table(USAGE_DAILY), warehouse.table(CLOSES))
    numbers = sorted({close.number for close in found})
    if numbers != list(range(last + 1)):
        raise BrokenTable(
            f"the table {CLOSES.name} is broken: {USAGE_DAILY.name} was closed {last + 1} times, and it has "
            f"{len(numbers)} closes; {RESTORE}"
        )
    return found


def closes_of(daily: Table, closes: Table) -> tuple[list[DayClose], int]:
    """Return the rows of the closes that a version of usage_daily has, in order, and the number of its last close."""
    last = daily.last_batch(APP)
    found = [close for close in all_closes(closes) if close.number <= last]
    noted = noted_in(daily)
    if noted and (not found or found[-1].number < noted[0].number):
        found += noted
    return found, last


def all_closes(closes: Table) -> list[DayClose]:
    """Return the rows of ops.closes in order, whatever usage_daily knows of them."""
    found = (_close_of(row) for row in closes.read().to_pylist())
    return sorted(found, key=lambda close: close[:2])


def noted_closes(warehouse: Warehouse) -> list[DayClose]:
    """Return the rows of the last close, as the commit that closed the days notes them."""
    return noted_in(warehouse.table(USAGE_DAILY))


def noted_in(daily: Table) -> list[DayClose]:
    """Return the same of a version of usage_daily."""
    return [DayClose.from_json(fields) for fields in daily.note(APP).get("closes", [])]


def noted_heads(daily: Table) -> list[DataFile]:
    """Return the files of ops.close_heads that the last close of a version of usage_daily wrote."""
    return [DataFile.of_note(fields) for fields in daily.note(APP).get("heads", [])]


def last_closed_day(warehouse: Warehouse) -> datetime.date | None:
    """Return the last day that is closed; every day before it is, too. None when none is."""
    text = warehouse.table(USAGE_DAILY).note(APP).get("last_day")
    return None if text is None else datetime.date.fromisoformat(text)


def closed_through(warehouse: Warehouse) -> int:
    """Return the last batch that closed files have usage of; -1 when no day is closed."""
    return max((close.through_batch for close in noted_closes(warehouse)), default=-1)


def _close_of(row: Mapping[str, Any]) -> DayClose:
    fields = {name: row[name] for name in _COLUMNS}
    fields |= {name: tuple(row[name]) for name in ("files", "file_hashes")}
    return DayClose(**fields, hash=row["hash"])
