"""How a local cluster is: its processes, asked one by one, and its journals, as coordination and leaders tell it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal

import msgspec

from quaymaster.cli.local.plan import CELL, ETCD_PREFIX, ClusterPlan, PlannedProcess, ProcessId
from quaymaster.cli.local.probes import probe
from quaymaster.cli.local.processes import condition
from quaymaster.coordination.cell_keys import (
    BROKERS,
    JOURNALS,
    decode_configuration,
    decode_registration,
    journal_of,
)
from quaymaster.coordination.stores.etcd import EtcdCoordination
from quaymaster.coordination.stores.etcd_gateway import EtcdAccess
from quaymaster.core.cell.cell import BrokerReport, broker_of
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.net.rpc import RPCClient
from quaymaster.protocol.rpc.broker_calls import REPORT, decode_report
from quaymaster.protocol.rpc.frames import Hello
from quaymaster.settings import parse_address

COORDINATION_TIMEOUT_MS = 2_000
REPORT_TIMEOUT_MS = 1_000

State = Literal["ready", "not ready", "paused", "stopped"]


class ProcessStatus(msgspec.Struct, frozen=True):
    """A process of the cluster. `pid` is None when it has ended."""

    name: str
    role: str
    pid: int | None
    zone: str | None
    address: str
    state: State


class LocalJournal(msgspec.Struct, frozen=True):
    """A journal and the processes that hold it.

    `leader` is None while none has taken over; `lag_records`, how far the last of the members is behind, is None
    when the leader does not say.
    """

    journal: int
    leader: str | None
    epoch: int
    members: list[str]
    lag_records: int | None


class ClusterStatus(msgspec.Struct, frozen=True):
    """What `quaymaster local status --json` prints. `journals` is None when etcd does not answer."""

    endpoint_url: str
    processes: list[ProcessStatus]
    journals: list[LocalJournal] | None


async def look(
    plan: ClusterPlan, running: Mapping[str, ProcessId], helpers: Mapping[str, ProcessId]
) -> ClusterStatus:
    """Ask everybody at once. `helpers`: what the only server has started; it says whether they are ready."""
    processes, journals = await asyncio.gather(
        asyncio.gather(*(_look_at_process(plan, planned, running) for planned in plan.processes)),
        look_at_journals(plan),
    )
    server = processes[0]
    helping = [_look_at_helper(server, name, process) for name, process in helpers.items()]
    return ClusterStatus(plan.endpoint_url, [*processes, *helping], journals)


async def are_journals_led(plan: ClusterPlan) -> bool:
    """Whether there are journals, and each has a leader that says so. A server says itself when it is ready."""
    if plan.etcd is None:
        return True
    journals = await look_at_journals(plan)
    return bool(journals) and all(journal.lag_records is not None for journal in journals or ())


async def look_at_journals(plan: ClusterPlan) -> list[LocalJournal] | None:
    """Return every journal, in order; None when etcd does not answer. Of a server with workers none is shown."""
    if plan.etcd is None:
        return []
    store = EtcdCoordination(
        EtcdAccess([plan.etcd.endpoint]), root=ETCD_PREFIX, timeout_ms=COORDINATION_TIMEOUT_MS
    )
    try:
        (journals, _), (brokers, _) = await asyncio.gather(store.list_all(JOURNALS), store.list_all(BROKERS))
    except NotNow:
        return None
    finally:
        await store.close()
    configurations = {journal_of(item.key): decode_configuration(item.value) for item in journals}
    registrations = [decode_registration(item.value) for item in brokers]
    addresses = {registration.name: registration.address for registration in registrations}
    leaders = {
        broker_of(configuration.leader)
        for configuration in configurations.values()
        if configuration.activated
    }
    asked = sorted(leaders.intersection(addresses))
    answers = await asyncio.gather(*(_report_of(addresses[name]) for name in asked))
    reports = {name: report for name, report in zip(asked, answers, strict=True) if report is not None}
    return [journal_status(number, configurations[number], reports) for number in sorted(configurations)]


def journal_status(
    number: int, configuration: JournalConfiguration, reports: Mapping[str, BrokerReport]
) -> LocalJournal:
    """Return a journal's status from what coordination says of it, and its leader of the others."""
    leader = broker_of(configuration.leader) if configuration.activated else None
    lag_records = None
    report = reports.get(leader) if leader is not None else None
    replica = report.replicas.get(number) if report is not None else None
    if replica is not None and replica.role == "leading" and replica.epoch == configuration.epoch:
        lag_records = max((replica.lag.get(member, 0) for member in configuration.members), default=0)
    members = [broker_of(member) for member in configuration.members]
    return LocalJournal(number, leader, configuration.epoch, members, lag_records)


async def _look_at_process(
    plan: ClusterPlan, planned: PlannedProcess, running: Mapping[str, ProcessId]
) -> ProcessStatus:
    process = running.get(planned.name)
    state: State = "stopped"
    if process is not None:
        found = condition(process)
        if found == "paused":
            state = "paused"
        elif found == "running":
            is_ready = await asyncio.to_thread(probe, plan, planned)
            # A signal to pause takes effect a moment after it was sent: why it did not answer is known now.
            is_paused = not is_ready and condition(process) == "paused"
            state = "ready" if is_ready else "paused" if is_paused else "not ready"
    pid = process.pid if process is not None and state != "stopped" else None
    return ProcessStatus(planned.name, planned.role, pid, planned.zone, planned.address, state)


def _look_at_helper(server: ProcessStatus, name: str, process: ProcessId) -> ProcessStatus:
    found = condition(process)
    state: State = server.state if found == "running" else "paused" if found == "paused" else "stopped"
    pid = process.pid if state != "stopped" else None
    return ProcessStatus(name, name.partition("-")[0], pid, server.zone, "", state)


async def _report_of(address: str) -> BrokerReport | None:
    """Return what a broker says of its replicas; None when it says nothing."""
    where = parse_address(address)
    client = RPCClient((where.host, where.port), Hello(CELL, "manager", "local-status"))
    try:
        return decode_report(await client.ask(REPORT, b"", REPORT_TIMEOUT_MS))
    except (NotNow, CallerError, msgspec.MsgspecError):
        return None
    finally:
        await client.close()
