"""What was used, one record per answered request, and the blocks in which records are kept and shipped.

Who answered a request is a *front end* in one of its *epochs* (a start of it); its records are numbered densely from 0
on in each epoch. So (front end, epoch, sequence) names a record, and what is complete is arithmetic: the blocks of an
epoch lie end to end, and each says how many records it has and how many sequence numbers stand for records that were
dropped. A *seal* says that an epoch ends here.

    ┌──────────── head, 16 bytes ────────────┐
    │ version u8 · magic "QMU" · length u32  │  little-endian; `length` counts the whole block
    │ header length u32 · crc u32            │  CRC32C of all but itself
    ├────────────────────────────────────────┤
    │ header: MessagePack of BlockHeader     │  who, which sequences, sums, what was dropped, seal
    │ rows: zlib of MessagePack of PackedRows│  columns; nothing at all when there are no rows
    └────────────────────────────────────────┘

Rows lie in columns. What repeats (who asked from where for which queue, and what came of it) is a *context*, written
once a block; a column of whole numbers is a letter for its width (B 1, H 2, I 4, Q 8 bytes, unsigned) and the numbers,
little-endian, so that numpy and Arrow take them as they are.

`previous` in the header is the SHA-256 of the epoch's, or the front end's last epoch's, block before. Records of
management actions are chained besides, each with the one before it of the same front end, so that an auditor who has
the records alone sees whether one is missing or changed: `hash_record`.

To change the format: append fields with defaults to the array-like structs here (older programs ignore them, and older
blocks decode), or raise BLOCK_VERSION and keep decoding the old one. Blocks are kept for as long as invoices and
audit need them.
"""

from __future__ import annotations

import binascii
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b, sha256
from typing import Any, Final, Literal

import msgspec
from crc32c import crc32c

BLOCK_VERSION: Final = 1
BLOCK_MAGIC: Final = b"QMU"
SCHEMA_VERSION: Final = 1
"""Of `UsageRecord`: raised when fields are appended."""
BLOCK_BYTES_MAX: Final = 256 * 1024
"""A block before base64, so that it fits into a message with room to spare."""
ROWS_PER_BLOCK_MAX: Final = 4_096
BODY_BYTES_MAX: Final = 64 << 20
"""Rows of a block, uncompressed."""
CHUNK_BYTES: Final = 64 * 1024
"""What is billed as one request."""
NO_HASH: Final = bytes(32)
"""Before the first block, and before the first record of a management action."""
DROPPED_COUNTS_MAX: Final = 1_000
OTHERS: Final = "others"
"""Stands for accounts and actions that are too many to be told apart in a `Dropped`."""

_HEAD = struct.Struct("<B3sIII")
_CRC_AT = _HEAD.size - 4
HEAD_BYTES: Final = _HEAD.size
_COMPRESSION_LEVEL = 1
_WIDTHS: Final = ((1 << 8, b"B"), (1 << 16, b"H"), (1 << 32, b"I"), (1 << 64, b"Q"))
_WIDTH_BYTES: Final = {b"B": 1, b"H": 2, b"I": 4, b"Q": 8}

Category = Literal["data", "management"]
SealReason = Literal["stopped", "crashed", "lost"]
"""How an epoch ended: in order; by a crash, after which its last durable block was found; or so that nobody can say
what was the last, since the spool is gone."""
DropReason = Literal["spool_full", "disk_failed", "too_many", "damaged"]
"""Why records are missing: no room in the spool; it could not be written; they came faster than they could be written;
they were written, and cannot be read any more."""


class UsageRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One answered request. Times are microseconds since 1970, sizes bytes, texts "" and numbers 0 where unknown.

    `bytes` everywhere else means `payload_bytes`: message bodies and attributes sent, or returned.
    """

    front_end: str
    epoch: int
    sequence: int
    event_id: str
    """A UUIDv7 made of the identity before it and `event_time_us`: the same wherever it is worked out."""
    schema_version: int
    event_time_us: int
    """When it was answered. It never goes back within an epoch."""
    received_time_us: int
    """When the last of the request had come."""
    region: str
    account_id: str
    principal_id: str
    access_key_id: str
    source_ip: str
    user_agent: str
    request_id: str
    protocol: str
    """json or query; admin of an operator."""
    action: str
    """Unknown where the request was refused before that was read."""
    category: Category
    read_only: bool
    queue_id: int
    queue_name: str
    queue_type: str
    """standard, fifo, log, or "" where no queue was found."""
    http_status: int
    """499: the client went away before it was answered."""
    error_code: str
    """As the service spells it; "" when all went well."""
    latency_us: int
    server_us: int
    """Of the latency, what was not the wait of a long poll."""
    request_bytes: int
    response_bytes: int
    """Bodies as they were on the wire, without headers."""
    payload_bytes: int
    message_count: int
    """Messages stored, delivered, deleted, changed: entries of a batch that failed are not among them."""
    chunks: int
    """max(1, payload_bytes / 64 KiB, rounded up)."""
    empty_receive: bool
    request_params: str
    """JSON of what was asked by an action that changes a queue, "" otherwise; never a message's body."""
    response_elements: str
    """JSON of what such an action answered, "" where that is nothing."""
    prev_hash: bytes
    record_hash: bytes
    """32 bytes each for management actions, empty otherwise; see `hash_record`."""
    duplicate_count: int = 0
    """Of the messages stored or deleted, those found to be stored or gone before."""


