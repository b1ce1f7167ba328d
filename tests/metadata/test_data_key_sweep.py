"""A data key is deleted when nothing needs it, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from harness.server_metadata import ServerMetadata, count_all
from hypothesis import given, settings
from hypothesis import strategies as st

import quaymaster.metadata.data_key_sweep as sweep_module
from metadata.cell import Cell, run_cell
from metadata.support import ACCOUNT, World, eventually, run
from quaymaster.coordination.interface import Put, RevisionMismatch
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.formats import CellFormat
from quaymaster.metadata.data_key_sweep import RETRY_MS, SWEEP_INTERVAL_MS
from quaymaster.metadata.store.rows import (
    ACCOUNT_KEYS,
    DATA_KEYS,
    KEY_SWEEP,
    ROW_VERSION,
    DataKeyRow,
    id_text,
    row_decoder,
)
from quaymaster.protocol.rpc.metadata_messages import CreateQueue, DeleteQueue

DAY_S = 86_400
OWN = {"KmsMasterKeyId": "alias/own"}


async def add_journals(world: World | Cell, *numbers: int) -> None:
    await world.store.transaction([], [Put(f"journals/{number}", b"") for number in numbers])


async def sweep(world: World, service: ServerMetadata, days: int = 1) -> None:
    """Let so many days pass, with a sweep on each."""
    for _ in range(days):
        world.clock.pass_s(DAY_S)
        await count_all(service.registry.counted_time)
        await service.registry.data_key_sweep.run_if_due()


async def keys_in(world: World | Cell) -> dict[int, DataKeyRow]:
    rows, _ = await world.store.list_all(DATA_KEYS)
    decode = row_decoder(DataKeyRow)
    return {row.key_id: row for row in (decode(item.value) for item in rows)}


async def made_and_deleted(service: ServerMetadata, name: str = "a") -> int:
    """Return the data key of a queue that is deleted again; it was the queue's alone."""
    queue = await service.queues.change(CreateQueue(ACCOUNT, name, OWN))
    await service.queues.change(DeleteQueue(ACCOUNT, name))
    return queue.data_key_id


Scenario = Callable[[World, ServerMetadata], Awaitable[None]]


def run_sweeps(scenario: Scenario, keys: Path) -> None:
    """Run a scenario with a service whose first sweep is a day away."""

    async def with_service(world: World) -> None:
        await add_journals(world, 0)
        async with world.service() as service:
            await service.registry.data_key_sweep.run_if_due()
            await scenario(world, service)

    run(with_service, keys)


def test_key_of_a_deleted_queue_goes_after_nine_days_without_a_use(tmp_path: Path) -> None:
    async def scenario(world: World, service: ServerMetadata) -> None:
        key_id = await made_and_deleted(service)
        await sweep(world, service, days=8)
        assert key_id in await keys_in(world)
        assert service.data_key(key_id)

        await sweep(world, service)

        assert await keys_in(world) == {}
        assert world.journal.calls > 0
        samples = {
            (sample.name, *sample.labels): sample.value
            for sample in service.registry.data_key_sweep.samples()
        }
        assert samples["quaymaster_data_keys_deleted_total",] == 1
        assert samples["quaymaster_data_keys", "retiring"] == 0

    run_sweeps(scenario, tmp_path)


def test_key_that_a_queue_has_or_a_message_names_stays(tmp_path: Path) -> None:
    async def scenario(world: World, service: ServerMetadata) -> None:
        named = await made_and_deleted(service)
        await add_journals(world, 3)
        world.journal.named[3] = {named}
        has = (await service.queues.change(CreateQueue(ACCOUNT, "b", OWN))).data_key_id
        shared = (await service.queues.change(CreateQueue(ACCOUNT, "c"))).data_key_id

        await sweep(world, service, days=30)

        assert set(await keys_in(world)) == {named, has, shared}
        assert all(row.unused_sweeps == 0 for row in (await keys_in(world)).values())

    run_sweeps(scenario, tmp_path)


