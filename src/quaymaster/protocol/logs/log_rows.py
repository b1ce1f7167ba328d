"""Messages of a log on their way into columns (`log_columns`), some hundreds at a time.

    messages ──▶ Rows ──append──┐
    messages ──▶ Rows ──append──┼──▶ BlockBuilder ──block──▶ Block
    messages ──▶ Rows ──append──┘

A part goes into all its columns before the next one is opened: it is still in the processor's caches then, and the
next one uses its memory again. Of thousands of messages at once, each of these steps would wait for memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from itertools import accumulate, chain
from typing import Any, Final, Protocol

import msgspec

from quaymaster.core.values.messages import MessageContent
from quaymaster.protocol.logs.log_columns import BYTES_BUFFERS, Block, Buffer, Buffers

_OFFSET = struct.Struct("<i")
_OFFSET_BYTES: Final = _OFFSET.size


class Rows(msgspec.Struct, gc=False):
    """Messages of one partition: for each an entry in each list. `contents` is empty when no column needs it.

    `dead_letter_sources` are the ARNs of the queues they died in, None for others.
    """

    queue: str
    partition: int
    offsets: list[int]
    sent_ms: list[int]
    message_ids: list[bytes]
    dead_letter_sources: list[str | None]
    contents: list[MessageContent]


class BlockBuilder:
    """Makes columns of messages that come in parts."""

    def __init__(self, names: Iterable[str]) -> None:
        self._rows = 0
        self._columns = {name: _MAKE[name]() for name in names}

    @property
    def names(self) -> list[str]:
        """The columns it makes."""
        return list(self._columns)

    def append(self, rows: Rows) -> None:
        """Add the next messages."""
        self._rows += len(rows.offsets)
        for column in self._columns.values():
            column.append(rows)

    def append_block(self, block: Block) -> None:
        """Add messages that are in these very columns already; nothing is copied before `block`."""
        self._rows += block.rows
        for name, column in self._columns.items():
            column.append_buffers(block.columns[name])

    def block(self) -> Block:
        """Return the columns."""
        return Block(self._rows, {name: column.buffers() for name, column in self._columns.items()})


def columns_of(rows: Rows, names: Iterable[str]) -> Block:
    """Return messages in the columns asked for."""
    builder = BlockBuilder(names)
    builder.append(rows)
    return builder.block()


class _GrowingColumn(Protocol):
    """One column that grows."""

    def append(self, rows: Rows) -> None:
        """Add the values of the next messages."""
        ...

    def append_buffers(self, buffers: Buffers) -> None:
        """Add the values of a column of the same kind."""
        ...

    def buffers(self) -> Buffers:
        """Return its buffers."""
        ...


# What a column's buffers grow in


class _Places:
    """The offsets of a BYTES or MAP column: where each value begins, and the last one ends."""

    __slots__ = ("_packed", "count", "end")

    def __init__(self) -> None:
        self._packed: list[Buffer] = []
        self.count = 0
        self.end = 0

    def add(self, values: Sequence[Sized]) -> None:
        """Add values of these lengths."""
        starts = list(accumulate(map(len, values), initial=self.end))
        self.end = starts.pop()
        self._add(starts)

    def add_even(self, width: int, count: int) -> None:
        """Add so many values of one length."""
        self._add(range(self.end, self.end + width * count, width) if width else [self.end] * count)
        self.end += width * count

    def add_offsets(self, offsets: Buffer) -> None:
        """Add values of which the offsets are there, counted from 0."""
        rows = len(offsets) // _OFFSET_BYTES - 1
        (end,) = _OFFSET.unpack_from(offsets, rows * _OFFSET_BYTES)
        self._packed.append(_rebased(offsets[: rows * _OFFSET_BYTES], self.end))
        self.count += rows
        self.end += end

    def buffer(self) -> bytes:
        """Return the offsets."""
        return b"".join([*self._packed, _pack("i", [self.end])])

    def _add(self, starts: Sequence[int]) -> None:
        self.count += len(starts)
        self._packed.append(_pack("i", starts))


class _Bytes:
    """The buffers of a BYTES column, or of one field of a MAP."""

    __slots__ = ("_data", "_nulls", "_places")

    def __init__(self) -> None:
        self._places = _Places()
        self._data: list[Buffer] = []
        self._nulls = 0
        """A bit for each value that is null, the first one lowest."""

    def append_texts(self, values: Sequence[str]) -> None:
        """Add texts."""
        if values and values[0] == values[-1] and values.count(values[0]) == len(values):
            self.append_alike(values[0], len(values))
            return
        joined = "".join(values)
        data = joined.encode()
        is_ascii = len(data) == len(joined)
        self._places.add(values if is_ascii else [value.encode() for value in values])
        self._data.append(data)

    def append_texts_or_nulls(self, values: Sequence[str | None]) -> None:
        """Add texts, some of which may be None."""
        nulls = self._note_nulls(values)
        if nulls == len(values):
            self.append_even(b"", 0, nulls)
        else:
            self.append_texts([value or "" for value in values])

    def append_blobs_or_nulls(self, values: Sequence[bytes | None]) -> None:
        """Add bytes, some of which may be None."""
        self._note_nulls(values)
        present = [value or b"" for value in values]
        self._places.add(present)
        self._data.append(b"".join(present))

    def append_alike(self, value: str, count: int) -> None:
        """Add so many times the same text."""
        data = value.encode()
        self.append_even(data * count, len(data), count)

    def append_buffers(self, buffers: Buffers) -> None:
        """Add the values of these buffers."""
        validity, offsets, data = buffers
        before = self._places.count
        self._places.add_offsets(offsets)
        if len(validity):
            valid = int.from_bytes(validity, "little")
            self._nulls |= (valid ^ ((1 << self._places.count - before) - 1)) << before
        self._data.append(data)

    def append_even(self, data: Buffer, width: int, count: int) -> None:
        """Add so many values of one length, one behind the other."""
        self._places.add_even(width, count)
        self._data.append(data)

    def buffers(self) -> Buffers:
        """Return validity bitmap, offsets and data."""
        count = self._places.count
        validity = b""
        if self._nulls:
            validity = (self._nulls ^ ((1 << count) - 1)).to_bytes(-(-count // 8), "little")
        return [validity, self._places.buffer(), b"".join(self._data)]

    def _note_nulls(self, values: Sequence[Any]) -> int:
        """Note which of the values to be added are None; return how many."""
        nulls = values.count(None)
        if nulls == len(values):
            self._nulls |= ((1 << nulls) - 1) << self._places.count
        elif nulls:
            bits = "".join(["1" if value is None else "0" for value in reversed(values)])
            self._nulls |= int(bits, 2) << self._places.count
        return nulls


class _Entries:
    """The buffers of a MAP column."""

    __slots__ = ("_places", "fields")

    def __init__(self, fields: int) -> None:
        self._places = _Places()
        self.fields = [_Bytes() for _ in range(fields)]

    def append(self, each: Sequence[Sequence[Any]]) -> list[Any]:
        """Add rows with these entries, and return all entries, which have to be added to the fields."""
        self._places.add(each)
        return list(chain.from_iterable(each))

    def append_buffers(self, buffers: Buffers) -> None:
        """Add the rows of these buffers."""
        self._places.add_offsets(buffers[0])
        for at, field in enumerate(self.fields):
            field.append_buffers(buffers[1 + at * BYTES_BUFFERS : 1 + (at + 1) * BYTES_BUFFERS])

    def append_none(self, count: int) -> None:
        """Add rows without entries, which most messages' are."""
        self._places.add_even(0, count)

    def buffers(self) -> Buffers:
        """Return offsets and the fields' buffers."""
        return [self._places.buffer(), *chain.from_iterable([field.buffers() for field in self.fields])]


