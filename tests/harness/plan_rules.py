"""What every plan keeps to, whatever is seen."""

from __future__ import annotations

from quaymaster.core.cell.cell import (
    Action,
    Appoint,
    CellSeen,
    CreateJournal,
    DropReplica,
    PlacementSettings,
    Promote,
    RemoveBroker,
    ReplaceMember,
    ReplicaSeen,
    SetLearners,
    Transfer,
    broker_of,
)
from quaymaster.core.cell.placement import plan

CLOSE = PlacementSettings().transfer_lag_max


def _journal_of(action: Action) -> int | None:
    return None if isinstance(action, RemoveBroker) else action.journal


def check_plan(seen: CellSeen) -> None:
    """Assert what every plan keeps to."""
    made = plan(seen)
    assert made == plan(seen)
    journals = [action.journal for action in made.actions if not isinstance(action, RemoveBroker)]
    assert len(journals) == len(set(journals))
    assert not seen.acting & set(journals)
    assert all(isinstance(action, Appoint) for action in made.actions if _journal_of(action) in seen.asking)
    for action in made.actions:
        if isinstance(action, CreateJournal):
            assert action.journal not in seen.journals
            assert len(set(action.brokers)) == len(action.brokers) == seen.settings.replicas
            continue
        if isinstance(action, RemoveBroker):
            continue
        old = seen.journals[action.journal].configuration
        activated = old.members if old.activated else (old.previous_members or old.members)
        if isinstance(action, DropReplica):
            assert action.member not in {*old.members, *old.learners}
            continue
        assert action.revision == seen.journals[action.journal].revision
        new = action.configuration
        if isinstance(action, SetLearners | ReplaceMember):
            assert (new.epoch, new.leader, new.members) == (old.epoch, old.leader, old.members)
            assert set(new.learners) <= set(old.learners)
            continue
        promised = [
            broker.report.replicas[action.journal].promised_epoch
            for broker in seen.brokers
            if action.journal in broker.report.replicas
        ]
        assert new.epoch > max([old.epoch, *promised])
        assert new.leader in new.members
        assert new.previous_members == activated
        assert not new.activated
        if isinstance(action, Promote):
            assert new.leader == old.leader
            assert set(new.members) <= {*old.members, *old.learners}
            lag = _replica_of(seen, action.journal, old.leader).lag
            close = [name for name in new.members if lag.get(name, CLOSE + 1) <= CLOSE]
            assert 2 * len({*close, new.leader}) > len(new.members)
            assert len(new.members) >= min(len(old.members), seen.settings.replicas)
        else:
            assert new.leader in activated
            assert set(new.members) in (set(old.members), set(activated))
        if isinstance(action, Transfer):
            assert {action.source, action.target} <= set(old.members)
            assert old.activated


def _replica_of(seen: CellSeen, number: int, member: str) -> ReplicaSeen:
    """Return what a member reports."""
    (broker,) = [broker for broker in seen.brokers if broker.name == broker_of(member)]
    return broker.report.replicas[number]
