"""Whatever clocks of front ends and nodes show: nothing that is needed goes, nor early, and what is over goes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metadata.cell import Cell, FrontEnd, run_cell
from metadata.support import ACCOUNT, Clock
from quaymaster.coordination.counted_time import COUNTED_TIME
from quaymaster.core.values.errors import (
    JournalStopped,
    NotNow,
    PurgeQueueInProgress,
    QueueDeletedRecently,
    QueueDoesNotExist,
    UnsupportedOperation,
)
from quaymaster.metadata.store.rows import (
    DELETED,
    KMS_KEYS,
    MASTER_KEY,
    PENDING,
    PURGES,
    READERS,
    RECEIPT_KEYS,
    SESSION_KEYS,
    WRAPPING_KEYS,
    DeletedRow,
    id_text,
    row_decoder,
)
from quaymaster.protocol.rpc.metadata_messages import BeginPurge, CreateQueue, DeleteQueue

DAY_S = 86_400
FOLLOWED = (
    *(COUNTED_TIME, MASTER_KEY, WRAPPING_KEYS),
    *(READERS, RECEIPT_KEYS, SESSION_KEYS, KMS_KEYS),
)
HANDLE_S, TOKEN_S = 12 * 3_600, 36 * 3_600
REST_S = 60
"""So long a queue's name and purges rest, and changes that were cut in half are left alone."""
NAMES = ("a", "b", "c")
NODES = ("one", "two")
decode_deleted = row_decoder(DeletedRow)


