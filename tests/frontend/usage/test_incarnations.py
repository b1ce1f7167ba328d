"""Front ends that do not come back: another one seals for them, and they cannot go on as if nothing had been."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from harness.waiting import PATIENCE_S

from frontend.support import FakeBroker, until
from frontend.usage.test_usage_feed import Running, cell_of_one, on_a_loop, running, shipped
from quaymaster.coordination.counted_time import COUNTED_AT_ONCE_MAX_MS, COUNTED_TIME, read_counted
from quaymaster.coordination.interface import Compare, OutcomeUnknown, Put
from quaymaster.coordination.number_rows import encode_number
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.errors import InvalidParameterValue, NotNow, UnsupportedOperation
from quaymaster.frontend.usage import incarnations as incarnations_module
from quaymaster.frontend.usage.incarnations import (
    INCARNATIONS,
    UNKNOWN_MAX,
    FrontEndIncarnations,
    Incarnation,
    may_be_gone,
)
from quaymaster.metadata.service import MetadataService
from quaymaster.protocol.usage.usage_blocks import Seal, UsageBlock

DAY_S = 86_400


class Clock:
    """Microseconds that a test moves on: those of a wall clock, and the counted time of a store."""

    def __init__(self) -> None:
        self.now_us = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.now_us

    async def pass_s(self, seconds: int, store: MemoryCoordination) -> None:
        """Let time pass that is counted, too."""
        self.set_s(seconds)
        counted_ms = await read_counted(store) + seconds * 1_000
        await store.transaction([], [Put(COUNTED_TIME, encode_number(counted_ms))])

    def set_s(self, seconds: int) -> None:
        """Set the wall clock."""
        self.now_us += seconds * 1_000_000


async def crashed(store: MemoryCoordination, clock: Clock, name: str = "gone") -> int:
    """Let a front end start and be heard of no more; return the number of its incarnation."""
    incarnations = FrontEndIncarnations(store, now_us=clock)
    incarnation, _ = await incarnations.claim(name, after=0)
    assert await incarnations.renew(name, incarnation)
    return incarnation


def seals_of(broker: FakeBroker, metadata: MetadataService, name: str) -> list[Seal]:
    return [
        block.header.seal
        for block in shipped(broker, metadata)
        if block.header.seal and block.header.front_end == name
    ]


def use_clock(one: Running, clock: Clock) -> None:
    one.feed._now_us = clock
    assert one.feed._incarnations is not None
    one.feed._incarnations._now_us = clock


@on_a_loop
async def test_a_front_end_that_is_gone_for_long_is_sealed_by_another_once(tmp_path: Path) -> None:
    store, clock = MemoryCoordination(), Clock()
    incarnation = await crashed(store, clock)
    async with cell_of_one() as (broker, metadata), running(tmp_path, broker, metadata, store) as one:
        use_clock(one, clock)
        await clock.pass_s(DAY_S - 60, store)
        await one.feed.keep_incarnations()
        before = seals_of(broker, metadata, "gone")
        await clock.pass_s(60, store)

        for _ in range(3):
            await one.feed.keep_incarnations()

        assert before == []
        assert seals_of(broker, metadata, "gone") == [Seal(incarnation, None, "lost")]
        assert one.sample("quaymaster_usage_front_ends_sealed_total") == 1
        row = (await FrontEndIncarnations(store, now_us=clock).rows())["gone"]
        assert (row.seals, row.is_told) == (incarnation, True)
        assert row.number > incarnation


@on_a_loop
async def test_a_seal_that_could_not_be_told_is_told_later_in_the_same_words(tmp_path: Path) -> None:
    store, clock = MemoryCoordination(), Clock()
    await crashed(store, clock)
    async with cell_of_one() as (broker, metadata), running(tmp_path, broker, metadata, store) as one:
        use_clock(one, clock)
        await clock.pass_s(DAY_S, store)
        row = await FrontEndIncarnations(store, now_us=clock).seal("gone")
        broker.failure = NotNow()
        with pytest.raises(NotNow):
            await one.feed.keep_incarnations()
        broker.failure = None

        await clock.pass_s(300, store)
        await one.feed.keep_incarnations()

        (block,) = [block for block in shipped(broker, metadata) if block.header.front_end == "gone"]
        assert block.header.low_watermark_us == row.started_us


@on_a_loop
async def test_who_was_sealed_and_comes_back_records_under_another_incarnation(tmp_path: Path) -> None:
    store = MemoryCoordination()
    async with cell_of_one() as (broker, metadata), running(tmp_path, broker, metadata, store) as one:
        await one.send(2)
        await until(lambda: one.sample("quaymaster_usage_records_shipped_total") == 2)
        incarnations = FrontEndIncarnations(store, now_us=one.feed._now_us)
        sealed = await incarnations.seal("fe-1", unseen_ms=0)

        await one.feed.keep_incarnations()
        await one.send(3)
        await until(lambda: one.sample("quaymaster_usage_records_shipped_total") == 5)

        blocks = shipped(broker, metadata)
        after = max(block.header.incarnation for block in blocks)
        assert after > sealed.number > sealed.seals
        assert rows_of(blocks) == {sealed.seals: 2, after: 3}
        assert Seal(sealed.seals, 2, "stopped") in seals_of(broker, metadata, "fe-1")
        assert (await incarnations.rows())["fe-1"].number == after


@on_a_loop
async def test_blocks_and_audit_go_on_where_the_incarnation_before_ended(tmp_path: Path) -> None:
    store = MemoryCoordination()
    async with cell_of_one() as (broker, metadata), running(tmp_path, broker, metadata, store) as one:
        await one.send()
        await FrontEndIncarnations(store, now_us=one.feed._now_us).seal("fe-1", unseen_ms=0)
        await one.feed.keep_incarnations()
        await one.send()
        await until(lambda: one.sample("quaymaster_usage_records_shipped_total") == 2)

        await asyncio.wait_for(one.shipper.is_idle.wait(), PATIENCE_S)
        blocks = shipped(broker, metadata)
        for before, block in pairwise(blocks):
            assert block.header.previous == before.digest


@on_a_loop
async def test_who_ended_in_order_and_shipped_all_is_not_sealed(tmp_path: Path) -> None:
    store, clock = MemoryCoordination(), Clock()
    async with cell_of_one() as (broker, metadata):
        async with running(tmp_path / "one", broker, metadata, store):
            pass
        row = (await FrontEndIncarnations(store, now_us=clock).rows())["fe-1"]

        assert row.is_told
        assert not may_be_gone(row)
        assert await FrontEndIncarnations(store, now_us=clock).seal("fe-1") == row


def test_who_never_renews_is_of_an_older_program_and_not_taken_as_gone() -> None:
    assert not may_be_gone(Incarnation(1, 1_000))
    assert may_be_gone(Incarnation(1, 1_000, 2_000))


@on_a_loop
async def test_a_front_end_that_runs_or_never_was_is_not_sealed(tmp_path: Path) -> None:
    store, clock = MemoryCoordination(), Clock()
    await crashed(store, clock, "alive")
    incarnations = FrontEndIncarnations(store, now_us=clock)
    await clock.pass_s(100, store)

    with pytest.raises(UnsupportedOperation, match=r"'alive' ran 100 s ago, .* gone after 180 s"):
        await incarnations.seal("alive")
    with pytest.raises(InvalidParameterValue, match="ever recorded usage"):
        await incarnations.seal("nobody")


@on_a_loop
async def test_a_front_end_whose_clock_was_ahead_is_sealed_once_it_is_gone(tmp_path: Path) -> None:
    store, clock = MemoryCoordination(), Clock()
    incarnation = await crashed(store, clock, "ahead")
    clock.set_s(-365 * DAY_S)
    await clock.pass_s(180, store)

    row = await FrontEndIncarnations(store, now_us=clock).seal("ahead")

    assert row.seals == incarnation


@on_a_loop
async def test_a_front_end_whose_clock_is_days_ahead_seals_none_that_runs_and_later_those_that_are_gone(
    tmp_path: Path,
) -> None:
    store, right = MemoryCoordination(), Clock()
    alive = await crashed(store, right, "alive")
    gone = await crashed(store, right, "gone")
    of_alive = FrontEndIncarnations(store, now_us=right)
    async with cell_of_one() as (broker, metadata), running(tmp_path, broker, metadata, store) as one:
        ahead = Clock()
        ahead.set_s(400 * DAY_S)
        use_clock(one, ahead)
        for _ in range(24 * 2 - 1):
            await right.pass_s(1_800, store)
            assert await of_alive.renew("alive", alive)
            await one.feed.keep_incarnations()
        assert (await of_alive.rows())["gone"].seals == 0

        await right.pass_s(1_800, store)
        assert await of_alive.renew("alive", alive)
        await one.feed.keep_incarnations()

        assert seals_of(broker, metadata, "alive") == []
        assert seals_of(broker, metadata, "gone") == [Seal(gone, None, "lost")]


@on_a_loop
async def test_a_front_end_whose_program_does_not_know_counted_time_is_gone_when_it_stays_away(
    tmp_path: Path,
) -> None:
    store, clock = MemoryCoordination(), Clock()
    row = b'{"epoch":7,"started_us":5,"renewed_us":9}'
    await store.compare_and_swap(INCARNATIONS + "old", 0, row)
    async with cell_of_one() as (broker, metadata), running(tmp_path, broker, metadata, store) as one:
        await clock.pass_s(DAY_S, store)
        await one.feed.keep_incarnations()
        with pytest.raises(UnsupportedOperation, match=r"'old' ran 0 s ago"):
            await FrontEndIncarnations(store, now_us=clock).seal("old")
        await clock.pass_s(DAY_S + COUNTED_AT_ONCE_MAX_MS // 1_000, store)

        await one.feed.keep_incarnations()

        assert seals_of(broker, metadata, "old") == [Seal(7, None, "lost")]


@on_a_loop
async def test_programs_before_and_this_one_read_each_others_rows(tmp_path: Path) -> None:
    store = MemoryCoordination()
    await store.compare_and_swap(INCARNATIONS + "old", 0, b'{"epoch":7,"started_us":5}')

    assert await FrontEndIncarnations(store, now_us=lambda: 0).rows() == {"old": Incarnation(7, 5)}
    assert not await FrontEndIncarnations(store, now_us=lambda: 0).renew("old", 6)
    assert await FrontEndIncarnations(store, now_us=lambda: 9).renew("old", 7)
    renewed = await store.get(INCARNATIONS + "old")
    assert renewed is not None
    assert renewed.value.startswith(b'{"epoch":7,"started_us":5,"renewed_us":9,')


def rows_of(blocks: list[UsageBlock]) -> dict[int, int]:
    rows: dict[int, int] = {}
    for block in blocks:
        if block.header.rows:
            rows[block.header.incarnation] = rows.get(block.header.incarnation, 0) + block.header.rows
    return rows


class LosingAnswers(MemoryCoordination):
    """A store that makes changes, or does not, and answers none of the first ones."""

    def __init__(self, *made: bool) -> None:
        super().__init__()
        self._made = list(made)

    async def transaction(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        if not self._made:
            return await super().transaction(compares, puts, deletes)
        if self._made.pop(0):
            await super().transaction(compares, puts, deletes)
        raise OutcomeUnknown


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incarnations_module, "UNKNOWN_RETRY_S", 0)


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("made", [(True,), (False,), (False, True), (False, False, False)])
def test_a_claim_whose_answer_is_lost_is_claimed_once(made: tuple[bool, ...]) -> None:
    async def scenario() -> None:
        clock = Clock()
        incarnations = FrontEndIncarnations(LosingAnswers(*made), now_us=clock)

        number, last = await incarnations.claim("one", after=0)

        assert last is None
        assert (await incarnations.rows())["one"].number == number == clock() // 1_000_000
        assert (await incarnations.claim("one", after=0))[1] == number

    asyncio.run(scenario())


@pytest.mark.usefixtures("no_pauses")
def test_a_claim_that_is_never_answered_ends() -> None:
    incarnations = FrontEndIncarnations(LosingAnswers(*[False] * UNKNOWN_MAX), now_us=Clock())

    with pytest.raises(OutcomeUnknown):
        asyncio.run(incarnations.claim("one", after=0))
