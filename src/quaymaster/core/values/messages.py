"""A message's bytes, from the front end that key_parts it to the front end that opens it.

The broker stores them unread. What a SEND or MOVE record holds, all integers little-endian:

    payload   = prefix · message               (SEND)
              = prefix · move wrapper · message    (MOVE)

    prefix    : group hash u64        when HAS_GROUP is among the record's flags
                dedup hash 16 bytes   when HAS_DEDUP
                retry hash 16 bytes   when HAS_RETRY

    message   : version u8 (1) · flags u8 · message id 16 · data key id u64 · start id 8 · origin queue id u64
                nonce counter u64 · [origin message id 16, when ORIGIN_DIFFERS] · ciphertext and 16-byte tag

    wrapper   : version u8 (129) · flags u8 · source queue id u64 · source partition u32 · source sequence u64
                [new message id 16, when HAS_MESSAGE_ID] · [ARN length u16, ARN, when HAS_SOURCE_ARN]
                [move number u64, when HAS_NUMBER: it came from another journal; since cell format 2]

Data key id, origin queue id and origin message id are what the ciphertext is bound to. They stay as they were
when a message moves to another queue or gets a new id, so that it stays readable (`messaging/encryption`). The
first byte tells a message from a wrapper.

To change a format: take a new version byte, keep reading the old ones (messages live for 14 days, backups
longer), and add a test that reads bytes written by the old code.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import xxhash

HAS_GROUP: Final = 1
HAS_DEDUP: Final = 2
HAS_RETRY: Final = 4

MESSAGE_VERSION: Final = 1
MOVED_VERSION: Final = 0x81
CONTENT_VERSION: Final = 1
ORIGIN_DIFFERS: Final = 1
HAS_MESSAGE_ID: Final = 1
HAS_SOURCE_ARN: Final = 2
HAS_NUMBER: Final = 4

MESSAGE_ID_BYTES: Final = 16
START_ID_BYTES: Final = 8
TAG_BYTES: Final = 16

_HEAD = struct.Struct("<BB16sQ8sQQ")
_PLAIN_PARTS = struct.Struct("<2s16s24s8s")
_BEGINNING_AND_KEY_PART = struct.Struct("<2s16x24s")
_KEY_PART = struct.Struct("<Q8sQ")
_ASSOCIATED_START = struct.Struct("<BQQ")
_ASSOCIATED = struct.Struct("<BQQ16s")
_MOVED = struct.Struct("<BBQIQ")
_GROUP = struct.Struct("<Q")
_ARN_LENGTH = struct.Struct("<H")
_NUMBER = struct.Struct("<Q")

_PLAIN_HEAD = bytes([MESSAGE_VERSION, 0])
"""What a message begins with whose origin id is its id: the ciphertext follows the head."""

HEAD_BYTES: Final = _HEAD.size
_DATA_KEY_AT: Final = 18
assert HEAD_BYTES == 50, "a message's head is 50 bytes on disk"


class UnknownMessageFormat(Exception):
    """The bytes are not a message this program can read: damaged, or written by a newer one."""


class StoredMessage(msgspec.Struct, gc=False):
    """A stored message's plain head, and its ciphertext.

    `message_id` is the id the message goes by now. The `source_*` fields say where a moved message was before
    (queue id 0: it was not moved); `dead_letter_source_arn` is the queue it died in, None when it did not.
    """

    message_id: bytes
    data_key_id: int
    start_id: bytes
    origin_queue_id: int
    nonce_counter: int
    origin_message_id: bytes
    ciphertext: bytes | memoryview
    source_queue_id: int = 0
    source_partition: int = 0
    source_sequence: int = 0
    dead_letter_source_arn: str | None = None


class Moved(msgspec.Struct, gc=False, frozen=True):
    """A move wrapper: whence the message came, the id it was given (or None), and the message itself.

    `number` is that of the move, 0 when it came from the same journal (`core/partition/partition_moves`).
    """

    source_queue_id: int
    source_partition: int
    source_sequence: int
    new_message_id: bytes | None
    dead_letter_source_arn: str | None
    message: memoryview
    number: int = 0


class MessageContent(msgspec.Struct, array_like=True, gc=False):
    """What a sender said, encrypted in the store.

    `attributes` are (name, data type, value) in the order given; the value is a str, bytes where the type is
    Binary. MD5s are 16 raw bytes.
    """

    body: str
    body_md5: bytes
    attributes: list[tuple[str, str, Any]]
    attributes_md5: bytes | None
    sender_id: str
    group_id: str | None = None
    dedup_id: str | None = None
    trace_header: str | None = None


VIEWED_BYTES_MIN: Final = 4096
"""From this size on content is not copied to be decoded."""

_content_encoder = msgspec.msgpack.Encoder()
_content_decoder = msgspec.msgpack.Decoder(MessageContent)
_CONTENT_VERSION_BYTE = bytes([CONTENT_VERSION])


def encode_content(content: MessageContent) -> bytes:
    """Return a version byte and the content as a MessagePack array: the plaintext to encrypt."""
    return _CONTENT_VERSION_BYTE + _content_encoder.encode(content)


def decode_content(data: bytes) -> MessageContent:
    """Read what `encode_content` wrote; UnknownMessageFormat otherwise."""
    if not data or data[0] != CONTENT_VERSION:
        raise UnknownMessageFormat(
            f"message content version {data[0] if data else 'missing'} is not known; "
            f"this program reads version {CONTENT_VERSION}"
        )
    try:
        # A view costs more than a copy of a short one.
        return _content_decoder.decode(data[1:] if len(data) < VIEWED_BYTES_MIN else memoryview(data)[1:])
    except msgspec.MsgspecError:
        # The parser's message could quote the content.
        raise UnknownMessageFormat("the message content is damaged") from None


def decode_contents(each: Sequence[bytes]) -> list[MessageContent]:
    """Read many of them, at half the cost; UnknownMessageFormat when any is not what `encode_content` wrote."""
    if {data[:1] for data in each} - {_CONTENT_VERSION_BYTE}:
        raise UnknownMessageFormat("a message content has another version, or none")
    try:
        return [_content_decoder.decode(data[1:]) for data in each]
    except msgspec.MsgspecError:
        raise UnknownMessageFormat("a message content is damaged") from None


# The message


def encode_message_head(
    message_id: bytes,
    data_key_id: int,
    start_id: bytes,
    origin_queue_id: int,
    nonce_counter: int,
    origin_message_id: bytes | None = None,
) -> bytes:
    """Return the plain head; the ciphertext follows it. `origin_message_id` None: equal to `message_id`."""
    if origin_message_id is None or origin_message_id == message_id:
        return _HEAD.pack(
            MESSAGE_VERSION, 0, message_id, data_key_id, start_id, origin_queue_id, nonce_counter
        )
    head = _HEAD.pack(
        MESSAGE_VERSION, ORIGIN_DIFFERS, message_id, data_key_id, start_id, origin_queue_id, nonce_counter
    )
    return head + origin_message_id


def associated_data(data_key_id: int, origin_queue_id: int, origin_message_id: bytes) -> bytes:
    """Return the bytes a message's ciphertext is bound to."""
    return _ASSOCIATED.pack(MESSAGE_VERSION, data_key_id, origin_queue_id, origin_message_id)


