"""Acts that no front end answered are in a chain, once, whenever a process ends; answers to changes wait for theirs."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from harness.waiting import PATIENCE_S

from frontend.support import ACCOUNT, FakeBroker, serving_with, until
from frontend.usage.test_usage_feed import cell_of_one, on_a_loop, shipped
from quaymaster.coordination.interface import Compare, CoordinationUnavailable, Put
from quaymaster.coordination.left_acts import LeftActs
from quaymaster.coordination.noted_acts import (
    NotedAct,
    act_of_user,
    encode_act,
    list_acts,
    new_act,
    note_act,
)
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.frontend.assembly import make_usage_feed, make_usage_shipper
from quaymaster.frontend.usage import act_chain, usage_feed
from quaymaster.frontend.usage.act_chain import drop_acts, drop_left_acts
from quaymaster.frontend.usage.incarnations import FrontEndIncarnations
from quaymaster.frontend.usage.usage_feed import UsageFeed
from quaymaster.metadata.service import MetadataService
from quaymaster.protocol.usage.usage_records import UsageRecord
from quaymaster.settings import load_settings


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(act_chain, "LOOK_S", 0.01)


DRAINED = new_act("DrainBroker", "ann@desk as c/operator/o1", "10.0.0.7:4711", {"broker": "b1"})


class WaywardStore(MemoryCoordination):
    """Deletes nothing while `keeps` is set."""

    keeps = False

    async def transaction(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        """As that of the memory, or refused."""
        if self.keeps and deletes:
            raise CoordinationUnavailable
        return await super().transaction(compares, puts, deletes)


async def begun(data: Path, store: MemoryCoordination, name: str = "fe-1", **flags: object) -> UsageFeed:
    settings = load_settings(flags={"usage_sync_ms": 10, **flags}, environment={})
    feed = make_usage_feed(settings, data, node=name)
    await feed.start(store, "us-east-1")
    return feed


def ship(feed: UsageFeed, broker: FakeBroker, metadata: MetadataService) -> None:
    settings = load_settings(flags={"broker_timeout_ms": 200}, environment={})
    feed.ship(make_usage_shipper(settings, feed, broker=broker, metadata=metadata))


def events(broker: FakeBroker, metadata: MetadataService) -> list[UsageRecord]:
    """Return the acts in the usage queue."""
    found = [record for block in shipped(broker, metadata) for record in block.records()]
    return [record for record in found if record.request_id.startswith("act-")]


@on_a_loop
async def test_an_act_that_was_noted_is_in_the_chain_with_who_did_it_and_from_where(tmp_path: Path) -> None:
    store = MemoryCoordination()
    await note_act(store, DRAINED)
    async with cell_of_one() as (broker, metadata):
        feed = await begun(tmp_path, store)
        await feed.chain_acts(store, ACCOUNT, LeftActs(tmp_path))
        assert await list_acts(store) == []
        ship(feed, broker, metadata)
        await until(lambda: len(events(broker, metadata)) == 1)
        await feed.stop()

        (event,) = events(broker, metadata)
        assert (event.action, event.category, event.read_only) == ("DrainBroker", "management", False)
        assert (event.principal_id, event.source_ip) == ("ann@desk as c/operator/o1", "10.0.0.7:4711")
        assert (event.account_id, event.protocol, event.request_id) == (ACCOUNT, "admin", DRAINED.id)
        assert json.loads(event.request_params) == {"broker": "b1", "time_ms": DRAINED.time_ms}
        assert event.record_hash


@on_a_loop
async def test_acts_noted_while_a_front_end_runs_are_taken_too(tmp_path: Path) -> None:
    store = MemoryCoordination()
    async with cell_of_one() as (broker, metadata):
        feed = await begun(tmp_path, store)
        await feed.chain_acts(store, ACCOUNT, LeftActs(tmp_path))
        ship(feed, broker, metadata)
        await note_act(store, DRAINED)
        await until(lambda: len(events(broker, metadata)) == 1)
        await feed.stop()


@on_a_loop
async def test_an_act_has_one_event_although_the_front_end_is_killed_before_its_row_is_deleted(
    tmp_path: Path,
) -> None:
    store = WaywardStore()
    await note_act(store, DRAINED)
    store.keeps = True
    async with cell_of_one() as (broker, metadata):
        killed = await begun(tmp_path / "killed", store)
        chaining = asyncio.create_task(killed.chain_acts(store, ACCOUNT, LeftActs(tmp_path)))
        ship(killed, broker, metadata)
        await until(lambda: killed._spool.noted_acts)
        assert [act.taken_by for act, _ in await list_acts(store)] == ["fe-1"]
        shutil.copytree(tmp_path / "killed", tmp_path / "again")
        assert events(broker, metadata) == []  # what may be told again is not shipped
        chaining.cancel()
        await asyncio.gather(chaining, return_exceptions=True)
        await killed.stop()
        assert events(broker, metadata) == []

        store.keeps = False
        feed = await begun(tmp_path / "again", store)
        await feed.chain_acts(store, ACCOUNT, LeftActs(tmp_path))
        ship(feed, broker, metadata)
        await until(lambda: len(events(broker, metadata)) > 0)
        await feed.stop()

        assert [event.request_id for event in events(broker, metadata)] == [DRAINED.id]
        assert await list_acts(store) == []


@on_a_loop
async def test_shipping_resumes_when_a_deletion_in_doubt_turns_out_to_be_done(tmp_path: Path) -> None:
    store = WaywardStore()
    await note_act(store, DRAINED)
    store.keeps = True
    async with cell_of_one() as (broker, metadata):
        feed = await begun(tmp_path, store)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(usage_feed, "CHAIN_FIRST_S", 0.05)
            await feed.chain_acts(store, ACCOUNT, LeftActs(tmp_path))
        assert not feed._may_ship.is_set()
        store.keeps = False
        await store.transaction([], (), [DRAINED.key])
        ship(feed, broker, metadata)
        await until(lambda: len(events(broker, metadata)) == 1)
        await feed.stop()


@on_a_loop
async def test_an_act_is_in_the_chain_of_one_front_end_of_several(tmp_path: Path) -> None:
    store = MemoryCoordination()
    acts = [new_act("ForceStore", "ann@desk", "desk", {"number": number}) for number in range(20)]
    for act in acts:
        await note_act(store, act)
    async with cell_of_one() as (broker, metadata):
        feeds = [await begun(tmp_path / name, store, name) for name in ("fe-1", "fe-2", "fe-3")]
        await asyncio.gather(*(feed.chain_acts(store, ACCOUNT, LeftActs(tmp_path)) for feed in feeds))
        for feed in feeds:
            ship(feed, broker, metadata)
        await until(lambda: len(events(broker, metadata)) >= len(acts))
        for feed in feeds:
            await feed.stop()

        assert sorted(event.request_id for event in events(broker, metadata)) == sorted(
            act.id for act in acts
        )


@on_a_loop
async def test_what_a_front_end_took_that_is_gone_for_good_is_taken_by_another(tmp_path: Path) -> None:
    store = MemoryCoordination()
    incarnations = FrontEndIncarnations(store, now_us=lambda: 1_000_000)
    await incarnations.claim("gone", after=0)
    await note_act(store, msgspec.structs.replace(DRAINED, taken_by="gone"))
    async with cell_of_one() as (broker, metadata):
        feed = await begun(tmp_path, store)
        await feed.chain_acts(store, ACCOUNT, LeftActs(tmp_path))
        assert [act.taken_by for act, _ in await list_acts(store)] == ["gone"]

        await incarnations.seal("gone", unseen_ms=0)
        ship(feed, broker, metadata)
        await until(lambda: len(events(broker, metadata)) == 1)
        await feed.stop()


@on_a_loop
async def test_an_act_waits_for_room_in_the_spool(tmp_path: Path) -> None:
    store = MemoryCoordination()
    await note_act(store, DRAINED)
    async with cell_of_one() as (broker, metadata):
        feed = await begun(tmp_path, store)
        feed._spool._bytes_max = 0
        await feed.chain_acts(store, ACCOUNT, LeftActs(tmp_path))
        assert [act.taken_by for act, _ in await list_acts(store)] == ["fe-1"]

        feed._spool._bytes_max = 1 << 20
        ship(feed, broker, metadata)
        await until(lambda: len(events(broker, metadata)) == 1)
        await feed.stop()


@on_a_loop
async def test_an_act_of_a_newer_program_is_named_in_what_was_asked(tmp_path: Path) -> None:
    store = MemoryCoordination()
    await note_act(store, act_of_user("PaintBroker", {"color": "blue"}))
    async with cell_of_one() as (broker, metadata):
        feed = await begun(tmp_path, store)
        await feed.chain_acts(store, ACCOUNT, LeftActs(tmp_path))
        ship(feed, broker, metadata)
        await until(lambda: len(events(broker, metadata)) == 1)
        await feed.stop()

        (event,) = events(broker, metadata)
        assert (event.action, event.category) == ("OtherAct", "management")
        assert json.loads(event.request_params)["action"] == "PaintBroker"


def test_without_usage_acts_are_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> list[tuple[NotedAct, object]]:
        store = MemoryCoordination()
        await note_act(store, DRAINED)
        await drop_acts(store)
        return list(await list_acts(store))

    with caplog.at_level("INFO"):
        assert asyncio.run(scenario()) == []
    (record,) = [one for one in caplog.records if one.message == "operator changed something"]
    assert vars(record)["fields"]["actor"] == DRAINED.actor


@on_a_loop
async def test_a_change_whose_client_leaves_before_the_answer_has_one_event(tmp_path: Path) -> None:
    async with cell_of_one() as (broker, metadata):
        feed = await begun(tmp_path, MemoryCoordination())
        settings = load_settings(flags={"slow_request_ms": 0}, environment={})
        append, may_write = feed._spool.append, threading.Event()

        def wait_and_append(*args: object, **kwargs: object) -> object:
            assert may_write.wait(PATIENCE_S)
            return append(*args, **kwargs)  # type: ignore[arg-type]  # as it was called

        feed._spool.append = wait_and_append  # type: ignore[method-assign,assignment]  # a slow disk
        async with serving_with(settings, broker, metadata, feed.recorder) as service:
            asked = asyncio.create_task(service.client.json("CreateQueue", {"QueueName": "orders"}))
            await until(lambda: metadata.find_queue(ACCOUNT, "orders") is not None)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            may_write.set()
            await until(lambda: feed.recorder.recorded >= 1)
            ship(feed, broker, metadata)
        await feed.stop()

        found = [record for block in shipped(broker, metadata) for record in block.records()]
        assert [(record.action, record.http_status) for record in found] == [("CreateQueue", 200)]
        assert found[0].source_ip == "127.0.0.1"


@on_a_loop
async def test_a_change_is_answered_once_its_event_is_on_the_disk(tmp_path: Path) -> None:
    store = MemoryCoordination()
    may_write = threading.Event()
    async with cell_of_one() as (broker, metadata):
        feed = await begun(tmp_path, store)
        append = feed._spool.append

        def wait_and_append(*args: object, **kwargs: object) -> object:
            assert may_write.wait(PATIENCE_S)
            return append(*args, **kwargs)  # type: ignore[arg-type]  # as it was called

        feed._spool.append = wait_and_append  # type: ignore[method-assign,assignment]  # a slow disk
        settings = load_settings(flags={"slow_request_ms": 0}, environment={})
        async with serving_with(settings, broker, metadata, feed.recorder) as service:
            asked = asyncio.create_task(service.client.json("CreateQueue", {"QueueName": "orders"}))
            await until(lambda: metadata.find_queue(ACCOUNT, "orders") is not None)
            looked = await service.client.json("ListQueues", {})
            assert looked.status == 200
            assert not asked.done()

            may_write.set()
            answer = await asked
            assert answer.status == 200
            written = feed._written
            assert written >= 1
        await feed.stop()


def test_acts_that_are_noted_can_be_read_with_fields_that_come_later() -> None:
    fields = msgspec.msgpack.decode(encode_act(DRAINED))

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fields | {"later": 1}), type=NotedAct) == DRAINED


@on_a_loop
async def test_an_act_that_was_left_in_the_data_directory_is_in_the_chain_once_although_it_is_killed(
    tmp_path: Path,
) -> None:
    store, act = MemoryCoordination(), act_of_user("DrainEdge", {"data": "/data"})
    LeftActs(tmp_path / "killed").leave(act)

    def keep(left: LeftActs, act: NotedAct) -> None:
        raise OSError("not now")

    async with cell_of_one() as (broker, metadata):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(LeftActs, "forget", keep)
            killed = await begun(tmp_path / "killed", store)
            chaining = asyncio.create_task(killed.chain_acts(store, ACCOUNT, LeftActs(tmp_path / "killed")))
            ship(killed, broker, metadata)
            await until(lambda: killed._spool.noted_acts)
            shutil.copytree(tmp_path / "killed", tmp_path / "again")
            chaining.cancel()
            await asyncio.gather(chaining, return_exceptions=True)
            await killed.stop()
            assert events(broker, metadata) == []

        again = await begun(tmp_path / "again", store)
        await again.chain_acts(store, ACCOUNT, LeftActs(tmp_path / "again"))
        ship(again, broker, metadata)
        await until(lambda: events(broker, metadata))
        await again.stop()

        (event,) = events(broker, metadata)
        assert (event.action, event.principal_id, event.request_id) == ("DrainEdge", act.actor, act.id)
        assert LeftActs(tmp_path / "again").read() == []


def test_where_no_usage_is_recorded_acts_that_were_left_are_told_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    left = LeftActs(tmp_path)
    left.leave(act_of_user("ReloadEdge", {}))

    drop_left_acts(left)

    assert "operator changed something" in caplog.text
    assert left.read() == []
