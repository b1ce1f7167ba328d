"""The front end of a server, or of a cell: the SQS port, and what records its requests and those of operators.

usage feed ─▶ front end ─▶ SQS port ─▶ usage shipper ─▶ client.json
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from quaymaster.broker.replica.clock import wall_ms
from quaymaster.broker.storage.disk import RealDisk, write_file_durably
from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.left_acts import LeftActs
from quaymaster.coordination.sign_in_links import SignInLinks
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.admin.admin import Admin, make_owner_api
from quaymaster.frontend.admin.api import WaitForFrontEnds, no_others
from quaymaster.frontend.admin.queues.push_admin import TestsPush
from quaymaster.frontend.alert_sends import AlertSends
from quaymaster.frontend.assembly import (
    make_front_end,
    make_opening_pool,
    make_usage_feed,
    make_usage_shipper,
)
from quaymaster.frontend.callers.key_uses import KeyUses
from quaymaster.frontend.logs.block_building import BlockBuilding
from quaymaster.frontend.logs.built_blocks import BuiltBlocks
from quaymaster.frontend.partitions.partitioned_broker import PartitionedBroker
from quaymaster.frontend.server import FrontEnd
from quaymaster.frontend.usage.act_chain import drop_left_acts
from quaymaster.frontend.usage.incarnations import FrontEndIncarnations
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.frontend.usage.usage_feed import PIPELINE_FILE, UsageFeed, set_up_pipeline
from quaymaster.frontend.usage.usage_shipper import UsageShipper
from quaymaster.messaging.encryption import MessageCipher
from quaymaster.metadata.keys.accounts import AccessKey
from quaymaster.metadata.options import KMSMode
from quaymaster.metadata.service import MetadataService
from quaymaster.metadata.store.rows import ACCESS_KEYS
from quaymaster.monitoring.metrics import Sample
from quaymaster.net.http.server import HTTPServer
from quaymaster.net.routing.console_client import ConsoleClient
from quaymaster.net.routing.enforced_floor import EnforcedFloor
from quaymaster.net.routing.queue_metrics_client import QueueMetricsClient
from quaymaster.node.data.client_file import CLIENT_FILE
from quaymaster.node.edge.edge_listener import listen_for_console, listen_for_proxies, share_proxies
from quaymaster.node.file_limit import sqs_limits
from quaymaster.node.node import Node, listen_on
from quaymaster.node.pools import POOL_USED
from quaymaster.protocol.actions.table import ACTIONS
from quaymaster.settings import Address, Settings

PIPELINE_WAIT_S = 2.0
BLOCKS_DIRECTORY = "blocks"
BUILDING_ROOM = 4
"""Blocks are written while so many times the space is free below which sends are refused: they must not be why."""


class Behind(NamedTuple):
    """What a front end stands on."""

    store: Coordination
    metadata: MetadataService
    broker: PartitionedBroker
    key_uses: KeyUses
    enforced: EnforcedFloor | None = None
    """What the brokers of a cell say of the authorization floor."""
    console: ConsoleClient | None = None
    """The way to consoles."""
    wait_for_front_ends: WaitForFrontEnds = no_others
    """Of a cell or of workers: waits until the others know of a revocation."""
    queue_metrics: QueueMetricsClient | None = None
    """Where lists of queues find what is in them."""
    push_test: TestsPush | None = None
    """What calls endpoints that people try."""


def start_key_uses(node: Node, store: Coordination, cell_format: CellFormat) -> KeyUses:
    """Return what notes when access keys are used; it writes from now on, and ends with the node."""
    uses = KeyUses(store, cell_format, keys=ACCESS_KEYS, now_ms=wall_ms)
    uses.start()
    node.stack.push_async_callback(uses.stop)
    return uses


class Served(NamedTuple):
    """A front end that serves: where, and what records its requests; None: nothing does."""

    address: Address
    usage: UsageRecorder | None


class Shared(NamedTuple):
    """What a worker of a server shares with the others: its port, a listening Unix socket, its host's name."""

    front_end: str
    edge: socket.socket | None


