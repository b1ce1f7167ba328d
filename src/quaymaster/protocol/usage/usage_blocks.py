"""Blocks, in which usage records are kept and shipped.

The blocks of an incarnation lie end to end, and each says how many records it has and how many sequence numbers stand
for records that were dropped. So what is complete is arithmetic. A *seal* says that an incarnation ends here.

    ┌──────────── head, 16 bytes ────────────┐
    │ version u8 · magic "QMU" · length u32  │  little-endian; `length` counts the whole block
    │ header length u32 · crc u32            │  CRC32C of all but itself
    ├────────────────────────────────────────┤
    │ header: MessagePack of BlockHeader     │  who, which sequences, sums, what was dropped, seal
    │ rows: zlib of MessagePack of PackedRows│  columns; nothing at all when there are no rows
    └────────────────────────────────────────┘

The rows: `usage_rows`.

`previous` in the header is the SHA-256 of the front end's block before, of this incarnation or the last one. Records of
management actions are chained besides: `usage_records.hash_record`.

To change the format: append fields with defaults to the array-like structs here (older programs ignore them, and older
blocks decode), or raise BLOCK_VERSION and keep decoding the old one. Blocks are kept for as long as invoices and
audit need them.
"""

from __future__ import annotations

import binascii
import struct
import zlib
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

import msgspec
from crc32c import crc32c

from quaymaster.protocol.usage.dropped_records import Dropped
from quaymaster.protocol.usage.usage_records import (
    NO_HASH,
    SCHEMA_VERSION,
    UsageContext,
    UsageRecord,
    chunks_of,
    event_id,
    event_seed,
    hash_record,
)
from quaymaster.protocol.usage.usage_rows import (
    NO_ROWS,
    CorruptBlock,
    PackedRows,
    UsageRows,
    pack_rows,
    unpack_rows,
)

BLOCK_VERSION: Final = 1
BLOCK_MAGIC: Final = b"QMU"
BLOCK_BYTES_MAX: Final = 256 * 1024
"""A block before base64, so that it fits into a message with room to spare."""
ROWS_PER_BLOCK_MAX: Final = 4_096
BODY_BYTES_MAX: Final = 64 << 20
"""Rows of a block, uncompressed."""
_HEAD = struct.Struct("<B3sIII")
_CRC_AT = _HEAD.size - 4
HEAD_BYTES: Final = _HEAD.size
_COMPRESSION_LEVEL = 1

SealReason = Literal["stopped", "crashed", "lost"]
"""How an incarnation ended: in order; by a crash, after which its last durable block was found; or so that nobody can
say what was the last, since the spool is gone."""


class Seal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of an incarnation. `end_sequence`: the number that its next record would have had; None: not known."""

    incarnation: int
    end_sequence: int | None
    reason: SealReason


class BlockHeader(msgspec.Struct, frozen=True, array_like=True):
    """Whose records a block has, which, and their sums, so that much is known without looking at them.

    Sequences are half open; the dropped ones come before the rows: rows + dropped = seq_hi - seq_lo. Times are those
    of the rows, 0 where there are none. From this front end and incarnation no record older than `low_watermark_us`
    comes after this block.
    """

    front_end: str
    incarnation: int
    seq_lo: int
    seq_hi: int
    rows: int
    messages: int
    payload_bytes: int
    chunks: int
    errors: int
    time_min_us: int
    time_max_us: int
    low_watermark_us: int
    region: str
    previous: bytes
    dropped: Dropped | None = None
    seal: Seal | None = None

    @property
    def requests(self) -> int:
        """How many requests the rows stand for."""
        return self.rows

    @property
    def first_row_sequence(self) -> int:
        """The sequence number of the first row."""
        return self.seq_hi - self.rows


class UnknownBlockVersion(Exception):
    """The block was written by a newer program."""


class BlockOrigin(NamedTuple):
    """Whose a block is."""

    front_end: str
    incarnation: int
    region: str


class BlockEnd(NamedTuple):
    """Where a block ends: what the next one goes on from."""

    next_sequence: int = 0
    digest: bytes = NO_HASH
    """Its SHA-256: `previous` of the next."""
    audit_hash: bytes = NO_HASH
    """`record_hash` of the last record of a management action so far."""


class EncodedBlock(NamedTuple):
    """A block, and where it ends."""

    data: bytes
    end: BlockEnd


class UsageBlock(msgspec.Struct, frozen=True):
    """A block, decoded and checked."""

    header: BlockHeader
    rows: UsageRows
    digest: bytes

    def columns(self) -> dict[str, Sequence[Any]]:
        """Return the rows under the names of `UsageRecord`'s fields, in their order, one sequence each."""
        return _columns(self.header, self.rows)

    def records(self) -> list[UsageRecord]:
        """Return the rows one by one."""
        return [UsageRecord(*values) for values in zip(*self.columns().values(), strict=True)]


_encoder = msgspec.msgpack.Encoder()
_headers = msgspec.msgpack.Decoder(BlockHeader)
_bodies = msgspec.msgpack.Decoder(PackedRows)


