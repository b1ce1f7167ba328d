"""What a manager tells people about its cell: brokers, journals, leaders, lag, and what is wrong."""

from __future__ import annotations

import msgspec

from quaymaster.core.cell.cell import BrokerState, CellSeen, JournalSeen, ReplicaSeen, broker_of
from quaymaster.core.cell.cell_view import CellView
from quaymaster.core.cell.load import BrokerLoad


class BrokerStatus(msgspec.Struct, frozen=True):
    """A broker. `silent_ms`: since its last report was asked for; None when there is none yet."""

    name: str
    zone: str
    state: BrokerState
    address: str
    is_reachable: bool
    silent_ms: int | None
    replicas: int
    leads: int
    disk_free_bytes: int
    is_disk_low: bool
    load: BrokerLoad
    clock_ahead_ms: int | None = None
    """How far its wall clock is ahead of the others' (negative: behind); None where that is not known."""


class MemberStatus(msgspec.Struct, frozen=True):
    """A member or learner of a journal. Lag as the leader tells it; None where nobody does."""

    member: str
    broker: str
    role: str | None
    end: int | None
    lag_records: int | None
    is_learner: bool


class JournalStatus(msgspec.Struct, frozen=True):
    """A journal. `leader` is a broker, None while nobody serves; `appointed` the one of the configuration."""

    journal: int
    epoch: int
    leader: str | None
    appointed: str
    is_activated: bool
    members: tuple[MemberStatus, ...]


class CellStatus(msgspec.Struct, frozen=True):
    """A cell as one manager sees it; only the acting one changes anything."""

    manager: str
    is_acting: bool
    acting_manager: str | None
    brokers: tuple[BrokerStatus, ...]
    journals: tuple[JournalStatus, ...]
    problems: tuple[str, ...]


def status_of(
    seen: CellSeen,
    addresses: dict[str, str],
    *,
    manager: str,
    is_acting: bool,
    acting_manager: str | None,
    problems: tuple[str, ...],
) -> CellStatus:
    """Return what is seen in the words of the status."""
    skews_ms = CellView(seen).skews_ms
    journals = tuple(
        _journal_status(seen, number, journal) for number, journal in sorted(seen.journals.items())
    )
    brokers = tuple(
        BrokerStatus(
            broker.name,
            broker.zone,
            broker.state,
            addresses[broker.name],
            broker.is_reachable,
            None if broker.heard_ms is None else seen.now_ms - broker.heard_ms,
            len(broker.report.replicas),
            sum(journal.leader == broker.name for journal in journals),
            broker.report.disk_free_bytes,
            broker.report.is_disk_low,
            broker.report.load,
            skews_ms.get(broker.name),
        )
        for broker in sorted(seen.brokers, key=lambda broker: broker.name)
    )
    return CellStatus(manager, is_acting, acting_manager, brokers, journals, problems)


def _journal_status(seen: CellSeen, number: int, journal: JournalSeen) -> JournalStatus:
    configuration = journal.configuration
    leader = _replica(seen, number, configuration.leader)
    is_led = leader is not None and leader.role == "leading" and leader.epoch == configuration.epoch
    lag = leader.lag if leader is not None and is_led else {}
    members = []
    for member in (*configuration.members, *configuration.learners):
        replica = _replica(seen, number, member)
        members.append(
            MemberStatus(
                member,
                broker_of(member),
                None if replica is None else replica.role,
                None if replica is None else replica.end,
                0 if is_led and member == configuration.leader else lag.get(member),
                member in configuration.learners,
            )
        )
    return JournalStatus(
        number,
        configuration.epoch,
        broker_of(configuration.leader) if is_led and configuration.activated else None,
        broker_of(configuration.leader),
        configuration.activated,
        tuple(members),
    )


def _replica(seen: CellSeen, number: int, member: str) -> ReplicaSeen | None:
    """Return a member's replica if its broker has reported it lately."""
    for broker in seen.brokers:
        if broker.name == broker_of(member) and broker.is_reachable and broker.heard_ms is not None:
            if seen.now_ms - broker.heard_ms >= seen.settings.suspicion_ms:
                return None
            replica = broker.report.replicas.get(number)
            return replica if replica is not None and replica.member == member else None
    return None
