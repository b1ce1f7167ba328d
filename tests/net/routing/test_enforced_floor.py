"""A front end asks brokers which authorization floor they enforce."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from harness.routed_cell import Cell, run, send, until

from quaymaster.core.values.errors import Timeout, UnsupportedOperation
from quaymaster.net.routing.broker_router import WITNESSES
from quaymaster.net.routing.enforced_floor import EnforcedFloor
from quaymaster.net.rpc import IncomingCall, OnReply
from quaymaster.protocol.rpc.broker_calls import ENFORCED, REVISION


class Brokers:
    """Keeps the questions, for a test to answer."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.asked: dict[str, OnReply] = {}

    def ask_some(self, method: str, deadline_ms: int, on_reply: Callable[[str], OnReply]) -> list[str]:
        assert method == ENFORCED
        self.asked = {address: on_reply(address) for address in self.addresses}
        return self.addresses


def test_the_highest_floor_of_any_broker_counts() -> None:
    brokers = Brokers("a", "b")
    floor = EnforcedFloor(brokers)
    floor.ask()
    brokers.asked["a"](REVISION.pack(7))
    brokers.asked["b"](REVISION.pack(5))
    assert floor.revision == 7

    # A store that was restored: all say less.
    floor.ask()
    brokers.asked["a"](REVISION.pack(2))
    assert floor.revision == 5
    brokers.asked["b"](REVISION.pack(2))
    assert floor.revision == 2


def test_what_a_broker_said_that_is_silent_stays_true_until_it_is_gone_and_another_answers() -> None:
    brokers = Brokers("a", "b")
    floor = EnforcedFloor(brokers)
    floor.ask()
    brokers.asked["a"](REVISION.pack(7))
    floor.ask()
    brokers.asked["a"](Timeout())
    brokers.asked["b"](REVISION.pack(5))
    assert floor.revision == 7

    brokers.addresses = ["b"]
    floor.ask()
    assert floor.revision == 7
    brokers.asked["b"](REVISION.pack(5))
    assert floor.revision == 5


def test_brokers_are_silent_until_one_answers_also_one_that_is_too_old_to_know() -> None:
    brokers = Brokers("a")
    floor = EnforcedFloor(brokers)
    floor.ask()
    brokers.asked["a"](Timeout())
    assert floor.silent_ms == inf
    brokers.asked["a"](UnsupportedOperation("what?"))
    assert floor.silent_ms < inf
    assert floor.revision == 0


def test_brokers_in_use_are_asked_and_others_up_to_a_few() -> None:
    async def scenario(cell: Cell) -> None:
        used = cell.brokers[-1]
        cell.lead(1, used)
        await cell.ask(send(1))
        answered: dict[str, bytes | Exception] = {}

        def on_reply(address: str) -> OnReply:
            return lambda result: answered.update({address: result})

        asked = cell.router.ask_some("command?", 1_000, on_reply)
        await until(lambda: len(answered) == WITNESSES)
        assert used.address in asked
        assert len(asked) == len(set(asked)) == WITNESSES
        assert {type(result) for result in answered.values()} == {UnsupportedOperation}

    run(scenario, brokers=WITNESSES + 2)


def test_it_is_asked_again_and_again() -> None:
    async def scenario(cell: Cell) -> None:
        (broker,) = cell.brokers
        cell.lead(1, broker)
        told = 7

        def on_enforced(call: IncomingCall) -> None:
            call.reply(REVISION.pack(told))

        broker.server.handlers = {**broker.server.handlers, ENFORCED: on_enforced}
        floor = EnforcedFloor(cell.router)
        asking = asyncio.create_task(floor.ask_for_ever())
        await until(lambda: floor.revision == 7)
        told = 9
        await until(lambda: floor.revision == 9)
        asking.cancel()

    run(scenario, brokers=1)
