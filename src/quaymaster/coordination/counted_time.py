"""How long a store has been watched, by monotonic clocks: the row `/counted_time`, in ms.

    process that has the store's rows: unchanged for 20 s or more, by its monotonic clock ──▶ row + that, 60 s at most
                                       another one was first ──▶ it begins to count again

Each change is a compare-and-swap on the row as it was seen, so no stretch of time counts twice: the row never grows
faster than time passes, however many count, and whatever their wall clocks say. It stands still while none runs. So
what may happen only after a time waits until the row has grown by as much as that. It may wait for longer, and never
for less when the 60 s that may not be counted yet are added where it begins. The row is in the store, and goes back
with it, as does what was written down in it.
"""

from __future__ import annotations

from typing import Final, Protocol

from quaymaster.coordination.interface import KeyValue, StoreUnusable

COUNTED_TIME: Final = "/counted_time"
COUNTED_AT_ONCE_MIN_MS: Final = 20_000
"""Shorter stretches are left to the next look: so often the row is written at most."""
COUNTED_AT_ONCE_MAX_MS: Final = 60_000
"""More is never added, also where a process stood still for long: what began meanwhile must not be over at once."""


class ReadsRows(Protocol):
    """The part of `Coordination` that is needed here."""

    async def get(self, key: str) -> KeyValue | None: ...


def encode_counted(counted_ms: int) -> bytes:
    """Return the row's bytes."""
    return str(counted_ms).encode()


def decode_counted(data: bytes) -> int:
    """Return what `encode_counted` was given; StoreUnusable when it is something else."""
    if not data.isdigit():
        raise StoreUnusable(f"the row {COUNTED_TIME} in the metadata store is damaged.")
    return int(data)


async def read_counted(store: ReadsRows) -> int:
    """Return the counted time as it is in the store. Raises NotNow."""
    row = await store.get(COUNTED_TIME)
    return 0 if row is None else decode_counted(row.value)
