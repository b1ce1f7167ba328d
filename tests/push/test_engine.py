"""The engine: which queues of the rows are pushed here, and what others are told of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from push.model import (
    ACCOUNT,
    ModelAnswer,
    ModelConsumer,
    ModelEndpoint,
    ModelQueue,
    NotedStates,
    define,
    now_ms,
    parts_of,
    run,
    until,
)
from quaymaster.coordination.interface import Put
from quaymaster.coordination.push_rows import pushed_key, put_pushed
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.push.calls import PushedMessage
from quaymaster.core.values.errors import NotLeader, NotNow
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, replace_definition
from quaymaster.push.engine import LOOKED_AT_ONCE_MAX, PushEngine
from quaymaster.push.owners import OnlyPusher


class SomeOwners(OnlyPusher):
    """Owns what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.owned = {7}
        self.asked: list[int] = []

    def owns(self, queue_id: int) -> bool:
        self.asked.append(queue_id)
        return queue_id in self.owned


class World:
    """One queue, an endpoint, and the engine of one process."""

    def __init__(self) -> None:
        self.store = MemoryCoordination()
        self.queue = ModelQueue()
        self.endpoint = ModelEndpoint()
        self.consumer = ModelConsumer(self.queue)
        self.parts = parts_of(self.consumer, self.endpoint)
        self.states = NotedStates()
        self.parts.note_state = self.states.note
        self.owners = SomeOwners()
        self.closed: set[str] = set()
        self.engine = PushEngine(
            self.store,
            self.owners,
            self.parts,
            region="us-east-1",
            is_closed=lambda account_id: account_id in self.closed,
        )

    async def show(self, definition: QueueDefinition) -> None:
        """Have the store say that a queue is pushed, and metadata that it is like this."""
        self.consumer.definition = definition
        await self.store.transaction([], put_pushed(definition))

    def sample(self, name: str, label: str) -> float:
        return next(
            sample.value
            for sample in self.engine.samples()
            if (sample.name, sample.labels) == (f"quaymaster_push_{name}", (label,))
        )


@asynccontextmanager
async def pushing(world: World | None = None) -> AsyncIterator[World]:
    world = world or World()
    world.engine.start()
    try:
        yield world
    finally:
        await world.engine.stop(1.0)


def test_a_queue_is_pushed_from_its_row_on_until_the_row_is_gone() -> None:
    async def scenario() -> None:
        async with pushing() as world:
            world.queue.send(None)
            await asyncio.sleep(60)
            assert not world.endpoint.calls

            await world.show(define())
            await until(lambda: not world.queue.left)
            assert world.sample("queues", "active") == 1
            assert world.sample("requests_total", "delivered") == 1

            await world.store.transaction([], [], [pushed_key(7)])
            await until(lambda: world.sample("queues", "active") == 0)
            world.queue.send(None)
            await asyncio.sleep(600)
            assert len(world.endpoint.calls) == 1

    run(scenario())


def test_queues_of_other_owners_are_left_alone_until_they_are_this_ones() -> None:
    async def scenario() -> None:
        async with pushing() as world:
            world.owners.owned.clear()
            world.queue.send(None)
            await world.show(define())
            await asyncio.sleep(60)
            assert not world.endpoint.calls

            world.owners.owned.add(7)
            world.owners.on_change()
            await until(lambda: not world.queue.left)

            world.owners.owned.clear()
            world.owners.on_change()
            await until(lambda: world.sample("queues", "active") == 0)

    run(scenario())


def test_a_row_that_changes_is_looked_at_alone_and_all_are_when_owners_change() -> None:
    async def scenario() -> None:
        async with pushing() as world:
            for queue_id in range(100, 100 + 2 * LOOKED_AT_ONCE_MAX):
                other = replace_definition(define(), queue_id=queue_id, name=f"queue-{queue_id}")
                await world.store.transaction([], put_pushed(other))
            await world.show(define())
            await until(lambda: world.sample("queues", "active") == 1)

            world.owners.asked.clear()
            await world.store.transaction([], [], [pushed_key(7)])
            await world.store.transaction([], [], [pushed_key(100)])
            await until(lambda: world.sample("queues", "active") == 0)
            assert not world.owners.asked  # what has no row is nobody's

            await world.show(define(revision=2))
            await until(lambda: world.sample("queues", "active") == 1)
            assert world.owners.asked == [7]

            world.owners.on_change()
            await until(lambda: len(world.owners.asked) == 1 + 2 * LOOKED_AT_ONCE_MAX)

    run(scenario())


def test_attributes_that_change_hold_for_the_next_call() -> None:
    async def scenario() -> None:
        async with pushing() as world:
            await world.show(define())
            world.queue.send(None)
            await until(lambda: not world.queue.left)

            await world.show(define(revision=2, PushEndpoint="https://example.org/other"))
            await asyncio.sleep(1)  # its watch has told it
            world.queue.send(None)
            await until(lambda: not world.queue.left)

            assert [call.url for call in world.endpoint.calls] == [
                "https://example.com/hook",
                "https://example.org/other",
            ]

    run(scenario())


