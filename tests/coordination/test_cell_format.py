"""Processes say what they read, follow what is written, and the format is raised when all can follow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from harness.waiting import PATIENCE_S

from quaymaster.coordination import cell_format
from quaymaster.coordination.cell_format import (
    FORMAT_KEY,
    CellMember,
    FormatRefused,
    raise_format,
    read_format,
)
from quaymaster.coordination.cell_keys import (
    BrokerRegistration,
    configuration_key,
    encode_registration,
    registration_key,
)
from quaymaster.coordination.interface import CoordinationUnavailable, OutcomeUnknown, Put, StoreUnusable
from quaymaster.coordination.presence import ALIVE, Presence, PresenceRow, list_alive
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.formats import FORMAT_MAX

LEASE_MS = 1_000


class Store(MemoryCoordination):
    """Coordination that can be away, or answer nothing though it did what was asked."""

    is_away = False
    loses_answers = False

    async def transaction(self, compares, puts=(), deletes=()) -> int:  # type: ignore[no-untyped-def]
        revision = await super().transaction(compares, puts, deletes)
        if self.loses_answers:
            raise OutcomeUnknown
        return revision

    def _enter(self) -> None:
        if self.is_away:
            raise CoordinationUnavailable
        super()._enter()


Scenario = Callable[[Store], Awaitable[None]]


def run(scenario: Scenario) -> None:
    async def with_store() -> None:
        store = Store()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await store.transaction([], [Put(FORMAT_KEY, b"1")])
                await scenario(store)
        finally:
            store.is_away = False
            await store.close()

    asyncio.run(with_store())


def member_of(
    store: Store,
    role: str = "broker",
    node: str = "a",
    *,
    format_max: int = 2,
    failures: list[Exception] | None = None,
) -> CellMember:
    registration = PresenceRow(role, node, "0.2.0", 1, format_max)
    taken = failures if failures is not None else []
    return CellMember(store, Presence(store, registration, lease_ms=LEASE_MS), on_unreadable=taken.append)


async def register_broker(store: Store, name: str) -> None:
    registration = BrokerRegistration(name, "z", "127.0.0.1:1")
    await store.compare_and_swap(registration_key(name), 0, encode_registration(registration))


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 -- the product has no event for it
        await asyncio.sleep(0.01)


def test_a_cell_begins_with_the_newest_format_that_its_first_processes_read() -> None:
    async def scenario(store: Store) -> None:
        old = member_of(store, "frontend", "f", format_max=1)
        await store.transaction([], deletes=[FORMAT_KEY])
        new = member_of(store)
        await new.join()
        alone = new.cell_format.number
        await store.transaction([], deletes=[FORMAT_KEY])
        await old.join()

        assert alone == 2
        assert old.cell_format.number == 1
        assert await read_format(store) == 1
        await old.close()
        await new.close()

    run(scenario)


@pytest.mark.parametrize("key", [registration_key("a"), configuration_key(1)])
def test_a_cell_that_was_begun_before_formats_stays_as_it_is(key: str) -> None:
    async def scenario(store: Store) -> None:
        await store.transaction([], [Put(key, b"")], [FORMAT_KEY])
        member = member_of(store)
        await member.join()

        assert member.cell_format.number == 1
        assert await store.get(FORMAT_KEY) is None
        await member.close()

    run(scenario)


def test_a_raised_format_is_written_by_all_who_have_joined() -> None:
    async def scenario(store: Store) -> None:
        member = member_of(store)
        await member.join()
        await register_broker(store, "a")
        before = member.cell_format.number

        raised = await raise_format(store, 2)
        again = await raise_format(store, 2)
        await until(lambda: member.cell_format.number == 2)
        late = member_of(store, "frontend", "b")
        await late.join()

        assert before == 1
        assert raised
        assert not again
        assert late.cell_format.number == 2
        assert {one.key for one in await list_alive(store)} == {
            "alive/broker/a",
            "alive/frontend/b",
        }
        await member.close()
        await late.close()
        assert not await list_alive(store)

    run(scenario)


def test_a_format_is_not_raised_while_a_process_cannot_read_it_or_a_broker_is_away() -> None:
    async def scenario(store: Store) -> None:
        old = member_of(store, "frontend", "f", format_max=1)
        new = member_of(store)
        await old.join()
        await new.join()
        await register_broker(store, "a")
        await register_broker(store, "gone")

        with pytest.raises(FormatRefused, match=r"Format 2 cannot be read by frontend f \(version 0.2.0"):
            await raise_format(store, 2)
        await old.close()
        with pytest.raises(FormatRefused, match="do not run: gone"):
            await raise_format(store, 2)
        await store.transaction([], deletes=[registration_key("gone")])
        await raise_format(store, 2)
        with pytest.raises(FormatRefused, match="stays so"):
            await raise_format(store, 1)

        assert await read_format(store) == 2
        await new.close()

    run(scenario)


def test_a_process_that_cannot_read_the_format_does_not_start_or_stops() -> None:
    async def scenario(store: Store) -> None:
        failures: list[Exception] = []
        member = member_of(store, failures=failures)
        await member.join()
        await store.transaction([], [Put(FORMAT_KEY, b"%d" % (FORMAT_MAX + 1))])
        await until(lambda: bool(failures))
        late = member_of(store, "frontend", "b")

        with pytest.raises(
            StoreUnusable,
            match=f"the cell writes format {FORMAT_MAX + 1}; this program reads formats 1 to {FORMAT_MAX}",
        ):
            await late.join()

        assert "Start a newer version" in str(failures[0])
        assert member.cell_format.number == 1
        assert {one.node for one in await list_alive(store)} == {"a"}
        await member.close()

    run(scenario)


def test_a_process_whose_lease_was_lost_says_again_what_it_reads() -> None:
    async def scenario(store: Store) -> None:
        member = member_of(store)
        await member.join()
        await store.revoke_lease(1)
        assert not await list_alive(store)
        async for _ in store.watch(ALIVE, 0):
            if await list_alive(store):
                break
        store.is_away = True
        await asyncio.sleep(LEASE_MS / 2_000)
        await member.close()  # does not wait for who is away

    run(scenario)


def test_joining_waits_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_format, "RETRY_S", 0.01)

    async def scenario(store: Store) -> None:
        store.is_away = True
        member = member_of(store)
        joining = asyncio.create_task(member.join())
        await asyncio.sleep(0.05)
        assert not joining.done()
        store.is_away = False
        await joining
        await member.close()

    run(scenario)


def test_an_answer_that_was_lost_is_looked_for() -> None:
    async def scenario(store: Store) -> None:
        store.loses_answers = True
        assert await raise_format(store, 2)

    run(scenario)
