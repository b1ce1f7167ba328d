"""How a CLAIM record changes a partition: what its leader, its followers and a replay have in common.

    consumer length u8 · consumer · owner length u8 · owner, then (sequence u64 · delivery count u32) each; `sequence`:
    the claim's id; `flags`: a `ClaimStep`; `due_after`: how long the claim is held

What a claim is: `core/structures/orders/claims`. A message of one has a row among those in flight like any other, but
without a time of its own (`CLAIMED_MS`): it comes back with the claim.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.work import slices
from quaymaster.core.structures.deliveries import CLAIMED_MS, InFlight
from quaymaster.core.structures.orders.claims import ClaimConsumer, Claims, ClaimState, OpenClaim
from quaymaster.core.structures.timers import WorkLeft

_PAIR = struct.Struct("<QI")


class ClaimStep(IntEnum):
    """What a CLAIM record did. The numbers are on disk: never reuse one."""

    GREW = 1
    """The claim has these messages, too."""
    HELD = 2
    """It has all of its messages until the deadline, and grows no more."""
    BROKEN = 3
    """It will never be held again, and what is left of it comes back now."""
    SETTLED = 4
    """It, and the consumer's earlier ones, are done with: what they have is deleted, unless they are broken."""
    FORGOTTEN = 5
    """The consumer is not known any more; its open claims were broken."""


def join_claim(consumer: str, owner: str, messages: Sequence[tuple[int, int]] = ()) -> bytes:
    """Return the payload of a CLAIM."""
    pack = _PAIR.pack
    names = (name.encode() for name in (consumer, owner))
    parts = [bytes((len(name),)) + name for name in names]
    return b"".join((*parts, *[pack(sequence, count) for sequence, count in messages]))


def split_claim(payload: bytes | memoryview) -> tuple[str, str, list[tuple[int, int]]]:
    """Return consumer, owner and messages."""
    names: list[str] = []
    at = 0
    for _ in range(2):
        stop = at + 1 + payload[at]
        names.append(str(payload[at + 1 : stop], "utf-8"))
        at = stop
    return names[0], names[1], list(_PAIR.iter_unpack(payload[at:]))


def opened_consumer(partition: Partition, name: str, owner: str) -> ClaimConsumer:
    """Return a consumer of claims, to change it; it has this owner from now on."""
    partition.note_change()
    if partition.claims is None:
        partition.claims = Claims()
    consumer = partition.claims.consumers.get(name)
    if consumer is None:
        consumer = partition.claims.consumers[name] = ClaimConsumer(owner)
    consumer.owner = owner
    return consumer


def is_still_of(partition: Partition, sequence: int, count: int) -> bool:
    """Return whether a message is there, and was not received after the delivery with this count."""
    if not partition.is_live(sequence) or partition.is_leaving(sequence):
        return False
    row = partition.in_flight.get(sequence) or partition.returned.get(sequence)
    return row is not None and row.delivery_count == count


def apply_grown(
    partition: Partition,
    claim: OpenClaim,
    messages: Sequence[tuple[int, int]],
    time_ms: int,
    held_ms: int,
    epoch: int,
    *,
    taken: bool,
) -> None:
    """A claim has more messages, and a new deadline. `taken`: see `Partition.apply_receive`."""
    assert partition.claims is not None, "the claim is one of them"
    for sequence, count in messages:
        _hold(partition, sequence, count, time_ms, epoch, taken=taken)
    claim.add(messages)
    claim.deadline_ms = time_ms + held_ms
    partition.claims.note_due()


def apply_held(
    partition: Partition, claim: OpenClaim, time_ms: int, held_ms: int, epoch: int
) -> Iterator[None]:
    """A claim has all of its messages until a new deadline: a slice with each step. There was none in between."""
    assert partition.claims is not None, "the claim is one of them"
    had_lapsed = claim.deadline_ms <= time_ms
    claim.state = ClaimState.HELD
    claim.deadline_ms = time_ms + held_ms
    claim.returned = 0
    partition.claims.note_due()
    if not had_lapsed:
        return
    for start in range(0, len(claim), slices.SLICE_SINGLE_MESSAGES):
        for sequence, count in claim.messages(start, start + slices.SLICE_SINGLE_MESSAGES):
            _hold(partition, sequence, count, time_ms, epoch, taken=False)
        yield


def apply_broken(partition: Partition, claim: OpenClaim, time_ms: int) -> None:
    """A claim is broken; what it has comes back as if its deadline had passed."""
    assert partition.claims is not None, "the claim is one of them"
    claim.state = ClaimState.BROKEN
    claim.deadline_ms = min(claim.deadline_ms, time_ms)
    partition.claims.note_due()


def apply_settled(
    partition: Partition, consumer: ClaimConsumer, claim_id: int, time_ms: int
) -> Iterator[int]:
    """Claims up to one are done with: a slice with each step, which says how many messages it has deleted.

    What others received since stays, and so does all of a broken claim.
    """
    assert partition.claims is not None, "the consumer is one of theirs"
    consumer.settled = max(consumer.settled, claim_id)
    done = [claim for claim in consumer.open.values() if claim.claim_id <= claim_id]
    for claim in done:
        del consumer.open[claim.claim_id]
    partition.claims.note_due()
    for claim in done:
        if claim.state is ClaimState.BROKEN:
            for _ in _give_back(partition, claim, time_ms):
                yield 0
            continue
        for start in range(0, len(claim), slices.SLICE_SINGLE_MESSAGES):
            messages = claim.messages(start, start + slices.SLICE_SINGLE_MESSAGES)
            gone = [sequence for sequence, count in messages if is_still_of(partition, sequence, count)]
            partition.apply_delete(gone, time_ms)
            yield len(gone)


def apply_forgotten(partition: Partition, name: str, time_ms: int) -> Iterator[None]:
    """A consumer is not known any more; what its claims still have comes back, a slice with each step."""
    partition.note_change()
    assert partition.claims is not None, "the consumer is one of theirs"
    forgotten = partition.claims.consumers.pop(name)
    partition.claims.note_due()
    if not partition.claims.consumers:
        partition.claims = None
    for claim in forgotten.open.values():
        yield from _give_back(partition, claim, time_ms)


def _give_back(partition: Partition, claim: OpenClaim, time_ms: int) -> Iterator[None]:
    while claim.is_out:
        partition.give_back_claim(claim, time_ms, WorkLeft(slices.SLICE_SINGLE_MESSAGES))
        yield


def _hold(partition: Partition, sequence: int, count: int, time_ms: int, epoch: int, *, taken: bool) -> None:
    row = partition.in_flight.get(sequence)
    before = partition.returned.take(sequence)
    if row is None and not taken:
        partition.timed.discard(sequence)
        partition.moving.pop(sequence, None)
        partition.order.claim(sequence, time_ms)
    known = row or before
    first_ms = (known.first_receive_ms if known is not None else 0) or time_ms
    arrived = known.arrived_count if known is not None else 0
    partition.in_flight[sequence] = InFlight(CLAIMED_MS, count, first_ms, time_ms, epoch, arrived)
