"""COMPLETE records: messages that are gone, and what was sent in their place, in one record.

What its payload holds, all integers little-endian:

    digest u64 · deletions u16 · outputs u16
    each deletion   sequence u64 · delivery count u32 · resets u64
    each output     target queue u64 · partition u16 · journal u64 · number u64 · key u64 · delay i32 · flags u8
                    ARN length u16 · payload length u32
    then each output's ARN and payload, one after another

`digest` is a hash of the receipts and of all that was sent: who asks for the same again is told that it is done.
A payload is that of a SEND (`core/values/messages`), whose flags are `flags`; the delay is -1 where the queue says it.
The ARN is the target queue's: by it the queue is looked for when a journal does not have it.

An output leaves as a numbered move (`core/partition/partition_moves`), whatever journal it goes to.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_moves import OpenMove
from quaymaster.core.partition.work.applied_moves import opened_moves
from quaymaster.core.values.messages import prefix_bytes

_HEAD: Final = struct.Struct("<QHH")
_DELETION: Final = struct.Struct("<QIQ")
_OUTPUT: Final = struct.Struct("<QHQQQiBHI")


class Completed(NamedTuple):
    """A message that is gone, by the delivery that finished it."""

    sequence: int
    delivery_count: int
    resets: int


class OutputPlace(NamedTuple):
    """Where an output goes, and as which number among those that leave for its partition."""

    queue_id: int
    partition: int
    journal_id: int
    number: int
    key: int

    @property
    def target_key(self) -> int:
        """The key of its partition."""
        return self.queue_id << 16 | self.partition


class RecordedOutput(NamedTuple):
    """What a record says of an output, and the message."""

    place: OutputPlace
    delay_ms: int
    flags: int
    arn: str
    payload: memoryview


class CompletionHead(NamedTuple):
    """What a record says but for the messages."""

    digest: int
    deletions: list[Completed]
    places: list[OutputPlace]


def join_completion(
    digest: int, deletions: Sequence[Completed], outputs: Sequence[tuple[OutputPlace, int, int, str, bytes]]
) -> bytes:
    """Return the payload of a COMPLETE; an output is (place, delay, flags, ARN, payload)."""
    parts = [_HEAD.pack(digest, len(deletions), len(outputs))]
    parts += [_DELETION.pack(*deletion) for deletion in deletions]
    contents: list[bytes] = []
    for place, delay_ms, flags, arn, payload in outputs:
        name = arn.encode()
        parts.append(_OUTPUT.pack(*place, delay_ms, flags, len(name), len(payload)))
        contents += (name, payload)
    return b"".join((*parts, *contents))


def split_completion(payload: bytes | memoryview) -> CompletionHead:
    """Return what a COMPLETE says, without its messages."""
    digest, deletions, outputs = _HEAD.unpack_from(payload)
    view = memoryview(payload)
    at = _HEAD.size
    stop = at + deletions * _DELETION.size
    gone = [Completed(*fields) for fields in _DELETION.iter_unpack(view[at:stop])]
    rows = _OUTPUT.iter_unpack(view[stop : stop + outputs * _OUTPUT.size])
    return CompletionHead(digest, gone, [OutputPlace(*fields[:5]) for fields in rows])


def outputs_of(payload: bytes | memoryview) -> Iterator[RecordedOutput]:
    """Yield the outputs of a COMPLETE, in order, with their messages."""
    _, deletions, outputs = _HEAD.unpack_from(payload)
    view = memoryview(payload)
    start = _HEAD.size + deletions * _DELETION.size
    at = start + outputs * _OUTPUT.size
    for *place, delay_ms, flags, name_bytes, payload_bytes in _OUTPUT.iter_unpack(view[start:at]):
        stop = at + name_bytes
        arn = str(view[at:stop], "utf-8")
        at = stop + payload_bytes
        yield RecordedOutput(OutputPlace(*place), delay_ms, flags, arn, view[stop:at])


def messages_of(payload: bytes | memoryview) -> Iterator[memoryview]:
    """Yield the messages of a COMPLETE as they are stored, without what is before them in a SEND."""
    for output in outputs_of(payload):
        yield output.payload[prefix_bytes(output.flags) :]


def apply_completion(partition: Partition, head: CompletionHead, offset: int, time_ms: int) -> None:
    """Messages are gone, and outputs begin to leave: those of the record at `offset`."""
    for at, place in enumerate(head.places):
        begin_output(partition, place, offset, at)
    apply_completed(partition, head.digest, head.deletions, time_ms)


def begin_output(partition: Partition, place: OutputPlace, offset: int, at: int) -> None:
    """An output begins to leave."""
    move = OpenMove(0, is_redrive=False, key=place.key, offset=offset, at=at)
    opened_moves(partition).begin(place.target_key, place.journal_id, place.number, move)


def apply_completed(partition: Partition, digest: int, deletions: Sequence[Completed], time_ms: int) -> None:
    """Messages are gone, and what finished them is remembered. Sums of deletions do not have them."""
    partition.note_finished(deletions, time_ms, by=digest)
    partition.apply_delete([deletion.sequence for deletion in deletions], time_ms)
