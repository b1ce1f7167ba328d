"""What replicas say to each other, as bytes: one envelope of one journal. Batches travel as they are on disk.

    version u8 · CRC32C of the rest u32 · MessagePack [journal, sender, receiver, message]
    message: [tag, fields...], batches as bytes

Its reader checks the whole, and every batch: CRCs, and that each continues the chain. Damage on the way is
found here: what was damaged is never written, and a number that changed acknowledges nothing.

To change the format: add a version to REPLICATION_VERSIONS, by the recipe in `core/values/formats`: it is sent once
every broker of the cell reads it. A broker that gets what it cannot read says so in its log and takes nothing from it.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec
from crc32c import crc32c

from quaymaster.core.replication.messages import (
    Append,
    Appended,
    Envelope,
    FetchBatches,
    Message,
    Mismatch,
    Prepare,
    Promise,
    Resign,
    Stale,
    Tail,
)
from quaymaster.core.values.formats import FORMAT_MAX, Versions, version_in
from quaymaster.core.values.records import Batch, CorruptBatch, chain_after, check_batch, decode_header

REPLICATION_VERSIONS: Final[Versions] = {1: 1}
_VERSIONS_READ = frozenset(REPLICATION_VERSIONS.values())
REPLICATION_VERSION: Final = version_in(REPLICATION_VERSIONS, FORMAT_MAX)
_HEAD = struct.Struct("<BI")


class ReplicationMessageUnreadable(Exception):
    """The bytes are no message of this version, or a batch in them is damaged."""


class _Append(msgspec.Struct, frozen=True, array_like=True, tag=5):
    epoch: int
    previous_end: int
    previous_chain: int
    batches: list[bytes]
    commit: int
    sent_ms: int
    tell_received: bool
    sends_refused: bool = False
    has_lease: bool = True
    time_ms: int = 0
    """These are absent in what programs before them sent; those pass them over."""


class _Tail(msgspec.Struct, frozen=True, array_like=True, tag=4):
    epoch: int
    start: int
    batches: list[bytes]
    is_gone: bool


class _SentEntry(msgspec.Struct, frozen=True, array_like=True):
    journal_id: int
    sender: str
    receiver: str
    message: Prepare | Promise | FetchBatches | _Tail | _Append | Appended | Mismatch | Stale | Resign


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_SentEntry)


def encode_envelope(journal_id: int, envelope: Envelope, *, version: int = REPLICATION_VERSION) -> bytes:
    """Return the bytes that `decode_envelope` reads."""
    message = envelope.message
    sent: object = message
    if type(message) is Append:
        sent = _Append(
            message.epoch,
            message.previous_end,
            message.previous_chain,
            [batch.data for batch in message.batches],
            message.commit,
            message.sent_ms,
            message.tell_received,
            message.sends_refused,
            message.has_lease,
            message.time_ms,
        )
    elif type(message) is Tail:
        batches = [batch.data for batch in message.batches]
        sent = _Tail(message.epoch, message.start, batches, message.is_gone)
    body = _encoder.encode(_SentEntry(journal_id, envelope.sender, envelope.receiver, sent))  # type: ignore[arg-type]  # one of its kinds
    return _HEAD.pack(version, crc32c(body)) + body


def decode_envelope(data: bytes | memoryview) -> tuple[int, Envelope]:
    """Return journal and envelope, its batches checked; raises ReplicationMessageUnreadable."""
    if not data or data[0] not in _VERSIONS_READ:
        version = data[0] if data else "none"
        raise ReplicationMessageUnreadable(
            f"replication messages up to version {REPLICATION_VERSION} are read, not {version}"
        )
    body = memoryview(data)[_HEAD.size :]
    if len(data) < _HEAD.size or _HEAD.unpack_from(data)[1] != crc32c(body):
        raise ReplicationMessageUnreadable("the CRC of the message does not hold")
    try:
        sent = _decoder.decode(body)
        return sent.journal_id, Envelope(sent.sender, sent.receiver, _message(sent.message))
    except (msgspec.MsgspecError, CorruptBatch) as error:
        raise ReplicationMessageUnreadable(str(error)) from error


def _message(
    sent: Prepare | Promise | FetchBatches | _Tail | _Append | Appended | Mismatch | Stale | Resign,
) -> Message:
    if type(sent) is _Append:
        batches = _batches(sent.batches, sent.previous_end, sent.previous_chain)
        return Append(
            sent.epoch,
            sent.previous_end,
            sent.previous_chain,
            batches,
            sent.commit,
            sent.sent_ms,
            sent.tell_received,
            sent.sends_refused,
            sent.has_lease,
            sent.time_ms,
        )
    if type(sent) is _Tail:
        return Tail(sent.epoch, sent.start, _batches(sent.batches, sent.start, None), sent.is_gone)
    return sent  # type: ignore[return-value]  # all others are as they are


def _batches(datas: list[bytes], end: int, chain: int | None) -> list[Batch]:
    """Return batches, each whole and next to the one before; `chain` None: that of the first cannot be known."""
    batches: list[Batch] = []
    for data in datas:
        header = decode_header(data)
        if header.length != len(data) or header.is_compacted or header.base_offset != end:
            raise CorruptBatch(f"the batch at {header.base_offset} is not what follows {end}")
        check_batch(data, header)
        if chain is not None and header.chain != chain_after(
            chain, header.epoch, header.base_offset, header.span, header.crc
        ):
            raise CorruptBatch(f"the batch at {header.base_offset} does not continue the chain")
        end, chain = header.next_offset, header.chain
        batches.append(Batch(data, header.epoch, header.base_offset, end, chain))
    return batches