def associated_start(data_key_id: int, origin_queue_id: int) -> bytes:
    """Return what `associated_data` begins with; the origin message id follows."""
    return _ASSOCIATED_START.pack(MESSAGE_VERSION, data_key_id, origin_queue_id)


def decode_message(data: bytes | memoryview, at: int = 0) -> StoredMessage:
    """Read the message from `at` to the end, in a move wrapper or not, without decrypting it.

    Raises UnknownMessageFormat if it is none.
    """
    size = len(data) - at
    if size <= 0:
        raise UnknownMessageFormat("a message cannot be empty")
    if data[at] == MOVED_VERSION:
        moved = decode_moved(memoryview(data)[at:])
        stored = decode_message(moved.message)
        if moved.new_message_id is not None:
            stored.message_id = moved.new_message_id
        stored.source_queue_id = moved.source_queue_id
        stored.source_partition = moved.source_partition
        stored.source_sequence = moved.source_sequence
        stored.dead_letter_source_arn = moved.dead_letter_source_arn
        return stored
    if size < HEAD_BYTES + TAG_BYTES:
        raise UnknownMessageFormat(f"{size} bytes are too few for a message")
    version, flags, message_id, data_key_id, start_id, queue_id, counter = _HEAD.unpack_from(data, at)
    if version != MESSAGE_VERSION or flags & ~ORIGIN_DIFFERS:
        raise UnknownMessageFormat(
            f"message version {version} with flags {flags} is not known; "
            f"this program reads version {MESSAGE_VERSION}"
        )
    if not flags:
        return StoredMessage(
            message_id, data_key_id, start_id, queue_id, counter, message_id, data[at + HEAD_BYTES :]
        )
    if size < HEAD_BYTES + MESSAGE_ID_BYTES + TAG_BYTES:
        raise UnknownMessageFormat(f"{size} bytes are too few for a message with an origin id")
    origin_end = at + HEAD_BYTES + MESSAGE_ID_BYTES
    origin_id = bytes(data[at + HEAD_BYTES : origin_end])
    return StoredMessage(message_id, data_key_id, start_id, queue_id, counter, origin_id, data[origin_end:])