def test_use_revives_a_retiring_key(tmp_path: Path) -> None:
    async def scenario(world: World, service: ServerMetadata) -> None:
        key_id = await made_and_deleted(service)
        await sweep(world, service, days=8)
        assert (await keys_in(world))[key_id].retiring_since_ms

        world.journal.named[0] = {key_id}  # a dead letter came from another journal
        await sweep(world, service)
        assert (await keys_in(world))[key_id].retiring_since_ms == 0
        world.journal.named.clear()
        await sweep(world, service, days=8)
        assert key_id in await keys_in(world)
        await sweep(world, service)

        assert key_id not in await keys_in(world)

    run_sweeps(scenario, tmp_path)


def test_journal_that_does_not_answer_stops_the_sweep(tmp_path: Path) -> None:
    async def scenario(world: World, service: ServerMetadata) -> None:
        key_id = await made_and_deleted(service)
        before = await keys_in(world)
        world.journal.error = NotNow("no leader")
        world.clock.pass_s(DAY_S)
        await count_all(service.registry.counted_time)
        with pytest.raises(NotNow, match="no leader"):
            await service.registry.data_key_sweep.run_if_due()
        assert await keys_in(world) == before

        await service.registry.data_key_sweep.run_if_due()  # not due before an hour has passed
        world.journal.error = None
        world.clock.pass_s(RETRY_MS / 1000)
        await count_all(service.registry.counted_time)
        await service.registry.data_key_sweep.run_if_due()

        assert (await keys_in(world))[key_id].unused_sweeps == 1

    run_sweeps(scenario, tmp_path)


def test_store_that_lists_no_journal_stops_the_sweep(tmp_path: Path) -> None:
    async def scenario(world: World, service: ServerMetadata) -> None:
        key_id = await made_and_deleted(service)
        await world.store.transaction([], deletes=["journals/0"])

        with pytest.raises(NotNow, match="lists no journal"):
            await sweep(world, service)

        assert (await keys_in(world))[key_id].unused_sweeps == 0

    run_sweeps(scenario, tmp_path)


def test_key_that_an_account_no_longer_uses_is_first_taken_from_it(tmp_path: Path) -> None:
    async def scenario(world: World, service: ServerMetadata) -> None:
        first = await service.queues.change(CreateQueue(ACCOUNT, "a"))
        await service.queues.change(DeleteQueue(ACCOUNT, "a"))

        await sweep(world, service)
        assert (await keys_in(world))[first.data_key_id].unused_sweeps == 0
        assert (await world.store.list_all(ACCOUNT_KEYS))[0] == []
        second = await service.queues.change(CreateQueue(ACCOUNT, "b"))
        assert second.data_key_id != first.data_key_id
        await sweep(world, service, days=9)

        assert set(await keys_in(world)) == {second.data_key_id}
        assert service.data_key(second.data_key_id)

    run_sweeps(scenario, tmp_path)


def test_queue_that_is_created_during_a_sweep_keeps_its_key(tmp_path: Path) -> None:
    async def scenario(world: World, service: ServerMetadata) -> None:
        await service.queues.change(CreateQueue(ACCOUNT, "a"))
        await service.queues.change(DeleteQueue(ACCOUNT, "a"))
        made: list[int] = []

        async def create() -> None:
            world.journal.before = None
            made.append((await service.queues.change(CreateQueue(ACCOUNT, "b"))).data_key_id)
            made.append((await service.queues.change(CreateQueue(ACCOUNT, "c", OWN))).data_key_id)

        world.journal.before = create
        await sweep(world, service)
        await sweep(world, service, days=20)

        assert len(made) == 2
        assert set(await keys_in(world)) == set(made)

    run_sweeps(scenario, tmp_path)


