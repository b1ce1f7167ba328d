"""The rows of a block, in columns.

What repeats (who asked from where for which queue, and what came of it) is a *context*, written once a block; a column
of whole numbers is a letter for its width (B 1, H 2, I 4, Q 8 bytes, unsigned) and the numbers, little-endian, so that
numpy and Arrow take them as they are.

To change the format: see `usage_blocks`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from quaymaster.protocol.usage.usage_records import Change, UsageContext

_WIDTHS: Final = ((1 << 8, b"B"), (1 << 16, b"H"), (1 << 32, b"I"), (1 << 64, b"Q"))
_WIDTH_BYTES: Final = {b"B": 1, b"H": 2, b"I": 4, b"Q": 8}


class UsageRows(msgspec.Struct, gc=False):
    """Rows in columns, all of one length; `context` holds indexes into `contexts`, `changes` is sorted by row.

    Every row whose context is of a management action has a change.
    """

    contexts: list[UsageContext]
    context: Sequence[int]
    event_time_us: Sequence[int]
    latency_us: Sequence[int]
    server_us: Sequence[int]
    request_bytes: Sequence[int]
    response_bytes: Sequence[int]
    payload_bytes: Sequence[int]
    message_count: Sequence[int]
    duplicate_count: Sequence[int]
    request_id: Sequence[str]
    changes: list[Change]

    def __len__(self) -> int:
        return len(self.context)


NO_ROWS: Final = UsageRows([], [], [], [], [], [], [], [], [], [], [], [])


class PackedRows(msgspec.Struct, array_like=True):
    """The rows as they are written: columns of numbers packed, request ids with line feeds between them."""

    contexts: list[UsageContext]
    context: bytes
    event_time: bytes
    """Above the header's `time_min_us`."""
    latency: bytes
    server: bytes
    request_bytes: bytes
    response_bytes: bytes
    payload_bytes: bytes
    message_count: bytes
    duplicate_count: bytes
    request_ids: str
    changes: list[Change]


class CorruptBlock(Exception):
    """The bytes are not a whole, intact block, or its rows do not fit together."""


def pack_rows(rows: UsageRows, time_min_us: int) -> PackedRows:
    """Return rows as they are written, times above `time_min_us`."""
    assert all(len(column) == len(rows) for column in _parallel(rows)), "columns are of one length"
    request_ids = "\n".join(rows.request_id)
    assert request_ids.count("\n") == len(rows) - 1, "a request id is one line"
    return PackedRows(
        rows.contexts,
        _pack_numbers(rows.context),
        _pack_numbers([time_us - time_min_us for time_us in rows.event_time_us]),
        _pack_numbers(rows.latency_us),
        _pack_numbers(rows.server_us),
        _pack_numbers(rows.request_bytes),
        _pack_numbers(rows.response_bytes),
        _pack_numbers(rows.payload_bytes),
        _pack_numbers(rows.message_count),
        _pack_numbers(rows.duplicate_count),
        request_ids,
        rows.changes,
    )


def unpack_rows(packed: PackedRows, time_min_us: int) -> UsageRows:
    """Return rows that were written above `time_min_us`. Raises CorruptBlock."""
    try:
        rows = UsageRows(
            packed.contexts,
            _unpack_numbers(packed.context),
            [time_min_us + offset for offset in _unpack_numbers(packed.event_time)],
            _unpack_numbers(packed.latency),
            _unpack_numbers(packed.server),
            _unpack_numbers(packed.request_bytes),
            _unpack_numbers(packed.response_bytes),
            _unpack_numbers(packed.payload_bytes),
            _unpack_numbers(packed.message_count),
            _unpack_numbers(packed.duplicate_count),
            packed.request_ids.split("\n"),
            packed.changes,
        )
    except (struct.error, KeyError) as error:
        raise CorruptBlock(f"a block's rows cannot be read: {error}") from None
    lengths = [len(rows), *map(len, _parallel(rows))]
    check_rows(lengths, max(rows.context, default=0), len(rows.contexts), rows.changes)
    return rows


def check_rows(lengths: Iterable[int], context_max: int, contexts: int, changes: Sequence[Change]) -> None:
    """Raise CorruptBlock unless columns are of one length and what the rows name is there."""
    different = set(lengths)
    if len(different) != 1:
        raise CorruptBlock("a block's columns are not of one length")
    count = different.pop()
    if context_max >= contexts or any(change.row >= count for change in changes):
        raise CorruptBlock("a block's rows name what it does not have")


def _parallel(rows: UsageRows) -> Iterator[Sequence[Any]]:
    """Yield the columns that have one value a row."""
    yield from (
        rows.event_time_us,
        rows.latency_us,
        rows.server_us,
        rows.request_bytes,
        rows.response_bytes,
        rows.payload_bytes,
        rows.message_count,
        rows.duplicate_count,
        rows.request_id,
    )


def _pack_numbers(numbers: Sequence[int]) -> bytes:
    """Return a column as few bytes as its largest number needs."""
    largest = max(numbers)
    code = next(code for limit, code in _WIDTHS if largest < limit)
    return code + struct.pack(f"<{len(numbers)}{code.decode()}", *numbers)


def _unpack_numbers(column: bytes) -> tuple[int, ...]:
    code = column[:1]
    return struct.unpack(f"<{(len(column) - 1) // _WIDTH_BYTES[code]}{code.decode()}", column[1:])
