"""All roles in one process: where coordination, metadata, broker, front end and admin port are put together.

lock data directory ─▶ coordination (SQLite, etcd) ─▶ metadata ─▶ broker (recovers its journal) ─▶ declared queues
    ─▶ admin port ─▶ SQS port ─▶ client.json ─▶ ready
SIGTERM ─▶ not ready ─▶ drain both ports ─▶ front end ─▶ broker (last snapshot) ─▶ metadata ─▶ coordination ─▶ 0
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from quaymaster import __version__
from quaymaster.broker.backup import ServerCut, backup
from quaymaster.broker.broker import Broker, JournalWentBack, NotActivated
from quaymaster.broker.replica.journal_service import JournalOptions
from quaymaster.broker.storage.disk import DirectoryInUse, RealDisk, write_file_durably
from quaymaster.broker.storage.journal_state import JournalCorrupt
from quaymaster.broker.storage.snapshots import SnapshotsDamaged
from quaymaster.broker.storage.space import JournalLimits
from quaymaster.coordination.interface import Coordination, StoreUnusable
from quaymaster.coordination.store_witness import StoreWitness
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.formats import UnknownFormat
from quaymaster.core.values.queue_definitions import QueueDefinition
from quaymaster.frontend.admin.admin import Admin, make_admin
from quaymaster.frontend.assembly import Metadata, make_front_end, make_usage_feed, make_usage_shipper
from quaymaster.frontend.logs.sealed_blocks import SealedLogs
from quaymaster.frontend.logs.sealing import Sealing
from quaymaster.frontend.queue_journal import BrokerQueueJournal
from quaymaster.frontend.usage.act_chain import drop_acts
from quaymaster.frontend.usage.incarnations import FrontEndIncarnations
from quaymaster.frontend.usage.usage_feed import PIPELINE_FILE, UsageFeed, set_up_pipeline
from quaymaster.frontend.usage.usage_spool import SpoolUnusable
from quaymaster.messaging.encryption import MessageCipher
from quaymaster.metadata.keys.accounts import AccessKey
from quaymaster.metadata.keys.master_keys import (
    EnvironmentKeyProvider,
    FileKeyProvider,
    KeyProvider,
    KeysUnusable,
)
from quaymaster.metadata.queues.declared_queues import DeclaredQueuesError
from quaymaster.metadata.service import MetadataService
from quaymaster.metadata.store.quotas import Quotas
from quaymaster.monitoring.health import Health
from quaymaster.monitoring.logs import configure_logs, log_event, log_failure
from quaymaster.monitoring.loop_watch import LoopWatch
from quaymaster.monitoring.metrics import Metrics, Sample
from quaymaster.monitoring.supervision import listen_for_failures, supervise
from quaymaster.net.http.server import HTTPServer, one_by_one
from quaymaster.net.http.strangers import UnsignedTime
from quaymaster.net.routing.broker_client import BrokerClient
from quaymaster.node.broker_metrics import broker_samples, held_expiry
from quaymaster.node.client_file import CLIENT_FILE
from quaymaster.node.data_directory import DataDirectoryUnusable, prepare_data_directory
from quaymaster.node.file_limit import admin_limits, sqs_limits
from quaymaster.node.garbage import LOOK_INTERVAL_S, GarbageCollection
from quaymaster.node.settling import DataContradicts, is_to_settle, settle
from quaymaster.node.stores import JOURNALS_DIRECTORY, DataWitness, declaring, open_store
from quaymaster.settings import Address, Settings

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_UNUSABLE = 3
"""The data directory, a setting or a port cannot be used; nothing was changed, and trying again will not help."""

JOURNAL_ID = 0
COMMIT_BYTES_MAX = 4 << 20
"""Most bytes that one write and fsync take together."""
SEGMENT_BYTES_LEAST = 2 << 20
"""On a small disk segments are at most a sixteenth of it, but not smaller than this."""
PIPELINE_WAIT_S = 2.0
SEALED_DIRECTORY = "sealed"
SEALING_ROOM = 4
"""Blocks are written while so many times the space is free below which sends are refused: they must not be why."""

log = logging.getLogger(__name__)


async def run_server(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; return the process's exit code."""
    configure_logs(settings.log_level, settings.log_format)
    try:
        async with AsyncExitStack() as stack:
            server = Server(settings)
            return await server.run(stack)
    except (
        DataDirectoryUnusable,
        DirectoryInUse,
        JournalCorrupt,
        SnapshotsDamaged,
        UnknownFormat,
        StoreUnusable,
        KeysUnusable,
        NotActivated,
        JournalWentBack,
        DataContradicts,
        NotNow,
        DeclaredQueuesError,
        SpoolUnusable,
        OSError,
    ) as error:
        log_event(log, logging.ERROR, "server not started", reason=str(error))
        return EXIT_UNUSABLE


