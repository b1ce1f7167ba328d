"""Pushers over a model of queues and endpoints: is each message called, in order, and by nobody after its deletion?

    engines (real) ──consume──▶ queues (model)        store (in memory, real presence and watches)
          └──POST──▶ endpoints (model)

Each seed draws: standard and FIFO queues with their attributes, messages, endpoints that fail, are slow, reject, take a
part of a batch or want a pause, answers of the broker that are lost, and pushers that are killed, stopped for a while
or cut off from the store. In the end all is healed.

    U1    each message is called and deleted, or dead; no message was received that was not tried, but for faults
    U2    no call begins after an acknowledged deletion of its message by the delivery that had it
    U3    a FIFO group has one call at a time, but for pushers whose time is over, and in order
    U4    healed, each queue is owned by one pusher within 5 s

A seed draws the same each time, but events that are due together happen in any order (sets of tasks have none), so a
run may differ. Tests try several seeds.

    PYTHONPATH=tests python -m sim.push 0 500
    PYTHONPATH=tests python -m sim.push 0 500 receives-untried
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import msgspec
from harness.skipping_loop import SkippingLoop
from push.model import (
    ModelAnswer,
    ModelConsumer,
    ModelMessage,
    ModelQueue,
    NotedStates,
    define,
    no_secrets,
    now_ms,
    number_of,
    pushed,
)

from quaymaster.coordination.interface import Compare, Coordination, Event, KeyValue, Listing, Put
from quaymaster.coordination.presence import SHORT_LEASE_MS, Presence, PresenceRow
from quaymaster.coordination.push_rows import put_pushed
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.push.calls import Deleted, PushedMessage
from quaymaster.core.push.flow import PushPlan
from quaymaster.core.push.queue_flow import Ask, PushCall, QueueFlow
from quaymaster.core.values.errors import NotNow, Timeout
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.net.outbound.failures import OutboundFailed
from quaymaster.push import queue_pusher
from quaymaster.push.engine import PushEngine
from quaymaster.push.owners import PUSHER_ROLE, LivePushers
from quaymaster.push.parts import PushParts, Verified
from sim.kernel import Violation

FAULTS_S: Final = 60.0
HEALED_S: Final = 4 * 3_600.0
"""So long after the faults everything must be done: longer than an endpoint that is gone stays alone, twice."""
OWNED_S: Final = 5.0
PUSHERS: Final = 3
LOST: Final = 0.05
"""Of the broker's answers."""
STOPPED: Final = 0.02
"""Of receives: their pusher is stopped before it calls."""


# Planted bugs


class ReceivesUntried(QueueFlow):
    """Ten messages are received whatever room there is; those without room are left to their timeouts."""

    def take(self, now_ms: int, calls_left: int) -> Ask | None:
        ask = super().take(now_ms, calls_left)
        return None if ask is None else msgspec.structs.replace(ask, count=10)

    def received(self, ask: Ask, messages: Sequence[PushedMessage]) -> list[PushCall]:
        return super().received(ask, messages[: ask.calls * self.plan.batch_size])


class NextBeforeDeleted(QueueFlow):
    """A receive of a FIFO queue goes in calls of one message each, one after the other, whatever became of the last."""

    def take(self, now_ms: int, calls_left: int) -> Ask | None:
        ask = super().take(now_ms, calls_left)
        if ask is None or not self.plan.is_fifo:
            return ask
        self.under_way += ask.count - ask.calls
        return msgspec.structs.replace(ask, calls=ask.count)

    def received(self, ask: Ask, messages: Sequence[PushedMessage]) -> list[PushCall]:
        if not self.plan.is_fifo:
            return super().received(ask, messages)
        self.under_way -= ask.calls - len(messages)
        return [
            PushCall([message], ask.asked_ms, ask.asked_ms + ask.hidden_ms, ask.is_probe)
            for message in messages
        ]


class BeginsLate(QueueFlow):
    """A call begins however long ago its messages were received."""

    def begin(self, call: PushCall, now_ms: int) -> bool:
        return super().begin(call, call.asked_ms)


class DeletesUnasked(QueueFlow):
    """Messages are deleted as soon as their call is made, whatever its answer."""

    def settle(self, call: PushCall, judged: Any, now_ms: int, luck: float) -> Any:
        return super().settle(call, msgspec.structs.replace(judged, failed=frozenset()), now_ms, luck)


BUGS: Final[Mapping[str, type[QueueFlow]]] = {
    "receives-untried": ReceivesUntried,
    "next-before-deleted": NextBeforeDeleted,
    "begins-late": BeginsLate,
    "deletes-unasked": DeletesUnasked,
}


