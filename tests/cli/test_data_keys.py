"""Data keys with real journals: dead letters stay readable as long as they exist, and unneeded keys go."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.broker_support import BrokerTester, running
from harness.held_entries import held_entries
from harness.server_metadata import count_all
from metadata.support import ACCOUNT, Clock, eventually

from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.structures import touch_log
from quaymaster.core.values.commands.messages import Delete, NewMessage
from quaymaster.core.values.commands.move_tasks import StartMoveTask
from quaymaster.core.values.messages import MessageContent, decode_message, join_payload, split_payload
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.queue_journal import BrokerQueueJournal
from quaymaster.messaging.encryption import MessageCipher
from quaymaster.metadata.keys.key_providers import FileKeyProvider
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.queue_registry import QueueRegistry
from quaymaster.metadata.queues import known_queues
from quaymaster.metadata.service import MetadataService
from quaymaster.metadata.store.rows import DATA_KEYS, id_text
from quaymaster.protocol.rpc.metadata_messages import (
    BeginPurge,
    CreateGroup,
    CreateQueue,
    DeleteQueue,
    TagQueue,
)

OWN = {"KmsMasterKeyId": "alias/own"}
DEAD_ARN = f"arn:aws:sqs:local:{ACCOUNT}:dead"
CONTENT = MessageContent("the body", bytes(16), [], None, "sender")


class Server:
    """A broker and metadata over one store, as one process has them."""

    def __init__(
        self, tester: BrokerTester, registry: QueueRegistry, metadata: MetadataService, clock: Clock
    ) -> None:
        self.registry = registry
        self.tester = tester
        self.metadata = metadata
        self.clock = clock

    async def create(self, name: str, attributes: dict[str, str] | None = None) -> QueueDefinition:
        return await self.metadata.queues.change(CreateQueue(ACCOUNT, name, attributes or {}))

    async def delete(self, name: str) -> None:
        await self.metadata.queues.change(DeleteQueue(ACCOUNT, name))

    async def send(self, queue: QueueDefinition, number: int = 1) -> None:
        message_id = number.to_bytes(16, "big")
        closed = MessageCipher(self.metadata.data_key).encrypt_content(CONTENT, queue, message_id)
        flags, payload = join_payload(0, None, None, closed)
        await self.tester.send(queue.queue_id, NewMessage(message_id, payload, flags))

    async def receive(self, queue: QueueDefinition) -> list[MessageContent]:
        """Receive, read with what a fresh front end has, and delete."""
        cipher = MessageCipher(self.metadata.data_key)
        deliveries = await self.tester.receive(queue.queue_id, timeout_ms=60_000)
        if deliveries:
            await self.tester.ask(Delete(queue.queue_id, 0, self.tester.receipts(deliveries)))
        return [
            cipher.open_stored(decode_message(split_payload(delivery.flags, delivery.payload)[3]))
            for delivery in deliveries
        ]

    async def pass_days(self, days: int) -> None:
        """Let days pass for keys: a sweep on each."""
        for _ in range(days):
            self.clock.pass_s(86_400)
            await count_all(self.registry.counted_time)
            await self.registry.data_key_sweep.run_if_due()

    async def compact(self) -> None:
        """Give back what deleted messages took."""
        for _ in range(2):
            await self.tester.broker.snapshots.write()
        await self.tester.broker.compaction.step(younger_than_ms=0)

    async def has_key(self, key_id: int) -> bool:
        return await self.registry._store.get(DATA_KEYS + id_text(key_id)) is not None


@asynccontextmanager
async def serving(tmp_path: Path, **changes: Any) -> AsyncIterator[Server]:
    store = MemoryCoordination()
    clock = Clock()
    options = MetadataOptions("local", ACCOUNT, queue_name_reuse_s=0, upkeep_interval_ms=3_600_000)
    registry = QueueRegistry(store, options, now_ms=clock, monotonic_s=clock.monotonic_s)
    metadata = MetadataService(registry, FileKeyProvider(tmp_path / "keys"), options, now_ms=clock)
    await metadata.start()
    async with running(tmp_path / "journal", coordination=store, **changes) as tester:
        registry.attach_journal(BrokerQueueJournal(tester.broker))
        await registry.data_key_sweep.run_if_due()
        yield Server(tester, registry, metadata, clock)
    await metadata.close()


def test_dead_letter_is_readable_after_its_queue_was_deleted_and_the_master_key_rotated(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            dead = await server.create("dead", OWN)
            source = await server.create(
                "source",
                {**OWN, "RedrivePolicy": f'{{"deadLetterTargetArn": "{DEAD_ARN}", "maxReceiveCount": 1}}'},
            )
            back = await server.create("back", OWN)
            for number in (1, 2):
                await server.send(source, number)
            for _ in range(2):  # once they are received, then they move
                await server.tester.receive(source.queue_id, timeout_ms=0)
            await server.delete("source")
            await server.metadata.rotate_master_key()
            await server.pass_days(20)
            assert await server.has_key(source.data_key_id)

            assert await server.receive(dead) == [CONTENT, CONTENT]
            await server.compact()
            assert await server.receive(back) == []

    asyncio.run(scenario())


def test_redriven_message_keeps_the_key_that_it_is_closed_with_and_the_key_goes_after_it(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            dead = await server.create("dead")
            source = await server.create(
                "source",
                {**OWN, "RedrivePolicy": f'{{"deadLetterTargetArn": "{DEAD_ARN}", "maxReceiveCount": 1}}'},
            )
            target = await server.create("target")
            await server.send(source)
            for _ in range(2):
                await server.tester.receive(source.queue_id, timeout_ms=0)
            await server.delete("source")
            await server.tester.ask(
                StartMoveTask(
                    dead.queue_id,
                    task_id=bytes(16),
                    source_arn=DEAD_ARN,
                    target_arn=f"arn:aws:sqs:local:{ACCOUNT}:target",
                    target_queue_id=target.queue_id,
                    rate_per_s=None,
                )
            )
            found: list[MessageContent] = []
            while not found:
                found = await server.receive(target)
                await asyncio.sleep(0.01)
            assert found == [CONTENT]

            # Its record is still in the journal: with others behind it, compaction takes it away.
            for number in range(10, 210):
                await server.send(target, number)
            await server.pass_days(20)
            assert await server.has_key(source.data_key_id)
            await server.compact()
            await server.pass_days(9)

            assert not await server.has_key(source.data_key_id)
            assert await server.receive(target) == [CONTENT] * 10

    asyncio.run(scenario())


def test_nothing_is_left_of_queues_that_were_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        known_queues, "GONE_MAX", 3
    )  # of deleted queues, whose journals may be told once more
    monkeypatch.setattr(touch_log, "STALE_MAX", 3)  # of gone partitions, of which readers are told once more

    async def scenario() -> None:
        async with serving(tmp_path) as server:
            queues, host = server.metadata.queues, server.tester.broker.host
            await server.create("stays")

            async def use(count: int, first: int) -> Counter[str]:
                for number in range(first, first + count):
                    attributes = OWN if number % 2 else {"RetentionMode": "Log"}
                    queue = await server.create(f"q{number}", attributes)
                    await server.send(queue, number)
                    if number % 2:
                        await server.tester.receive(queue.queue_id, timeout_ms=60_000)
                    await server.metadata.queues.change(TagQueue(ACCOUNT, queue.name, {"a": "b"}))
                    await server.metadata.queues.change(BeginPurge(ACCOUNT, queue.name, queue.queue_id))
                    if not number % 2:
                        await server.metadata.queues.change(CreateGroup(ACCOUNT, f"{queue.name}@group"))
                    await server.delete(queue.name)
                server.clock.pass_s(120)
                await server.registry.queues.reconcile(older_than_ms=60_000)
                await server.compact()
                await server.pass_days(9)
                while host.replica.queues.empty_some(1_000):
                    pass
                await eventually(
                    lambda: not any(table._gone for table in server.metadata.registry.mirror._tables.values())
                )
                gc.collect()
                return held_entries(
                    queues,
                    server.metadata,
                    host.replica.queues,
                    host.receives.waiters,
                    besides=(
                        server.registry._store,
                        asyncio.get_running_loop(),
                        host.replica.log,
                        server.tester.broker.files,
                        host.bodies,
                    ),
                )

            before = await use(20, 0)
            after = await use(60, 20)

            assert after - before == Counter()

    asyncio.run(scenario())