class FrontEnds:
    """Three front ends and two metadata nodes with a clock each, and what is needed until when, by true time."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.clocks = {name: Clock() for name in (*NAMES, *NODES)}
        self.ends: dict[str, FrontEnd] = {}
        self.needed: list[tuple[str, float]] = []
        """(row, until when it must be there)"""
        self.pending: dict[str, float] = {}
        """Until when a key for queues must be there whose deletion was scheduled."""
        self.kept: set[str] = set()
        self.resting: dict[str, float] = {}
        """Until when the names of deleted queues rest."""
        self.deleted: dict[int, float] = {}
        """Until when journals may hear of deleted queues, by id: their deletion is remembered."""
        self.purged: dict[str, float] = {}
        """When queues were purged last."""
        self.half: dict[str, float] = {}
        """Until when queues of which a creation was cut in half are left alone, by their names."""
        self.halves = 0

    async def start(self, stack: AsyncExitStack) -> None:
        for name in NODES:
            await stack.enter_async_context(self.cell.node(name, now_ms=self.clocks[name]))
        for name in NAMES:
            if self.ends:
                self.cell.copy_keys(NAMES[0], name)
            starting = self.cell.front_end(name, now_ms=self.clocks[name], kms="local")
            self.ends[name] = await stack.enter_async_context(starting)
        await self.all_follow()

    async def pass_s(self, seconds: int) -> None:
        """Let time pass, in which all do what is due, as often as they do it."""
        await self.cell.pass_s(seconds)
        for clock in self.clocks.values():
            clock.pass_s(seconds)
        for node in self.cell.nodes.values():
            await node.registry.run_upkeep()
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
        node = NODES[number % len(NODES)]
        match kind:
            case "set":
                self.clocks[name].ms = self.cell.clock.ms + number
            case "set node":
                self.clocks[node].ms = self.cell.clock.ms + number
            case "upkeep":
                await end.run_upkeep()
            case "node upkeep":
                await self.cell.nodes[node].registry.run_upkeep()
            case "queue" | "delete" | "purge" | "half":
                await self.change_queue(end, kind, f"orders-{number % 2}")
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

    async def change_queue(self, end: FrontEnd, kind: str, name: str) -> None:
        now_s = self.cell.clock.elapsed_s
        match kind:
            case "queue":
                rests = now_s < self.resting.get(name, 0)
                try:
                    await end.queues.change(CreateQueue(ACCOUNT, name))
                except QueueDeletedRecently:
                    assert rests, f"{name} has rested"
                else:
                    assert not rests, f"{name} was used again too soon"
            case "delete":
                with suppress(QueueDoesNotExist):
                    queue = await end.queues.change(DeleteQueue(ACCOUNT, name))
                    self.resting[name] = self.deleted[queue.queue_id] = now_s + REST_S
                    self.purged.pop(name, None)
            case "purge":
                rests = now_s < self.purged.get(name, -REST_S) + REST_S
                try:
                    await end.queues.change(BeginPurge(ACCOUNT, name, 0))
                except PurgeQueueInProgress:
                    assert rests, f"{name} may be purged"
                except QueueDoesNotExist:
                    pass
                else:
                    assert not rests, f"{name} was purged again too soon"
                    self.purged[name] = now_s
            case "half":
                self.halves += 1
                self.cell.journal.error = JournalStopped()
                with suppress(NotNow):
                    await end.queues.change(CreateQueue(ACCOUNT, f"half-{self.halves}"))
                self.cell.journal.error = None
                self.half[f"half-{self.halves}"] = now_s + REST_S

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
        rows = (await self.cell.store.list_all(DELETED))[0]
        remembered = {decode_deleted(row.value).queue_id for row in rows}
        forgotten = {queue_id for queue_id, until_s in self.deleted.items() if now_s < until_s} - remembered
        assert not forgotten, f"{forgotten} were deleted, and forgotten too soon"
        for name, until_s in self.half.items():
            assert (f"{PENDING}{ACCOUNT}/{name}" in there) == (now_s < until_s), name
        for name, end in self.ends.items():
            held = await asyncio.to_thread(end.master_keys._provider.key_ids)
            assert end.master_key_id in held, f"{name} has lost the master key"
            assert end.count_front_ends() == len(NAMES)

    async def end(self) -> None:
        """Set all clocks right: what is over must go."""
        for clock in self.clocks.values():
            clock.ms = self.cell.clock.ms
        await self.pass_s(31 * DAY_S)
        for prefix in (DELETED, PENDING, PURGES):
            assert not (await self.cell.store.list_all(prefix))[0]
        for prefix in (RECEIPT_KEYS, SESSION_KEYS):
            left = {item.key for item in (await self.cell.store.list_all(prefix))[0]}
            assert 1 <= len(left) <= 2, left  # session keys are renewed
        assert {item.key for item in (await self.cell.store.list_all(KMS_KEYS))[0]} == self.kept


YEARS_MS = 20 * 365 * DAY_S * 1_000
numbers = st.one_of(st.integers(-7_200_000, 7_200_000), st.integers(-YEARS_MS, YEARS_MS))
passed_s = st.one_of(st.integers(1, 7_200), st.integers(1, 20 * DAY_S))
about_a_minute_s = st.one_of(st.integers(1, 90), st.integers(1, 7_200))


def acts(*kinds: str) -> st.SearchStrategy[tuple[str, str, int]]:
    return st.tuples(st.sampled_from(NAMES), st.sampled_from(kinds), numbers)


key_acts = acts(
    *("receipts", "sessions", "master", "handle", "token", "create", "schedule", "upkeep", "set", "set node")
)
queue_acts = acts("queue", "queue", "delete", "purge", "half", "node upkeep", "set node")


async def run_steps(cell: Cell, given_steps: list[tuple[str, str, int] | int]) -> None:
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


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(given_steps=st.lists(st.one_of(key_acts, key_acts, passed_s), min_size=5, max_size=25))
def test_no_clock_takes_from_others_the_keys_they_need_or_keeps_what_is_over(
    tmp_path_factory: pytest.TempPathFactory, given_steps: list[tuple[str, str, int] | int]
) -> None:
    run_cell(lambda cell: run_steps(cell, given_steps), Path(tmp_path_factory.mktemp("keys")))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(given_steps=st.lists(st.one_of(queue_acts, queue_acts, about_a_minute_s), min_size=10, max_size=30))
def test_no_clock_shortens_or_lengthens_how_long_names_purges_and_cut_changes_rest(
    tmp_path_factory: pytest.TempPathFactory, given_steps: list[tuple[str, str, int] | int]
) -> None:
    run_cell(lambda cell: run_steps(cell, given_steps), Path(tmp_path_factory.mktemp("keys")))