def test_a_row_that_is_newer_than_what_metadata_has_in_memory_has_it_look() -> None:
    async def scenario() -> None:
        async with pushing() as world:
            newer = define(revision=2)
            asked: list[QueueDefinition] = []

            async def refresh(queue: QueueDefinition) -> None:
                asked.append(queue)
                if len(asked) == 2:
                    world.consumer.definition = newer

            world.consumer.refresh = refresh  # type: ignore[method-assign]
            await world.store.transaction([], put_pushed(newer))
            world.queue.send(None)
            await until(lambda: not world.queue.left)

            assert [queue.revision for queue in asked] == [1, 1]

    run(scenario())


def test_a_queue_whose_partitions_changed_is_pushed_by_its_new_table() -> None:
    async def scenario() -> None:
        async with pushing() as world:
            await world.show(define())
            world.queue.send(None)
            await until(lambda: not world.queue.left)
            received: list[int] = []
            receive = world.consumer.receive

            async def receive_noted(
                queue: QueueDefinition, count: int, hidden_ms: int
            ) -> list[PushedMessage]:
                received.append(queue.table_version)
                return await receive(queue, count, hidden_ms)

            world.consumer.receive = receive_noted  # type: ignore[method-assign]
            await world.show(replace_definition(define(), table_version=2))
            await asyncio.sleep(1)
            world.queue.send(None)
            await until(lambda: not world.queue.left)

            assert set(received) == {2}

    run(scenario())


def test_a_queue_that_cannot_be_found_now_is_looked_for_again() -> None:
    async def scenario() -> None:
        async with pushing() as world:
            world.consumer.failures["find"] = [NotLeader(), NotNow()]
            await world.show(define())
            world.consumer.definition = None
            await asyncio.sleep(30)
            assert world.sample("queues", "verifying") == 1
            world.consumer.definition = define(queue_id=8)
            await asyncio.sleep(30)
            world.consumer.definition = define(PushEndpoint="")
            await asyncio.sleep(30)
            assert world.sample("queues", "verifying") == 1

            world.consumer.definition = define()
            world.queue.send(None)
            await until(lambda: not world.queue.left)

    run(scenario())


def test_states_are_told_once_and_again_until_they_are_stored() -> None:
    async def scenario() -> None:
        async with pushing() as world:
            world.states.failures = [NotNow(), NotNow()]
            world.endpoint.answer = lambda call: ModelAnswer(410)
            world.queue.send(None)
            await world.show(define())
            await until(lambda: world.states)
            await asyncio.sleep(60)

            assert world.states == [(7, "gone")], "what is over is not told"
            assert world.states.rates == [None]
            assert world.sample("queues", "gone") == 1

    run(scenario())


def test_a_row_that_cannot_be_read_keeps_no_other_from_being_pushed() -> None:
    async def scenario() -> None:
        async with pushing() as world:
            await world.store.transaction([], [Put(pushed_key(8), b"?"), Put("pushed/x", b"?")])
            world.queue.send(None)
            await world.show(define())
            await until(lambda: not world.queue.left)

    run(scenario())


def test_an_engine_that_stops_lets_calls_end_within_their_grace_period_and_no_longer() -> None:
    async def scenario() -> None:
        for takes_s, is_done in ((0.5, True), (20.0, False)):
            world = World()
            world.endpoint.takes_s = takes_s
            async with pushing(world):
                world.queue.send(None)
                await world.show(define())
                await until(lambda world=world: world.endpoint.calls)  # type: ignore[misc]
                begun_ms = now_ms()

            assert (world.queue.left == []) is is_done
            assert now_ms() - begun_ms <= 1_100
            assert world.endpoint.under_way == 0

    run(scenario())


def test_calls_of_a_queue_that_was_given_away_are_ended_with_the_engine() -> None:
    async def scenario() -> None:
        world = World()
        world.endpoint.takes_s = 20.0
        async with pushing(world):
            world.queue.send(None)
            await world.show(define())
            await until(lambda: world.endpoint.calls)
            world.owners.owned.clear()
            world.owners.on_change()
            await asyncio.sleep(0.1)
            assert world.endpoint.under_way == 1, "it may still be answered"

        assert world.endpoint.under_way == 0

    run(scenario())


def test_an_engine_that_stops_gives_its_queues_away_before_its_calls_have_ended() -> None:
    async def scenario() -> None:
        world = World()
        world.endpoint.takes_s = 0.5
        left_ms: list[int] = []

        async def leave() -> None:
            left_ms.append(now_ms())

        world.owners.leave = leave  # type: ignore[method-assign]
        async with pushing(world):
            world.queue.send(None)
            await world.show(define())
            await until(lambda: world.endpoint.calls)
            begun_ms = now_ms()

        assert left_ms[0] - begun_ms < 50
        assert world.queue.left == []

    run(scenario())


def test_queues_of_an_account_that_is_disabled_are_not_pushed_until_it_is_enabled() -> None:
    async def scenario() -> None:
        async with pushing() as world:
            await world.show(define())
            world.queue.send(None)
            await until(lambda: not world.queue.left)

            world.closed.add(ACCOUNT)
            world.engine.look()
            await asyncio.sleep(1)
            world.queue.send(None)
            await asyncio.sleep(600)
            assert len(world.endpoint.calls) == 1

            world.closed.clear()
            world.engine.look()
            await until(lambda: not world.queue.left)

    run(scenario())
