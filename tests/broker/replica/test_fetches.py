"""Long stretches of a queue are read from the cache and from the segments, in order, up to a number of bytes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness.broker_support import BrokerTester, body_of, define, message, redrive_to, running

from quaymaster.broker.replica import fetches
from quaymaster.broker.storage.segments import RecordUnreadable
from quaymaster.core.values.commands.logs import Fetch, FetchOutcome, FindOffset, LogBounds, LogBoundsOutcome
from quaymaster.core.values.errors import InternalFailure
from quaymaster.core.values.messages import decode_message

FAR = 1 << 62
ROOM = 1 << 24


async def fetch(tester: BrokerTester, start: int, stop: int = FAR, bytes_max: int = ROOM) -> FetchOutcome:
    outcome = await tester.ask(Fetch(1, 0, start, stop, bytes_max))
    assert isinstance(outcome, FetchOutcome)
    return outcome


async def filled(tester: BrokerTester, count: int) -> None:
    """Send messages to queue 1, between those of another queue, some in groups and with retry ids."""
    await tester.set_queue(define(1))
    await tester.set_queue(define(2))
    for first in range(1, count + 1, 5):
        some = range(first, min(first + 5, count + 1))
        await tester.send(
            1, *[message(number, group=number % 3, retry=number if number % 2 else None) for number in some]
        )
        await tester.send(2, message(1))


def bodies(first: int, last: int) -> list[bytes]:
    return [body_of(number) for number in range(first, last + 1)]


@pytest.mark.parametrize("cache_bytes", [1, 3_000, 1 << 20])
def test_a_stretch_is_read_wherever_its_bodies_are(tmp_path: Path, cache_bytes: int) -> None:
    async def run() -> tuple[FetchOutcome, FetchOutcome]:
        async with running(tmp_path, body_cache_bytes=cache_bytes) as tester:
            await filled(tester, 203)
            return await fetch(tester, 1), await fetch(tester, 17, 42)

    every, some = asyncio.run(run())

    assert every.sequences == list(range(1, 204))
    assert every.messages == bodies(1, 203)
    assert (every.next_sequence, every.earliest, every.end) == (204, 1, 204)
    assert (some.messages, some.next_sequence) == (bodies(17, 41), 42)
    assert len(some.sent_ms) == 25


@pytest.mark.parametrize("cache_bytes", [1, 3_000, 1 << 20])
def test_a_fetch_ends_before_its_bytes_are_exceeded_but_has_one_message(
    tmp_path: Path, cache_bytes: int
) -> None:
    size = len(body_of(1))

    async def run() -> list[FetchOutcome]:
        async with running(tmp_path, body_cache_bytes=cache_bytes) as tester:
            await filled(tester, 203)
            return [
                await fetch(tester, 3, bytes_max=wanted) for wanted in (1, size, 3 * size, 100 * size + 1)
            ]

    outcomes = asyncio.run(run())

    assert [len(outcome.messages) for outcome in outcomes] == [1, 1, 3, 100]
    assert [outcome.next_sequence for outcome in outcomes] == [4, 4, 6, 103]
    assert [outcome.sequences[-1] for outcome in outcomes] == [3, 3, 5, 102]


def test_a_message_that_was_moved_is_read_in_its_wrapper(tmp_path: Path) -> None:
    async def run() -> FetchOutcome:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1, "dead"))
            await tester.set_queue(define(2, "jobs", RedrivePolicy=redrive_to("dead", 1)))
            await tester.send(2, message(5, group=4))
            await tester.receive(2, timeout_ms=0)
            while (await tester.ask(LogBounds(1, 0))).end == 1:
                await tester.receive(2)
            return await fetch(tester, 1)

    outcome = asyncio.run(run())

    stored = decode_message(outcome.messages[0])
    assert (stored.nonce_counter, stored.source_queue_id) == (5, 2)
    assert stored.dead_letter_source_arn is not None


def unreadable(tester: BrokerTester, monkeypatch: pytest.MonkeyPatch, *sequences: int) -> None:
    read_records = tester.broker.files.read_records
    index = tester.broker.host.replica.queues.partition(1, 0).index
    damaged = [index.entry(sequence).offset for sequence in sequences]

    def read(wanted: list[int]) -> Any:
        for offset in wanted:
            if offset in damaged:
                raise RecordUnreadable(offset, "its sector is damaged")
        return read_records(wanted)

    monkeypatch.setattr(tester.broker.files, "read_records", read)


def test_what_is_before_a_damaged_message_is_given_and_itself_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> tuple[FetchOutcome, FetchOutcome]:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await filled(tester, 100)
            unreadable(tester, monkeypatch, 40)
            before = await fetch(tester, 3)
            with pytest.raises(InternalFailure, match="The message at offset 40 cannot be read"):
                await fetch(tester, 40)
            return before, await fetch(tester, 41)

    before, after = asyncio.run(run())

    assert (before.messages, before.next_sequence) == (bodies(3, 39), 40)
    assert after.messages == bodies(41, 100)


def test_a_damaged_message_that_can_be_mended_is_given_with_those_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> FetchOutcome:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await filled(tester, 100)
            host = tester.broker.host
            offset = host.replica.queues.partition(1, 0).index.entry(40).offset
            ((row, payload),) = tester.broker.files.read_records([offset])
            unreadable(tester, monkeypatch, 40)

            async def repaired(offsets: list[int]) -> dict[int, Any]:
                return {offset: (row.type, row.flags, row.sequence, payload)}

            monkeypatch.setattr(host.records, "_repaired", repaired)
            return await fetch(tester, 40)

    assert asyncio.run(run()).messages == bodies(40, 100)


def test_a_read_that_fails_is_a_failure_of_that_fetch_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: object, offsets: object, bytes_max: int) -> Any:
        raise OSError(5, "Input/output error")

    async def run() -> LogBoundsOutcome:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await filled(tester, 20)
            with monkeypatch.context() as patch:
                patch.setattr(fetches.Fetches, "_read_cold", fails)
                with pytest.raises(InternalFailure):
                    await fetch(tester, 1)
            assert tester.broker.host.stopped is None
            assert (await tester.ask(FindOffset(1, 0, 0))).sequence == 1
            outcome = await tester.ask(LogBounds(1, 0))
            assert isinstance(outcome, LogBoundsOutcome)
            return outcome

    assert asyncio.run(run()) == LogBoundsOutcome(1, 21)
