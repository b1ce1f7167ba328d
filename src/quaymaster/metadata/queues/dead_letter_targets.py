"""Which queue another one may have as its dead-letter queue."""

from __future__ import annotations

from collections.abc import Mapping

from quaymaster.core.partition.partition_moves import NUMBERED_MOVES
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.queues.attributes import REDRIVE_POLICY
from quaymaster.core.values.queues.policies import invalid_redrive_policy
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import QueueArn
from quaymaster.metadata.queues.known_queues import KnownQueues


def check_given_target(
    queues: KnownQueues, arn: QueueArn, attributes: Mapping[str, str], given: Mapping[str, str]
) -> QueueDefinition | None:
    """Return the dead-letter queue that a request gives to a queue, None if it gives none.

    `attributes`: those that the queue gets; `given`: those of the request. Raises InvalidParameterValue when the queue
    cannot have it.
    """
    policy = REDRIVE_POLICY.of(attributes)
    text = given.get(REDRIVE_POLICY.name)
    if policy is None or not text:
        return None
    target = queues.find(policy.target.account_id, policy.target.name)
    if target is None:
        raise invalid_redrive_policy(text, "Dead letter target does not exist.")
    if target.is_log:
        raise invalid_redrive_policy(text, "A log-retained queue cannot be a dead-letter queue.")
    if not target.redrive_allow_policy.allows(arn):
        raise invalid_redrive_policy(text, "The dead letter target does not allow this queue as a source.")
    return target


def check_reach(source: QueueDefinition, target: QueueDefinition, cell_format: CellFormat) -> None:
    """Raise UnsupportedOperation unless messages can move from one queue to the other."""
    is_elsewhere = source.partitions[0].journal_id != target.partitions[0].journal_id
    if is_elsewhere:
        cell_format.require(
            NUMBERED_MOVES,
            f"The queues {source.name} and {target.name} are in different journals, between which messages move",
        )