def split_plain_heads(messages: Sequence[bytes]) -> tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]:
    """Return ids, key_parts (see `split_key_part`) and nonce counters of messages that never got another id.

    The ciphertext of each begins at HEAD_BYTES. UnknownMessageFormat when one was moved or is no message.
    """
    try:
        parts = list(zip(*map(_PLAIN_PARTS.unpack_from, messages), strict=True))
    except struct.error:
        raise UnknownMessageFormat("one is too short for a message") from None
    beginnings, message_ids, key_parts, counters = parts or [()] * 4
    if set(beginnings) - {_PLAIN_HEAD}:
        raise UnknownMessageFormat("one was moved, or is no message")
    return message_ids, key_parts, counters


def key_parts_of(messages: Sequence[bytes]) -> list[bytes] | None:
    """Return the key parts of messages, each once; None when one of them was moved or is no message."""
    try:
        found = set(map(_BEGINNING_AND_KEY_PART.unpack_from, messages))
    except struct.error:
        return None
    return None if {beginning for beginning, _ in found} - {_PLAIN_HEAD} else [part for _, part in found]


def split_key_part(part: bytes) -> tuple[int, bytes, int]:
    """Return data key id, start id and origin queue id, which are mostly the same in neighbours."""
    return _KEY_PART.unpack(part)


def message_id_of(data: bytes | memoryview) -> bytes:
    """Return the id a stored message (or wrapped message) goes by, and nothing else."""
    if data and data[0] == MOVED_VERSION:
        moved = decode_moved(data)
        if moved.new_message_id is not None:
            return moved.new_message_id
        data = moved.message
    if len(data) < HEAD_BYTES or data[0] != MESSAGE_VERSION:
        raise UnknownMessageFormat("no message starts here")
    return bytes(data[2 : 2 + MESSAGE_ID_BYTES])


def data_key_of(data: bytes | memoryview) -> bytes:
    """Return the 8 bytes of the data key id that a stored message (or wrapped message) names, and nothing else."""
    if data and data[0] == MOVED_VERSION:
        data = decode_moved(data).message
    if len(data) < HEAD_BYTES or data[0] != MESSAGE_VERSION:
        raise UnknownMessageFormat("no message starts here")
    return bytes(data[_DATA_KEY_AT : _DATA_KEY_AT + 8])


# The move wrapper


def encode_moved(
    source_queue_id: int,
    source_partition: int,
    source_sequence: int,
    new_message_id: bytes | None,
    dead_letter_source_arn: str | None,
    message: bytes | memoryview,
    number: int = 0,
) -> bytes:
    """Wrap a message that changes its queue. Where it already is in a wrapper, the new one takes its place.

    `new_message_id` None keeps the id the message goes by, also one that an earlier move gave it.
    """
    if message and message[0] == MOVED_VERSION:
        earlier = decode_moved(message)
        message = earlier.message
        if new_message_id is None:
            new_message_id = earlier.new_message_id
    flags = 0
    parts: list[bytes | memoryview] = [b""]
    if new_message_id is not None:
        assert len(new_message_id) == MESSAGE_ID_BYTES, "a message id is 16 bytes"
        flags |= HAS_MESSAGE_ID
        parts.append(new_message_id)
    if dead_letter_source_arn is not None:
        arn = dead_letter_source_arn.encode()
        flags |= HAS_SOURCE_ARN
        parts.append(_ARN_LENGTH.pack(len(arn)))
        parts.append(arn)
    if number:
        flags |= HAS_NUMBER
        parts.append(_NUMBER.pack(number))
    parts[0] = _MOVED.pack(MOVED_VERSION, flags, source_queue_id, source_partition, source_sequence)
    parts.append(message)
    return b"".join(parts)


def decode_moved(data: bytes | memoryview) -> Moved:
    """Read a move wrapper; UnknownMessageFormat when there is none. The message in it is not looked at."""
    view = memoryview(data)
    if len(view) < _MOVED.size or view[0] != MOVED_VERSION:
        raise UnknownMessageFormat("no move wrapper starts here")
    _, flags, queue_id, partition, sequence = _MOVED.unpack_from(view)
    if flags & ~(HAS_MESSAGE_ID | HAS_SOURCE_ARN | HAS_NUMBER):
        raise UnknownMessageFormat(f"move wrapper flags {flags} are not known")
    at = _MOVED.size
    new_message_id: bytes | None = None
    arn: str | None = None
    if flags & HAS_MESSAGE_ID:
        new_message_id = bytes(view[at : at + MESSAGE_ID_BYTES])
        at += MESSAGE_ID_BYTES
    if flags & HAS_SOURCE_ARN:
        if len(view) < at + 2:
            raise UnknownMessageFormat("the move wrapper is cut short")
        (length,) = _ARN_LENGTH.unpack_from(view, at)
        at += 2
        try:
            arn = str(view[at : at + length], "utf-8")
        except UnicodeDecodeError:
            raise UnknownMessageFormat("the move wrapper's ARN is damaged") from None
        at += length
    number = 0
    if flags & HAS_NUMBER:
        if len(view) < at + _NUMBER.size:
            raise UnknownMessageFormat("the move wrapper is cut short")
        (number,) = _NUMBER.unpack_from(view, at)
        at += _NUMBER.size
    if len(view) <= at or view[at] == MOVED_VERSION:
        raise UnknownMessageFormat("the move wrapper is cut short, or holds another one")
    return Moved(queue_id, partition, sequence, new_message_id, arn, view[at:], number)