# What the checker knows


@dataclass(eq=False)
class Received:
    """One receive of a message by a pusher, until its call begins."""

    pusher: Pusher
    message: ModelMessage


@dataclass(eq=False)
class Call:
    """A call under way, with the messages as they were received."""

    queue: CheckedQueue
    messages: list[ModelMessage]
    counts: list[int]
    pusher: Pusher

    def holds(self, at: int) -> bool:
        """Tell whether no other pusher can have a message of the call by now."""
        message = self.messages[at]
        return message.count == self.counts[at] and message.hidden_until_ms > now_ms()


@dataclass(eq=False)
class CheckedQueue:
    """A queue, how it is pushed, and what happened to its messages."""

    definition: QueueDefinition
    model: ModelQueue
    untried: list[Received] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    """Messages that the endpoint took."""
    acknowledged: set[int] = field(default_factory=set)
    """Messages whose deletion some pusher was told of, while no other one had them."""


class Endpoint:
    """An endpoint of one queue: what it does now is drawn by the world."""

    def __init__(self, world: World, queue: CheckedQueue) -> None:
        self.mood = "works"
        self._world = world
        self._queue = queue

    async def answer(self, call: Call, timeout_s: float) -> ModelAnswer:
        """Return what it answers, or raise; it notes what it took."""
        rng = self._world.rng
        mood = self.mood if rng.random() < 0.9 else "works"
        takes_s = rng.uniform(0.001, 0.2) if mood != "slow" else rng.uniform(0.5, 2) * timeout_s
        await asyncio.sleep(min(takes_s, timeout_s))
        if mood == "down" or takes_s >= timeout_s:
            if takes_s >= timeout_s:
                self._take(call, frozenset())  # it took them, and was too slow to say so
            raise OutboundFailed("no answer", may_have_acted=True)
        if mood == "rejects":
            return ModelAnswer(rng.choice((400, 409, 422)))
        if mood == "busy":
            return ModelAnswer(429, {"retry-after": str(rng.randint(1, 20))})
        if mood == "gone":
            return ModelAnswer(410)
        failed = frozenset(at for at in range(len(call.messages)) if mood == "partial" and rng.random() < 0.3)
        self._take(call, failed)
        items = [{"itemIdentifier": f"m{call.messages[at].number}"} for at in sorted(failed)]
        return ModelAnswer(body=msgspec.json.encode({"batchItemFailures": items}))

    def _take(self, call: Call, failed: frozenset[int]) -> None:
        self._queue.taken |= {message.number for at, message in enumerate(call.messages) if at not in failed}


class Consumer(ModelConsumer):
    """How a pusher reaches one queue: slowly, and with answers that are lost."""

    def __init__(self, pusher: Pusher, queues: Mapping[int, CheckedQueue]) -> None:
        super().__init__(ModelQueue(), None)
        self._pusher = pusher
        self._queues = queues

    async def find(self, account_id: str, name: str) -> QueueDefinition | None:
        await self._pusher.gate()
        return next(queue.definition for queue in self._queues.values() if queue.definition.name == name)

    async def receive(self, queue: QueueDefinition, count: int, hidden_ms: int) -> list[PushedMessage]:
        checked, asked_ms = self._queues[queue.queue_id], now_ms()
        await self._way_there()
        found = checked.model.receive(count, hidden_ms)
        received = [Received(self._pusher, message) for message in found]
        checked.untried += received
        is_lost = self._loses()
        if is_lost or self._pusher.resumed_ms >= asked_ms:  # it may be too late then
            self._pusher.world.excuse(checked, received)
        if is_lost:
            raise Timeout
        self._pusher.world.may_stop(self._pusher)
        await self._way_back()
        return [pushed(one) for one in found]

    async def delete(self, queue: QueueDefinition, messages: Sequence[PushedMessage]) -> Deleted:
        checked = self._queues[queue.queue_id]
        await self._way_there()
        if self._loses():
            raise Timeout
        deleted: list[int] = []
        for message in messages:
            number = number_of(message)
            if checked.model.is_current(number, message.delivery_count):
                checked.model.messages[number].is_deleted = True
                # One that is late may cross with the receive of another pusher.
                if checked.model.messages[number].count == message.delivery_count:
                    deleted.append(number)
        checked.model.on_change.set()
        if self._loses():
            raise Timeout
        await self._way_back()
        checked.acknowledged.update(deleted)
        return Deleted(len(messages), len(messages) - len(deleted))

    async def hide(
        self, queue: QueueDefinition, messages: Sequence[PushedMessage], timeouts_ms: Sequence[int]
    ) -> None:
        await self._way_there()
        if self._loses():
            raise Timeout
        await ModelConsumer(self._queues[queue.queue_id].model).hide(queue, messages, timeouts_ms)

    async def wait(self, queue: QueueDefinition, wait_ms: int) -> bool:
        await self._way_there()
        watching = ModelConsumer(self._queues[queue.queue_id].model)
        found = await watching.wait(queue, wait_ms)
        await self._pusher.gate()
        return found

    async def _way_there(self) -> None:
        """A command was sent: it arrives whatever becomes of its process."""
        await self._pusher.gate()
        await self._pause()

    async def _way_back(self) -> None:
        await self._pause()
        await self._pusher.gate()

    async def _pause(self) -> None:
        rng = self._pusher.world.rng
        await asyncio.sleep(rng.uniform(0.0005, 0.03) if rng.random() < 0.9 else rng.uniform(0.05, 0.4))

    def _loses(self) -> bool:
        world = self._pusher.world
        return world.is_faulty and world.rng.random() < LOST


