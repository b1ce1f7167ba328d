"""The usage feed as a whole: incarnations, shipping, the pipeline's access; brokers away, spools that are full."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from frontend.support import FakeBroker, Service, embedded_metadata, serving_with, until
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.commands.messages import Send
from quaymaster.core.values.errors import NotNow
from quaymaster.frontend.assembly import make_usage_feed, make_usage_shipper
from quaymaster.frontend.usage.incarnations import FrontEndIncarnations
from quaymaster.frontend.usage.usage_feed import UsageFeed, ensure_pipeline_key, set_up_pipeline
from quaymaster.frontend.usage.usage_shipper import UsageShipper
from quaymaster.messaging.encryption import MessageCipher
from quaymaster.metadata.service import MetadataService
from quaymaster.monitoring.metric_table import METRICS
from quaymaster.protocol.rpc.metadata_messages import DeleteQueue
from quaymaster.protocol.sqs.internal_queues import INTERNAL_ACCOUNT, USAGE_QUEUE
from quaymaster.protocol.usage.usage_blocks import Seal, UsageBlock, decode_block, parse_block_text
from quaymaster.settings import load_settings


def on_a_loop(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Run a test that awaits."""

    @wraps(test)
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    return run


class Running:
    """A front end with a feed, and what stands behind them."""

    def __init__(
        self,
        service: Service,
        feed: UsageFeed,
        shipper: UsageShipper,
        broker: FakeBroker,
        metadata: MetadataService,
    ) -> None:
        self.service = service
        self.feed = feed
        self.shipper = shipper
        self.broker = broker
        self.metadata = metadata

    async def send(self, count: int = 1) -> None:
        """Send messages, one a request."""
        for _ in range(count):
            given = {"QueueUrl": self.service.client.url("orders"), "MessageBody": "hello"}
            assert (await self.service.client.json("SendMessage", given)).status == 200

    def sample(self, name: str) -> float:
        """Return a metric's value, summed over its labels."""
        assert name in METRICS
        return sum(sample.value for sample in self.feed.samples() if sample.name == name)


def shipped(broker: FakeBroker, metadata: MetadataService) -> list[UsageBlock]:
    """Return the blocks in the usage queue, opened as a consumer would."""
    queue = metadata.find_queue(INTERNAL_ACCOUNT, USAGE_QUEUE)
    if queue is None:
        return []
    cipher = MessageCipher(metadata.data_key)
    contents = [cipher.open_stored(stored) for stored in broker.stored(queue.queue_id)]
    return [decode_block(parse_block_text(content.body)) for content in contents]


@asynccontextmanager
async def cell_of_one() -> AsyncIterator[tuple[FakeBroker, MetadataService]]:
    """Give what front ends stand on, over several starts of them."""
    broker = FakeBroker()
    settings = load_settings(flags={"queue_name_reuse_s": 0}, environment={})
    async with embedded_metadata(settings, broker) as metadata:
        yield broker, metadata


@asynccontextmanager
async def running(
    data: Path, broker: FakeBroker, metadata: MetadataService, store: MemoryCoordination, **flags: object
) -> AsyncIterator[Running]:
    """Start a front end with its feed, and stop both in order."""
    settings = load_settings(
        flags={"usage_sync_ms": 10, "broker_timeout_ms": 200, "slow_request_ms": 0, **flags}, environment={}
    )
    feed = make_usage_feed(settings, data, node="fe-1")
    await feed.start(store, "us-east-1")
    async with serving_with(settings, broker, metadata, feed.recorder) as service:
        if metadata.find_queue(INTERNAL_ACCOUNT, "orders") is None:
            await service.add_queue("orders")
        shipper = make_usage_shipper(settings, feed, broker=broker, metadata=metadata)
        feed.ship(shipper)
        yield Running(service, feed, shipper, broker, metadata)
    await feed.stop()


