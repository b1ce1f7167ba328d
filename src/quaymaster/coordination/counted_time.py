"""How long a store has been watched, by monotonic clocks: the row `/counted_time`, in ms.

    process that has the store's rows: unchanged for 20 s or more, by its monotonic clock ──▶ row + that, 60 s at most
                                       another one was first ──▶ it begins to count again

Each change is a compare-and-swap on the row as it was seen, so no stretch of time counts twice: the row never grows
faster than time passes, however many count, and whatever their wall clocks say. It stands still while none runs. So
what may happen only after a time waits until the row has grown by as much as that. It may wait for longer, and never
for less when the 60 s that may not be counted yet are added where it begins. The row is in the store, and goes back
with it, as does what was written down in it.

A row that waits has a field with the counted time at which that began. Programs that did not know of it have left rows
without: these begin to wait when one that does sees them first (`begin_counting`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeVar

import msgspec

from quaymaster.coordination.interface import Compare, KeyValue, Put, RevisionMismatch
from quaymaster.coordination.number_rows import number_of

COUNTED_TIME: Final = "/counted_time"
COUNTED_AT_ONCE_MIN_MS: Final = 20_000
"""Shorter stretches are left to the next look: so often the row is written at most."""
COUNTED_AT_ONCE_MAX_MS: Final = 60_000
"""More is never added, also where a process stood still for long: what began meanwhile must not be over at once."""


Row = TypeVar("Row", bound=msgspec.Struct)


class ReadsRows(Protocol):
    """The part of `Coordination` that is needed here."""

    async def get(self, key: str) -> KeyValue | None: ...


async def read_counted(store: ReadsRows) -> int:
    """Return the counted time as it is in the store. Raises NotNow."""
    return number_of(await store.get(COUNTED_TIME))


async def read_beginning(store: ReadsRows) -> int:
    """Return from when on is waited for what begins now: what may not be counted yet does not count for it."""
    return await read_counted(store) + COUNTED_AT_ONCE_MAX_MS


async def begin_counting(
    store: ReadsRows,
    transact: Callable[[Sequence[Compare], Sequence[Put]], Awaitable[object]],
    unchanged: Compare,
    row: Row,
    field: str,
    encode: Callable[[Row], bytes],
    *,
    length_ms: int = 0,
) -> None:
    """Let a row without a counted time begin to wait now, or note when its wait of `length_ms` is over.

    Nothing is done when it is not `unchanged`. Raises NotNow.
    """
    since_ms = await read_beginning(store)
    begun = msgspec.structs.replace(row, **{field: since_ms + length_ms})
    with suppress(RevisionMismatch):  # it is gone, or another process has changed it
        await transact([unchanged], [Put(unchanged.key, encode(begun))])
