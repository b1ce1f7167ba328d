"""Calls to endpoints that people ask for, put together: `quaymaster queue push test`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from quaymaster.broker.replica.clock import wall_ms
from quaymaster.frontend.admin.queues.push_admin import TestsPush
from quaymaster.metadata.service import MetadataService
from quaymaster.node.node import Node
from quaymaster.node.push_role import endpoint_checks, secrets_of
from quaymaster.push.endpoint_test import EndpointTest
from quaymaster.settings import Address


def push_test_of(
    node: Node,
    metadata: MetadataService,
    *,
    live_processes: Callable[[], Iterable[Address]] = tuple,
) -> TestsPush:
    """Return what calls endpoints from this process, until the node ends. `live_processes`: what no call may reach."""
    test = EndpointTest(
        endpoint_checks(node.stack, node.settings, live_processes),
        partial(secrets_of, metadata),
        region=node.settings.region,
        wall_ms=wall_ms,
    )

    return test.call
