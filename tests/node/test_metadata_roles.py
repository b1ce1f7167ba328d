"""Metadata nodes and front ends of a cell, put together from settings, over real connections and a real etcd."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from harness.etcd import EtcdCluster
from harness.process import free_port
from harness.waiting import PATIENCE_S
from metadata.support import eventually

from quaymaster.coordination.cell_keys import configuration_key, encode_configuration
from quaymaster.coordination.interface import Coordination, CoordinationUnavailable, KeyValue, Put
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.core.cell.partition_plans import SplitPartition
from quaymaster.core.values.commands.messages import Done
from quaymaster.core.values.commands.partitions import (
    AskMarks,
    AskPartition,
    ForgetQueue,
    MarksOutcome,
    PartitionOutcome,
    SetQueue,
)
from quaymaster.core.values.commands.unions import Command, Outcome
from quaymaster.core.values.errors import AccessDenied, NotNow, UnsupportedOperation
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.partition_tables import in_state
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_marks import QueueMarks
from quaymaster.managers.partition_manager import request_of
from quaymaster.metadata.keys.key_providers import FileKeyProvider
from quaymaster.metadata.node import MetadataNode
from quaymaster.metadata.service import MetadataService
from quaymaster.net.certificates import CertificateAuthority
from quaymaster.net.routing.broker_client import Reply
from quaymaster.net.routing.metadata_client import when_known
from quaymaster.net.tls import TransportSecurityError
from quaymaster.node.cell.manager_role import queue_nodes
from quaymaster.node.cell.metadata_roles import start_metadata_node, start_remote_metadata
from quaymaster.node.cell.transport import Transport
from quaymaster.node.data.stores import open_etcd
from quaymaster.protocol.rpc.metadata_messages import ChangedQueue, CreateGroup, CreateQueue, DeleteQueue
from quaymaster.settings import Settings, load_settings

ACCOUNT = "000000000000"


class Brokers:
    """Brokers that know queues, each in its journal."""

    def __init__(self) -> None:
        self.queues: dict[int, QueueDefinition] = {}
        self.journals: dict[int, int] = {}

    def connect(self, journal_of: Callable[[int, int], int | None]) -> Any:
        brokers = self

        class Client:
            def submit(self, command: Command, reply: Reply) -> None:
                outcome: Outcome = Done()
                match command:
                    case AskMarks():
                        outcome = MarksOutcome(QueueMarks(queue_id=max(brokers.queues, default=0)))
                    case AskPartition():
                        outcome = PartitionOutcome(0, False, 1, 1, 0, 1)
                    case SetQueue(definition):
                        brokers.queues[definition.queue_id] = definition
                    case ForgetQueue(queue_id):
                        journal_id = journal_of(queue_id, 0)
                        assert journal_id is not None, "a deleted queue's journal is known"
                        brokers.journals[queue_id] = journal_id
                        brokers.queues.pop(queue_id, None)
                asyncio.get_running_loop().call_soon(reply, outcome)

        return Client()


async def add_journals(store: Coordination) -> None:
    """Do what the in-cluster manager does, as far as metadata sees it."""
    configuration = encode_configuration(JournalConfiguration(1, "b1@s1", ("b1@s1",), ("b1@s1",), True))
    await store.transaction([], [Put(configuration_key(number), configuration) for number in (3, 4)])


class Parts:
    """What a test starts nodes and front ends of."""

    def __init__(self, directory: Path, stack: AsyncExitStack, **flags: object) -> None:
        self.directory = directory
        self.stack = stack
        self.flags = flags
        self.brokers = Brokers()
        self.nodes: list[MetadataNode] = []
        self.addresses: list[str] = []

    def settings(self, **flags: object) -> Settings:
        return load_settings(flags={**self.flags, **flags}, environment={})

    async def start_node(self, name: str, store: Any, *, port: int = 0, **flags: object) -> MetadataNode:
        settings = self.settings(node=name, metadata_listen=f"127.0.0.1:{port}", **flags)
        await add_journals(store)
        node, address = await start_metadata_node(
            Transport(settings, "metadata"),
            self.stack,
            store,
            connect_brokers=self.brokers.connect,
        )
        self.nodes.append(node)
        self.addresses.append(str(address))
        return node

    async def start_front_end(self, name: str, *, wait_s: float = 30, **flags: object) -> MetadataService:
        keys = self.directory / f"keys-{name}"
        first = self.directory / "keys-a"
        if first.exists() and not keys.exists():
            shutil.copytree(first, keys)
        settings = self.settings(node=name, metadata_nodes=",".join(self.addresses), **flags)
        return await start_remote_metadata(
            Transport(settings, "frontend"), self.stack, FileKeyProvider(keys), wait_s=wait_s
        )


def test_cell_creates_finds_and_deletes_queues_and_goes_on_while_etcd_is_away(tmp_path: Path) -> None:
    async def scenario(etcd: EtcdCluster) -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
            parts = Parts(
                tmp_path,
                stack,
                coordination="etcd",
                etcd_endpoints=",".join(etcd.endpoints),
                etcd_timeout_ms=1_000,
                metadata_timeout_ms=4_000,
                metadata_staleness_ms=60_000,
            )
            for name in ("one", "two"):
                store = open_etcd(parts.settings())
                stack.push_async_callback(store.close)
                await parts.start_node(name, store)
            a = await parts.start_front_end("a")
            b = await parts.start_front_end("b")

            created = [await create_patiently(a, name) for name in ("orders", "refunds")]
            assert sorted(parts.brokers.queues) == sorted(queue.queue_id for queue in created)
            # Spread over the journals there are.
            assert sorted(queue.partitions[0].journal_id for queue in created) == [3, 4]
            assert await when_known(lambda: b.queue(ACCOUNT, "orders")) == created[0]
            assert b.queues.journal_of(created[0].queue_id, 0) == created[0].partitions[0].journal_id
            # What it has heard of is known also while etcd is away; the rest could not be found out then.
            await when_known(lambda: b.data_key(created[1].data_key_id))

            await asyncio.to_thread(etcd.kill, 0)
            assert a.find_queue(ACCOUNT, "orders") == created[0]
            assert len(b.data_key(created[1].data_key_id)) == 32
            with pytest.raises(NotNow):
                await a.queues.change(CreateQueue(ACCOUNT, "more"))
            await asyncio.to_thread(etcd.start, 0)

            more = await create_patiently(a, "more")
            await eventually(lambda: len(b.queues) == 3)
            assert b.find_queue(ACCOUNT, "more") == more
            await b.queues.change(DeleteQueue(ACCOUNT, "orders"))
            assert created[0].queue_id not in parts.brokers.queues
            assert parts.brokers.journals == {created[0].queue_id: created[0].partitions[0].journal_id}
            await eventually(lambda: len(a.queues) == 2)

    with EtcdCluster.started(tmp_path) as etcd:
        asyncio.run(scenario(etcd))


def test_nodes_of_one_machine_may_share_a_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
            parts = Parts(tmp_path, stack)
            for name in ("one", "two"):
                store = await SQLiteCoordination.open(tmp_path / "metadata.sqlite")
                stack.push_async_callback(store.close)
                await parts.start_node(name, store)
            a = await parts.start_front_end("a")
            b = await parts.start_front_end("b")

            created = await asyncio.gather(
                *(create_patiently(end, "orders") for end in (a, b) for _ in range(3))
            )

            assert len({queue.queue_id for queue in created}) == 1
            assert list(parts.brokers.queues) == [created[0].queue_id]

    asyncio.run(scenario())


async def create_patiently(front_end: MetadataService, name: str, **attributes: str) -> QueueDefinition:
    """Create a queue as an SDK does, which tries again after a 503."""
    while True:
        try:
            return await front_end.queues.change(CreateQueue(ACCOUNT, name, attributes))
        except NotNow:
            await asyncio.sleep(0.1)


def test_nodes_take_front_ends_with_certificates_only(tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca", "eu1", days=10)
    for name, role in (("one", "metadata"), ("a", "frontend"), ("c", "broker")):
        authority.issue(name, [role], days=1)
    nodes = tmp_path / "ca" / "nodes"

    async def scenario() -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
            parts = Parts(tmp_path, stack, cell="eu1")
            await parts.start_node("one", MemoryCoordination(), tls_directory=nodes / "one")
            a = await parts.start_front_end("a", tls_directory=nodes / "a")
            await create_patiently(a, "orders")

            for stranger, flags in (
                ("b", {}),
                ("c", {"tls_directory": nodes / "c"}),
                ("a", {"tls_directory": nodes / "a", "cell": "eu2"}),
            ):
                with pytest.raises((NotNow, TransportSecurityError)):
                    await parts.start_front_end(stranger, wait_s=0, **flags)

    asyncio.run(scenario())


def test_manager_with_its_certificate_has_a_queue_split_where_it_says_and_is_refused_all_else(
    tmp_path: Path,
) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca", "eu1", days=10)
    for name, role in (("one", "metadata"), ("a", "frontend"), ("m", "manager")):
        authority.issue(name, [role], days=1)
    certificates = tmp_path / "ca" / "nodes"

    async def scenario() -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
            parts = Parts(tmp_path, stack, cell="eu1")
            await parts.start_node("one", MemoryCoordination(), tls_directory=certificates / "one")
            a = await parts.start_front_end("a", tls_directory=certificates / "a")
            queue = await create_patiently(a, "orders")
            settings = parts.settings(
                node="m", tls_directory=certificates / "m", metadata_nodes=",".join(parts.addresses)
            )
            nodes = queue_nodes(Transport(settings, "manager"), stack)

            (found,) = await nodes.find([queue.queue_id])
            assert found == queue
            split = SplitPartition(queue.queue_id, 0, 1 << 60, (3, 4), "it is busy")
            began = await nodes.change(request_of(split, found))
            assert [(one.journal_id, one.first_key) for one in in_state(began, "new")] == [
                (3, 0),
                (4, 1 << 60),
            ]
            with pytest.raises(UnsupportedOperation, match="changed meanwhile"):
                await nodes.change(request_of(split, found))
            # A log is found and split like other queues; its groups have its partitions.
            log = await create_patiently(a, "events", RetentionMode="Log")
            group = await a.queues.change(CreateGroup(ACCOUNT, "events@search"))
            (found,) = [one for one in await nodes.find([log.queue_id, group.queue_id]) if not one.group_of]
            split = SplitPartition(found.queue_id, 0, 1 << 63, (3, 4), "it is busy")
            assert len(in_state(await nodes.change(request_of(split, found)), "new")) == 2
            with pytest.raises(AccessDenied, match="A manager may not ask for DeleteQueue"):
                await nodes.client.ask(DeleteQueue(ACCOUNT, "orders"), ChangedQueue, deadline_ms=10_000)

    asyncio.run(scenario())


def test_front_end_and_node_wait_for_what_is_started_after_them(tmp_path: Path) -> None:
    class LateStore(MemoryCoordination):
        is_there = False

        async def get(self, key: str) -> KeyValue | None:
            if not self.is_there:
                raise CoordinationUnavailable
            return await super().get(key)

    async def scenario() -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
            port = free_port()
            parts = Parts(tmp_path, stack)
            parts.addresses = [f"127.0.0.1:{port}"]
            store = LateStore()
            starting_front_end = asyncio.create_task(parts.start_front_end("a"))
            starting_node = asyncio.create_task(parts.start_node("one", store, port=port))
            await asyncio.sleep(0.3)
            assert not starting_node.done()
            assert not starting_front_end.done()

            store.is_there = True
            await starting_node
            a = await starting_front_end

            await create_patiently(a, "orders")

    asyncio.run(scenario())


def test_declared_queues_are_made_at_the_start_of_a_front_end(tmp_path: Path) -> None:
    file = tmp_path / "queues.toml"
    file.write_text("[queues.orders]\n")

    async def scenario() -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
            parts = Parts(tmp_path, stack)
            await parts.start_node("one", MemoryCoordination())
            a = await parts.start_front_end("a", queues_file=file)

            assert a.find_queue(ACCOUNT, "orders") is not None

    asyncio.run(scenario())