# The record's payload


def join_payload(group: int, dedup: bytes | None, retry: bytes | None, message: bytes) -> tuple[int, bytes]:
    """Return the record's flags and payload. `group` 0: none."""
    flags = 0
    prefix = b""
    if group:
        flags = HAS_GROUP
        prefix = _GROUP.pack(group)
    if dedup is not None:
        flags |= HAS_DEDUP
        prefix += dedup
    if retry is not None:
        flags |= HAS_RETRY
        prefix += retry
    return flags, prefix + message if prefix else message


def prefix_bytes(flags: int) -> int:
    """Return how long the prefix of a payload with these record flags is."""
    return _PREFIXES[flags & 7].size


_PREFIXES = tuple(
    struct.Struct(
        "<"
        + ("Q" if flags & HAS_GROUP else "")
        + ("16s" if flags & HAS_DEDUP else "")
        + ("16s" if flags & HAS_RETRY else "")
    )
    for flags in range(8)
)
"""What is in front of the message, by the record's flags."""


def split_prefix(flags: int, payload: bytes | memoryview) -> tuple[int, bytes | None, bytes | None]:
    """Return (group hash, dedup hash, retry hash) of a SEND or MOVE payload; group 0: none."""
    try:
        fields = _PREFIXES[flags & 7].unpack_from(payload)
    except struct.error:
        raise UnknownMessageFormat("the payload is shorter than its prefix") from None
    return (
        fields[0] if flags & HAS_GROUP else 0,
        fields[flags & HAS_GROUP] if flags & HAS_DEDUP else None,
        fields[-1] if flags & HAS_RETRY else None,
    )


def split_payload(
    flags: int, payload: bytes | memoryview
) -> tuple[int, bytes | None, bytes | None, memoryview]:
    """Return (group hash, dedup hash, retry hash, message) of a SEND or MOVE payload; group 0: none."""
    group, dedup, retry = split_prefix(flags, payload)
    return group, dedup, retry, memoryview(payload)[prefix_bytes(flags) :]


# The hashes


def hash_group(group_id: str) -> int:
    """Return the 64-bit number a message group (or fair-queue tenant) goes by in the broker; never 0."""
    return xxhash.xxh3_64_intdigest(group_id.encode()) or 1


def hash_dedup(dedup_id: str, group_id: str | None = None, key: bytes = b"") -> bytes:
    """Return the 16 bytes a deduplication id goes by; with `group_id`, in the scope of that group.

    A cryptographic hash: senders may choose ids freely, and two that met would lose a message. With a key, because an
    id made of the content would tell the holder of a disk whether a message says what he guesses; queues of older cell
    formats have none.
    """
    if group_id is None:
        return hashlib.blake2b(dedup_id.encode(), digest_size=16, key=key, person=b"qm-dedup").digest()
    group = group_id.encode()
    data = _ARN_LENGTH.pack(len(group)) + group + dedup_id.encode()
    return hashlib.blake2b(data, digest_size=16, key=key, person=b"qm-dedup-group").digest()


def hash_attempt(attempt_id: str) -> bytes:
    """Return the 16 bytes a ReceiveRequestAttemptId goes by."""
    return hashlib.blake2b(attempt_id.encode(), digest_size=16, person=b"qm-attempt").digest()


def retry_hash_prefix(account_id: str, queue_id: int, invocation_id: str) -> str:
    """Return what the retry hashes of all messages of one SDK invocation begin with."""
    return f"{account_id}\0{queue_id}\0{invocation_id}\0"


def hash_retry(
    prefix: str, entry_id: str, body_md5: bytes, attributes_md5: bytes | None, rest: str = ""
) -> bytes:
    """Return the 16 bytes one SDK invocation's message goes by.

    Body and attributes are part of it, so a copied header never swallows another message. `rest` is whatever
    else tells two messages apart (group id, deduplication id, delay). The hash need not resist attacks: to
    swallow somebody else's message one would have to know his invocation id, which is random, before he sends.
    """
    return xxhash.xxh3_128_digest(
        f"{prefix}{entry_id}\0{rest}\0".encode() + body_md5 + (attributes_md5 or b"")
    )
