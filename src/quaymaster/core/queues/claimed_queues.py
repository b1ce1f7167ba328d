"""What a leader decides about claims, command by command (`core/queues/claims`)."""

from __future__ import annotations

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_counts import counts_of
from quaymaster.core.partition.proposals import Proposal, Wait
from quaymaster.core.partition.work.slices import Slices, Work
from quaymaster.core.queues.claims import (
    CLAIMED_AT_ONCE_MAX,
    CLAIMED_OF_GROUPS_MAX,
    check_has_claims,
    check_owner,
    describe_claims,
    find_claim,
    grow_claim,
    hold_claim,
    may_grow,
    messages_of,
    read_claim,
    release_claims,
    settle_claims,
    state_of,
    take_over,
)
from quaymaster.core.queues.consumed_queues import ConsumedQueues
from quaymaster.core.structures.orders.claims import OpenClaim
from quaymaster.core.values.commands.claims import (
    Claim,
    ClaimOutcome,
    DescribeClaims,
    ReadClaim,
    ReleaseClaims,
    Settle,
)
from quaymaster.core.values.commands.decided import ClaimedOutcome
from quaymaster.core.values.commands.unions import Decided
from quaymaster.core.values.formats import CellFormat


class ClaimedQueues(ConsumedQueues):
    """The queues of one journal, as drivers claim their messages where it is led."""

    cell_format: CellFormat

    def _claim(self, command: Claim, now_ms: int, proposal: Proposal) -> tuple[Decided | Work, Wait]:
        partition = self._claimed(command, now_ms, proposal)
        claim = find_claim(partition, command)
        if not command.count_max:
            if claim is None:
                take_over(partition, command, now_ms, proposal)
                return ClaimOutcome("none", 0), Wait.COMMIT
            holding = hold_claim(partition, command, claim)
            return self._begin_work(partition, holding, len(claim), (now_ms, proposal))
        return self._grow(partition, command, claim, now_ms, proposal), Wait.COMMIT

    def _grow(
        self,
        partition: Partition,
        command: Claim,
        claim: OpenClaim | None,
        now_ms: int,
        proposal: Proposal,
    ) -> ClaimedOutcome | ClaimOutcome:
        room = self._in_flight_max - len(partition.in_flight)
        is_fifo = partition.definition.is_fifo
        at_once = CLAIMED_OF_GROUPS_MAX if is_fifo else CLAIMED_AT_ONCE_MAX
        count_max = min(may_grow(claim, command, now_ms), at_once, room)
        known = len(claim) if claim is not None else 0
        state = state_of(claim) if claim is not None else "none"
        if count_max <= 0:
            return ClaimOutcome(state, known)
        taken, dead_letters, unfinished = self._take(partition, count_max, now_ms, proposal)
        if not taken:
            return ClaimedOutcome(ClaimOutcome(state, known, 0, unfinished), dead_letters)
        claim = grow_claim(partition, command, claim, taken, now_ms, proposal)
        self.note_claiming(partition)
        return ClaimedOutcome(ClaimOutcome(state_of(claim), len(claim), len(taken), unfinished), dead_letters)

    def _read_claim(self, command: ReadClaim, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self._claimed(command, now_ms, proposal)
        return read_claim(partition, command, now_ms, proposal), Wait.COMMIT

    def _settle(self, command: Settle, now_ms: int, proposal: Proposal) -> tuple[Decided | Work, Wait]:
        partition = self._claimed(command, now_ms, proposal)
        check_owner(partition, command)
        count = messages_of(partition, command.consumer, command.claim_id)
        settling = self._settled(partition, settle_claims(partition, command))
        return self._begin_work(partition, settling, count, (now_ms, proposal))

    def _settled(self, partition: Partition, slices: Slices) -> Slices:
        """Do the slices of a settlement, and count what they delete."""
        before = partition.alive
        outcome = yield from self.claims_changed(partition, slices)
        self.messages_gone += before - partition.alive
        return outcome

    def _describe_claims(
        self, command: DescribeClaims, now_ms: int, proposal: Proposal
    ) -> tuple[Decided, Wait]:
        partition = self._claimed(command, now_ms, proposal)
        return describe_claims(partition, counts_of(partition, now_ms).visible, now_ms), Wait.COMMIT

    def _release_claims(
        self, command: ReleaseClaims, now_ms: int, proposal: Proposal
    ) -> tuple[Decided | Work, Wait]:
        partition = self._claimed(command, now_ms, proposal)
        count = messages_of(partition, command.consumer)
        releasing = self.claims_changed(partition, release_claims(partition, command))
        return self._begin_work(partition, releasing, count, (now_ms, proposal))

    @property
    def open_claims(self) -> int:
        """How many claims are open."""
        claims = [self.partitions[key].claims for key in self.claiming]
        return sum(one.open_count for one in claims if one is not None)

    def _claimed(
        self,
        command: Claim | ReadClaim | Settle | DescribeClaims | ReleaseClaims,
        now_ms: int,
        proposal: Proposal,
    ) -> Partition:
        """Return the partition that a command is about, with what has lapsed as far as a moment's work goes."""
        partition = self.partition(command.queue_id, command.partition)
        check_has_claims(partition, self.cell_format)
        if self._advance(partition, now_ms):
            proposal.awake.add(partition)
        return partition
