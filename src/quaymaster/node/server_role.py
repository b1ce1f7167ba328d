"""A server: all roles in one process, which hand each other what they have without a network.

coordination (SQLite, etcd) ─▶ metadata ─▶ broker (recovers its journals) ─▶ declared queues ─▶ front end ─▶ client.json
and in the end the other way round: front end ─▶ broker (last snapshot) ─▶ metadata ─▶ coordination
"""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from pathlib import Path

from quaymaster import __version__
from quaymaster.broker.cell import queue_watch_calls
from quaymaster.broker.cell.broker_tasks import BrokerTasks
from quaymaster.broker.cell.queue_watch_calls import QueueWatchCalls
from quaymaster.broker.own_journals import OwnJournals, list_journals
from quaymaster.broker.queue_watch import QueueWatch
from quaymaster.broker.replica.clock import wall_ms
from quaymaster.coordination.interface import Coordination, StoreUnusable
from quaymaster.coordination.sign_in_links import SignInLinks
from quaymaster.coordination.store_witness import StoreWitness
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.coordination.timed import coordination_histograms
from quaymaster.core.values.formats import CellFormat
from quaymaster.frontend.admin.admin import make_admin
from quaymaster.frontend.assembly import spread_over, tables_of
from quaymaster.frontend.queue_journal import BrokerQueueJournal
from quaymaster.frontend.usage.act_chain import drop_acts
from quaymaster.metadata.queue_registry import QueueRegistry
from quaymaster.metadata.service import MetadataService
from quaymaster.metadata.store.rows import QueueRows
from quaymaster.monitoring.logs import log_event
from quaymaster.net.routing.queue_metrics_client import OneLeader
from quaymaster.net.rpc import RPCServer
from quaymaster.node.cell.membership import wait_while_starting
from quaymaster.node.cell.transport import BROKER_ROLE, rpc_limits
from quaymaster.node.children.console_child import choose_console_port, prepare_console
from quaymaster.node.consoles import console_of_server
from quaymaster.node.data.contradictions import is_to_settle
from quaymaster.node.data.settling import settle
from quaymaster.node.data.stores import JOURNALS_DIRECTORY, DataWitness, declaring, open_store
from quaymaster.node.edge.front_end_role import (
    Behind,
    reachable,
    serve_sqs,
    start_building,
    start_key_uses,
    usage_incarnations,
    write_client_file,
)
from quaymaster.node.edge.left_usage import ship_left_usage
from quaymaster.node.edge.sockets import (
    ADMIN_SOCKET,
    CONSOLE_SOCKET,
    SERVER_SOCKET,
    SQS_SOCKET,
    make_sockets,
    unix_address,
)
from quaymaster.node.from_settings import journal_options, key_provider, key_services, metadata_options
from quaymaster.node.journal_status import show_journals
from quaymaster.node.node import Node
from quaymaster.node.operations import ServerOperations
from quaymaster.node.push_role import start_engine
from quaymaster.node.push_tests import push_test_of
from quaymaster.protocol.rpc.frames import Hello
from quaymaster.push.owners import OnlyPusher
from quaymaster.settings import Address, Settings

log = logging.getLogger(__name__)