@on_a_loop
async def test_a_feed_that_ships_nothing_yet_seals_its_incarnation_when_it_stops(tmp_path: Path) -> None:
    async with cell_of_one() as (broker, metadata):
        feed = make_usage_feed(load_settings(flags={}, environment={}), tmp_path, node="fe-1")
        await feed.start(MemoryCoordination(), "us-east-1")
        await feed.stop()

        async with running(tmp_path, broker, metadata, MemoryCoordination()) as one:
            await until(lambda: one.shipper.is_idle.is_set())

        seals = [block.header.seal for block in shipped(broker, metadata) if block.header.seal]
        assert [seal.reason for seal in seals] == ["stopped", "stopped"]


@on_a_loop
async def test_what_is_answered_is_in_the_usage_queue_soon_and_ends_with_a_seal(tmp_path: Path) -> None:
    async with cell_of_one() as (broker, metadata):
        async with running(tmp_path, broker, metadata, MemoryCoordination()) as one:
            await one.send(5)
            await until(lambda: sum(block.header.rows for block in shipped(broker, metadata)) == 5)
            assert one.sample("quaymaster_usage_records_total") == 5
            await until(lambda: one.sample("quaymaster_usage_records_shipped_total") == 5)
            assert one.sample("quaymaster_usage_records_written_total") == 5
            assert one.sample("quaymaster_usage_spool_bytes") > 0

        blocks = shipped(broker, metadata)
        assert blocks[-1].header.seal == Seal(blocks[0].header.incarnation, 5, "stopped")
        assert [block.header.previous for block in blocks[1:]] == [block.digest for block in blocks[:-1]]
        assert {block.header.front_end for block in blocks} == {"fe-1"}


@on_a_loop
async def test_every_start_has_an_incarnation_of_its_own(tmp_path: Path) -> None:
    store = MemoryCoordination()
    async with cell_of_one() as (broker, metadata):
        for _ in range(3):
            async with running(tmp_path, broker, metadata, store) as one:
                await one.send()

        seals = [block.header.seal for block in shipped(broker, metadata) if block.header.seal]
        assert len({seal.incarnation for seal in seals}) == 3
        assert [seal.end_sequence for seal in seals] == [1, 1, 1]


@on_a_loop
async def test_a_cloned_disk_has_other_incarnations(tmp_path: Path) -> None:
    store = MemoryCoordination()
    async with cell_of_one() as (broker, metadata):
        (tmp_path / "a").mkdir()
        async with running(tmp_path / "a", broker, metadata, store):
            pass
        (tmp_path / "a").rename(tmp_path / "b")
        async with (
            running(tmp_path / "a", broker, metadata, store) as one,
            running(tmp_path / "b", broker, metadata, store) as other,
        ):
            await one.send(2)
            await other.send(3)

        rows: dict[int, int] = {}
        for block in shipped(broker, metadata):
            rows[block.header.incarnation] = rows.get(block.header.incarnation, 0) + block.header.rows
        assert sorted(rows.values()) == [0, 2, 3]


@on_a_loop
async def test_an_incarnation_whose_spool_is_gone_is_sealed_as_lost(tmp_path: Path) -> None:
    store = MemoryCoordination()
    async with cell_of_one() as (broker, metadata):
        async with running(tmp_path / "old", broker, metadata, store):
            pass
        async with running(tmp_path / "new", broker, metadata, store):
            pass

        seals = [block.header.seal for block in shipped(broker, metadata) if block.header.seal]
        assert [seal.reason for seal in seals] == ["stopped", "lost", "stopped"]
        assert seals[0].incarnation == seals[1].incarnation != seals[2].incarnation


@on_a_loop
async def test_incarnations_do_not_come_again_with_a_store_from_a_backup(tmp_path: Path) -> None:
    restored = MemoryCoordination()

    def incarnations(store: MemoryCoordination, now_us: int = 1_000_000_000) -> FrontEndIncarnations:
        return FrontEndIncarnations(store, now_us=lambda: now_us)

    first, before = await incarnations(restored).claim("fe-1", after=0)
    second, last = await incarnations(restored).claim("fe-1", after=0)
    third, _ = await incarnations(MemoryCoordination()).claim("fe-1", after=second)
    fourth, _ = await incarnations(MemoryCoordination(), 9_000_000_000).claim("fe-1", after=0)

    assert (before, last) == (None, first)
    assert first < second < third < fourth
    assert fourth == 9_000