class Server:
    """The process: what it holds, and the order in which that starts and ends."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = asyncio.Event()
        self._failure: Exception | None = None

    async def run(self, stack: AsyncExitStack) -> int:
        """Start everything, wait for the end, and stop in the opposite order."""
        settings = self._settings
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._stop.set)
        garbage = GarbageCollection()
        garbage.pause()
        stack.callback(garbage.stop)
        data = settings.data_directory.absolute()
        has_store = settings.coordination == "sqlite"
        lock = await loop.run_in_executor(None, partial(prepare_data_directory, data, has_store=has_store))
        stack.callback(lock.release)
        listen_for_failures(loop, self._on_failure)
        health = Health()
        metrics = Metrics(__version__)
        watch = LoopWatch(settings.loop_watch_ms / 1000)
        metrics.event_loop_pauses = watch.pauses.durations
        metrics.add_source(watch.samples)
        if settings.loop_watch_ms:
            watch.start()
        stack.callback(watch.stop)
        store = await open_store(
            settings, data, on_stopped=self._on_failure, takes_any_store=is_to_settle(data)
        )
        stack.push_async_callback(store.close)
        if settings.coordination == "etcd":
            await watch_etcd(store, data, health, stack, self._on_failure)
        metadata = MetadataService(
            store,
            key_provider(settings, data),
            region=settings.region,
            account_id=settings.account_id,
            now_ms=wall_ms,
            purge_interval_s=settings.purge_interval_s,
            queue_name_reuse_s=settings.queue_name_reuse_s,
            quotas=Quotas(**settings.account_quotas()),
            journal_id=JOURNAL_ID,
        )
        broker = Broker(
            journal_options(settings, data),
            store,
            on_stopped=self._on_failure,
            takes_any_journal=is_to_settle(data),
        )
        admin = make_admin(
            settings,
            broker=broker,
            metadata=metadata,
            metrics=metrics,
            health=health,
            operations=ServerOperations(broker, store.backup, settings.coordination, data, watch),
            epochs=usage_incarnations(settings, store),
        )
        stack.push_async_callback(admin.stop)
        limits = admin_limits(settings)
        # The admin port is there first: a long recovery can be watched, and is alive though not ready.
        admin_server = HTTPServer(one_by_one(admin.handle), limits, name="admin", admit=admin.admit)
        admin_address = await listen_on(admin_server, settings.admin_address, "admin")
        stack.push_async_callback(admin_server.drain, 1.0)
        metrics.add_source(metadata.data_key_sweep.samples)
        await metadata.start()
        stack.push_async_callback(metadata.close)
        health.add_check(
            lambda: f"The metadata store cannot be followed: {metadata.failure}" if metadata.failure else None
        )
        await broker.start()
        stack.push_async_callback(broker.close)
        # Again, so that they end before what they ask does; a backup under way is given up.
        stack.push_async_callback(admin.stop)
        stack.push_async_callback(admin_server.drain, 1.0)
        health.add_check(
            lambda: f"The journal stopped: {broker.host.stopped}" if broker.host.stopped else None
        )
        health.add_notices(lambda: held_expiry({0: broker.host.clock}))
        health.add_notices(metadata.queues.lost_attributes.notices)
        journal = BrokerQueueJournal(broker)
        metadata.attach_journal(journal)
        await settle(data, store, metadata, broker, journal)
        if not settings.usage:
            await drop_acts(store)
        await metadata.reconcile()
        if settings.queues_file is not None:
            changed = await metadata.load_queues_file(
                settings.queues_file, note=declaring(settings.queues_file, store)
            )
            log_event(log, logging.INFO, "declared queues loaded", changed=changed)
        metrics.log_fsync = broker.host.writer.counters.fsync_durations
        metrics.add_source(lambda: broker_samples(broker, data, per_queue=settings.metrics_per_queue))
        sealed = start_sealing(settings, stack, broker, metadata, data, metadata.queues.active_logs)
        address = await serve_sqs(
            *(settings, stack, broker, metadata, metrics, health),
            store=store,
            data=data,
            admin=admin,
            unsigned_time=admin_server.unsigned_time,
            sealed=sealed,
        )
        await loop.run_in_executor(
            None, write_client_file, data, settings, metadata.default_access_key, address, admin_address
        )
        garbage.resume()
        looking = loop.create_task(look_at_garbage(garbage))
        stack.callback(looking.cancel)
        health.set_state("serving")
        _greet(settings, data, address, admin_address)
        await self._stop.wait()
        health.set_state("draining")
        if self._failure is not None:
            log_failure(log, "server stopped", self._failure)
            return EXIT_FAILED
        return EXIT_OK

    def _on_failure(self, error: Exception) -> None:
        self._failure = error
        self._stop.set()


async def watch_etcd(
    store: Coordination,
    data: Path,
    health: Health,
    stack: AsyncExitStack,
    on_failure: Callable[[Exception], None],
) -> None:
    """Make sure, now and as long as the server runs, that etcd was not restored from an older copy.

    Raises StoreUnusable when it was, and no operator decided to continue with it.
    """
    witness = StoreWitness(store, "server", DataWitness(data), keeps_data=True)
    await witness.look_at_start()
    if witness.problem is not None:
        raise StoreUnusable(witness.problem)
    witness.start(on_failure)
    stack.push_async_callback(witness.close)
    health.add_notices(lambda: [store.why_refused] if store.why_refused else [])


class ServerOperations:
    """What the admin API asks of the parts that keep data."""

    def __init__(
        self,
        broker: Broker,
        copy_metadata: Callable[[Path], Awaitable[object]],
        coordination: str,
        data: Path,
        watch: LoopWatch,
    ) -> None:
        self._broker = broker
        self._copy_metadata = copy_metadata
        self._coordination = coordination
        self._data = data
        self._watch = watch

    async def status(self) -> Mapping[str, Any]:
        """Return figures of journal, cache and disk, ready for JSON."""
        return await self._broker.status()

    def pauses(self) -> list[Mapping[str, float]]:
        """Return the longest pauses of this process's event loop."""
        return show_pauses(self._watch)

    def accept_clock(self) -> None:
        """Let messages expire again although the clock jumped: an operator says that it is right."""
        self._broker.host.clock.accept()

    async def backup(self, destination: Path, progress: Callable[[int, int], None]) -> Mapping[str, Any]:
        """Write a consistent copy of all data but the master keys; see `broker.backup`.

        What is in etcd is copied as well, so that a backup is whole: restored, it needs no etcd.
        """
        cut = ServerCut(self._broker, self._copy_metadata, self._data)
        made = await backup(cut, destination, progress)
        return {**made, "coordination": self._coordination}


