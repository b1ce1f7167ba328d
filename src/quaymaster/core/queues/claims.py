"""What a leader decides about claims: messages that a consumer holds, reads again, and settles.

What a claim is: `core/structures/orders/claims`; what its records do: `core/partition/work/applied_claims`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quaymaster.core.partition.log_reads import FETCH_MESSAGES_MAX
from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_totals import totals_of
from quaymaster.core.partition.proposals import Proposal
from quaymaster.core.partition.work import slices
from quaymaster.core.partition.work.applied_claims import (
    ClaimStep,
    apply_broken,
    apply_forgotten,
    apply_grown,
    apply_held,
    apply_settled,
    is_still_of,
    join_claim,
    opened_consumer,
)
from quaymaster.core.partition.work.slices import Slices, next_turn
from quaymaster.core.structures.orders.claims import (
    CONSUMERS_MAX,
    MESSAGES_MAX,
    OPEN_MAX,
    ClaimConsumer,
    ClaimState,
    OpenClaim,
)
from quaymaster.core.structures.timers import round_up_to_slot_ms
from quaymaster.core.values.commands.claims import (
    Claim,
    ClaimConsumerView,
    ClaimOutcome,
    ClaimsOutcome,
    ClaimView,
    ReadClaim,
    ReleaseClaims,
    ReleasedOutcome,
    Settle,
    SettledOutcome,
)
from quaymaster.core.values.commands.decided import FetchedOffsets
from quaymaster.core.values.commands.logs import FetchOutcome
from quaymaster.core.values.errors import (
    ClaimIsSettled,
    ClaimNotFound,
    ClaimTakenOver,
    InvalidParameterValue,
    OffsetOutOfRange,
    OverLimit,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import DELIVERY, CellFormat
from quaymaster.core.values.records import RecordType

CLAIMED_AT_ONCE_MAX: Final = 1_000
"""So many messages a command claims."""
CLAIMED_OF_GROUPS_MAX: Final = 100
"""So many of a FIFO queue: to find free groups may take long, and others wait meanwhile."""
_STATES: Final = {ClaimState.GROWING: "growing", ClaimState.HELD: "held", ClaimState.BROKEN: "broken"}


def check_has_claims(partition: Partition, cell_format: CellFormat) -> None:
    """Raise UnsupportedOperation where messages cannot be claimed."""
    definition = partition.definition
    if definition.is_log or definition.group_of:
        raise UnsupportedOperation(
            "Messages of a log-retained queue are not claimed: they can be read again."
        )
    if definition.is_at_most_once:
        raise UnsupportedOperation("Messages of a queue with DeliveryGuarantee AtMostOnce cannot be claimed.")
    cell_format.require(DELIVERY, "Claims work")


def find_claim(partition: Partition, command: Claim) -> OpenClaim | None:
    """Return the claim that a command names, None if it would be new.

    Raises ClaimTakenOver, ClaimIsSettled, InvalidParameterValue for an id that is not the next, and OverLimit.
    """
    consumer = check_owner(partition, command)
    settled = consumer.settled if consumer is not None else 0
    if command.claim_id <= settled:
        raise ClaimIsSettled(command.consumer, command.claim_id, settled)
    open_claims = consumer.open if consumer is not None else {}
    claim = open_claims.get(command.claim_id)
    if claim is None and command.count_max:
        following = consumer.next_claim_id if consumer is not None else 1
        if command.claim_id != following:
            raise InvalidParameterValue.of("ClaimId", command.claim_id, f"The next claim is {following}.")
        if len(open_claims) >= OPEN_MAX:
            raise OverLimit(f"A consumer may have {OPEN_MAX} open claims of a partition.")
    return claim


def may_grow(claim: OpenClaim | None, command: Claim, now_ms: int) -> int:
    """Return how many messages a claim may have more."""
    if claim is None:
        return command.count_max
    is_growing = claim.state is ClaimState.GROWING and claim.deadline_ms > now_ms
    if not is_growing or len(claim) != command.known:
        return 0
    return min(command.count_max, MESSAGES_MAX - len(claim))


def grow_claim(
    partition: Partition,
    command: Claim,
    claim: OpenClaim | None,
    messages: list[tuple[int, int]],
    now_ms: int,
    proposal: Proposal,
) -> OpenClaim:
    """Have a claim hold messages that were taken from the order, as (sequence, delivery count)."""
    held_ms = _held_ms(command.held_ms, now_ms)
    _propose(partition, ClaimStep.GREW, command, now_ms, proposal, held_ms=held_ms, messages=messages)
    consumer = opened_consumer(partition, command.consumer, command.owner)
    if claim is None:
        claim = consumer.open[command.claim_id] = OpenClaim(command.claim_id)
    apply_grown(partition, claim, messages, now_ms, held_ms, proposal.epoch, taken=True)
    totals_of(partition, proposal.epoch).received += len(messages)
    return claim


def hold_claim(partition: Partition, command: Claim, claim: OpenClaim) -> Slices:
    """Hold a claim, again if its deadline has passed: then each of its messages is looked at, and it may be broken."""
    now_ms, proposal = yield from next_turn()
    is_whole = claim.state is not ClaimState.BROKEN
    if is_whole and claim.deadline_ms <= now_ms:
        for start in range(0, len(claim), slices.SLICE_SINGLE_MESSAGES):
            is_whole = _has_all(partition, claim, start, start + slices.SLICE_SINGLE_MESSAGES)
            if not is_whole:
                break
            now_ms, proposal = yield from next_turn()
    if not is_whole:
        _break(partition, command.consumer, command.owner, claim, now_ms, proposal)
        return ClaimOutcome("broken", len(claim))
    held_ms = _held_ms(command.held_ms, now_ms)
    _propose(partition, ClaimStep.HELD, command, now_ms, proposal, held_ms=held_ms)
    opened_consumer(partition, command.consumer, command.owner)
    for _ in apply_held(partition, claim, now_ms, held_ms, proposal.epoch):
        yield True
    return ClaimOutcome("held", len(claim))


def read_claim(
    partition: Partition, command: ReadClaim, now_ms: int, proposal: Proposal
) -> FetchedOffsets | FetchOutcome | ClaimOutcome:
    """Return messages of a claim by their places, the first FETCH_MESSAGES_MAX at most; a broken one is returned so.

    Raises ClaimIsSettled, ClaimNotFound, and OffsetOutOfRange for a place that it does not have.
    """
    consumer = find_consumer(partition, command.consumer)
    if consumer is not None and command.claim_id <= consumer.settled:
        raise ClaimIsSettled(command.consumer, command.claim_id, consumer.settled)
    claim = consumer.open.get(command.claim_id) if consumer is not None else None
    if consumer is None or claim is None:
        raise ClaimNotFound(command.consumer, command.claim_id)
    if not 0 <= command.start <= len(claim):
        raise OffsetOutOfRange(command.start, 0, len(claim))
    stop = max(command.start, min(command.stop, len(claim), command.start + FETCH_MESSAGES_MAX))
    has_lapsed_unread = claim.state is ClaimState.GROWING and claim.deadline_ms <= now_ms
    is_broken = claim.state is ClaimState.BROKEN or has_lapsed_unread
    if is_broken or not _has_all(partition, claim, command.start, stop):
        _break(partition, command.consumer, consumer.owner, claim, now_ms, proposal)
        return ClaimOutcome("broken", len(claim))
    if claim.state is ClaimState.GROWING:
        left_ms = claim.deadline_ms - now_ms
        payload = join_claim(command.consumer, consumer.owner)
        _add(partition, ClaimStep.HELD, claim.claim_id, payload, now_ms, proposal, held_ms=left_ms)
        partition.note_change()
        steps = list(apply_held(partition, claim, now_ms, left_ms, proposal.epoch))
        assert not steps, "a claim that has not lapsed has its messages"
    sequences = claim.sequences[command.start : stop].tolist()
    offsets, sent_ms = _places_of(partition, sequences)
    if not command.with_messages:
        return FetchOutcome(sequences, sent_ms, [], stop, 0, len(claim))
    return FetchedOffsets(sequences, sent_ms, offsets, stop, 0, len(claim), command.bytes_max, command.start)


def _places_of(partition: Partition, sequences: list[int]) -> tuple[list[int], list[int]]:
    """Return offsets and send times of messages; neighbours are looked up together."""
    offsets: list[int] = []
    sent_ms: list[int] = []
    start = 0
    while start < len(sequences):
        first, stop = sequences[start], start + 1
        while stop < len(sequences) and sequences[stop] - first == stop - start:
            stop += 1
        for run_offsets, run_times in partition.index.offsets_and_times(first, first + stop - start):
            offsets += run_offsets
            sent_ms += run_times
        start = stop
    return offsets, sent_ms


def find_consumer(partition: Partition, name: str) -> ClaimConsumer | None:
    """Return a consumer of claims, None if there is none of that name."""
    return partition.claims.consumers.get(name) if partition.claims is not None else None


def messages_of(partition: Partition, name: str, up_to: int | None = None) -> int:
    """Return how many messages the open claims of a consumer have, up to one of them or all."""
    consumer = find_consumer(partition, name)
    return consumer.count_up_to(up_to) if consumer is not None else 0


def take_over(partition: Partition, command: Claim, now_ms: int, proposal: Proposal) -> None:
    """Note a consumer's new owner, who asks for a claim that there is not."""
    consumer = find_consumer(partition, command.consumer)
    if consumer is not None and consumer.owner != command.owner:
        # Nothing else changes: so far it was settled before.
        payload = join_claim(command.consumer, command.owner)
        _add(partition, ClaimStep.SETTLED, consumer.settled, payload, now_ms, proposal)
        opened_consumer(partition, command.consumer, command.owner)


