"""Which queues are pushed, and how that goes: rows outside of what processes follow, for pushers and those who ask.

    pushed/QUEUE-ID         PushedRow       written with the queue's row, deleted with its endpoint
    push_states/QUEUE-ID    PushStateRow    written by the pusher that owns the queue, when the state is another

So pushers need not look through all queues, of which there may be 100,000. Ids are 16 hexadecimal digits; rows are
MessagePack arrays. To change one, append fields with defaults.
"""

from __future__ import annotations

from typing import Final

import msgspec

from quaymaster.coordination.interface import Compare, Coordination, Put, RevisionMismatch
from quaymaster.core.values.queue_definitions import QueueDefinition

PUSHED: Final = "pushed/"
PUSH_STATES: Final = "push_states/"
NOT_PUSHED_YET: Final = "verifying"
"""The state of a queue that no pusher has told of yet."""


class PushedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A queue with a PushEndpoint, and the revision of its definition since which it is so."""

    account_id: str
    name: str
    revision: int


class PushStateRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How calls for a queue go, since when by the wall clock, and why, for people; `pusher` has told it."""

    state: str
    since_ms: int
    reason: str
    pusher: str


_encode = msgspec.msgpack.Encoder().encode
_pushed = msgspec.msgpack.Decoder(PushedRow)
_states = msgspec.msgpack.Decoder(PushStateRow)


def pushed_key(queue_id: int) -> str:
    """Return the key of a queue's row."""
    return f"{PUSHED}{queue_id:016x}"


def state_key(queue_id: int) -> str:
    """Return the key of the row that says how calls for a queue go."""
    return f"{PUSH_STATES}{queue_id:016x}"


def put_pushed(definition: QueueDefinition) -> list[Put]:
    """Return what says that a queue is pushed, to be written with its row; nothing for others."""
    if not definition.push_endpoint:
        return []
    row = PushedRow(definition.account_id, definition.name, definition.revision)
    return [Put(pushed_key(definition.queue_id), _encode(row))]


def decode_pushed(key: str, value: bytes) -> tuple[int, PushedRow]:
    """Return a queue's id and row; msgspec.MsgspecError or ValueError when they cannot be read."""
    return int(key.removeprefix(PUSHED), 16), _pushed.decode(value)


async def read_push_state(store: Coordination, queue_id: int) -> PushStateRow | None:
    """Return how calls for a queue go; None: nothing was told yet. Raises NotNow, msgspec.MsgspecError."""
    found = await store.get(state_key(queue_id))
    return None if found is None else _states.decode(found.value)


async def write_push_state(
    store: Coordination, queue_id: int, pushed_revision: int, row: PushStateRow
) -> bool:
    """Write how calls for a queue go; False, and nothing is written, if its PushedRow is of another revision.

    Raises NotNow.
    """
    try:
        await store.transaction(
            [Compare(pushed_key(queue_id), pushed_revision)], [Put(state_key(queue_id), _encode(row))]
        )
    except RevisionMismatch:
        return False
    return True
