"""Which queues are pushed: rows outside of what all processes follow, for pushers.

    pushed/QUEUE-ID    PushedRow    written with the queue's row, deleted with its endpoint

So pushers need not look through all queues, of which there may be 100,000. Ids are 16 hexadecimal digits; rows are
MessagePack arrays. To change one, append fields with defaults.
"""

from __future__ import annotations

from typing import Final

import msgspec

from quaymaster.coordination.interface import Put
from quaymaster.core.values.queues.queue_definitions import QueueDefinition

PUSHED: Final = "pushed/"


class PushedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A queue with a PushEndpoint, and the revision and table version of its definition since which it is so."""

    account_id: str
    name: str
    revision: int
    table_version: int = 1


_encode = msgspec.msgpack.Encoder().encode
_pushed = msgspec.msgpack.Decoder(PushedRow)


def pushed_key(queue_id: int) -> str:
    """Return the key of a queue's row."""
    return f"{PUSHED}{queue_id:016x}"


def put_pushed(definition: QueueDefinition) -> list[Put]:
    """Return what says that a queue is pushed, to be written with its row; nothing for others."""
    if not definition.push_endpoint:
        return []
    row = PushedRow(definition.account_id, definition.name, definition.revision, definition.table_version)
    return [Put(pushed_key(definition.queue_id), _encode(row))]


def queue_id_of(key: str) -> int:
    """Return the queue that a row is about; ValueError if it is no such row."""
    return int(key.removeprefix(PUSHED), 16)


def decode_pushed(value: bytes) -> PushedRow:
    """Return a row; msgspec.MsgspecError when it cannot be read."""
    return _pushed.decode(value)
