"""A broker as its cell has it: told by coordination whom to follow, reached by others over the network.

    coordination ──journals/, brokers/──▶ configurations, addresses
    other brokers, front ends, managers ──calls──▶ cell_calls, copy_calls ──▶ Broker
    journals ──messages──▶ peer_links ──▶ other brokers

What it holds is what is on its disk: each directory below `journals/` is a replica. It begins a new one only when the
manager asks for it, and drops one only when the manager says so and no configuration names it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from quaymaster.broker.broker import Broker
from quaymaster.broker.cell import (
    authorization_floor,
    backup_calls,
    broker_name,
    cell_calls,
    copy_calls,
    move_calls,
    queue_watch_calls,
    restore_calls,
)
from quaymaster.broker.cell.authorization_floor import AuthorizationFloor
from quaymaster.broker.cell.backup_calls import BackupCalls
from quaymaster.broker.cell.broker_name import WHO, BrokerName, NameTaken
from quaymaster.broker.cell.broker_tasks import BrokerTasks
from quaymaster.broker.cell.cell_calls import CellCalls
from quaymaster.broker.cell.copy_calls import CopyCalls
from quaymaster.broker.cell.move_calls import MoveCalls
from quaymaster.broker.cell.peer_links import PeerLinks
from quaymaster.broker.cell.queue_watch_calls import QueueWatchCalls
from quaymaster.broker.cell.restore_calls import RestoreCalls
from quaymaster.broker.queue_watch import QueueWatch
from quaymaster.broker.replica.journal_service import JournalOptions, JournalService
from quaymaster.broker.replica.moves.queue_places import FindQueue
from quaymaster.broker.replica.records import record_repair
from quaymaster.broker.replica.records.record_repair import FoundRecord
from quaymaster.broker.storage.disk import Disk
from quaymaster.coordination.cell_keys import (
    BROKERS,
    JOURNALS,
    BrokerRegistration,
    decode_configuration,
    decode_registration,
    journal_of,
)
from quaymaster.coordination.interface import Coordination, StoreUnusable
from quaymaster.coordination.noted_acts import note_act
from quaymaster.coordination.watched_prefix import WatchedPrefix
from quaymaster.core.cell.cell import BrokerReport, broker_of
from quaymaster.core.replication.messages import Envelope
from quaymaster.core.values.commands.moves import MoveIn, MoveInOutcome
from quaymaster.core.values.commands.partitions import AskGroups, GroupsOutcome
from quaymaster.core.values.errors import NotLeader
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.records import Batch
from quaymaster.monitoring.logs import log_event
from quaymaster.net.rpc import IncomingCall, RPCClient, RPCLimits, RPCMetrics, RPCServer
from quaymaster.net.tls import TransportSecurity
from quaymaster.protocol.rpc.frames import Hello

CALLER_ROLES = ("broker", "console", "frontend", "manager", "metadata", "operator", "push")
CALLERS = (
    cell_calls.CALLERS
    | copy_calls.CALLERS
    | move_calls.CALLERS
    | backup_calls.CALLERS
    | restore_calls.CALLERS
    | queue_watch_calls.CALLERS
    | broker_name.CALLERS
    | authorization_floor.CALLERS
)
"""Who may make which call."""
DRAIN_MS = 1_000
RETRY_S = 0.5
"""Coordination that is away is asked again after so long at most: an appointment may be waiting there."""
LAST_TRANSFER_TIMEOUT_S = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BrokerServiceOptions:
    """What a broker of a cell needs to know. `journal` holds for each of its journals; the id in it does not count.

    `advertise` is the host:port that the others reach it by; its port 0 stands for the one it listens on.
    """

    name: str
    zone: str
    cell: str
    listen_host: str
    listen_port: int
    advertise: str
    journal: JournalOptions
    limits: RPCLimits | None = None
    security: TransportSecurity | None = None
    rpc: RPCMetrics = field(default_factory=RPCMetrics)


async def _none_elsewhere(account_id: str, name: str) -> QueueDefinition | None:
    return None


class BrokerService:
    """A broker in its cell. `start` returns when it takes part; it leads what it is appointed for.

    `find_queue` finds queues of other journals, for messages that move there.
    """

    def __init__(
        self,
        options: BrokerServiceOptions,
        coordination: Coordination,
        *,
        on_stopped: Callable[[Exception], None],
        disk: Disk | None = None,
        find_queue: FindQueue = _none_elsewhere,
    ) -> None:
        self._options = options
        self._find_queue = find_queue
        self._coordination = coordination
        self._hello = Hello(cell=options.cell, role="broker", node=options.name)
        self._tasks = BrokerTasks(on_stopped)
        self._links = PeerLinks(
            self._hello,
            on_closed=self._peer_closed,
            limits=options.limits,
            security=options.security,
            cell_format=options.journal.cell_format,
            stats=options.rpc.of("client", self._hello.role),
        )
        self.broker = Broker(
            options.journal, options.name, coordination, peers=self, disk=disk, on_stopped=on_stopped
        )
        self._floor = AuthorizationFloor(coordination, lambda: self._server.connections, retry_max_s=RETRY_S)
        self._copies = CopyCalls(self.broker, self._links, self._tasks)
        calls = CellCalls(
            self.broker,
            self._tasks,
            leader_hint=self._leader_hint,
            make_report=self.report,
            note=partial(note_act, coordination),
            floor=self._floor,
        )
        self._moves = MoveCalls(self.broker.get, self._link_to_leader, self._tasks)
        self._backups = BackupCalls(self.broker, self._tasks)
        restores = RestoreCalls(self.broker, self._tasks)
        watch = QueueWatch(options.name, lambda: self.broker.journals.values())
        self._server = RPCServer(
            {
                **calls.handlers,
                **self._copies.handlers,
                **self._moves.handlers,
                **self._backups.handlers,
                **restores.handlers,
                **QueueWatchCalls(watch, self._tasks).handlers,
                **self._floor.handlers,
                WHO: self._answer_who,
            },
            self._hello,
            batch_handlers=calls.batch_handlers,
            limits=options.limits,
            check_peer=None if options.security is None else options.security.check_peer(*CALLER_ROLES),
            metrics=options.rpc,
            callers=CALLERS,
        )
        self._watches = [
            WatchedPrefix(coordination, prefix, on_row, retry_max_s=RETRY_S)
            for prefix, on_row in ((BROKERS, self._take_registration), (JOURNALS, self._take_configuration))
        ]
        self._name = BrokerName(
            options.name,
            options.zone,
            coordination,
            connect=self._links.connect,
            check_store=self._check_is_of_this_cell,
            on_displaced=on_stopped,
        )
        self.registrations: dict[str, BrokerRegistration] = {}
        self.address = ""

    @property
    def journals(self) -> dict[int, JournalService]:
        """The replicas that are open, by the number of their journal."""
        return self.broker.journals

    @property
    def configurations(self) -> dict[int, JournalConfiguration]:
        """The newest configurations that were seen, of all journals of the cell."""
        return self.broker.configurations

    @property
    def copies_given(self) -> int:
        """How many copies of journals are being read from here."""
        return self._copies.given

    # Life

    async def start(self) -> None:
        """Recover every journal on the disk, listen, register, and follow coordination; waits until that answers.

        Raises StoreUnusable when the store knows nothing of what is on the disk, NameTaken when another process of
        this name runs.
        """
        options = self._options
        await self.broker.recover()
        self._tasks.run(self.broker.open_when_room())
        if options.security is not None:
            options.security.require_own(self._hello)
        tls = None if options.security is None else options.security.server_context()
        host, port = await self._server.start(options.listen_host, options.listen_port, tls=tls)
        advertised, _, advertised_port = options.advertise.rpartition(":")
        self.address = f"{advertised or host}:{int(advertised_port or 0) or port}"
        try:
            await self._name.register(self.address)
        except (StoreUnusable, NameTaken):
            await self.close()
            raise
        # Before it hears what it leads: no command is carried out by a broker that does not know the floor.
        await self._floor.start()
        for watch in self._watches:
            watch.start()
        self._tasks.run(self._name.keep())
        log_event(
            log,
            logging.INFO,
            "broker started",
            broker=options.name,
            address=self.address,
            journals=len(self.journals),
        )

    async def close(self) -> None:
        """Hand over what is led as far as that goes at once, close every journal, stop listening."""
        await self.broker.hand_over_all(LAST_TRANSFER_TIMEOUT_S)
        await asyncio.gather(self._floor.close(), *(watch.close() for watch in self._watches))
        await self._tasks.close()
        await self._copies.close()
        await self._backups.close()
        await self.broker.close()
        await self._server.drain(DRAIN_MS)
        await self._links.close()

    async def _check_is_of_this_cell(self) -> None:
        """Refuse a store that knows of no journal while there are records here: it lost its data, or is another one.

        A cell that began again there would give the numbers of these journals and of their queues to others.
        """
        held = sorted(number for number, journal in self.journals.items() if journal.files.end_offset)
        if held and not (await self._coordination.list_prefix(JOURNALS, limit=1)).items:
            raise StoreUnusable(
                f"The coordination store knows of no journal, and this broker has journals {held} on its disk: the "
                "store lost its data, or is not this cell's (etcd_endpoints, etcd_prefix). Nothing was changed here. "
                "Restore etcd from a snapshot: docs/guides/etcd.md."
            )

    # Coordination

    def _take_registration(self, key: str, value: bytes | None) -> None:
        name = key.removeprefix(BROKERS)
        if value is None:
            self.registrations.pop(name, None)
        else:
            self.registrations[name] = decode_registration(value)
        if name != self._options.name:
            address = self.registrations[name].address if name in self.registrations else None
            self._tasks.run(self._links.set_address(name, address))

    def _take_configuration(self, key: str, value: bytes | None) -> None:
        number = journal_of(key)
        if value is None:
            self.configurations.pop(number, None)
        else:
            self.configurations[number] = decode_configuration(value)
        self.broker.tell(number)

    def _leader_hint(self, number: int) -> str | None:
        configuration = self.configurations.get(number)
        if configuration is None or not configuration.activated:
            return None
        registration = self.registrations.get(broker_of(configuration.leader))
        return None if registration is None else registration.address

    def _link_to_leader(self, number: int) -> RPCClient | None:
        """Return the connection to a journal's leader, None when that is this broker; NotLeader if it is unknown."""
        configuration = self.configurations.get(number)
        if configuration is None:
            raise NotLeader
        leader = broker_of(configuration.leader)
        if leader == self._options.name:
            return None
        client = self._links.client(leader)
        if client is None:
            raise NotLeader
        return client

    # What its journals ask of it

    def send(self, journal_id: int, messages: list[Envelope]) -> None:
        """See `Peers`."""
        self._links.send(journal_id, messages)

    def copy_needed(self, journal_id: int, members: list[str]) -> None:
        """See `Peers`."""
        self._copies.needed(journal_id, members)

    def stuck(self, journal_id: int) -> None:
        """See `Peers`."""
        self._tasks.run(self.broker.reopen(journal_id))

    async def records(self, journal_id: int, offsets: list[int]) -> tuple[list[FoundRecord], int]:
        """See `Peers`."""
        clients, others = self._other_members(journal_id)
        return await record_repair.ask_others(clients, journal_id, offsets), others

    async def stretches(self, journal_id: int, start: int, end: int) -> list[list[Batch]]:
        """See `Peers`."""
        clients, _ = self._other_members(journal_id)
        found = await asyncio.gather(
            *(record_repair.ask_for_stretch(client, journal_id, start, end) for client in clients)
        )
        return [batches for batches in found if batches]

    def _other_members(self, journal_id: int) -> tuple[list[RPCClient], int]:
        """Return connections to the other members of a journal, and how many of them there are."""
        configuration = self.configurations.get(journal_id)
        members = () if configuration is None else configuration.members
        others = [name for member in members if (name := broker_of(member)) != self._options.name]
        return [client for name in others if (client := self._links.client(name)) is not None], len(others)

    async def move(self, journal_id: int, command: MoveIn) -> MoveInOutcome:
        """See `Peers`."""
        return await self._moves.move(journal_id, command)

    async def groups_left(self, journal_id: int, command: AskGroups) -> GroupsOutcome:
        """See `Peers`."""
        return await self._moves.groups_left(journal_id, command)

    async def find_queue(self, account_id: str, name: str) -> QueueDefinition | None:
        """See `Peers`."""
        return await self._find_queue(account_id, name)

    def _answer_who(self, call: IncomingCall) -> None:
        self._name.on_who(call)

    def _peer_closed(self, broker: str) -> None:
        for journal in list(self.journals.values()):
            replica = journal.host.replica
            leader = replica.log.leader
            if leader is not None and broker_of(leader) == broker:
                journal.host.on_connection_closed(leader)

    def report(self) -> BrokerReport:
        """Return how this broker and each of its replicas is, as the manager wants to know it."""
        report = self.broker.report()
        replicas = {
            number: msgspec.structs.replace(replica, copied_bytes=self._copies.bytes_given(number))
            for number, replica in report.replicas.items()
        }
        return msgspec.structs.replace(report, replicas=replicas, coordination_silent_ms=self._name.silent_ms)

    def why_not_ready(self) -> str | None:
        """Return why this broker cannot do its part, None if it can."""
        return self._name.why_not_ready() or self.broker.why_stopped()
