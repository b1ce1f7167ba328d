"""What a manager decided, in words that people can look up: the action, what it is about, and why."""

from __future__ import annotations

import msgspec

from quaymaster.core.cell.cell import (
    Action,
    CreateJournal,
    DropReplica,
    RemoveBroker,
    ReplaceMember,
    broker_of,
)
from quaymaster.core.cell.partition_plans import (
    MergePartitions,
    MovePartition,
    PlannedChange,
    SplitPartition,
)


class CellDecision(msgspec.Struct, frozen=True):
    """An action and its reason. `broker`: the one that gets something, or loses it; None where there is no such one.

    `leader` and `epoch` are those of the configuration that was to be written. `journal` of a change of partitions: the
    one that gets a partition from another.
    """

    action: str
    journal: int | None
    broker: str | None
    leader: str | None
    epoch: int | None
    reason: str


class DecisionTaken(msgspec.Struct, frozen=True):
    """A decision, when it was carried out (UTC), and what came of it.

    `result` is done, failed, outdated (another manager was faster) or unknown; `error` says more. `times`: how often in
    a row the same was decided with the same result; `at_ms` is the last time.
    """

    at_ms: int
    decision: CellDecision
    result: str
    error: str | None = None
    times: int = 1


class ManagerDecisions(msgspec.Struct, frozen=True):
    """What one manager decided, the newest last."""

    manager: str
    decisions: tuple[DecisionTaken, ...]


def is_same_decision(one: DecisionTaken, other: DecisionTaken) -> bool:
    """Tell whether the same was decided, with the same result."""
    return (one.decision, one.result, one.error) == (other.decision, other.result, other.error)


def decision_of(action: Action | PlannedChange) -> CellDecision:
    """Return what an action decides."""
    kind = type(action).__name__
    match action:
        case CreateJournal():
            reason = "there are fewer journals than journals_per_broker for each broker"
            return CellDecision(kind, action.journal, action.brokers[0], None, None, reason)
        case DropReplica():
            reason = f"no configuration since epoch {action.epoch} names it"
            return CellDecision(kind, action.journal, action.broker, None, None, reason)
        case RemoveBroker():
            return CellDecision(kind, None, action.broker, None, None, "it drained, and has nothing any more")
        case SplitPartition():
            return CellDecision(kind, action.journals[1], None, None, None, action.reason)
        case MovePartition() | MergePartitions():
            return CellDecision(kind, action.journal, None, None, None, action.reason)
        case _:
            configuration = action.configuration
            broker = action.broker if isinstance(action, ReplaceMember) else None
            return CellDecision(
                kind,
                action.journal,
                broker,
                broker_of(configuration.leader),
                configuration.epoch,
                action.reason,
            )
