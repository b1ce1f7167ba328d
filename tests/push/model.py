"""A queue and an endpoint in memory, in the loop's time, for pushers in tests.

async def scenario() -> None: ...
run(scenario())        # with a clock that does not wait
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.skipping_loop import SkippingLoop

from quaymaster.core.push.calls import NO_SECRETS, Deleted, PushedMessage, PushSecrets
from quaymaster.core.push.flow import PushPlan
from quaymaster.core.push.states import PushState
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition
from quaymaster.push.parts import PushParts, Verified
from quaymaster.push.queue_pusher import QueuePusher

ACCOUNT = "000000000000"
ARN = f"arn:aws:sqs:us-east-1:{ACCOUNT}:orders"
URL = "https://example.com/hook"
PLAN = PushPlan(URL, ARN)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run to the end in a loop that skips what it would wait for."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(scenario)


def now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1_000)


def define(queue_id: int = 7, name: str = "orders", revision: int = 1, **attributes: str) -> QueueDefinition:
    given = {"PushEndpoint": URL, **attributes}
    return QueueDefinition(queue_id, ACCOUNT, name, "active", revision, 0, 0, given, {}, 1, one_partition())


@dataclass(eq=False)
class ModelMessage:
    """A message; `hidden_until_ms` of one that was never received is 0."""

    number: int
    group: str | None
    count: int = 0
    hidden_until_ms: int = 0
    is_deleted: bool = False
    is_dead: bool = False

    @property
    def is_there(self) -> bool:
        return not self.is_deleted and not self.is_dead


class ModelQueue:
    """Messages by their numbers, in order."""

    def __init__(self, *, is_fifo: bool = False, receives_max: int = 1_000_000) -> None:
        self.is_fifo = is_fifo
        self.receives_max = receives_max
        self.messages: list[ModelMessage] = []
        self.on_change: asyncio.Event = asyncio.Event()

    def send(self, *groups: str | None) -> None:
        """Add a message for each group."""
        for group in groups:
            self.messages.append(ModelMessage(len(self.messages), group))
        self.on_change.set()

    @property
    def left(self) -> list[ModelMessage]:
        """Return those that are there, in whatever state."""
        return [message for message in self.messages if message.is_there]

    def receive(self, count: int, hidden_ms: int) -> list[ModelMessage]:
        """Hand out messages that are visible."""
        now = now_ms()
        locked = {message.group for message in self.left if self.is_fifo and message.hidden_until_ms > now}
        found: list[ModelMessage] = []
        for message in self.left:
            if len(found) == count:
                break
            if message.hidden_until_ms > now or message.group in locked:
                continue
            if message.count >= self.receives_max:
                message.is_dead = True
                continue
            message.count += 1
            message.hidden_until_ms = now + hidden_ms
            found.append(message)
        return found

    def is_current(self, number: int, count: int) -> bool:
        """Tell whether a receipt is good: of a FIFO queue only the newest, and while the message is hidden."""
        message = self.messages[number]
        return not self.is_fifo or (message.count == count and message.hidden_until_ms > now_ms())

    def next_ms(self) -> int | None:
        """Return when the next hidden message is visible."""
        return min((message.hidden_until_ms for message in self.left), default=None)


@dataclass(eq=False)
class ModelConsumer:
    """A consumer of one queue; `failures` are raised instead of what is asked next, by method."""

    queue: ModelQueue
    definition: QueueDefinition | None = field(default_factory=define)
    failures: dict[str, list[Exception]] = field(default_factory=dict)
    received: list[int] = field(default_factory=list)
    """How many were asked for, each time."""
    watches: int = 0

    async def find(self, account_id: str, name: str) -> QueueDefinition | None:
        self._fail("find")
        return self.definition

    async def refresh(self, queue: QueueDefinition) -> None:
        self._fail("refresh")

    async def consumed(self, queue: QueueDefinition) -> QueueDefinition:
        return queue

    async def receive(self, queue: QueueDefinition, count: int, hidden_ms: int) -> list[PushedMessage]:
        self._fail("receive")
        await asyncio.sleep(0.001)
        self.received.append(count)
        return [pushed(message) for message in self.queue.receive(count, hidden_ms)]

    async def delete(self, queue: QueueDefinition, messages: Sequence[PushedMessage]) -> Deleted:
        self._fail("delete")
        await asyncio.sleep(0.001)
        count = 0
        for message in messages:
            if self.queue.is_current(number_of(message), message.delivery_count):
                self.queue.messages[number_of(message)].is_deleted = True
                count += 1
        self.queue.on_change.set()
        return Deleted(count)

    async def hide(
        self, queue: QueueDefinition, messages: Sequence[PushedMessage], timeouts_ms: Sequence[int]
    ) -> None:
        self._fail("hide")
        await asyncio.sleep(0.001)
        for message, timeout_ms in zip(messages, timeouts_ms, strict=True):
            if self.queue.is_current(number_of(message), message.delivery_count):
                self.queue.messages[number_of(message)].hidden_until_ms = now_ms() + timeout_ms
        self.queue.on_change.set()

    async def wait(self, queue: QueueDefinition, wait_ms: int) -> bool:
        self.watches += 1
        self._fail("wait")
        until_ms = now_ms() + wait_ms
        while now_ms() < until_ms:
            if self.has_visible():
                return True
            self.queue.on_change.clear()
            due_ms = min(until_ms, self.queue.next_ms() or until_ms)
            try:
                async with asyncio.timeout(max(0.001, (due_ms - now_ms()) / 1_000)):
                    await self.queue.on_change.wait()
            except TimeoutError:
                pass
        return False

    def has_visible(self) -> bool:
        """Tell whether a receive would find something."""
        now = now_ms()
        there = self.queue.left
        locked = {m.group for m in there if self.queue.is_fifo and m.hidden_until_ms > now}
        return any(m.hidden_until_ms <= now and m.group not in locked for m in there)

    def _fail(self, method: str) -> None:
        failures = self.failures.get(method)
        if failures:
            raise failures.pop(0)


def pushed(message: ModelMessage) -> PushedMessage:
    """Return a message as a consumer gives it."""
    name = f"m{message.number}"
    return PushedMessage(name, name, "handle", "body", "md5", 0, message.count, message.group)


def number_of(message: PushedMessage) -> int:
    return int(message.message_id[1:])


class ModelAnswer(NamedTuple):
    """What an endpoint answers."""

    status: int = 200
    headers: Mapping[str, str] = {}
    body: bytes = b""


class ModelCall(NamedTuple):
    """A call that an endpoint got."""

    at_ms: int
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


class ModelEndpoint:
    """Answers calls after `takes_s`: by `answer`, which may raise."""

    def __init__(
        self,
        answer: Callable[[ModelCall], ModelAnswer] = lambda call: ModelAnswer(),
        *,
        takes_s: float = 0.01,
    ) -> None:
        self.answer = answer
        self.takes_s = takes_s
        self.calls: list[ModelCall] = []
        self.under_way = 0
        self.most_under_way = 0

    @property
    def ids(self) -> list[str]:
        """Return the ids of the calls, in order."""
        return [call.headers["webhook-id"] for call in self.calls]

    async def call(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> ModelAnswer:
        call = ModelCall(now_ms(), method, url, headers, body)
        self.calls.append(call)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(self.takes_s)
            return self.answer(call)
        finally:
            self.under_way -= 1


def answering(answer: ModelAnswer) -> ModelEndpoint:
    """Return an endpoint that answers each call with this."""
    return ModelEndpoint(lambda call: answer)


def raising(error: Exception) -> ModelEndpoint:
    """Return an endpoint of which each call fails."""

    def answer(call: ModelCall) -> ModelAnswer:
        raise error

    return ModelEndpoint(answer)


class AllowedEndpoint:
    """Verifies whatever it is asked about."""

    def __init__(self, client: ModelEndpoint) -> None:
        self.client = client
        self.answers: list[Verified] = []
        """What it says first, before it allows."""
        self.asked_ms: list[int] = []

    async def verify(self, plan: PushPlan) -> Verified:
        self.asked_ms.append(now_ms())
        return self.answers.pop(0) if self.answers else Verified("active", "", self.client)


async def no_secrets(queue: QueueDefinition) -> PushSecrets:
    return NO_SECRETS


class NotedStates(list[tuple[int, PushState]]):
    """The states that were noted, by queue id; `rates` has how many calls a minute were allowed then."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[Exception] = []
        self.rates: list[int | None] = []

    async def note(self, queue: QueueDefinition, state: PushState, calls_per_minute: int | None) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.append((queue.queue_id, state))
        self.rates.append(calls_per_minute)


def parts_of(
    consumer: ModelConsumer, endpoint: ModelEndpoint, endpoints: AllowedEndpoint | None = None
) -> PushParts:
    return PushParts(
        consumer,
        endpoints or AllowedEndpoint(endpoint),
        no_secrets,
        NotedStates().note,
        may_receive=lambda: True,
        now_ms=now_ms,
        wall_ms=now_ms,
        luck=lambda: 0.5,
    )


async def until(condition: Callable[[], object], for_s: float = 10_000.0) -> None:
    """Wait until something is so; the clock does not wait."""
    loop = asyncio.get_running_loop()
    end_s, look_s = loop.time() + for_s, 0.005
    while not condition():
        assert loop.time() < end_s, "what was waited for did not happen"
        await asyncio.sleep(look_s)
        look_s = min(1.0, look_s * 1.1)


async def push_all(pusher: QueuePusher, queue: ModelQueue) -> None:
    """Push until nothing is left, and stop."""
    pusher.start()
    await until(lambda: not queue.left)
    await pusher.stop()


def numbers(ids: Iterable[str]) -> list[int]:
    return [int(each[1:]) for each in ids]