async def start_server(node: Node) -> None:
    """Start all that a server has."""
    bound = await choose_console_port(node)
    settings, stack, data, health = node.settings, node.stack, node.data, node.health
    takes_all = is_to_settle(data)
    store = await open_store(settings, data, on_stopped=node.fail, takes_any_store=takes_all)
    stack.push_async_callback(store.close)
    node.metrics.add_histograms(lambda: coordination_histograms(store))
    if not isinstance(store, SQLiteCoordination):
        wait_while_starting(node, store)
        await _watch_etcd(node, store)
    options = metadata_options(settings)
    journals = await list_journals(data / JOURNALS_DIRECTORY, store)
    registry = QueueRegistry(store, options, now_ms=wall_ms, journals=lambda: journals)
    metadata = MetadataService(
        registry,
        key_provider(settings, data),
        options,
        now_ms=wall_ms,
        key_services=key_services(settings),
    )
    queues = metadata.queues
    tables = tables_of(queues)
    own = OwnJournals(
        journal_options(settings, data),
        journals,
        store,
        journal_of=tables.journal_of,
        on_stopped=node.fail,
        find_queue=QueueRows(store).find,
        takes_any_journal=takes_all,
    )
    broker = spread_over(own, tables, queues)
    key_uses = start_key_uses(node, store, CellFormat())
    watch = QueueWatch(settings.node_name, own.all)
    queue_metrics = OneLeader(watch.ask)
    sockets = make_sockets(node, [CONSOLE_SOCKET, SERVER_SOCKET, ADMIN_SOCKET])
    consoles = console_of_server(node, sockets)
    push_test = push_test_of(node, metadata)
    admin = make_admin(
        settings,
        broker=broker,
        metadata=metadata,
        metrics=node.metrics,
        health=health,
        operations=ServerOperations(node, own, store.backup),
        incarnations=usage_incarnations(settings, store),
        key_uses=key_uses,
        links=SignInLinks(store, wall_ms),
        queue_metrics=queue_metrics,
        console=consoles,
        push_test=push_test,
    )
    node.serve_admin(admin)
    node.metrics.add_source(registry.samples)
    node.metrics.add_source(metadata.queue_keys.samples)
    health.add_notices(metadata.local_keys.notices)
    await metadata.start()
    stack.push_async_callback(metadata.close)
    health.add_check(registry.why_not_ready)
    await own.start()
    stack.push_async_callback(own.close)
    # Again, so that they end before what they ask does; a backup under way is given up.
    stack.push_async_callback(admin.stop)
    stack.push_async_callback(node.admin.drain, 1.0)
    show_journals(node, own, data)
    health.add_notices(registry.queues.settling.lost_attributes.notices)
    await _agree(node, store, registry, own)
    if settings.queues_file is not None:
        note = declaring(settings.queues_file, store)
        await metadata.load_queues_file(settings.queues_file, note=note)
    behind = Behind(
        *(store, metadata, broker, key_uses),
        console=consoles,
        queue_metrics=queue_metrics,
        push_test=push_test,
    )
    blocks = start_building(node, behind, registry.queues.active_logs)
    served = await serve_sqs(node, behind, admin, blocks=blocks, for_console=sockets / SQS_SOCKET)
    address = served.address
    start_engine(node, store, metadata, broker, tables, OnlyPusher(), usage=served.usage)
    ship_left_usage(node, behind, workers=0)
    await write_client_file(node, metadata.default_access_key, address)
    console = await prepare_console(node, sockets, address, has_workers=False, bound=bound)
    node.metrics.others = console.metrics
    node.metrics.console_url = console_url(settings, console.address)
    if console.address is not None:
        await tell_console(node, watch, sockets)
    node.greet = partial(greet, node, address, console.address)


async def tell_console(node: Node, watch: QueueWatch, sockets: Path) -> None:
    """Let the console of this server ask how the queues are."""
    settings = node.settings
    tasks = BrokerTasks(node.fail)
    node.stack.push_async_callback(tasks.close)
    server = RPCServer(
        QueueWatchCalls(watch, tasks).handlers,
        Hello(settings.cell, BROKER_ROLE, settings.node_name),
        metrics=node.rpc,
        callers=queue_watch_calls.CALLERS,
        limits=rpc_limits(settings),
    )
    await server.start(*unix_address(sockets / SERVER_SOCKET))
    node.stack.push_async_callback(server.close)


async def _agree(node: Node, store: Coordination, registry: QueueRegistry, own: OwnJournals) -> None:
    """Let metadata and journals tell the same of queues."""
    registry.attach_journal(BrokerQueueJournal(own))
    await settle(node.data, store, registry.queues, own)
    if not node.settings.usage:
        await drop_acts(store)
    await registry.reconcile()


async def _watch_etcd(node: Node, store: Coordination) -> None:
    """Make sure, now and as long as the server runs, that etcd was not restored from an older copy.

    Raises StoreUnusable when it was, and no operator decided to continue with it.
    """
    witness = StoreWitness(store, "server", DataWitness(node.data), keeps_data=True)
    await witness.look_at_start()
    if witness.problem is not None:
        raise StoreUnusable(witness.problem)
    witness.start(node.fail)
    node.stack.push_async_callback(witness.close)
    node.health.add_notices(lambda: [store.why_refused] if store.why_refused else [])


def greet(node: Node, address: Address, console: Address | None) -> None:
    """Say that a server serves, and how it is used. `console`: where its console is, None where it has none."""
    settings, data = node.settings, node.data
    log_event(
        log,
        logging.INFO,
        "server started",
        version=__version__,
        endpoint=f"http://{reachable(address)}",
        admin=f"http://{reachable(node.admin_address)}",
        console=console_url(settings, console) or "none",
        data=data,
        authentication=settings.authentication,
        pid=os.getpid(),
    )
    if settings.authentication == "open" and not settings.admin_address.is_loopback:
        log_event(log, logging.WARNING, "admin port is open to others", admin=settings.admin_listen)
    if sys.stdout.isatty():
        where = "" if data == Path("quaymaster-data").absolute() else f" --data {settings.data_directory}"
        print(  # the one thing a person at a terminal needs to know
            f"Quaymaster {__version__} serves SQS on http://{reachable(address)}\n"
            f'Point any AWS SDK at it:  eval "$(quaymaster env{where})"',
            flush=True,
        )
        if console is not None:
            print(f"Console:  {console_url(settings, console)}", flush=True)


def console_url(settings: Settings, address: Address | None) -> str:
    """Return the URL by which browsers reach the console; "" where there is none."""
    if address is None:
        return ""
    return settings.console_url or f"http://{reachable(address)}"