def encode_block(
    origin: BlockOrigin,
    after: BlockEnd,
    rows: UsageRows,
    *,
    low_watermark_us: int,
    dropped: Dropped | None = None,
    seal: Seal | None = None,
) -> EncodedBlock:
    """Return a block of rows, after what was dropped before them if anything was, and after the block before.

    The hashes of the rows' changes are filled in. It may be longer than BLOCK_BYTES_MAX: then it is for the caller to
    make two.
    """
    first = after.next_sequence if dropped is None else dropped.to_sequence
    assert dropped is None or dropped.from_sequence == after.next_sequence, "what was dropped comes first"
    count = len(rows)
    times = rows.event_time_us
    statuses = [context.http_status >= 400 for context in rows.contexts]
    header = BlockHeader(
        origin.front_end,
        origin.incarnation,
        after.next_sequence,
        first + count,
        count,
        sum(rows.message_count),
        sum(rows.payload_bytes),
        sum(map(chunks_of, rows.payload_bytes)),
        sum(map(statuses.__getitem__, rows.context)),
        min(times, default=0),
        max(times, default=0),
        low_watermark_us,
        origin.region,
        after.digest,
        dropped,
        seal,
    )
    packed, audit_hash = b"", after.audit_hash
    if count:
        audit_hash = _chain_changes(header, rows, audit_hash)
        packed = zlib.compress(_encoder.encode(pack_rows(rows, header.time_min_us)), _COMPRESSION_LEVEL)
    encoded = _encoder.encode(header)
    head = _HEAD.pack(BLOCK_VERSION, BLOCK_MAGIC, HEAD_BYTES + len(encoded) + len(packed), len(encoded), 0)
    crc = crc32c(packed, crc32c(encoded, crc32c(head[:_CRC_AT])))
    data = b"".join((head[:_CRC_AT], crc.to_bytes(4, "little"), encoded, packed))
    return EncodedBlock(data, BlockEnd(header.seq_hi, sha256(data).digest(), audit_hash))


def block_length(data: bytes | memoryview) -> int:
    """Return the length of the block that begins with these 16 bytes or more; CorruptBlock if none does."""
    if len(data) < HEAD_BYTES:
        raise CorruptBlock(f"{len(data)} bytes are no block: its head alone has {HEAD_BYTES}")
    version, magic, length, header_length, _ = _HEAD.unpack_from(data)
    if magic != BLOCK_MAGIC:
        raise CorruptBlock(f"a block begins with {BLOCK_MAGIC!r}, not {magic!r}")
    if version != BLOCK_VERSION:
        raise UnknownBlockVersion(
            f"this block of usage records has version {version}; version {BLOCK_VERSION} can be read"
        )
    if HEAD_BYTES + header_length > length:
        raise CorruptBlock(f"a header of {header_length} bytes does not fit into a block of {length}")
    return int(length)


def decode_header(data: bytes | memoryview) -> BlockHeader:
    """Return the header of the block that `data` begins with; the CRC of all of it is checked, the rows are not read.

    Raises:
        CorruptBlock: it is cut or damaged.
        UnknownBlockVersion: a newer program wrote it.
    """
    header, _ = _split(data)
    return header


def decode_block(data: bytes | memoryview) -> UsageBlock:
    """Return a block with its rows; what its header says of them is checked. Raises as `decode_header`."""
    header, packed, digest = split_block(data)
    if packed is not None:
        rows = unpack_rows(packed, header.time_min_us)
    else:
        rows = NO_ROWS
    check_sums(header, len(rows), sum(rows.message_count), sum(rows.payload_bytes))
    return UsageBlock(header, rows, digest)


def split_block(data: bytes | memoryview) -> tuple[BlockHeader, PackedRows | None, bytes]:
    """Return a block's header, its rows as they are written (None: there are none), and its SHA-256.

    The CRC is checked; what the rows say is not, see `check_rows` and `check_sums`. Raises as `decode_header`.
    """
    header, body, digest = inflate_block(data)
    if body is None:
        return header, None, digest
    try:
        return header, _bodies.decode(body), digest
    except msgspec.MsgspecError as error:
        raise CorruptBlock(f"a block's rows cannot be read: {error}") from None


def inflate_block(data: bytes | memoryview) -> tuple[BlockHeader, bytes | None, bytes]:
    """Return what `split_block` does, with the MessagePack of `PackedRows` in place of the rows."""
    header, packed = _split(data)
    body = None
    if header.rows:
        try:
            body = zlib.decompressobj().decompress(packed, BODY_BYTES_MAX)
        except zlib.error as error:
            raise CorruptBlock(f"a block's rows cannot be read: {error}") from None
    return header, body, block_digest(data)


def block_digest(data: bytes | memoryview) -> bytes:
    """Return the SHA-256 of the block that `data` begins with: `previous` of the next one."""
    return sha256(data[: block_length(data)]).digest()


def check_sums(header: BlockHeader, rows: int, messages: int, payload_bytes: int) -> None:
    """Raise CorruptBlock unless a block's header says the same."""
    found = (rows, messages, payload_bytes)
    if found != (header.rows, header.messages, header.payload_bytes):
        raise CorruptBlock(f"a block's rows sum up to {found}, not to what its header says")