def settle_claims(partition: Partition, command: Settle) -> Slices:
    """Be done with claims; what is deleted is decided message by message, as everyone who applies the record does."""
    now_ms, proposal = yield from next_turn()
    consumer = check_owner(partition, command)
    if consumer is not None and consumer.owner == command.owner and command.claim_id <= consumer.settled:
        return SettledOutcome(consumer.settled, 0)
    _propose(partition, ClaimStep.SETTLED, command, now_ms, proposal)
    proposal.awake.add(partition)
    consumer = opened_consumer(partition, command.consumer, command.owner)
    deleted = 0
    for gone in apply_settled(partition, consumer, command.claim_id, now_ms):
        deleted += gone
        yield True
    return SettledOutcome(consumer.settled, deleted)


def release_claims(partition: Partition, command: ReleaseClaims) -> Slices:
    """Break a consumer's open claims, and forget it if it is to be."""
    now_ms, proposal = yield from next_turn()
    consumer = find_consumer(partition, command.consumer)
    if consumer is None:
        return ReleasedOutcome(0)
    whole = [claim for claim in consumer.open.values() if claim.state is not ClaimState.BROKEN]
    for claim in whole:
        _break(partition, command.consumer, consumer.owner, claim, now_ms, proposal)
    if command.forgets:
        payload = join_claim(command.consumer, consumer.owner)
        _add(partition, ClaimStep.FORGOTTEN, 0, payload, now_ms, proposal)
        for _ in apply_forgotten(partition, command.consumer, now_ms):
            yield True
    return ReleasedOutcome(sum(map(len, whole)))


