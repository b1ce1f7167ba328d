"""What was used, one record per answered request, and the chain of those of management actions.

Who answered a request is a *front end* in one of its *incarnations* (a start of it); its records are numbered densely
from 0 on in each incarnation. So (front end, incarnation, sequence) names a record. Records of management actions are
chained, each with the one before it of the same front end, so that an auditor who has the records alone sees whether
one is missing or changed: `hash_record`.
"""

from __future__ import annotations

from hashlib import blake2b, sha256
from typing import Final, Literal

import msgspec

SCHEMA_VERSION: Final = 1
"""Of `UsageRecord`: raised when fields are appended."""
CHUNK_BYTES: Final = 64 * 1024
"""What is billed as one request."""
NO_HASH: Final = bytes(32)
"""Before the first block, and before the first record of a management action."""
Category = Literal["data", "management"]
"""What a request is about: messages, or queues and permissions. Records of management are events of the audit chain; so
are those of denied requests for messages, which therefore say management."""


class UsageRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One answered request. Times are microseconds since 1970, sizes bytes, texts "" and numbers 0 where unknown.

    `bytes` everywhere else means `payload_bytes`: message bodies and attributes sent, or returned.
    """

    front_end: str
    incarnation: int
    sequence: int
    event_id: str
    """A UUIDv7 made of the identity before it and `event_time_us`: the same wherever it is worked out."""
    schema_version: int
    event_time_us: int
    """When it was answered. It never goes back within an incarnation."""
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
    """json, query or cbor; admin of an operator; push of a call to a queue's endpoint."""
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


class CorruptRecord(Exception):
    """The bytes are no record."""


_encoder = msgspec.msgpack.Encoder()
_records = msgspec.msgpack.Decoder(UsageRecord)


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
    """Return the record that `hashed_bytes` was given, without its own hash. Raises CorruptRecord."""
    try:
        return _records.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptRecord(f"no usage record: {error}") from None


def event_seed(front_end: str, incarnation: int) -> int:
    """Return the 34 bits that stand for a front end's incarnation in event ids."""
    digest = blake2b(f"{front_end}\0{incarnation}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & ((1 << 34) - 1)


def event_id(seed: int, sequence: int, event_time_us: int) -> str:
    """Return the UUIDv7 of a record: its time, the seed of its front end's incarnation, and its sequence number."""
    milliseconds = event_time_us // 1000 & ((1 << 48) - 1)
    low = (seed >> 12) << 40 | sequence & ((1 << 40) - 1)
    digits = f"{milliseconds << 80 | 7 << 76 | (seed & 0xFFF) << 64 | 2 << 62 | low:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
