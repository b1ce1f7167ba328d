"""A server with workers: this process has the data directory, its store, metadata and the admin port; they serve.

store ─▶ metadata node, for the workers ─▶ admin API ─▶ workers, with their journals ─▶ declared queues ─▶ client.json

A worker leads the journals whose number leaves its own as the rest when it is divided by the number of workers. There
are as many journals as there ever were workers; so their number may change at each start, and nothing moves.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from quaymaster.broker.copies.backup import ServerCut, backup
from quaymaster.broker.own_journals import OwnJournals, list_journals
from quaymaster.broker.replica.clock import wall_ms
from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.sign_in_links import SignInLinks
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.coordination.timed import coordination_histograms
from quaymaster.core.values.formats import CellFormat
from quaymaster.frontend.admin.admin import make_admin
from quaymaster.frontend.assembly import spread_over, tables_of
from quaymaster.frontend.queue_journal import BrokerQueueJournal
from quaymaster.frontend.usage.act_chain import drop_acts
from quaymaster.metadata.queue_registry import QueueRegistry
from quaymaster.metadata.store.rows import QueueRows
from quaymaster.net.listener import bind_all
from quaymaster.net.routing.queue_metrics_client import AllLeaders
from quaymaster.net.rpc import RPCClient
from quaymaster.node.cell.broker_routing import route_to_brokers
from quaymaster.node.cell.metadata_roles import start_metadata_node, start_remote_metadata
from quaymaster.node.cell.transport import (
    BROKER_ROLE,
    FRONT_END_ROLE,
    METADATA_ROLE,
    OPERATOR_ROLE,
    Transport,
)
from quaymaster.node.children.console_child import choose_console_port, prepare_console
from quaymaster.node.consoles import console_of_server
from quaymaster.node.data.contradictions import is_to_settle
from quaymaster.node.data.settling import settle
from quaymaster.node.data.stores import JOURNALS_DIRECTORY, declaring, open_store
from quaymaster.node.edge.edge_listener import listen_for_workers
from quaymaster.node.edge.front_end_role import (
    Behind,
    record_operators,
    start_key_uses,
    usage_incarnations,
    write_client_file,
)
from quaymaster.node.edge.front_ends_behind import FrontEndsBehind
from quaymaster.node.edge.left_usage import ship_left_usage, worker_name
from quaymaster.node.edge.sockets import CONSOLE_SOCKET, make_sockets
from quaymaster.node.from_settings import journal_options, key_provider, metadata_options
from quaymaster.node.journal_status import add_up_journals
from quaymaster.node.node import Node, cannot_listen
from quaymaster.node.operations import show_pauses
from quaymaster.node.push_tests import push_test_of
from quaymaster.node.server_role import console_url, greet
from quaymaster.node.workers.brief import WorkerBrief, metadata_address, settings_for_worker, worker_of
from quaymaster.node.workers.crew import Crew
from quaymaster.node.workers.cuts import WorkerJournalCut
from quaymaster.node.workers.worker_role import STORE_POLL_MS
from quaymaster.settings import Address, Settings


async def start_with_workers(node: Node, count: int) -> None:
    """Start all that a server has, with so many workers."""
    bound = await choose_console_port(node)
    settings, stack, data, health = node.settings, node.stack, node.data, node.health
    takes_all = is_to_settle(data)
    store = await open_store(settings, data, on_stopped=node.fail, poll_ms=STORE_POLL_MS)
    assert isinstance(store, SQLiteCoordination), "the settings were checked"
    stack.push_async_callback(store.close)
    node.metrics.add_histograms(lambda: coordination_histograms(store))
    journals = sorted({*await list_journals(data / JOURNALS_DIRECTORY, store), *range(count)})
    if takes_all:
        await _settle(node, store, journals)
    if not settings.usage:
        await drop_acts(store)
    sockets = make_sockets(node, [f"worker-{count - 1}.sock", "metadata.sock", CONSOLE_SOCKET])
    own_settings = settings.model_copy(update={"tls_directory": None})
    transport = partial(Transport, own_settings, rpc=node.rpc)
    metadata_node, _ = await start_metadata_node(
        transport(METADATA_ROLE),
        stack,
        store,
        connect_brokers=lambda journal_of: route_to_brokers(
            transport(METADATA_ROLE), stack, store, journal_of, CellFormat()
        ),
        cell_format=CellFormat(),
        listen=metadata_address(sockets),
        on_unusable=node.fail,
    )
    node.metrics.add_source(metadata_node.samples)
    node.metrics.add_histograms(metadata_node.histograms)
    health.add_check(metadata_node.why_not_ready)
    health.add_notices(metadata_node.queues.settling.lost_attributes.notices)
    asking = transport(FRONT_END_ROLE)
    metadata = await start_remote_metadata(
        asking,
        stack,
        key_provider(settings, data),
        cell_format=CellFormat(),
        addresses=[metadata_address(sockets)],
    )
    health.add_notices(metadata.local_keys.notices)
    queues = metadata.queues
    tables = tables_of(queues)
    router = route_to_brokers(
        *(asking, stack, store, tables.journal_of),
        account_of=queues.account_of,
        floor=metadata.registry.floor,
    )
    broker = spread_over(router, tables, queues)
    key_uses = start_key_uses(node, store, CellFormat())
    behind_front_ends = FrontEndsBehind(store, lambda address: asking.connect(address, BROKER_ROLE))
    stack.push_async_callback(behind_front_ends.close)
    listen = await _reserve(node, settings.listen_address, "listen")
    if isinstance(settings.edge_place, Address):
        await _reserve(node, settings.edge_place, "edge_listen")
    edge = listen_for_workers(node)
    operating = transport(OPERATOR_ROLE)

    def connect(brief: WorkerBrief) -> RPCClient:
        return operating.connect((brief.address.host, brief.address.port), BROKER_ROLE)

    briefs = [
        _brief(settings, number, count, journals, sockets, listen.port, edge) for number in range(count)
    ]
    crew = Crew(briefs, connect, pass_fds=() if edge is None else (edge.fileno(),))
    queue_metrics = AllLeaders(router.table, lambda address: asking.connect(address, BROKER_ROLE))
    stack.push_async_callback(queue_metrics.close)
    admin = make_admin(
        settings,
        broker=broker,
        metadata=metadata,
        metrics=node.metrics,
        health=health,
        operations=_Operations(node, crew, journals, store),
        wait_for_front_ends=behind_front_ends.wait,
        incarnations=usage_incarnations(settings, store),
        key_uses=key_uses,
        queue_metrics=queue_metrics,
        links=SignInLinks(store, wall_ms),
        console=console_of_server(node, sockets),
        push_test=push_test_of(node, metadata),
    )
    node.serve_admin(admin)
    health.add_check(crew.why_not_ready)
    health.add_room_check(crew.why_no_clients)
    health.add_notices(crew.notices)

    async def end() -> None:
        await crew.end(settings.drain_grace_s, hurry=node.hurried.is_set())

    stack.push_async_callback(end)
    await crew.start()
    node.on_notice.append(crew.drain)
    if settings.queues_file is not None:
        await metadata.load_queues_file(settings.queues_file, note=declaring(settings.queues_file, store))
    stack.push_async_callback(node.admin.drain, 1.0)
    behind = Behind(store, metadata, broker, key_uses)
    await record_operators(node, behind, admin, listen)
    ship_left_usage(node, behind, count)
    await write_client_file(node, metadata.default_access_key, listen)
    console = await prepare_console(node, sockets, listen, has_workers=True, bound=bound)

    async def metrics_of_others() -> Mapping[str, bytes]:
        return {**await crew.metrics(), **await console.metrics()}

    node.metrics.others = metrics_of_others
    node.metrics.console_url = console_url(settings, console.address)
    node.greet = partial(greet, node, listen, console.address)


async def _settle(node: Node, store: Coordination, journals: list[int]) -> None:
    """Let journals and metadata of a directory that was restored tell the same, before anybody serves from them."""
    settings, data = node.settings, node.data
    registry = QueueRegistry(store, metadata_options(settings), now_ms=wall_ms, journals=lambda: journals)
    own = OwnJournals(
        journal_options(settings, data),
        journals,
        store,
        journal_of=registry.queues.journal_of,
        on_stopped=node.fail,
        find_queue=QueueRows(store).find,
        takes_any_journal=True,
    )
    await registry.start()
    try:
        await own.start()
        try:
            registry.attach_journal(BrokerQueueJournal(own))
            await settle(data, store, registry.queues, own)
            await registry.reconcile()
        finally:
            await own.close()
    finally:
        await registry.close()


async def _reserve(node: Node, wanted: Address, setting: str) -> Address:
    """Bind an address for the workers, as long as this process runs; return it, with its port.

    Workers come and go; no other process gets the port meanwhile. Raises OSError when another one has it.
    """
    try:
        # Without sharing first: another server with workers would share its port with these.
        for probe in await bind_all(wanted.host, wanted.port, shares_port=False):
            probe.close()
        bound = await bind_all(wanted.host, wanted.port, shares_port=True)
    except OSError as error:
        raise cannot_listen(wanted, setting, error) from error
    for reserved in bound:
        node.stack.callback(reserved.close)
    return Address(bound[0].getsockname()[0], bound[0].getsockname()[1])


def _brief(
    settings: Settings,
    number: int,
    count: int,
    journals: list[int],
    sockets: Path,
    port: int,
    edge: socket.socket | None,
) -> WorkerBrief:
    return WorkerBrief(
        number=number,
        workers=count,
        journals=journals,
        sockets=str(sockets),
        front_end=worker_name(settings.node, number),
        is_first=True,
        edge=-1 if edge is None else edge.fileno(),
        settings=settings_for_worker(settings, number, count, port),
    )


class _Operations:
    """What the admin API can have done by a server with workers: `Operations`."""

    def __init__(self, node: Node, crew: Crew, journals: list[int], store: SQLiteCoordination) -> None:
        self._node = node
        self._crew = crew
        self._journals = journals
        self._store = store

    async def status(self) -> Mapping[str, Any]:
        workers = [{"worker": one.number, "pid": one.child.pid} for one in self._crew.workers]
        return {**add_up_journals(await self._crew.status()), "workers": workers}

    async def pauses(self) -> list[Mapping[str, float]]:
        return [*show_pauses(self._node.watch), *self._crew.pauses()]

    async def accept_clock(self) -> None:
        await self._crew.accept_clock()

    async def backup(self, destination: Path, progress: Callable[[int, int], None]) -> Mapping[str, Any]:
        workers = self._crew.workers
        journals = {
            number: WorkerJournalCut(workers[worker_of(number, len(workers))].client, number)
            for number in self._journals
        }
        cut = ServerCut(journals, self._store.backup, self._node.data)
        made = await backup(cut, destination, progress)
        return {**made, "coordination": self._node.settings.coordination}
