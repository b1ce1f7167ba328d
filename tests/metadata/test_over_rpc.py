"""A cell's metadata over real connections."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from harness.waiting import PATIENCE_S

from metadata.support import ACCOUNT, REGION, Clock, FakeJournal, eventually
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.errors import QueueDoesNotExist, QueueNameExists
from quaymaster.metadata.keys.key_providers import FileKeyProvider
from quaymaster.metadata.node import MetadataNode
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.remote.registry import RemoteRegistry
from quaymaster.metadata.rpc_server import MetadataCalls
from quaymaster.metadata.service import MetadataService
from quaymaster.net.routing.metadata_client import FullNodes, MetadataClient, MetadataLink, when_known
from quaymaster.net.rpc import RPCClient, RPCServer
from quaymaster.protocol.rpc.frames import Hello
from quaymaster.protocol.rpc.metadata_messages import CreateQueue


def test_front_end_goes_on_over_the_other_node_when_one_is_killed_and_when_one_is_silent(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        store = MemoryCoordination()
        clock = Clock()
        journal = FakeJournal()
        async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):

            async def start_node(name: str) -> RPCServer:
                node = MetadataNode(
                    store,
                    MetadataOptions(REGION, ACCOUNT),
                    name=name,
                    now_ms=clock,
                    monotonic_ms=lambda: time.monotonic() * 1000,
                )
                await node.start(journal)
                stack.push_async_callback(node.close)
                calls = MetadataCalls(node)
                stack.push_async_callback(calls.close)
                server = RPCServer(calls.handlers(), Hello("cell", "metadata", name))
                await server.start("127.0.0.1", 0)
                stack.push_async_callback(server.close)
                return server

            async def start_front_end(name: str, addresses: list[tuple[str, int]]) -> MetadataService:
                clients = [RPCClient(address, Hello("cell", "frontend", name)) for address in addresses]
                for client in clients:
                    stack.push_async_callback(client.close)
                nodes = FullNodes([MetadataLink(str(client.address), client) for client in clients])
                options = MetadataOptions(REGION, ACCOUNT)
                registry = RemoteRegistry(MetadataClient(nodes), options)
                keys = FileKeyProvider(tmp_path / "keys")
                metadata = MetadataService(registry, keys, options, now_ms=clock, name=name)
                await metadata.start()
                stack.push_async_callback(metadata.close)
                return metadata

            servers = [await start_node("one"), await start_node("two")]
            # The system accepts connections; nobody reads them.
            silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            addresses = [server.address for server in servers]
            a = await start_front_end("a", [silent.getsockname(), *addresses])
            b = await start_front_end("b", addresses)
            created = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
            assert a.find_queue(ACCOUNT, "orders") == created
            await eventually(lambda: len(b.queues) == 1)
            with pytest.raises(QueueNameExists):
                await b.queues.change(CreateQueue(ACCOUNT, "orders", {"DelaySeconds": "7"}))
            with pytest.raises(QueueDoesNotExist):
                await when_known(lambda: b.queue(ACCOUNT, "none"))

            await servers[0].close()
            later = await a.queues.change(CreateQueue(ACCOUNT, "later"))

            await eventually(lambda: len(b.queues) == 2)
            assert b.find_queue(ACCOUNT, "later") == later
            assert b.data_key(later.data_key_id) == a.data_key(later.data_key_id)

    asyncio.run(scenario())