@on_a_loop
async def test_while_brokers_are_away_records_wait_and_then_come_once(tmp_path: Path) -> None:
    async with cell_of_one() as (broker, metadata):
        async with running(tmp_path, broker, metadata, MemoryCoordination()) as one:
            await one.send()
            await until(lambda: one.sample("quaymaster_usage_records_shipped_total") == 1)
            broker.failure = NotNow()
            for _ in range(3):
                answer = await one.service.client.json("ListQueues", {})
                assert answer.status == 200
            await until(lambda: one.sample("quaymaster_usage_ship_lag_seconds") > 0)
            broker.failure = None
            await until(lambda: one.sample("quaymaster_usage_records_shipped_total") == 4)

        assert sum(block.header.rows for block in shipped(broker, metadata)) == 4


@on_a_loop
async def test_a_block_that_is_sent_again_has_the_same_retry_identity(tmp_path: Path) -> None:
    async with cell_of_one() as (broker, metadata):
        async with running(tmp_path, broker, metadata, MemoryCoordination()) as one:
            await until(lambda: one.sample("quaymaster_usage_blocks_shipped_total") == 1)
            await one.send()
            await until(lambda: one.sample("quaymaster_usage_blocks_shipped_total") == 2)

            def sends() -> list[Send]:
                return [command for command in broker.commands if isinstance(command, Send)]

            broker.commands.clear()
            broker.is_silent = True
            one.feed.recorder.take()
            await one.service.client.json("ListQueues", {})
            await until(lambda: len(sends()) >= 2)
            broker.is_silent = False

        identities = {command.messages[0].retry for command in sends()[:2]}
        assert len(identities) == 1
        assert None not in identities
        assert all(command.messages[0].may_be_retry for command in sends())


@on_a_loop
async def test_what_was_not_shipped_at_the_end_is_shipped_by_the_next_start(tmp_path: Path) -> None:
    store = MemoryCoordination()
    async with cell_of_one() as (broker, metadata):
        async with running(tmp_path, broker, metadata, store) as one:
            broker.is_silent = True
            await one.service.client.json("ListQueues", {})
        broker.is_silent = False
        async with running(tmp_path, broker, metadata, store) as one:
            await until(lambda: one.shipper.is_idle.is_set())

        assert sum(block.header.rows for block in shipped(broker, metadata)) == 1


@on_a_loop
async def test_a_full_spool_is_told_and_requests_go_on(tmp_path: Path) -> None:
    async with cell_of_one() as (broker, metadata):
        async with running(tmp_path, broker, metadata, MemoryCoordination(), usage_heartbeat_s=1) as one:
            one.feed._spool._bytes_max = 0
            await one.send(3)
            await until(lambda: one.sample("quaymaster_usage_records_dropped_total") == 3)
            one.feed._spool._bytes_max = 1 << 20
            await one.send(2)
            await until(lambda: one.sample("quaymaster_usage_records_written_total") == 2)

        blocks = shipped(broker, metadata)
        dropped = [block.header.dropped for block in blocks if block.header.dropped]
        assert sum(line.to_sequence - line.from_sequence for line in dropped) == 3
        assert sum(block.header.rows for block in blocks) == 2
        assert blocks[-1].header.seal is not None
        assert blocks[-1].header.seal.end_sequence == 5


@on_a_loop
async def test_an_idle_front_end_ships_a_block_now_and_then(tmp_path: Path) -> None:
    async with cell_of_one() as (broker, metadata):
        async with running(tmp_path, broker, metadata, MemoryCoordination(), usage_heartbeat_s=1):
            await until(lambda: len(shipped(broker, metadata)) >= 3)

        watermarks = [block.header.low_watermark_us for block in shipped(broker, metadata)]
        assert watermarks == sorted(watermarks)
        assert watermarks[1] - watermarks[0] >= 900_000