def show_pauses(watch: LoopWatch) -> list[Mapping[str, float]]:
    """Return the longest pause of the event loop in each second of the last minute that had one."""
    now_s = time.monotonic()
    return [
        {
            "ago_s": round(now_s - pause.at_s, 3),
            "own_ms": round(pause.own_s * 1000, 1),
            "wall_ms": round(pause.wall_s * 1000, 1),
            "cpu_ms": round(pause.cpu_s * 1000, 1),
        }
        for pause in watch.longest()
    ]


async def serve_sqs(
    settings: Settings,
    stack: AsyncExitStack,
    broker: BrokerClient,
    metadata: Metadata,
    metrics: Metrics,
    health: Health,
    *,
    store: Coordination,
    data: Path,
    admin: Admin,
    unsigned_time: UnsignedTime,
    sealed: SealedLogs | None = None,
    on_log_read: Callable[[QueueDefinition], None] = lambda log: None,
) -> Address:
    """Start a front end, what records its requests and those of operators, and its port; return the address."""
    feed = await start_usage(settings, stack, metrics, store=store, data=data) if settings.usage else None
    if feed is not None:
        health.add_notices(feed.notices)
        await feed.chain_acts(store, settings.account_id)
    front_end = make_front_end(
        settings,
        broker=broker,
        metadata=metadata,
        metrics=metrics,
        now_ms=wall_ms,
        usage=None if feed is None else feed.recorder,
        sealed=sealed,
        on_log_read=on_log_read,
    )
    front_end.start()
    stack.push_async_callback(front_end.stop)
    server = HTTPServer(
        *(front_end.handle, sqs_limits(settings)),
        name="sqs",
        admit=front_end.admit,
        on_event=metrics.count_http_event,
        unsigned_time=unsigned_time,
    )
    address = await listen_on(server, settings.listen_address, "listen")
    stack.push_async_callback(server.drain, settings.drain_grace_s)
    health.add_check(server.why_not_ready)
    metrics.add_source(
        lambda: [
            Sample("quaymaster_http_connections", server.connections),
            Sample("quaymaster_http_connections_held", server.connections_held),
            Sample("quaymaster_http_connections_unsigned", len(server.strangers)),
            Sample("quaymaster_http_unsigned_bytes", server.strangers.kept_bytes),
        ]
    )
    if feed is not None:
        await ship_usage(settings, stack, feed, broker, metadata, data=data, address=address)
        admin.record_acts(feed.recorder)
        stack.push_async_callback(admin.stop_acts)
    return address


