"""Owners of queues: of the pushers that are there, one for each queue, and another one soon when it is gone."""

from __future__ import annotations

import asyncio

from push.model import now_ms, run, until
from quaymaster.coordination.presence import SHORT_LEASE_MS, Presence, PresenceRow, alive_key
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.errors import NotNow
from quaymaster.push.owners import PUSHER_ROLE, RENEWED_S, LivePushers, OnlyPusher

QUEUES = range(200)
FAILOVER_S = 5.0


class Pusher:
    """A process that pushes, as others see it."""

    def __init__(self, store: MemoryCoordination, name: str) -> None:
        clock = asyncio.get_running_loop().time
        row = PresenceRow(PUSHER_ROLE, name, "1")
        self.presence = Presence(store, row, lease_ms=SHORT_LEASE_MS, clock=clock)
        self.owners = LivePushers(store, self.presence, keeps_presence=True, clock=clock)
        self.changes = 0

    async def start(self) -> None:
        self.owners.on_change = self._on_change
        self.owners.need()
        await until(self.owners.may_receive)

    async def kill(self) -> None:
        """End without a word."""
        keeper = self.presence._keeper
        assert keeper is not None
        keeper.cancel()
        await self.owners._watch.close()

    async def stop(self) -> None:
        await self.owners.close()

    def _on_change(self) -> None:
        self.changes += 1


def owners_of(queue_id: int, pushers: list[Pusher]) -> int:
    return sum(pusher.owners.owns(queue_id) for pusher in pushers)


def test_each_queue_has_one_owner_and_another_one_soon_when_that_is_killed() -> None:
    async def scenario() -> None:
        store = MemoryCoordination(now_ms=now_ms)
        pushers = [Pusher(store, f"p{number}") for number in range(3)]
        for pusher in pushers:
            await pusher.start()
        await until(lambda: all(owners_of(queue_id, pushers) == 1 for queue_id in QUEUES), FAILOVER_S)
        before = {queue_id for queue_id in QUEUES if pushers[0].owners.owns(queue_id)}
        assert 30 < len(before) < 100, "each has its share"

        await pushers[1].kill()
        left = [pushers[0], pushers[2]]
        await until(lambda: all(owners_of(queue_id, left) == 1 for queue_id in QUEUES), FAILOVER_S)

        assert all(pushers[0].owners.owns(queue_id) for queue_id in before), "others stay where they are"
        for pusher in left:
            await pusher.stop()

    run(scenario())


def test_a_pusher_that_ends_is_known_to_be_gone_at_once() -> None:
    async def scenario() -> None:
        store = MemoryCoordination(now_ms=now_ms)
        pushers = [Pusher(store, f"p{number}") for number in range(2)]
        for pusher in pushers:
            await pusher.start()
        await until(lambda: all(owners_of(queue_id, pushers) == 1 for queue_id in QUEUES))

        await pushers[1].stop()
        ended_ms = now_ms()
        await until(lambda: all(pushers[0].owners.owns(queue_id) for queue_id in QUEUES))

        assert now_ms() - ended_ms < 100
        assert pushers[0].changes
        await pushers[0].stop()

    run(scenario())


def test_a_pusher_that_could_not_renew_its_lease_receives_nothing_before_others_take_its_queues() -> None:
    async def scenario() -> None:
        store = MemoryCoordination(now_ms=now_ms)
        pusher = Pusher(store, "p0")
        assert not pusher.owners.may_receive(), "it is not there yet"
        await pusher.start()
        await asyncio.sleep(60)
        assert pusher.owners.may_receive()
        keep_alive = store.keep_alive

        async def fail(lease_id: int) -> None:
            raise NotNow

        store.keep_alive = fail  # type: ignore[method-assign]
        await asyncio.sleep(RENEWED_S)
        assert not pusher.owners.may_receive()

        store.keep_alive = keep_alive  # type: ignore[method-assign]
        await until(pusher.owners.may_receive, 2)
        assert all(pusher.owners.owns(queue_id) for queue_id in QUEUES)
        await pusher.stop()

    run(scenario())


def test_where_there_is_one_pusher_it_owns_every_queue() -> None:
    owners = OnlyPusher()
    owners.need()
    owners.on_change()

    assert owners.owns(7)
    assert owners.may_receive()


def test_a_pusher_appears_when_there_is_something_to_push_as_soon_as_the_store_can_be_reached() -> None:
    async def scenario() -> None:
        store = MemoryCoordination(now_ms=now_ms)
        pusher = Pusher(store, "p0")
        await asyncio.sleep(60)
        assert (await store.list_all(alive_key(PUSHER_ROLE)))[0] == []
        await pusher.stop()
        grant_lease, failures = store.grant_lease, [NotNow(), NotNow()]

        async def fail_at_first(ttl_ms: int) -> int:
            if failures:
                raise failures.pop()
            return await grant_lease(ttl_ms)

        store.grant_lease = fail_at_first  # type: ignore[method-assign]
        await pusher.start()
        pusher.owners.need()

        await until(lambda: all(pusher.owners.owns(queue_id) for queue_id in QUEUES))
        await pusher.stop()
        assert (await store.list_all(alive_key(PUSHER_ROLE)))[0] == []

    run(scenario())


def test_a_pusher_that_leaves_is_gone_for_others_whoever_keeps_its_presence() -> None:
    async def scenario() -> None:
        store = MemoryCoordination(now_ms=now_ms)
        presence = Presence(store, PresenceRow(PUSHER_ROLE, "p0", "1"), lease_ms=SHORT_LEASE_MS)
        await presence.register()
        owners = LivePushers(store, presence)
        owners.need()
        await until(lambda: owners.owns(7))

        await owners.leave()
        assert (await store.list_all(alive_key(PUSHER_ROLE)))[0] == []
        await owners.close()
        await OnlyPusher().leave()

    run(scenario())
