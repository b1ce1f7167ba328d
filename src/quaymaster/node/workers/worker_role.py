"""A worker of a server: journals, and a front end on the port that all workers share.

store, metadata of the process that started it ─▶ its journals ─▶ calls of others ─▶ front end
and in the end the other way round; journals are closed when no other worker asks for them any more
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quaymaster import __version__
from quaymaster.broker.cell import authorization_floor, backup_calls, move_calls, queue_watch_calls
from quaymaster.broker.cell.authorization_floor import COMMAND, AuthorizationFloor
from quaymaster.broker.cell.backup_calls import BackupCalls
from quaymaster.broker.cell.broker_tasks import BrokerTasks
from quaymaster.broker.cell.command_calls import CommandCalls
from quaymaster.broker.cell.move_calls import MoveCalls
from quaymaster.broker.cell.queue_watch_calls import QueueWatchCalls
from quaymaster.broker.lone_leader import BROKER_NAME
from quaymaster.broker.own_journals import OwnJournals
from quaymaster.broker.queue_watch import QueueWatch
from quaymaster.coordination.cell_keys import BrokerRegistration, encode_registration, registration_key
from quaymaster.coordination.interface import Coordination, Put
from quaymaster.coordination.presence import SHORT_LEASE_MS, Presence, PresenceRow
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.coordination.timed import coordination_histograms
from quaymaster.core.values.formats import CellFormat
from quaymaster.frontend.assembly import spread_over, tables_of
from quaymaster.frontend.logs.recent_logs import RecentLogs
from quaymaster.metadata.service import MetadataService
from quaymaster.metadata.store.rows import QueueRows
from quaymaster.net.routing.broker_client import JournalOf
from quaymaster.net.routing.enforced_floor import EnforcedFloor
from quaymaster.net.routing.queue_metrics_client import AllLeaders
from quaymaster.net.rpc import IncomingCall, OnReply, RPCClient, RPCServer
from quaymaster.node.cell.broker_routing import route_to_brokers
from quaymaster.node.cell.metadata_roles import start_remote_metadata
from quaymaster.node.cell.transport import BROKER_ROLE, DRAIN_MS, FRONT_END_ROLE, Transport, rpc_limits
from quaymaster.node.children.lifeline import Lifeline
from quaymaster.node.consoles import console_of_server
from quaymaster.node.data.data_directory import DirectoryLock, lock_data_directory, worker_directory
from quaymaster.node.data.settling import check_settled
from quaymaster.node.data.stores import SQLITE_FILE
from quaymaster.node.edge.front_end_role import Behind, Shared, serve_sqs, start_building, start_key_uses
from quaymaster.node.edge.front_ends_behind import FrontEndsBehind
from quaymaster.node.edge.left_usage import note_in_use
from quaymaster.node.edge.sockets import SQS_SOCKET
from quaymaster.node.from_settings import journal_options, key_provider
from quaymaster.node.journal_status import show_journals
from quaymaster.node.node import Node, Role
from quaymaster.node.push_role import start_engine
from quaymaster.node.push_tests import push_test_of
from quaymaster.node.workers import calls
from quaymaster.node.workers.brief import WorkerBrief, metadata_address, worker_address, worker_of
from quaymaster.node.workers.calls import WorkerCalls
from quaymaster.node.workers.near_brokers import NearBrokers
from quaymaster.protocol.rpc.broker_calls import FOLLOWERS, encode_call
from quaymaster.protocol.rpc.frames import Hello
from quaymaster.push.owners import PUSHER_ROLE, LivePushers
from quaymaster.settings import Settings

STORE_POLL_MS = 50
"""How often the processes of a server look for what the others wrote into the store."""
RETRY_S = 0.5
"""The store is asked again after so long at most, where it did not answer."""
CALLERS = (
    {COMMAND: ("frontend", "metadata")}
    | authorization_floor.CALLERS
    | move_calls.CALLERS
    | backup_calls.CALLERS
    | queue_watch_calls.CALLERS
    | calls.CALLERS
)
"""Who may make which call."""


@dataclass(frozen=True)
class WorkerRole(Role):
    """A worker. It has a directory of its own below the data directory, and operators ask the other process."""

    number: int = 0

    @property
    def kind(self) -> str:
        """See `Role`."""
        return "worker"

    def directory(self, settings: Settings) -> Path:
        """See `Role`."""
        return worker_directory(settings.data_directory.absolute(), self.number)

    def lock(self, settings: Settings, data: Path) -> DirectoryLock:
        """See `Role`. Raises DirectoryInUse."""
        return lock_data_directory(data)


def worker_role(brief: WorkerBrief, lifeline: int) -> WorkerRole:
    """Return the role of a worker; `lifeline` is the descriptor of its pipe."""
    name = f"worker {brief.number}"
    start = partial(_start_worker, brief, lifeline)
    return WorkerRole(name, start, has_clients=True, has_admin_port=False, number=brief.number)


async def _start_worker(brief: WorkerBrief, descriptor: int, node: Node) -> None:
    settings, stack = node.settings, node.stack
    data = settings.data_directory.absolute()
    lifeline = Lifeline(descriptor)
    lifeline.watch(drain=node.ask_to_stop, hurry=node.hurry)
    store = await SQLiteCoordination.open(data / SQLITE_FILE, on_stopped=node.fail, poll_ms=STORE_POLL_MS)
    stack.push_async_callback(store.close)
    node.metrics.add_histograms(lambda: coordination_histograms(store))
    transport = Transport(settings, FRONT_END_ROLE, node.rpc, node=brief.front_end)
    metadata = await start_remote_metadata(
        transport,
        stack,
        key_provider(settings, data),
        cell_format=CellFormat(),
        addresses=[metadata_address(Path(brief.sockets))],
    )
    node.metrics.add_source(metadata.registry.samples)
    node.metrics.add_source(metadata.queue_keys.samples)
    node.health.add_check(metadata.registry.why_not_ready)
    queues = metadata.queues
    tables = tables_of(queues)
    own = await _lead(brief, node, store, metadata, tables.journal_of, lifeline)
    router = route_to_brokers(
        *(transport, stack, store, tables.journal_of),
        account_of=queues.account_of,
        floor=metadata.registry.floor,
    )
    node.metrics.add_source(router.samples)
    stack.push_async_callback(lifeline.wait_for_others)
    broker = spread_over(NearBrokers(own, router, tables.journal_of), tables, queues)
    witnesses = _Links(brief, transport)
    stack.push_async_callback(witnesses.close)
    enforced = EnforcedFloor(witnesses)
    node.run("enforced-floor", enforced.ask_for_ever())
    others = FrontEndsBehind(store, lambda address: transport.connect(address, BROKER_ROLE))
    stack.push_async_callback(others.close)
    key_uses = start_key_uses(node, store, CellFormat())
    console = console_of_server(node, Path(brief.sockets))
    queue_metrics = AllLeaders(router.table, lambda address: transport.connect(address, BROKER_ROLE))
    stack.push_async_callback(queue_metrics.close)
    behind = Behind(
        *(store, metadata, broker, key_uses, enforced, console, others.wait),
        queue_metrics=queue_metrics,
        push_test=push_test_of(node, metadata),
    )
    recent = RecentLogs(metadata.find_queue)
    blocks = start_building(node, behind, recent.logs)
    await asyncio.to_thread(note_in_use, node.data)
    edge = None if brief.edge < 0 else socket.socket(fileno=brief.edge)
    served = await serve_sqs(
        node,
        behind,
        None,
        blocks=blocks,
        on_log_read=recent.note,
        shared=Shared(brief.front_end, edge),
        for_console=Path(brief.sockets) / SQS_SOCKET if brief.number == 0 else None,
    )
    row = PresenceRow(PUSHER_ROLE, brief.front_end, __version__, zone=settings.zone)
    presence = Presence(store, row, lease_ms=SHORT_LEASE_MS)
    owners = LivePushers(store, presence, keeps_presence=True)
    stack.push_async_callback(owners.close)
    start_engine(node, store, metadata, broker, tables, owners, usage=served.usage)


async def _lead(
    brief: WorkerBrief,
    node: Node,
    store: Coordination,
    metadata: MetadataService,
    journal_of: JournalOf,
    lifeline: Lifeline,
) -> OwnJournals:
    """Lead the journals of this worker, and let the others reach them."""
    settings, stack = node.settings, node.stack
    data = settings.data_directory.absolute()
    tasks = BrokerTasks(node.fail)
    links = _Links(brief, Transport(settings, BROKER_ROLE, node.rpc, node=brief.front_end))
    stack.push_async_callback(links.close)
    own = OwnJournals(
        journal_options(settings, data),
        brief.own_journals,
        store,
        journal_of=journal_of,
        on_stopped=node.fail,
        find_queue=QueueRows(store).find,
        elsewhere=(moves := MoveCalls(lambda number: own.get(number), links.to_leader, tasks)),
    )
    await own.start()
    stack.push_async_callback(own.close)
    if brief.is_first:
        await check_settled(data, store, own)
    show_journals(node, own, data)
    backups = BackupCalls(own, tasks)
    floor = AuthorizationFloor(store, lambda: server.connections, retry_max_s=RETRY_S)
    watch = QueueWatch(brief.front_end, own.all)
    server = RPCServer(
        {
            **CommandCalls(own.journals, check=floor.check).handlers,
            **floor.handlers,
            **moves.handlers,
            **backups.handlers,
            **QueueWatchCalls(watch, tasks).handlers,
            **WorkerCalls(node, own, lifeline, tasks).handlers,
            FOLLOWERS: _follows(brief.front_end, lambda: metadata.registry.floor.revision),
        },
        Hello(settings.cell, BROKER_ROLE, brief.front_end),
        limits=rpc_limits(settings),
        metrics=node.rpc,
        callers=CALLERS,
    )
    await floor.start()  # no command is carried out by who does not know it
    stack.push_async_callback(floor.close)
    await server.start(*brief.address)
    stack.push_async_callback(backups.close)
    stack.push_async_callback(tasks.close)
    stack.push_async_callback(server.drain, DRAIN_MS)
    names = [BROKER_NAME.format(number) for number in own.journals]
    registrations = [BrokerRegistration(name, settings.zone, str(brief.address)) for name in names]
    await store.transaction(
        [], [Put(registration_key(one.name), encode_registration(one)) for one in registrations]
    )
    return own


def _follows(front_end: str, revision: Callable[[], int]) -> Callable[[IncomingCall], None]:
    """Return what answers how far the front end of this process follows: it may never ask another one."""

    def answer(call: IncomingCall) -> None:
        call.reply(encode_call({front_end: revision()}))

    return answer


class _Links:
    """The connections of a worker to the others, in one of its roles; made when something is to be said."""

    def __init__(self, brief: WorkerBrief, transport: Transport) -> None:
        self._brief = brief
        self._transport = transport
        self._clients: dict[int, RPCClient] = {}

    def to_leader(self, journal_id: int) -> RPCClient | None:
        """See `MoveCalls`."""
        worker = worker_of(journal_id, self._brief.workers)
        return None if worker == self._brief.number else self._client(worker)

    def ask_some(self, method: str, deadline_ms: int, on_reply: Callable[[str], OnReply]) -> list[str]:
        """Ask all other workers; return their addresses. What this one says of itself is no news to it."""
        asked: list[str] = []
        for worker in range(self._brief.workers):
            if worker != self._brief.number:
                client = self._client(worker)
                asked.append(client.address[0])
                client.call(method, b"", deadline_ms, on_reply(client.address[0]))
        return asked

    def _client(self, worker: int) -> RPCClient:
        client = self._clients.get(worker)
        if client is None:
            address = worker_address(Path(self._brief.sockets), worker)
            client = self._clients[worker] = self._transport.connect(
                (address.host, address.port), BROKER_ROLE
            )
        return client

    async def close(self) -> None:
        """Close them."""
        await asyncio.gather(*(client.close() for client in self._clients.values()))
