"""Queues are made and deleted in metadata and in real, replicated journals, whoever leads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from harness.waiting import PATIENCE_S

from broker.cell.test_broker_service import JOURNAL, Cell, cell_of
from quaymaster.core.values.commands.messages import CountMessages, QueueCounts
from quaymaster.core.values.errors import CallerError, NotNow, QueueDoesNotExist
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.metadata.keyed_queues import KeyedQueues
from quaymaster.metadata.keys.key_providers import FileKeyProvider
from quaymaster.metadata.service import MetadataService
from quaymaster.net.routing.broker_client import BrokerClient, ask
from quaymaster.node.cell.broker_routing import route_to_brokers
from quaymaster.node.cell.metadata_roles import start_metadata_node, start_remote_metadata
from quaymaster.node.cell.transport import Transport
from quaymaster.protocol.rpc.metadata_messages import CreateQueue, DeleteQueue, QueueChange, SetAttributes
from quaymaster.settings import load_settings

ACCOUNT = "000000000000"


@asynccontextmanager
async def metadata_over(cell: Cell, directory: Path) -> AsyncIterator[tuple[MetadataService, BrokerClient]]:
    async with AsyncExitStack() as stack:
        addresses = []
        for name in ("one", "two"):
            settings = load_settings(
                flags={"cell": "test", "node": name, "metadata_listen": "127.0.0.1:0"}, environment={}
            )
            transport = Transport(settings, "metadata")
            _, address = await start_metadata_node(
                transport,
                stack,
                cell.coordination,
                connect_brokers=partial(route_to_brokers, transport, stack, cell.coordination),
            )
            addresses.append(str(address))
        settings = load_settings(
            flags={"cell": "test", "node": "a", "metadata_nodes": ",".join(addresses)}, environment={}
        )
        transport = Transport(settings, "frontend")
        metadata = await start_remote_metadata(transport, stack, FileKeyProvider(directory / "keys"))
        router = route_to_brokers(transport, stack, cell.coordination, metadata.queues.journal_of)
        yield metadata, router


async def patiently(queues: KeyedQueues, request: QueueChange) -> QueueDefinition:
    """Try until it can be done, as an SDK does."""
    while True:
        try:
            return await queues.change(request)
        except NotNow:
            await asyncio.sleep(0.1)


def test_queues_live_and_die_through_changes_of_leader(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            cell_of(tmp_path, "b1", "b2", "b3") as cell,
            metadata_over(cell, tmp_path) as (metadata, router),
        ):
            queues = metadata.queues
            await patiently(queues, CreateQueue(ACCOUNT, "first"))
            changes = asyncio.gather(
                *(patiently(queues, CreateQueue(ACCOUNT, f"q{number}")) for number in range(20))
            )
            await cell.appoint("b2")
            await cell.led_by("b2")
            created = await changes
            await patiently(queues, SetAttributes(ACCOUNT, "q19", {"DelaySeconds": "5"}))
            for queue in created[:10]:
                with suppress(QueueDoesNotExist):  # an answer was lost
                    await patiently(queues, DeleteQueue(ACCOUNT, queue.name))

            definitions = cell.brokers["b2"].journals[JOURNAL].host.replica.queues.definitions
            assert definitions[created[19].queue_id].revision == 2
            for queue in created[10:]:
                assert isinstance(await ask(router, CountMessages(queue.queue_id)), QueueCounts)
                assert queue.queue_id in definitions
            for queue in created[:10]:
                with pytest.raises(CallerError):
                    await ask(router, CountMessages(queue.queue_id))
                assert queue.queue_id not in definitions

    asyncio.run(scenario())