def describe_claims(partition: Partition, visible: int, now_ms: int) -> ClaimsOutcome:
    """Return the claims of a partition."""
    consumers = partition.claims.consumers if partition.claims is not None else {}
    return ClaimsOutcome(
        [
            ClaimConsumerView(
                name,
                consumer.owner,
                consumer.settled,
                [
                    ClaimView(
                        claim.claim_id,
                        "lapsed" if _has_lapsed(claim, now_ms) else _STATES[claim.state],
                        len(claim),
                        max(0, claim.deadline_ms - now_ms),
                    )
                    for claim in consumer.open.values()
                ],
            )
            for name, consumer in sorted(consumers.items())
        ],
        visible,
    )


def state_of(claim: OpenClaim) -> str:
    """Return what a claim is, in a word."""
    return _STATES[claim.state]


def _has_lapsed(claim: OpenClaim, now_ms: int) -> bool:
    return claim.state is not ClaimState.BROKEN and claim.deadline_ms <= now_ms


def check_owner(partition: Partition, command: Claim | Settle) -> ClaimConsumer | None:
    """Return the consumer of a command, None if it is new; raises ClaimTakenOver, and OverLimit for one too many."""
    consumers = partition.claims.consumers if partition.claims is not None else {}
    consumer = consumers.get(command.consumer)
    if consumer is None:
        if len(consumers) >= CONSUMERS_MAX:
            raise OverLimit(
                f"A partition may have {CONSUMERS_MAX} consumers of claims; `quaymaster queue claims release --forget` "
                "drops one that is not used any more."
            )
    elif consumer.owner != command.owner and not command.takes:
        raise ClaimTakenOver(command.consumer)
    return consumer


def _has_all(partition: Partition, claim: OpenClaim, start: int, stop: int) -> bool:
    """Return whether these of a claim's messages were neither received nor deleted since, nor are being moved."""
    return all(
        is_still_of(partition, sequence, count) and sequence not in partition.moving
        for sequence, count in claim.messages(start, stop)
    )


def _break(
    partition: Partition, name: str, owner: str, claim: OpenClaim, now_ms: int, proposal: Proposal
) -> None:
    """Break a claim, and note its owner; both may be so already."""
    assert partition.claims is not None, "the claim is one of them"
    if claim.state is ClaimState.BROKEN and partition.claims.consumers[name].owner == owner:
        return
    _add(partition, ClaimStep.BROKEN, claim.claim_id, join_claim(name, owner), now_ms, proposal)
    opened_consumer(partition, name, owner)
    apply_broken(partition, claim, now_ms)
    proposal.awake.add(partition)


def _propose(
    partition: Partition,
    step: ClaimStep,
    command: Claim | Settle,
    now_ms: int,
    proposal: Proposal,
    *,
    held_ms: int = 0,
    messages: Sequence[tuple[int, int]] = (),
) -> None:
    payload = join_claim(command.consumer, command.owner, messages)
    _add(partition, step, command.claim_id, payload, now_ms, proposal, held_ms=held_ms)


def _add(
    partition: Partition,
    step: ClaimStep,
    claim_id: int,
    payload: bytes,
    now_ms: int,
    proposal: Proposal,
    *,
    held_ms: int = 0,
) -> None:
    proposal.add(
        RecordType.CLAIM,
        partition,
        now_ms,
        sequence=claim_id,
        due_after_ms=held_ms,
        flags=step,
        payload=payload,
    )


def _held_ms(held_ms: int, now_ms: int) -> int:
    return round_up_to_slot_ms(now_ms + held_ms) - now_ms
