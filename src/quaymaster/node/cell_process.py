"""One process of a cell, put together: what all of them have, and what a broker, a front end, ... has besides.

lock data directory ─▶ admin port ─▶ coordination (etcd) ─▶ member of the cell ─▶ the role ─▶ ready
SIGTERM ─▶ not ready ─▶ the role, and so on, the other way round ─▶ 0

The admin port is there first: a long recovery can be watched, and is alive though not ready.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from quaymaster import __version__
from quaymaster.broker.cell.broker_name import NameTaken
from quaymaster.broker.cell.cell_broker import CellBroker, CellBrokerOptions
from quaymaster.broker.storage.disk import DirectoryInUse
from quaymaster.broker.storage.journal_state import JournalCorrupt
from quaymaster.broker.storage.snapshots import SnapshotsDamaged
from quaymaster.coordination.cell_format import CellMember, ProcessRegistration
from quaymaster.coordination.interface import Coordination, StoreUnusable
from quaymaster.coordination.store_witness import StoreWitness
from quaymaster.core.cell.store_history import Verdict
from quaymaster.core.values.errors import NotNow, UnsupportedOperation
from quaymaster.core.values.formats import FORMAT_MIN, CellFormat, UnknownFormat
from quaymaster.frontend.admin.admin import make_admin
from quaymaster.frontend.logs.recent_logs import RecentLogs
from quaymaster.frontend.usage.usage_spool import SpoolUnusable
from quaymaster.metadata.keys.master_keys import KeysUnusable
from quaymaster.metadata.queues.declared_queues import DeclaredQueuesError
from quaymaster.metadata.store.rows import QueueRows
from quaymaster.monitoring.health import Health
from quaymaster.monitoring.logs import configure_logs, log_event, log_failure
from quaymaster.monitoring.loop_watch import LoopWatch
from quaymaster.monitoring.metrics import Metrics
from quaymaster.monitoring.supervision import listen_for_failures
from quaymaster.net.http.probe_port import ProbePort
from quaymaster.net.http.server import HTTPServer, one_by_one
from quaymaster.net.rpc import RPCMetrics
from quaymaster.net.tls import TransportSecurityError, security_for
from quaymaster.node.broker_metrics import cell_broker_histograms, cell_broker_samples, held_expiry
from quaymaster.node.broker_routing import route_to_brokers
from quaymaster.node.compose import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_UNUSABLE,
    journal_options,
    key_provider,
    listen_on,
    look_at_garbage,
    serve_sqs,
    show_pauses,
    start_sealing,
    usage_incarnations,
    wall_ms,
    write_client_file,
)
from quaymaster.node.data_directory import DataDirectoryUnusable, prepare_data_directory, raise_format_of
from quaymaster.node.file_limit import admin_limits
from quaymaster.node.garbage import GarbageCollection
from quaymaster.node.manager_role import start_manager
from quaymaster.node.metadata_roles import (
    FRONT_END_ROLE,
    METADATA_ROLE,
    hello_of,
    start_metadata_node,
    start_remote_metadata,
)
from quaymaster.node.stores import DataWitness, declaring, open_etcd
from quaymaster.settings import Address, Settings

Role = Literal["broker", "metadata", "manager", "frontend"]

log = logging.getLogger(__name__)


@dataclass
class CellProcess:
    """What every process of a cell has. `stack` ends things in the opposite order."""

    settings: Settings
    data: Path
    stack: AsyncExitStack
    store: Coordination
    health: Health
    metrics: Metrics
    witness: StoreWitness
    watch: LoopWatch
    admin: HTTPServer
    admin_address: Address
    rpc: RPCMetrics = field(default_factory=RPCMetrics)
    cell_format: CellFormat = field(default_factory=CellFormat)
    """What is written in the cell; known once the role starts."""
    has_started: bool = False
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Exception | None = None

    @property
    def node(self) -> str:
        """This process's name in its cell."""
        return self.settings.node or socket.gethostname()

    def fail(self, error: Exception) -> None:
        """Stop the process: it cannot go on."""
        self.failure = error
        self.stopped.set()


StartRole = Callable[[CellProcess], Coroutine[Any, Any, None]]


async def run_role(settings: Settings, role: Role) -> int:
    """Run a process of a cell until SIGTERM or SIGINT; return its exit code."""
    configure_logs(settings.log_level, settings.log_format)
    try:
        async with AsyncExitStack() as stack:
            return await _run(settings, role, stack)
    except (
        DataDirectoryUnusable,
        DirectoryInUse,
        JournalCorrupt,
        SnapshotsDamaged,
        UnknownFormat,
        StoreUnusable,
        KeysUnusable,
        TransportSecurityError,
        DeclaredQueuesError,
        NameTaken,
        SpoolUnusable,
        NotNow,
        OSError,
    ) as error:
        log_event(log, logging.ERROR, "process not started", role=role, reason=str(error))
        return EXIT_UNUSABLE


