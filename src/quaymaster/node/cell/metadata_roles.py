"""Metadata in a cell, put together: a metadata node with its RPC, and a front end's side of it.

    node        coordination (etcd) ─▶ MetadataNode ─▶ RPC on `metadata_listen`; queues are told to brokers
    front end   RPC to each of `metadata_nodes` ─▶ MetadataService, with the master keys of this host

The caller that starts a process hands in what the other roles need as well: the store, the way to the brokers, and the
stack that ends everything in the opposite order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from quaymaster.broker.replica.clock import wall_ms
from quaymaster.coordination.interface import Coordination
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.formats import CellFormat
from quaymaster.frontend.queue_journal import BrokerQueueJournal
from quaymaster.metadata.keys.key_providers import KeyProvider
from quaymaster.metadata.node import MetadataNode
from quaymaster.metadata.queues.declared_queues import note_nothing
from quaymaster.metadata.queues.placement import CellJournals
from quaymaster.metadata.remote.registry import RemoteRegistry
from quaymaster.metadata.remote.rows import RemoteLimits
from quaymaster.metadata.rpc_server import MetadataCalls
from quaymaster.metadata.service import MetadataService
from quaymaster.monitoring.logs import log_event
from quaymaster.net.routing.broker_client import BrokerClient, JournalOf
from quaymaster.net.routing.metadata_client import FullNodes, MetadataClient, MetadataLink
from quaymaster.node.cell.transport import FRONT_END_ROLE, MANAGER_ROLE, METADATA_ROLE, PUSH_ROLE, Transport
from quaymaster.node.from_settings import key_services, metadata_options
from quaymaster.settings import Address

START_WAIT_S = 30.0
START_RETRY_S = 0.25

log = logging.getLogger(__name__)


async def start_metadata_node(
    transport: Transport,
    stack: AsyncExitStack,
    store: Coordination,
    *,
    connect_brokers: Callable[[JournalOf], BrokerClient],
    cell_format: CellFormat | None = None,
    listen: Address | None = None,
    on_unusable: Callable[[Exception], None] = lambda error: None,
    wait_s: float = START_WAIT_S,
) -> tuple[MetadataNode, Address]:
    """Start a metadata node, and return it with the address it listens on: `listen`, else the one of the settings.

    `connect_brokers` gives the way to the brokers. New queues go to the journals of the cell. `on_unusable`: see
    `MetadataNode`.

    Raises:
        StoreUnusable: the store is damaged, another cell's, or holds what this program cannot read.
        TransportSecurityError: others could reach the address without certificates, or those cannot be used.
        NotNow: the store cannot be reached within `wait_s`.
        OSError: the address cannot be listened on.
    """
    settings = transport.settings
    listen = listen or settings.metadata_listen_address
    transport.secure(listen)
    journals = CellJournals(store)
    name = transport.hello.node
    node = MetadataNode(
        store,
        metadata_options(settings, cell_format),
        name=name,
        now_ms=wall_ms,
        monotonic_ms=lambda: time.monotonic() * 1000,
        journals=journals,
        on_unusable=on_unusable,
    )
    journal = BrokerQueueJournal(connect_brokers(node.queues.journal_of))
    await _patiently(store.verify, wait_s, "coordination")
    await _patiently(lambda: node.start(journal), wait_s, "coordination")
    stack.push_async_callback(node.close)
    journals.start()
    stack.push_async_callback(journals.close)
    calls = MetadataCalls(node)
    stack.push_async_callback(calls.close)
    address = await transport.listen(stack, listen, calls.handlers(), FRONT_END_ROLE, MANAGER_ROLE, PUSH_ROLE)
    log_event(log, logging.INFO, "metadata node started", node=name, address=str(address))
    return node, address


async def start_remote_metadata(
    transport: Transport,
    stack: AsyncExitStack,
    key_provider: KeyProvider,
    *,
    cell_format: CellFormat | None = None,
    addresses: Sequence[Address] | None = None,
    note: Callable[[], Awaitable[None]] = note_nothing,
    wait_s: float = START_WAIT_S,
) -> MetadataService:
    """Start what a front end of a cell knows of queues and keys, fed by the cell's metadata nodes.

    Those are at `addresses`; without them, where the settings say, which may then name declared queues as well. `note`
    is called before such queues are made or changed.

    Raises:
        KeysUnusable: this host lacks a master key.
        StoreUnusable: the nodes are of another account or region.
        TransportSecurityError: there are no certificates where they are needed, or they cannot be used.
        DeclaredQueuesError: the file of declared queues cannot be used.
        NotNow: no node can be reached within `wait_s`.
    """
    settings = transport.settings
    options = metadata_options(settings, cell_format)
    limits = RemoteLimits(
        rows_max=settings.metadata_rows_max,
        change_ms=settings.metadata_timeout_ms,
        staleness_ms=settings.metadata_staleness_ms,
    )
    name = transport.hello.node
    nodes_client = MetadataClient(link_metadata_nodes(transport, stack, addresses), zone=options.zone)
    registry = RemoteRegistry(nodes_client, options, limits, name=name)
    metadata = MetadataService(
        registry,
        key_provider,
        options,
        now_ms=wall_ms,
        name=name,
        key_services=key_services(settings),
    )
    await _patiently(metadata.start, wait_s, "a metadata node")
    stack.push_async_callback(metadata.close)
    if settings.queues_file is not None and addresses is None:
        file = settings.queues_file
        await _patiently(
            lambda: metadata.load_queues_file(file, note=note), wait_s, "journals for the declared queues"
        )
    return metadata


def link_metadata_nodes(
    transport: Transport, stack: AsyncExitStack, addresses: Sequence[Address] | None = None
) -> FullNodes:
    """Return the way to the metadata nodes at `addresses`, else to those of the settings.

    Connections are made when something is asked.

    Raises:
        TransportSecurityError: there are no certificates where they are needed, or they cannot be used.
    """
    nodes = []
    for address in transport.settings.metadata_node_list if addresses is None else addresses:
        transport.secure(address)
        client = transport.connect((address.host, address.port), METADATA_ROLE)
        stack.push_async_callback(client.close)
        nodes.append(MetadataLink(str(address), client))
    return FullNodes(nodes)


async def _patiently(start: Callable[[], Awaitable[object]], wait_s: float, missing: str) -> None:
    """Start something as soon as what it needs is there: the roles of a cell may be started in any order."""
    deadline_s = time.monotonic() + wait_s
    is_told = False
    while True:
        try:
            await start()
            return
        except NotNow as error:
            if time.monotonic() >= deadline_s:
                raise
            if not is_told:
                log_event(log, logging.WARNING, f"waiting for {missing}", reason=str(error))
                is_told = True
        await asyncio.sleep(START_RETRY_S)
