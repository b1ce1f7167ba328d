"""What replicas of a partition must agree on, as one number: those that applied the same records have the same."""

from __future__ import annotations

from typing import Any

import msgspec
import xxhash
from pyroaring import BitMap64

from quaymaster.core.partition.partition import Partition
from quaymaster.core.structures.deliveries import ATTEMPT_WINDOW_MS
from quaymaster.core.structures.orders.standard_order import StandardOrder

_encoder = msgspec.msgpack.Encoder()


def partition_hash(partition: Partition, now_ms: int) -> int:
    """Return a hash of the state as of `now_ms`: equal on all replicas that applied the same records."""
    partition.advance(now_ms)
    order = partition.order
    # On a FIFO queue, whether a raised delay hides a message depends on how far the scan has come.
    delayed = partition.timed.bitmap()
    if isinstance(order, StandardOrder):
        delayed |= order.waiting(now_ms)
    visible = BitMap64()
    visible.add_range(order.cursor, partition.index.next_sequence)
    if isinstance(order, StandardOrder):
        order.own.remove_from(visible)
        visible |= BitMap64(order.returned)
    visible |= order.fresh().bitmap()
    visible |= BitMap64(partition.moving)
    visible -= delayed
    content: list[Any] = [
        partition.head,
        partition.index.next_sequence,
        partition.alive,
        list(partition.deleted),
        list(visible),
        sorted((sequence, msgspec.structs.astuple(row)) for sequence, row in partition.in_flight.items()),
        sorted((sequence, msgspec.structs.astuple(row)) for sequence, row in partition.returned.items()),
        list(delayed),
        partition.ids.dedup.entries(now_ms) if partition.ids.dedup else [],
        partition.ids.retries.entries(now_ms) if partition.ids.retries else [],
        sorted(
            (key, attempt.time_ms, attempt.messages)
            for key, attempt in partition.attempts.items()
            if attempt.time_ms + ATTEMPT_WINDOW_MS > now_ms
        ),
        partition.tasks,
        partition.moves.content() if partition.moves is not None else [],
        partition.sizes.content() if partition.sizes is not None else [],
        # Replicas of an older state count from where each loaded it.
        [] if partition.counted_from else [partition.sends, partition.deletions],
        partition.staged.content() if partition.staged is not None else [],
        partition.sealed_ms,
        *([] if partition.claims is None else [partition.claims.content()]),
        partition.resets,
        partition.ids.kept.content(now_ms) if partition.ids.kept is not None else [],
        partition.settled.content(now_ms) if partition.settled is not None else [],
    ]
    return xxhash.xxh3_64_intdigest(_encoder.encode(content))