async def _run(settings: Settings, role: Role, stack: AsyncExitStack) -> int:
    loop = asyncio.get_running_loop()
    if settings.coordination != "etcd":
        raise StoreUnusable('the processes of a cell agree through etcd; set coordination = "etcd"')
    stopped = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopped.set)
    garbage = GarbageCollection()
    garbage.pause()
    stack.callback(garbage.stop)
    data = settings.data_directory.absolute()
    lock = await loop.run_in_executor(None, prepare_data_directory, data, FORMAT_MIN)
    stack.callback(lock.release)
    health, metrics = Health(), Metrics(__version__)
    watch = LoopWatch(settings.loop_watch_ms / 1000)
    metrics.event_loop_pauses = watch.pauses.durations
    metrics.add_source(watch.samples)
    if settings.loop_watch_ms:
        watch.start()
    stack.callback(watch.stop)
    probes = ProbePort(metrics, health)
    stack.push_async_callback(probes.stop)
    admin = HTTPServer(one_by_one(probes.handle), admin_limits(settings), name="admin", admit=probes.admit)
    admin_address = await listen_on(admin, settings.admin_address, "admin")
    stack.push_async_callback(admin.drain, 1.0)
    store = open_etcd(settings)
    stack.push_async_callback(store.close)
    has_memory = role in ("broker", "metadata")
    witness = StoreWitness(
        store,
        f"{role} {settings.node or socket.gethostname()}",
        DataWitness(data) if has_memory else None,
        keeps_data=role == "broker",
    )
    stack.push_async_callback(witness.close)
    process = CellProcess(
        settings, data, stack, store, health, metrics, witness, watch, admin, admin_address, stopped=stopped
    )
    listen_for_failures(loop, process.fail)
    metrics.add_source(process.rpc.samples)
    metrics.add_histograms(process.rpc.histograms)
    starting = loop.create_task(_start(process, role))
    ended = loop.create_task(stopped.wait())
    await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return _exit_code(process)
    starting.result()
    garbage.resume()
    looking = loop.create_task(look_at_garbage(garbage))
    stack.callback(looking.cancel)
    health.set_state("serving")
    log_event(log, logging.INFO, "process started", role=role, node=process.node, data=data)
    await ended
    health.set_state("draining")
    return _exit_code(process)


def _exit_code(process: CellProcess) -> int:
    """Return how the process ended; why, if it failed, is said in the log."""
    if process.failure is None:
        return EXIT_OK
    log_failure(log, "process stopped", process.failure)
    return EXIT_FAILED


async def _start(process: CellProcess, role: Role) -> None:
    _watch_store(process, role)
    if role in ("metadata", "frontend"):
        await process.witness.wait_until_accepted()
    else:
        await process.witness.look_at_start()
    process.witness.start(lambda problem: _on_store_problem(process, role, problem))
    registration = ProcessRegistration(role, process.node, __version__)
    member = CellMember(
        process.store,
        registration,
        on_unreadable=process.fail,
        before_raise=lambda number: raise_format_of(process.data, number),
    )
    process.stack.push_async_callback(member.close)
    await member.join()
    process.cell_format = member.cell_format
    await _ROLES[role](process)
    process.has_started = True
    if process.witness.problem is not None:
        with suppress(NotNow, StoreUnusable):
            await process.witness.look()  # an operator may have decided since the last look
    if process.witness.problem is not None:
        _on_store_problem(process, role, StoreUnusable(process.witness.problem))


def _watch_store(process: CellProcess, role: Role) -> None:
    """Let readiness say when the store is not to be believed, and operators when it is not asked any more."""
    store = process.store
    if role == "manager":
        return  # it acts on what the brokers promised; its status tells what others found
    process.health.add_check(process.witness.why_not_ready)
    if role == "frontend":
        # What it has in memory is newer than the store, and right.
        process.health.add_notices(lambda: [store.why_refused] if store.why_refused else [])
    else:
        process.health.add_check(lambda: store.why_refused)


def _on_store_problem(process: CellProcess, role: Role, problem: StoreUnusable) -> None:
    """End a process that serves what the store says. Brokers serve their own records, managers what those promised."""
    if role == "broker":
        must_end = process.witness.verdict is Verdict.DIRECTORY_WENT_BACK
    else:
        must_end = process.has_started and role != "manager"
    if must_end:
        process.fail(problem)