def test_of_several_nodes_one_sweeps_each_day(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        await add_journals(cell, 0, 1)
        async with cell.node("one") as one, cell.node("two") as two:
            for node in (one, two):
                await node.registry.data_key_sweep.run_if_due()
            cell.clock.pass_s(DAY_S)
            await count_all(one.registry.counted_time)
            for _ in range(5):
                with suppress(RevisionMismatch):
                    await asyncio.gather(*(node.registry.data_key_sweep.run_if_due() for node in (one, two)))
            await eventually(lambda: cell.journal.calls == 2)
            await asyncio.sleep(0.05)

            assert cell.journal.calls == 2  # each of the two journals was asked once

    run_cell(scenario, tmp_path)


def test_cell_of_an_older_format_deletes_no_key(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        await add_journals(cell, 0)
        async with cell.node("one", cell_format=CellFormat(3)) as node:
            for _ in range(3):
                cell.clock.pass_s(DAY_S)
                await node.registry.data_key_sweep.run_if_due()

        assert cell.journal.calls == 0

    run_cell(scenario, tmp_path)


def test_sweep_that_a_program_with_a_wrong_clock_put_off_or_made_due_is_due_a_day_from_now(
    tmp_path: Path,
) -> None:
    async def scenario(world: World, service: ServerMetadata) -> None:
        key_id = await made_and_deleted(service)
        for due_ms in (0, world.clock.ms + 1_000 * SWEEP_INTERVAL_MS):
            counted = (await keys_in(world))[key_id].unused_sweeps
            row = bytes([ROW_VERSION]) + msgspec.msgpack.encode((due_ms,))
            await world.store.transaction([], [Put(KEY_SWEEP, row)])

            await service.registry.data_key_sweep.run_if_due()
            assert (await keys_in(world))[key_id].unused_sweeps == counted
            await sweep(world, service)

            assert (await keys_in(world))[key_id].unused_sweeps == counted + 1

    run_sweeps(scenario, tmp_path)


def test_nodes_whose_clocks_are_wrong_and_that_start_again_and_again_sweep_no_more_often_than_daily(
    tmp_path: Path,
) -> None:
    async def scenario(cell: Cell) -> None:
        await add_journals(cell, 0)
        for day in range(12):
            cell.clock.set_s((-1) ** day * day * 8 * DAY_S)
            async with cell.node("right") as right, cell.node("astray") as astray:
                for node in (right, astray):
                    await node.registry.data_key_sweep.run_if_due()

        assert cell.journal.calls == 0

    run_cell(scenario, tmp_path)


def test_key_that_is_wrapped_anew_during_a_sweep_is_left_alone(tmp_path: Path) -> None:
    async def scenario(world: World, service: ServerMetadata) -> None:
        key_id = await made_and_deleted(service)
        await sweep(world, service, days=8)

        async def rotate() -> None:
            world.journal.before = None
            await service.rotate_master_key()

        world.journal.before = rotate
        await sweep(world, service)
        assert (await keys_in(world))[key_id].unused_sweeps == 8
        assert service.data_key(key_id)
        await sweep(world, service)

        assert await keys_in(world) == {}

    run_sweeps(scenario, tmp_path)


class Model:
    """Journals in which messages are stored, move and are deleted; each key must last as long as one needs it."""

    def __init__(self, world: World, service: ServerMetadata) -> None:
        self.world = world
        self.service = service
        self.journals: list[set[int]] = [set(), set(), set()]
        self.alive: list[tuple[int, int]] = []
        """(journal, key) of each message."""
        self.keys: dict[str, int] = {}

    async def create(self, number: int, is_own: bool) -> None:
        name = f"q{number}"
        if name not in self.keys:
            queue = await self.service.queues.change(CreateQueue(ACCOUNT, name, OWN if is_own else {}))
            self.keys[name] = queue.data_key_id

    async def delete(self, number: int) -> None:
        if self.keys.pop(f"q{number}", None) is not None:
            await self.service.queues.change(DeleteQueue(ACCOUNT, f"q{number}"))

    def send(self, number: int, journal: int) -> None:
        key_id = self.keys.get(f"q{number}")
        if key_id is not None:
            self.alive.append((journal, key_id))

    def move(self, index: int, journal: int) -> None:
        if self.alive:
            _, key_id = self.alive.pop(index % len(self.alive))
            self.alive.append((journal, key_id))

    def take(self, index: int) -> None:
        if self.alive:
            self.alive.pop(index % len(self.alive))

    async def day(self, moved_meanwhile: int | None) -> None:
        """Sweep; a message may move, from a journal that is not asked yet to one that was."""

        async def before() -> None:
            if moved_meanwhile is not None:
                self.move(moved_meanwhile, 0)
            for journal in range(3):
                self.world.journal.named[journal] = {key for place, key in self.alive if place == journal}

        self.world.journal.before = before
        await sweep(self.world, self.service)
        self.world.journal.before = None

    async def check(self) -> None:
        there = set(await keys_in(self.world))
        needed = {key_id for _, key_id in self.alive} | set(self.keys.values())
        assert needed <= there, f"data keys {needed - there} are gone, and messages or queues need them"


steps = st.one_of(
    st.tuples(st.just("create"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("delete"), st.integers(0, 3)),
    st.tuples(st.just("send"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("move"), st.integers(0, 9), st.integers(0, 2)),
    st.tuples(st.just("take"), st.integers(0, 9)),
    st.tuples(st.just("day"), st.none() | st.integers(0, 9)),
    st.tuples(st.just("days"), st.integers(2, 9)),
)


@settings(max_examples=60)
@given(steps=st.lists(steps, max_size=40))
def test_no_key_goes_that_a_message_or_queue_needs_and_unneeded_ones_go(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    async def scenario(world: World) -> None:
        await add_journals(world, 0, 1, 2)
        async with world.service(queue_name_reuse_s=0) as service:
            await service.registry.data_key_sweep.run_if_due()
            model = Model(world, service)
            for kind, *arguments in steps:
                match kind:
                    case "create":
                        await model.create(*arguments)  # type: ignore[arg-type]
                    case "delete":
                        await model.delete(*arguments)
                    case "send":
                        model.send(*arguments)
                    case "move":
                        model.move(*arguments)
                    case "take":
                        model.take(*arguments)
                    case "day":
                        await model.day(*arguments)
                    case _:
                        for _ in range(arguments[0]):
                            await model.day(None)
                await model.check()
            model.alive.clear()
            for number in range(4):
                await model.delete(number)
            for _ in range(11):
                await model.day(None)
            assert await keys_in(world) == {}

    run(scenario, tmp_path_factory.mktemp("keys"))


def test_rotation_of_the_master_key_finds_the_keys_that_are_left(tmp_path: Path) -> None:
    async def scenario(world: World, service: ServerMetadata) -> None:
        gone = await made_and_deleted(service)
        kept = (await service.queues.change(CreateQueue(ACCOUNT, "kept", OWN))).data_key_id
        await sweep(world, service, days=9)
        await service.rotate_master_key()

        await eventually(lambda: service.master_keys.row.retiring_key_ids == ())
        assert service.data_key(kept)
        assert await world.store.get(DATA_KEYS + id_text(gone)) is None

    run_sweeps(scenario, tmp_path)


@pytest.mark.parametrize("is_planted", [False, True])
def test_message_that_moves_to_a_journal_that_was_asked_already_keeps_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    if is_planted:  # a bug: what one sweep does not see is deleted
        monkeypatch.setattr(
            sweep_module, "after_sweep", lambda life, **seen: life if seen["is_in_use"] else None
        )

    async def scenario(world: World) -> None:
        await add_journals(world, 0, 1)
        async with world.service() as service:
            await service.registry.data_key_sweep.run_if_due()
            key_id = await made_and_deleted(service)
            world.journal.named[1] = {key_id}
            asked = 0

            async def move() -> None:
                nonlocal asked
                asked += 1
                if asked == 2:  # journal 0 was asked, journal 1 is about to be
                    world.journal.named = {0: {key_id}, 1: set()}

            world.journal.before = move
            await sweep(world, service, days=20)

            assert (key_id in await keys_in(world)) is not is_planted

    run(scenario, tmp_path)
