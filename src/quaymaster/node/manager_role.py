"""The in-cluster manager of a cell, put together from settings.

    coordination (etcd) ─▶ InClusterManager ─▶ brokers, by RPC
                                 ▲
    operators ──RPC on `manager_listen`

Whoever starts the process hands in the store, the metrics, and the stack that ends everything in the opposite order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from quaymaster.coordination.interface import Coordination
from quaymaster.core.cell.cell import PlacementSettings
from quaymaster.managers.broker_link import rpc_links
from quaymaster.managers.in_cluster import InClusterManager
from quaymaster.managers.rpc_server import ManagerCalls
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.metrics import Metrics
from quaymaster.net.rpc import RPCMetrics, RPCServer
from quaymaster.net.tls import security_for
from quaymaster.node.metadata_roles import hello_of
from quaymaster.settings import Address, Settings

MANAGER_ROLE = "manager"
BROKER_ROLE = "broker"
OPERATOR_ROLE = "operator"
DRAIN_MS = 1_000

log = logging.getLogger(__name__)


def placement_settings(settings: Settings) -> PlacementSettings:
    """Return how patient and careful the manager is to be."""
    return PlacementSettings(
        replicas=settings.replicas,
        suspicion_ms=settings.suspicion_ms,
        replacement_grace_ms=settings.replacement_grace_s * 1000,
        clock_skew_max_ms=settings.broker_clock_skew_max_ms,
        moves_max=settings.moves_max,
    )


async def start_manager(
    settings: Settings,
    stack: AsyncExitStack,
    store: Coordination,
    metrics: Metrics,
    *,
    on_failure: Callable[[Exception], None],
    rpc: RPCMetrics | None = None,
    problems: Callable[[], tuple[str, ...]] = tuple,
) -> tuple[InClusterManager, Address]:
    """Start a manager, and return it with the address it listens on. The store need not be there yet.

    `problems` gives what its status tells besides what it finds itself.

    Raises:
        TransportSecurityError: others could reach the address without certificates, or those cannot be used.
        OSError: the address cannot be listened on.
    """
    listen = settings.manager_listen_address
    security = security_for(listen, settings.tls_directory, force_plaintext=settings.force_plaintext)
    hello = hello_of(settings, MANAGER_ROLE)
    rpc = rpc or RPCMetrics()
    stats = rpc.of("client", BROKER_ROLE)
    if security is None:
        links = rpc_links(hello, stats=stats)
    else:
        security.require_own(hello)
        links = rpc_links(
            hello, tls=security.client_context, check_peer=security.check_peer(BROKER_ROLE), stats=stats
        )
    manager = InClusterManager(
        hello.node, store, links, settings=placement_settings(settings), on_failure=on_failure
    )
    calls = ManagerCalls(manager, problems)
    server = RPCServer(
        calls.handlers(),
        hello,
        check_peer=None if security is None else security.check_peer(OPERATOR_ROLE),
        metrics=rpc,
    )
    host, port = await server.start(
        listen.host, listen.port, tls=None if security is None else security.server_context()
    )
    stack.push_async_callback(server.drain, DRAIN_MS)
    stack.push_async_callback(calls.close)
    manager.start()
    stack.push_async_callback(manager.close)
    metrics.add_source(manager.samples)
    log_event(log, logging.INFO, "manager listens", manager=hello.node, address=f"{host}:{port}")
    return manager, Address(host, port)
