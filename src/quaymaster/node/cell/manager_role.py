"""The in-cluster manager of a cell, put together from settings.

    coordination (etcd) ─▶ InClusterManager ─▶ brokers, by RPC
                                 ▲         └─▶ metadata nodes, by RPC: changes of partitions
    operators ──RPC on `manager_listen`

The caller that starts the process hands in the store, and the stack that ends everything in the opposite order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from quaymaster.coordination.interface import Coordination
from quaymaster.core.cell.cell import PlacementSettings
from quaymaster.managers.broker_link import rpc_links
from quaymaster.managers.in_cluster import InClusterManager
from quaymaster.managers.partition_manager import RPCQueueNodes
from quaymaster.managers.rpc_server import ManagerCalls
from quaymaster.monitoring.logs import log_event
from quaymaster.net.routing.metadata_client import MetadataClient
from quaymaster.node.cell.metadata_roles import link_metadata_nodes
from quaymaster.node.cell.transport import BROKER_ROLE, CONSOLE_ROLE, OPERATOR_ROLE, Transport
from quaymaster.protocol.rpc.manager_calls import CALLERS
from quaymaster.settings import Address, Settings

log = logging.getLogger(__name__)


def placement_settings(settings: Settings) -> PlacementSettings:
    """Return how patient and careful the manager is to be."""
    return PlacementSettings(
        replicas=settings.replicas,
        suspicion_ms=settings.suspicion_ms,
        replacement_grace_ms=settings.replacement_grace_s * 1000,
        clock_skew_max_ms=settings.broker_clock_skew_max_ms,
        moves_max=settings.moves_max,
        journals_per_broker=settings.journals_per_broker,
    )


async def start_manager(
    transport: Transport,
    stack: AsyncExitStack,
    store: Coordination,
    *,
    on_failure: Callable[[Exception], None],
    problems: Callable[[], tuple[str, ...]] = tuple,
) -> tuple[InClusterManager, Address]:
    """Start a manager, and return it with the address it listens on. The store need not be there yet.

    `problems` gives what its status tells besides what it finds itself.

    Raises:
        TransportSecurityError: others could reach the address without certificates, or those cannot be used.
        OSError: the address cannot be listened on.
    """
    settings = transport.settings
    security = transport.secure(settings.manager_listen_address)
    links = rpc_links(
        transport.hello,
        tls=None if security is None else security.client_context,
        check_peer=transport.check_peer(BROKER_ROLE),
        stats=transport.rpc.of("client", BROKER_ROLE),
    )
    name = transport.hello.node
    manager = InClusterManager(
        name,
        store,
        links,
        settings=placement_settings(settings),
        queue_nodes=queue_nodes(transport, stack) if settings.partition_changes == "auto" else None,
        on_failure=on_failure,
    )
    calls = ManagerCalls(manager, problems)
    address = await transport.listen(
        *(stack, settings.manager_listen_address, calls.handlers(), OPERATOR_ROLE, CONSOLE_ROLE), only=CALLERS
    )
    stack.push_async_callback(calls.close)
    manager.start()
    stack.push_async_callback(manager.close)
    log_event(log, logging.INFO, "manager listens", manager=name, address=str(address))
    return manager, address


def queue_nodes(transport: Transport, stack: AsyncExitStack) -> RPCQueueNodes:
    """Return the way to the cell's metadata nodes; connections are made when something is asked."""
    return RPCQueueNodes(MetadataClient(link_metadata_nodes(transport, stack)))