async def serve_sqs(
    node: Node,
    behind: Behind,
    admin: Admin | None,
    *,
    blocks: BuiltBlocks | None = None,
    on_log_read: Callable[[QueueDefinition], None] = lambda log: None,
    shared: Shared | None = None,
    for_console: Path | None = None,
) -> Served:
    """Start a front end, what records its requests and those of operators, and its port.

    Without `admin` operators ask another process. `shared`: of a worker. `for_console`: a Unix socket for requests that
    the console of this server makes for browsers.
    """
    settings, stack, metrics = node.settings, node.stack, node.metrics
    feed = await _start_recording(node, behind.store, None if shared is None else shared.front_end)
    opening = make_opening_pool(settings)
    stack.push_async_callback(opening.close)
    metrics.add_source(opening.samples)
    metrics.add_histograms(behind.broker.histograms)
    limits = sqs_limits(settings)
    front_end = make_front_end(
        settings,
        broker=behind.broker,
        metadata=behind.metadata,
        metrics=metrics,
        now_ms=wall_ms,
        connections_max=limits.connections_max,
        usage=None if feed is None else feed.recorder,
        blocks=blocks,
        on_log_read=on_log_read,
        opening=opening if opening.workers_max else None,
        enforced=behind.enforced,
        on_key_use=behind.key_uses.note,
        console=behind.console,
        management=make_owner_api(
            settings,
            broker=behind.broker,
            metadata=behind.metadata,
            queue_metrics=behind.queue_metrics,
            wait_for_front_ends=behind.wait_for_front_ends,
            enforced=behind.enforced,
            key_uses=behind.key_uses,
            links=SignInLinks(behind.store, wall_ms),
            console=behind.console,
            push_test=behind.push_test,
        ),
    )
    front_end.start()
    stack.push_async_callback(front_end.stop)
    if behind.console is not None:
        _send_alerts(node, behind.console, front_end)
    server = HTTPServer(
        *(front_end.handle, limits),
        name="sqs",
        admit=front_end.admit,
        on_event=metrics.count_http_event,
        unsigned_time=node.admin.unsigned_time,
        trusted_proxies=node.admin.trusted_proxies,
    )
    address = await listen_on(server, settings.listen_address, "listen", shares_port=shared is not None)
    stack.push_async_callback(server.drain, settings.drain_grace_s)
    node.on_notice.append(server.announce_end)
    if shared is None:
        await listen_for_proxies(node, server)
    else:
        await share_proxies(node, server, shared.edge)
    if for_console is not None and settings.console == "on":
        listen_for_console(node, server, for_console)
    node.health.add_room_check(server.why_not_ready)
    metrics.add_source(
        lambda: [
            Sample("quaymaster_http_connections", server.connections),
            Sample("quaymaster_http_connections_held", server.connections_held),
            Sample("quaymaster_http_connections_unsigned", len(server.strangers)),
            Sample("quaymaster_http_unsigned_bytes", server.strangers.kept_bytes),
            Sample("quaymaster_http_bytes_total", server.received_bytes, ("received",)),
            Sample("quaymaster_http_bytes_total", server.sent_bytes, ("sent",)),
            Sample(POOL_USED, server.connections / limits.connections_max, ("connections",)),
        ]
    )
    if feed is not None:
        if admin is None:
            _ship_usage(node, feed, behind)
        else:
            await _record_acts(node, feed, behind, admin, address)
    return Served(address, None if feed is None else feed.recorder)


async def record_pushes(
    node: Node, store: Coordination, broker: PartitionedBroker, metadata: MetadataService
) -> UsageRecorder | None:
    """Record what a process does that only pushes; None where nothing is recorded."""
    feed = await _start_recording(node, store)
    if feed is None:
        return None
    feed.ship(make_usage_shipper(node.settings, feed, broker=broker, metadata=metadata))
    return feed.recorder


async def record_operators(node: Node, behind: Behind, admin: Admin, address: Address) -> None:
    """Record what operators do in a process that serves no clients; those are served at `address`."""
    feed = await _start_recording(node, behind.store)
    if feed is not None:
        await _record_acts(node, feed, behind, admin, address)


async def _record_acts(node: Node, feed: UsageFeed, behind: Behind, admin: Admin, address: Address) -> None:
    shipper = _ship_usage(node, feed, behind)
    await _set_up_pipeline(node, shipper, behind, address)
    admin.record_acts(feed.recorder)
    node.stack.push_async_callback(admin.stop_acts)


