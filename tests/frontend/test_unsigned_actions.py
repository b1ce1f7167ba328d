"""Actions of clients that have signed nothing: bounded by peer, network and issuer, and charged for their time."""

from __future__ import annotations

import asyncio

import pytest

from quaymaster.core.values.errors import Overloaded
from quaymaster.frontend.callers.unsigned_actions import (
    OF_ISSUER_MAX,
    OF_NETWORK_MAX,
    OF_PEER_MAX,
    UNSIGNED_ACTIONS_MAX,
    Charged,
    UnsignedActions,
)


def test_one_address_leaves_room_to_others() -> None:
    actions = UnsignedActions()
    places = [actions.enter("10.0.0.1", f"issuer {number}") for number in range(OF_PEER_MAX)]

    with pytest.raises(Overloaded):
        actions.enter("10.0.0.1", "another")
    actions.enter("10.0.0.2", "another")
    actions.leave(places[0])
    actions.enter("10.0.0.1", "another")


def test_one_network_of_ipv6_leaves_room_to_others_however_many_addresses_it_has() -> None:
    actions = UnsignedActions()
    for number in range(OF_NETWORK_MAX):
        actions.enter(f"2001:db8:1:{number:x}::1", f"issuer {number}")

    with pytest.raises(Overloaded):
        actions.enter("2001:db8:1:ffff::1", "another")
    actions.enter("2001:db8:2::1", "another")


def test_an_issuer_that_does_not_answer_leaves_room_to_others() -> None:
    actions = UnsignedActions()
    for number in range(OF_ISSUER_MAX):
        actions.enter(f"10.0.0.{number}", "silent")

    with pytest.raises(Overloaded):
        actions.enter("10.0.1.1", "silent")
    actions.enter("10.0.1.1", "another")


def test_all_together_are_bounded_and_who_left_is_forgotten() -> None:
    actions = UnsignedActions()
    places = [actions.enter(f"10.0.0.{number}", f"{number}") for number in range(UNSIGNED_ACTIONS_MAX)]

    with pytest.raises(Overloaded):
        actions.enter("10.0.1.1", "another")
    for entered in places:
        actions.leave(entered)

    assert (actions.total, actions._counts) == (0, {})


def test_each_step_of_what_is_awaited_is_charged_and_its_end_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 0.0
    monkeypatch.setattr("time.thread_time", lambda: clock)

    def work(seconds: float) -> None:
        nonlocal clock
        clock += seconds

    async def scenario() -> None:
        charged: list[float] = []
        gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def waits() -> int:
            work(1)
            got = await gate
            work(2)
            return got

        waiting = asyncio.ensure_future(_await(Charged(waits(), charged.append)))
        await asyncio.sleep(0)
        work(40)  # of others
        gate.set_result(7)
        assert await waiting == 7
        assert charged == [1, 2]

        async def is_cancelled() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                work(4)

        ended = asyncio.ensure_future(_await(Charged(is_cancelled(), charged.append)))
        await asyncio.sleep(0)
        ended.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ended
        assert charged == [1, 2, 0, 4]

    asyncio.run(scenario())


async def _await(charged: Charged[object]) -> object:
    return await charged
