"""Claims in real files: read from cache and segments, held over restarts and compactions, and settled for good."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.broker_support import BrokerTester, body_of, define, message, redrive_to, running

from quaymaster.core.values.commands.claims import Claim, ClaimOutcome, ReadClaim, Settle, SettledOutcome
from quaymaster.core.values.commands.logs import FetchOutcome
from quaymaster.core.values.commands.messages import Delete

HELD_MS = 300_000
ROOM = 1 << 24


async def claim(
    tester: BrokerTester, count: int, *, claim_id: int = 1, known: int = 0, queue_id: int = 1
) -> ClaimOutcome:
    outcome = await tester.ask(Claim(queue_id, 0, "spark", "a", claim_id, count, known, HELD_MS))
    assert isinstance(outcome, ClaimOutcome)
    return outcome


async def read(
    tester: BrokerTester, start: int = 0, *, claim_id: int = 1, bytes_max: int = ROOM
) -> FetchOutcome:
    outcome = await tester.ask(ReadClaim(1, 0, "spark", claim_id, start, 1 << 40, bytes_max))
    assert isinstance(outcome, FetchOutcome)
    return outcome


async def filled(tester: BrokerTester, count: int) -> None:
    """Send messages to queue 1, some of which are gone again, and others delivered before."""
    await tester.set_queue(define(1))
    for first in range(1, count + 1, 5):
        await tester.send(1, *[message(number) for number in range(first, first + 5)])
    gone = await tester.receive(1, 10)
    await tester.ask(Delete(1, 0, tester.receipts(gone[::2])))


@pytest.mark.parametrize("cache_bytes", [1, 3_000, 1 << 20])
def test_a_claim_is_read_by_its_places_wherever_its_bodies_are(tmp_path: Path, cache_bytes: int) -> None:
    size = len(body_of(1))

    async def run() -> list[FetchOutcome]:
        async with running(tmp_path, body_cache_bytes=cache_bytes) as tester:
            await filled(tester, 205)
            assert (await claim(tester, 150)).count == 150
            assert (await claim(tester, 150, known=150)).count == 195
            return [
                await read(tester),
                await read(tester, 17),
                await read(tester, 20, bytes_max=1),
                await read(tester, 20, bytes_max=3 * size),
            ]

    every, later, one, three = asyncio.run(run())

    assert every.sequences == list(range(11, 206))
    assert every.messages == [body_of(number) for number in range(11, 206)]
    assert (every.next_sequence, every.end) == (195, 195)
    assert (later.messages, later.next_sequence) == (every.messages[17:], 195)
    assert (one.messages, one.next_sequence) == (every.messages[20:21], 21)
    assert (three.messages, three.next_sequence) == (every.messages[20:23], 23)


def test_a_claim_is_read_identically_after_restarts_and_what_is_settled_is_compacted(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as tester:
            await filled(tester, 100)
            await claim(tester, 40)
            first = await read(tester)
            await tester.broker.snapshots.write()
            await claim(tester, 40, claim_id=2)
            second = await read(tester, claim_id=2)
        async with running(tmp_path) as tester:
            assert await read(tester) == first
            assert await read(tester, claim_id=2) == second
            assert await tester.ask(Settle(1, 0, "spark", "a", 1)) == SettledOutcome(1, 40)
            await tester.set_queue(define(2))
            for number in range(100):  # the settled messages are in closed segments now
                await tester.send(2, message(number, filling=b"y" * 300))
            for _ in range(2):
                await tester.broker.snapshots.write()
            await tester.broker.compaction.step(younger_than_ms=0)
            assert tester.broker.compaction.compacted_segments > 0
            assert await read(tester, claim_id=2) == second
        async with running(tmp_path) as tester:
            assert await read(tester, claim_id=2) == second
            left = await tester.receive(1, 10)
            assert [delivery.sequence for delivery in left] == list(range(91, 101))
            assert await tester.ask(Settle(1, 0, "spark", "a", 2)) == SettledOutcome(2, 40)

    asyncio.run(run())


def test_dead_letters_that_a_claim_meets_are_moved(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1, "dead"))
            await tester.set_queue(define(2, "jobs", RedrivePolicy=redrive_to("dead", 1)))
            await tester.send(2, message(5), message(6))
            await tester.receive(2, 1, timeout_ms=0)

            claimed = await claim(tester, 10, queue_id=2)

            assert claimed.count == 1
            dead = await tester.receive(1, 10, wait_ms=20_000)
            assert [delivery.sequence for delivery in dead] == [1]

    asyncio.run(run())