def usage_incarnations(settings: Settings, store: Coordination) -> FrontEndIncarnations | None:
    """Return which front ends record usage, for the admin API; None where none does."""
    return FrontEndIncarnations(store, now_us=lambda: time.time_ns() // 1000) if settings.usage else None


async def start_usage(
    settings: Settings, stack: AsyncExitStack, metrics: Metrics, *, store: Coordination, data: Path
) -> UsageFeed:
    """Start to record requests; what they are is kept on disk until `ship_usage`."""
    feed = make_usage_feed(settings, data, node=socket.gethostname())
    try:
        await feed.start(store, settings.region)
    except BaseException:
        feed.abandon()
        raise
    # After the front end has stopped, and before the broker does.
    stack.push_async_callback(feed.stop)
    metrics.add_source(feed.samples)
    return feed


async def ship_usage(
    settings: Settings,
    stack: AsyncExitStack,
    feed: UsageFeed,
    broker: BrokerClient,
    metadata: Metadata,
    *,
    data: Path,
    address: Address,
) -> None:
    """Begin to bring records into the usage queue, and write how the pipeline reads it."""
    shipper = make_usage_shipper(settings, feed, broker=broker, metadata=metadata)

    def write(described: bytes) -> None:
        disk = RealDisk()
        disk.make_directory(str(data / "keys"))
        write_file_durably(disk, str(data / "keys"), PIPELINE_FILE, described)

    feed.ship(shipper)
    setting_up = asyncio.create_task(
        set_up_pipeline(
            metadata.accounts,
            shipper,
            write,
            endpoint_url=endpoint_of(settings, address),
            region=settings.region,
        ),
        name="usage-pipeline",
    )
    stack.callback(setting_up.cancel)
    # Usually at once: who finds the server ready finds the pipeline's file. Otherwise it follows.
    await asyncio.wait({setting_up}, timeout=PIPELINE_WAIT_S)


def endpoint_of(settings: Settings, address: Address) -> str:
    """Return the URL by which clients on this machine reach the SQS API."""
    return settings.public_url or f"http://{_reachable(address)}"


def start_sealing(
    settings: Settings,
    stack: AsyncExitStack,
    broker: BrokerClient,
    metadata: Metadata,
    data: Path,
    logs: Callable[[], Sequence[QueueDefinition]],
) -> SealedLogs | None:
    """Start to seal `logs` in the background, and return where their blocks are.

    None when that is switched off.
    """
    if not settings.seal_interval_s:
        return None
    sealed = SealedLogs(data / SEALED_DIRECTORY, metadata.data_key)

    def has_room() -> bool:
        usage = shutil.disk_usage(data)
        return usage.free > SEALING_ROOM * settings.disk_low_limit(usage.total)

    sealing = Sealing(
        broker,
        MessageCipher(metadata.data_key),
        sealed,
        logs=logs,
        data_key=metadata.data_key,
        has_room=has_room,
        interval_s=settings.seal_interval_s,
    )
    task = supervise(asyncio.get_running_loop().create_task(sealing.run()))

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)
    return sealed