@on_a_loop
async def test_a_usage_queue_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    async with cell_of_one() as (broker, metadata):
        async with running(tmp_path, broker, metadata, MemoryCoordination()) as one:
            await until(lambda: one.shipper.blocks)
            await metadata.queues.change(DeleteQueue(INTERNAL_ACCOUNT, USAGE_QUEUE))
            await one.send()
            await until(lambda: one.shipper.records)

        assert sum(block.header.rows for block in shipped(broker, metadata)) == 1


@on_a_loop
async def test_the_pipeline_has_a_key_of_its_own_and_a_file_that_says_what_to_read(tmp_path: Path) -> None:
    async with (
        cell_of_one() as (broker, metadata),
        running(tmp_path, broker, metadata, MemoryCoordination()) as one,
    ):
        written: list[bytes] = []
        for _ in range(2):
            await set_up_pipeline(
                metadata.accounts,
                one.shipper,
                written.append,
                endpoint_url="http://localhost:9324",
                region="us-east-1",
            )

        described = json.loads(written[0])
        assert written[0] == written[1]
        key = metadata.access_key(described["access_key_id"])
        assert key is not None
        assert (key.name, key.account_id, key.secret) == (
            "pipeline",
            INTERNAL_ACCOUNT,
            described["secret_access_key"],
        )
        assert described["queue_url"] == f"http://localhost:9324/{INTERNAL_ACCOUNT}/{USAGE_QUEUE}"
        assert metadata.default_access_key != key


@on_a_loop
async def test_a_disabled_pipeline_key_is_replaced(tmp_path: Path) -> None:
    async with cell_of_one() as (_, metadata):
        first = await ensure_pipeline_key(metadata.accounts)
        await metadata.accounts.set_enabled(first.access_key_id, enabled=False)

        second = await ensure_pipeline_key(metadata.accounts)

        assert second.access_key_id != first.access_key_id


class Strangers:
    """Accounts without the internal one."""

    def __init__(self, metadata: MetadataService) -> None:
        self._accounts = metadata.accounts
        self.created: list[tuple[str, str | None]] = []

    def account(self, account_id: str) -> None:
        return None

    async def create_account(self, name: str, account_id: str | None = None) -> object:
        self.created.append((name, account_id))
        return await self._accounts.create_account(name, account_id)  # it is there: another was faster

    def list_access_keys(self, account_id: str) -> Any:
        return self._accounts.list_access_keys(account_id)

    async def create_access_key(self, account_id: str, name: str = "") -> Any:
        return await self._accounts.create_access_key(account_id, name)


@on_a_loop
async def test_the_internal_account_is_made_where_it_is_not_the_default_one(tmp_path: Path) -> None:
    async with cell_of_one() as (_, metadata):
        strangers = Strangers(metadata)

        key = await ensure_pipeline_key(strangers)

        assert strangers.created == [("internal", INTERNAL_ACCOUNT)]
        assert key.name == "pipeline"


@on_a_loop
async def test_access_is_set_up_as_soon_as_the_file_can_be_written(tmp_path: Path) -> None:
    async with cell_of_one() as (broker, metadata):
        async with running(tmp_path, broker, metadata, MemoryCoordination()) as one:
            attempts: list[bytes] = []

            def write(described: bytes) -> None:
                attempts.append(described)
                if len(attempts) == 1:
                    raise OSError("no space")

            await set_up_pipeline(
                metadata.accounts, one.shipper, write, endpoint_url="http://localhost", region="r"
            )

        assert len(attempts) == 2


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once."""
    monkeypatch.setattr("quaymaster.frontend.usage.usage_shipper.RETRY_MIN_S", 0.01)
    monkeypatch.setattr("quaymaster.frontend.usage.usage_shipper.RETRY_MAX_S", 0.02)
    monkeypatch.setattr("quaymaster.frontend.usage.usage_feed.RETRY_MIN_S", 0.01)
