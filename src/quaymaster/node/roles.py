"""What a process is for: `serve` has all roles, `run ROLE` one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final

from quaymaster.broker.cell.broker_service import BrokerService, BrokerServiceOptions
from quaymaster.broker.replica.clock import wall_ms
from quaymaster.coordination.interface import StoreUnusable
from quaymaster.coordination.sign_in_links import SignInLinks
from quaymaster.core.values.errors import NotNow
from quaymaster.frontend.admin.admin import make_admin
from quaymaster.frontend.assembly import spread_over, tables_of
from quaymaster.frontend.logs.opening_pool import usable_cores
from quaymaster.frontend.logs.recent_logs import RecentLogs
from quaymaster.metadata.service import MetadataService
from quaymaster.metadata.store.rows import QueueRows
from quaymaster.net.routing.enforced_floor import EnforcedFloor
from quaymaster.net.routing.queue_metrics_client import AllLeaders
from quaymaster.node.broker_metrics import (
    broker_histograms,
    held_expiry,
    journal_histograms,
    journal_samples,
    replica_samples,
    unlisted_partitions,
)
from quaymaster.node.cell.broker_routing import route_to_brokers
from quaymaster.node.cell.live_processes import live_processes
from quaymaster.node.cell.manager_role import start_manager
from quaymaster.node.cell.membership import Membership, join_cell, look_again
from quaymaster.node.cell.metadata_roles import start_metadata_node, start_remote_metadata
from quaymaster.node.cell.transport import (
    BROKER_ROLE,
    CONSOLE_ROLE,
    FRONT_END_ROLE,
    MANAGER_ROLE,
    METADATA_ROLE,
    PUSH_ROLE,
    Transport,
    rpc_limits,
)
from quaymaster.node.consoles import consoles_of_cell
from quaymaster.node.data.stores import declaring
from quaymaster.node.edge.front_end_role import (
    Behind,
    record_pushes,
    serve_sqs,
    start_building,
    start_key_uses,
    usage_incarnations,
    write_client_file,
)
from quaymaster.node.edge.front_ends_behind import FrontEndsBehind
from quaymaster.node.from_settings import journal_options, key_provider
from quaymaster.node.node import Node, Role, run_node
from quaymaster.node.operations import FrontEndOperations
from quaymaster.node.push_role import start_engine
from quaymaster.node.push_tests import push_test_of
from quaymaster.node.server_role import start_server
from quaymaster.node.workers.parent_role import start_with_workers
from quaymaster.push.owners import LivePushers
from quaymaster.settings import Settings

StartRole = Callable[[Node, Membership], Coroutine[Any, Any, None]]


async def run_role(settings: Settings, name: str) -> int:
    """Run a process until SIGTERM or SIGINT, and return its exit code. `name` is one of ROLES, or SERVER."""
    return await run_node(settings, ROLES[name])


async def _start_in_cell(start: StartRole, node: Node) -> None:
    cell = await join_cell(node)
    await start(node, cell)
    await look_again(node, cell)


async def _start_broker(node: Node, cell: Membership) -> None:
    settings = node.settings
    listen = settings.broker_listen_address
    transport = Transport(settings, BROKER_ROLE, node.rpc)
    service = BrokerService(
        BrokerServiceOptions(
            settings.node_name,
            settings.zone,
            settings.cell,
            listen.host,
            listen.port,
            settings.broker_advertise or f"{listen.host}:{listen.port}",
            replace(journal_options(settings, node.data), cell_format=cell.cell_format),
            security=transport.secure(listen),
            rpc=node.rpc,
            limits=rpc_limits(settings),
        ),
        cell.store,
        on_stopped=node.fail,
        find_queue=QueueRows(cell.store).find,
    )
    await service.start()
    node.stack.push_async_callback(service.close)
    broker = service.broker
    node.metrics.add_source(lambda: journal_samples(list(broker.journals.values()), node.data))
    node.metrics.add_source(lambda: replica_samples(broker))
    node.metrics.add_histograms(lambda: journal_histograms(broker.journals.values()))
    node.metrics.add_histograms(lambda: broker_histograms(broker))
    node.health.add_check(service.why_not_ready)
    node.health.add_notices(
        lambda: held_expiry({number: journal.host.clock for number, journal in broker.journals.items()})
    )
    node.health.add_notices(
        lambda: unlisted_partitions(
            {number: journal.host.replica.queues for number, journal in broker.journals.items()}
        )
    )


async def _start_metadata(node: Node, cell: Membership) -> None:
    transport = Transport(node.settings, METADATA_ROLE, node.rpc)
    metadata, _ = await start_metadata_node(
        transport,
        node.stack,
        cell.store,
        connect_brokers=lambda journal_of: route_to_brokers(
            transport, node.stack, cell.store, journal_of, cell.cell_format
        ),
        cell_format=cell.cell_format,
        on_unusable=node.fail,
    )
    node.metrics.add_source(metadata.samples)
    node.metrics.add_histograms(metadata.histograms)
    node.health.add_check(metadata.why_not_ready)
    node.health.add_notices(metadata.queues.settling.lost_attributes.notices)


async def _start_manager(node: Node, cell: Membership) -> None:
    witness = cell.witness
    manager, _ = await start_manager(
        Transport(node.settings, MANAGER_ROLE, node.rpc),
        node.stack,
        cell.store,
        on_failure=node.fail,
        problems=lambda: (witness.problem,) if witness.problem else (),
    )
    node.metrics.add_source(manager.samples)
    node.metrics.add_histograms(manager.histograms)
    node.health.add_notices(manager.clock_notices)


async def _start_front_end(node: Node, cell: Membership) -> None:
    settings, stack = node.settings, node.stack
    transport = Transport(settings, FRONT_END_ROLE, node.rpc)
    metadata = await _know_metadata(node, cell, transport)
    node.metrics.add_source(metadata.registry.samples)
    node.metrics.add_source(metadata.queue_keys.samples)
    node.health.add_notices(metadata.local_keys.notices)
    node.health.add_check(metadata.registry.why_not_ready)
    queues = metadata.queues
    tables = tables_of(queues)
    router = route_to_brokers(
        transport,
        stack,
        cell.store,
        tables.journal_of,
        cell.cell_format,
        account_of=queues.account_of,
        floor=metadata.registry.floor,
    )
    node.metrics.add_source(router.samples)
    broker = spread_over(router, tables, queues)
    enforced = EnforcedFloor(router)
    node.run("enforced-floor", enforced.ask_for_ever())
    behind_front_ends = FrontEndsBehind(cell.store, lambda address: transport.connect(address, BROKER_ROLE))
    stack.push_async_callback(behind_front_ends.close)
    key_uses = start_key_uses(node, cell.store, cell.cell_format)
    queue_metrics = AllLeaders(router.table, lambda address: transport.connect(address, BROKER_ROLE))
    stack.push_async_callback(queue_metrics.close)
    consoles = consoles_of_cell(node, transport, cell.store)
    push_test = push_test_of(node, metadata, live_processes=live_processes(node, cell.store))
    admin = make_admin(
        settings,
        broker=broker,
        metadata=metadata,
        metrics=node.metrics,
        health=node.health,
        operations=FrontEndOperations(node),
        wait_for_front_ends=behind_front_ends.wait,
        incarnations=usage_incarnations(settings, cell.store),
        enforced=enforced,
        key_uses=key_uses,
        queue_metrics=queue_metrics,
        links=SignInLinks(cell.store, wall_ms),
        console=consoles,
        push_test=push_test,
    )
    node.serve_admin(admin)
    recent = RecentLogs(metadata.find_queue)
    behind = Behind(
        *(cell.store, metadata, broker, key_uses, enforced, consoles, behind_front_ends.wait),
        queue_metrics=queue_metrics,
        push_test=push_test,
    )
    blocks = start_building(node, behind, recent.logs)
    address = (await serve_sqs(node, behind, admin, blocks=blocks, on_log_read=recent.note)).address
    await write_client_file(node, metadata.default_access_key, address)


async def _start_push(node: Node, cell: Membership) -> None:
    transport = Transport(node.settings, PUSH_ROLE, node.rpc)
    metadata = await _know_metadata(node, cell, transport)
    node.metrics.add_source(metadata.registry.samples)
    node.health.add_notices(metadata.local_keys.notices)
    node.health.add_check(metadata.registry.why_not_ready)
    queues = metadata.queues
    tables = tables_of(queues)
    router = route_to_brokers(
        *(transport, node.stack, cell.store, tables.journal_of, cell.cell_format),
        account_of=queues.account_of,
    )
    node.metrics.add_source(router.samples)
    owners = LivePushers(cell.store, cell.presence)
    node.stack.push_async_callback(owners.close)
    broker = spread_over(router, tables, queues)
    start_engine(
        *(node, cell.store, metadata, broker, tables, owners),
        live_processes=live_processes(node, cell.store),
        usage=await record_pushes(node, cell.store, broker, metadata),
    )


async def _know_metadata(node: Node, cell: Membership, transport: Transport) -> MetadataService:
    """Return what the cell's metadata nodes tell, once they do."""
    keys = key_provider(node.settings, node.data)
    while True:
        try:
            return await start_remote_metadata(
                transport,
                node.stack,
                keys,
                cell_format=cell.cell_format,
                note=declaring(node.settings.queues_file, cell.store),
            )
        except NotNow:
            if cell.witness.problem is None:
                raise
            await cell.witness.wait_until_accepted()  # metadata nodes wait for the same


async def _start_console(node: Node, cell: Membership) -> None:
    from quaymaster.node.console.role import start_console  # it takes long, and other processes have none

    await start_console(node, cell)


async def _start_server(node: Node) -> None:
    count = node.settings.worker_count(usable_cores())
    if count > 1 and node.settings.coordination != "sqlite":
        raise StoreUnusable(
            f'workers is {node.settings.workers}, and coordination is "{node.settings.coordination}": only a server '
            'with a store of its own has workers. Set coordination = "sqlite", or run a cell on this machine'
        )
    await (start_server(node) if count == 1 else start_with_workers(node, count))


SERVER: Final = "server"
CELL_ROLES: Final = {
    BROKER_ROLE: _start_broker,
    METADATA_ROLE: _start_metadata,
    MANAGER_ROLE: _start_manager,
    FRONT_END_ROLE: _start_front_end,
    CONSOLE_ROLE: _start_console,
    PUSH_ROLE: _start_push,
}
ROLES: Final = {
    SERVER: Role(SERVER, _start_server, has_all=True, has_clients=True),
    **{
        name: Role(name, partial(_start_in_cell, start), has_clients=name == FRONT_END_ROLE)
        for name, start in CELL_ROLES.items()
    },
}