class UsageContext(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What many records of a block have in common; fields as in `UsageRecord`."""

    account_id: str
    principal_id: str
    access_key_id: str
    source_ip: str
    user_agent: str
    protocol: str
    action: str
    category: Category
    read_only: bool
    queue_id: int
    queue_name: str
    queue_type: str
    http_status: int
    error_code: str


class Change(msgspec.Struct, array_like=True, gc=False):
    """What a record of a management action has besides. The hashes are filled in when its block is made."""

    row: int
    request_params: str
    response_elements: str
    prev_hash: bytes = b""
    record_hash: bytes = b""


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


class DroppedCount(msgspec.Struct, array_like=True, gc=False):
    """What was dropped of one account's requests for one action."""

    account_id: str
    action: str
    requests: int = 0
    messages: int = 0
    payload_bytes: int = 0
    chunks: int = 0
    errors: int = 0


class Dropped(msgspec.Struct, array_like=True, gc=False):
    """Records that are not there: those of `from_sequence` to `to_sequence` (half open), and what they would have said.

    `counts` is empty where nobody knows that any more.
    """

    from_sequence: int
    to_sequence: int
    reason: DropReason
    counts: list[DroppedCount]


class Seal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of an epoch. `end_sequence` is the number that its next record would have had; None: nobody knows."""

    epoch: int
    end_sequence: int | None
    reason: SealReason


class BlockHeader(msgspec.Struct, frozen=True, array_like=True):
    """Whose records a block has, which, and their sums, so that much is known without looking at them.

    Sequences are half open; the dropped ones come before the rows: rows + dropped = seq_hi - seq_lo. Times are those
    of the rows, 0 where there are none. From this front end and epoch no record older than `low_watermark_us` comes
    after this block.
    """

    front_end: str
    epoch: int
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
    """The bytes are not a whole, intact block."""


class UnknownBlockVersion(Exception):
    """The block was written by a newer program."""


class EncodedBlock(msgspec.Struct, frozen=True):
    """A block, and what the next one needs to know of it."""

    data: bytes
    digest: bytes
    """Its SHA-256: `previous` of the next."""
    audit_hash: bytes
    """`record_hash` of the last record of a management action so far."""
    seq_hi: int


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
_records = msgspec.msgpack.Decoder(UsageRecord)
_bodies = msgspec.msgpack.Decoder(PackedRows)


def chunks_of(payload_bytes: int) -> int:
    """Return how many requests a request is billed as."""
    return max(1, -(-payload_bytes // CHUNK_BYTES))


def hash_record(record: UsageRecord) -> bytes:
    """Return what the `record_hash` of a record must be: SHA-256 of all its other fields, `prev_hash` among them.

    A chain holds when each record's `record_hash` is this, and its `prev_hash` the `record_hash` of the one before of
    the same front end (NO_HASH for the first).
    """
    return sha256(hashed_bytes(record)).digest()


def hashed_bytes(record: UsageRecord) -> bytes:
    """Return what `hash_record` hashes: the record without its own hash."""
    return _encoder.encode(msgspec.structs.replace(record, record_hash=b""))


def parse_hashed_bytes(data: bytes) -> UsageRecord:
    """Return the record that `hashed_bytes` was given, without its own hash. Raises CorruptBlock."""
    try:
        return _records.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptBlock(f"no usage record: {error}") from None


def event_id_of(front_end: str, epoch: int, sequence: int, event_time_us: int) -> str:
    """Return the UUIDv7 of a record: its time, 34 bits that stand for front end and epoch, and its sequence number."""
    return _event_id(_event_seed(front_end, epoch), sequence, event_time_us)


def encode_block(
    front_end: str,
    epoch: int,
    seq_lo: int,
    rows: UsageRows,
    *,
    region: str,
    low_watermark_us: int,
    previous: bytes = NO_HASH,
    audit_hash: bytes = NO_HASH,
    dropped: Dropped | None = None,
    seal: Seal | None = None,
) -> EncodedBlock:
    """Return a block of rows, after what was dropped before them if anything was.

    `previous` and `audit_hash` are of the block before. The hashes of the rows' changes are filled in. It may be longer
    than BLOCK_BYTES_MAX: then it is for the caller to make two.
    """
    first = seq_lo if dropped is None else dropped.to_sequence
    assert dropped is None or dropped.from_sequence == seq_lo, "what was dropped comes first"
    count = len(rows)
    times = rows.event_time_us
    statuses = [context.http_status >= 400 for context in rows.contexts]
    header = BlockHeader(
        front_end,
        epoch,
        seq_lo,
        first + count,
        count,
        sum(rows.message_count),
        sum(rows.payload_bytes),
        sum(map(chunks_of, rows.payload_bytes)),
        sum(map(statuses.__getitem__, rows.context)),
        min(times, default=0),
        max(times, default=0),
        low_watermark_us,
        region,
        previous,
        dropped,
        seal,
    )
    packed = b""
    if count:
        audit_hash = _chain_changes(header, rows, audit_hash)
        packed = zlib.compress(_encoder.encode(_pack(rows, header.time_min_us)), _COMPRESSION_LEVEL)
    encoded = _encoder.encode(header)
    head = _HEAD.pack(BLOCK_VERSION, BLOCK_MAGIC, HEAD_BYTES + len(encoded) + len(packed), len(encoded), 0)
    crc = crc32c(packed, crc32c(encoded, crc32c(head[:_CRC_AT])))
    data = b"".join((head[:_CRC_AT], crc.to_bytes(4, "little"), encoded, packed))
    return EncodedBlock(data, sha256(data).digest(), audit_hash, header.seq_hi)


def encode_records(
    records: Sequence[UsageRecord],
    *,
    low_watermark_us: int,
    previous: bytes = NO_HASH,
    audit_hash: bytes = NO_HASH,
) -> EncodedBlock:
    """Return a block of at least one record, all of one front end, epoch and region, numbered densely."""
    first = records[0]
    for sequence, record in enumerate(records, first.sequence):
        assert record.sequence == sequence, f"record {record.sequence} stands where {sequence} must be"
    return encode_block(
        first.front_end,
        first.epoch,
        first.sequence,
        rows_of(records),
        region=first.region,
        low_watermark_us=low_watermark_us,
        previous=previous,
        audit_hash=audit_hash,
    )


def rows_of(records: Sequence[UsageRecord]) -> UsageRows:
    """Return the columns of records. What is worked out (chunks, ids, hashes) is left behind."""
    numbers: dict[UsageContext, int] = {}
    names = UsageContext.__struct_fields__
    context = [
        numbers.setdefault(UsageContext(*(getattr(record, name) for name in names)), len(numbers))
        for record in records
    ]
    return UsageRows(
        list(numbers),
        context,
        [record.event_time_us for record in records],
        [record.latency_us for record in records],
        [record.server_us for record in records],
        [record.request_bytes for record in records],
        [record.response_bytes for record in records],
        [record.payload_bytes for record in records],
        [record.message_count for record in records],
        [record.duplicate_count for record in records],
        [record.request_id for record in records],
        [
            Change(row, record.request_params, record.response_elements)
            for row, record in enumerate(records)
            if record.category == "management"
        ],
    )


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
        rows = _unpack(header, packed)
    else:
        rows = UsageRows([], [], [], [], [], [], [], [], [], [], [], [])
    check_sums(header, len(rows), sum(rows.message_count), sum(rows.payload_bytes))
    return UsageBlock(header, rows, digest)


def split_block(data: bytes | memoryview) -> tuple[BlockHeader, PackedRows | None, bytes]:
    """Return a block's header, its rows as they are written (None: there are none), and its SHA-256.

    The CRC is checked; what the rows say is not, see `check_rows` and `check_sums`. Raises as `decode_header`.
    """
    header, packed = _split(data)
    rows = None
    if header.rows:
        try:
            rows = _bodies.decode(zlib.decompressobj().decompress(packed, BODY_BYTES_MAX))
        except (zlib.error, msgspec.MsgspecError) as error:
            raise CorruptBlock(f"a block's rows cannot be read: {error}") from None
    return header, rows, sha256(data[: block_length(data)]).digest()


def check_rows(lengths: Iterable[int], context_max: int, contexts: int, changes: Sequence[Change]) -> None:
    """Raise CorruptBlock unless columns are of one length and what the rows name is there."""
    different = set(lengths)
    if len(different) != 1:
        raise CorruptBlock("a block's columns are not of one length")
    count = different.pop()
    if context_max >= contexts or any(change.row >= count for change in changes):
        raise CorruptBlock("a block's rows name what it does not have")


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


def merge_dropped(earlier: Dropped, later: Dropped) -> Dropped:
    """Return one line for two stretches that lie end to end; the earlier one's reason stands for both."""
    assert earlier.to_sequence == later.from_sequence, "only what lies end to end is merged"
    if not (earlier.counts and later.counts):
        counts: list[DroppedCount] = []
    else:
        totals: dict[tuple[str, str], DroppedCount] = {}
        for count in (*earlier.counts, *later.counts):
            add_dropped(
                totals,
                count.account_id,
                count.action,
                requests=count.requests,
                messages=count.messages,
                payload_bytes=count.payload_bytes,
                chunks=count.chunks,
                errors=count.errors,
            )
        counts = list(totals.values())
    return Dropped(earlier.from_sequence, later.to_sequence, earlier.reason, counts)


def add_dropped(
    counts: dict[tuple[str, str], DroppedCount],
    account_id: str,
    action: str,
    *,
    requests: int,
    messages: int,
    payload_bytes: int,
    chunks: int,
    errors: int,
) -> None:
    """Count what is dropped; what comes after DROPPED_COUNTS_MAX pairs of account and action is of OTHERS."""
    key = (account_id, action)
    count = counts.get(key)
    if count is None:
        if len(counts) >= DROPPED_COUNTS_MAX:
            key = (OTHERS, OTHERS)
        count = counts.setdefault(key, DroppedCount(*key))
    count.requests += requests
    count.messages += messages
    count.payload_bytes += payload_bytes
    count.chunks += chunks
    count.errors += errors


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


def _pack(rows: UsageRows, time_min_us: int) -> PackedRows:
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


def _unpack(header: BlockHeader, packed: PackedRows) -> UsageRows:
    try:
        rows = UsageRows(
            packed.contexts,
            _unpack_numbers(packed.context),
            [header.time_min_us + offset for offset in _unpack_numbers(packed.event_time)],
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


def _columns(header: BlockHeader, rows: UsageRows) -> dict[str, Sequence[Any]]:
    count = len(rows)
    first = header.first_row_sequence
    times = rows.event_time_us
    seed = _event_seed(header.front_end, header.epoch)
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
        "epoch": [header.epoch] * count,
        "sequence": range(first, first + count),
        "event_id": [_event_id(seed, first + at, time_us) for at, time_us in enumerate(times)],
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
    seed = _event_seed(header.front_end, header.epoch)
    for change in rows.changes:
        at = change.row
        context = rows.contexts[rows.context[at]]
        time_us, payload_bytes = rows.event_time_us[at], rows.payload_bytes[at]
        record = UsageRecord(
            front_end=header.front_end,
            epoch=header.epoch,
            sequence=first + at,
            event_id=_event_id(seed, first + at, time_us),
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


def _event_seed(front_end: str, epoch: int) -> int:
    """Return the 34 bits that stand for a front end's epoch in event ids."""
    digest = blake2b(f"{front_end}\0{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & ((1 << 34) - 1)


def _event_id(seed: int, sequence: int, event_time_us: int) -> str:
    milliseconds = event_time_us // 1000 & ((1 << 48) - 1)
    low = (seed >> 12) << 40 | sequence & ((1 << 40) - 1)
    digits = f"{milliseconds << 80 | 7 << 76 | (seed & 0xFFF) << 64 | 2 << 62 | low:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
