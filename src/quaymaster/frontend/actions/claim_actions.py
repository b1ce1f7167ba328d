"""Claims: messages of a plain queue that a consumer holds, reads as often as it needs, and settles.

What is claimed is read in columns, as a log is: `log_actions`.
"""

from __future__ import annotations

from quaymaster.core.values.commands.claims import (
    Claim,
    ClaimOutcome,
    ClaimsOutcome,
    DescribeClaims,
    ReleaseClaims,
    ReleasedOutcome,
    Settle,
    SettledOutcome,
)
from quaymaster.core.values.errors import QueueDoesNotExist
from quaymaster.frontend.actions.log_actions import check_partition
from quaymaster.frontend.call import Call
from quaymaster.monitoring.metrics import Metrics
from quaymaster.protocol.actions import claim_rules, claim_shapes


class ClaimActions:
    """The handlers of the actions on claims."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def claim_messages(
        self, call: Call, given: claim_shapes.ClaimMessagesRequest
    ) -> claim_shapes.ClaimMessagesResult:
        """Claim messages, or hold those that are claimed."""
        wanted = claim_rules.check_claim(given)
        check_partition(call.resolved, given.Partition)
        outcome = await call.calls.ask(
            Claim(
                call.resolved.queue_id,
                given.Partition,
                given.Consumer,
                given.Owner,
                given.ClaimId,
                wanted.count_max,
                wanted.known,
                wanted.held_ms,
                takes=bool(given.Take),
            )
        )
        assert isinstance(outcome, ClaimOutcome), "a Claim is answered by a ClaimOutcome"
        call.message_count = outcome.taken
        self._metrics.messages_received += outcome.taken
        return claim_shapes.ClaimMessagesResult(
            outcome.state, outcome.count, outcome.taken, outcome.unfinished
        )

    async def settle_claims(
        self, call: Call, given: claim_shapes.SettleClaimsRequest
    ) -> claim_shapes.SettleClaimsResult:
        """Delete what claims have."""
        claim_rules.check_settle(given)
        check_partition(call.resolved, given.Partition)
        outcome = await call.calls.ask(
            Settle(
                call.resolved.queue_id,
                given.Partition,
                given.Consumer,
                given.Owner,
                given.ClaimId,
                takes=bool(given.Take),
            )
        )
        assert isinstance(outcome, SettledOutcome), "a Settle is answered by a SettledOutcome"
        call.message_count = outcome.deleted
        self._metrics.messages_deleted += outcome.deleted
        return claim_shapes.SettleClaimsResult(outcome.settled, outcome.deleted)

    async def describe_claims(
        self, call: Call, given: claim_shapes.DescribeClaimsRequest
    ) -> claim_shapes.DescribeClaimsResult:
        """Say who claims, and what is visible, in each partition."""
        definition = call.resolved
        partitions = []
        for entry in definition.partitions:
            try:
                outcome = await call.calls.ask(DescribeClaims(definition.queue_id, entry.number))
            except QueueDoesNotExist:
                continue  # its journal does not have it yet, or not any more
            assert isinstance(outcome, ClaimsOutcome), "a DescribeClaims is answered by a ClaimsOutcome"
            consumers = [
                claim_shapes.ClaimConsumerEntry(
                    consumer.consumer,
                    consumer.owner,
                    consumer.settled,
                    [
                        claim_shapes.OpenClaimEntry(claim.claim_id, claim.state, claim.count, claim.left_ms)
                        for claim in consumer.claims
                    ],
                )
                for consumer in outcome.consumers
            ]
            partitions.append(claim_shapes.ClaimPartition(entry.number, outcome.visible, consumers))
        if not partitions:
            raise QueueDoesNotExist
        return claim_shapes.DescribeClaimsResult(str(definition.queue_id), definition.name, partitions)

    async def release_claims(
        self, call: Call, given: claim_shapes.ReleaseClaimsRequest
    ) -> claim_shapes.ReleaseClaimsResult:
        """Let others receive what a consumer has claimed."""
        claim_rules.check_release(given)
        definition = call.resolved
        released = 0
        for entry in definition.partitions:
            release = ReleaseClaims(
                definition.queue_id, entry.number, given.Consumer, forgets=bool(given.Forget)
            )
            try:
                outcome = await call.calls.ask(release)
            except QueueDoesNotExist:
                continue  # as above
            assert isinstance(outcome, ReleasedOutcome), "a ReleaseClaims is answered by a ReleasedOutcome"
            released += outcome.messages
        return claim_shapes.ReleaseClaimsResult(released)