class Client:
    """Makes the calls of a pusher, and tells the checker of them."""

    def __init__(self, pusher: Pusher) -> None:
        self._pusher = pusher

    async def call(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> ModelAnswer:
        world = self._pusher.world
        queue = world.by_url[url]
        names = [event["id"] for event in msgspec.json.decode(body)]
        call = world.begun(self._pusher, queue, [int(name[1:]) for name in names])
        try:
            answer = await world.endpoints[queue.definition.queue_id].answer(call, timeout_s)
            await self._pusher.gate()
            return answer
        finally:
            queue.calls.remove(call)

    async def verify(self, plan: PushPlan) -> Verified:
        """Allow everything."""
        await self._pusher.gate()
        return Verified("active", "", self)


class GatedStore(Coordination):
    """The store as one pusher reaches it: not while that is stopped, or cut off."""

    def __init__(self, pusher: Pusher, store: MemoryCoordination) -> None:
        self._pusher = pusher
        self._store = store

    async def get(self, key: str) -> KeyValue | None:
        await self._reach()
        return await self._store.get(key)

    async def list_prefix(self, prefix: str, *, after: str = "", limit: int = 1_000) -> Listing:
        await self._reach()
        return await self._store.list_prefix(prefix, after=after, limit=limit)

    async def transaction(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        await self._reach()
        return await self._store.transaction(compares, puts, deletes)

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[list[Event]]:
        async for events in self._store.watch(prefix, after_revision):
            await self._reach()
            yield events

    async def grant_lease(self, ttl_ms: int) -> int:
        await self._reach()
        return await self._store.grant_lease(ttl_ms)

    async def keep_alive(self, lease_id: int) -> None:
        await self._reach()
        await self._store.keep_alive(lease_id)

    async def revoke_lease(self, lease_id: int) -> None:
        await self._reach()
        await self._store.revoke_lease(lease_id)

    async def close(self) -> None:
        """It is the world's."""

    async def _reach(self) -> None:
        await self._pusher.gate()
        if self._pusher.is_cut_off:
            await asyncio.sleep(0.2)
            raise NotNow


class Pusher:
    """A process that pushes."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_cut_off = False
        self.resumed_ms = -1
        """When it went on last after it was stopped."""
        self.runs = asyncio.Event()
        self.runs.set()
        clock = asyncio.get_running_loop().time
        store = GatedStore(self, world.store)
        self.presence = Presence(
            store, PresenceRow(PUSHER_ROLE, name, "1"), lease_ms=SHORT_LEASE_MS, clock=clock
        )
        self.owners = LivePushers(store, self.presence, keeps_presence=True, clock=clock)
        client = Client(self)
        self.parts = PushParts(
            Consumer(self, world.queues),
            client,
            no_secrets,
            NotedStates().note,
            may_receive=self.owners.may_receive,
            now_ms=now_ms,
            wall_ms=now_ms,
            luck=world.rng.random,
        )
        self.engine = PushEngine(store, self.owners, self.parts, region="us-east-1")
        self.engine.start()

    async def gate(self) -> None:
        """Return while the process runs."""
        await self.runs.wait()

    async def kill(self) -> None:
        """End it without a word."""
        self.world.excuse_all(self)
        self.runs.set()
        for task in (self.presence._keeper, self.owners._appearing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self.owners._watch.close()
        self.owners.leave = _say_nothing  # type: ignore[method-assign]  # its row ends with its lease
        await self.engine.stop(0.0)

    async def stop_for(self, stopped_s: float) -> None:
        """SIGSTOP, and SIGCONT later. What it held may be anybody's by then."""
        self.runs.clear()
        self.world.excuse_all(self)
        await asyncio.sleep(stopped_s)
        self.world.excuse_all(self)
        self.resumed_ms = now_ms()
        self.runs.set()


async def _say_nothing() -> None:
    """A process that is killed tells nobody."""


class World:
    """What a seed goes through."""

    def __init__(self, seed: int, bug: str | None = None) -> None:
        self.rng = random.Random(f"{seed}-push")
        self.flow = QueueFlow if bug is None else BUGS[bug]
        self.is_faulty = True
        self.queues: dict[int, CheckedQueue] = {}
        self.by_url: dict[str, CheckedQueue] = {}
        self.endpoints: dict[int, Endpoint] = {}
        self.pushers: list[Pusher] = []
        self.stopping: list[asyncio.Task[None]] = []
        self.calls = 0
        self.kills = 0
        self.violation: Violation | None = None

    def run(self) -> None:
        """Run to the end. Raises Violation for what is found."""
        module = vars(queue_pusher)
        flow, module["QueueFlow"] = module["QueueFlow"], self.flow
        try:
            with asyncio.Runner(loop_factory=SkippingLoop) as runner:
                runner.run(self._run())
        finally:
            module["QueueFlow"] = flow
        if self.violation is not None:
            raise self.violation

    # What happens

    async def _run(self) -> None:
        self.store = MemoryCoordination(now_ms=now_ms)
        for queue_id in range(1, self.rng.randint(1, 3) + 1):
            await self._add_queue(queue_id)
        names = count(1)
        self.pushers = [Pusher(self, f"p{next(names)}") for _ in range(PUSHERS)]
        loop = asyncio.get_running_loop()
        sending = asyncio.ensure_future(self._send())
        while loop.time() < FAULTS_S and self.violation is None:
            await asyncio.sleep(self.rng.expovariate(1 / 3))
            self._change_moods()
            at = self.rng.randrange(PUSHERS)
            pusher = self.pushers[at]
            match self.rng.choice(("kill", "stop", "cut off", "nothing")):
                case "kill":
                    self.kills += 1
                    await pusher.kill()
                    self.pushers[at] = Pusher(self, f"p{next(names)}")
                case "stop" if pusher.runs.is_set():
                    self._stop(pusher, self.rng.uniform(0.5, 15))
                case "cut off":
                    pusher.is_cut_off = not pusher.is_cut_off
                case _:
                    pass
        self.is_faulty = False
        await asyncio.gather(sending, *self.stopping)
        await self._heal()
        for pusher in self.pushers:
            await pusher.engine.stop(1.0)
            await pusher.owners.close()
        self._check_end()

    async def _add_queue(self, queue_id: int) -> None:
        rng = self.rng
        is_fifo = rng.random() < 0.5
        url = f"https://example.com/{queue_id}"
        attributes = {
            "PushEndpoint": url,
            "PushFormat": "CloudEventsJson",
            "PushBatchSize": str(rng.randint(2, 4)),
            "PushMaxConcurrency": str(rng.randint(1, 8)),
            "PushTimeoutSeconds": str(rng.randint(1, 3)),
            "PushRetryPolicy": '{"minBackoffSeconds":1,"maxBackoffSeconds":4}',
        }
        if is_fifo:
            attributes["FifoQueue"] = "true"
        definition = define(queue_id, f"orders-{queue_id}" + (".fifo" if is_fifo else ""), 1, **attributes)
        receives_max = rng.choice((2, 4, 1_000_000))
        queue = CheckedQueue(definition, ModelQueue(is_fifo=is_fifo, receives_max=receives_max))
        self.queues[queue_id] = self.by_url[url] = queue
        self.endpoints[queue_id] = Endpoint(self, queue)
        await self.store.transaction([], put_pushed(definition))

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < FAULTS_S and self.violation is None:
            queue = self.rng.choice(list(self.queues.values()))
            groups = [self.rng.choice("abc") for _ in range(self.rng.randint(1, 10))]
            queue.model.send(*groups)
            await asyncio.sleep(self.rng.expovariate(1))

    def _change_moods(self) -> None:
        moods = ("works", "works", "works", "down", "slow", "rejects", "busy", "partial")
        for endpoint in self.endpoints.values():
            endpoint.mood = "gone" if self.rng.random() < 0.005 else self.rng.choice(moods)

    async def _heal(self) -> None:
        for endpoint in self.endpoints.values():
            endpoint.mood = "works"
        for pusher in self.pushers:
            pusher.is_cut_off = False
        loop = asyncio.get_running_loop()
        owned_s, done_s = loop.time() + OWNED_S, loop.time() + HEALED_S
        while not self._is_owned() and self.violation is None:
            if loop.time() > owned_s:
                self.found("U4", "a queue is not owned by one pusher")
            await asyncio.sleep(0.1)
        while any(queue.model.left for queue in self.queues.values()) and self.violation is None:
            if loop.time() > done_s:
                self.found("U1", "a message is neither deleted nor dead, though all is well")
            await asyncio.sleep(1)

    def _is_owned(self) -> bool:
        return all(
            sum(pusher.owners.owns(queue_id) for pusher in self.pushers) == 1 for queue_id in self.queues
        )

    def may_stop(self, pusher: Pusher) -> None:
        """A pusher has received: it may be stopped before it calls, for longer than its messages are hidden."""
        if self.is_faulty and pusher.runs.is_set() and self.rng.random() < STOPPED:
            self._stop(pusher, self.rng.uniform(5, 15))

    def _stop(self, pusher: Pusher, stopped_s: float) -> None:
        self.stopping.append(asyncio.create_task(pusher.stop_for(stopped_s)))

    # What is checked

    def found(self, invariant: str, what: str) -> None:
        """Note what is wrong; the run ends."""
        self.violation = self.violation or Violation(invariant, f"{what}, at {now_ms()} ms")

    def excuse(self, queue: CheckedQueue, received: Sequence[Received]) -> None:
        """These cannot be tried: nobody knows of them."""
        queue.untried = [one for one in queue.untried if one not in received]

    def excuse_all(self, pusher: Pusher) -> None:
        """What a pusher has and has not tried is lost with it, or too old when it goes on."""
        for queue in self.queues.values():
            queue.untried = [one for one in queue.untried if one.pusher is not pusher]

    def begun(self, pusher: Pusher, queue: CheckedQueue, numbers: Sequence[int]) -> Call:
        """A call begins: check it, and return it."""
        self.calls += 1
        messages = [queue.model.messages[number] for number in numbers]
        call = Call(queue, messages, [message.count for message in messages], pusher)
        for message in messages:
            own = (one for one in queue.untried if one.pusher is pusher and one.message is message)
            with suppress(StopIteration):
                queue.untried.remove(next(own))
        gone = next((message for message in messages if message.number in queue.acknowledged), None)
        if gone is not None:
            self.found("U2", f"message {gone.number} is called after its deletion")
        if queue.model.is_fifo:
            self._check_order(call)
        queue.calls.append(call)
        under_way = sum(one.pusher is pusher for one in queue.calls)
        if under_way > queue.definition.push_concurrency_max + 1:
            self.found("U1", f"{under_way} calls are under way at once")
        return call

    def _check_order(self, call: Call) -> None:
        queue, groups = call.queue, {message.group for message in call.messages}
        for other in queue.calls:
            held = (other.messages[at] for at in range(len(other.messages)) if other.holds(at))
            if any(message.group in groups for message in held):
                self.found("U3", "two calls of a group are under way")
        own = {message.number for message in call.messages}
        for message in call.messages:
            before = [
                one
                for one in queue.model.left
                if one.number < message.number and one.group == message.group and one.number not in own
            ]
            if before:
                self.found("U3", f"message {message.number} is called before {before[0].number} is deleted")

    def _check_end(self) -> None:
        for queue in self.queues.values():
            for message in queue.model.messages:
                if message.is_deleted and message.number not in queue.taken:
                    self.found("U1", f"message {message.number} is deleted, and no endpoint took it")
            if queue.untried:
                self.found("U1", f"message {queue.untried[0].message.number} was received and not tried")


def run_seed(seed: int, bug: str | None = None) -> World:
    """Run one seed. Raises Violation for what is found."""
    world = World(seed, bug)
    world.run()
    return world


def main(words: Sequence[str]) -> int:
    """Run seeds until something is found."""
    first, end = int(words[0]), int(words[1])
    bug = words[2] if len(words) > 2 else None
    calls = 0
    for seed in range(first, end):
        try:
            calls += run_seed(seed, bug).calls
        except Violation as violation:
            print(f"seed {seed}: {violation}")
            return 1
    print(f"nothing found in {end - first} seeds, {calls:,} calls")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