async def _start_broker(process: CellProcess) -> None:
    settings = process.settings
    listen = settings.broker_listen_address
    security = security_for(listen, settings.tls_directory, force_plaintext=settings.force_plaintext)
    broker = CellBroker(
        CellBrokerOptions(
            process.node,
            settings.zone,
            settings.cell,
            listen.host,
            listen.port,
            settings.broker_advertise or f"{listen.host}:{listen.port}",
            replace(journal_options(settings, process.data), cell_format=process.cell_format),
            security=security,
            rpc=process.rpc,
        ),
        process.store,
        on_stopped=process.fail,
        find_queue=QueueRows(process.store).find,
    )
    await broker.start()
    process.stack.push_async_callback(broker.close)
    process.metrics.add_source(lambda: cell_broker_samples(broker, process.data))
    process.metrics.add_histograms(lambda: cell_broker_histograms(broker))
    process.health.add_check(broker.why_not_ready)
    process.health.add_notices(
        lambda: held_expiry({number: journal.host.clock for number, journal in broker.journals.items()})
    )


async def _start_metadata(process: CellProcess) -> None:
    settings, stack = process.settings, process.stack
    hello = hello_of(settings, METADATA_ROLE)
    node, _ = await start_metadata_node(
        settings,
        stack,
        process.store,
        connect_brokers=lambda journal_of: route_to_brokers(
            settings,
            stack,
            process.store,
            hello,
            journal_of,
            cell_format=process.cell_format,
            rpc=process.rpc,
        ),
        now_ms=wall_ms,
        rpc=process.rpc,
        cell_format=process.cell_format,
        on_unusable=process.fail,
    )
    process.metrics.add_source(node.samples)
    process.health.add_check(node.why_not_ready)
    process.health.add_notices(node.queues.lost_attributes.notices)


async def _start_manager(process: CellProcess) -> None:
    witness = process.witness
    manager, _ = await start_manager(
        process.settings,
        process.stack,
        process.store,
        process.metrics,
        on_failure=process.fail,
        rpc=process.rpc,
        problems=lambda: (witness.problem,) if witness.problem else (),
    )
    process.health.add_notices(manager.clock_notices)


async def _start_front_end(process: CellProcess) -> None:
    settings, stack, metrics, health = process.settings, process.stack, process.metrics, process.health
    keys = key_provider(settings, process.data)
    while True:
        try:
            metadata = await start_remote_metadata(
                settings,
                stack,
                keys,
                now_ms=wall_ms,
                rpc=process.rpc,
                cell_format=process.cell_format,
                note=declaring(settings.queues_file, process.store),
            )
            break
        except NotNow:
            if process.witness.problem is None:
                raise
            await process.witness.wait_until_accepted()  # metadata nodes wait for the same
    metrics.add_source(metadata.samples)
    health.add_check(metadata.why_not_ready)
    hello = hello_of(settings, FRONT_END_ROLE)
    router = route_to_brokers(
        settings,
        stack,
        process.store,
        hello,
        metadata.queues.journal_of,
        cell_format=process.cell_format,
        rpc=process.rpc,
    )
    metrics.add_source(router.samples)
    admin = make_admin(
        settings,
        broker=router,
        metadata=metadata,
        metrics=metrics,
        health=health,
        operations=FrontEndOperations(process),
        epochs=usage_incarnations(settings, process.store),
    )
    stack.push_async_callback(admin.stop)
    recent = RecentLogs(metadata.find_queue)
    sealed = start_sealing(settings, stack, router, metadata, process.data, recent.logs)
    address = await serve_sqs(
        *(settings, stack, router, metadata, metrics, health),
        store=process.store,
        data=process.data,
        admin=admin,
        unsigned_time=process.admin.unsigned_time,
        sealed=sealed,
        on_log_read=recent.note,
    )
    process.admin.handler = one_by_one(admin.handle)
    process.admin.admit = admin.admit
    await asyncio.get_running_loop().run_in_executor(
        None,
        write_client_file,
        process.data,
        settings,
        metadata.default_access_key,
        address,
        process.admin_address,
    )


class FrontEndOperations:
    """What the admin API of a front end of a cell can do about data: look."""

    def __init__(self, process: CellProcess) -> None:
        self._process = process

    async def status(self) -> Mapping[str, Any]:
        """Return who this is: journals are shown by `quaymaster cell status`."""
        return {"role": "frontend", "node": self._process.node, "cell": self._process.settings.cell}

    def pauses(self) -> list[Mapping[str, float]]:
        """Return the longest pauses of this process's event loop."""
        return show_pauses(self._process.watch)

    def accept_clock(self) -> None:
        """Refuse: clocks are the brokers'."""
        raise UnsupportedOperation("The clock is that of each broker; a front end has none that counts.")

    async def backup(self, destination: Path, progress: Callable[[int, int], None]) -> Mapping[str, Any]:
        """Refuse: a front end has no data."""
        raise UnsupportedOperation("A front end keeps no messages: `quaymaster cell backup` copies the cell.")


_ROLES: dict[Role, StartRole] = {
    "broker": _start_broker,
    "metadata": _start_metadata,
    "manager": _start_manager,
    "frontend": _start_front_end,
}