def usage_incarnations(settings: Settings, store: Coordination) -> FrontEndIncarnations | None:
    """Return which front ends record usage, for the admin API; None where none does."""
    return FrontEndIncarnations(store, now_us=lambda: time.time_ns() // 1000) if settings.usage else None


async def _start_recording(node: Node, store: Coordination, name: str | None = None) -> UsageFeed | None:
    """Start to record requests and acts, under a name where the settings give none; None where nothing is recorded."""
    left = LeftActs(node.data)
    if not node.settings.usage:
        await asyncio.to_thread(drop_left_acts, left)
        return None
    feed = await _start_usage(node, store, name or socket.gethostname())
    node.health.add_notices(feed.notices)
    await feed.chain_acts(store, node.settings.account_id, left)
    return feed


async def _start_usage(node: Node, store: Coordination, name: str) -> UsageFeed:
    """Start to record requests; what they are is kept on disk until they are shipped."""
    feed = make_usage_feed(node.settings, node.data, node=name)
    try:
        await feed.start(store, node.settings.region)
    except BaseException:
        feed.abandon()
        raise
    # After the front end has stopped, and before the broker does.
    node.stack.push_async_callback(feed.stop)
    node.metrics.add_source(feed.samples)
    return feed


def _ship_usage(node: Node, feed: UsageFeed, behind: Behind) -> UsageShipper:
    """Begin to bring records into the usage queue."""
    shipper = make_usage_shipper(node.settings, feed, broker=behind.broker, metadata=behind.metadata)
    feed.ship(shipper)
    return shipper


async def _set_up_pipeline(node: Node, shipper: UsageShipper, behind: Behind, address: Address) -> None:
    """Write how the pipeline reads the usage queue."""
    settings = node.settings

    def write(described: bytes) -> None:
        disk = RealDisk()
        disk.make_directory(str(node.data / "keys"))
        write_file_durably(disk, str(node.data / "keys"), PIPELINE_FILE, described)

    setting_up = asyncio.create_task(
        set_up_pipeline(
            behind.metadata.accounts,
            shipper,
            write,
            endpoint_url=endpoint_of(settings, address),
            region=settings.region,
        ),
        name="usage-pipeline",
    )
    node.stack.callback(setting_up.cancel)
    # Usually at once: who finds the server ready finds the pipeline's file. Otherwise it follows.
    await asyncio.wait({setting_up}, timeout=PIPELINE_WAIT_S)


def _send_alerts(node: Node, console: ConsoleClient, front_end: FrontEnd) -> None:
    """Have a front end send the notifications of alerts that consoles have for queues."""
    action = ACTIONS["SendMessage"]
    sends = AlertSends(
        console.consoles,
        lambda request, principal, given: front_end.carry_out_for(request, principal, action, given),
        region=node.settings.region,
    )
    node.run("alert sends", sends.run())


def without_keys(logs: Iterable[QueueDefinition], kms: KMSMode) -> list[QueueDefinition]:
    """Return the logs that blocks may be built of: those have keys of the server, which no key service protects."""
    return [log for log in logs if kms == "ignore" or not log.kms_master_key_id]


def start_building(
    node: Node, behind: Behind, logs: Callable[[], Sequence[QueueDefinition]]
) -> BuiltBlocks | None:
    """Start to build blocks of `logs` in the background, and return where their blocks are.

    None when that is switched off.
    """
    settings, data, metadata = node.settings, node.data, behind.metadata
    if not settings.block_build_interval_s:
        return None
    blocks = BuiltBlocks(data / BLOCKS_DIRECTORY, metadata.data_key)

    def has_room() -> bool:
        usage = shutil.disk_usage(data)
        return usage.free > BUILDING_ROOM * settings.disk_low_limit(usage.total)

    building = BlockBuilding(
        behind.broker,
        MessageCipher(metadata.data_key, lender=metadata.queue_keys),
        blocks,
        logs=lambda: without_keys(logs(), settings.kms),
        data_key=metadata.data_key,
        has_room=has_room,
        interval_s=settings.block_build_interval_s,
    )
    node.run("block-building", building.run())
    return blocks


def endpoint_of(settings: Settings, address: Address) -> str:
    """Return the URL by which clients on this machine reach the SQS API."""
    return settings.public_url or f"http://{reachable(address)}"


def reachable(address: Address) -> Address:
    """Return an address a client on this machine can connect to."""
    return Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host), address.port)  # noqa: S104


async def write_client_file(node: Node, key: AccessKey | None, address: Address) -> None:
    """Write how to reach this process, for `quaymaster env` and the other commands; mode 0600."""
    fields = {
        "endpoint_url": endpoint_of(node.settings, address),
        "admin_url": f"http://{reachable(node.admin_address)}",
        "region": node.settings.region,
        "account_id": node.settings.account_id,
        "access_key_id": key.access_key_id if key else "",
        "secret_access_key": key.secret if key else "",
    }
    written = json.dumps(fields, indent=2).encode() + b"\n"
    await asyncio.get_running_loop().run_in_executor(
        None, write_file_durably, RealDisk(), str(node.data), CLIENT_FILE, written
    )
