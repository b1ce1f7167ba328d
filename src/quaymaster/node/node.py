"""One process: what each has, whatever its role, and how it starts, serves and ends.

    lock data directory ─▶ admin port ─▶ the role ─▶ ready
    SIGTERM ─▶ draining: 404 for balancers ─▶ the role, and so on, the other way round ─▶ 0

The admin port is there first: a long recovery can be watched, and is alive though not ready.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quaymaster import __version__
from quaymaster.broker.cell.broker_name import NameTaken
from quaymaster.broker.storage.disk import DirectoryInUse
from quaymaster.broker.storage.journal_state import JournalCorrupt, JournalWentBack, NotActivated
from quaymaster.broker.storage.snapshots import SnapshotsDamaged
from quaymaster.coordination.interface import StoreUnusable
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.formats import FORMAT_MAX, FORMAT_MIN, UnknownFormat
from quaymaster.frontend.usage.spool_head import SpoolUnusable
from quaymaster.metadata.keys.key_providers import KeysUnusable
from quaymaster.metadata.queues.declared_queues import DeclaredQueuesError
from quaymaster.monitoring.health import Health
from quaymaster.monitoring.logs import configure_logs, log_event, log_failure
from quaymaster.monitoring.loop_watch import LoopWatch
from quaymaster.monitoring.metrics import Metrics
from quaymaster.monitoring.supervision import listen_for_failures, supervise
from quaymaster.net.http.forwarded import TrustedProxies
from quaymaster.net.http.probe_port import ProbePort
from quaymaster.net.http.server import HTTPServer, one_by_one
from quaymaster.net.rpc import RPCMetrics
from quaymaster.net.tls import TransportSecurityError
from quaymaster.node.data.contradictions import DataContradicts
from quaymaster.node.data.data_directory import (
    DataDirectoryUnusable,
    DirectoryLock,
    prepare_data_directory,
    wait_for_workers,
)
from quaymaster.node.file_limit import admin_limits
from quaymaster.node.garbage import GarbageCollection
from quaymaster.node.pools import ProcessPools
from quaymaster.settings import Address, Settings

if TYPE_CHECKING:
    from quaymaster.frontend.admin.admin import Admin  # a console has none, and would load all of a front end

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_UNUSABLE = 3
"""The data directory, a setting or a port cannot be used; nothing was changed, and trying again will not help."""


class WorkerNotStarted(Exception):
    """A worker of a server ended before it served for the first time; the log says why."""


CANNOT_START = (
    DataDirectoryUnusable,
    DirectoryInUse,
    JournalCorrupt,
    SnapshotsDamaged,
    UnknownFormat,
    StoreUnusable,
    KeysUnusable,
    TransportSecurityError,
    NotActivated,
    JournalWentBack,
    DataContradicts,
    NotNow,
    DeclaredQueuesError,
    NameTaken,
    SpoolUnusable,
    WorkerNotStarted,
    OSError,
)
"""What a start raises that an operator can do something about. Anything else is a bug, and told with its traceback."""

log = logging.getLogger(__name__)


@dataclass
class Node:
    """What every process has. `stack` ends things in the opposite order."""

    settings: Settings
    role: str
    data: Path
    stack: AsyncExitStack
    health: Health
    metrics: Metrics
    watch: LoopWatch
    admin: HTTPServer
    admin_address: Address
    rpc: RPCMetrics = field(default_factory=RPCMetrics)
    has_started: bool = False
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    hurried: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a drain should not wait for balancers: at SIGINT, a second SIGTERM, a failure."""
    failure: Exception | None = None
    greet: Callable[[], None] | None = None
    """Says that it serves, instead of a line in the log."""
    on_notice: list[Callable[[], None]] = field(default_factory=list)
    """Called when the notice of a drain begins."""
    on_serving: list[Callable[[], None]] = field(default_factory=list)
    """Called when all has started."""

    def fail(self, error: Exception) -> None:
        """Stop the process: it cannot go on."""
        self.failure = error
        self.hurry()

    def ask_to_stop(self) -> None:
        """Drain and end; asked again, end without the notice."""
        if self.stopped.is_set():
            self.hurried.set()
        self.stopped.set()

    def hurry(self) -> None:
        """End without the notice."""
        self.hurried.set()
        self.stopped.set()

    def run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Do work until the process ends; a bug in it ends the process."""
        task = supervise(asyncio.create_task(work, name=name))

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self.stack.push_async_callback(end)

    async def drain(self, notice_s: float) -> None:
        """Tell balancers to send no new requests, and clients to connect elsewhere; give them time to see it.

        All requests are still served.

        What was started is then ended by `stack`: listeners close, requests end within their grace period, the role
        gives its work away, the presence row goes.
        """
        self.health.set_state("draining")
        if notice_s:
            for tell in self.on_notice:
                tell()
        with suppress(TimeoutError):
            async with asyncio.timeout(notice_s):
                await self.hurried.wait()

    def serve_admin(self, admin: Admin) -> None:
        """Answer the whole admin API on the admin port from now on, not probes only."""
        self.stack.push_async_callback(admin.stop)
        self.admin.handler = one_by_one(admin.handle)
        self.admin.admit = admin.admit


@dataclass(frozen=True)
class Role:
    """What a process is for. `has_all`: it is a server, with all parts of a cell. `has_clients`: it serves clients."""

    name: str
    start: Callable[[Node], Coroutine[Any, Any, None]]
    has_all: bool = False
    has_clients: bool = False
    has_admin_port: bool = True

    def directory(self, settings: Settings) -> Path:
        """Return where the process keeps what is its own."""
        return settings.data_directory.absolute()

    def lock(self, settings: Settings, data: Path) -> DirectoryLock:
        """Take the data directory; see `prepare_data_directory`. Raises StoreUnusable before anything is made."""
        if not self.has_all:
            if settings.coordination != "etcd":
                raise StoreUnusable('the processes of a cell agree through etcd; set coordination = "etcd"')
            return prepare_data_directory(data, FORMAT_MIN)  # raised to what the cell writes
        lock = prepare_data_directory(data, FORMAT_MAX, has_store=settings.coordination == "sqlite")
        try:
            wait_for_workers(data)
        except BaseException:
            lock.release()
            raise
        return lock

    @property
    def kind(self) -> str:
        """What lines of the log call such a process."""
        return "server" if self.has_all else "process"

    def log(self, level: int, what: str, **fields: object) -> None:
        """Write a line about a process of this role."""
        if not self.has_all:
            fields = {"role": self.name, **fields}
        log_event(log, level, f"{self.kind} {what}", **fields)


async def run_node(settings: Settings, role: Role) -> int:
    """Run a process until SIGTERM or SIGINT; return its exit code."""
    configure_logs(settings.log_level, settings.log_format)
    try:
        async with AsyncExitStack() as stack:
            return await run_on(stack, settings, role)
    except CANNOT_START as error:
        role.log(logging.ERROR, "not started", reason=str(error))
        return EXIT_UNUSABLE


async def run_on(stack: AsyncExitStack, settings: Settings, role: Role) -> int:
    """Start everything on `stack`, and return an exit code when the process is to end. Raises CANNOT_START."""
    loop = asyncio.get_running_loop()
    garbage = GarbageCollection()
    garbage.pause()
    stack.callback(garbage.stop)
    node = await _begin(stack, settings, role)
    starting = loop.create_task(role.start(node))
    ended = loop.create_task(node.stopped.wait())
    await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
    if node.stopped.is_set():
        # Whatever a start says that was under way: the process was told to end, or cannot go on.
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return _exit_code(node, role)
    starting.result()
    node.has_started = True
    garbage.resume()
    looking = loop.create_task(garbage.look_for_ever())
    stack.callback(looking.cancel)
    node.health.set_state("serving")
    if node.greet is None:
        role.log(logging.INFO, "started", node=settings.node_name, data=node.data)
    else:
        node.greet()
    for begin in node.on_serving:
        begin()
    await ended
    await node.drain(settings.drain_notice_s if role.has_clients else 0)
    return _exit_code(node, role)


async def _begin(stack: AsyncExitStack, settings: Settings, role: Role) -> Node:
    """Take the data directory, and let the admin port answer probes."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopped.set)
    data = role.directory(settings)
    lock = await loop.run_in_executor(None, partial(role.lock, settings, data))
    stack.callback(lock.release)
    health, metrics = Health(), Metrics(__version__)
    watch = LoopWatch(settings.loop_watch_ms / 1000)
    metrics.event_loop_pauses = watch.pauses.durations
    metrics.add_source(watch.samples)
    metrics.add_source(ProcessPools(data).samples)
    if settings.loop_watch_ms:
        watch.start()
    stack.callback(watch.stop)
    metrics.console_url = settings.console_url or ""
    probes = ProbePort(metrics, health)
    stack.push_async_callback(probes.stop)
    admin = HTTPServer(
        *(one_by_one(probes.handle), admin_limits(settings)),
        name="admin",
        admit=probes.admit,
        trusted_proxies=TrustedProxies(settings.trusted_networks),
    )
    address = settings.admin_address
    if role.has_admin_port:
        address = await listen_on(admin, address, "admin")
    stack.push_async_callback(admin.drain, 1.0)
    node = Node(settings, role.name, data, stack, health, metrics, watch, admin, address, stopped=stopped)
    loop.add_signal_handler(signal.SIGTERM, node.ask_to_stop)
    loop.add_signal_handler(signal.SIGINT, node.hurry)
    listen_for_failures(loop, node.fail)
    metrics.add_source(node.rpc.samples)
    metrics.add_histograms(node.rpc.histograms)
    return node


def _exit_code(node: Node, role: Role) -> int:
    """Return how the process ended; why, if it failed, is said in the log."""
    if node.failure is None:
        return EXIT_OK
    log_failure(log, f"{role.kind} stopped", node.failure)
    return EXIT_FAILED


async def listen_on(
    server: HTTPServer, wanted: Address, setting: str, *, shares_port: bool = False
) -> Address:
    """Let a server listen; an OSError names the setting. `shares_port`: see `Listener.start`."""
    try:
        host, port = await server.start(wanted.host, wanted.port, shares_port=shares_port)
    except OSError as error:
        raise cannot_listen(wanted, setting, error) from error
    return Address(host, port)


def cannot_listen(wanted: Address, setting: str, error: OSError) -> OSError:
    """Return the error that names the setting."""
    return OSError(f"cannot listen on {wanted} (setting {setting!r}): {error.strerror or error}")
