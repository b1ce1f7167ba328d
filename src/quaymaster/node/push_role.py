"""Pushing, put together: in a server, in each of its workers, and in a process of a cell for it alone.

consumer ─▶ engine ─▶ clients for customers' URLs        owners: all queues, or by the rows of pushers
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from quaymaster.broker.replica.clock import wall_ms
from quaymaster.coordination.interface import Coordination
from quaymaster.core.push.calls import PushSecrets
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.consumer import Consumer
from quaymaster.frontend.partitions.partitioned_broker import PartitionedBroker
from quaymaster.frontend.partitions.tables import PartitionTables
from quaymaster.frontend.usage.recorder import PushSizes, UsageRecorder
from quaymaster.metadata.service import MetadataService
from quaymaster.net.outbound.address_rules import AddressRules
from quaymaster.net.outbound.own_endpoints import customer_rules
from quaymaster.net.routing.metadata_client import when_known
from quaymaster.node.cell.transport import PUSH_ROLE
from quaymaster.node.node import Node
from quaymaster.push.engine import PushEngine
from quaymaster.push.owners import Owners
from quaymaster.push.parts import CALLS_MAX, MadeCall, PushParts, Room, count_nothing
from quaymaster.push.verification import EndpointChecks
from quaymaster.settings import Address, Settings

if TYPE_CHECKING:
    from quaymaster.net.outbound.client import OutboundAnswer, OutboundClient


def start_engine(
    node: Node,
    store: Coordination,
    metadata: MetadataService,
    broker: PartitionedBroker,
    tables: PartitionTables,
    owners: Owners,
    *,
    live_processes: Callable[[], Iterable[Address]] = tuple,
    usage: UsageRecorder | None = None,
) -> None:
    """Push the queues of these owners until the node ends.

    `live_processes`: addresses that no call may reach. `usage` takes a record of each call; None: nothing is recorded.
    """
    settings, stack = node.settings, node.stack
    if node.role == PUSH_ROLE and settings.outbound_networks is None:
        # The default goes by `listen`, which says nothing of a process that does not listen.
        settings = settings.model_copy(update={"outbound_networks": ""})
    loop = asyncio.get_running_loop()
    parts = PushParts(
        Consumer(broker, tables, metadata, node.metrics, timeout_s=settings.broker_timeout_ms / 1_000),
        endpoint_checks(stack, settings, live_processes),
        partial(secrets_of, metadata),
        metadata.push_states.note,
        may_receive=owners.may_receive,
        now_ms=lambda: int(loop.time() * 1_000),
        wall_ms=wall_ms,
        luck=random.random,
        on_call=count_nothing if usage is None else partial(_record, usage),
        room=Room(CALLS_MAX, bytes_max=settings.push_bytes_max, account_calls_max=settings.push_calls_max),
    )
    accounts = metadata.registry.accounts
    engine = PushEngine(
        store,
        owners,
        parts,
        region=settings.region,
        is_closed=lambda account_id: account_id in accounts.closed,
    )
    accounts.listeners.append(lambda account_id: engine.look())
    engine.start()
    stack.push_async_callback(engine.stop, settings.drain_grace_s)
    node.metrics.add_source(engine.samples)


def endpoint_checks(
    stack: AsyncExitStack, settings: Settings, live_processes: Callable[[], Iterable[Address]]
) -> EndpointChecks:
    """Return what asks endpoints whether they want calls, with clients of its own that are closed by the stack."""
    client = _LateClient(customer_rules(settings, live_processes=live_processes))
    stack.push_async_callback(client.close)
    inside: _LateClient | None = None
    if settings.outbound_network_list:
        inside = _LateClient(customer_rules(settings, live_processes=live_processes, only_networks=True))
        stack.push_async_callback(inside.close)
    return EndpointChecks(client, inside, _origin_of(settings) if settings.push_handshake else None)


async def secrets_of(metadata: MetadataService, queue: QueueDefinition) -> PushSecrets:
    """Return what signs calls for a queue, once it is known. Raises NotNow."""
    return await when_known(partial(metadata.push_secrets.of, queue))


class _LateClient:
    """An `OutboundClient` that is made for the first call: most processes push nothing, and no start waits for it."""

    def __init__(self, rules: AddressRules) -> None:
        self._rules = rules
        self._making: asyncio.Future[OutboundClient] | None = None

    async def call(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> OutboundAnswer:
        """See `OutboundClient`."""
        if self._making is None:
            self._making = asyncio.ensure_future(asyncio.to_thread(self._make))
        client = await asyncio.shield(self._making)
        return await client.call(method, url, headers=headers, body=body, timeout_s=timeout_s)

    async def close(self) -> None:
        """Close all connections."""
        if self._making is not None:
            await (await self._making).close()

    def _make(self) -> OutboundClient:
        from quaymaster.net.outbound.client import OutboundClient  # it imports much

        return OutboundClient(rules=self._rules, concurrency_max=CALLS_MAX)


def _record(usage: UsageRecorder, call: MadeCall) -> None:
    """Note a call as usage of its queue's account. `began_ms` is of the event loop, whose clock is that of records."""
    code = "OK" if call.result in ("delivered", "partial") else call.result.capitalize()
    usage.record_push(
        call.queue,
        code,
        call.status or HTTPStatus.GATEWAY_TIMEOUT,
        call.began_ms,
        time.monotonic() * 1_000,
        PushSizes(call.request_bytes, call.response_bytes, call.payload_bytes, *call.deleted),
        str(uuid.uuid4()),
    )


def _origin_of(settings: Settings) -> str:
    """Return the name by which endpoints know this service."""
    host = urlsplit(settings.public_url or "").hostname
    return settings.push_origin or host or settings.region
