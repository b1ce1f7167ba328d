"""Calls to endpoints that people ask for, put together: `quaymaster queue push test`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from quaymaster.broker.replica.clock import wall_ms
from quaymaster.core.push.calls import PushSecrets
from quaymaster.core.values.queue_definitions import QueueDefinition
from quaymaster.frontend.admin.push_admin import PushTest, TestsPush
from quaymaster.metadata.service import MetadataService
from quaymaster.net.outbound.own_endpoints import customer_rules
from quaymaster.net.routing.metadata_client import answer_to
from quaymaster.node.node import Node
from quaymaster.node.push_role import LateClient, origin_of
from quaymaster.push.endpoint_test import EndpointTest
from quaymaster.push.verification import EndpointChecks
from quaymaster.settings import Address


def push_test_of(
    node: Node,
    metadata: MetadataService,
    *,
    live_processes: Callable[[], Iterable[Address]] = tuple,
) -> TestsPush:
    """Return what calls endpoints from this process, until the node ends. `live_processes`: what no call may reach."""
    settings, stack = node.settings, node.stack
    client = LateClient(customer_rules(settings, live_processes=live_processes))
    stack.push_async_callback(client.close)
    inside: LateClient | None = None
    if settings.outbound_network_list:
        inside = LateClient(customer_rules(settings, live_processes=live_processes, only_networks=True))
        stack.push_async_callback(inside.close)

    async def secrets(queue: QueueDefinition) -> PushSecrets:
        return await answer_to(partial(metadata.push_secrets.of, queue))

    test = EndpointTest(
        EndpointChecks(client, inside, origin_of(settings) if settings.push_handshake else None),
        secrets,
        region=settings.region,
        wall_ms=wall_ms,
    )

    async def call(queue: QueueDefinition) -> PushTest:
        return PushTest(*await test.call(queue))

    return call