def _pack(typecode: str, values: Sequence[int]) -> bytes:
    """Return numbers as they lie in a buffer, 4 ("i") or 8 ("q") bytes each."""
    # An array takes its values one by one, at twice to three times the cost.
    return struct.pack(f"<{len(values)}{typecode}", *values)


def _rebased(offsets: Buffer, base: int) -> Buffer:
    """Return offsets that begin at `base`, where these begin at 0."""
    if not base or not len(offsets):
        return offsets
    # As one number: none of the sums reaches the next one's bytes, and it costs a hundredth of what a loop does.
    bases = int.from_bytes(_OFFSET.pack(base) * (len(offsets) // _OFFSET_BYTES), "little")
    return (int.from_bytes(offsets, "little") + bases).to_bytes(len(offsets), "little")


# The columns


class _Numbers:
    """A FIXED column, made of each part by `take`."""

    def __init__(self, typecode: str, take: Callable[[Rows], Sequence[int]]) -> None:
        self._data: list[Buffer] = []
        self._typecode = typecode
        self._take = take

    def append(self, rows: Rows) -> None:
        self._data.append(_pack(self._typecode, self._take(rows)))

    def append_buffers(self, buffers: Buffers) -> None:
        self._data += buffers

    def buffers(self) -> Buffers:
        return [b"".join(self._data)]


class _Strings:
    """A BYTES column, to which `add` adds each part."""

    def __init__(self, add: Callable[[_Bytes, Rows], None]) -> None:
        self._bytes = _Bytes()
        self._add = add

    def append(self, rows: Rows) -> None:
        self._add(self._bytes, rows)

    def append_buffers(self, buffers: Buffers) -> None:
        self._bytes.append_buffers(buffers)

    def buffers(self) -> Buffers:
        return self._bytes.buffers()


class _Attributes:
    """Message attributes: name, type, text, bytes."""

    def __init__(self) -> None:
        self._entries = _Entries(4)

    def append(self, rows: Rows) -> None:
        each = [content.attributes for content in rows.contents]
        if not any(each):
            self._entries.append_none(len(each))
            return
        every = self._entries.append(each)
        names, types, texts, blobs = self._entries.fields
        names.append_texts([name for name, _, _ in every])
        types.append_texts([data_type for _, data_type, _ in every])
        texts.append_texts_or_nulls([value if isinstance(value, str) else None for _, _, value in every])
        blobs.append_blobs_or_nulls([None if isinstance(value, str) else value for _, _, value in every])

    def append_buffers(self, buffers: Buffers) -> None:
        self._entries.append_buffers(buffers)

    def buffers(self) -> Buffers:
        return self._entries.buffers()


class _SystemAttributes:
    """Message system attributes: name, text."""

    def __init__(self) -> None:
        self._entries = _Entries(2)

    def append(self, rows: Rows) -> None:
        traces = [content.trace_header for content in rows.contents]
        sources = rows.dead_letter_sources
        if not any(traces) and not any(sources):
            self._entries.append_none(len(traces))
            return
        named = zip(traces, sources, strict=True)
        every = self._entries.append([_system_entries(trace, source) for trace, source in named])
        names, values = self._entries.fields
        names.append_texts([name for name, _ in every])
        values.append_texts([value for _, value in every])

    def append_buffers(self, buffers: Buffers) -> None:
        self._entries.append_buffers(buffers)

    def buffers(self) -> Buffers:
        return self._entries.buffers()


def _system_entries(trace_header: str | None, source: str | None) -> list[tuple[str, str]]:
    entries = []
    if trace_header:
        entries.append(("AWSTraceHeader", trace_header))
    if source:
        entries.append(("DeadLetterQueueSourceArn", source))
    return entries


def _add_uuids(column: _Bytes, rows: Rows) -> None:
    """Add 16-byte ids as text in the form of a UUID: digit by digit, of all at once."""
    count = len(rows.message_ids)
    digits = b"".join(rows.message_ids).hex().encode()
    text = bytearray(b"-") * (36 * count)
    for at, digit in _UUID_DIGITS:
        text[at::36] = digits[digit::32]
    column.append_even(memoryview(text), 36, count)


_UUID_DIGITS: Final = [
    (at + hyphens, at)
    for hyphens, digits in enumerate((range(8), range(8, 12), range(12, 16), range(16, 20), range(20, 32)))
    for at in digits
]
"""Where in the text each digit stands."""


def _add_md5s(column: _Bytes, rows: Rows) -> None:
    data = b"".join([content.body_md5 for content in rows.contents]).hex().encode()
    column.append_even(data, 32, len(rows.contents))


_MAKE: Final[Mapping[str, Callable[[], _GrowingColumn]]] = {
    "queue": lambda: _Strings(lambda column, rows: column.append_alike(rows.queue, len(rows.offsets))),
    "partition": lambda: _Numbers("i", lambda rows: [rows.partition] * len(rows.offsets)),
    "offset": lambda: _Numbers("q", lambda rows: rows.offsets),
    "timestamp": lambda: _Numbers("q", lambda rows: [1_000 * sent_ms for sent_ms in rows.sent_ms]),
    "key": lambda: _Strings(
        lambda column, rows: column.append_texts_or_nulls([content.group_id for content in rows.contents])
    ),
    "value": lambda: _Strings(
        lambda column, rows: column.append_texts([content.body for content in rows.contents])
    ),
    "message_id": lambda: _Strings(_add_uuids),
    "dedup_id": lambda: _Strings(
        lambda column, rows: column.append_texts_or_nulls([content.dedup_id for content in rows.contents])
    ),
    "sender_id": lambda: _Strings(
        lambda column, rows: column.append_texts([content.sender_id for content in rows.contents])
    ),
    "attributes": _Attributes,
    "system_attributes": _SystemAttributes,
    "md5_body": lambda: _Strings(_add_md5s),
}