def block_text(data: bytes) -> str:
    """Return a block as the body of a message: base64."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def parse_block_text(text: str | bytes) -> bytes:
    """Return the block in a message's body; CorruptBlock if it is not base64."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise CorruptBlock(f"the body of a message is not base64: {error}") from None


def _split(data: bytes | memoryview) -> tuple[BlockHeader, bytes | memoryview]:
    length = block_length(data)
    if length > len(data):
        raise CorruptBlock(f"a block of {length} bytes is cut after {len(data)}")
    _, _, _, header_length, crc = _HEAD.unpack_from(data)
    view = memoryview(data)
    if crc32c(view[HEAD_BYTES:length], crc32c(view[:_CRC_AT])) != crc:
        raise CorruptBlock("a block's bytes are not those its CRC was taken of")
    end = HEAD_BYTES + header_length
    try:
        header = _headers.decode(view[HEAD_BYTES:end])
    except msgspec.MsgspecError as error:
        raise CorruptBlock(f"a block's header cannot be read: {error}") from None
    dropped = 0
    if header.dropped is not None:
        dropped = header.dropped.to_sequence - header.dropped.from_sequence
    if header.rows + dropped != header.seq_hi - header.seq_lo:
        raise CorruptBlock(
            f"sequences {header.seq_lo} to {header.seq_hi} are not {header.rows} rows and {dropped} dropped"
        )
    return header, view[end:length]


def _columns(header: BlockHeader, rows: UsageRows) -> dict[str, Sequence[Any]]:
    count = len(rows)
    first = header.first_row_sequence
    times = rows.event_time_us
    seed = event_seed(header.front_end, header.incarnation)
    payload_bytes, message_count = rows.payload_bytes, rows.message_count
    of_context = {
        name: [values[at] for at in rows.context]
        for name in UsageContext.__struct_fields__
        for values in ([getattr(context, name) for context in rows.contexts],)
    }
    is_receive = [
        context.action == "ReceiveMessage" and context.http_status == 200 for context in rows.contexts
    ]
    params, elements = [""] * count, [""] * count
    prev_hash, record_hash = [b""] * count, [b""] * count
    for change in rows.changes:
        at = change.row
        params[at], elements[at] = change.request_params, change.response_elements
        prev_hash[at], record_hash[at] = change.prev_hash, change.record_hash
    known: dict[str, Sequence[Any]] = {
        **of_context,
        "front_end": [header.front_end] * count,
        "incarnation": [header.incarnation] * count,
        "sequence": range(first, first + count),
        "event_id": [event_id(seed, first + at, time_us) for at, time_us in enumerate(times)],
        "schema_version": [SCHEMA_VERSION] * count,
        "event_time_us": times,
        "received_time_us": [
            time_us - latency_us for time_us, latency_us in zip(times, rows.latency_us, strict=True)
        ],
        "region": [header.region] * count,
        "request_id": rows.request_id,
        "latency_us": rows.latency_us,
        "server_us": rows.server_us,
        "request_bytes": rows.request_bytes,
        "response_bytes": rows.response_bytes,
        "payload_bytes": payload_bytes,
        "message_count": message_count,
        "chunks": [chunks_of(number) for number in payload_bytes],
        "empty_receive": [
            is_receive[at] and not number for at, number in zip(rows.context, message_count, strict=True)
        ],
        "request_params": params,
        "response_elements": elements,
        "prev_hash": prev_hash,
        "record_hash": record_hash,
        "duplicate_count": rows.duplicate_count,
    }
    return {name: known[name] for name in UsageRecord.__struct_fields__}


def _chain_changes(header: BlockHeader, rows: UsageRows, audit_hash: bytes) -> bytes:
    """Fill in the hashes of the rows' changes; return the last one."""
    first = header.first_row_sequence
    seed = event_seed(header.front_end, header.incarnation)
    for change in rows.changes:
        at = change.row
        context = rows.contexts[rows.context[at]]
        time_us, payload_bytes = rows.event_time_us[at], rows.payload_bytes[at]
        record = UsageRecord(
            front_end=header.front_end,
            incarnation=header.incarnation,
            sequence=first + at,
            event_id=event_id(seed, first + at, time_us),
            schema_version=SCHEMA_VERSION,
            event_time_us=time_us,
            received_time_us=time_us - rows.latency_us[at],
            region=header.region,
            request_id=rows.request_id[at],
            latency_us=rows.latency_us[at],
            server_us=rows.server_us[at],
            request_bytes=rows.request_bytes[at],
            response_bytes=rows.response_bytes[at],
            payload_bytes=payload_bytes,
            message_count=rows.message_count[at],
            chunks=chunks_of(payload_bytes),
            empty_receive=False,
            request_params=change.request_params,
            response_elements=change.response_elements,
            prev_hash=audit_hash,
            record_hash=b"",
            duplicate_count=rows.duplicate_count[at],
            **msgspec.structs.asdict(context),
        )
        change.prev_hash = audit_hash
        change.record_hash = audit_hash = hash_record(record)
    return audit_hash
