"""Which metadata node is asked, and which one next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from quaymaster.core.values.errors import (
    ConnectionLost,
    NotNow,
    NotYetKnown,
    Overloaded,
    QueueDoesNotExist,
    Timeout,
    Unreachable,
)
from quaymaster.monitoring.request_ids import REQUEST_ID
from quaymaster.net.routing.metadata_client import (
    STALE_NODE_MS,
    FullNodes,
    MetadataClient,
    MetadataLink,
    known,
    when_known,
)
from quaymaster.protocol.rpc.metadata_messages import Changes, Greet, Greeting, encode_message

GREETING = encode_message(Greeting("us-east-1", "000000000000"))


class FakeConnection:
    """Answers what it is told to, or fails; None: never."""

    def __init__(self, answer: bytes | Exception | None) -> None:
        self.answer = answer
        self.asked = 0
        self.traces: list[str] = []

    async def ask(
        self, method: str, body: bytes, deadline_ms: int, *, trace: str = "", counted_as: str = ""
    ) -> bytes:
        self.asked += 1
        self.traces.append(trace)
        if self.answer is None:
            await asyncio.sleep(deadline_ms / 1000)
            raise Timeout
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def client_of(*connections: FakeConnection, zone: str = "") -> MetadataClient:
    nodes = FullNodes([MetadataLink(str(number), link) for number, link in enumerate(connections)])
    nodes._nodes.sort(key=lambda node: node.name)
    return MetadataClient(nodes, zone=zone)


async def greet(client: MetadataClient, *, is_repeatable: bool = True) -> Greeting:
    return await client.ask(Greet(), Greeting, deadline_ms=500, attempt_ms=10, is_repeatable=is_repeatable)


def test_the_request_that_asks_is_named_to_every_node() -> None:
    async def scenario() -> None:
        one, two = FakeConnection(Unreachable()), FakeConnection(GREETING)

        REQUEST_ID.set("r-1")
        await greet(client_of(one, two))

        assert (one.traces, two.traces) == (["r-1"], ["r-1"])

    asyncio.run(scenario())


@pytest.mark.parametrize("failure", [Unreachable(), Timeout(), ConnectionLost(), NotNow(), b"garbage", None])
def test_next_node_is_asked_when_one_fails_and_first_from_then_on(failure: Exception | bytes | None) -> None:
    async def scenario() -> None:
        one, two = FakeConnection(failure), FakeConnection(GREETING)
        client = client_of(one, two)

        assert await greet(client) == Greeting("us-east-1", "000000000000")
        await greet(client)

        was_down = failure is None or isinstance(failure, Unreachable | Timeout | ConnectionLost)
        assert one.asked == (1 if was_down else 2)
        assert two.asked == 2

    asyncio.run(scenario())


def test_node_that_refuses_what_cannot_be_is_believed() -> None:
    async def scenario() -> None:
        one, two = FakeConnection(QueueDoesNotExist()), FakeConnection(GREETING)

        with pytest.raises(QueueDoesNotExist):
            await greet(client_of(one, two))
        assert two.asked == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("failure", [Timeout, ConnectionLost, NotNow])
def test_what_may_have_begun_is_not_asked_of_another_node_if_twice_does_harm(
    failure: Callable[[], Exception],
) -> None:
    async def scenario() -> None:
        one, two = FakeConnection(failure()), FakeConnection(GREETING)

        with pytest.raises(type(failure())):
            await greet(client_of(one, two), is_repeatable=False)
        assert two.asked == 0
        await greet(client_of(FakeConnection(Unreachable()), two), is_repeatable=False)
        assert two.asked == 1

    asyncio.run(scenario())


def test_last_failure_is_told_when_no_node_answers() -> None:
    async def scenario() -> None:
        with pytest.raises(ConnectionLost):
            await greet(client_of(FakeConnection(Unreachable()), FakeConnection(ConnectionLost())))
        with pytest.raises(Timeout):
            await greet(client_of(FakeConnection(None)))

    asyncio.run(scenario())


def test_requests_in_progress_are_bounded() -> None:
    async def scenario() -> None:
        client = client_of(FakeConnection(None))
        client._in_flight_max = 3

        results = await asyncio.gather(*(greet(client) for _ in range(5)), return_exceptions=True)

        assert sorted(type(result).__name__ for result in results) == ["Overloaded"] * 2 + ["Timeout"] * 3
        assert client._in_flight == 0
        assert client.age_ms == float("inf")

    asyncio.run(scenario())


def test_node_that_failed_is_asked_again_after_its_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quaymaster.net.routing.metadata_client.REST_MIN_S", 0.001)

    async def scenario() -> None:
        one, two = FakeConnection(Unreachable()), FakeConnection(GREETING)
        client = client_of(one, two)
        await greet(client)
        one.answer = GREETING
        await asyncio.sleep(0.01)

        await greet(client)

        assert (one.asked, two.asked) == (2, 1)

    asyncio.run(scenario())


def test_without_nodes_there_is_no_client() -> None:
    with pytest.raises(ValueError, match="at least one"):
        FullNodes([])


def test_what_is_looked_up_again_is_what_was_asked_for() -> None:
    async def scenario() -> None:
        waiting: list[Callable[[NotNow | None], None]] = []
        found: list[str] = []

        def look_up() -> str:
            if not found:
                raise NotYetKnown(waiting.append)
            return found[0]

        looking = asyncio.create_task(when_known(look_up))
        await asyncio.sleep(0)
        found.append("it")
        waiting[0](None)
        waiting[0](None)
        assert await looking == "it"

        refused = asyncio.create_task(known(NotYetKnown(waiting.append)))
        await asyncio.sleep(0)
        waiting[-1](Overloaded())
        with pytest.raises(Overloaded):
            await refused

    asyncio.run(scenario())


class ZonedConnection(FakeConnection):
    """Greets from a zone, and answers whoever follows with nothing new, unless it is told to fail."""

    def __init__(self, zone: str) -> None:
        super().__init__(None)
        self.zone = zone
        self.failure: Exception | None = None
        self.age_ms = 0
        self.more = False
        self.followed = 0

    async def ask(
        self, method: str, body: bytes, deadline_ms: int, *, trace: str = "", counted_as: str = ""
    ) -> bytes:
        await asyncio.sleep(0)
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        if counted_as:
            self.followed += 1
            return encode_message(Changes([], 1, self.age_ms, more=self.more))
        return encode_message(Greeting("us-east-1", "000000000000", self.zone))


async def follow(client: MetadataClient, answers: int) -> str:
    """Follow for so many answers, and return the name of the node that is followed then."""
    changes = client.follow(["queues/"], 0)
    for _ in range(answers):
        await anext(changes)
    await changes.aclose()  # type: ignore[attr-defined]
    assert client.followed is not None
    return client.followed.name


def test_what_is_known_is_old_until_the_last_change_that_a_node_knows_has_come() -> None:
    async def scenario() -> None:
        connection = ZonedConnection("a")
        client = client_of(connection)

        connection.more = True
        await follow(client, 3)
        assert client.age_ms == float("inf")
        connection.more = False
        await follow(client, 1)
        assert client.age_ms < float("inf")

    asyncio.run(scenario())


def test_nodes_of_the_own_zone_are_asked_and_followed_first() -> None:
    async def scenario() -> None:
        far, near = ZonedConnection("a"), ZonedConnection("b")
        client = client_of(far, near, zone="b")

        await client.meet()
        far.asked = near.asked = 0
        await greet(client)

        assert (far.asked, near.asked) == (0, 1)
        assert await follow(client, 3) == "1"
        assert not client.is_abroad

    asyncio.run(scenario())


def test_a_node_of_the_own_zone_that_comes_back_is_followed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quaymaster.net.routing.metadata_client.REST_MIN_S", 0.001)

    async def scenario() -> None:
        far, near = ZonedConnection("a"), ZonedConnection("b")
        client = client_of(far, near, zone="b")
        near.failure = Unreachable()
        await client.meet()

        assert await follow(client, 3) == "0"
        assert client.is_abroad
        near.failure = None
        await client.meet()
        changes = client.follow(["queues/"], 0)
        await anext(changes)
        await anext(changes)
        await changes.aclose()  # type: ignore[attr-defined]

        assert client.followed is not None
        assert client.followed.name == "1"

    asyncio.run(scenario())


def test_a_node_of_the_own_zone_whose_store_is_away_is_not_gone_back_to_at_once() -> None:
    async def scenario() -> None:
        far, near = ZonedConnection("a"), ZonedConnection("b")
        client = client_of(far, near, zone="b")
        await client.meet()
        near.age_ms = STALE_NODE_MS + 1

        assert await follow(client, 4) == "0"
        assert near.followed == 1

    asyncio.run(scenario())


def test_without_zones_all_nodes_are_alike() -> None:
    async def scenario() -> None:
        one, two = ZonedConnection("a"), ZonedConnection("b")
        client = client_of(one, two)
        await client.meet()

        assert await follow(client, 2) == "0"
        assert not client.is_abroad

    asyncio.run(scenario())


def test_a_node_of_before_that_tells_no_zone_is_of_another_one() -> None:
    async def scenario() -> None:
        old, near = ZonedConnection(""), ZonedConnection("b")
        client = client_of(old, near, zone="b")
        await client.meet()

        assert await follow(client, 2) == "1"

    asyncio.run(scenario())
