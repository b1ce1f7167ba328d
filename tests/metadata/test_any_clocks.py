"""Whatever the clocks of front ends show: nothing that is needed goes, nothing goes early, and what is over goes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metadata.cell import Cell, FrontEnd, run_cell
from metadata.support import ACCOUNT, Clock
from quaymaster.coordination.counted_time import COUNTED_TIME
from quaymaster.core.values.errors import UnsupportedOperation
from quaymaster.metadata.store.rows import (
    KMS_KEYS,
    MASTER_KEY,
    READERS,
    RECEIPT_KEYS,
    SESSION_KEYS,
    WRAPPING_KEYS,
    id_text,
)

DAY_S = 86_400
FOLLOWED = (
    *(COUNTED_TIME, MASTER_KEY, WRAPPING_KEYS),
    *(READERS, RECEIPT_KEYS, SESSION_KEYS, KMS_KEYS),
)
HANDLE_S, TOKEN_S = 12 * 3_600, 36 * 3_600
NAMES = ("a", "b", "c")


class FrontEnds:
    """Three front ends with a clock each, and what is needed of which key until when, by true time."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.clocks = {name: Clock() for name in NAMES}
        self.ends: dict[str, FrontEnd] = {}
        self.needed: list[tuple[str, float]] = []
        """(row, until when it must be there)"""
        self.pending: dict[str, float] = {}
        """Until when a key for queues must be there whose deletion was scheduled."""
        self.kept: set[str] = set()

    async def start(self, stack: AsyncExitStack) -> None:
        for name in ("one", "two"):
            await stack.enter_async_context(self.cell.node(name))
        for name in NAMES:
            if self.ends:
                self.cell.copy_keys(NAMES[0], name)
            starting = self.cell.front_end(name, now_ms=self.clocks[name], kms="local")
            self.ends[name] = await stack.enter_async_context(starting)
        await self.all_follow()

    async def pass_s(self, seconds: int) -> None:
        """Let time pass, in which all do what is due, as often as they do it."""
        for clock in (self.cell.clock, *self.clocks.values()):
            clock.pass_s(seconds)
        await self.all_follow()
        for end in self.ends.values():
            await end.run_upkeep()
        await self.all_follow()

    async def all_follow(self) -> None:
        """Wait until everybody knows what is in the store; time is counted first."""
        for end in self.ends.values():
            await end.run_upkeep()
        for end in self.ends.values():
            for prefix in FOLLOWED:
                await end.registry.mirror.refresh_all(prefix)

    async def act(self, name: str, kind: str, number: int) -> None:
        end, now_s = self.ends[name], self.cell.clock.elapsed_s
        match kind:
            case "set":
                self.clocks[name].ms = self.cell.clock.ms + number
            case "upkeep":
                await end.run_upkeep()
            case "receipts":
                await end.rotate_receipt_key()
            case "sessions":
                await end.rotate_session_key()
            case "master":
                await self.rotate(end)
            case "handle":
                key_id = end.data_keys.receipt_handles._current_key_id
                self.needed.append((RECEIPT_KEYS + id_text(key_id), now_s + HANDLE_S))
            case "token":
                current = end.session_keys._tokens.current
                assert current is not None
                self.needed.append((SESSION_KEYS + id_text(current), now_s + TOKEN_S))
            case "create":
                self.kept.add(KMS_KEYS + f"{ACCOUNT}/{(await end.local_keys.create(ACCOUNT)).key_id}")
            case "schedule" if self.kept:
                key = sorted(self.kept)[number % len(self.kept)]
                days = 7 + number % 24
                await self.all_follow()
                await end.local_keys.schedule_deletion(ACCOUNT, key.rpartition("/")[2], days)
                self.kept.discard(key)
                self.pending[key] = now_s + days * DAY_S

    async def rotate(self, end: FrontEnd) -> None:
        """Rotate the master key as an operator does: until nobody lacks the new one."""
        while True:
            await self.all_follow()
            try:
                await end.rotate_master_key()
            except UnsupportedOperation:
                for source in NAMES:
                    for target in NAMES:
                        if source != target:
                            self.cell.copy_keys(source, target)
            else:
                break
        await self.all_follow()

    async def check(self) -> None:
        now_s = self.cell.clock.elapsed_s
        there = {item.key for item in (await self.cell.store.list_all("/"))[0]}
        early = {key for key, until_s in (*self.needed, *self.pending.items()) if now_s < until_s} - there
        assert not early, f"{early} went before their time"
        assert self.kept <= there
        for name, end in self.ends.items():
            held = await asyncio.to_thread(end.master_keys._provider.key_ids)
            assert end.master_key_id in held, f"{name} has lost the master key"
            assert end.count_front_ends() == len(NAMES)

    async def end(self) -> None:
        """Set all clocks right: what is over must go."""
        for clock in self.clocks.values():
            clock.ms = self.cell.clock.ms
        await self.pass_s(31 * DAY_S)
        for prefix in (RECEIPT_KEYS, SESSION_KEYS):
            left = {item.key for item in (await self.cell.store.list_all(prefix))[0]}
            assert 1 <= len(left) <= 2, left  # session keys are renewed
        assert {item.key for item in (await self.cell.store.list_all(KMS_KEYS))[0]} == self.kept


YEARS_MS = 20 * 365 * DAY_S * 1_000
acts = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from(
        (*("set", "upkeep", "receipts", "sessions", "master"), *("handle", "token", "create", "schedule"))
    ),
    st.one_of(st.integers(-7_200_000, 7_200_000), st.integers(-YEARS_MS, YEARS_MS)),
)
steps = st.one_of(acts, acts, st.one_of(st.integers(1, 7_200), st.integers(1, 20 * DAY_S)))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(given_steps=st.lists(steps, max_size=25))
def test_no_clock_of_a_front_end_takes_from_others_what_they_need_or_keeps_what_is_over(
    tmp_path_factory: pytest.TempPathFactory, given_steps: list[tuple[str, str, int] | int]
) -> None:
    async def scenario(cell: Cell) -> None:
        async with AsyncExitStack() as stack:
            ends = FrontEnds(cell)
            await ends.start(stack)
            for step in given_steps:
                if isinstance(step, int):
                    await ends.pass_s(step)
                else:
                    await ends.act(*step)
                await ends.check()
            await ends.end()

    run_cell(scenario, Path(tmp_path_factory.mktemp("keys")))