async def listen_on(server: HTTPServer, wanted: Address, setting: str) -> Address:
    """Let a server listen; an OSError names the setting."""
    try:
        host, port = await server.start(wanted.host, wanted.port)
    except OSError as error:
        raise OSError(
            f"cannot listen on {wanted} (setting {setting!r}): {error.strerror or error}"
        ) from error
    return Address(host, port)


def journal_options(settings: Settings, data: Path) -> JournalOptions:
    """Return what a journal in a data directory needs to know."""
    disk = os.statvfs(data)
    disk_bytes = disk.f_blocks * disk.f_frsize
    return JournalOptions(
        directory=data / JOURNALS_DIRECTORY,
        region=settings.region,
        journal_id=JOURNAL_ID,
        limits=JournalLimits(
            segment_bytes_max=min(settings.segment_bytes_max, max(SEGMENT_BYTES_LEAST, disk_bytes // 16)),
            disk_low_bytes=settings.disk_low_limit(disk_bytes),
            group_bytes_max=COMMIT_BYTES_MAX,
            reserve_segments=settings.disk_reserve_segments,
        ),
        body_cache_bytes=settings.body_cache_bytes,
        snapshot_interval_s=settings.snapshot_interval_s,
        snapshot_records=settings.snapshot_records,
        compaction_live_ratio=settings.compaction_live_ratio,
        retry_window_ms=settings.retry_window_ms,
        retry_ids_max=settings.retry_ids_max,
        in_flight_max=settings.in_flight_max,
        account_stages_max=settings.account_stages_max,
        compaction_age_min_ms=settings.compaction_age_min_s * 1000,
    )


def key_provider(settings: Settings, data: Path) -> KeyProvider:
    """Return where the master keys of this data directory are."""
    if settings.master_key_source == "environment":
        assert settings.master_key is not None, "the settings were checked"
        previous = settings.master_key_previous
        return EnvironmentKeyProvider(
            settings.master_key.get_secret_value(), previous.get_secret_value() if previous else None
        )
    return FileKeyProvider(settings.keys_directory or data / "keys")


def write_client_file(
    data: Path, settings: Settings, key: AccessKey | None, address: Address, admin: Address
) -> None:
    """Write how to reach this server, for `quaymaster env` and the other commands; mode 0600."""
    fields = {
        "endpoint_url": endpoint_of(settings, address),
        "admin_url": f"http://{_reachable(admin)}",
        "region": settings.region,
        "account_id": settings.account_id,
        "access_key_id": key.access_key_id if key else "",
        "secret_access_key": key.secret if key else "",
    }
    write_file_durably(RealDisk(), str(data), CLIENT_FILE, json.dumps(fields, indent=2).encode() + b"\n")


async def look_at_garbage(garbage: GarbageCollection) -> None:
    """Look for garbage now and then, for ever."""
    while True:
        await asyncio.sleep(LOOK_INTERVAL_S)
        garbage.look()


def _reachable(address: Address) -> Address:
    """Return an address a client on this machine can connect to."""
    return Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host), address.port)  # noqa: S104


def _greet(settings: Settings, data: Path, address: Address, admin: Address) -> None:
    log_event(
        log,
        logging.INFO,
        "server started",
        version=__version__,
        endpoint=f"http://{_reachable(address)}",
        admin=f"http://{_reachable(admin)}",
        data=data,
        authentication=settings.authentication,
        pid=os.getpid(),
    )
    if settings.authentication == "open" and not settings.admin_address.is_loopback:
        log_event(log, logging.WARNING, "admin port is open to others", admin=settings.admin_listen)
    if sys.stdout.isatty():
        where = "" if data == Path("quaymaster-data").absolute() else f" --data {settings.data_directory}"
        print(  # the one thing a person at a terminal needs to know
            f"Quaymaster {__version__} serves SQS on http://{_reachable(address)}\n"
            f'Point any AWS SDK at it:  eval "$(quaymaster env{where})"',
            flush=True,
        )


def wall_ms() -> int:
    """Return the wall clock in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
